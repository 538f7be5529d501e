"""A second session beside the store's: it holds locks, races, and says when it waits for one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from sqlalchemy import Connection, text

from tests.support.eventually import eventually
from workhorse.store.base.database import Store, Tx

P = ParamSpec("P")
T = TypeVar("T")


class Rival:
    """An open transaction on the store's database, in a thread of its own.

    What it did is committed or rolled back by hand; leaving the block rolls back what is left.
    """

    def __init__(self, store: Store) -> None:
        self._store = store.sibling(connections=1)
        self._watched = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rival")
        self._conn: Connection | None = None
        self._pid = 0

    def __enter__(self) -> Self:
        self._thread.submit(self._begin).result(30)
        return self

    def _begin(self) -> None:
        self._conn = self._store.engine.connect()
        self._conn.begin()
        if self._store.kind == "postgresql":
            self._pid = self._conn.execute(text("select pg_backend_pid()")).scalar_one()
            self._conn.execute(text("set local lock_timeout = 0"))

    def start(
        self, op: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        """Begin an operation in the open transaction; it may block."""
        return self._thread.submit(lambda: op(self._store.joined(self._open()), *args, **kwargs))

    def call(self, op: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Do an operation in the open transaction."""
        return self.start(op, *args, **kwargs).result(30)

    def execute(self, sql: str, **params: Any) -> None:
        """Run SQL in the open transaction; `{s}` in it stands before the name of a table."""
        schema = f'"{self._store.schema}".' if self._store.kind == "postgresql" else ""
        self._thread.submit(
            lambda: self._open().execute(text(sql.replace("{s}", schema)), params)
        ).result(30)

    def lock(self, run_id: str) -> None:
        """Hold a run's live row, as a claim, a settle or a cancel does."""
        self.execute("select id from {s}live where id = :id for update", id=run_id)

    def wait_until_blocked(self) -> None:
        """Wait until this session waits for a lock of somebody else."""
        eventually(lambda: is_blocked(self._watched, self._pid), what="the rival waits for a lock")

    def commit(self) -> None:
        """Commit, and begin the next transaction."""
        self._thread.submit(self._again, "commit").result(30)

    def rollback(self) -> None:
        """Roll back, and begin the next transaction."""
        self._thread.submit(self._again, "rollback").result(30)

    def commit_and_rest(self) -> None:
        """Commit, and begin nothing: on SQLite an open transaction holds the write lock."""
        self._thread.submit(self._end, "commit").result(30)

    def _open(self) -> Connection:
        assert self._conn is not None
        return self._conn

    def _again(self, how: str) -> None:
        self._end(how)
        self._begin()

    def _end(self, how: str) -> None:
        conn, self._conn = self._open(), None
        transaction = conn.get_transaction()
        assert transaction is not None
        getattr(transaction, how)()
        conn.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._conn is not None:
            self._thread.submit(self._end, "rollback").result(30)
        self._thread.shutdown()
        self._store.close()


def is_blocked(store: Store, pid: int) -> bool:
    """Say whether a PostgreSQL session waits for somebody's lock."""
    with store.engine.connect() as conn:
        waiting = conn.execute(text("select cardinality(pg_blocking_pids(:pid)) > 0"), {"pid": pid})
        return bool(waiting.scalar_one())


def blocked_sessions(store: Store) -> int:
    """Count the PostgreSQL sessions of this database that wait for somebody's lock."""
    with store.engine.connect() as conn:
        waiting = conn.execute(
            text(
                "select count(*) from pg_stat_activity where datname = current_database()"
                " and cardinality(pg_blocking_pids(pid)) > 0"
            )
        )
        return int(waiting.scalar_one())
