"""What must be sent once a caller's own transaction has committed.

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

The listeners stand on the engine, and each is a look into a weak dictionary: listening on each
connection anew was measured at 70 us a transaction.

Source: docs/design.md, section 4.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, Protocol

from sqlalchemy import Connection, event
from sqlalchemy.engine import Engine, ExceptionContext

from workhorse.domain.hints import Hint
from workhorse.telemetry import get_logger

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

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


class Pending:
    """The hints of one connection's transactions.

    The connection's own thread writes; a flush in another may take what was noted.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = weakref.ref(connection)
        self._must_not_wait = connection.dialect.is_async
        self._open: list[tuple[Sink, Hint]] = []
        self._savepoints: list[int] = []
        self._noted: list[tuple[Sink, Hint]] = []
        self._lock = threading.Lock()

    def add(self, sink: Sink, hints: Sequence[Hint]) -> None:
        """Hold hints of the transaction that is under way."""
        self._open.extend((sink, hint) for hint in hints)

    def begun(self) -> None:
        """A transaction begins: the one before it is over, and had its COMMIT if any was noted."""
        self.send()
        self.dropped()

    def committing(self) -> None:
        """A COMMIT comes next."""
        with self._lock:
            self._noted += self._open
        self._open.clear()
        self._savepoints.clear()

    def dropped(self) -> None:
        """The transaction was rolled back."""
        self._open.clear()
        self._savepoints.clear()
        self.commit_failed()

    def commit_failed(self) -> None:
        """A statement failed; where a COMMIT was noted and nothing has begun since, it was that."""
        with self._lock:
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
        with self._lock:
            noted, self._noted = self._noted, []
            if only is not None:
                self._noted = [each for each in noted if each[0] != only]
        due: dict[Sink, list[Hint]] = {}
        for sink, hint in noted:
            if only is None or sink == only:
                due.setdefault(sink, []).append(hint)
        for sink, hints in due.items():
            try:
                sink(hints, self._place())
            except Exception:  # noqa: BLE001 - nothing may reach the caller's commit
                _log.exception("wakeups were not sent after a commit; the nets find their runs")

    def send_if_over(self, only: Sink) -> None:
        """As `send`, but not between a commit event and its COMMIT."""
        connection = self._connection()
        if connection is None or not connection.in_transaction():
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


def watch_session(session: Session, connection: Connection) -> None:
    """Take a session's commits for signs of life of its connection, too."""
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
