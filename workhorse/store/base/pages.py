"""What a bounded page of maintenance did, and how large it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from workhorse.domain.hints import Hint

PAGE: Final = 100


@dataclass(slots=True)
class Swept:
    """What a page did: how many runs, whether it was full, and the wakeups that must follow."""

    count: int = 0
    full: bool = False
    hints: list[Hint] = field(default_factory=list)
