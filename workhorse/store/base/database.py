"""Connections and transactions.

An operation is a function of an open transaction: `op(tx, ...)`. `Store.run` opens one, calls it,
commits, and tries again what passes by itself; users never see a deadlock or a busy database.
"""

from __future__ import annotations

import functools
import os
import random
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import psycopg
from sqlalchemy import Connection, CursorResult, event
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from workhorse.errors import StoreUnavailableError
from workhorse.store.base.callers import AT_ONCE, portable, streams, takes_text_as_it_is
from workhorse.store.base.clock import ManualClock
from workhorse.store.base.connecting import (
    BOUNDS,
    READS,
    Target,
    abort_connection,
    open_engine,
    parse_url,
    with_credentials,
)
from workhorse.store.base.credentials import Credentials
from workhorse.store.base.dialect import CLOCK, Dialect, PostgresDialect, SqliteDialect
from workhorse.store.base.failing import named, refusal, what_stands
from workhorse.store.base.hanging import Hangs, watch
from workhorse.store.base.poolers import LENT
from workhorse.store.base.statements import Builder, Statements

P = ParamSpec("P")
T = TypeVar("T")

TRIES: Final = 6
_FIRST_REST: Final = 0.05
_LONGEST_REST: Final = 2.0


_single_writes: set[Callable[..., Any]] = set()


def writes_once(op: Callable[P, T]) -> Callable[P, T]:
    """Mark an operation that writes by one statement, its first; what it reads comes behind that.

    On PostgreSQL the statement is then a transaction by itself: a round trip in place of three. On
    SQLite, through a pooler, and in a caller's transaction nothing changes.
    """
    _single_writes.add(op)
    return op


class Tx:
    """An open transaction, as operations see it.

    `joined` says that it is the caller's own: it is not committed here, and nothing in it is tried
    again.
    """

    def __init__(
        self, conn: Connection, store: Store, *, joined: bool = False, single: bool = False
    ) -> None:
        self.conn = conn
        self.dialect = store.dialect
        self.schema = store.schema if store.kind == "postgresql" else None
        self.joined = joined
        self.stands = False
        """Whether something is committed already: each statement is a transaction by itself."""
        self._single = single
        self._store = store

    def fetch(self, builder: Builder, *form: Hashable, **params: Any) -> Sequence[Any]:
        """Run a statement that returns rows."""
        return self._execute(builder, form, params).all()

    def fetch_raw(self, builder: Builder, *form: Hashable, **params: Any) -> list[tuple[Any, ...]]:
        """As `fetch`, for hot statements: plain tuples in the order of the columns, without names.

        Not in a caller's transaction, whose driver may be another.
        """
        result = self._execute(builder, form, params)
        rows: Any = result.cursor.fetchall()
        result.close()
        return rows  # type: ignore[no-any-return]

    def write(self, builder: Builder, *form: Hashable, **params: Any) -> int:
        """Run a statement that returns none; answer how many rows it changed."""
        return self._execute(builder, form, params).rowcount

    def _execute(
        self, builder: Builder, form: tuple[Hashable, ...], params: dict[str, Any]
    ) -> CursorResult[Any]:
        result = self._store.execute(self.conn, builder, form, params)
        self.stands = self._single
        return result

    def read_instant(self, raw: Any) -> datetime | None:
        """Return the instant of a column."""
        return None if raw is None else self.dialect.read_instant(raw)

    def wait_for_locks(self) -> None:
        """Lift the bound on waiting for a row: another's transaction decides how long it takes."""
        if self.dialect.name == "postgresql" and not self.joined:
            lifted = "select set_config('lock_timeout', '0', true), pg_backend_pid()"
            self._store.hangs.depends(self.conn.exec_driver_sql(lifted).one()[1])


@functools.cache
def _dialect(kind: str, *, own_clock: bool) -> Dialect:
    return PostgresDialect(own_clock=own_clock) if kind == "postgresql" else SqliteDialect()


@functools.cache
def _statements(dialect: Dialect, schema: str | None) -> Statements:
    # Shared by the stores of a process: a worker has several, a suite of tests thousands.
    return Statements(dialect, schema)


class Store:
    """A database with the tables of `schema`; safe in threads. Open one with `Store.open`."""

    def __init__(
        self,
        target: Target,
        *,
        schema: str,
        environment: str,
        clock: ManualClock | None,
        connections: int,
        pooler: bool,
        bounded: bool = True,
    ) -> None:
        self.target = target
        self.schema = schema
        self.environment = environment
        self.manual_clock = clock
        self.dialect: Dialect = _dialect(target.kind, own_clock=clock is not None)
        self._statements = _statements(
            self.dialect, schema if target.kind == "postgresql" else None
        )
        self._options = {"connections": connections, "pooler": pooler, "bounded": bounded}
        # A session's own settings are needed for that, its isolation above all.
        self._singles = target.kind == "postgresql" and bounded
        self._draw = random.Random()  # noqa: S311 - jitter, not a secret
        self._begin_without_connections()
        _stores.add(self)

    def _begin_without_connections(self) -> None:
        self._engine_lock = threading.Lock()
        self._engine: Engine | None = None
        self._in_use: dict[Any, Any] = {}
        self._in_use_lock = threading.Lock()
        self.hangs = Hangs(self.target)
        """Who waits for an answer of the database; PostgreSQL alone keeps anybody waiting."""

    @classmethod
    def open(
        cls,
        url: str,
        *,
        schema: str = "workhorse",
        environment: str = "",
        clock: ManualClock | None = None,
        connections: int = 3,
        pooler: bool = False,
        credentials: Credentials | None = None,
    ) -> Store:
        """Return a store; no connection is made yet.

        Args:
            url: `postgresql://...` or `sqlite:///path`.
            schema: PostgreSQL: where the tables are. On SQLite the file is the scope.
            environment: Written beside the schema's version by a migration, and compared.
            clock: Stands for the database's clock, for tests.
            connections: The most connections that are open at once.
            pooler: PostgreSQL is reached through a pooler in transaction mode, for sure: no state
                of a session and no named prepared statements are used. Else each new connection is
                asked.
            credentials: PostgreSQL: user and password, where the URL names none.

        Raises:
            ConfigurationError: The URL names no database that Workhorse can use, or credentials
                that are given beside it.
        """
        target = parse_url(url)
        if credentials is not None:
            target = with_credentials(target, credentials, "database_url")
        return cls(
            target,
            schema=schema,
            environment=environment,
            clock=clock,
            connections=connections,
            pooler=pooler,
        )

    @property
    def kind(self) -> str:
        """`postgresql` or `sqlite`."""
        return self.target.kind

    @property
    def description(self) -> str:
        """Type and place, without credentials."""
        return self.target.description

    def sibling(self, *, connections: int, bounded: bool = True) -> Store:
        """Return another store on the same database, with connections of its own.

        Args:
            bounded: Whether its sessions bound how long they wait for locks and hold them idle;
                not where statements are somebody else's.
        """
        return Store(
            self.target,
            schema=self.schema,
            environment=self.environment,
            clock=self.manual_clock,
            connections=connections,
            pooler=self._options["pooler"] is True,
            bounded=bounded,
        )

    # -- transactions ----------------------------------------------------------------------------

    def run(self, op: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation in a transaction of its own and commit it.

        What passes by itself (serialization failures, deadlocks, a busy file, a lost connection)
        is tried again: five times, after 50 ms, doubling to 2 s. So the operation must be one that
        may be repeated when a commit's answer was lost.

        Raises:
            StoreUnavailableError: It did not pass; the message says what now stands.
        """
        return self._run(
            lambda tx: op(tx, *args, **kwargs),
            tries=TRIES,
            repeat_lost=True,
            single=op in _single_writes,
        )

    def read(self, op: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """As `run`, for an operation that writes nothing: on SQLite it waits for no writer.

        So a caller may look at the store while a transaction of its own is open.

        Raises:
            StoreUnavailableError: It did not pass.
        """
        return self._run(
            lambda tx: op(tx, *args, **kwargs), tries=TRIES, repeat_lost=True, reads=True
        )

    def run_once(
        self, op: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """As `run`, but nothing is repeated once a connection was lost.

        Raises:
            StoreUnavailableError: It did not pass; the message says what now stands.
        """
        return self._run(
            lambda tx: op(tx, *args, **kwargs),
            tries=TRIES,
            repeat_lost=False,
            single=op in _single_writes,
        )

    def try_once(
        self, op: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """As `run`, but nothing at all is repeated: the caller has its own way to go on.

        Raises:
            StoreUnavailableError: It did not pass; the message says what now stands.
        """
        return self._run(
            lambda tx: op(tx, *args, **kwargs),
            tries=1,
            repeat_lost=False,
            single=op in _single_writes,
        )

    def joined(self, connection: Connection) -> Tx:
        """Return the caller's own open transaction; nothing in it is tried again."""
        return Tx(connection, self, joined=True)

    def _run(
        self,
        op: Callable[[Tx], T],
        *,
        tries: int,
        repeat_lost: bool,
        reads: bool = False,
        single: bool = False,
    ) -> T:
        rest, sent, in_doubt = _FIRST_REST, False, False
        for left in range(tries - 1, -1, -1):
            current: Tx | None = None
            self.hangs.begin()
            try:
                with self._transaction(reads=reads, single=single) as tx:
                    current = tx
                    return op(tx)
            except (SQLAlchemyError, sqlite3.Error, psycopg.Error) as error:
                cause = (isinstance(error, DBAPIError) and error.orig) or error
                lost = self.dialect.is_lost(cause)
                passes = lost or self.dialect.is_transient(cause)
                passes = passes or isinstance(error, PoolTimeoutError)
                if current is not None:
                    sent = True
                    # What has failed stands behind a commit: it is as if that answer were lost.
                    lost = lost or current.stands
                    # Where a connection was lost, nobody knows what the server has done with it.
                    in_doubt = in_doubt or lost
                if passes and left > 0 and (repeat_lost or not lost):
                    pass
                elif refused := refusal(cause, self.description, in_doubt=in_doubt):
                    if self.kind == "sqlite":
                        # A file that was opened when it could not be written stays so for good.
                        self.close()
                    raise refused from error
                elif not passes:
                    raise
                else:
                    # The driver's own text can hold parameters; its type says enough.
                    stands = what_stands(reads=reads, sent=sent, in_doubt=in_doubt)
                    raise StoreUnavailableError(
                        f"{self.description} did not answer ({named(cause)}); {stands}"
                    ) from error
            finally:
                self.hangs.end()
            time.sleep(rest * (0.5 + self._draw.random() / 2))
            rest = min(rest * 2, _LONGEST_REST)
        raise AssertionError("unreachable")  # pragma: no cover

    @contextmanager
    def _transaction(self, *, reads: bool, single: bool) -> Iterator[Tx]:
        with self.engine.connect() as conn:
            lent = LENT in conn.info
            single = single and self._singles and not lent
            if single:
                conn.execution_options(isolation_level="AUTOCOMMIT")
            elif reads:
                conn.execution_options(**{READS: True})
            with conn.begin():
                if lent:
                    # Without a session's state, the bounds must be said in each transaction.
                    conn.exec_driver_sql(BOUNDS)
                try:
                    yield Tx(conn, self, single=single)
                except DBAPIError as error:
                    if error.orig is not None and self.dialect.leads_astray(error.orig):
                        conn.invalidate()
                    raise

    def execute(
        self, conn: Connection, builder: Builder, form: tuple[Hashable, ...], params: dict[str, Any]
    ) -> CursorResult[Any]:
        """Run a statement on a connection. For `Tx`."""
        self.hangs.goes_on()
        prepared = self._statements.prepare(builder, *form)
        values = {**prepared.defaults, **params}
        if prepared.needs_clock:
            values[CLOCK] = self._clock_value()
        options = AT_ONCE if streams(conn) else None
        if not takes_text_as_it_is(conn):
            return conn.execute(portable(prepared.sql), values, execution_options=options)
        return conn.exec_driver_sql(prepared.sql, values, execution_options=options)

    def about_now(self) -> datetime:
        """Return about the present, in UTC, for coarse checks: the host's clock, or a test's."""
        return datetime.now(UTC) if self.manual_clock is None else self.manual_clock.now

    def _clock_value(self) -> Any:
        return self.dialect.write_instant(self.about_now())

    # -- connections -----------------------------------------------------------------------------

    @property
    def engine(self) -> Engine:
        """The SQLAlchemy engine; opened at first use."""
        engine = self._engine
        if engine is None:
            with self._engine_lock:
                engine = self._engine
                if engine is None:
                    engine = open_engine(self.target, **self._options)  # type: ignore[arg-type]
                    # First of all: a new engine's first connection is asked about its server then.
                    event.listen(engine, "connect", self._note_connect, insert=True)
                    event.listen(engine, "checkout", self._note_checkout)
                    event.listen(engine, "checkin", self._note_checkin)
                    if self.kind == "postgresql":
                        watch(self.hangs)
                    self._engine = engine
        return engine

    def _note_connect(self, raw: Any, record: Any) -> None:
        self.hangs.uses(raw)
        with self._in_use_lock:
            # One that broke before it was handed out is no more told of.
            broken = [each for each, old in self._in_use.items() if getattr(old, "closed", False)]
            for each in broken:
                del self._in_use[each]
            self._in_use[record] = raw

    def _note_checkout(self, raw: Any, record: Any, proxy: Any) -> None:
        self.hangs.uses(raw)
        with self._in_use_lock:
            self._in_use[record] = raw

    def _note_checkin(self, raw: Any, record: Any) -> None:
        # By its record: a connection that was lost is no longer told.
        with self._in_use_lock:
            self._in_use.pop(record, None)

    def abort(self) -> None:
        """Break the connections in use, from another thread: their statements fail at once."""
        with self._in_use_lock:
            in_use = list(self._in_use.values())
        for raw in in_use:
            abort_connection(raw)

    def close(self) -> None:
        """Close all connections; the store opens new ones when it is used again."""
        with self._engine_lock:
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.dispose()


_stores: weakref.WeakSet[Store] = weakref.WeakSet()
_of_the_parent: list[Engine] = []


def _leave_to_the_parent() -> None:
    """After a fork: the connections are the parent's, and stay open there and untouched here."""
    for store in list(_stores):
        if store.target.credentials is not None:
            store.target.credentials.after_fork()
        if store._engine is not None:
            _of_the_parent.append(store._engine)
        store._begin_without_connections()


os.register_at_fork(after_in_child=_leave_to_the_parent)


__all__ = ["ManualClock", "Store", "Tx"]
