"""A batch in its worker: what its handler is handed, and what that makes of each run.

Source: docs/batch-handlers.md; docs/adr/0021-batch-handlers.md
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from workhorse.domain.outcomes import Failed, Outcome
from workhorse.errors import NonRetryableError
from workhorse.handlers.batches import BatchItem
from workhorse.handlers.context import ActivationCore
from workhorse.handlers.failures import describe, reason_for
from workhorse.handlers.signals import StopReason, StopSwitch
from workhorse.handlers.tasks import Task
from workhorse.runtime.activations import verdicts
from workhorse.runtime.activations.activation import Activation

Outcomes: TypeAlias = list[tuple[Activation, Outcome]]

_making: Final = threading.Lock()


class Batch:
    """Runs that are handed to a handler together, and what is said of each; see `Decisions`.

    Args:
        activations: Of one task; the first one's context variables are those of the handler.
        decide: Has an activation ended; answers whether that was what ended it.
    """

    def __init__(
        self, activations: Sequence[Activation], decide: Callable[[Activation, Outcome], bool]
    ) -> None:
        self.activations: Final = activations
        self.lead: Final = activations[0]
        self.task: Final[Task[Any, Any]] = self.lead.task
        self._decide = decide
        self._handed: dict[ActivationCore, Activation] = {}
        self._stopping: StopSwitch | None = None
        self.main: asyncio.Task[None] | None = None
        self.begun = False
        self.uprooted = False
        """Whether the handler's asyncio tasks have been cancelled, or are not to be started."""
        self.abandoned = False
        """Whether nobody waits for the handler any more: stops have ended what it had left."""

    @property
    def all_decided(self) -> bool:
        """Whether it is decided how each of its runs ends."""
        return all(each.outcome is not None for each in self.activations)

    def hand_over(self, now_ms: float) -> tuple[list[BatchItem[Any]], list[Activation]]:
        """Return what the handler is handed, and what it is not: it has ended before, or does now.

        A payload that does not fit the handler is the failure of its own run alone.
        """
        self.begun = True
        items: list[BatchItem[Any]] = []
        left_out: list[Activation] = []
        for activation in self.activations:
            stop = activation.core.cancelled.reason
            if stop is not None:  # whoever was to end it may have found no batch yet, and is gone
                outcome = verdicts.of_state(activation) or verdicts.of_stop(stop)
                self._decide(activation, outcome)
                left_out.append(activation)
                continue
            if not activation.begin(now_ms):
                left_out.append(activation)
                continue
            try:
                payload = self.task.decode(activation.claimed.payload)
            except BaseException as error:  # noqa: BLE001 - a codec runs the user's code
                self._decide(activation, verdicts.of_error(activation, error))
                left_out.append(activation)
            else:
                self._handed[activation.core] = activation
                items.append(BatchItem(activation.core, payload, self))
        return items, left_out

    def let_go_of_task(self) -> None:
        """Part from the handler's asyncio task, which has ended: it holds the batch in its turn."""
        self.main = None
        for activation in self.activations:
            activation.main = None

    # -- decisions of the handler ----------------------------------------------------------------

    @property
    def stopping(self) -> StopSwitch:
        """Set when any of its runs is told that the worker ends: those that are settled are not."""
        with _making:
            if self._stopping is None:
                self._stopping = StopSwitch(f"a batch of task '{self.task.name}'")
                for activation in self.activations:
                    activation.core.stopping.on_set(
                        partial(self._stopping.set, StopReason.SHUTDOWN)
                    )
            return self._stopping

    def decided(self, core: ActivationCore) -> bool:
        """Say whether it is decided how a run ends."""
        return self._handed[core].outcome is not None

    def succeed(self, core: ActivationCore, value: object) -> bool:
        """End a run with a result."""
        activation = self._handed[core]
        return activation.outcome is None and self._decide(activation, _of(activation, value))

    def fail(self, core: ActivationCore, error: BaseException) -> bool:
        """End an attempt with an error."""
        activation = self._handed[core]
        if activation.outcome is not None:
            return False
        return self._decide(activation, verdicts.of_error(activation, error))

    # -- what the handler came to ----------------------------------------------------------------

    def of_value(self, value: object) -> Outcomes:
        """Return the outcomes of what is undecided still, where the handler returned."""
        handed = list(self._handed.values())
        if value is None:
            return [(each, verdicts.of_value(each, None)) for each in self._undecided()]
        if not isinstance(value, list | tuple):
            return self.of_error(_no_list(self.task, value))
        if len(value) != len(handed):
            return self.of_error(_other_length(self.task, len(handed), len(value)))
        return [
            (each, _of(each, result))
            for each, result in zip(handed, value, strict=True)
            if each.outcome is None
        ]

    def of_error(self, error: BaseException) -> Outcomes:
        """Return the outcomes of what is undecided still, where the handler raised."""
        failed: Failed | None = None
        outcomes: Outcomes = []
        for each in self._undecided():
            outcome = verdicts.of_told(each, error)
            if outcome is None:  # the same for all: an error's text is costly to make
                failed = failed or Failed(describe(error), reason_for(self.task, error))
                outcome = failed
            outcomes.append((each, outcome))
        return outcomes

    def _undecided(self) -> Iterator[Activation]:
        return (each for each in self._handed.values() if each.outcome is None)


def _of(activation: Activation, value: object) -> Outcome:
    if isinstance(value, BaseException):
        return verdicts.of_error(activation, value)
    return verdicts.of_value(activation, value)


def _no_list(task: Task[Any, Any], value: object) -> NonRetryableError:
    if inspect.iscoroutine(value):
        value.close()  # it is refused here; nobody will ever await it
    advice = (
        "Define it with `async def`, or annotate what it returns as Awaitable[...]"
        if inspect.isawaitable(value)
        else "Return a list of results, one for each run in their order, or None"
    )
    return NonRetryableError(
        f"task '{task.name}': {task.where} returned a {type(value).__name__}, so the runs of its "
        f"batch that it had not decided have failed. {advice}"
    )


def _other_length(task: Task[Any, Any], handed: int, returned: int) -> NonRetryableError:
    return NonRetryableError(
        f"task '{task.name}': {task.where} was handed {handed} runs and returned {returned} "
        "results, so it cannot be told whose they are; the runs that it had not decided have "
        "failed. Return one for each run, in their order, or None"
    )
