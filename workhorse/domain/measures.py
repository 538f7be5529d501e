"""What a fleet is measured by: how much waits, for how long, and who works on it.

Source: docs/metrics.md
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """The measures of one queue, or of all together.

    Args:
        queue: None for all together.
        paused: Nothing is runnable in a paused queue.
        oldest_runnable_ms: For how long the oldest run that could be claimed has been ready; 0
            where none could.
        runnable: Ready runs, those that wait for their turn in a session among them. Counts of runs
            go up to 10,000 a queue.
        failed: Runs that ended as failed since the last measuring.
        workers: Live workers that serve the queue and do not stop.
    """

    queue: str | None
    paused: bool = False
    oldest_runnable_ms: int = 0
    runnable: int = 0
    running: int = 0
    waiting: int = 0
    scheduled: int = 0
    failed: int = 0
    workers: int = 0

    @property
    def backlog_per_worker(self) -> float:
        """Runs that are to be done or under way, for each worker; for one where there is none."""
        return (self.runnable + self.running) / max(1, self.workers)


def together(queues: Sequence[Measures], workers: int) -> Measures:
    """Return the measures of all queues; a worker that serves several is one."""
    return Measures(
        queue=None,
        oldest_runnable_ms=max((each.oldest_runnable_ms for each in queues), default=0),
        runnable=sum(each.runnable for each in queues),
        running=sum(each.running for each in queues),
        waiting=sum(each.waiting for each in queues),
        scheduled=sum(each.scheduled for each in queues),
        failed=sum(each.failed for each in queues),
        workers=workers,
    )
