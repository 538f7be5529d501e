"""Calls batch handlers: the runs of a task out of one claim, as a list, each settled by itself.

A batch is what one claim has brought of a task, cut to the task's size: nothing waits for it to
fill, and nothing is buffered under a lease. Each of its runs has a slot of its own, which is free
when the run is settled and the handler has returned.

A run that is stopped from outside is ended by itself, and the handler goes on with the others. When
it has no run left that way, an async handler is cancelled as a task.

Source: docs/batch-handlers.md; docs/adr/0021-batch-handlers.md
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from workhorse.domain.outcomes import Outcome
from workhorse.handlers.batches import BatchItem, call
from workhorse.handlers.signals import StopReason
from workhorse.handlers.tasks import Task
from workhorse.runtime.activations import verdicts
from workhorse.runtime.activations.activation import Activation
from workhorse.runtime.activations.batch import Batch, Outcomes
from workhorse.runtime.base.pace import Pace
from workhorse.runtime.execution.eventloop import HandlerLoop, running
from workhorse.runtime.execution.executors import Concluded
from workhorse.runtime.execution.threads import Threads
from workhorse.telemetry import get_logger

_log = get_logger("worker")


class BatchExecutor:
    """Calls batch handlers: plain ones in threads, async ones on the event loop of all others.

    Args:
        concluded: Told what has ended.
        hand_back: Takes what could not be called.
        abandoned: Told of runs whose handler has none left that it could decide, since stops have
            ended them; it should return soon.
        loop: What async handlers run on.
    """

    uproots = True

    def __init__(
        self,
        concluded: Concluded,
        *,
        hand_back: Callable[[Sequence[Activation]], None],
        abandoned: Callable[[Sequence[Activation]], None],
        loop: HandlerLoop,
        pace: Pace,
    ) -> None:
        self._concluded = concluded
        self._hand_back = hand_back
        self._abandoned = abandoned
        self._loop = loop
        self._pace = pace
        self._threads = Threads("workhorse-batch")
        self._changed = threading.Condition()
        self._batches: dict[Activation, Batch] = {}
        self._closing = False

    # -- from any thread -------------------------------------------------------------------------

    def submit(self, activations: Sequence[Activation]) -> None:
        """Have the handlers called; a batch that cannot be is handed back."""
        batches = [Batch(share, self._decide) for share in _shares(activations)]
        with self._changed:
            if self._closing:
                raise RuntimeError("the worker has ended")
            for batch in batches:
                self._batches.update(dict.fromkeys(batch.activations, batch))
        for batch in batches:
            try:
                if batch.task.is_async:
                    self._loop.begin(partial(self._start, batch))
                else:
                    self._threads.submit(partial(self._run, batch))
            except RuntimeError:
                _log.exception(
                    "task %r: a batch of %d runs cannot be started: they are handed back",
                    batch.task.name,
                    len(batch.activations),
                )
                self._forget(batch)
                self._hand_back(batch.activations)

    def uproot(self, activation: Activation) -> None:
        """End a run by itself; for a shutdown, the handler with all that it has left."""
        batch = self._batches.get(activation)
        if batch is None:
            return
        stop = activation.core.cancelled.reason or StopReason.SHUTDOWN
        if stop is StopReason.SHUTDOWN:
            self._abandon(batch)
            return
        outcome = verdicts.of_state(activation) or verdicts.of_stop(stop)
        # A handler that has decided all of its runs itself may clean up.
        if self._decide(activation, outcome) and batch.all_decided and self._abandon(batch):
            self._abandoned(batch.activations)

    def close(self, timeout: float) -> bool:
        """End; handlers that have decided all of their runs get the time to clean up."""
        with self._changed:
            self._closing = True
            done = self._changed.wait_for(self._is_quiet, timeout)
        self._threads.close()
        return done

    def _is_quiet(self) -> bool:
        return all(each.abandoned or not each.all_decided for each in set(self._batches.values()))

    def _abandon(self, batch: Batch) -> bool:
        """Wait for a handler no more; answer whether it was waited for until now."""
        with self._changed:
            first, batch.abandoned = not batch.abandoned, True
            self._changed.notify_all()
        if first and batch.task.is_async:
            self._loop.post(partial(self._cancel, batch))
        return first

    def _decide(self, activation: Activation, outcome: Outcome) -> bool:
        first = activation.conclude(outcome, self._pace.now_ms())
        if first:
            self._concluded([activation], ())
        return first

    # -- in the handler's thread -----------------------------------------------------------------

    def _run(self, batch: Batch) -> None:
        outcomes: Outcomes = []
        try:
            items = self._hand_over(batch)
            if items:
                outcomes = batch.lead.take_variables().run(_call_plain, batch, items)
        finally:
            self._end(batch, outcomes)

    def _hand_over(self, batch: Batch) -> list[BatchItem[Any]]:
        if batch.uprooted:  # before its first step
            self._hand_back(batch.activations)
            return []
        items, left_out = batch.hand_over(self._pace.now_ms())
        if left_out:
            self._concluded((), left_out)  # the handler never has them
        return items

    def _end(self, batch: Batch, outcomes: Outcomes) -> None:
        now = self._pace.now_ms()
        ended = [each for each, outcome in outcomes if each.conclude(outcome, now)]
        self._forget(batch)
        self._concluded(ended, batch.activations)

    def _forget(self, batch: Batch) -> None:
        with self._changed:
            for activation in batch.activations:
                del self._batches[activation]
            self._changed.notify_all()

    # -- on the event loop -----------------------------------------------------------------------

    def _start(self, batch: Batch) -> None:
        variables = batch.lead.take_variables()
        variables.run(running.set, batch.lead)
        batch.main = asyncio.Task(
            self._activate(batch),
            loop=asyncio.get_running_loop(),
            name=f"batch of {batch.task.name}",
            context=variables,
        )
        for activation in batch.activations:
            activation.main = batch.main

    async def _activate(self, batch: Batch) -> None:
        outcomes: Outcomes = []
        try:
            items = self._hand_over(batch)
            if not items:
                return
            try:
                value = call(batch.task, items)
                if inspect.isawaitable(value):
                    value = await value
                outcomes = batch.of_value(value)
            except BaseException as error:  # whatever it is, it is the failure of these attempts
                if isinstance(error, GeneratorExit) and self._closing:
                    raise  # nobody awaits this coroutine any more
                outcomes = batch.of_error(error)
            if batch.uprooted:
                await self._loop.wait_for_children(batch.lead)
        finally:
            batch.let_go_of_task()
            self._end(batch, outcomes)

    def _cancel(self, batch: Batch) -> None:
        if batch.uprooted:
            return
        batch.uprooted = True
        for activation in batch.activations:
            activation.uprooted = True
        # Cancelled before its first step, a task never runs its own clean-up.
        if batch.main is not None and batch.begun and not batch.main.done():
            for child in list(batch.lead.children or ()):
                child.cancel()
            batch.main.cancel()


def _shares(activations: Sequence[Activation]) -> Iterator[Sequence[Activation]]:
    """Return the activations task by task, cut to the tasks' sizes."""
    by_task: dict[Task[Any, Any], list[Activation]] = {}
    for activation in activations:
        by_task.setdefault(activation.task, []).append(activation)
    for task, share in by_task.items():
        size = task.batch or 1
        for start in range(0, len(share), size):
            yield share[start : start + size]


def _call_plain(batch: Batch, items: list[BatchItem[Any]]) -> Outcomes:
    try:
        return batch.of_value(call(batch.task, items))
    except BaseException as error:  # noqa: BLE001 - whatever it is, these attempts fail by it
        return batch.of_error(error)
