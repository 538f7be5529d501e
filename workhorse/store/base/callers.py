"""A caller's own transaction, as far as enqueue joins it: its connection, and whether it fits.

Source: docs/design.md, section 4.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import Connection, TextClause, text

from workhorse.errors import ConfigurationError
from workhorse.store.base.pending import watch_session

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
AT_ONCE: Final[dict[str, Any]] = {"stream_results": False, "yield_per": None}
"""The options of a statement that is no cursor, whatever its caller's connection says."""

_PARAMETER: Final = re.compile(r"%\((\w+)\)s")


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
        watch_session(session, connection)
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


def streams(connection: Connection) -> bool:
    """Say whether the connection's options make cursors of its statements."""
    options = connection.get_execution_options()
    return any(options.get(name) for name in AT_ONCE)


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
    options = connection.get_execution_options()
    theirs = {name: options.get(name, not_) for name, not_ in AT_ONCE.items()}
    connection.execution_options(**AT_ONCE)
    try:
        with connection.begin_nested():
            yield
    finally:
        connection.execution_options(**theirs)


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
