"""What handlers and producers say of themselves: one line each, on the disk before they go on.

It knows nothing of the product. Times are those of CLOCK_MONOTONIC, which all processes of a host
share, whatever becomes of their wall clocks.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

HANDLERS: Final = "handlers.jsonl"
PRODUCERS: Final = "producers.jsonl"

START: Final = "start"
EFFECT: Final = "effect"
END: Final = "end"
ERROR: Final = "error"
"""The handler raises, as it was told to."""
PAUSE: Final = "pause"
"""The handler was ended from within: at a wait, or by a stop."""
GAP: Final = "gap"
"""Its process did not run, or its interpreter ran nothing, for a time: `seconds`."""
WRONG: Final = "wrong"
"""Something came to pass that must not; `why` says what."""


@dataclass(frozen=True, slots=True)
class Line:
    """What one activation did; `nonce` tells it from all others, also where a fence came twice."""

    at: float
    group: int
    what: str
    run: str = ""
    fence: int = 0
    nonce: str = ""
    task: str = ""
    why: str = ""
    seconds: float = 0.0


class Ledger:
    """Appends lines to a file that several processes share. Safe in threads."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        # Whoever forks keeps writing under the number of the group, which is the worker's.
        self._group = os.getpgrp()

    def write(self, what: str, **fields: Any) -> None:
        """Append a line; it is on the disk when this returns."""
        line = Line(at=time.monotonic(), group=self._group, what=what, **fields)
        self.append(asdict(line))

    def append(self, fields: dict[str, Any]) -> None:
        """Append fields of any sort, as a line."""
        # One write: lines of several processes do not mix.
        os.write(self._file, json.dumps(fields, separators=(",", ":")).encode() + b"\n")
        os.fsync(self._file)


class Pulse:
    """Notes when this process did not run: it was frozen, starved, or somebody held the GIL.

    Args:
        ledger: Where gaps are noted.
        gap_s: The shortest that counts.
    """

    def __init__(self, ledger: Ledger, gap_s: float) -> None:
        self._ledger = ledger
        self._gap_s = gap_s
        threading.Thread(target=self._beat, daemon=True, name="faults-pulse").start()

    def _beat(self) -> None:
        last = time.monotonic()
        while True:
            time.sleep(0.1)
            now = time.monotonic()
            if now - last > self._gap_s:
                self._ledger.write(GAP, seconds=now - last)
            last = now


def read(path: Path) -> list[Line]:
    """Return all whole lines; the last one may be half written where its writer was killed."""
    return [Line(**fields) for fields in read_fields(path)]


def read_fields(path: Path) -> Iterator[dict[str, Any]]:
    """Return the fields of all whole lines."""
    if not path.exists():
        return
    for line in path.read_bytes().splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue
