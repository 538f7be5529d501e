"""What passes by itself is tried again with all that the operation writes; no other error is."""

from __future__ import annotations

import itertools
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import (
    DBAPIError,
    InternalError,
    OperationalError,
)

from tests.store.acting import rows
from tests.store.rivals import Rival
from tests.store.transacting.paying import (
    LOST,
    Operation,
    carry_out,
    check_both,
    check_nothing,
    lease,
    lose_the_answer,
    pay,
    refuse_connections,
)
from workhorse.domain.recording import Recorded
from workhorse.errors import (
    StoreUnavailableError,
)
from workhorse.store.base.database import Store
from workhorse.store.base.dialect import SqliteDialect
from workhorse.store.base.passing import passes_for_operation, passes_for_store
from workhorse.store.durable import transacting


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
