"""A process of handlers: takes one run at a time from its worker, and says how it ended.

The main thread calls the handlers; another one listens to the worker, so that signals and answers
reach a handler that is busy, and the process ends when the worker has.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import socket
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from queue import SimpleQueue
from typing import Any, Final

from workhorse.domain.boundaries import Wait
from workhorse.domain.runs import ClaimedRun, Lease
from workhorse.handlers.context import ActivationCore
from workhorse.handlers.failures import ENDS, STOPS, describe, reason_for, tells_of
from workhorse.handlers.places import Place, find
from workhorse.handlers.tasks import Task
from workhorse.runtime.execution.processes import tether
from workhorse.runtime.execution.processes.frames import (
    Answered,
    Begin,
    Begun,
    Ended,
    Frames,
    Prepare,
    Ready,
    Refused,
    Told,
)
from workhorse.runtime.execution.processes.proxy import Line, RemoteRecorder

_NO_TOKEN: Final = 0
"""The token stays with the worker."""


def main(fd: int, worker: int) -> None:
    """Serve a worker until it hangs up.

    Args:
        fd: The socket to the worker.
        worker: Its process id.
    """
    line = socket.socket(fileno=fd)
    line.set_inheritable(False)
    tether.tie(worker, line)
    Process(Line(line)).serve()


class Work:
    """A run that a handler is to be called for."""

    def __init__(self, begin: Begin, line: Line) -> None:
        self.place: Final = begin.place
        self.payload: Final = begin.payload
        self.recorder: Final = RemoteRecorder(line, f"task '{begin.place.task}'", self.waits)
        claimed = ClaimedRun(
            id=begin.run_id,
            task=begin.task,
            queue=begin.queue,
            payload=begin.payload,
            attempt=begin.attempt,
            lease=Lease(begin.run_id, begin.fence, _NO_TOKEN),
            session=begin.session,
            tags=begin.tags,
            key=begin.key,
            retry=begin.retry,
            created_at=begin.created_at,
            started_at=begin.started_at,
            traceparent=begin.traceparent,
            history=begin.history,
        )
        self.core: Final = ActivationCore(claimed, self.recorder, now=_clock(begin.now))

    def waits(self) -> tuple[Wait, ...]:
        """Return the waits that the activation ends at."""
        return self.core.suspension


class Process:
    """Calls handlers in the main thread, one at a time."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._orders: SimpleQueue[Prepare | Work | None] = SimpleQueue()
        self._work: Work | None = None
        self._busy = False
        self._gone = False
        self._tasks: dict[Place, Task[Any, Any]] = {}

    def serve(self) -> None:
        """Do what the worker says, until it hangs up."""
        threading.Thread(target=self._listen, name="workhorse-line", daemon=True).start()
        while (order := self._orders.get()) is not None:
            self._busy = True  # before the look at `_gone`, which is set before one at this
            if self._gone:
                return
            if isinstance(order, Prepare):
                self._prepare(order)
            else:
                self._call(order)
            self._busy = False

    # -- listening -------------------------------------------------------------------------------

    def _listen(self) -> None:
        frames = Frames("to_child")
        try:
            while data := self._line.receive():
                for message in frames.feed(data):
                    self._take(message)
        finally:
            self._gone = True
            self._orders.put(None)
            if self._busy:  # nobody is left for whom the handler works
                os._exit(1)

    def _take(self, message: Any) -> None:
        match message:
            case Prepare():
                self._orders.put(message)
            case Begin():
                self._work = Work(message, self._line)
                self._orders.put(self._work)
            case Answered() | Refused() if self._work is not None:
                self._work.recorder.take(message)
            case Told(signal=signal, reason=reason) if self._work is not None:
                core = self._work.core
                (core.stopping if signal == "stopping" else core.cancelled).set(reason)

    # -- working ---------------------------------------------------------------------------------

    def _prepare(self, order: Prepare) -> None:
        for place in order.places:
            # What fails here fails again, and is told, when a run comes for it.
            with contextlib.suppress(BaseException):
                self._task_at(place)
        self._line.send(Ready())

    def _call(self, work: Work) -> None:
        self._line.send(Begun())
        # A copy for each: what one run's handler sets, the next one's does not see.
        ended = contextvars.copy_context().run(self._activate, work)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # the process may be killed while it is idle
                stream.flush()
        work.recorder.close()
        self._line.send(ended)

    def _activate(self, work: Work) -> Ended:
        task = None
        try:
            task = self._task_at(work.place)
            value = task.invoke(work.core, task.decode(work.payload))
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is this attempt's failure
            return Ended(
                failure=describe(error),
                reason=reason_for(task, error),
                stopped=tells_of(STOPS, error) or work.core.cut_short,
                passed_on=tells_of(ENDS, error),
                waits=work.waits(),
            )
        finally:
            work.core.end()
        try:
            result = task.encode_result(value)
            return Ended(result=result, stopped=work.core.cut_short, waits=work.waits())
        except BaseException as error:  # noqa: BLE001 - a codec runs the user's code
            failure, reason = describe(error), reason_for(task, error)
            return Ended(failure=failure, reason=reason, waits=work.waits())

    def _task_at(self, place: Place) -> Task[Any, Any]:
        task = self._tasks.get(place)
        if task is None:
            task = self._tasks[place] = find(place)
        return task


def _clock(now: datetime) -> Callable[[], datetime]:
    """Return a clock that goes on from an instant: a worker in a test has one of its own."""
    ahead: timedelta = now - datetime.now(UTC)
    return lambda: datetime.now(UTC) + ahead
