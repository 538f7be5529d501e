"""Calls plain handlers in processes: a pool of them, started when they are first needed.

One thread does all of it, on an event loop of its own: it starts processes, speaks and listens to
them, and notices when one dies. A run goes to a process when that has nothing else to do; until
then it waits, its lease renewed and its time-out not running.

Source: docs/processes.md; docs/adr/0022-process-executor.md
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal

from workhorse.domain.outcomes import Failed, Outcome
from workhorse.domain.runs import Failure
from workhorse.errors import ConfigurationError
from workhorse.handlers.failures import describe
from workhorse.handlers.places import Place, place_of
from workhorse.handlers.registry import TaskRegistry
from workhorse.handlers.signals import StopReason
from workhorse.handlers.tasks import Task
from workhorse.runtime.activations import verdicts
from workhorse.runtime.activations.activation import Activation
from workhorse.runtime.base.pace import Pace
from workhorse.runtime.execution.executors import Concluded
from workhorse.runtime.execution.processes import tether
from workhorse.runtime.execution.processes.calls import Call
from workhorse.runtime.execution.processes.children import Child
from workhorse.runtime.execution.processes.deaths import never_ready
from workhorse.runtime.execution.processes.frames import Prepare, Ready
from workhorse.telemetry import get_logger

_log = get_logger("worker")

_READY_S: Final = 300.0
"""How long a process may import: large libraries, on a machine that has just started."""
_MOST_HAND_BACKS: Final = 3
"""How often an attempt is handed back before a process that died at its start is its failure."""
_LEAVE_S: Final = 0.3
"""How long a process that is idle may take to end by itself."""


class ProcessExecutor:
    """Calls plain handlers, each in a process that does nothing else meanwhile.

    Args:
        concluded: Told what has ended.
        hand_back: Takes what could not be called.
        begun: Told of activations whose handler is about to be called: their time runs from here.
        registry: The tasks; a process imports all that are its.
        processes: How many there may be; None takes one for each core.
        cancel_wait_ms: How long a handler that is to end may take to do so.
        now: Tells handlers' contexts about the present, for coarse checks.
    """

    uproots = True

    def __init__(
        self,
        concluded: Concluded,
        *,
        hand_back: Callable[[Sequence[Activation]], None],
        begun: Callable[[Activation], None],
        registry: TaskRegistry,
        processes: int | None,
        cancel_wait_ms: float,
        now: Callable[[], datetime],
        pace: Pace,
    ) -> None:
        self._concluded = concluded
        self._hand_back = hand_back
        self._begun = begun
        self._registry = registry
        self._most = processes or os.cpu_count() or 1
        self._cancel_wait_s = cancel_wait_ms / 1000
        self._now = now
        self._pace = pace
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closing = False

        # for the thread
        self._waiting: deque[Activation] = deque()
        self._starting: dict[Child, asyncio.TimerHandle] = {}
        self._idle: list[Child] = []
        self._busy: dict[Child, Call] = {}
        self._calls: dict[Activation, Call] = {}
        self._places: dict[Task[Any, Any], Place] = {}

    # -- from any thread -------------------------------------------------------------------------

    def submit(self, activations: Sequence[Activation]) -> None:
        """Have the handlers called; it crosses to the thread at once."""
        self._started().call_soon_threadsafe(self._take, activations)

    def uproot(self, activation: Activation) -> None:
        """End a handler: it was told to, and is killed when its time to do so is over.

        For a shutdown that is at once, since it had its time before.
        """
        self._post(self._uproot, activation)

    def close(self, timeout: float) -> bool:
        """End all processes; False where one does not end in time."""
        with self._lock:
            self._closing = True
            thread = self._thread
        if thread is None:
            return True
        self._post(self._close)
        thread.join(timeout)
        return not thread.is_alive()

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._closing:
                raise RuntimeError("the worker has ended")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._serve, args=(self._loop,), name="workhorse-processes", daemon=True
                )
                self._thread.start()
            return self._loop

    def _post(self, call: Callable[..., object], *arguments: Any) -> None:
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # closed: nothing runs any more
                loop.call_soon_threadsafe(call, *arguments)

    # -- the thread ------------------------------------------------------------------------------

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        tether.block_signals()  # for what it starts, which would get them before it can choose
        try:
            loop.run_forever()
        finally:
            loop.close()

    def _take(self, activations: Sequence[Activation]) -> None:
        for activation in activations:
            core = activation.core
            stop = core.cancelled.reason
            if stop is not None:  # whoever was to end the handler found none, and comes no more
                self._end(activation, verdicts.of_state(activation) or verdicts.of_stop(stop))
                continue
            self._waiting.append(activation)
            core.stopping.on_set(partial(self._post, self._tell, activation, "stopping"))
            core.cancelled.on_set(partial(self._post, self._tell, activation, "cancelled"))
        self._go_on()

    def _go_on(self) -> None:
        """Give processes that are idle what waits, and start some for the rest."""
        while self._waiting and self._idle:
            self._give(self._idle[-1], self._waiting.popleft())
        while len(self._starting) < len(self._waiting) and self._count() < self._most:
            if not self._start():
                break

    def _count(self) -> int:
        return len(self._starting) + len(self._idle) + len(self._busy)

    def _give(self, child: Child, activation: Activation) -> None:
        try:
            place = self._place_of(activation.task)
        except ConfigurationError as error:
            self._end(activation, Failed(describe(error)))
            return
        if not activation.begin(self._pace.now_ms()):
            self._concluded((), [activation])
            return
        self._begun(activation)
        self._idle.remove(child)
        call = Call(activation, child, post=self._post, cancel_wait_s=self._cancel_wait_s)
        self._busy[child] = self._calls[activation] = call
        try:
            call.begin(place, self._now())
        except Exception as error:  # noqa: BLE001 - nothing was sent, and the run must not hang
            self._part(call)
            self._idle.append(child)
            self._end(activation, Failed(describe(error)))

    def _place_of(self, task: Task[Any, Any]) -> Place:
        place = self._places.get(task)
        if place is None:
            place = self._places[task] = place_of(task)
        return place

    # -- processes -------------------------------------------------------------------------------

    def _start(self) -> bool:
        loop = asyncio.get_running_loop()
        try:
            child = Child(loop, self)
        except Exception:  # noqa: BLE001 - runs must not wait for a process that never comes
            if self._count() == 0:
                _log.exception("the system gives no process: %d runs wait", len(self._waiting))
                waiting, self._waiting = [*self._waiting], deque()
                self._hand_back(waiting)
            return False
        _log.info("process %d of handlers was started", child.pid)
        fault = f"was not ready within {_READY_S:g} s, and was ended,"
        self._starting[child] = loop.call_later(_READY_S, child.end_for, fault)
        places = []
        for task in self._registry:
            if task.executor == "process":
                with contextlib.suppress(ConfigurationError):  # said to its runs
                    places.append(self._place_of(task))
        child.tell(Prepare(places=tuple(places)))
        return True

    def came(self, child: Child, message: Any) -> None:
        """A message has come from a process."""
        if isinstance(message, Ready):
            timer = self._starting.pop(child, None)
            if timer is not None:
                timer.cancel()
                self._idle.append(child)
                self._go_on()
            return
        call = self._busy.get(child)
        outcome = call.take(message) if call is not None else None
        if call is not None and outcome is not None:
            self._part(call)
            self._idle.append(child)
            self._end(call.activation, outcome)
            self._go_on()

    def ended(self, child: Child) -> None:
        """A process has ended."""
        assert child.code is not None  # noqa: S101 - that is what it tells of
        timer, call = self._starting.pop(child, None), self._busy.get(child)
        if timer is not None:
            timer.cancel()
        if call is not None:
            self._part(call)
            self._end(call.activation, call.outcome_of_death(child.code))
        elif child in self._idle:
            self._idle.remove(child)
        if not child.killed and not self._closing:
            _log.warning(
                "process %d of handlers has ended (%s)",
                child.pid,
                f"signal {-child.code}" if child.code < 0 else f"exit code {child.code}",
            )
            if timer is not None and self._waiting:
                self._give_up_one(never_ready(child.code, child.fault))
        if self._closing:
            self._leave_if_alone()
        else:
            self._go_on()

    def _give_up_one(self, failure: Failure) -> None:
        """Let go of a run for which a process was started that died before it was ready.

        It may have died of what has nothing to do with the run: no memory, a signal to all. So the
        run is handed back and spends nothing, here or elsewhere; but not for ever.
        """
        activation = self._waiting.popleft()
        if activation.claimed.hand_backs < _MOST_HAND_BACKS:
            self._hand_back([activation])
        else:
            self._end(activation, Failed(failure))

    # -- handlers --------------------------------------------------------------------------------

    def _tell(self, activation: Activation, signal: Literal["stopping", "cancelled"]) -> None:
        core = activation.core
        reason = (core.stopping if signal == "stopping" else core.cancelled).reason
        assert reason is not None  # noqa: S101 - that is why this is called
        call = self._calls.get(activation)
        if call is not None:
            call.tell(signal, reason)
        elif activation in self._waiting:
            # It holds nothing that has to end: whoever waits for it goes on at once.
            self._waiting.remove(activation)
            self._end(activation, verdicts.of_state(activation) or verdicts.of_stop(reason))

    def _uproot(self, activation: Activation) -> None:
        call = self._calls.get(activation)
        if call is None:
            return
        if activation.core.cancelled.reason in (None, StopReason.SHUTDOWN):
            call.child.kill()
        else:
            call.kill_later()

    def _part(self, call: Call) -> None:
        del self._busy[call.child]
        del self._calls[call.activation]
        call.end()

    def _end(self, activation: Activation, outcome: Outcome) -> None:
        first = activation.conclude(outcome, self._pace.now_ms())
        self._concluded([activation] if first else (), [activation])

    # -- its end ---------------------------------------------------------------------------------

    def _close(self) -> None:
        for child in self._busy:
            child.kill()
        for child in (*self._idle, *self._starting):
            child.hang_up()
            asyncio.get_running_loop().call_later(_LEAVE_S, child.kill)
        self._leave_if_alone()

    def _leave_if_alone(self) -> None:
        if self._count() == 0:
            asyncio.get_running_loop().stop()
