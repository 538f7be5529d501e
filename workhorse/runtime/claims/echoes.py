"""How many messages to ask a broker for, and when: calls cost, and most messages come too late.

A claim fills up from the queue, so under load scans take most runs before their messages are
received. Such a message is an *echo*: it needs no slot, only to be deleted. To ask for one whenever
a slot is free would cost two calls a run; so while scans find the runs, messages are received once
many of them are probably echoes, and then ten in one call.

It is an estimate. Of each run that was claimed a message was sent, and what was received since is
taken off. Where a queue gives fewer messages than were asked for there are none left, and where it
gives some for which there is no slot they were no echoes: both say that there are fewer messages
than runs, since producers may send one wakeup for many, or that other workers receive them.

Source: docs/design.md, section 4
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from workhorse.domain.sightings import Note
from workhorse.runtime.base.options import LARGEST_CLAIM

ONE_CALL: Final = 10
"""The messages of one call to a broker. Beside a scan more are never received: its slots are not
kept waiting for the calls."""
_MANY: Final = 2 * ONE_CALL
"""So many echoes are worth a call of their own; fewer are left for the next long poll."""
_MOST: Final = 10_000
_MOST_RUNS: Final = 16


class Echoes:
    """The messages of one queue that come too late for a worker; for one thread.

    Args:
        glance_ms: Beside scans, messages are received after so long at the latest: what is due now
            is told by a message, and found by no scan.
    """

    def __init__(self, glance_ms: float) -> None:
        self._glance_ms = glance_ms
        self._runs = 0
        """How many runs were claimed whose messages were not received."""
        self._runs_each = 1
        """How many runs a message stands for, probably."""
        self._came = 0
        self._full = False
        self._more = 0
        self._received_at = float("-inf")

    def beside_scan(self, free: int, now: float) -> int:
        """Return how many messages to receive where a scan is due as well; 0 is not now."""
        if self._expected >= _MANY:
            return ONE_CALL
        glance = now - self._received_at >= self._glance_ms
        return min(ONE_CALL, free + self._expected) if glance else 0

    def limit(self, free: int) -> int:
        """Return how many messages to receive where only they tell of work.

        Args:
            free: The slots that are free. Not more than one call's messages are asked for on their
                account: the claim that follows fills them by a scan.
        """
        expected = self._expected
        wanted = expected if expected >= _MANY else min(ONE_CALL, free + expected)
        return min(LARGEST_CLAIM, max(wanted, self._more))

    def received(self, asked: int, came: int, now: float) -> None:
        """Take in what a receive brought; `claimed` is told next what became of it."""
        self._received_at = now
        self._came = came
        self._full = came >= asked
        if came < min(asked, ONE_CALL):
            self._too_many(2)
        self._runs -= came * self._runs_each

    def claimed(self, runs: int, notes: Mapping[str, int]) -> None:
        """Take in how many runs a claim took, with messages or without.

        Args:
            notes: What was decided about the messages that were received, by how many.
        """
        crowded = notes.get(Note.CROWDED, 0)
        full, self._full = self._full, False
        # Full of nothing but echoes: there are more than were expected.
        late = full and set(notes) == {Note.STALE}
        self._more = min(LARGEST_CLAIM, max(ONE_CALL, self._more * 2)) if late else 0
        if crowded:
            good = self._came - crowded
            self._too_many(self._came // max(1, good) if self._came >= ONE_CALL else 2)
            return
        if full:
            self._runs_each = max(1, self._runs_each // 2)
        self._runs = max(0, min(_MOST, self._runs + runs))

    @property
    def _expected(self) -> int:
        return self._runs // self._runs_each

    def _too_many(self, factor: int) -> None:
        """Take note that fewer messages were there than was thought."""
        self._runs = 0
        self._runs_each = min(_MOST_RUNS, self._runs_each * max(2, factor))
