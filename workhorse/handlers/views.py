"""What both contexts show of the activation.

Source: docs/design.md, section 7.
"""

from __future__ import annotations

from workhorse.domain.runs import Lease
from workhorse.handlers.activation import ActivationCore, RunInfo


class View:
    """A thin view of an `ActivationCore`."""

    __slots__ = ("_core",)

    def __init__(self, core: ActivationCore) -> None:
        self._core = core

    def __repr__(self) -> str:
        return f"<{type(self).__name__} run {self.run.id} attempt {self.attempt}>"

    @property
    def run(self) -> RunInfo:
        """The run: id, task, queue, tags, session, key, and when it was made and started."""
        return self._core.run

    @property
    def lease(self) -> Lease:
        """The lease. Pass `lease.fence` on to systems that can refuse a number they saw pass."""
        return self._core.lease

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1; waits and hand-backs spend none."""
        return self._core.attempt

    @property
    def is_final_attempt(self) -> bool:
        """Whether an error of this attempt ends the run."""
        return self._core.is_final_attempt

    @property
    def queue_ms(self) -> int:
        """Milliseconds from the run's creation to its first claim; never negative."""
        return self._core.queue_ms
