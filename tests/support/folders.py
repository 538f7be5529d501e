"""Where throw-away files go."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

_MEMORY = Path("/dev/shm")
_ENOUGH_BYTES = 4 * 1024**3
_SOCKET_ROOM = 80  # of the 107 bytes that a socket's path may have


def quick_root() -> str:
    """Return a folder in memory where there is plenty, else one on the disk.

    On a disk that others keep busy, making a database takes ten times as long.
    """
    if os.access(_MEMORY, os.W_OK | os.X_OK) and shutil.disk_usage(_MEMORY).free >= _ENOUGH_BYTES:
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, _, amount = line.partition(":")
            if name == "MemAvailable" and int(amount.split()[0]) * 1024 >= _ENOUGH_BYTES:
                return str(_MEMORY)
    return disk_root()


def disk_root() -> str:
    """Return a folder on the disk, with a path short enough for a socket below it."""
    folder = tempfile.gettempdir()
    # Root's own temporary folder may be closed to the user that a server runs as.
    fits = os.geteuid() != 0 and len(os.fsencode(folder)) <= _SOCKET_ROOM
    return folder if fits else "/tmp"
