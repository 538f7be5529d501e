"""A caller's own transaction, as far as enqueue joins it: its connection, and what follows commit.

What is to be sent hangs on the root connection. SQLAlchemy's events say how its transaction goes:

- The connection's commit event comes *before* COMMIT, so it only notes what is to be sent. The
  sends go out at the first sign of life after it: the session's `after_commit`, the connection's
  return to the pool, its next begin, or a flush.
- `Session.after_commit` also comes at a savepoint's end, and when a session joined to an outer
  transaction "commits" without a COMMIT. It is no proof: it only sends what was noted.
- A rollback drops everything, a savepoint's rollback what came since the savepoint, and a COMMIT
  that fails what it was to send.

A wakeup for a run that does not exist is harmless, and one that was not sent is found by the nets,
so SQL that goes past SQLAlchemy (a textual COMMIT, a driver's own savepoint) costs time at worst.

The listeners stand on the engine: a connection's own would cost each transaction more than its
enqueue does. They are a look into a weak dictionary.

Source: docs/design.md, section 4.
"""

from __future__ import annotations

import os
import re
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from sqlalchemy import Connection, TextClause, event, text
from sqlalchemy.engine import Engine, ExceptionContext

from workhorse.domain.hints import Hint
from workhorse.errors import ConfigurationError
from workhorse.telemetry import get_logger

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session, scoped_session

T = TypeVar("T")

_DRIVERS: Final = {
    "postgresql": ("psycopg", "psycopg2", "asyncpg"),
    "sqlite": ("pysqlite", "aiosqlite"),
}
_NUMBERED: Final = "asyncpg"
"""It takes $1, $2 where the store's statements name their parameters."""
_PARAMETER: Final = re.compile(r"%\((\w+)\)s")
_KEY: Final = "workhorse.pending"
_log = get_logger("client")


class Place(Enum):
    """Where the thread that found something due may send it."""

    HERE = auto()
    ELSEWHERE = auto()
    """An event loop runs in this thread; it must not wait."""
    LATER = auto()
    """The garbage collector came here: any lock may be held, so nothing may be done at all."""


class Sink(Protocol):
    """Takes hints that are due. It never raises."""

    def __call__(self, hints: Sequence[Hint], place: Place) -> None:
        """Send them, or have them sent."""
        ...


# -- what a caller hands over --------------------------------------------------------------------


def connection_of(given: object) -> Connection:
    """Return the connection of a caller's transaction, which begins where none is under way.

    Args:
        given: A SQLAlchemy `Connection`, `Session` or `scoped_session`.

    Raises:
        ConfigurationError: It is none of these.
    """
    if isinstance(given, Connection):
        return given
    session = _session_of(given)
    if session is not None:
        connection = session.connection()
        _watch_session(session, connection)
        return connection
    if _async_of(given) is not None:
        raise ConfigurationError(
            f"connection= is a {type(given).__name__}, which only async code can use: "
            "await enqueue_async(..., connection=...)"
        )
    raise ConfigurationError(
        "connection= takes a SQLAlchemy Session, scoped_session or Connection; "
        f"got {type(given).__name__}"
    )


def inside(given: object, op: Callable[[Connection], T]) -> Awaitable[T]:
    """Call `op` with the connection of an async caller's transaction, where it may be used.

    Args:
        given: A SQLAlchemy `AsyncConnection`, `AsyncSession` or `async_scoped_session`.
        op: A plain function; its statements go through the caller's driver.

    Raises:
        ConfigurationError: It is none of these.
    """
    handle = _async_of(given)
    if handle is not None:
        return handle.run_sync(lambda plain: op(connection_of(plain)))
    if isinstance(given, Connection) or _session_of(given) is not None:
        raise ConfigurationError(
            f"connection= is a {type(given).__name__}, which would block the event loop: "
            "pass an AsyncSession or AsyncConnection, or call enqueue(..., connection=...)"
        )
    raise ConfigurationError(
        "connection= takes a SQLAlchemy AsyncSession, async_scoped_session or AsyncConnection; "
        f"got {type(given).__name__}"
    )


def check_joinable(connection: Connection, kind: str, description: str) -> None:
    """Refuse a connection on which a run could not be enqueued with the caller's own writes.

    Args:
        connection: The caller's.
        kind: The store's, `postgresql` or `sqlite`.
        description: The store's, for the error.

    Raises:
        ConfigurationError: It is to another kind of database, goes through a driver that does not
            take the store's statements, or commits each statement by itself.
    """
    dialect = connection.dialect
    if dialect.name != kind:
        raise ConfigurationError(
            f"connection= is a connection to {dialect.name}, but the runs are in {description}; "
            "a transaction cannot span both: leave connection= out, or use one database"
        )
    if dialect.driver not in _DRIVERS[kind]:
        raise ConfigurationError(
            f"connection= goes through the driver {dialect.driver!r}, which does not take the "
            f"store's statements; these do: {', '.join(_DRIVERS[kind])}"
        )
    if _commits_by_itself(connection):
        raise ConfigurationError(
            "connection= is in autocommit mode, so there is no transaction to join: "
            "leave connection= out, or open the connection without AUTOCOMMIT"
        )


def takes_text_as_it_is(connection: Connection) -> bool:
    """Say whether the connection's driver takes the store's statements as they are."""
    return connection.dialect.driver != _NUMBERED


@lru_cache(maxsize=100)
def portable(sql: str) -> TextClause:
    """Return a PostgreSQL statement of the store's in a form that SQLAlchemy fits to any driver."""
    # Other colons are casts and parts of literals.
    named = _PARAMETER.sub(r":\1", sql.replace(":", r"\:"))
    return text(named.replace("%%", "%"))


@contextmanager
def all_or_nothing(connection: Connection) -> Iterator[None]:
    """Undo the block's writes when it raises, and leave the caller's transaction usable."""
    if connection.dialect.name == "sqlite" and not _driver(connection).in_transaction:
        # The driver begins at the first write only, and a savepoint outside of a transaction
        # commits when it is released.
        connection.exec_driver_sql("begin")
    with connection.begin_nested():
        yield


def _session_of(given: object) -> Session | None:
    from sqlalchemy.orm import Session, scoped_session

    if isinstance(given, Session):
        return given
    if isinstance(given, scoped_session):
        scoped: scoped_session[Session] = given
        return scoped()
    return None


def _async_of(given: object) -> AsyncSession | AsyncConnection | None:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

    if isinstance(given, AsyncSession | AsyncConnection):
        return given
    if isinstance(given, async_scoped_session):
        scoped: async_scoped_session[AsyncSession] = given
        return scoped()
    return None


def _driver(connection: Connection) -> Any:
    return connection.connection.driver_connection


def _commits_by_itself(connection: Connection) -> bool:
    if not connection.in_transaction():
        connection.begin()
    if connection.dialect.name == "postgresql":
        # Asked of what SQLAlchemy puts around an async driver: not all of these know it themselves.
        return bool(connection.connection.dbapi_connection.autocommit)  # type: ignore[union-attr]
    driver = _driver(connection)
    if getattr(driver, "autocommit", None) is True:  # Python 3.12 and newer; -1 is the older way
        return True
    # Without an isolation level the driver begins nothing; a listener of the engine may have.
    return driver.isolation_level is None and not driver.in_transaction


# -- what follows the commit ---------------------------------------------------------------------


class Pending:
    """The hints of one connection's transactions. One thread at a time writes; a flush may read."""

    def __init__(self, connection: Connection) -> None:
        self._connection = weakref.ref(connection)
        self._must_not_wait = connection.dialect.is_async
        self._open: list[tuple[Sink, Hint]] = []
        self._savepoints: list[int] = []
        self._noted: deque[tuple[Sink, Hint]] = deque()

    def add(self, sink: Sink, hints: Sequence[Hint]) -> None:
        """Hold hints of the transaction that is under way."""
        self._open.extend((sink, hint) for hint in hints)

    def begun(self) -> None:
        """A transaction begins: the one before it is over, and had its COMMIT if any was noted."""
        self.send()
        self.dropped()

    def committing(self) -> None:
        """A COMMIT comes next."""
        self._noted.extend(self._open)
        self._open.clear()
        self._savepoints.clear()

    def dropped(self) -> None:
        """The transaction was rolled back."""
        self._open.clear()
        self._savepoints.clear()
        self._noted.clear()

    def commit_failed(self) -> None:
        """A statement failed; where a COMMIT was noted and nothing has begun since, it was that."""
        self._noted.clear()

    def savepoint(self) -> None:
        """A savepoint is set."""
        self._savepoints.append(len(self._open))

    def released(self) -> None:
        """The innermost savepoint is gone, and what came since belongs to what is around it."""
        if self._savepoints:
            self._savepoints.pop()

    def rolled_back_to_savepoint(self) -> None:
        """What came since the innermost savepoint is gone.

        One that is not known was set before the first hint came: then all of them are gone.
        """
        del self._open[self._savepoints.pop() if self._savepoints else 0 :]

    def send(self, only: Sink | None = None) -> None:
        """Hand over what was noted; `only` leaves the hints of other sinks."""
        due: dict[Sink, list[Hint]] = {}
        for _ in range(len(self._noted)):
            try:  # one by one: a flush in another thread may be at it too
                sink, hint = self._noted.popleft()
            except IndexError:
                break
            if only is None or sink == only:
                due.setdefault(sink, []).append(hint)
            else:
                self._noted.append((sink, hint))
        for sink, hints in due.items():
            try:
                sink(hints, self._place())
            except Exception:  # noqa: BLE001 - nothing may reach the caller's commit
                _log.exception("wakeups were not sent after a commit; the nets find their runs")

    def send_if_over(self, only: Sink) -> None:
        """As `send`, but not between a commit event and its COMMIT."""
        connection = self._connection()
        # A transaction whose COMMIT failed is no longer active, and still there.
        if connection is None or connection.get_transaction() is None:
            self.send(only)

    def _place(self) -> Place:
        if self._connection() is None:
            return Place.LATER
        return Place.ELSEWHERE if self._must_not_wait else Place.HERE


_pending: weakref.WeakKeyDictionary[Connection, Pending] = weakref.WeakKeyDictionary()
_sessions: weakref.WeakKeyDictionary[Session, weakref.ref[Connection]] = weakref.WeakKeyDictionary()
_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_lock = threading.Lock()


def hold(connection: Connection, hints: Sequence[Hint], sink: Sink) -> None:
    """Have hints handed to `sink` once the connection's transaction has committed."""
    if not hints:
        return
    pending = _pending.get(connection)
    if pending is None:
        _watch_engine(connection.engine)
        pending = Pending(connection)
        with _lock:
            _pending[connection] = pending
    # The pool's event knows the record alone. Its info goes with the driver's connection.
    connection.info[_KEY] = pending
    pending.add(sink, hints)


def flush(sink: Sink) -> None:
    """Hand over at once what transactions that are over have noted for `sink`."""
    with _lock:
        everywhere = list(_pending.values())
    for pending in everywhere:
        pending.send_if_over(sink)


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def _watch_engine(engine: Engine) -> None:
    if engine in _engines:
        return
    # Two threads may both get here: SQLAlchemy takes the same function once.
    event.listen(engine, "begin", _on_begin)
    event.listen(engine, "begin_twophase", _on_begin)
    event.listen(engine, "commit", _on_commit)
    event.listen(engine, "commit_twophase", _on_commit)
    event.listen(engine, "rollback", _on_rollback)
    event.listen(engine, "rollback_twophase", _on_rollback)
    event.listen(engine, "savepoint", _on_savepoint)
    event.listen(engine, "release_savepoint", _on_release)
    event.listen(engine, "rollback_savepoint", _on_rollback_savepoint)
    event.listen(engine, "handle_error", _on_error)
    event.listen(engine, "checkin", _on_checkin)
    _engines.add(engine)


def _watch_session(session: Session, connection: Connection) -> None:
    if session not in _sessions:
        event.listen(session, "after_commit", _after_commit)
    _sessions[session] = weakref.ref(connection)


def _on_begin(connection: Connection, *_: object) -> None:
    if (pending := _pending.get(connection)) is not None:
        pending.begun()


def _on_commit(connection: Connection, *_: object) -> None:
    if (pending := _pending.get(connection)) is not None:
        pending.committing()


def _on_rollback(connection: Connection, *_: object) -> None:
    if (pending := _pending.get(connection)) is not None:
        pending.dropped()


def _on_savepoint(connection: Connection, *_: object) -> None:
    if (pending := _pending.get(connection)) is not None:
        pending.savepoint()


def _on_release(connection: Connection, *_: object) -> None:
    if (pending := _pending.get(connection)) is not None:
        pending.released()


def _on_rollback_savepoint(connection: Connection, *_: object) -> None:
    if (pending := _pending.get(connection)) is not None:
        pending.rolled_back_to_savepoint()


def _on_error(context: ExceptionContext) -> None:
    # After a lost connection, or an interrupt, the COMMIT may have happened: a wakeup too many is
    # better then than one too few.
    if context.connection is None or context.sqlalchemy_exception is None or context.is_disconnect:
        return
    if (pending := _pending.get(context.connection)) is not None:
        pending.commit_failed()


def _on_checkin(_raw: object, record: Any) -> None:
    pending = record.info.pop(_KEY, None)
    if pending is not None:
        pending.send()


def _after_commit(session: Session) -> None:
    reference = _sessions.get(session)
    connection = reference() if reference is not None else None
    if connection is not None and (pending := _pending.get(connection)) is not None:
        pending.send()
