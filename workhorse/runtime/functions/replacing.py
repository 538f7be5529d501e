"""Wakeups that are sent in place of messages that a function was handed.

A function cannot say when a message is to be shown again: it keeps it for the queue's whole
visibility time-out, or lets it go. So what should come back earlier is sent anew, with its delay,
and the old message is let go; nothing counts against its receives.

Source: docs/design.md, section 5; docs/adr/0023-invocations.md
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from workhorse.domain.ids import RunId
from workhorse.domain.sightings import Note, ShowAgain
from workhorse.ports import Lane, Message, Outgoing, Wakeup
from workhorse.runtime.claims.receipts import Decision
from workhorse.runtime.functions.remaining import TimeLeft
from workhorse.telemetry import Counters, Metric, get_logger

_log = get_logger("function")

_AT_A_TIME: Final = 10
_IN_VAIN: Final = 2
"""After so many calls in a row that sent nothing, none is made any more: each may take seconds."""


class Replacements:
    """Sends what should come back anew; knows which messages the broker has to keep instead."""

    def __init__(self, lane: Lane, counters: Counters, time: TimeLeft) -> None:
        self._lane = lane
        self._counters = counters
        self._time = time
        self._in_vain = 0
        self.kept: list[Message] = []
        """What could not be sent anew."""

    def take(self, decisions: Iterable[Decision]) -> None:
        """Send anew what was decided to come back; blocks for seconds at most. Never raises.

        A broker that does not answer, or slowly, takes no time that the invocation's end needs.
        """
        anew: dict[RunId, tuple[Outgoing, list[Message]]] = {}
        for decision in decisions:
            if not isinstance(decision.fate, ShowAgain):
                continue
            content = decision.message.content
            if not isinstance(content, Wakeup):  # of a newer format: it cannot be written here
                self.kept.append(decision.message)
            elif decision.fate.after_ms > 0 and self._lane.reach_ms(content.queue) <= 0:
                # A FIFO queue delays no single message. The run of an early one is promoted, and
                # its wakeup sent then; for the others the visibility time-out is the delay.
                if decision.note != Note.EARLY:
                    self.kept.append(decision.message)
            else:
                outgoing = Outgoing(_anew(content, decision.note), decision.fate.after_ms)
                anew.setdefault(content.run_id, (outgoing, []))[1].append(decision.message)
        wanted = list(anew.values())
        for start in range(0, len(wanted), _AT_A_TIME):
            self._send(wanted[start : start + _AT_A_TIME])

    def _send(self, wanted: Sequence[tuple[Outgoing, list[Message]]]) -> None:
        failed, error = self._try([outgoing for outgoing, _ in wanted])
        if failed and failed < len(wanted):
            # Which ones were taken is not said. Those come twice now, which does no harm.
            lost = []
            for each in wanted:
                failed, error = self._try([each[0]])
                if failed:
                    lost.append(each)
            wanted = lost
        elif not failed:
            return
        if wanted:
            _log.warning(
                "%d messages could not be sent anew (%s); the queue shows them again after its "
                "visibility time-out",
                len(wanted),
                error,
            )
        self.kept += [message for _, messages in wanted for message in messages]

    def _try(self, outgoing: Sequence[Outgoing]) -> tuple[int, str]:
        if self._in_vain >= _IN_VAIN or not self._time.may_send():
            return len(outgoing), "there is no time for more calls that may fail"
        try:
            report = self._lane.send(outgoing)
        except Exception as error:  # noqa: BLE001 - the messages are kept, whatever it was
            self._in_vain += 1
            self._counters.add(Metric.WAKEUPS_NOT_SENT, len(outgoing))
            return len(outgoing), type(error).__name__
        self._in_vain = 0 if report.sent else self._in_vain + 1
        self._counters.add(Metric.WAKEUPS_SENT, report.sent)
        self._counters.add(Metric.WAKEUPS_NOT_SENT, report.failed)
        return report.failed, report.error or "the lane gives no cause"


def _anew(wakeup: Wakeup, note: str) -> Wakeup:
    return replace(wakeup, missed=wakeup.missed + 1) if note == Note.UNSEEN else wakeup
