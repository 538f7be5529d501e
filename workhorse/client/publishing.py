"""Wakeups follow a commit: hints become messages of a lane, and what fails is only counted.

Source: docs/design.md, section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from workhorse.client.outages import Outages
from workhorse.domain.hints import Hint
from workhorse.domain.ids import RunId
from workhorse.domain.runs import Enqueued, NewRun
from workhorse.ports import Lane, Outgoing, SendReport, Wakeup
from workhorse.telemetry import Counters, Metric


class Publisher:
    """Sends hints over a lane, never raises, and counts what was sent and what was not.

    Args:
        lane: Returns the lane; asked at each send, since it is opened late and may be reopened.
        counters: Where to count.
    """

    def __init__(self, lane: Callable[[], Lane], counters: Counters) -> None:
        self._lane = lane
        self._counters = counters
        self._outages = Outages()

    def publish(self, hints: Sequence[Hint]) -> SendReport:
        """Send wakeups; blocks for two tries, 2 s in all, where the broker is slow."""
        if not hints:
            return SendReport()
        try:
            report = self._lane().send(_outgoing(hints))
        except Exception as error:  # noqa: BLE001 - the runs are committed; nothing may undo that
            report = _nothing_sent(hints, error)
        return self._count(hints, report)

    async def publish_async(self, hints: Sequence[Hint]) -> SendReport:
        """As `publish`, without blocking the event loop."""
        if not hints:
            return SendReport()
        try:
            report = await self._lane().send_async(_outgoing(hints))
        except Exception as error:  # noqa: BLE001 - as above
            report = _nothing_sent(hints, error)
        return self._count(hints, report)

    def _count(self, hints: Sequence[Hint], report: SendReport) -> SendReport:
        self._counters.add(Metric.WAKEUPS_SENT, report.sent)
        self._counters.add(Metric.WAKEUPS_NOT_SENT, report.failed)
        queues = {hint.queue for hint in hints}
        cause = report.error or "the lane gives no cause"
        self._outages.note(queues, report.failed, cause)
        return report


def predecessors_of(new: Sequence[NewRun], done: Sequence[Enqueued]) -> list[RunId]:
    """Return the runs that new ones come after, each once: they are to be watched from now on."""
    if not any(run.after for run in new):
        return []
    known_as = {run.id: answer.run_id for run, answer in zip(new, done, strict=True)}
    named = (
        known_as.get(each, each)
        for run, answer in zip(new, done, strict=True)
        if answer.created
        for each in run.after
    )
    return list(dict.fromkeys(named))


def _outgoing(hints: Iterable[Hint]) -> list[Outgoing]:
    return [
        Outgoing(Wakeup(hint.run_id, hint.queue, hint.traceparent), hint.delay_ms) for hint in hints
    ]


def _nothing_sent(hints: Sequence[Hint], error: Exception) -> SendReport:
    # The type alone: a broker's text may hold what was sent.
    return SendReport(failed=len(hints), error=type(error).__name__)
