"""A lane that carries nothing and keeps what was sent, for tests to look at."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from workhorse.domain.findings import Finding
from workhorse.domain.ids import RunId
from workhorse.domain.sightings import Fate
from workhorse.ports import Message, Outgoing, SendReport

REACH_MS: Final = 900_000
"""As far as SQS delays a message, so that timers go the way that they go there."""


@dataclass(frozen=True, slots=True)
class SentWakeup:
    """A wakeup that was sent, at an instant of the kit's clock, to arrive after `delay`."""

    run_id: RunId
    queue: str
    delay: timedelta
    at: datetime


class CapturingLane:
    """Keeps wakeups in a list. Workers find runs by scan, as they do where wakeups are lost.

    Args:
        now: Tells the time.
    """

    carries_messages = False

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._closed = threading.Event()
        self.sent: list[SentWakeup] = []
        """What was sent, in order."""

    def send(self, outgoing: Sequence[Outgoing]) -> SendReport:
        """Keep wakeups."""
        at = self._now()
        self.sent += [
            SentWakeup(
                each.wakeup.run_id, each.wakeup.queue, timedelta(milliseconds=each.delay_ms), at
            )
            for each in outgoing
        ]
        return SendReport(sent=len(outgoing))

    async def send_async(self, outgoing: Sequence[Outgoing]) -> SendReport:
        """As `send`, which does not block."""
        return self.send(outgoing)

    def receiver(self, queue: str) -> _Receiver:
        """Return a receiver that has no messages."""
        return _Receiver(self._closed)

    def reach_ms(self, queue: str) -> int:
        """Return 15 minutes."""
        return REACH_MS

    def backlog(self, queue: str) -> int | None:
        """Return None: there are no messages to count."""
        return None

    def check(self, queue: str) -> Sequence[Finding]:
        """Return nothing: no broker, no trouble."""
        return ()

    def close(self) -> None:
        """End the waits of receivers; what was sent is kept."""
        self._closed.set()


class _Receiver:
    """Waits, and never has a message."""

    def __init__(self, lane_closed: threading.Event) -> None:
        self._lane_closed = lane_closed
        self._closed = threading.Event()

    def receive(self, limit: int, wait_ms: int) -> Sequence[Message]:
        """Wait."""
        if not self._lane_closed.is_set():
            self._closed.wait(wait_ms / 1000)
        return []

    def settle(self, fates: Sequence[tuple[Message, Fate]]) -> None:
        """Do nothing: there are no messages."""

    def close(self) -> None:
        """End a wait that is under way."""
        self._closed.set()
