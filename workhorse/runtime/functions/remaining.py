"""How much time an invocation has left, what may still be begun in it, and when it must end.

Source: docs/design.md, section 5; docs/adr/0023-invocations.md
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from workhorse.handlers.registry import TaskRegistry
from workhorse.handlers.tasks import Task
from workhorse.runtime.base.options import Shutdown

LONGEST_RESERVE_MS: Final = 10_000.0
"""So long before its time-out, at the most, a function asks what still runs in it to stop."""

STORE_CALL_MS: Final = 5_000
"""A connection may have died in the freeze without a word: an invocation cannot wait as long for it
as a worker that lives for days."""


def reserve_of(whole_ms: float, default_ms: float) -> float:
    """Return how long before its end an invocation asks handlers to stop.

    Args:
        whole_ms: What it had at its start: the function's time-out.
        default_ms: What must be left for a task that says nothing else.
    """
    return min(LONGEST_RESERVE_MS, whole_ms / 3, default_ms * 2 / 3)


def shutdown_within(reserve_ms: float) -> Shutdown:
    """Return the parts of a shutdown that ends well within the reserve.

    `ctx.stopping` is set at its beginning, `ctx.cancelled` when two fifths are over; async handlers
    are cancelled as tasks after half of it, and what is left then is handed back.
    """
    drain_ms = reserve_ms * 0.4
    return Shutdown(
        drain_ms=round(drain_ms),
        cancel_grace_ms=round(reserve_ms * 0.1),
        hand_back_ms=round(reserve_ms * 0.2),
        backstop_ms=round(reserve_ms - drain_ms),
    )


class TimeLeft:
    """The time of one invocation.

    Args:
        left_ms: Says how much of it is left.
        registry: The tasks.
        default_ms: How much must be left for a task that says nothing else.
    """

    def __init__(
        self, left_ms: Callable[[], float], registry: TaskRegistry, *, default_ms: float
    ) -> None:
        self._left_ms = left_ms
        self.whole_ms = left_ms()
        self.reserve_ms = reserve_of(self.whole_ms, default_ms)
        needs = {
            name: max(self.reserve_ms, _need_ms(registry.require(name), default_ms))
            for name in registry.names()
        }
        self.too_long = {name: ms for name, ms in needs.items() if ms > self.whole_ms}
        """The tasks for which the function's whole time is too short, and what they need."""
        self._needs = {name: ms for name, ms in needs.items() if ms <= self.whole_ms}

    @property
    def known(self) -> frozenset[str]:
        """The tasks that this function can run at all."""
        return frozenset(self._needs)

    def fitting(self) -> tuple[str, ...]:
        """Return the tasks for which there is time enough now."""
        left = self._left_ms()
        return tuple(name for name, ms in self._needs.items() if ms <= left)

    def fits(self, task: str) -> bool:
        """Whether there is time enough for a task now."""
        return self._needs.get(task, float("inf")) <= self._left_ms()

    def all_fit(self) -> bool:
        """Whether there is time enough for every task."""
        return max(self._needs.values(), default=0.0) <= self._left_ms()

    def until_fewer_fit_s(self) -> float:
        """Return in how many seconds there is no time any more for one that fits now."""
        left = self._left_ms()
        return max(0.0, min((left - ms for ms in self._needs.values() if ms <= left), default=0.0)
                   / 1000)  # fmt: skip

    def until_stop_s(self) -> float:
        """Return in how many seconds what still runs is to be asked to stop; zero at the least."""
        return max(0.0, (self._left_ms() - self.reserve_ms) / 1000)

    def may_ask_again(self) -> bool:
        """Whether there is time to ask a store that is away again, which may take its time."""
        return self._left_ms() >= STORE_CALL_MS + self.reserve_ms

    def may_send(self) -> bool:
        """Whether there is time for a call to a broker, which may not answer, before the end."""
        return self._left_ms() >= shutdown_within(self.reserve_ms).backstop_ms

    def left_s(self) -> float:
        """Return how many seconds are left; zero at the least."""
        return max(0.0, self._left_ms() / 1000)


def _need_ms(task: Task[object, object], default_ms: float) -> float:
    own = task.min_time_left
    return default_ms if own is None else own.total_seconds() * 1000
