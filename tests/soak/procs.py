"""What /proc says of processes: memory, threads, descriptors, processor time, connections."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_ESTABLISHED: Final = "01"
_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process takes; and what the others of its group take together."""

    rss_mb: float
    threads: int
    fds: int
    cpu_s: float
    connections: int = 0
    """Established ones to the database's port."""
    others: int = 0
    others_mb: float = 0.0


def usage_of(pid: int, sockets: frozenset[str] = frozenset(), proc: Path = Path("/proc")) -> Usage:
    """Return what a process takes now.

    Args:
        pid: Which.
        sockets: The inodes of the database's sockets, by `sockets_to`.
        proc: Where the files lie.

    Raises:
        OSError: It has ended.
    """
    fields = _fields(proc / str(pid) / "status")
    fds, mine = 0, 0
    for link in os.scandir(proc / str(pid) / "fd"):
        fds += 1
        with contextlib.suppress(OSError):  # closed meanwhile
            target = os.readlink(link.path)
            mine += target.startswith("socket:[") and target[8:-1] in sockets
    # The name may hold blanks and brackets; what comes behind the last one does not.
    words = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
    cpu_s = (int(words[11]) + int(words[12])) * _TICK_S
    return Usage(int(fields["VmRSS"].split()[0]) / 1024, int(fields["Threads"]), fds, cpu_s, mine)


def groups(proc: Path = Path("/proc")) -> dict[int, list[int]]:
    """Return all processes by their process groups."""
    found: dict[int, list[int]] = defaultdict(list)
    for entry in os.scandir(proc):
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                words = (proc / entry.name / "stat").read_text().rpartition(")")[2].split()
                if words[0] not in ("Z", "X"):
                    found[int(words[2])].append(int(entry.name))
    return found


def sockets_to(port: int, proc: Path = Path("/proc")) -> frozenset[str]:
    """Return the inodes of all established connections to a port of 127.0.0.1."""
    found = set()
    for line in (proc / "net" / "tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == _ESTABLISHED and int(words[2].rpartition(":")[2], 16) == port:
            found.add(words[9])
    return frozenset(found)


def group_usage(
    pid: int,
    by_group: dict[int, list[int]],
    sockets: frozenset[str] = frozenset(),
    proc: Path = Path("/proc"),
) -> Usage | None:
    """Return what the leader of a group takes, and the rest of it; None when it has ended."""
    try:
        own = usage_of(pid, sockets, proc)
    except (OSError, KeyError):  # a process that is ending has no memory
        return None
    count, megabytes = 0, 0.0
    for other in by_group.get(pid, ()):
        if other == pid:
            continue
        with contextlib.suppress(OSError, KeyError):
            memory = _fields(proc / str(other) / "status")["VmRSS"]
            megabytes += int(memory.split()[0]) / 1024
            count += 1
    return Usage(own.rss_mb, own.threads, own.fds, own.cpu_s, own.connections, count, megabytes)


def _fields(path: Path) -> dict[str, str]:
    return {
        name: value.strip()
        for name, _, value in (line.partition(":") for line in path.read_text().splitlines())
    }
