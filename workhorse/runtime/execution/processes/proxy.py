"""What a handler's context writes through in a process: the worker's recorder, over the line.

Source: docs/design.md, sections 6 and 7.
"""

from __future__ import annotations

import itertools
import os
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import workhorse.errors
from workhorse.domain.boundaries import Wait
from workhorse.domain.recording import NewProgress, ReadValue, Record, RecordAnswer
from workhorse.errors import ConfigurationError, LeaseLostError, WorkhorseError
from workhorse.handlers.recording import Pending
from workhorse.runtime.base.crashing import Crashed
from workhorse.runtime.execution.processes.frames import (
    Answered,
    Asked,
    FromChild,
    Progressed,
    Read,
    Refused,
    Suspending,
    from_child,
)

if TYPE_CHECKING:
    from sqlalchemy import Connection

_PROGRESS_S: Final = 0.05
"""How often progress crosses at most: the worker writes it each 100 ms."""

_numbers: Final = itertools.count(1)


class Line:
    """The socket to the worker. Messages may be sent from any thread."""

    def __init__(self, line: socket.socket) -> None:
        self._socket = line
        self._lock = threading.Lock()

    def send(self, message: FromChild) -> None:
        """Send a message. Where nobody gets it, the process ends: nobody would miss its work."""
        frame = from_child(message)
        with self._lock:
            try:
                self._socket.sendall(frame)
            except OSError:
                os._exit(1)

    def receive(self) -> bytes:
        """Wait for bytes; none at the end of the line."""
        try:
            return self._socket.recv(256 * 1024)
        except OSError:
            return b""


class RemoteRecorder:
    """Has the worker write for one activation; see `handlers.recording.Recorder` for its calls.

    Args:
        task: As errors call the task.
        waits: Returns the waits that the activation ends at.
    """

    def __init__(self, line: Line, task: str, waits: Callable[[], tuple[Wait, ...]]) -> None:
        self._line = line
        self._task = task
        self._waits = waits
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._pending: dict[int, Pending[Any]] = {}
        self._progress: str | None = None
        self._reporter: threading.Thread | None = None
        self._closed = False

    # -- for the handler's context ---------------------------------------------------------------

    def record(self, record: Record) -> Pending[RecordAnswer]:
        """Write a boundary."""
        return self._ask(
            Asked(
                number=next(_numbers),
                boundary=record.boundary,
                token=record.token,
                child=record.child,
                closes=record.closes,
                cancels=record.cancels,
            )
        )

    def read(self, request: ReadValue) -> Pending[str | None]:
        """Read a value by name."""
        return self._ask(Read(number=next(_numbers), name=request.name, of=request.kind))

    def progress(self, progress: NewProgress) -> None:
        """Replace what the run says of its progress; the latest crosses, now and then."""
        with self._changed:
            if self._closed:
                return
            self._progress = progress.value
            if self._reporter is None:
                self._reporter = threading.Thread(
                    target=self._report, name="workhorse-progress", daemon=True
                )
                self._reporter.start()
            self._changed.notify_all()

    def transact(
        self, record: Record, operation: Callable[[Connection], str]
    ) -> Pending[RecordAnswer]:
        """Refuse it: its connection would have to be the worker's."""
        raise ConfigurationError(
            f"run {record.lease.run_id}: transaction '{record.boundary.name}' needs a connection "
            f"of the worker's, and the handler of {self._task} runs in another process. Nothing "
            "was called or stored; leave `executor` out, or do that work in a task without it"
        )

    def suspending(self) -> None:
        """Be told that the activation ends at its waits."""
        with self._sending:
            if not self._closed:
                self._line.send(Suspending(waits=self._waits()))

    # -- for the process -------------------------------------------------------------------------

    def take(self, answer: Answered | Refused) -> None:
        """Give an answer to whoever waits for it."""
        with self._changed:
            pending = self._pending.pop(answer.number, None)
        if pending is None:
            return
        if isinstance(answer, Refused):
            pending.fail(_error(answer))
        else:
            pending.answer(answer.value if answer.answer is None else answer.answer)

    def close(self) -> None:
        """Send what is left, and take nothing any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._send_progress()
        with self._changed:
            left, self._pending = self._pending, {}
        for pending in left.values():
            pending.fail(self._ended())

    # -- its own ---------------------------------------------------------------------------------

    def _ask(self, asked: Asked | Read) -> Pending[Any]:
        pending = Pending[Any]()
        # The worker takes what comes after the end of the handler for the next one's.
        with self._sending:
            with self._changed:
                closed = self._closed
                if not closed:
                    self._pending[asked.number] = pending
            if not closed:
                self._line.send(asked)
        if closed:
            pending.fail(self._ended())
        return pending

    def _ended(self) -> LeaseLostError:
        return LeaseLostError(
            f"{self._task}: the activation has ended; nothing more is stored for it"
        )

    def _report(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._progress is not None)
                if self._closed:
                    return
            self._send_progress()
            with self._changed:
                if self._changed.wait_for(lambda: self._closed, _PROGRESS_S):
                    return

    def _send_progress(self) -> None:
        with self._sending:  # so that none is under way when the end of the handler is told
            with self._changed:
                value, self._progress = self._progress, None
            if value is not None:
                self._line.send(Progressed(value=value))


def _error(refused: Refused) -> BaseException:
    if refused.error == Crashed.__name__:
        return Crashed(refused.message)
    kind = getattr(workhorse.errors, refused.error, WorkhorseError)
    try:
        error: BaseException = kind(refused.message)
    except TypeError:  # one of those with more arguments; none of them comes this way
        error = WorkhorseError(refused.message)
    return error
