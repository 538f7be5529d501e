"""What passes by itself is tried again, and what does not says so without telling secrets."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from sqlalchemy import insert, select, text
from sqlalchemy.exc import (
    DBAPIError,
    IntegrityError,
    InternalError,
    OperationalError,
    ProgrammingError,
)

from tests.store.acting import (
    LEASE_MS,
    QUEUE,
    TASK,
    a_claimed,
    a_run,
    a_token,
    do,
    end,
    put,
    put_many,
    reach,
    rows,
    seen,
)
from tests.store.rivals import Rival, blocked_sessions
from tests.support.eventually import eventually
from tests.support.postgres import PostgresServer
from workhorse.domain.ids import RunId
from workhorse.domain.runs import ClaimedRun
from workhorse.errors import StoreUnavailableError, WorkhorseError
from workhorse.store.base import database
from workhorse.store.base.database import TRIES, Store, Tx
from workhorse.store.base.migrating import migrate
from workhorse.store.base.schema import runs
from workhorse.store.durable import histories
from workhorse.store.lifecycle import claiming
from workhorse.store.lifecycle.claiming import claim, claimed_under
from workhorse.store.operators.operating import cancel
from workhorse.store.producing.enqueueing import enqueue


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let the store rest no time between its tries; what it would have rested, in seconds."""
    taken: list[float] = []
    monkeypatch.setattr("workhorse.store.base.database.time", SimpleNamespace(sleep=taken.append))
    return taken


def _failing(times: int, error: Callable[[Tx], object]) -> tuple[Callable[[Tx], int], list[int]]:
    """Return an operation that fails the first times, and what counts its calls."""
    calls: list[int] = []

    def op(tx: Tx) -> int:
        calls.append(1)
        if len(calls) <= times:
            error(tx)
        return len(calls)

    return op, calls


def test_a_claim_is_not_repeated_behind_its_commit(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is one statement: with the same token it would take others, and lose sight of these."""
    failing = iter([True])

    def with_history(tx: Tx, claimed: list[ClaimedRun]) -> list[ClaimedRun]:
        if next(failing, False):
            _raise_state("57014")(tx)
        return histories.with_history(tx, claimed)

    monkeypatch.setattr(claiming, "with_history", with_history)
    with closing(Store.open(postgresql_url)) as store:
        put_many(store, 4)
        token = a_token()

        with pytest.raises(StoreUnavailableError, match="may have happened"):
            store.run_once(
                claim, queue=QUEUE, ids=(), tasks=(TASK,), free=2, token=token,
                lease_ms=LEASE_MS, scan=True,
            )  # fmt: skip

        assert len(store.run(claimed_under, token)) == 2


def _raise_state(state: str) -> Callable[[Tx], object]:
    sql = f"do $$ begin raise exception 'secret' using errcode = '{state}'; end $$"
    return lambda tx: tx.conn.execute(text(sql))


def _driver(tx: Tx) -> psycopg.Connection[Any]:
    raw = tx.conn.connection.driver_connection
    assert isinstance(raw, psycopg.Connection)
    return raw


def _lose_connection(tx: Tx) -> None:
    """End this very session, as a server that goes away does."""
    pid = tx.conn.exec_driver_sql("select pg_backend_pid()").scalar_one()
    raw = _driver(tx)
    with psycopg.connect(raw.info.dsn, password=raw.info.password or None) as other:
        other.execute("select pg_terminate_backend(%s, 5000)", (pid,))
    tx.conn.exec_driver_sql("select 1")


_PASSING = ["40001", "40P01", "55P03", "53300", "53200", "53100", "57P03", "57014", "25006"]


@pytest.mark.parametrize("state", _PASSING)
@pytest.mark.parametrize("how", ["run", "run_once", "read"])
def test_case_14_what_passes_by_itself_is_tried_again(
    postgresql_store: Store, rests: list[float], state: str, how: str
) -> None:
    op, _ = _failing(2, _raise_state(state))

    assert getattr(postgresql_store, how)(op) == 3

    assert len(rests) == 2


@pytest.mark.parametrize("state", ["08006", "57P01", "25P03"])
def test_what_says_that_a_connection_is_gone_leaves_in_doubt_what_happened(
    postgresql_store: Store, rests: list[float], state: str
) -> None:
    for how in (postgresql_store.run, postgresql_store.read):
        op, _ = _failing(1, _raise_state(state))
        assert how(op) == 2

    op, calls = _failing(1, _raise_state(state))
    with pytest.raises(StoreUnavailableError, match="may have happened"):
        postgresql_store.run_once(op)
    assert len(calls) == 1


@pytest.mark.parametrize("how", ["run", "run_once"])
def test_after_six_tries_the_store_is_said_to_be_unavailable(
    postgresql_store: Store, rests: list[float], how: str
) -> None:
    op, calls = _failing(99, _raise_state("40001"))

    with pytest.raises(StoreUnavailableError, match="SQLSTATE 40001"):
        getattr(postgresql_store, how)(op)

    assert len(calls) == TRIES == 6
    bounds = [0.05, 0.1, 0.2, 0.4, 0.8]
    assert all(bound / 2 <= rest <= bound for rest, bound in zip(rests, bounds, strict=True))


def test_rests_grow_to_two_seconds(
    postgresql_store: Store, rests: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "TRIES", 12)
    op, _ = _failing(99, _raise_state("40001"))

    with pytest.raises(StoreUnavailableError):
        postgresql_store.run(op)

    assert len(rests) == 11
    assert max(rests) <= 2.0
    assert min(rests[-4:]) >= 1.0


def test_try_once_repeats_nothing(postgresql_store: Store, rests: list[float]) -> None:
    op, calls = _failing(1, _raise_state("40001"))

    with pytest.raises(StoreUnavailableError):
        postgresql_store.try_once(op)

    assert (len(calls), rests) == (1, [])


def test_a_lost_connection_is_replaced(postgresql_store: Store, rests: list[float]) -> None:
    op, _ = _failing(2, _lose_connection)

    assert postgresql_store.run(op) == 3


@pytest.mark.parametrize("how", ["run_once", "try_once"])
def test_run_once_does_not_repeat_what_may_have_happened(
    postgresql_store: Store, rests: list[float], how: str
) -> None:
    op, calls = _failing(1, _lose_connection)

    with pytest.raises(StoreUnavailableError, match="may have happened, and repeating it is safe"):
        getattr(postgresql_store, how)(op)

    assert (len(calls), rests) == (1, [])
    assert getattr(postgresql_store, how)(op) == 2


def test_a_connection_that_was_lost_in_the_pool_is_replaced(
    postgresql_store: Store, rests: list[float]
) -> None:
    store = postgresql_store
    run_id = put(store)
    other = store.sibling(connections=1)
    rows(
        other,
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()",
    )
    other.close()

    assert seen(store, run_id).state == "ready"


def test_a_commit_whose_answer_was_lost_does_not_double(
    postgresql_store: Store, rests: list[float]
) -> None:
    """The enqueue has happened, its answer is lost, the next try finds its own id there."""
    store = postgresql_store
    run = a_run(key="k")
    calls: list[int] = []

    def enqueue_and_lose(tx: Tx) -> bool:
        (answer,) = enqueue(tx, [run], reach=reach)
        calls.append(1)
        if len(calls) == 1:
            _driver(tx).commit()
            _lose_connection(tx)
        return answer.created

    assert store.run(enqueue_and_lose)

    assert len(calls) == 2
    assert len(rows(store, "select * from {s}live")) == 1


def test_a_connection_to_a_server_that_only_reads_is_thrown_away(
    postgresql_url: str, rests: list[float]
) -> None:
    """After a failover a pooled connection may lead to a standby; a new one finds the primary."""
    store = Store.open(postgresql_url, connections=1)
    put(store)
    with store.engine.connect() as conn:
        conn.exec_driver_sql("set session characteristics as transaction read only")
        conn.commit()
    with pytest.raises(DBAPIError, match="read-only"), store.engine.begin() as conn:
        conn.exec_driver_sql("create table t ()")

    put(store)

    assert len(rests) == 1
    store.close()


def test_case_14_a_deadlock_is_no_error(postgresql_store: Store) -> None:
    """Two operations that lock in opposite orders: one of them is tried again."""
    store = postgresql_store
    first, second = put(store), put(store)
    meet = threading.Barrier(2)
    calls: list[RunId] = []

    def lock_both(tx: Tx, ids: list[RunId]) -> None:
        lock = 'select id from "workhorse".live where id = %(id)s for update'
        tx.conn.exec_driver_sql("set local lock_timeout = 0")
        tx.conn.exec_driver_sql(lock, {"id": ids[0]})
        calls.append(ids[0])
        if len(calls) <= 2:
            meet.wait(10)
        tx.conn.exec_driver_sql(lock, {"id": ids[1]})

    with ThreadPoolExecutor(2) as threads:
        one = threads.submit(lambda: store.run(lock_both, [first, second]))
        two = threads.submit(lambda: store.run(lock_both, [second, first]))
        one.result(30)
        two.result(30)

    assert len(calls) == 3


def test_a_lock_that_is_held_for_long_is_waited_for_again(postgresql_store: Store) -> None:
    """A statement waits two seconds for a row; then the operation begins anew."""
    store = postgresql_store
    run_id = put(store)
    with Rival(store) as other, ThreadPoolExecutor(1) as thread:
        other.lock(run_id)
        answer = thread.submit(store.run, cancel, run_id, by="ann", why="no", request_id="r")
        eventually(lambda: blocked_sessions(store) == 1)
        eventually(lambda: blocked_sessions(store) == 0)  # the first wait is over
        other.rollback()
        assert answer.result(30)[0] == "cancelled"


def test_another_error_passes_as_it_is(store: Store, rests: list[float]) -> None:
    put(store)

    def breaks(tx: Tx) -> None:
        tx.conn.execute(text("choose * from nowhere"))

    def doubles(tx: Tx) -> None:
        conn = tx.conn.execution_options(schema_translate_map={None: tx.schema})
        conn.execute(insert(runs).from_select(list(runs.c.keys()), select(runs)))

    with pytest.raises((ProgrammingError, OperationalError), match="choose"):
        store.run(breaks)
    with pytest.raises(IntegrityError):
        store.run(doubles)
    with pytest.raises(ZeroDivisionError):
        store.run(lambda tx: 1 // 0)

    assert rests == []


def test_an_operation_gets_its_arguments(store: Store) -> None:
    def op(tx: Tx, one: int, *, two: int) -> tuple[int, int]:
        return one, two

    for how in (store.run, store.run_once, store.try_once, store.read):
        assert how(op, 1, two=2) == (1, 2)


# -- what an error tells -------------------------------------------------------------------------


def test_a_database_that_is_not_there_is_named_without_credentials(rests: list[float]) -> None:
    store = Store.open("postgresql://somebody:secret@127.0.0.1:1/app?connect_timeout=2")

    with pytest.raises(StoreUnavailableError) as failure:
        put(store, payload='"private"')

    told = str(failure.value)
    assert told.startswith("PostgreSQL at 127.0.0.1:1/app did not answer (OperationalError: ")
    assert "Connection refused" in told
    assert told.endswith("; nothing was sent, and repeating it is safe")
    assert "secret" not in told + repr(failure.value.__cause__)
    assert "private" not in told + repr(failure.value.__cause__)
    assert isinstance(failure.value, WorkhorseError)
    assert len(rests) == 5
    store.close()


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path, rests: list[float]) -> None:
    store = Store.open(f"sqlite:///{tmp_path / 'missing' / 'a.sqlite3'}")

    with pytest.raises(StoreUnavailableError, match="missing/a.sqlite3 cannot be used: unable"):
        put(store)
    store.close()


def test_an_error_of_the_database_shows_no_payload(store: Store) -> None:
    do(store, "create unique index once on {s}runs (payload)")
    put(store, payload='"private"')

    with pytest.raises(IntegrityError) as failure:
        put(store, payload='"private"')

    assert "private" not in str(failure.value)


def test_what_is_raised_in_the_database_is_not_repeated_in_the_message(
    postgresql_store: Store, rests: list[float]
) -> None:
    op, _ = _failing(99, _raise_state("40001"))

    with pytest.raises(StoreUnavailableError) as failure:
        postgresql_store.run(op)

    assert "secret" not in str(failure.value)


# -- a database that goes away -------------------------------------------------------------------


def test_a_store_outlives_the_outage_of_its_server(own_postgres: PostgresServer) -> None:
    store = Store.open(own_postgres.url(own_postgres.databases.create()))
    migrate(store)
    claimed = a_claimed(store, lease_ms=3_600_000)
    own_postgres.kill()
    with pytest.raises(StoreUnavailableError):
        store.try_once(lambda tx: seen(store, claimed.id))
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(end, store, claimed)
        own_postgres.start()
        assert answer.result(60).written == {claimed.id: "succeeded"}

    assert seen(store, claimed.id).state == "succeeded"
    store.close()


# -- SQLite --------------------------------------------------------------------------------------


def test_a_writer_is_waited_for(sqlite_store: Store) -> None:
    store = sqlite_store
    with Rival(store) as writer, ThreadPoolExecutor(1) as thread:
        answer = thread.submit(put, store)
        writer.execute("update live set inbox = inbox")
        writer.commit_and_rest()
        run_id = answer.result(30)

    assert seen(store, run_id).state == "ready"


def test_who_may_write_holds_the_lock_from_the_beginning(sqlite_store: Store) -> None:
    """Taken at the first write it could fail at once, whatever the time to wait for it is."""

    def op(tx: Tx) -> None:
        other = sqlite3.connect(sqlite_store.target.url.database or "", timeout=0)
        with closing(other), pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("begin immediate")

    sqlite_store.run(op)


def test_a_reader_waits_for_no_writer(sqlite_store: Store) -> None:
    store = sqlite_store
    put(store)
    with Rival(store) as writer:
        writer.execute("delete from live")
        assert store.read(lambda tx: len(tx.conn.exec_driver_sql("select * from live").all())) == 1
        writer.rollback()


def test_case_14_a_busy_file_is_tried_again(sqlite_store: Store, rests: list[float]) -> None:
    def busy(tx: Tx) -> None:
        raise OperationalError("x", {}, sqlite3.OperationalError("database is locked"))

    op, _ = _failing(3, busy)

    assert sqlite_store.run(op) == 4
    assert len(rests) == 3


@pytest.mark.parametrize("words", ["unable to open database file", "disk I/O error", "interrupted"])
def test_a_lost_file_is_not_tried_again_where_it_may_have_happened(
    sqlite_store: Store, rests: list[float], words: str
) -> None:
    def lose(tx: Tx) -> None:
        raise OperationalError("x", {}, sqlite3.OperationalError(words))

    op, _ = _failing(1, lose)
    with pytest.raises(StoreUnavailableError, match=words):
        sqlite_store.run_once(op)

    op, _ = _failing(1, lose)
    assert sqlite_store.run(op) == 2


def test_an_answer_that_cannot_be_made_out_is_one_that_was_lost(
    postgresql_store: Store, rests: list[float]
) -> None:
    """As a pooler gives, whose server is ended at a commit: it may have happened."""

    def garble(tx: Tx) -> None:
        raise InternalError("x", {}, psycopg.InternalError("received 2 results from 'COMMIT'"))

    op, _ = _failing(1, garble)
    with pytest.raises(StoreUnavailableError, match="may have happened"):
        postgresql_store.run_once(op)

    op, _ = _failing(1, garble)
    assert postgresql_store.run(op) == 2


def test_a_full_disk_is_tried_again(sqlite_store: Store, rests: list[float]) -> None:
    def full(tx: Tx) -> None:
        raise OperationalError("x", {}, sqlite3.OperationalError("database or disk is full"))

    op, _ = _failing(1, full)

    assert sqlite_store.run(op) == 2


def test_an_error_without_a_cause_passes(store: Store, rests: list[float]) -> None:
    def odd(tx: Tx) -> None:
        raise OperationalError("x", {}, None)  # type: ignore[arg-type]

    with pytest.raises(OperationalError):
        store.run(odd)
