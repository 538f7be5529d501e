"""Tells of sends that fail: when that begins, and when it is over, however many there were."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from typing import Final

from workhorse.telemetry import get_logger

_log = get_logger("wakeups")

APART_S: Final = 60.0
"""A broker that fails now and then is told of once in this time."""
_CAUSES: Final = 5
"""So many causes of one outage are told; each queue may have its own."""


class Outages:
    """Follows the sends of a process: one outage at a time, of all queues that are not served.

    A lane says of a send how many of its wakeups failed, and not of which queues. So a send that
    failed in part puts all its queues in doubt, and one of a queue's that succeeded clears it.

    Args:
        now: Monotonic seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._in_doubt: set[str] = set()
        self._causes: set[str] = set()
        self._told_at = float("-inf")
        self._began_at = 0.0
        self._tells = False
        self._sends = self._wakeups = 0

    def note(self, queues: Collection[str], failed: int, cause: str) -> None:
        """Take in how a send went.

        Args:
            queues: Those of its wakeups.
            failed: How many were not sent.
            cause: Why, where some were not.
        """
        if not failed and not self._in_doubt:
            return  # the usual case
        with self._lock:
            if failed:
                self._failed(queues, failed, cause)
            else:
                self._succeeded(queues)

    def _failed(self, queues: Collection[str], failed: int, cause: str) -> None:
        now = self._now()
        if not self._in_doubt:
            self._began_at, self._sends, self._wakeups = now, 0, 0
            self._causes.clear()
            self._tells = False
        self._in_doubt.update(queues)
        self._sends += 1
        self._wakeups += failed
        if not self._tells and now - self._told_at >= APART_S:
            self._tells, self._told_at = True, now
        if self._tells and cause not in self._causes and len(self._causes) < _CAUSES:
            self._causes.add(cause)
            _log.warning(
                "%d wakeups were not sent (%s); a scan or the top-up finds their runs. It is told "
                "once when wakeups are sent again",
                failed,
                cause,
            )

    def _succeeded(self, queues: Collection[str]) -> None:
        if not self._in_doubt:
            return  # another thread was first
        self._in_doubt.difference_update(queues)
        if not self._in_doubt and self._tells:
            _log.warning(
                "wakeups are sent again; %d in %d sends were not, in %.0f s",
                self._wakeups,
                self._sends,
                self._now() - self._began_at,
            )
