"""The event loop that async handlers run on, in a thread of its own.

Source: docs/design.md, sections 3 and 6.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from functools import partial
from types import CoroutineType, FrameType
from typing import Any, Final

from workhorse.handlers.signals import Stopped, Suspended
from workhorse.runtime.activations import verdicts
from workhorse.runtime.activations.activation import Activation
from workhorse.runtime.base.crashing import Crashed
from workhorse.runtime.base.pace import Pace
from workhorse.runtime.execution.executors import Concluded
from workhorse.telemetry import Counters, Metric, get_logger

_log = get_logger("worker")

running: Final[contextvars.ContextVar[Activation]] = contextvars.ContextVar("workhorse.activation")

_CLOSE_S: Final = 0.3
_OUR_OWN: Final = (Suspended, Stopped, Crashed)


class HandlerLoop:
    """Runs async handlers. The thread is started by the first of them.

    Args:
        concluded: Told, in the loop's thread, what has ended.
        suspended: Told, in the loop's thread, of handlers that came to a wait and have not ended.
        cancel_wait_ms: How long the tasks that a cancelled handler started are waited for.
    """

    uproots = True

    def __init__(
        self,
        concluded: Concluded,
        *,
        suspended: Callable[[Activation], None],
        cancel_wait_ms: float,
        pace: Pace,
        counters: Counters,
    ) -> None:
        self._concluded = concluded
        self._suspended = suspended
        self._cancel_wait_s = cancel_wait_ms / 1000
        self._pace = pace
        self._counters = counters
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closing = False
        self._ended: list[Activation] = []
        self._returned: list[Activation] = []
        # Callbacks of the worker's own run in this: one that was scheduled out of a handler would
        # see the handler's variables.
        self._own = contextvars.Context()

    # -- from any thread -------------------------------------------------------------------------

    def submit(self, activations: Sequence[Activation]) -> None:
        """Call the handlers of a batch; it crosses to the loop at once, in one call."""
        self._started().call_soon_threadsafe(self._start_all, activations, context=self._own)

    def begin(self, call: Callable[[], None]) -> None:
        """Have `call` called in the loop's thread: it starts handlers of another kind.

        Raises:
            RuntimeError: The worker has ended.
        """
        self._started().call_soon_threadsafe(call, context=self._own)

    def call(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Run a coroutine that is no handler, a hook's."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._started())

    def uproot(self, activation: Activation) -> None:
        """Cancel the tasks of a handler: its own, and those it started in its context."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # closed: nothing runs any more
                loop.call_soon_threadsafe(self._uproot, activation)

    def suspend(self, activation: Activation) -> None:
        """End a handler that has come to a wait, at the end of the loop's turn.

        Those of its tasks that come to waits in the same turn are suspended at these too.
        """
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        if threading.get_ident() == thread.ident:
            loop.call_soon(self._end_suspended, activation, context=self._own)
        else:  # a context that was taken to another thread
            self.post(partial(self._end_suspended, activation))

    def post(self, call: Callable[[], None]) -> bool:
        """Have `call` called in the loop's thread; False when there is no loop."""
        loop = self._loop
        if loop is None or self._closing:
            return False
        try:
            loop.call_soon_threadsafe(call, context=self._own)
        except RuntimeError:
            return False
        return True

    def current(self) -> tuple[asyncio.Task[Any] | None, FrameType | None]:
        """Return the task that is running just now, and where it is: for one that blocks."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None or thread.ident is None:
            return None, None
        return asyncio.current_task(loop), sys._current_frames().get(thread.ident)

    def close(self, timeout: float) -> bool:
        """End the loop, cancelling what still runs on it; False when it does not end in time."""
        with self._lock:
            self._closing = True
            loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return True
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout)
        return not thread.is_alive()

    @property
    def healthy(self) -> bool:
        """Whether the loop runs, or has not been needed yet."""
        return self._thread is None or self._thread.is_alive()

    # -- the thread ------------------------------------------------------------------------------

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._closing:
                raise RuntimeError("the worker has ended")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._loop.set_task_factory(_make_task)
                self._loop.set_exception_handler(_note_exception)
                self._thread = threading.Thread(
                    target=self._serve, args=(self._loop,), name="workhorse-async", daemon=True
                )
                self._thread.start()
            return self._loop

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        while True:
            try:
                loop.run_forever()
            except BaseException:  # noqa: BLE001 - the loop outlives it
                # A task that a handler started raised SystemExit or KeyboardInterrupt, which
                # asyncio lets through; it stands in that task too, and all others go on.
                _log.exception("a handler's task tried to end the process; the loop goes on")
                self._counters.add(Metric.LOOP_RESTARTS, label="async")
            if self._closing:
                break
        try:
            loop.call_soon(loop.stop)
            loop.run_forever()  # a stop that is still waiting would end what comes next
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left, timeout=_CLOSE_S))
            loop.run_until_complete(loop.shutdown_asyncgens())
        except BaseException:  # noqa: BLE001 - the thread is at its end
            _log.exception("the event loop did not end in order")
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    # -- in the loop -----------------------------------------------------------------------------

    def _start_all(self, activations: Sequence[Activation]) -> None:
        loop = asyncio.get_running_loop()
        for activation in activations:
            stop = activation.core.cancelled.reason
            if stop is not None:  # whoever was to end the handler found none, and comes no more
                outcome = verdicts.of_state(activation) or verdicts.of_stop(stop)
                if activation.conclude(outcome, self._pace.now_ms()):
                    self._ended.append(activation)
                self._note_returned(activation)
                continue
            # Not by the loop's `create_task`: here is no handler whose task it could be.
            activation.main = activation.core.flow = asyncio.Task(
                self._activate(activation),
                loop=loop,
                name=f"run {activation.claimed.id}",
                context=activation.take_variables(),
            )

    async def _activate(self, activation: Activation) -> None:
        running.set(activation)  # for the tasks that the handler starts
        core = activation.core
        outcome = None
        failed_beside = False
        try:
            if activation.begin(self._pace.now_ms()):
                task = activation.task
                try:
                    value = task.begin_async(core, task.decode(activation.claimed.payload))
                    if type(value) is CoroutineType or inspect.isawaitable(value):
                        value = await value
                except BaseException as error:  # whatever it is, it is this attempt's failure
                    if isinstance(error, GeneratorExit) and self._closing:
                        raise  # nobody awaits this coroutine any more
                    if verdicts.failed_beside(activation, error):
                        core.forget_waits()
                        failed_beside = True
                    await self._collect_waits(activation)
                    outcome = verdicts.of_error(activation, error)
                else:
                    if core.suspension:
                        await self._collect_waits(activation)
                    outcome = verdicts.of_value(activation, value)
                if core.cancelled or activation.waits or failed_beside:
                    activation.uprooted = True  # what it left behind is, here
                    await self.wait_for_children(activation)
        finally:
            # The task has what the handler saw in its context, the activation among it: they part
            # here, or each run would be garbage that waits for Python's collector.
            activation.main = None
            core.end()
            if core.used:  # a branch that a suspension has left out is no mistake
                verdicts.forgotten(activation)
            if outcome is not None and activation.conclude(outcome, self._pace.now_ms()):
                self._ended.append(activation)
            self._note_returned(activation)

    def _note_returned(self, activation: Activation) -> None:
        # All that end in one turn of the loop cross to the writer together.
        if not self._returned:
            with contextlib.suppress(RuntimeError):
                asyncio.get_running_loop().call_soon(self._cross, context=self._own)
        self._returned.append(activation)

    def _cross(self) -> None:
        ended, self._ended = self._ended, []
        returned, self._returned = self._returned, []
        self._concluded(ended, returned)

    def _uproot(self, activation: Activation) -> None:
        if activation.uprooted or activation.main is None or activation.main.done():
            return
        activation.uprooted = True
        if activation.started_ms is None:
            # Cancelled before its first step, a task never runs its own clean-up.
            stop = activation.core.cancelled.reason
            if stop is not None and activation.conclude(
                verdicts.of_stop(stop), self._pace.now_ms()
            ):
                self._concluded([activation], [])
            return
        for child in list(activation.children or ()):
            child.cancel()
        activation.main.cancel()

    async def _collect_waits(self, activation: Activation) -> None:
        """Let the tasks of a handler that came to a wait get to theirs, in this turn."""
        if activation.core.suspension and not activation.waits:
            activation.uprooted = True  # its tasks are cancelled here, once the turn is over
            if any(not child.done() for child in activation.children or ()):
                await asyncio.sleep(0)
            activation.waits = activation.core.suspension

    def _end_suspended(self, activation: Activation) -> None:
        if activation.main is None or activation.main.done():
            return
        if not activation.waits and not activation.uprooted:
            activation.waits = activation.core.suspension
        self._uproot(activation)
        self._suspended(activation)

    async def wait_for_children(self, activation: Activation) -> None:
        """Cancel the tasks that a handler started in its context, and wait for them a while."""
        left = [child for child in activation.children or () if not child.done()]
        for child in left:
            if not child.cancelling():  # a second time would end its cleaning up
                child.cancel()
        if left:
            await asyncio.wait(left, timeout=self._cancel_wait_s)


def _note_exception(loop: asyncio.AbstractEventLoop, details: dict[str, Any]) -> None:
    """Say what went wrong in the loop, but not that a task was ended by us."""
    if not isinstance(details.get("exception"), _OUR_OWN):
        loop.default_exception_handler(details)


def _make_task(
    loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
) -> asyncio.Task[Any]:
    """Make a task, and note whose handler it belongs to: it is cancelled together with that."""
    task = asyncio.Task(coroutine, loop=loop, **options)
    activation = running.get(None)
    if activation is not None:
        activation.adopt(task)
    return task
