"""What processes have spent, read from /proc. Standard library alone: peers use it too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def server_cpu_s(postmaster: int) -> float:
    """Return the CPU seconds a PostgreSQL server has used: itself, its living and ended children.

    Args:
        postmaster: The process id of its first process; 0 for none, which has used nothing.
    """
    if not postmaster:
        return 0.0
    own = _fields(postmaster)
    if own is None:
        raise RuntimeError(f"there is no process {postmaster}")
    # User and system time, then those of children that have ended and were waited for.
    ticks = sum(map(int, own[11:15]))
    for child in _children(postmaster):
        if (fields := _fields(child)) is not None:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS_PER_S


def rss_mb(process: int | None = None) -> float:
    """Return the resident memory of a process, by default this one, in MB (10^6 bytes)."""
    pages = int(Path(f"/proc/{process or os.getpid()}/statm").read_text().split()[1])
    return pages * _PAGE_BYTES / 1e6


def _children(parent: int) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _fields(int(entry.name))
            if fields is not None and int(fields[1]) == parent:
                yield int(entry.name)


def _fields(process: int) -> list[str] | None:
    """Return the fields of its `stat` that follow the name; None where it has gone."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(") ")[2].split()
