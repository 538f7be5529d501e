"""Ends what the tests started when they themselves were killed.

A fixture's teardown does not run after SIGKILL, so a small process of its own waits for the end of
a pipe whose other end only the test process holds. It then kills the processes and removes the
folders that were entrusted to it. (PR_SET_PDEATHSIG would do less: it follows the thread that
started a child, forgets children that changed their user, and removes no folder.)
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path


class Guardian:
    """The test process's side. Use the one that `guardian()` returns."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # In a session of its own: a Ctrl-C at the terminal reaches the tests, not their guardian.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def watch_group(self, group: int, with_signal: signal.Signals = signal.SIGKILL) -> None:
        """Signal a process group should this process be killed."""
        self._tell("watch", "group", group, int(with_signal))

    def release_group(self, group: int) -> None:
        """Forget a process group: it has ended."""
        self._tell("release", "group", group, 0)

    def watch_folder(self, folder: Path) -> None:
        """Remove a folder should this process be killed."""
        self._tell("watch", "folder", str(folder), 0)

    def release_folder(self, folder: Path) -> None:
        """Forget a folder: it was removed."""
        self._tell("release", "folder", str(folder), 0)

    def close(self) -> None:
        """Let the guardian do what is left, and end."""
        with self._lock:
            if self._process.stdin is not None:
                self._process.stdin.close()
                self._process.stdin = None
                self._process.wait(30)

    def _tell(self, *words: str | int) -> None:
        with self._lock:
            if self._process.stdin is None:
                return
            self._process.stdin.write(json.dumps(words).encode() + b"\n")
            self._process.stdin.flush()


_guardian: Guardian | None = None
_guardian_lock = threading.Lock()


def guardian() -> Guardian:
    """Return this process's guardian; it starts when it is first asked for."""
    global _guardian
    with _guardian_lock:
        if _guardian is None:
            _guardian = Guardian()
            atexit.register(_guardian.close)
        return _guardian


def watch(lines: list[bytes] | None = None) -> None:
    """Do the guardian's work: read what is entrusted until the pipe ends, then end all of it."""
    trusted: dict[tuple[str, str | int], int] = {}
    for line in sys.stdin.buffer if lines is None else lines:
        act, kind, key, argument = json.loads(line)
        if act == "watch":
            trusted[kind, key] = argument
        else:
            trusted.pop((kind, key), None)
    groups = [(int(key), how) for (kind, key), how in trusted.items() if kind == "group"]
    for group, how in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, how)
    deadline = time.monotonic() + 10
    while any(_alive(group) for group, _ in groups) and time.monotonic() < deadline:
        time.sleep(0.02)
    for group, _ in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    for kind, key in trusted:
        if kind == "folder":
            _remove(str(key))


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _remove(folder: str) -> None:
    # A process that is ending may still write to its folder for a moment.
    for _ in range(100):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.exists(folder):
            return
        time.sleep(0.05)


if __name__ == "__main__":
    watch()
