"""The guard of a transaction that user code works in: it does not end before its time.

Whoever is handed a connection can commit. What goes through SQLAlchemy is refused before it reaches
the database, and so is all of it on SQLite, whose authorizer sees every statement. On PostgreSQL
the driver's own connection has a `commit` that nobody can take away: a setting that is local to the
transaction tells, at its end, whether it is still the same one.

Source: docs/design.md, section 7; docs/adr/0014-a-handlers-own-transaction.md
"""

from __future__ import annotations

import sqlite3
import threading
import weakref
from contextlib import suppress
from enum import Enum, auto
from functools import partial
from typing import Any, Final

from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, event
from sqlalchemy.engine import Engine

from workhorse.errors import TransactionMisuseError, TransactionTimeoutError
from workhorse.store.base.wording import ending_in

_GUARD: Final = "workhorse_guard"
_PROGRESS_STEPS: Final = 10_000
"""How many of its steps SQLite takes between two looks at whether the time is over."""


class _State(Enum):
    THEIRS = auto()
    """The operation works in it, and must not end it."""
    OURS = auto()
    """The lease is checked and the transaction ended: nobody else's statements come between."""


class Guard:
    """Guards one connection while an operation has it; made and used in the operation's thread.

    Args:
        what: How errors call it, e.g. `run 0197c2: transaction 'charge'`.
        conn: A connection in its open transaction.
        bound_ms: SQLite: how long the operation may keep the write lock; None has no bound.
    """

    def __init__(self, what: str, conn: Connection, bound_ms: float | None) -> None:
        self._what = what
        # Weak: the connection has its guard, also for who keeps it beyond his operation.
        self._conn = weakref.ref(conn)
        self._raw: Any = conn.connection.driver_connection
        self._owner = threading.get_ident()
        self._watcher: int | None = None
        self._state = _State.THEIRS
        self._lock = threading.Lock()
        self._ended = False
        self._bound_ms = bound_ms
        self._timer: threading.Timer | None = None
        self.misused: str | None = None
        """What ended or broke the transaction, as errors call it."""
        self.over = False
        """The time was over; all is rolled back."""
        _watch(conn.engine)
        conn.execution_options(**{_GUARD: self})
        if isinstance(self._raw, sqlite3.Connection):
            self._raw.set_authorizer(self._authorize)
            if bound_ms is not None:
                self._raw.set_progress_handler(self._is_over, _PROGRESS_STEPS)
                self._timer = threading.Timer(bound_ms / 1000, self._end_in_time)
                self._timer.daemon = True
                self._timer.start()

    # -- from the operation's side ---------------------------------------------------------------

    def refuse(self, ending: str) -> None:
        """Refuse an end that is not ours.

        Raises:
            TransactionMisuseError: It is the operation's.
        """
        if self._is_ours():
            return
        if self.misused is None:
            self.misused = f"the operation called for {ending}"
        raise self.misuse()

    def check_statement(self, sql: str) -> None:
        """Refuse a statement that would end the transaction, or that comes too late.

        Raises:
            TransactionMisuseError: It does, or something has ended or broken it before.
            TransactionTimeoutError: The operation has kept SQLite's write lock for too long.
        """
        if self._is_ours():
            return
        if self.over:
            raise self.late()
        if self._state is _State.OURS:
            self.refuse("a statement after it had returned")
        if self.misused is not None:
            raise self.misuse()
        ending = ending_in(sql)
        if ending is not None:
            self.refuse(ending)
        if isinstance(self._raw, sqlite3.Connection) and not self._raw.in_transaction:
            # OR ROLLBACK, RAISE(ROLLBACK) or a full disk; what follows would commit by itself.
            self.misused = "a statement that failed has rolled all of it back, and it went on"
            raise self.misuse()

    # -- from our side ---------------------------------------------------------------------------

    def take_back(self) -> None:
        """Take the connection back once the operation has returned: from here on it is ours.

        Raises:
            TransactionMisuseError: The operation has ended or broken the transaction.
            TransactionTimeoutError: It has kept SQLite's write lock for too long.
        """
        self._take()
        if self.over:
            raise self.late()
        if self.misused is None:
            self.misused = self._look()
        if self.misused is not None:
            raise self.misuse()

    def let_go(self) -> bool:
        """Take the connection back after an error; answer whether it is as it was given."""
        self._take()
        conn = self._conn()
        whole = conn is not None and not conn.invalidated
        return whole and not self.over and self.misused is None

    def forget(self) -> None:
        """Take the listeners off the driver's connection, which goes back to its pool."""
        if isinstance(self._raw, sqlite3.Connection):
            self._raw.set_authorizer(None)
            self._raw.set_progress_handler(None, 0)

    def misuse(self) -> TransactionMisuseError:
        """Return the error that says what happened, what stands and what to do."""
        return TransactionMisuseError(
            f"{self._what}: {self.misused}; all of it is rolled back and its checkpoint is not "
            "stored. Leave the end to ctx.transaction: return to commit, raise to roll back, and "
            "use connection.begin_nested() for a part that may fail"
        )

    def replaced(self) -> TransactionMisuseError:
        """Return the error for an end that went past SQLAlchemy, which nothing could refuse."""
        self.misused = "the operation ended it on the driver's connection"
        return TransactionMisuseError(
            f"{self._what}: {self.misused}: what a commit of its own took in stands in the "
            "database, what came after is rolled back, and the checkpoint is not stored. Look "
            "through what it wrote, and leave commit and rollback to ctx.transaction"
        )

    def late(self) -> TransactionTimeoutError:
        """Return the error that says what happened, what stands and what to do."""
        return TransactionTimeoutError(
            f"{self._what}: the operation kept SQLite's write lock for more than "
            f"{(self._bound_ms or 0) / 1000:g} s, a third of the lease, in which no other lease "
            "can be renewed; all of it is rolled back. Prepare what takes long before the "
            "transaction, write less in one, or set lease_seconds higher"
        )

    def _is_ours(self) -> bool:
        return self._state is _State.OURS and threading.get_ident() == self._owner

    def _take(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None  # it would call this
        with self._lock:  # a roll-back under way ends first
            self._ended = True
            self._state = _State.OURS

    def _look(self) -> str | None:
        conn = self._conn()
        if conn is None or conn.closed or conn.invalidated:
            return "the operation closed its connection"
        if isinstance(self._raw, sqlite3.Connection):
            if not self._raw.in_transaction:
                return "a statement that failed has rolled all of it back, and it went on"
        elif self._raw.info.transaction_status is TransactionStatus.INERROR:
            return "a statement failed and the operation went on, but the transaction could not"
        return None

    # -- SQLite ----------------------------------------------------------------------------------

    def _authorize(
        self, action: int, word: str | None, _2: str | None, _3: str | None, _4: str | None
    ) -> int:
        if action != sqlite3.SQLITE_TRANSACTION or self._is_ours():
            return sqlite3.SQLITE_OK
        if threading.get_ident() == self._watcher:
            return sqlite3.SQLITE_OK
        if self.misused is None and not self.over:
            self.misused = f"the operation called for {word} on the driver's connection"
        return sqlite3.SQLITE_DENY

    def _is_over(self) -> bool:
        return self.over and not self._is_ours() and threading.get_ident() != self._watcher

    def _end_in_time(self) -> None:
        """Roll back under the operation's hands: leases cannot be renewed while it holds the file.

        In the timer's thread. The driver lets go of the interpreter while SQLite waits for the
        statement that is under way, which the progress handler ends. `interrupt` would not do: it
        also hits what is started here while a cursor of the operation's is open.
        """
        with self._lock:
            if self._ended:
                return
            self._watcher = threading.get_ident()
            self.over = True
            # What goes past SQLAlchemy from now on would commit statement by statement.
            for end in (partial(self._raw.execute, "pragma query_only = on"), self._raw.rollback):
                with suppress(sqlite3.Error):  # it was closed
                    end()


# -- events --------------------------------------------------------------------------------------

_watched: weakref.WeakSet[Engine] = weakref.WeakSet()


def _watch(engine: Engine) -> None:
    # On the engine: to listen on each connection anew takes longer than its transaction.
    if engine in _watched:
        return
    event.listen(engine, "commit", _on_commit)
    event.listen(engine, "rollback", _on_rollback)
    event.listen(engine, "before_cursor_execute", _on_statement)
    event.listen(engine, "set_connection_execution_options", _on_options)
    _watched.add(engine)


def _guard_of(conn: Connection) -> Guard | None:
    guard: Guard | None = conn.get_execution_options().get(_GUARD)
    return guard


def _on_commit(conn: Connection) -> None:
    if (guard := _guard_of(conn)) is not None:
        guard.refuse("a commit")


def _on_rollback(conn: Connection) -> None:
    if (guard := _guard_of(conn)) is not None:
        guard.refuse("a roll-back")


def _on_statement(conn: Connection, _cursor: Any, sql: str, *_: Any) -> None:
    if (guard := _guard_of(conn)) is not None:
        guard.check_statement(sql)


def _on_options(conn: Connection, options: dict[str, Any]) -> None:
    if "isolation_level" in options and (guard := _guard_of(conn)) is not None:
        guard.refuse("another isolation level")
