"""The worker's side of `ctx.transaction`: operations wait in line for a few threads.

Each thread has a connection while it carries out an operation, so however many handlers ask at
once, a worker opens no more than a handful. Leases are renewed meanwhile, over a connection that is
the heartbeat's own.

Source: docs/design.md, sections 3, 6 and 7
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from workhorse.domain.recording import Record, RecordAnswer
from workhorse.errors import ConfigurationError, LeaseLostError
from workhorse.handlers.recording import Pending
from workhorse.handlers.signals import Stopped, StopReason
from workhorse.runtime.activations.activation import Activation
from workhorse.runtime.execution.threads import Threads
from workhorse.store.durable.transacting import transact
from workhorse.telemetry import get_logger

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from workhorse.store.base.database import Store

_log = get_logger("worker")

CONNECTIONS: Final = 5
"""The most connections, and operations at one time, of a worker on PostgreSQL."""
_operating: Final = contextvars.ContextVar("workhorse.operating", default=False)
"""Whether the code here is a part of an operation."""
_BREATH_S: Final = 0.12
"""SQLite asks for its write lock ten times a second: who waits for it is sure to find it free."""


class Transactions:
    """Carries out operations in the order in which they were asked for. Safe in threads.

    Args:
        store: A store of its own, see `Store.sibling`; opened at first use, closed with this.
        lease_ms: The worker's leases; on SQLite an operation may take a third of one.
        let_renew: Waits until a renewal under way has its answer, at most so many seconds. On
            SQLite it is called between two operations.
    """

    def __init__(
        self, store: Store, *, lease_ms: float, let_renew: Callable[[float], None]
    ) -> None:
        self._store = store
        self._let_renew = let_renew
        # One at a time writes to a file: a second thread would only compete with the heartbeat.
        self._width = CONNECTIONS if store.kind == "postgresql" else 1
        self._bound_ms = lease_ms / 3 if store.kind == "sqlite" else None
        self._threads = Threads("workhorse-transaction")
        self._lock = threading.Lock()
        self._line: deque[_Asked] = deque()
        self._busy = 0
        self._closed = False

    def transact(
        self, activation: Activation, record: Record, operation: Callable[[Connection], str]
    ) -> Pending[RecordAnswer]:
        """Call `operation`, and write the boundary in its transaction, when it is its turn.

        It runs in a copy of the caller's context variables. Whoever is told to stop while it is in
        line is answered at once, and does not start.

        Raises:
            ConfigurationError: An operation asks for it, which would wait in line behind itself.
        """
        if _operating.get():
            raise ConfigurationError(
                f"run {activation.claimed.id}: transaction {record.boundary.name!r} is asked for "
                "by the operation of another one, and operations wait for each other's place; "
                "write through the connection at hand, or call it once that operation has returned"
            )
        asked = _Asked(activation, record, operation)
        with self._lock:
            if self._closed:
                asked.pending.fail(_closed(activation))
                return asked.pending
            self._line.append(asked)
            more = self._busy < self._width
            self._busy += more
        if more:
            self._start_thread()
        # A signal that is set already calls back here, and once it is set in its setter's thread.
        asked.forget = [
            switch.on_set(lambda: self._withdraw(asked))
            for switch in (activation.core.cancelled, activation.core.stopping)
        ]
        asked.pending.on_done(asked.let_go)
        return asked.pending

    def close(self) -> None:
        """Take nothing any more; what is under way ends by itself, without its lease."""
        with self._lock:
            self._closed = True
            left = list(self._line)
            self._line.clear()
        for asked in left:
            asked.pending.fail(_closed(asked.activation))
        self._threads.close()
        self._store.close()

    def _start_thread(self) -> None:
        try:
            self._threads.submit(self._serve)
        except RuntimeError:  # the system gives none: those that there are go on with the line
            with self._lock:
                self._busy -= 1
                left = list(self._line) if self._busy == 0 else []
                if left:
                    self._line.clear()
            for asked in left:
                asked.pending.fail(RuntimeError("no thread for the transactions of handlers"))

    def _withdraw(self, asked: _Asked) -> None:
        with self._lock:
            if asked not in self._line:
                return  # it has begun: its lease is looked at when it ends
            self._line.remove(asked)
        try:
            asked.check()
        except BaseException as stop:  # noqa: BLE001 - it is no `Exception`, and is handed over
            asked.pending.fail(stop)

    def _serve(self) -> None:
        while True:
            with self._lock:
                if not self._line:
                    self._busy -= 1
                    return
                asked = self._line.popleft()
            began = time.monotonic()
            try:
                asked.variables.run(self._carry_out, asked)
            except BaseException as error:  # noqa: BLE001 - it is the handler's
                asked.pending.fail(error)
            if self._bound_ms is not None:
                # Others wait for the file, and they can only poll.
                time.sleep(min(_BREATH_S, time.monotonic() - began))
                # On a busy machine a poll comes late; this worker's heartbeat can be asked.
                self._let_renew(self._bound_ms / 1000)
            del asked

    def _carry_out(self, asked: _Asked) -> None:
        _operating.set(True)  # in a copy of the handler's context variables
        answer = transact(
            self._store,
            asked.record,
            asked.operation,
            may_start=asked.check,
            bound_ms=self._bound_ms,
        )
        error = asked.activation.recorder.take(asked.record, answer)
        if error is not None:
            asked.pending.fail(error)
        else:
            asked.pending.answer(answer)


class _Asked:
    """An operation in line."""

    def __init__(
        self, activation: Activation, record: Record, operation: Callable[[Connection], str]
    ) -> None:
        self.activation = activation
        self.record = record
        self.operation = operation
        self.variables = contextvars.copy_context()
        self.pending: Pending[RecordAnswer] = Pending()
        self.forget: list[Callable[[], None]] = []

    def let_go(self) -> None:
        """Take back what waits for the signals."""
        forget, self.forget = self.forget, []  # they know this
        for each in forget:
            each()

    def check(self) -> None:
        """Refuse to start for an activation that is at its end.

        Raises:
            Stopped: It was told to stop.
            LeaseLostError: Its lease has lapsed or is lost, or it has ended in another way.
        """
        activation = self.activation
        activation.core.replay.gate.check_told()
        if self.pending.done or activation.outcome is not None or activation.core.suspended:
            raise LeaseLostError(
                f"run {activation.claimed.id}: its activation has ended before transaction "
                f"{self.record.boundary.name!r} began; nothing was stored"
            )


def _closed(activation: Activation) -> Stopped:
    return Stopped(
        f"run {activation.claimed.id} was told to stop: the worker has ended",
        reason=StopReason.SHUTDOWN,
    )
