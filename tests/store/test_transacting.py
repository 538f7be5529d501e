"""User code and its checkpoint in one transaction: both or neither, under the lease, once."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, event, text
from sqlalchemy.exc import (
    DBAPIError,
    IntegrityError,
    InternalError,
    InvalidRequestError,
    OperationalError,
    ResourceClosedError,
    SQLAlchemyError,
)
from sqlalchemy.orm import Session

from tests.store.acting import LEASE_MS, a_claimed, lease_of, recovered, rows, take_one
from tests.store.rivals import Rival, blocked_sessions
from tests.support.eventually import eventually
from workhorse.domain.boundaries import BoundaryKind, NewBoundary
from workhorse.domain.recording import Record, RecordAnswer, Recorded
from workhorse.domain.runs import Lease
from workhorse.errors import (
    StoreUnavailableError,
    TransactionMisuseError,
    TransactionTimeoutError,
)
from workhorse.store.base.database import ManualClock, Store, Tx
from workhorse.store.base.dialect import SqliteDialect
from workhorse.store.base.passing import passes_for_operation, passes_for_store
from workhorse.store.base.wording import ending_in
from workhorse.store.durable import transacting
from workhorse.store.durable.boundaries import record as record_boundaries
from workhorse.store.durable.transacting import transact
from workhorse.store.live.leasing import Renewal, renew

Operation = Callable[[Connection], str]

LOST = {"postgresql": psycopg.OperationalError, "sqlite": sqlite3.OperationalError}
"""How a driver says that its connection is gone, or was never made."""


@pytest.fixture
def own(store: Store) -> Iterator[Store]:
    """The operations' store, as a worker has it; the user's tables `accounts` and `pairs` exist."""
    own = store.sibling(connections=5, bounded=False)
    _make_tables(own)
    yield own
    own.close()


@pytest.fixture
def postgresql_store(postgresql_url: str, clock: ManualClock) -> Iterator[Store]:
    store = Store.open(postgresql_url, clock=clock)
    _make_tables(store)
    yield store
    store.close()


@pytest.fixture
def sqlite_own(sqlite_url: str, clock: ManualClock) -> Iterator[Store]:
    store = Store.open(sqlite_url, clock=clock)
    _make_tables(store)
    yield store
    store.close()


@pytest.fixture
def postgresql_own(postgresql_store: Store) -> Iterator[Store]:
    own = postgresql_store.sibling(connections=5, bounded=False)
    yield own
    own.close()


def _make_tables(store: Store) -> None:
    with store.engine.begin() as conn:
        conn.execute(text("create table accounts (id integer primary key, amount integer)"))
        conn.execute(text("create table pairs (id integer primary key, amount integer)"))


def lease(store: Store) -> Lease:
    return lease_of(a_claimed(store))


def a_record(lease: Lease, name: str = "pay", seq: int = 1) -> Record:
    return Record(
        lease=lease, boundary=NewBoundary(name=name, kind=BoundaryKind.CHECKPOINT, seq=seq)
    )


def carry_out(own: Store, lease: Lease, operation: Operation, **how: Any) -> RecordAnswer:
    return transact(own, a_record(lease), operation, **{"may_start": lambda: None, **how})


def pay(conn: Connection) -> str:
    conn.execute(text("insert into accounts values (1, 100)"))
    return '{"paid":100}'


def paid(store: Store) -> int:
    return int(rows(store, "select count(*) from accounts")[0][0])


def stored(store: Store, lease: Lease) -> list[str]:
    found = rows(store, "select value from {s}boundaries where run_id = :id", id=lease.run_id)
    return [row.value for row in found]


def check_nothing(store: Store, lease: Lease) -> None:
    assert (paid(store), stored(store, lease)) == (0, [])


def check_both(store: Store, lease: Lease) -> None:
    assert (paid(store), stored(store, lease)) == (1, ['{"paid":100}'])


# -- both, or neither ----------------------------------------------------------------------------


def test_the_writes_and_the_checkpoint_commit_together(store: Store, own: Store) -> None:
    held = lease(store)

    answer = carry_out(own, held, pay)

    assert answer.result is Recorded.STORED
    assert answer.boundary is not None
    assert answer.boundary.value == '{"paid":100}'
    check_both(store, held)


def test_nothing_is_seen_before_the_commit(store: Store, own: Store) -> None:
    held = lease(store)
    seen: list[Any] = []

    def look(conn: Connection) -> str:
        value = pay(conn)
        seen.append(store.read(lambda tx: tx.conn.execute(text("select 1 from accounts")).all()))
        return value

    carry_out(own, held, look)

    assert seen == [[]]
    check_both(store, held)


def test_an_error_rolls_everything_back_and_comes_as_it_is(store: Store, own: Store) -> None:
    held, error = lease(store), ValueError("no")

    def fail(conn: Connection) -> str:
        pay(conn)
        raise error

    with pytest.raises(ValueError, match="no") as caught:
        carry_out(own, held, fail)

    assert caught.value is error
    check_nothing(store, held)
    assert carry_out(own, held, pay).result is Recorded.STORED


def test_an_error_of_the_database_is_the_operations_and_not_repeated(
    store: Store, own: Store
) -> None:
    held, calls = lease(store), 0

    def twice(conn: Connection) -> str:
        nonlocal calls
        calls += 1
        pay(conn)
        return pay(conn)

    with pytest.raises(IntegrityError):
        carry_out(own, held, twice)

    assert calls == 1
    check_nothing(store, held)


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, SystemExit])
def test_what_is_no_exception_rolls_back_too(
    store: Store, own: Store, error: type[BaseException]
) -> None:
    held = lease(store)

    def leave(conn: Connection) -> str:
        pay(conn)
        raise error

    with pytest.raises(error):
        carry_out(own, held, leave)

    check_nothing(store, held)


def test_an_error_at_the_commit_is_the_operations(store: Store, own: Store) -> None:
    """A deferred constraint is looked at by COMMIT itself."""
    with own.engine.begin() as conn:
        conn.execute(
            text(
                "create table owed (id integer primary key, of integer"
                " references accounts (id) deferrable initially deferred)"
            )
        )
    if own.kind == "sqlite":
        event.listen(own.engine, "connect", lambda raw, _: raw.execute("pragma foreign_keys = on"))
        own.engine.dispose()
    held = lease(store)

    def owe(conn: Connection) -> str:
        conn.execute(text("insert into owed values (1, 7)"))
        return pay(conn)

    with pytest.raises(IntegrityError):
        carry_out(own, held, owe)

    check_nothing(store, held)


# -- the lease -----------------------------------------------------------------------------------


def test_a_taken_lease_stores_nothing(store: Store, own: Store, clock: ManualClock) -> None:
    stale = a_claimed(store)
    clock.advance(LEASE_MS + 1)
    recovered(store)
    clock.advance(3_600_000)
    current = take_one(store, stale.id)

    answer = carry_out(own, lease_of(stale), pay)

    assert answer == RecordAnswer(Recorded.LOST)
    check_nothing(store, lease_of(stale))
    assert carry_out(own, lease_of(current), pay).result is Recorded.STORED


def test_a_lease_that_is_taken_during_the_operation_stores_nothing(
    postgresql_store: Store, postgresql_own: Store, clock: ManualClock
) -> None:
    held = lease(postgresql_store)

    def slow(conn: Connection) -> str:
        value = pay(conn)
        clock.advance(LEASE_MS + 1)
        recovered(postgresql_store)
        return value

    assert carry_out(postgresql_own, held, slow) == RecordAnswer(Recorded.LOST)
    check_nothing(postgresql_store, held)


def test_an_expired_lease_that_nobody_took_still_counts(
    store: Store, own: Store, clock: ManualClock
) -> None:
    held = lease(store)
    clock.advance(LEASE_MS * 3)

    assert carry_out(own, held, pay).result is Recorded.STORED
    check_both(store, held)


def test_the_runs_row_is_free_while_the_operation_runs(
    postgresql_store: Store, postgresql_own: Store
) -> None:
    """So its lease is renewed, it can be cancelled, and values can be delivered to it."""
    held = lease(postgresql_store)
    answers: list[Any] = []

    def look(conn: Connection) -> str:
        answers.append(postgresql_store.try_once(renew, [held], LEASE_MS)[held])
        return pay(conn)

    carry_out(postgresql_own, held, look)

    assert answers == [Renewal.RENEWED]


def test_the_runs_row_is_locked_when_the_lease_is_checked(
    postgresql_store: Store, postgresql_own: Store
) -> None:
    """A takeover that is under way is waited for, and then seen."""
    held = lease(postgresql_store)
    with Rival(postgresql_store) as rival, ThreadPoolExecutor(1) as thread:
        rival.lock(held.run_id)
        rival.execute("update {s}live set token = 7 where id = :id", id=held.run_id)
        answer = thread.submit(carry_out, postgresql_own, held, pay)
        eventually(lambda: blocked_sessions(postgresql_store) == 1)
        rival.commit()

        assert answer.result(30) == RecordAnswer(Recorded.LOST)
    check_nothing(postgresql_store, held)


# -- once ----------------------------------------------------------------------------------------


def test_a_boundary_that_stands_undoes_the_operation(store: Store, own: Store) -> None:
    held = lease(store)
    carry_out(own, held, pay)

    def pay_more(conn: Connection) -> str:
        conn.execute(text("insert into accounts values (2, 200)"))
        return '{"paid":200}'

    answer = carry_out(own, held, pay_more)

    assert answer.result is Recorded.EXISTS
    assert answer.boundary is not None
    assert answer.boundary.value == '{"paid":100}'
    check_both(store, held)


def test_an_equal_boundary_that_stands_undoes_the_operation_too(store: Store, own: Store) -> None:
    """The same value says nothing of whether these writes are the ones that it came with."""
    held = lease(store)
    carry_out(own, held, pay)

    def pay_again(conn: Connection) -> str:
        conn.execute(text("insert into accounts values (2, 100)"))
        return '{"paid":100}'

    assert carry_out(own, held, pay_again).result is Recorded.EXISTS
    check_both(store, held)


def test_a_transaction_under_another_name_is_another_one(store: Store, own: Store) -> None:
    held = lease(store)
    carry_out(own, held, pay)

    def pay_more(conn: Connection) -> str:
        conn.execute(text("insert into accounts values (2, 200)"))
        return '{"paid":200}'

    answer = transact(own, a_record(held, "more", 2), pay_more, may_start=lambda: None)

    assert answer.result is Recorded.STORED
    assert paid(store) == 2
    assert sorted(stored(store, held)) == ['{"paid":100}', '{"paid":200}']


def test_a_boundary_that_is_just_being_committed_undoes_the_operation(
    postgresql_store: Store, postgresql_own: Store
) -> None:
    """An earlier commit may still be under way when its repetition gets to its end."""
    held = lease(postgresql_store)
    with Rival(postgresql_store) as rival, ThreadPoolExecutor(1) as thread:
        earlier = a_record(held)
        earlier = replace(earlier, boundary=replace(earlier.boundary, value='{"paid":100}'))
        rival.call(record_boundaries, [earlier], reach=lambda queue: 0)
        answer = thread.submit(carry_out, postgresql_own, held, pay)
        eventually(lambda: blocked_sessions(postgresql_store) == 1)
        rival.commit()

        assert answer.result(30).result is Recorded.EXISTS
    assert paid(postgresql_store) == 0
    assert stored(postgresql_store, held) == ['{"paid":100}']


def lose_the_answer(own: Store, *, after: bool, times: int = 1) -> list[str]:
    """Break connections at their next COMMIT, before it or after it has happened."""
    left = [times]
    noted: list[str] = []
    do_commit = own.engine.dialect.do_commit

    def commit(raw: Any) -> None:
        if left[0] == 0:
            do_commit(raw)
            return
        left[0] -= 1
        noted.append("lost")
        if after:
            do_commit(raw)
        raise LOST[own.kind]("disk I/O error: the connection is lost")

    own.engine.dialect.do_commit = commit  # type: ignore[method-assign,assignment]
    return noted


def refuse_connections(own: Store, monkeypatch: pytest.MonkeyPatch, times: int) -> list[str]:
    """Let nobody answer who connects anew, that many times; nothing rests between."""
    noted: list[str] = []
    connect = own.engine.dialect.connect

    def refuse(*arguments: Any, **named: Any) -> Any:
        if len(noted) < times:
            noted.append("refused")
            raise LOST[own.kind]("unable to open: nobody answers")
        return connect(*arguments, **named)

    monkeypatch.setattr(own.engine.dialect, "connect", refuse)
    monkeypatch.setattr(transacting, "_rests", lambda: itertools.repeat(0.0))
    return noted


@pytest.mark.parametrize("after", [False, True], ids=["not committed", "committed"])
def test_a_commit_whose_answer_is_lost_happens_once(store: Store, own: Store, after: bool) -> None:
    held, calls = lease(store), 0
    noted = lose_the_answer(own, after=after)

    def count(conn: Connection) -> str:
        nonlocal calls
        calls += 1
        return pay(conn)  # twice would break the primary key

    answer = carry_out(own, held, count)

    assert answer.result is Recorded.STORED
    assert answer.boundary is not None
    assert answer.boundary.value == '{"paid":100}'
    assert noted == ["lost"]
    assert calls == (1 if after else 2)
    check_both(store, held)


def test_a_lost_answer_is_looked_up_however_often_the_look_fails(
    store: Store, own: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until a look has passed, the operation's own writes may stand."""
    held, calls = lease(store), 0
    lose_the_answer(own, after=True)
    refused = refuse_connections(own, monkeypatch, times=2)

    def count(conn: Connection) -> str:
        nonlocal calls
        calls += 1
        return pay(conn)  # twice would break the primary key

    assert carry_out(own, held, count).result is Recorded.STORED
    assert (calls, len(refused)) == (1, 2)
    check_both(store, held)


def test_a_commit_that_never_gets_an_answer_is_given_up(
    store: Store, own: Store, caplog: pytest.LogCaptureFixture
) -> None:
    held = lease(store)
    noted = lose_the_answer(own, after=False, times=100)

    with pytest.raises(StoreUnavailableError, match="transaction 'pay' did not pass in 6 tries"):
        carry_out(own, held, pay)

    assert len(noted) == 6
    assert "waits for the store" not in caplog.text
    check_nothing(store, held)


# -- what is repeated ----------------------------------------------------------------------------


def test_a_deadlock_repeats_the_operation(postgresql_store: Store, postgresql_own: Store) -> None:
    first, second = lease(postgresql_store), lease(postgresql_store)
    with postgresql_own.engine.begin() as conn:
        conn.execute(text("insert into pairs values (1, 0), (2, 0)"))
    meet = threading.Barrier(2)
    calls: list[int] = []

    def cross(one: int, other: int) -> Operation:
        def work(conn: Connection) -> str:
            calls.append(one)
            conn.execute(text("update pairs set amount = amount + 1 where id = :id"), {"id": one})
            if calls.count(one) == 1:
                meet.wait(20)
            conn.execute(text("update pairs set amount = amount + 1 where id = :id"), {"id": other})
            return "null"

        return work

    with ThreadPoolExecutor(2) as threads:
        both = [
            threads.submit(carry_out, postgresql_own, first, cross(1, 2)),
            threads.submit(carry_out, postgresql_own, second, cross(2, 1)),
        ]
        assert [each.result(30).result for each in both] == [Recorded.STORED] * 2

    assert len(calls) == 3
    assert rows(postgresql_store, "select amount from pairs") == [(2,), (2,)]


def test_a_lost_connection_repeats_the_operation(
    postgresql_store: Store, postgresql_own: Store
) -> None:
    held = lease(postgresql_store)
    calls = 0

    def die_once(conn: Connection) -> str:
        nonlocal calls
        calls += 1
        pay(conn)
        if calls == 1:
            pid = conn.execute(text("select pg_backend_pid()")).scalar_one()
            rows(postgresql_store, "select pg_terminate_backend(:pid)", pid=pid)
            try:
                conn.execute(text("select 1"))
            except DBAPIError as error:
                raise ValueError("wrapped") from error
        return '{"paid":100}'

    assert carry_out(postgresql_own, held, die_once).result is Recorded.STORED
    assert calls == 2
    check_both(postgresql_store, held)


def test_a_transaction_that_cannot_be_begun_is_begun_again(store: Store, own: Store) -> None:
    """A busy file, or a connection that was lost in its pool: nothing was called yet."""
    held, failures = lease(store), [LOST[own.kind]("disk I/O error: the connection is lost")]
    do_begin = own.engine.dialect.do_begin

    def begin(raw: Any) -> None:
        if failures:
            raise failures.pop()
        do_begin(raw)

    own.engine.dialect.do_begin = begin  # type: ignore[method-assign,assignment]

    assert carry_out(own, held, pay).result is Recorded.STORED
    assert not failures
    check_both(store, held)


def test_a_connection_that_was_lost_in_its_pool_is_replaced(
    postgresql_store: Store, postgresql_own: Store
) -> None:
    """It is found out by the transaction's first statement, as after a failover."""
    held, calls = lease(postgresql_store), 0
    with postgresql_own.engine.connect() as conn:
        pid = conn.execute(text("select pg_backend_pid()")).scalar_one()
    rows(postgresql_store, "select pg_terminate_backend(:pid, 20000)", pid=pid)

    def count(conn: Connection) -> str:
        nonlocal calls
        calls += 1
        return pay(conn)

    assert carry_out(postgresql_own, held, count).result is Recorded.STORED
    assert calls == 1
    check_both(postgresql_store, held)


def test_a_server_that_only_reads_is_left(postgresql_store: Store, postgresql_own: Store) -> None:
    """A connection in the pool may lead to what is a standby since a failover."""
    held = lease(postgresql_store)
    backends: list[int] = []

    def write(conn: Connection) -> str:
        backends.append(conn.execute(text("select pg_backend_pid()")).scalar_one())
        if len(backends) == 1:
            conn.execute(text("do $$ begin raise exception 'x' using errcode = '25006'; end $$"))
        return pay(conn)

    with pytest.raises(InternalError):
        carry_out(postgresql_own, held, write)
    assert carry_out(postgresql_own, held, write).result is Recorded.STORED

    assert len(set(backends)) == 2


@pytest.mark.parametrize(
    ("code", "passes"),
    [
        (sqlite3.SQLITE_BUSY, True),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, True),
        (sqlite3.SQLITE_LOCKED, False),
    ],
)
def test_a_busy_file_is_a_conflict_on_sqlite(code: int, passes: bool) -> None:
    error = sqlite3.OperationalError("it says so in one of many ways")
    error.sqlite_errorcode = code

    assert passes_for_operation(SqliteDialect(), error) is (error if passes else None)


def _hidden(error: Exception, how: str) -> Exception:
    """Return what a repository raises that has met an error."""
    try:
        try:
            raise error
        except Exception as met:
            if how == "from it":
                raise LookupError("no such account") from met
            if how == "from nothing":
                raise LookupError("no such account") from None
            raise LookupError("no such account")  # noqa: B904 - as many write it
    except LookupError as own:
        return own


@pytest.mark.parametrize(
    ("how", "passes"), [("from it", True), ("within", True), ("from nothing", False)]
)
def test_a_lost_connection_is_found_behind_an_error_of_the_operation(
    how: str, passes: bool
) -> None:
    lost = sqlite3.OperationalError("disk I/O error")
    error = _hidden(_hidden(lost, "from it"), how)

    assert passes_for_operation(SqliteDialect(), error) is (lost if passes else None)


def test_errors_that_are_each_others_cause_are_looked_through_once() -> None:
    one, other = ValueError(), LookupError()
    one.__cause__, other.__cause__ = other, one

    assert passes_for_operation(SqliteDialect(), one) is None


@pytest.mark.parametrize("words", ["unable to open", "disk I/O", "interrupted", "busy", "locked"])
def test_what_only_sounds_like_a_lost_file_is_the_operations_own_error(words: str) -> None:
    for error in (ValueError(words), sqlite3.IntegrityError(words)):
        assert passes_for_operation(SqliteDialect(), error) is None
        assert passes_for_store(SqliteDialect(), error) is None


def test_a_lock_that_the_operation_does_not_wait_for_is_its_own_error(
    postgresql_store: Store,
    postgresql_own: Store,
) -> None:
    held, calls = lease(postgresql_store), 0
    with postgresql_store.engine.begin() as conn:
        conn.execute(text("insert into accounts values (1, 1)"))

    def impatient(conn: Connection) -> str:
        nonlocal calls
        calls += 1
        conn.execute(text("select 1 from accounts for update nowait"))
        return "null"

    with Rival(postgresql_store) as rival:
        rival.execute("select 1 from accounts for update")
        with pytest.raises(OperationalError, match="could not obtain lock"):
            carry_out(postgresql_own, held, impatient)
    assert calls == 1


def test_a_conflict_that_does_not_end_is_given_up(
    postgresql_store: Store, postgresql_own: Store
) -> None:
    held, calls = lease(postgresql_store), 0

    def conflict(conn: Connection) -> str:
        nonlocal calls
        calls += 1
        conn.execute(text("do $$ begin raise exception 'x' using errcode = '40001'; end $$"))
        return "null"

    with pytest.raises(StoreUnavailableError, match="in 6 tries"):
        carry_out(postgresql_own, held, conflict)
    assert calls == 6


def test_who_may_not_start_any_more_does_not(store: Store, own: Store) -> None:
    """Asked before each try: a store that is away is waited for only as long as it makes sense."""
    held = lease(store)
    noted = lose_the_answer(own, after=False, times=100)
    asked: list[int] = []

    def may_start() -> None:
        asked.append(len(noted))
        if len(asked) == 3:
            raise ValueError("too late")

    with pytest.raises(ValueError, match="too late"):
        carry_out(own, held, pay, may_start=may_start)

    assert asked == [0, 1, 2]
    check_nothing(store, held)


def test_a_store_that_is_away_is_waited_for(
    store: Store,
    own: Store,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    held, rests = lease(store), itertools.count()
    own.close()
    refused = refuse_connections(own, monkeypatch, times=8)  # the operation is tried six times
    monkeypatch.setattr(transacting, "_rests", lambda: (0.0 for _ in rests))

    assert carry_out(own, held, pay).result is Recorded.STORED
    assert (len(refused), next(rests)) == (8, 8)  # it rests after each of them
    assert caplog.text.count("waits for the store") == 1
    check_both(store, held)


# -- an end that is not its own ------------------------------------------------------------------


def _commit(conn: Connection) -> None:
    conn.commit()


def _of_the_transaction(conn: Connection) -> None:
    transaction = conn.get_transaction()
    assert transaction is not None
    transaction.commit()


def _close_it(conn: Connection) -> None:
    transaction = conn.get_transaction()
    assert transaction is not None
    transaction.close()


def _of_a_session(conn: Connection) -> None:
    session = Session(conn, join_transaction_mode="control_fully")
    session.execute(text("select 1"))
    session.commit()


def _roll_back_a_session(conn: Connection) -> None:
    session = Session(conn)
    session.execute(text("select 1"))
    session.rollback()


ENDINGS: dict[str, Callable[[Connection], object]] = {
    "commit()": _commit,
    "rollback()": lambda conn: conn.rollback(),
    "close()": lambda conn: conn.close(),
    "the transaction's commit()": _of_the_transaction,
    "the transaction's close()": _close_it,
    "a session's commit()": _of_a_session,
    "a session's rollback()": _roll_back_a_session,
    "COMMIT": lambda conn: conn.execute(text("COMMIT")),
    "rollback": lambda conn: conn.execute(text("  -- so\n rollback")),
    "END": lambda conn: conn.exec_driver_sql("/* so */ end"),
    "BEGIN": lambda conn: conn.exec_driver_sql("begin immediate"),
    "autocommit": lambda conn: conn.execution_options(isolation_level="AUTOCOMMIT"),
    "invalidate()": lambda conn: conn.invalidate(),
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("swallows", [False, True], ids=["raises", "swallows"])
def test_an_end_of_its_own_is_refused(
    store: Store, own: Store, ending: str, swallows: bool
) -> None:
    held = lease(store)

    def end(conn: Connection) -> str:
        pay(conn)
        try:
            ENDINGS[ending](conn)
        except (TransactionMisuseError, SQLAlchemyError):
            if not swallows:
                raise
            with contextlib.suppress(TransactionMisuseError, SQLAlchemyError):
                conn.execute(text("insert into accounts values (2, 200)"))
            with contextlib.suppress(TransactionMisuseError, SQLAlchemyError):
                conn.commit()
        return "null"

    with pytest.raises(TransactionMisuseError, match="its checkpoint is not stored"):
        carry_out(own, held, end)

    check_nothing(store, held)
    assert carry_out(own, held, pay).result is Recorded.STORED


def test_several_statements_at_once_are_looked_through(
    postgresql_store: Store, postgresql_own: Store
) -> None:
    held = lease(postgresql_store)

    def end(conn: Connection) -> str:
        conn.exec_driver_sql("insert into accounts values (1, 1); commit; begin")
        return "null"

    with pytest.raises(TransactionMisuseError, match="called for COMMIT"):
        carry_out(postgresql_own, held, end)

    check_nothing(postgresql_store, held)


@pytest.mark.parametrize("way", ["commit", "rollback", "execute"])
def test_an_end_on_the_drivers_connection_is_refused_on_sqlite(sqlite_own: Store, way: str) -> None:
    held = lease(sqlite_own)

    def end(conn: Connection) -> str:
        pay(conn)
        raw: Any = conn.connection.driver_connection
        with contextlib.suppress(sqlite3.DatabaseError):
            if way == "execute":
                raw.executescript("select 1; select 2")  # it commits first
            else:
                getattr(raw, way)()
        return "null"

    with pytest.raises(TransactionMisuseError, match="on the driver's connection"):
        carry_out(sqlite_own, held, end)

    check_nothing(sqlite_own, held)


@pytest.mark.parametrize("chained", [False, True], ids=["ended", "begun anew"])
def test_an_end_on_the_drivers_connection_is_found_out_on_postgresql(
    postgresql_store: Store, postgresql_own: Store, chained: bool
) -> None:
    """Nothing can refuse it; the error says that what was committed stands."""
    held = lease(postgresql_store)

    def end(conn: Connection) -> str:
        pay(conn)
        raw: Any = conn.connection.driver_connection
        raw.commit()
        if chained:
            conn.execute(text("insert into accounts values (2, 200)"))
        return "null"

    with pytest.raises(TransactionMisuseError, match="a commit of its own took in stands"):
        carry_out(postgresql_own, held, end)

    assert (paid(postgresql_store), stored(postgresql_store, held)) == (1, [])


def test_a_connection_whose_end_went_past_us_is_nobodys_again(postgresql_store: Store) -> None:
    """What was set on it there is not seen from here: it would commit each statement by itself."""
    single = postgresql_store.sibling(connections=1, bounded=False)
    held = lease(postgresql_store)

    def end(conn: Connection) -> str:
        raw: Any = conn.connection.driver_connection
        raw.commit()
        raw.autocommit = True
        return "null"

    def fail(conn: Connection) -> str:
        pay(conn)
        raise ZeroDivisionError

    with pytest.raises(TransactionMisuseError):
        carry_out(single, held, end)
    with pytest.raises(ZeroDivisionError):
        carry_out(single, held, fail)

    check_nothing(postgresql_store, held)
    single.close()


def test_a_failed_statement_that_is_passed_over_is_said(
    postgresql_store: Store, postgresql_own: Store
) -> None:
    """PostgreSQL takes nothing more in that transaction: its COMMIT would be a roll-back."""
    held = lease(postgresql_store)

    def go_on(conn: Connection) -> str:
        pay(conn)
        with contextlib.suppress(IntegrityError):
            pay(conn)
        return "null"

    with pytest.raises(TransactionMisuseError, match="begin_nested"):
        carry_out(postgresql_own, held, go_on)

    check_nothing(postgresql_store, held)


def test_a_statement_that_rolls_back_on_sqlite_is_said(sqlite_own: Store) -> None:
    """What came after it would be committed statement by statement."""
    held = lease(sqlite_own)

    def go_on(conn: Connection) -> str:
        pay(conn)
        with contextlib.suppress(IntegrityError):
            conn.execute(text("insert or rollback into accounts values (1, 1)"))
        with contextlib.suppress(TransactionMisuseError):
            conn.execute(text("insert into accounts values (2, 200)"))
        return "null"

    with pytest.raises(TransactionMisuseError, match="has rolled all of it back"):
        carry_out(sqlite_own, held, go_on)

    check_nothing(sqlite_own, held)


def test_savepoints_are_fine(store: Store, own: Store) -> None:
    held = lease(store)

    def nest(conn: Connection) -> str:
        value = pay(conn)
        with contextlib.suppress(IntegrityError), conn.begin_nested():
            pay(conn)
        with conn.begin_nested() as inner:
            conn.execute(text("insert into accounts values (2, 200)"))
            inner.rollback()
        conn.execute(text("savepoint mine"))
        conn.execute(text("insert into accounts values (3, 300)"))
        conn.execute(text("rollback to savepoint mine"))
        return value

    assert carry_out(own, held, nest).result is Recorded.STORED
    check_both(store, held)


def test_options_that_end_nothing_are_fine(store: Store, own: Store) -> None:
    held = lease(store)

    def in_pages(conn: Connection) -> str:
        conn.execution_options(insertmanyvalues_page_size=50)
        return pay(conn)

    assert carry_out(own, held, in_pages).result is Recorded.STORED
    check_both(store, held)


@pytest.mark.parametrize("options", [{"stream_results": True}, {"yield_per": 10}])
def test_rows_may_be_read_by_a_cursor(store: Store, own: Store, options: dict[str, Any]) -> None:
    """SQLAlchemy keeps these options on the connection; our statements are no queries."""
    held = lease(store)

    def stream(conn: Connection) -> str:
        value = pay(conn)
        assert len(conn.execution_options(**options).execute(text("select 1")).all()) == 1
        return value

    assert carry_out(own, held, stream).result is Recorded.STORED
    check_both(store, held)


def test_a_session_may_be_bound_to_the_connection(store: Store, own: Store) -> None:
    held = lease(store)

    def work(conn: Connection) -> str:
        with Session(conn) as session:
            session.execute(text("insert into accounts values (1, 100)"))
            session.commit()  # of the session alone: the transaction is not its own
        return '{"paid":100}'

    assert carry_out(own, held, work).result is Recorded.STORED
    check_both(store, held)


def test_the_connection_is_of_no_use_afterwards(store: Store, own: Store) -> None:
    held = lease(store)
    kept: list[Connection] = []

    def keep(conn: Connection) -> str:
        kept.append(conn)
        return pay(conn)

    carry_out(own, held, keep)

    with pytest.raises((ResourceClosedError, InvalidRequestError)):
        kept[0].execute(text("select 1"))


def test_a_thread_that_goes_on_cannot_write_while_the_lease_is_checked(
    store: Store, own: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = lease(store)
    kept: list[Connection] = []
    refused: list[BaseException | None] = []

    def keep(conn: Connection) -> str:
        kept.append(conn)
        return pay(conn)

    def write_late(tx: Tx, *args: Any, **kwargs: Any) -> Any:
        late = text("insert into accounts values (2, 200)")
        with ThreadPoolExecutor(1) as thread:
            refused.append(thread.submit(kept[0].execute, late).exception(20))
        return record_boundaries(tx, *args, **kwargs)

    monkeypatch.setattr(transacting, "write_boundary", write_late)
    carry_out(own, held, keep)

    assert [type(each) for each in refused] == [TransactionMisuseError]
    check_both(store, held)


def test_a_connection_goes_back_as_it_came(store: Store, own: Store) -> None:
    """The next one that has it can end its transactions, also after one that failed."""
    single = own.sibling(connections=1, bounded=False)
    held = lease(store)
    made: list[Any] = []
    event.listen(single.engine, "connect", lambda raw, _: made.append(raw))

    def fail(conn: Connection) -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        carry_out(single, held, fail)
    carry_out(single, held, pay)

    def write() -> None:
        with single.engine.begin() as conn:
            conn.execute(text("insert into accounts values (2, 200)"))

    with ThreadPoolExecutor(1) as another:
        another.submit(write).result(20)

    assert paid(store) == 2
    assert single.engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    assert len(made) == 1
    single.close()


def test_a_connection_whose_store_is_closed_meanwhile_is_closed(store: Store, own: Store) -> None:
    """Its pool has been left, and nobody would look there again."""
    held = lease(store)
    kept: list[Any] = []

    def close(conn: Connection) -> str:
        kept.append(conn.connection.driver_connection)
        own.close()
        return pay(conn)

    assert carry_out(own, held, close).result is Recorded.STORED

    with pytest.raises((psycopg.OperationalError, sqlite3.ProgrammingError), match="closed"):
        kept[0].execute("select 1")
    check_both(store, held)


@pytest.mark.parametrize(
    ("sql", "ending"),
    [
        ("commit", "COMMIT"),
        ("  COMMIT AND CHAIN", "COMMIT"),
        ("commit prepared 'x'", "COMMIT"),
        ("/* a */ -- b\n rollback ;", "ROLLBACK"),
        ("rollback work", "ROLLBACK"),
        ("rollback to savepoint a", None),
        ("ROLLBACK WORK TO a", None),
        ("rollback transaction to a", None),
        ("rollback /* x */ to a", None),
        ("release savepoint a", None),
        ("start  transaction", "START TRANSACTION"),
        ("prepare transaction 'a'", "PREPARE TRANSACTION"),
        ("prepare p as select 1", None),
        ("select 1; end", "END"),
        ("select 1;", None),
        ("select 'a; commit'", None),
        ("select 'it''s; commit'", None),
        (r"select E'\'; commit; --'", None),
        ("select $a$ ; commit; $a$", None),
        ("select $$ ; commit; $$; abort", "ABORT"),
        ('select 1 as "; commit"', None),
        ("select 1 -- ; commit", None),
        ("create trigger t after insert on a begin select 1; end", None),
        ("create function f() returns int begin atomic select 1; end", None),
        ("create function f() returns int begin atomic select 1; end; commit", "COMMIT"),
        ("commitment", None),
        ("", None),
    ],
)
def test_what_ends_a_transaction_is_recognised(sql: str, ending: str | None) -> None:
    assert ending_in(sql) == ending


# -- bounds --------------------------------------------------------------------------------------


def test_the_stores_bounds_are_not_the_operations(postgresql_store: Store) -> None:
    for pooler in (False, True):
        own = Store.open(
            postgresql_store.target.url.render_as_string(hide_password=False), pooler=pooler
        ).sibling(connections=1, bounded=False)
        held = lease(postgresql_store)
        found: list[Any] = []

        def look(conn: Connection, found: list[Any] = found) -> str:
            found += [
                conn.execute(text(f"show {name}")).scalar_one()
                for name in (
                    "lock_timeout",
                    "idle_in_transaction_session_timeout",
                    "search_path",
                    "transaction_isolation",
                )
            ]
            return "null"

        assert carry_out(own, held, look).result is Recorded.STORED
        assert found == ["0", "0", '"$user", public', "read committed"]
        own.close()


def test_our_own_wait_for_the_row_is_bounded(
    postgresql_store: Store, postgresql_own: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is repeated, as all of the operation is: nothing that stands is lost by it."""
    monkeypatch.setattr(
        transacting, "_OWN_BOUNDS", transacting._OWN_BOUNDS.replace("'12s'", "'10ms'")
    )
    held, calls = lease(postgresql_store), 0

    def count(conn: Connection) -> str:
        nonlocal calls
        calls += 1
        if calls == 3:
            rival.commit()
        return pay(conn)

    with Rival(postgresql_store) as rival:
        rival.lock(held.run_id)
        assert carry_out(postgresql_own, held, count).result is Recorded.STORED

    assert calls == 3
    check_both(postgresql_store, held)


def test_the_look_for_a_lost_answer_is_bounded_too(
    postgresql_store: Store, postgresql_own: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        transacting, "_OWN_BOUNDS", transacting._OWN_BOUNDS.replace("'12s'", "'10ms'")
    )
    held, starts, calls = lease(postgresql_store), 0, 0
    lose_the_answer(postgresql_own, after=True)

    def may_start() -> None:
        nonlocal starts
        starts += 1
        if starts == 2:  # it is committed, and nobody has heard of it
            rival.lock(held.run_id)
        if starts == 4:
            rival.commit()

    def count(conn: Connection) -> str:
        nonlocal calls
        calls += 1
        return pay(conn)

    with ThreadPoolExecutor(1) as thread, Rival(postgresql_store) as rival:
        answer = thread.submit(carry_out, postgresql_own, held, count, may_start=may_start)
        assert answer.result(20).result is Recorded.STORED

    assert (starts, calls) == (4, 1)
    check_both(postgresql_store, held)


def test_on_sqlite_a_statement_that_takes_too_long_is_ended(sqlite_own: Store) -> None:
    held = lease(sqlite_own)
    endless = text(
        "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n"
    )

    def go_on(conn: Connection) -> str:
        pay(conn)
        conn.execute(endless)
        return "null"

    with pytest.raises(TransactionTimeoutError, match="a third of the lease"):
        carry_out(sqlite_own, held, go_on, bound_ms=50)

    check_nothing(sqlite_own, held)
    assert carry_out(sqlite_own, held, pay, bound_ms=60_000).result is Recorded.STORED


@pytest.mark.parametrize("swallows", [False, True], ids=["raises", "swallows"])
def test_on_sqlite_python_code_that_takes_too_long_lets_others_write(
    sqlite_own: Store, swallows: bool
) -> None:
    """The lock is gone while the operation still runs, and what it does then is refused."""
    own = sqlite_own.sibling(connections=1)
    held = lease(sqlite_own)
    renewed: list[Any] = []

    def go_on(conn: Connection) -> str:
        pay(conn)
        for _ in conn.execute(text("select 1 union all select 2")):  # a cursor stays open
            break
        renewed.append(sqlite_own.run(renew, [held], LEASE_MS)[held])
        raw: Any = conn.connection.driver_connection
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            raw.execute("insert into accounts values (2, 200)")
        if swallows:
            with contextlib.suppress(TransactionTimeoutError):
                pay(conn)
        else:
            pay(conn)
        return "null"

    with pytest.raises(TransactionTimeoutError, match="transaction 'pay'"):
        carry_out(own, held, go_on, bound_ms=50)

    assert renewed == [Renewal.RENEWED]
    check_nothing(sqlite_own, held)
    assert carry_out(own, held, pay, bound_ms=60_000).result is Recorded.STORED
    own.close()
