"""A lane without a broker: workers find runs by scanning the store.

It carries nothing. A send only ends the wait of a receiver of the same queue in the same process,
so that a program which enqueues and works in one process does not wait for its next poll.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from lanes.bells import Belfry, BellReceiver
from workhorse.domain.findings import Finding
from workhorse.ports import LaneContext, Outgoing, SendReport


class PollingLane:
    """Carries no messages; `receive` waits, and ends early when this process enqueued something."""

    carries_messages = False

    def __init__(self) -> None:
        self._belfry = Belfry()

    @classmethod
    def open(cls, context: LaneContext) -> Self:
        """Open the lane; it needs no setting."""
        return cls()

    def send(self, outgoing: Sequence[Outgoing]) -> SendReport:
        """Wake the receivers of the queues in this process; there is nobody else to tell."""
        # A delayed wakeup is for later: whoever scans then needs no bell now.
        for queue in {each.wakeup.queue for each in outgoing if each.delay_ms <= 0}:
            self._belfry.ring(queue)
        return SendReport(sent=len(outgoing))

    async def send_async(self, outgoing: Sequence[Outgoing]) -> SendReport:
        """As `send`, which holds its locks for a moment only."""
        return self.send(outgoing)

    def receiver(self, queue: str) -> BellReceiver:
        """Return a receiver, to wait with."""
        return self._belfry.receiver(queue)

    def reach_ms(self, queue: str) -> int:
        """Return 0: no wakeup can be delayed, timers wait for maintenance."""
        return 0

    def backlog(self, queue: str) -> int | None:
        """Return None: there are no messages to count."""
        return None

    def check(self, queue: str) -> Sequence[Finding]:
        """Return nothing: no broker, no trouble."""
        return ()

    def close(self) -> None:
        """End the waits of all receivers."""
        self._belfry.close()
