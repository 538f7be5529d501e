"""What must follow a commit: a wakeup for each run that it made claimable, or will."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from workhorse.domain.ids import RunId


@dataclass(frozen=True, slots=True)
class Hint:
    """A wakeup that is to be sent once the transaction that returned it has committed."""

    run_id: RunId
    queue: str
    delay_ms: int = 0
    traceparent: str | None = None


Reach: TypeAlias = Callable[[str], int]
"""How far ahead, in milliseconds, a delayed wakeup can be sent for a queue."""


def no_reach(queue: str) -> int:
    """Say that no wakeup can be delayed: every timer waits for maintenance's pass."""
    return 0
