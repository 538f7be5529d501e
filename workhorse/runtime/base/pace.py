"""A worker's own clock, and its pauses; tests put a clock that they move in its place.

It measures how long things take in this process and decides nothing about leases or due times: that
is the database's clock alone.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

# A laptop's lid, or a paused virtual machine, stops CLOCK_MONOTONIC while leases run out.
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Pace(Protocol):
    """What tells a worker how time goes."""

    def now_ms(self) -> float:
        """Return milliseconds since some moment in the past; never backwards."""
        ...

    def pause(self, until: threading.Event, ms: float) -> bool:
        """Wait until the event is set, or `ms` have gone by; answer whether it is set."""
        ...


class Timers(Protocol):
    """Calls something later."""

    def at(self, when_ms: float, call: Callable[[], None]) -> None:
        """Have `call` called at a time of the worker's own clock; it must be quick."""
        ...


class SystemPace:
    """The system's clock; it goes on while the machine sleeps, where the system can tell."""

    def now_ms(self) -> float:
        """Return milliseconds since the machine was started."""
        return time.clock_gettime(_CLOCK) * 1000

    def pause(self, until: threading.Event, ms: float) -> bool:
        """Wait until the event is set, or `ms` have gone by; answer whether it is set."""
        return until.wait(max(0.0, ms) / 1000)


class Backoff:
    """How long to rest after the first failure in a row, the second, ...: doubling, with jitter.

    The jitter keeps a fleet that lost its database from coming back as one.
    """

    def __init__(self, first_ms: float, longest_ms: float) -> None:
        self._first = first_ms
        self._longest = longest_ms
        self._bound = first_ms
        self._draw = random.Random()  # noqa: S311 - jitter, not a secret

    def next_ms(self) -> float:
        """Return the next rest: between half its bound and the bound."""
        bound, self._bound = self._bound, min(self._bound * 2, self._longest)
        return bound * (0.5 + self._draw.random() / 2)

    def reset(self) -> None:
        """Begin at the first rest again."""
        self._bound = self._first
