"""How a database is reached: URLs, engines, and what each connection is told."""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
from dataclasses import dataclass, field, replace
from typing import Any, Final

import psycopg
from psycopg.types.string import TextLoader
from sqlalchemy import URL, create_engine, event, make_url
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.engine import Engine, ExceptionContext
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import QueuePool

from workhorse.errors import ConfigurationError
from workhorse.store.base.credentials import Credentials, Login
from workhorse.store.base.poolers import LENT, SIGNED, Opener, is_lent

LOCK_WAIT: Final = "2s"
# How long a statement may wait for a row's lock, and how long a session may hold locks without
# saying anything: a worker that was frozen in a transaction must not block its successor.
_SESSION_BOUNDS: Final = {
    "lock_timeout": LOCK_WAIT,
    "idle_in_transaction_session_timeout": "10s",
    # Every statement of the store goes by an index. Where statistics are missing, or older than a
    # bulk enqueue, the planner would rather read a table whole, or add the index of all ready runs
    # to that of a few ids; and it would compile a claim for longer than the claim takes. See
    # docs/adr/0017-tables-that-grow.md.
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_mergejoin": "off",
    "random_page_cost": "1.1",
    "jit": "off",
}
_SESSION: Final = " ".join(
    [SIGNED, *(f"-c {name}={value}" for name, value in _SESSION_BOUNDS.items())]
)
_ISOLATION: Final = "-c default_transaction_isolation=read\\ committed"
"""Of statements that are a transaction by themselves; the others say it at their BEGIN."""
BOUNDS: Final = "select " + ", ".join(
    f"set_config('{name}', '{value}', true)" for name, value in _SESSION_BOUNDS.items()
)
"""The same for one transaction: a pooler lends sessions that know nothing of it."""
_REACHED: Final[dict[str, Any]] = {
    "connect_timeout": 5,
    # A half-open connection is noticed within half a minute instead of hours.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
_POOL_WAIT_S: Final = 10
_BUSY_MS: Final = 10_000
READS: Final = "workhorse_reads"
"""The execution option of a connection whose transaction writes nothing."""


@dataclass(frozen=True, slots=True)
class Target:
    """A database that Workhorse can use."""

    kind: str
    description: str
    url: URL = field(repr=False)
    credentials: Credentials | None = field(default=None, repr=False)
    """Where user and password are, when they are not in the URL."""


def parse_url(url: str, setting: str = "database_url") -> Target:
    """Return what a URL names.

    Args:
        url: The URL.
        setting: What the errors call it.

    Raises:
        ConfigurationError: It names no database that Workhorse can use; the URL is not shown, since
            it may hold a password.
    """
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except (ArgumentError, ValueError):
        raise ConfigurationError(
            f"{setting} is not a URL; give postgresql://user@host/database or sqlite:///path"
        ) from None
    if backend in ("postgresql", "postgres"):
        if parsed.drivername not in ("postgresql", "postgres", "postgresql+psycopg"):
            raise ConfigurationError(
                f"{setting} asks for the driver {parsed.drivername!r}; Workhorse uses "
                "psycopg 3: write postgresql:// or postgresql+psycopg://"
            )
        host = parsed.host or parsed.query.get("host") or "local socket"
        place = f"{host}{f':{parsed.port}' if parsed.port else ''}"
        return Target(
            "postgresql",
            f"PostgreSQL at {place}/{parsed.database or ''}",
            parsed.set(drivername="postgresql+psycopg"),
        )
    if backend == "sqlite":
        if parsed.drivername not in ("sqlite", "sqlite+pysqlite"):
            raise ConfigurationError(
                f"{setting} asks for the driver {parsed.drivername!r}; write sqlite:///path"
            )
        if not parsed.database or parsed.database == ":memory:" or parsed.query:
            raise ConfigurationError(
                f"{setting} names an SQLite database without a file of its own; a database in "
                "memory cannot be shared: write sqlite:///path"
            )
        path = os.path.abspath(parsed.database)
        return Target("sqlite", f"SQLite at {path}", parsed.set(drivername="sqlite", database=path))
    raise ConfigurationError(
        f"{setting} names {backend!r}; Workhorse runs on PostgreSQL and on SQLite"
    )


def with_credentials(target: Target, credentials: Credentials, setting: str) -> Target:
    """Return the same database, reached with what a secret holds.

    Raises:
        ConfigurationError: It is no PostgreSQL, or its URL names a user or password too.
    """
    if target.kind != "postgresql":
        raise ConfigurationError(
            f"database_secret is for PostgreSQL, and {setting} names {target.description}; leave "
            "one of them out"
        )
    if target.url.username or target.url.password:
        raise ConfigurationError(
            f"{setting} holds a user or password, and database_secret names where they are; write "
            "postgresql://host/database"
        )
    return replace(target, credentials=credentials)


def open_engine(target: Target, *, connections: int, pooler: bool, bounded: bool = True) -> Engine:
    """Return an engine with at most `connections` connections; none is made yet.

    Args:
        bounded: PostgreSQL: whether sessions bound how long a lock is waited for, and held idle.
    """
    if target.kind == "sqlite":
        return _open_sqlite(target.url, connections)
    return _open_postgres(target, connections, pooler=pooler, bounded=bounded)


def _open_postgres(target: Target, connections: int, *, pooler: bool, bounded: bool) -> Engine:
    url, credentials = target.url, target.credentials
    arguments: dict[str, Any] = {**_REACHED, "application_name": "workhorse"}
    if isinstance(several := url.query.get("options"), tuple):
        arguments["options"] = " ".join(several)
    signed = bounded and not pooler
    opener = Opener(_SESSION, _ISOLATION) if signed else Opener("")
    engine = create_engine(
        url,
        # Said in each BEGIN, whatever the database's default is.
        isolation_level="READ COMMITTED",
        poolclass=QueuePool,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=_POOL_WAIT_S,
        hide_parameters=True,  # payloads do not belong in errors and logs
        pool_use_lifo=True,
        connect_args=arguments,
    )

    @event.listens_for(engine, "do_connect")
    def _connect(dialect: Any, _record: object, given: Any, named: dict[str, Any]) -> Any:
        def connect(**how: Any) -> Any:
            return dialect.connect(*given, **how)

        if credentials is None:
            return opener.open(connect, named)
        return credentials.connect(
            lambda login: opener.open(connect, {**named, **_as_arguments(login)})
        )

    @event.listens_for(engine, "connect")
    def _prepare(raw: psycopg.Connection[Any], record: Any) -> None:
        # Ids are text everywhere: a UUID object for each costs ten microseconds a run.
        raw.adapters.register_loader("uuid", TextLoader)
        if pooler or is_lent(raw, signed=signed):
            record.info[LENT] = True
            raw.prepare_threshold = None

    @event.listens_for(engine, "handle_error")
    def _leave_values_out(context: ExceptionContext) -> None:
        # DETAIL and CONTEXT show rows and parameters, payloads among them; errors are logged.
        error, around = context.original_exception, context.sqlalchemy_exception
        said = error.diag.message_primary if isinstance(error, psycopg.Error) else None
        if said is not None:
            error.args = (said,)
            if around is not None:
                around.args = (f"({type(error).__name__}) {said}",)

    return engine


def connect_apart(target: Target) -> psycopg.Connection[Any]:
    """Return a connection to PostgreSQL that belongs to no engine, in autocommit mode.

    Raises:
        psycopg.Error: The server did not let it in, within 5 s.
    """
    dialect: Any = PGDialect_psycopg()  # type: ignore[no-untyped-call]
    _, arguments = dialect.create_connect_args(target.url)
    arguments |= {**_REACHED, "application_name": "workhorse-listen", "autocommit": True}
    if target.credentials is None:
        return psycopg.connect(**arguments)
    connected: psycopg.Connection[Any] = target.credentials.connect(
        lambda login: psycopg.connect(**{**arguments, **_as_arguments(login)})
    )
    return connected


def _as_arguments(login: Login) -> dict[str, str]:
    return {"user": login.user, "password": login.password}


def _open_sqlite(url: URL, connections: int) -> Engine:
    engine = create_engine(
        url,
        poolclass=QueuePool,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=_POOL_WAIT_S,
        hide_parameters=True,  # payloads do not belong in errors and logs
        connect_args={"timeout": _BUSY_MS / 1000, "check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def _prepare(raw: sqlite3.Connection, _record: object) -> None:
        raw.isolation_level = None  # the driver begins nothing by itself
        raw.execute("pragma journal_mode = wal")
        raw.execute("pragma synchronous = full")

    @event.listens_for(engine, "begin")
    def _begin(conn: Any) -> None:
        # A transaction that reads first and writes later can fail with SQLITE_BUSY at once,
        # whatever the busy timeout says. Taking the write lock at BEGIN makes it wait instead.
        reads = conn.get_execution_options().get(READS, False)
        conn.exec_driver_sql("begin" if reads else "begin immediate")

    return engine


def abort_connection(raw: Any) -> None:
    """Break a driver's connection from another thread: the statement under way fails at once."""
    if isinstance(raw, sqlite3.Connection):
        with contextlib.suppress(sqlite3.ProgrammingError):  # it is closed already
            raw.interrupt()
        return
    try:
        # Closing it here would race with the thread that uses it; shutting the socket down wakes
        # that thread with an error, and the pool then throws the connection away.
        with socket.socket(fileno=os.dup(raw.fileno())) as twin:
            twin.shutdown(socket.SHUT_RDWR)
    except (OSError, psycopg.Error):
        pass  # it is closed already
