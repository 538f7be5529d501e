"""What a batch handler is handed: its runs as a list, and how each of them is decided by itself.

Source: docs/batch-handlers.md; docs/adr/0021-batch-handlers.md
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, cast

from workhorse.errors import ConfigurationError
from workhorse.handlers.activation import ActivationCore
from workhorse.handlers.context import current
from workhorse.handlers.signals import AsyncStopSignal, StopSignal, StopSwitch
from workhorse.handlers.views import View

if TYPE_CHECKING:
    from collections.abc import Callable

    from workhorse.handlers.tasks import Task

P = TypeVar("P")


class Decisions(Protocol):
    """Takes what a handler decides about single runs of its batch. Safe in threads."""

    @property
    def stopping(self) -> StopSwitch:
        """Tells the handler that its worker ends."""
        ...

    def decided(self, core: ActivationCore) -> bool:
        """Say whether it is decided how a run ends."""
        ...

    def succeed(self, core: ActivationCore, value: object) -> bool:
        """End a run with a result; answer whether that was what decided it."""
        ...

    def fail(self, core: ActivationCore, error: BaseException) -> bool:
        """End an attempt with an error; answer whether that was what decided it."""
        ...


class ItemSignal(StopSignal):
    """Tells a batch handler to stop. It is falsy until set: `if item.cancelled: ...`."""

    __slots__ = ()

    def wait(self, timeout: timedelta | float | None = None) -> bool:
        """Block until the signal is set or the time is over; answer whether it is set.

        Args:
            timeout: The longest wait, a timedelta or seconds; None waits as long as it takes.

        Raises:
            InvalidInstantError: The time-out is negative, not finite or longer than 365 days.
            ConfigurationError: It was called on an event loop, which would stand still.
        """
        if _on_a_loop():
            raise ConfigurationError(
                f"{self._switch.owner}: wait() would block the event loop; await wait_async()"
            )
        return super().wait(timeout)

    async def wait_async(self, timeout: timedelta | float | None = None) -> bool:  # noqa: ASYNC109
        """As `wait`, without blocking the event loop."""
        return await AsyncStopSignal(self._switch).wait(timeout)


class BatchItem(View, Generic[P]):
    """One run of a batch: its payload, what is known of it, and how it ends.

    A handler may decide runs one by one while it goes on, by `succeed` and `fail`; what it returns
    or raises decides the rest. All of it is safe in threads.
    """

    __slots__ = ("_decisions", "payload")

    def __init__(self, core: ActivationCore, payload: P, decisions: Decisions) -> None:
        super().__init__(core)
        self.payload: Final = payload
        """As the annotation says; an object of the handler's own."""
        self._decisions = decisions

    @property
    def decided(self) -> bool:
        """Whether it is decided how this run ends: by the handler, or by a stop from outside."""
        return self._decisions.decided(self._core)

    @property
    def cancelled(self) -> ItemSignal:
        """Set when this run is to stop: cancelled, out of time, its lease lost, or the drain over.

        The run is then ended by itself, but for the end of the drain; the batch goes on without it.
        """
        return ItemSignal(self._core.cancelled)

    @property
    def stopping(self) -> ItemSignal:
        """Set as soon as the worker is told to end: begin nothing that takes long."""
        return ItemSignal(self._decisions.stopping)

    def succeed(self, value: Any = None) -> bool:
        """End this run with a result, now; the handler goes on with the others.

        A value that cannot be stored, or is too large, fails the run and no other, as it does when
        it is returned.

        Returns:
            Whether that decided it: False where it was decided before, or ended by a stop.
        """
        return self._decisions.succeed(self._core, value)

    def fail(self, error: BaseException) -> bool:
        """End this run's attempt with an error, now; the handler goes on with the others.

        Whether another attempt follows, the task's retry policy says, as for an error that is
        raised by the handler of a single run.

        Returns:
            Whether that decided it: False where it was decided before, or ended by a stop.
        """
        return self._decisions.fail(self._core, error)


def call(task: Task[Any, Any], items: list[BatchItem[Any]]) -> object:
    """Call a batch handler; what it returned is still to be awaited, where it is async.

    The caller runs this, and awaits, in a copy of the context variables that is the batch's own.
    """
    # A batch that is run out of a handler must not take that one's context for its own.
    current.set(None)
    return cast("Callable[..., object]", task.handler)(items)


def _on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
