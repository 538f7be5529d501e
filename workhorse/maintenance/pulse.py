"""What a maintenance process knows of itself: whether its loop goes on, and gets an answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

SILENT_S: Final = 120.0
"""A loop that has begun nothing for so long hangs: a step takes 50 s at most, a rest 30 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """How maintenance is."""

    live: bool
    """Whether its loop goes on."""
    ready: bool
    """Whether its last pass got its answers from the store, and is not over."""
    store_answers: bool
    passed_s_ago: float | None
    """When the last pass ended, whatever came of it; None before the first."""
    stopping: bool


class Pulse:
    """Noted by the loop, read by whoever asks for it."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._went_on_at = now()
        self._passed_at: float | None = None
        self._store_answers = False

    def goes_on(self) -> None:
        """Note that the loop begins something: itself, a step or a page."""
        self._went_on_at = self._now()

    def passed(self, *, store_answers: bool) -> None:
        """Note that a pass has ended."""
        self._went_on_at = self._passed_at = self._now()
        self._store_answers = store_answers

    def health(self, *, stopping: bool) -> Health:
        """Return how it is."""
        now, passed_at = self._now(), self._passed_at
        live = now - self._went_on_at < SILENT_S
        return Health(
            live=live,
            ready=live and self._store_answers and not stopping,
            store_answers=self._store_answers,
            passed_s_ago=None if passed_at is None else max(0.0, now - passed_at),
            stopping=stopping,
        )
