"""Clocks of processes that are moved while they run; the monotonic one is left alone.

A library is loaded into each process, which reads from a file how far its clock is off: so a clock
is moved without a restart, as an operator or a time server does. It comes from PyPI's libfaketime:
`python -m tools.fault_tools install libfaketime`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest

from tools.fault_tools import INSTALL, faketime_library

MISSING: Final = f"libfaketime is not here; get it: {INSTALL.format('libfaketime')}"
FAR_S: Final = 600
"""Ten minutes: twice what SQS allows a signature, twenty leases."""
SEEN_WITHIN_S: Final = 1.0
"""How soon a process goes by a clock that was moved."""
_SHARED: Final = Path("/dev/shm")


def needed() -> pytest.MarkDecorator:
    """Return the mark of tests that are left out where there is no libfaketime."""
    return pytest.mark.skipif(faketime_library() is None, reason=MISSING)


class Clocks:
    """The clocks of a fleet's members.

    Args:
        folder: Where the files are that say how far they are off.
        members: Whose clocks there are.
    """

    def __init__(self, folder: Path, members: Iterable[str]) -> None:
        library = faketime_library()
        if library is None:
            raise RuntimeError(MISSING)
        self._library = library
        self._files = {name: folder / f"clock-{at}" for at, name in enumerate(members)}
        for name in self._files:
            self.move(name, 0)

    def env(self, member: str) -> dict[str, str]:
        """Return what a member's environment says of it."""
        return {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._files[member]),
            "FAKETIME_CACHE_DURATION": str(int(SEEN_WITHIN_S)),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }

    def move(self, member: str, seconds: int) -> None:
        """Set a member's clock so far ahead of the right time; within a second it goes by that."""
        file = self._files[member]
        fresh = file.with_suffix(".new")
        fresh.write_text(f"{seconds:+d}\n")
        fresh.replace(file)  # at once: half a number would be another one


def forget(pids: Iterable[int]) -> None:
    """Remove what the library leaves behind of processes that were killed."""
    for pid in pids:
        for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
            with contextlib.suppress(OSError):
                (_SHARED / name).unlink()
