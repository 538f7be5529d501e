"""Ends the demo's processes and removes its folder when the demo itself was killed.

Usage: python -I -S guardian.py, with lines `group PID`, `ended PID` and `folder PATH` on standard
input. At its end, which comes with the end of the demo whatever ended it, what is left is killed
and removed. After a clean end nothing is left, and the guardian just ends.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time


def watch() -> None:
    """Read what is entrusted until standard input ends; then end all of it."""
    groups: set[int] = set()
    folders: list[str] = []
    for line in sys.stdin:
        what, _, value = line.rstrip("\n").partition(" ")
        if what == "group":
            groups.add(int(value))
        elif what == "ended":
            groups.discard(int(value))
        elif what == "folder":
            folders.append(value)
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    for folder in folders:
        # A process that is being killed may still write for a moment.
        for _ in range(50):
            shutil.rmtree(folder, ignore_errors=True)
            if not os.path.exists(folder):
                break
            time.sleep(0.1)


if __name__ == "__main__":
    # Ctrl-C at the terminal is the demo's to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watch()
