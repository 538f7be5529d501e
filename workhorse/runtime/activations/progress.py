"""What a run says of its progress: the latest is written, now and then.

Source: docs/design.md, section 7.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from workhorse.domain.recording import NewProgress
from workhorse.runtime.base.pace import Pace, Timers

EVERY_MS: Final = 100.0
"""The shortest time between two writes for a run."""
_AGAIN_MS: Final = 1_000.0


class LatestProgress:
    """The latest progress of one activation, until it is written. Safe in threads.

    Args:
        ask: Has the writer come for it, soon.
    """

    __slots__ = ("_ask", "_asked", "_latest", "_lock", "_next_ms", "_pace", "_timers")

    def __init__(self, ask: Callable[[], object], *, timers: Timers, pace: Pace) -> None:
        self._ask = ask
        self._timers = timers
        self._pace = pace
        self._lock = threading.Lock()
        self._latest: NewProgress | None = None
        self._asked = False
        self._next_ms = float("-inf")

    def put(self, progress: NewProgress) -> None:
        """Say something new; what was not written until now never is."""
        with self._lock:
            self._latest = progress
            if self._asked:
                return
            self._asked = True
            due_ms = self._next_ms
        if self._pace.now_ms() >= due_ms:
            self._ask()
        else:
            self._timers.at(due_ms, self._ask_soon)

    def take(self) -> NewProgress | None:
        """Return what is to be written now, for the writer; it stays here until it `is_written`."""
        with self._lock:
            self._asked = False
            self._next_ms = self._pace.now_ms() + EVERY_MS
            return self._latest

    def is_written(self, progress: NewProgress) -> None:
        """Note that the store has it."""
        with self._lock:
            if self._latest is progress:
                self._latest = None

    def put_off(self) -> None:
        """Note that it could not be written just now: it is tried again in a second."""
        with self._lock:
            if self._latest is None or self._asked:
                return
            self._asked = True
        self._timers.at(self._pace.now_ms() + _AGAIN_MS, self._ask_soon)

    def drop(self) -> None:
        """Forget what is not written, and ask for nothing any more: the activation has ended."""
        with self._lock:
            self._latest = None
            self._ask = _nothing  # it knows the recorder, which knows this

    def _ask_soon(self) -> None:
        self._ask()


def _nothing() -> None: ...
