"""The store's side of `ctx.transaction`: user code and a checkpoint in one transaction.

The operation comes first and the lease last, just before the commit, so that the run's row is not
locked while user code runs: its lease is renewed meanwhile, and it can be cancelled. Whether the
boundary stands is asked under that lock. So when a commit's answer was lost, the repeated
transaction finds its boundary, is rolled back, and answers what stands: once, or not at all.

Source: docs/design.md, section 7; docs/adr/0014-a-handlers-own-transaction.md
"""

from __future__ import annotations

import random
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

import psycopg
from sqlalchemy import Connection, Text, bindparam, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.sql.expression import Executable

from workhorse.domain.recording import Record, RecordAnswer, Recorded
from workhorse.errors import StoreUnavailableError
from workhorse.store.base.database import TRIES, Store, Tx
from workhorse.store.base.dialect import Dialect
from workhorse.store.base.passing import cause_of, passes_for_operation, passes_for_store
from workhorse.store.base.schema import Id, boundaries
from workhorse.store.durable.boundaries import record as write_boundary
from workhorse.store.durable.guarding import Guard
from workhorse.store.live.leasing import LEASE_COLUMNS, lease_batch, lock_held
from workhorse.telemetry import get_logger

if TYPE_CHECKING:
    from sqlalchemy.engine import RootTransaction

_log = get_logger("worker")

_MARKER: Final = "workhorse.operation"
# Longer than any other of the store's transactions may keep the row: those are ended when they say
# nothing for 10 s. User code would have to run again for nothing.
_OWN_BOUNDS: Final = (
    "select set_config('lock_timeout', '12s', true),"
    " set_config('idle_in_transaction_session_timeout', '10s', true),"
    f" current_setting('{_MARKER}', true)"
)
_FIRST_REST_S: Final = 0.05
_LONGEST_REST_S: Final = 2.0


class _Step(Enum):
    BEGIN = auto()
    OPERATION = auto()
    END = auto()
    COMMIT = auto()


@dataclass(slots=True)
class _Try:
    """How far one try has come."""

    step: _Step = _Step.BEGIN


def transact(
    store: Store,
    record: Record,
    operation: Callable[[Connection], str],
    *,
    may_start: Callable[[], object],
    bound_ms: float | None = None,
) -> RecordAnswer:
    """Call `operation` with a connection; commit what it wrote, and the boundary, together.

    Deadlocks, serialization failures, a busy file and lost connections are met by calling it again,
    six times in all; a store that is out of reach before it was called is waited for. Its other
    errors roll everything back and come as they are.

    Args:
        store: One whose connections are unbounded, see `Store.sibling`.
        record: The boundary, a checkpoint; what `operation` returns replaces its value.
        operation: Takes a connection whose transaction is open, READ COMMITTED on PostgreSQL;
            returns JSON text. The connection is of no use once it has returned.
        may_start: Called before each try; what it raises ends all of it.
        bound_ms: SQLite: how long the operation may keep the write lock.

    Returns:
        `STORED` with the boundary, also where an earlier try of this call stored it; `EXISTS` with
        the one that stood there before, or `LOST`: then nothing that it wrote is stored.

    Raises:
        TransactionMisuseError: The operation ended or broke its transaction.
        TransactionTimeoutError: It kept SQLite's write lock for too long.
        StoreUnavailableError: It did not pass; it may have happened, and then the boundary stands.
    """
    what = f"run {record.lease.run_id}: transaction {record.boundary.name!r}"
    calls, in_doubt, waiting = 0, False, False
    rests = _rests()
    while True:
        may_start()
        current = _Try()
        try:
            if in_doubt:
                # Its own writes may stand already, and could make it fail if it were called again.
                before = _in_one(store, record, None, current, what, None)
                if before is not None:
                    return before
                in_doubt, current = False, _Try()
            answer = _in_one(store, record, operation, current, what, bound_ms)
            if answer is None:
                raise AssertionError("an operation has an answer")
            return answer
        except Exception as error:
            calls += current.step is not _Step.BEGIN
            cause = (
                passes_for_operation(store.dialect, error)
                if current.step is _Step.OPERATION
                else passes_for_store(store.dialect, error)
            )
            if cause is None:
                raise
            in_doubt = in_doubt or current.step is _Step.COMMIT
            if calls >= TRIES:
                raise StoreUnavailableError(
                    f"{what} did not pass in {calls} tries ({type(cause).__name__}); it may have "
                    "happened, and then its checkpoint stands: repeating it is safe"
                ) from error
            if current.step is _Step.BEGIN and not waiting:
                waiting = True
                _log.warning("%s waits for the store (%s)", what, type(cause).__name__)
        time.sleep(next(rests))


def _in_one(
    store: Store,
    record: Record,
    operation: Callable[[Connection], str] | None,
    current: _Try,
    what: str,
    bound_ms: float | None,
) -> RecordAnswer | None:
    """Try once; without an operation, only look whether an earlier try has happened."""
    store.hangs.begin()
    try:
        return _in_transaction(store, record, operation, current, what, bound_ms)
    finally:
        store.hangs.end()


def _in_transaction(
    store: Store,
    record: Record,
    operation: Callable[[Connection], str] | None,
    current: _Try,
    what: str,
    bound_ms: float | None,
) -> RecordAnswer | None:
    engine = store.engine
    pool = engine.pool
    guard: Guard | None = None
    intact = False
    conn = engine.connect()
    try:
        transaction = conn.begin()
        marker, backend = _mark(store, conn)
        if operation is None:
            answer = _found_before(Tx(conn, store), record)
        else:
            guard = Guard(what, conn, bound_ms)
            current.step = _Step.OPERATION
            store.hangs.depends(backend)  # how long it takes is its author's to say
            record = _carried_out(guard, conn, record, operation)
            store.hangs.depends(None)
            current.step = _Step.END
            answer = _end(Tx(conn, store), guard, record, marker)
        if answer is None or answer.result is not Recorded.STORED or operation is None:
            transaction.rollback()
        else:
            current.step = _Step.COMMIT
            transaction.commit()
        intact = True
        return answer
    except BaseException as error:
        intact = _roll_back(conn, guard, error)
        raise
    finally:
        _give_back(conn, guard, intact=intact)
        if engine.pool is not pool:
            pool.dispose()  # it was closed meanwhile, and nobody else would close what came back


def _carried_out(
    guard: Guard, conn: Connection, record: Record, operation: Callable[[Connection], str]
) -> Record:
    try:
        value = operation(conn)
    except BaseException as error:
        guard.let_go()
        if guard.over:
            raise guard.late() from error
        if guard.misused is not None:
            raise guard.misuse() from error
        raise
    guard.take_back()
    return replace(record, boundary=replace(record.boundary, value=value))


def _end(tx: Tx, guard: Guard, record: Record, marker: str) -> RecordAnswer:
    """Check the lease and write the boundary; only `STORED` is to be committed."""
    if not _bound_ourselves(tx, marker):
        raise guard.replaced()
    if not tx.fetch(_hold, batch=lease_batch([record.lease])):
        return RecordAnswer(Recorded.LOST)
    stood = bool(tx.fetch(_stands, run_id=record.lease.run_id, name=record.boundary.name))
    answer = write_boundary(tx, [record], reach=_no_reach).answers[0]
    if stood:
        return RecordAnswer(Recorded.EXISTS, answer.boundary)
    return answer


def _found_before(tx: Tx, record: Record) -> RecordAnswer | None:
    """Return what an earlier try has stored; its commit is over once the row can be locked."""
    _bound_ourselves(tx, "")
    if not tx.fetch(_hold, batch=lease_batch([record.lease])):
        return RecordAnswer(Recorded.LOST)
    if not tx.fetch(_stands, run_id=record.lease.run_id, name=record.boundary.name):
        return None
    answer = write_boundary(tx, [record], reach=_no_reach).answers[0]
    return RecordAnswer(Recorded.STORED, answer.boundary)


# -- connections ---------------------------------------------------------------------------------


def _mark(store: Store, conn: Connection) -> tuple[str, int | None]:
    """Make the transaction known by a setting that ends with it; return that, and its process."""
    marker = secrets.token_hex(8)
    if store.kind != "postgresql":
        return marker, None
    marked = f"select set_config('{_MARKER}', %s, true), pg_backend_pid()"
    return marker, conn.exec_driver_sql(marked, (marker,)).one()[1]


def _bound_ourselves(tx: Tx, marker: str) -> bool:
    """Bound what we do under the run's lock; answer whether the transaction is the marked one."""
    if tx.dialect.name != "postgresql":
        return True
    found = tx.conn.exec_driver_sql(_OWN_BOUNDS).one()
    return bool(found[2] == marker)


def _roll_back(conn: Connection, guard: Guard | None, error: BaseException) -> bool:
    """Roll back what an error has left; answer whether the connection can be used again."""
    if guard is not None and not guard.let_go():
        return False
    cause = cause_of(error)
    if conn.closed or conn.invalidated or isinstance(cause, psycopg.errors.ReadOnlySqlTransaction):
        return False
    transaction: RootTransaction | None = conn.get_transaction()
    if transaction is None or not transaction.is_active:
        return False
    try:
        transaction.rollback()
    except (SQLAlchemyError, psycopg.Error, sqlite3.Error):
        return False  # closing it has the same effect
    return True


def _give_back(conn: Connection, guard: Guard | None, *, intact: bool) -> None:
    """Give a connection back to its pool; one that is not as it was given is nobody's again."""
    if conn.closed:
        return
    if not intact:
        with suppress(SQLAlchemyError, psycopg.Error, sqlite3.Error):
            conn.invalidate()
    elif guard is not None:
        guard.forget()
    with suppress(SQLAlchemyError, psycopg.Error, sqlite3.Error):
        conn.close()


# -- tries and statements ------------------------------------------------------------------------


def _rests() -> Iterator[float]:
    draw = random.Random()  # noqa: S311 - jitter, not a secret
    bound = _FIRST_REST_S
    while True:
        yield bound * (0.5 + draw.random() / 2)
        bound = min(bound * 2, _LONGEST_REST_S)


def _no_reach(_queue: str) -> int:
    return 0


def _hold(d: Dialect) -> Executable:
    return lock_held(d.rows("batch", LEASE_COLUMNS))


def _stands(_d: Dialect) -> Executable:
    return select(boundaries.c.name).where(
        boundaries.c.run_id == bindparam("run_id", type_=Id),
        boundaries.c.name == bindparam("name", type_=Text()),
    )
