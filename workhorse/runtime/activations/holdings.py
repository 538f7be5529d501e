"""What a worker holds: from a claim's answer until the settle has committed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from workhorse.domain.outcomes import HandedBack
from workhorse.handlers.signals import StopReason
from workhorse.runtime.activations.activation import Activation


@dataclass(frozen=True, slots=True)
class Tally:
    """How many runs were executed, are held or on their way, and were settled in any way."""

    executed: int
    held: int
    settled: int

    @property
    def expected(self) -> int:
        """How many will have been executed once what is held is settled."""
        return self.executed + self.held


class Holdings:
    """The activations of a worker that are not settled, and those that are stuck."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held: set[Activation] = set()
        self._expected = 0
        self._stuck: set[Activation] = set()
        self._stopping = False
        self._executed = 0
        self._settled = 0
        self.cut_short = 0
        """How many runs were handed back although their handler had been called."""

    def __bool__(self) -> bool:
        return bool(self._held or self._expected)

    def all(self) -> list[Activation]:
        """Return the activations that are not settled."""
        with self._changed:
            return list(self._held)

    def tally(self) -> Tally:
        """Return how many runs were executed, are held and were settled."""
        with self._changed:
            return Tally(self._executed, len(self._held) + self._expected, self._settled)

    # -- coming and going ------------------------------------------------------------------------

    def expect(self, runs: int) -> None:
        """Count runs that are claimed and on their way here; a negative number: they do not come.

        Who waits for the last of what is held waits for them too.
        """
        with self._changed:
            self._expected = max(0, self._expected + runs)
            if not self._expected:
                self._changed.notify_all()

    def add(self, activations: Sequence[Activation], *, expected: bool = False) -> bool:
        """Hold activations, which may have been expected; answer whether nothing was held."""
        with self._changed:
            was_idle = not self._held
            self._held.update(activations)
            if expected:
                self._expected = max(0, self._expected - len(activations))
            stopping = self._stopping
        if stopping:
            for activation in activations:
                activation.core.stopping.set(StopReason.SHUTDOWN)
        return was_idle

    def remove(self, activations: Sequence[Activation]) -> None:
        """Let go of activations that are settled."""
        with self._changed:
            self._held.difference_update(activations)
            self._settled += len(activations)
            called = [type(each.outcome) for each in activations if each.started_ms is not None]
            self._executed += len(called)
            self.cut_short += called.count(HandedBack)
            self._changed.notify_all()

    def let_go(self) -> None:
        """Hold nothing any more, and let nobody wait: the worker has ended."""
        with self._changed:
            left = list(self._held)
            self._held.clear()
            self._expected = 0
            self._changed.notify_all()
        for activation in left:
            activation.let_go()

    def tell_stopping(self) -> None:
        """Set `ctx.stopping` of all that runs, and of all that comes."""
        with self._changed:
            self._stopping = True
        for activation in self.all():
            activation.core.stopping.set(StopReason.SHUTDOWN)

    # -- waiting ---------------------------------------------------------------------------------

    def wait_until_empty(self, timeout: float | None) -> bool:
        """Wait until nothing is held or on its way, or the seconds are over; answer which."""
        with self._changed:
            return self._changed.wait_for(lambda: not self, timeout)

    def wait_for_settle(self, since: Tally, timeout: float) -> bool:
        """Wait until a run is settled that was not then, or the seconds are over.

        Returns:
            Whether it makes sense to look again: something was settled, or is held.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._settled != since.settled or not self, timeout)
            return self._settled != since.settled or bool(self)

    # -- handlers that do not stop ---------------------------------------------------------------

    @property
    def stuck(self) -> int:
        """How many handlers still run although their run is settled."""
        return len(self._stuck)

    def running_on(self) -> list[Activation]:
        """Return the handlers that still run although their run is settled."""
        with self._changed:
            return list(self._stuck)

    def note_stuck(self, activation: Activation) -> bool:
        """Note that a handler runs on; False when it has returned meanwhile."""
        with self._changed:
            if not activation.returned:
                self._stuck.add(activation)
            return not activation.returned

    def note_freed(self, activations: Sequence[Activation]) -> None:
        """Note that handlers have returned whose runs are settled."""
        with self._changed:
            self._stuck.difference_update(activations)
