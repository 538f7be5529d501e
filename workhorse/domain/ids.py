"""Run ids: UUIDs of version 7, drawn by the producer, kept as lower-case text with hyphens."""

from __future__ import annotations

import os
import threading
import time
import uuid
from typing import Final, NewType

from workhorse.domain.showing import shown
from workhorse.errors import InvalidNameError

RunId = NewType("RunId", str)
"""A run's id, e.g. `0197c5a0-7b5e-7c7b-9f5d-1d4c3a1b2c3d`."""


_VARIANT: Final = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
"""What the first random digit becomes: its upper two bits say which kind of UUID it is."""


class _Sequence:
    """Draws ids that rise within a process, so that runs enqueued one by one sort in that order.

    The 12 bits after the version count within a millisecond (RFC 9562, method 1); when they run
    out, the time part moves on by one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begin(0, 0)

    def draw(self) -> str:
        # Drawn anew for each id, never from a store of them: a copy of the process has that too.
        random = os.urandom(8).hex()
        now = time.time_ns() // 1_000_000
        with self._lock:
            if now > self._millis:
                self._begin(now, int.from_bytes(os.urandom(2), "big") & 0x3FF)
            else:
                self._count += 1
                if self._count > 0xFFF:
                    self._begin(self._millis + 1, 0)
            head, count = self._head, self._count
        return f"{head}{count:03x}-{_VARIANT[random[0]]}{random[1:4]}-{random[4:]}"

    def _begin(self, millis: int, count: int) -> None:
        digits = f"{millis & (2**48 - 1):012x}"
        self._millis, self._count, self._head = millis, count, f"{digits[:8]}-{digits[8:]}-7"


_sequence = _Sequence()
os.register_at_fork(after_in_child=lambda: _sequence.__init__())  # type: ignore[misc]


def new_run_id() -> RunId:
    """Draw a new id. Ids of one process rise; ids of two processes never meet."""
    return RunId(_sequence.draw())


def parse_run_id(text: object) -> RunId:
    """Return a run id in its canonical form, whatever form a person typed it in."""
    try:
        if isinstance(text, str | uuid.UUID):
            return RunId(str(uuid.UUID(str(text))))
    except ValueError:
        pass
    raise InvalidNameError(
        f"run id {shown(text)} is not a UUID; `workhorse runs list` shows the ids"
    )
