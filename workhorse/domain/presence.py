"""What a process says of itself while it is alive, and how others see it.

Source: docs/design.md, section 9; docs/adr/0024-processes-that-beat.md
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

BEAT_MS: Final = 10_000
"""How often a process that goes on for long says that it is alive."""
BEATS_MISSED: Final = 3
"""After so many beats that did not come a process is not taken for alive."""
KEPT_MS: Final = 3_600_000
"""For how long after its last beat a process is still listed."""


class ProcessKind(StrEnum):
    """What a process does."""

    WORKER = "worker"
    MAINTENANCE = "maintenance"
    FUNCTION = "function"
    """A worker that lives in invocations, as on Lambda, and beats in them alone."""


class ProcessState(StrEnum):
    """How a process is, by its last beat and the database's clock."""

    LIVE = "live"
    STOPPING = "stopping"
    """It is alive, and claims nothing more."""
    IDLE = "idle"
    """A function without an invocation just now, which is well."""
    LATE = "late"
    """Its beats do not come: it died, is frozen, or does not reach the database."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What a process says of itself.

    Args:
        key: Its own for as long as it lives: two processes of one id are two. One that is started
            anew for each piece of work may always use the same.
        id: What people call it: a worker's id.
        every_ms: How often it means to beat.
    """

    key: str
    id: str
    kind: ProcessKind
    host: str
    pid: int
    version: str
    build: str = ""
    lane: str = ""
    queues: tuple[str, ...] = ()
    slots: int = 0
    every_ms: int = BEAT_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessView:
    """A process as its last beat left it. Instants are the database's."""

    key: str
    id: str
    kind: ProcessKind
    state: ProcessState
    host: str
    pid: int
    version: str
    build: str
    lane: str
    queues: tuple[str, ...]
    slots: int
    every_ms: int
    started_at: datetime
    beat_at: datetime
    age_ms: int
    """Since the last beat; below zero where the database's clock was set back."""


def state_of(kind: ProcessKind, *, age_ms: int, every_ms: int, stopping: bool) -> ProcessState:
    """Return how a process is, by the age of its last beat."""
    bound = BEATS_MISSED * every_ms
    # A beat from the future was written by a clock that was ahead, and one of a process that is
    # alive would be corrected by its next.
    if not -bound < age_ms < bound:
        return ProcessState.IDLE if kind is ProcessKind.FUNCTION else ProcessState.LATE
    return ProcessState.STOPPING if stopping else ProcessState.LIVE
