"""Connections that are open and silent: they are broken, and those that only take long are not."""

from __future__ import annotations

import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, make_url, text
from sqlalchemy.sql.expression import Executable

from tests.runtime.proxy import READY_FOR_QUERY, Proxy
from tests.store.acting import a_claimed, lease_of
from tests.support.databases import Databases
from tests.support.eventually import eventually
from tests.support.postgres import PostgresServer
from workhorse.domain.boundaries import BoundaryKind, NewBoundary
from workhorse.domain.recording import Record, Recorded
from workhorse.store.base import hanging
from workhorse.store.base.connecting import parse_url
from workhorse.store.base.database import Store, Tx
from workhorse.store.base.dialect import Dialect
from workhorse.store.base.hanging import LOOKS_EVERY_S, Hangs, watch
from workhorse.store.base.migrating import migrate
from workhorse.store.durable.transacting import transact


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Rig:
    """A store behind a proxy, whose calls are made in another thread."""

    def __init__(self, proxy: Proxy, url: str, thread: ThreadPoolExecutor) -> None:
        self.proxy, self.clock, self._thread = proxy, Clock(), thread
        through = make_url(url).set(host="127.0.0.1", port=proxy.port)
        self.store = Store.open(through.render_as_string(hide_password=False))
        # The server is asked past the proxy.
        target = Store.open(url).target
        self.store.hangs = Hangs(target, after_s=30, on_its_way_s=0, clock=self.clock)

    def call(self, op: Any) -> Future[Any]:
        return self._thread.submit(self.store.run, op)

    def aside(self, job: Callable[[], Any]) -> Future[Any]:
        return self._thread.submit(job)

    @contextmanager
    def own(self) -> Iterator[Store]:
        """The operations' store, as a worker has it; what hangs there is broken at the end."""
        own = self.store.sibling(connections=2, bounded=False)
        own.hangs = self.store.hangs
        try:
            yield own
        finally:
            own.abort()
            own.close()

    def a_record(self) -> Record:
        return Record(
            lease=lease_of(a_claimed(self.store)),
            boundary=NewBoundary(name="pay", kind=BoundaryKind.CHECKPOINT, seq=1),
        )

    def broken(self) -> None:
        """Wait, for more than the time that it has, until the call under way is broken."""

        def look() -> bool:
            self.clock.now += 31
            return self.store.hangs.look() == 1

        eventually(look, within=20)


@pytest.fixture(scope="module")
def url(postgres: Databases) -> Iterator[str]:
    """A database that is reached by TCP, where there is PostgreSQL at all."""
    with PostgresServer(tcp=True) as server:
        url = server.databases.url(server.databases.create())
        store = Store.open(url)
        migrate(store)
        store.close()
        yield url


@pytest.fixture
def rig(url: str) -> Iterator[Rig]:
    with Proxy(make_url(url).port or 0) as proxy, ThreadPoolExecutor(1) as thread:
        rig = Rig(proxy, url, thread)
        rig.store.run(one)
        try:
            yield rig
        finally:
            rig.proxy.swallow(False)
            rig.store.abort()
            rig.store.close()


def one(tx: Tx) -> int:
    return int(tx.conn.execute(text("select 1")).scalar_one())


def test_a_swallowed_statement_is_broken_off_and_tried_again(rig: Rig) -> None:
    rig.proxy.swallow(True)
    answer = rig.call(one)
    assert rig.proxy.swallowed.wait(20)
    rig.clock.now += 29
    assert rig.store.hangs.look() == 0
    assert not answer.done()
    rig.proxy.swallow(False)
    rig.broken()
    assert answer.result(20) == 1


def test_a_first_connection_that_is_never_answered_is_broken_off_too(rig: Rig) -> None:
    rig.store.close()
    rig.proxy.swallow_behind(READY_FOR_QUERY)  # it is let in, and then nothing
    answer = rig.call(one)
    assert rig.proxy.swallowed.wait(20)
    rig.proxy.swallow(False)
    rig.broken()
    assert answer.result(20) == 1


def test_a_transaction_of_many_statements_has_its_time_for_each(rig: Rig) -> None:
    def many(tx: Tx) -> int:
        for _ in range(3):
            rig.clock.now += 20
            rig.store.hangs.goes_on()
            assert rig.store.hangs.look() == 0
        return one(tx)

    assert rig.call(many).result(20) == 1


def test_each_statement_of_the_store_is_a_sign_of_life(rig: Rig) -> None:
    """What runs through `Store.execute` says that it goes on."""
    waits = rig.store.hangs._waits

    def two(tx: Tx) -> float:
        rig.clock.now += 20
        with pytest.raises(ZeroDivisionError):  # before it reaches the database
            tx.fetch(_broken)
        return next(iter(waits.values())).since

    assert rig.call(two).result(20) == rig.clock.now


def test_who_waits_for_anothers_lock_is_asked_about_and_not_broken_off(rig: Rig) -> None:
    """A caller's transaction that holds an idempotency key decides how long that takes."""
    held, go_on = threading.Event(), threading.Event()

    def patient(tx: Tx) -> int:
        tx.wait_for_locks()
        held.set()
        tx.conn.execute(text("select pg_advisory_xact_lock(1)"))
        return one(tx)

    with _locked(rig.store, go_on):
        answer = rig.call(patient)
        assert held.wait(20)
        eventually(lambda: _waiting(rig.store) == 1)
        for _ in range(3):
            rig.clock.now += 31
            assert rig.store.hangs.look() == 0
        go_on.set()
    assert answer.result(20) == 1


def test_who_waits_for_anothers_lock_over_a_silent_connection_is_broken_off(rig: Rig) -> None:
    tried: list[int] = []

    def patient(tx: Tx) -> int:
        tx.wait_for_locks()
        if not tried:
            tried.append(1)
            rig.proxy.swallow(True)
        return one(tx)

    answer = rig.call(patient)
    assert rig.proxy.swallowed.wait(20)
    rig.proxy.swallow(False)
    rig.broken()
    assert answer.result(20) == 1


def test_a_pause_between_two_statements_is_nobodys_silence(rig: Rig) -> None:
    """The server is idle, and so is the client: it computes."""

    def computes(tx: Tx) -> int:
        tx.wait_for_locks()
        rig.clock.now += 31
        assert rig.store.hangs.look() == 0
        return one(tx)

    assert rig.call(computes).result(20) == 1


def test_a_server_that_cannot_be_asked_is_no_reason_to_break(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = Store.open("postgresql://127.0.0.1:1/nothing").target
    held, go_on = threading.Event(), threading.Event()

    def patient(tx: Tx) -> int:
        tx.wait_for_locks()
        held.set()
        tx.conn.execute(text("select pg_advisory_xact_lock(1)"))
        return one(tx)

    with _locked(rig.store, go_on):
        answer = rig.call(patient)
        assert held.wait(20)
        eventually(lambda: _waiting(rig.store) == 1)
        monkeypatch.setattr(rig.store.hangs, "_target", nobody)
        rig.clock.now += 31
        assert rig.store.hangs.look() == 0
        go_on.set()
    assert answer.result(20) == 1


def test_a_server_that_says_nothing_is_given_up(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hanging, "_ANSWERS_WITHIN_S", 0.1)
    rig.proxy.swallow_behind(READY_FOR_QUERY)
    answer = rig.aside(lambda: Hangs(rig.store.target)._is_at_work(1))
    try:
        assert rig.proxy.swallowed.wait(20)
        assert answer.result(20) is None
    finally:
        rig.proxy.close()  # whatever hangs ends with it


def test_who_was_answered_while_the_server_was_asked_is_not_broken_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    hangs = Hangs(parse_url("postgresql://nowhere.invalid/app"), after_s=30, clock=clock)

    def asked(_backend: int) -> bool:
        hangs.goes_on()
        return False

    monkeypatch.setattr(hangs, "_is_at_work", asked)
    active = SimpleNamespace(transaction_status=TransactionStatus.ACTIVE)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        hangs.begin()
        hangs.uses(SimpleNamespace(pgconn=active, fileno=ours.fileno))
        hangs.depends(7)
        clock.now += 31
        assert hangs.look() == 0


def test_a_handlers_own_transaction_over_a_silent_connection_is_done_again(rig: Rig) -> None:
    """Its operation may take as long as it likes, but not longer than the server is at it."""
    called: list[int] = []

    def pay(conn: Connection) -> str:
        called.append(1)
        if len(called) == 1:
            rig.proxy.swallow(True)
        conn.execute(text("select 1"))
        return "1"

    record = rig.a_record()
    with rig.own() as own:
        answer = rig.aside(lambda: transact(own, record, pay, may_start=lambda: None))
        assert rig.proxy.swallowed.wait(20)
        rig.proxy.swallow(False)
        rig.broken()
        assert answer.result(20).result is Recorded.STORED
    assert len(called) == 2


def test_a_handlers_own_transaction_may_take_its_time(rig: Rig) -> None:
    """A time decides only before its operation and behind it; and then nothing is watched."""

    def computes(conn: Connection) -> str:
        rig.clock.now += 31
        assert rig.store.hangs.look() == 0
        return "1"

    record = rig.a_record()
    with rig.own() as own:
        answer = rig.aside(lambda: transact(own, record, computes, may_start=lambda: None))
        assert answer.result(20).result is Recorded.STORED
    assert rig.store.hangs._waits == {}


@pytest.mark.parametrize("asked", [True, False], ids=["asked", "not to be asked"])
def test_a_handlers_own_transaction_hears_nothing_at_its_end_and_is_looked_up(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    """Also where the server does not say whether it is at work: the end is ours, and short."""
    if not asked:
        nobody = Store.open("postgresql://127.0.0.1:1/nothing").target
        monkeypatch.setattr(rig.store.hangs, "_target", nobody)

    def pay(conn: Connection) -> str:
        rig.proxy.swallow_behind(b"COMMIT")
        return "1"

    record = rig.a_record()
    with rig.own() as own:
        answer = rig.aside(lambda: transact(own, record, pay, may_start=lambda: None))
        assert rig.proxy.swallowed.wait(20)
        rig.proxy.swallow(False)
        rig.broken()
        assert answer.result(20).result is Recorded.STORED


def test_a_call_within_a_call_leaves_the_first_one_watched(rig: Rig) -> None:
    def outer(tx: Tx) -> int:
        before = rig.store.hangs._waits[threading.get_ident()]
        rig.store.run(one)
        assert rig.store.hangs._waits[threading.get_ident()] is before
        return one(tx)

    assert rig.call(outer).result(20) == 1


def test_who_says_no_time_has_the_usual_one() -> None:
    clock = Clock()
    hangs = Hangs(parse_url("postgresql://nowhere.invalid/app"), clock=clock)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        hangs.begin()
        hangs.uses(ours)
        clock.now += hanging.HANGS_AFTER_S
        assert hangs.look() == 0
        clock.now += 1
        assert hangs.look() == 1
        assert theirs.recv(1) == b""


def test_who_has_no_connection_yet_hangs_on_none() -> None:
    """The pool and the network bound how long that takes."""
    clock = Clock()
    hangs = Hangs(parse_url("postgresql://nowhere.invalid/app"), after_s=30, clock=clock)
    hangs.begin()
    clock.now += 31

    assert hangs.look() == 0


def test_nothing_is_watched_once_a_call_has_ended(rig: Rig) -> None:
    with pytest.raises(ZeroDivisionError):
        rig.call(lambda _: 1 / 0).result(20)
    rig.call(one).result(20)
    assert rig.store.hangs._waits == {}


def _by_the_newest() -> bool:
    """Say whether this is the newest thread: one that was there before may look too."""
    return threading.current_thread() is hanging._thread


class Looked(Hangs):
    """Says how often it was looked at."""

    def __init__(self) -> None:
        super().__init__(parse_url("postgresql://nowhere.invalid/app"))
        self.times = 0

    def look(self) -> int:
        self.times += _by_the_newest()
        return 0


class Failing(Looked):
    def look(self) -> int:
        super().look()
        raise ZeroDivisionError


def test_one_thread_looks_at_all_in_turn(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is a daemon, and when it has died the next store starts another."""
    rests: list[float] = []
    go_on = threading.Semaphore(0)
    real = time.sleep

    def rest(seconds: float) -> None:
        if not _by_the_newest():
            return real(seconds)
        rests.append(seconds)
        assert go_on.acquire(timeout=20)
        if len(rests) > 2:
            raise SystemExit
        return None

    monkeypatch.setattr(threading, "excepthook", lambda _: None)  # how the threads end is known
    monkeypatch.setattr(hanging, "time", SimpleNamespace(sleep=rest))
    monkeypatch.setattr(hanging, "_thread", None)
    monkeypatch.setattr(hanging, "_watched", weakref.WeakSet())
    before = set(threading.enumerate())
    those = [Looked(), Failing(), Looked()]
    for each in those:
        watch(each)
    (thread,) = set(threading.enumerate()) - before
    assert thread is hanging._thread
    assert thread.daemon

    for times in (1, 2):
        go_on.release()
        eventually(lambda: len(rests) > times)  # noqa: B023
        assert [each.times for each in those] == [times] * 3
        assert caplog.text.count("has failed; it goes on") >= times
    assert rests == [LOOKS_EVERY_S] * 3
    go_on.release()
    thread.join(20)
    watch(those[0])
    another = hanging._thread
    assert another is not thread
    assert another is not None
    assert another.is_alive()
    go_on.release()
    another.join(20)


def test_a_process_that_was_forked_looks_by_a_thread_of_its_own(postgresql_url: str) -> None:
    store = Store.open(postgresql_url)
    store.run(one)
    thread = hanging._thread
    assert thread is not None
    assert thread.is_alive()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            store.run(one)
            own = hanging._thread
            code = 0 if own is not None and own is not thread and own.is_alive() else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    store.close()
    assert os.waitstatus_to_exitcode(status) == 0


def _broken(_d: Dialect) -> Executable:
    raise ZeroDivisionError


@contextmanager
def _session(store: Store) -> Iterator[Connection]:
    with store.sibling(connections=1).engine.connect() as conn:
        yield conn
        conn.rollback()
        conn.invalidate()


@contextmanager
def _locked(store: Store, until: threading.Event) -> Iterator[None]:
    """Hold a lock in another session; let it go at the end, or before."""
    with _session(store) as conn:
        conn.execute(text("select pg_advisory_xact_lock(1)"))
        yield
        assert until.is_set()


def _waiting(store: Store) -> int:
    with _session(store) as conn:
        asked = text("select count(*) from pg_stat_activity where wait_event = 'advisory'")
        return int(conn.execute(asked).scalar_one())
