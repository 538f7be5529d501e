"""The handlers' own record of what they did: an append-only file, synced line by line.

It stands for the world outside, too. A provider's book has a line for each request, and a request
whose key is in it already is known again.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

NAME: Final = "ledger.jsonl"
START: Final = "start"
END: Final = "end"
ERROR: Final = "error"
PAUSE: Final = "pause"
"""The handler has come to a wait, or was told to end."""
EFFECT: Final = "effect"
"""A provider was asked for something: this cannot be taken back."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One activation: the run, and the fence of its lease."""

    run: str
    fence: int
    task: str


@dataclass(frozen=True, slots=True)
class Line:
    """What one process did in one activation; an effect has the stage's name and its key."""

    mark: Mark
    pid: int
    event: str
    stage: str = ""
    key: str = ""


class Ledger:
    """Appends lines to a file that several processes share, and reads them. Safe in threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_to = 0
        self._lines: list[Line] = []
        self._lock = threading.Lock()

    @classmethod
    def here(cls) -> Self:
        """Return the ledger of the working directory, which is the demo's own folder."""
        return cls(Path(NAME))

    @contextmanager
    def activation(self, mark: Mark) -> Iterator[None]:
        """Write `start` now, then `end`, `pause`, or `error` where the handler raises."""
        self.write(mark, START)
        try:
            yield
        except Exception:
            self.write(mark, ERROR)
            raise
        except BaseException:  # how a wait ends an activation
            self.write(mark, PAUSE)
            raise
        self.write(mark, END)

    def effect(self, mark: Mark, stage: str, key: str) -> bool:
        """Take a request as a provider would; answer whether it was known, and not done again."""
        known = any(line.key == key for line in self.lines() if line.event == EFFECT)
        self.write(mark, EFFECT, stage, key)
        return known

    def lines(self) -> list[Line]:
        """Return all lines so far; what was read before is not read again."""
        with self._lock:
            return list(self._read())

    def write(self, mark: Mark, event: str, stage: str = "", key: str = "") -> None:
        """Append a line; it is on the disk when this returns."""
        fields = [mark.run, mark.fence, mark.task, os.getpid(), event, stage, key]
        line = json.dumps(fields) + "\n"
        # One write to a file opened for appending: lines of several processes do not mix.
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, line.encode())
            os.fsync(file)
        finally:
            os.close(file)

    def _read(self) -> list[Line]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._read_to)
                new = file.read()
        except FileNotFoundError:
            return self._lines
        whole = new[: new.rfind(b"\n") + 1]
        self._read_to += len(whole)
        for text in whole.splitlines():
            run, fence, task, pid, *rest = json.loads(text)
            self._lines.append(Line(Mark(run, fence, task), pid, *rest))
        return self._lines


def in_hand(lines: list[Line], pid: int) -> list[Mark]:
    """Return the activations that a process has started and not ended."""
    started: dict[Mark, None] = {}
    for line in lines:
        if line.pid != pid:
            continue
        if line.event == START:
            started[line.mark] = None
        elif line.event != EFFECT:
            started.pop(line.mark, None)
    return list(started)
