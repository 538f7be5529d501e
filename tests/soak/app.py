"""The app of the soak's workers: that of the fault suite, whose claims are timed.

    python -m workhorse.cli --app tests.soak.app:app worker

What a claim takes is written as a worker sees it: its turn at the worker's connections included.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any, Final

from tests.faults.handlers import FOLDER, app
from workhorse.runtime.claims.claimer import Claimer

CLAIMS: Final = "claims.txt"
"""A line a claim: when it was answered by CLOCK_MONOTONIC, the ms that it took, its runs."""
_FLUSH_S: Final = 1.0


class Timings:
    """Writes what claims take into a file that all workers share.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._lock = threading.Lock()
        self._lines: list[str] = []

    def note(self, began: float, runs: int) -> None:
        """Note a claim that has just been answered."""
        now = time.monotonic()
        with self._lock:
            self._lines.append(f"{now:.3f} {(now - began) * 1000:.3f} {runs}\n")

    def flush(self) -> None:
        """Write what was noted, at once: lines of several processes do not mix."""
        with self._lock:
            lines, self._lines = self._lines, []
        if lines:
            os.write(self._file, "".join(lines).encode())

    def keep_flushing(self) -> None:
        """Write once a second, for ever, in a thread of its own."""
        threading.Thread(target=self._go_on, name="soak-timings", daemon=True).start()

    def _go_on(self) -> None:
        while True:
            time.sleep(_FLUSH_S)
            self.flush()


def read_timings(path: Path) -> list[tuple[float, float, int]]:
    """Return all claims: when, how many ms, how many runs."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text().splitlines():
        words = line.split()
        if len(words) == 3:
            found.append((float(words[0]), float(words[1]), int(words[2])))
    return found


def time_claims(timings: Timings) -> None:
    """Have each claim of this process noted; one without an answer is not."""
    ask = Claimer._ask

    def timed(claimer: Claimer, *arguments: Any, **more: Any) -> Any:
        began = time.monotonic()
        answer = ask(claimer, *arguments, **more)
        timings.note(began, len(answer.runs))
        return answer

    vars_of: Any = Claimer
    vars_of._ask = timed


if os.environ.get("FAULTS_ROLE") == "worker":
    _timings = Timings(FOLDER / CLAIMS)
    _timings.keep_flushing()
    time_claims(_timings)

__all__ = ["app"]
