"""The handlers' own record of what they did: an append-only file, synced line by line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

NAME: Final = "ledger.jsonl"
START: Final = "start"
END: Final = "end"
ERROR: Final = "error"


@dataclass(frozen=True, slots=True)
class Mark:
    """One activation: the run, and the fence of its lease."""

    run: str
    fence: int
    task: str


@dataclass(frozen=True, slots=True)
class Line:
    """What one process did in one activation."""

    mark: Mark
    pid: int
    event: str


class Ledger:
    """Appends lines to a file that several processes share, and reads them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_to = 0
        self._lines: list[Line] = []

    @classmethod
    def here(cls) -> Self:
        """Return the ledger of the working directory, which is the demo's own folder."""
        return cls(Path(NAME))

    @contextmanager
    def activation(self, mark: Mark) -> Iterator[None]:
        """Write `start` now, then `end`, or `error` where the handler raises."""
        self._write(mark, START)
        try:
            yield
        except Exception:
            self._write(mark, ERROR)
            raise
        self._write(mark, END)

    def lines(self) -> list[Line]:
        """Return all lines so far; what was read before is not read again."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read_to)
                new = file.read()
        except FileNotFoundError:
            return []
        whole = new[: new.rfind(b"\n") + 1]
        self._read_to += len(whole)
        for text in whole.splitlines():
            run, fence, task, pid, event = json.loads(text)
            self._lines.append(Line(Mark(run, fence, task), pid, event))
        return self._lines

    def _write(self, mark: Mark, event: str) -> None:
        line = json.dumps([mark.run, mark.fence, mark.task, os.getpid(), event]) + "\n"
        # One write to a file opened for appending: lines of several processes do not mix.
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, line.encode())
            os.fsync(file)
        finally:
            os.close(file)


def in_hand(lines: list[Line], pid: int) -> list[Mark]:
    """Return the activations that a process has started and not ended."""
    started: dict[Mark, None] = {}
    for line in lines:
        if line.pid != pid:
            continue
        if line.event == START:
            started[line.mark] = None
        else:
            started.pop(line.mark, None)
    return list(started)
