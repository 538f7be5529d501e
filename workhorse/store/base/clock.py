"""A clock for tests: it stands still until it is moved."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta


class ManualClock:
    """Stands for the database's clock in a store that is opened with it.

    Args:
        start: Where it begins; aware.
    """

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._lock = threading.Lock()
        self._now = start.astimezone(UTC)

    @property
    def now(self) -> datetime:
        """The time it shows, in UTC."""
        with self._lock:
            return self._now

    def advance(self, by: timedelta | int) -> datetime:
        """Move it by a timedelta, or by milliseconds; negative moves it back."""
        step = by if isinstance(by, timedelta) else timedelta(milliseconds=by)
        with self._lock:
            self._now += step
            return self._now
