"""Clocks of workers and maintenance are wrong for a while: see `tests.faults.wires.moving`."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, ClassVar

from tests.faults.faults import register
from tests.faults.wires import CLOCK
from tests.faults.wires.moving import FAR_S, SEEN_WITHIN_S
from tools.fault_tools import faketime_library

if TYPE_CHECKING:
    from tests.faults.fleet import Fleet, Member


class _Moved:
    """The clock of one member, or of all of them, is wrong for a while, and then right again."""

    kind: ClassVar[str] = CLOCK
    holds: ClassVar[tuple[float, float]] = (1.0, 3.0)
    by_s: ClassVar[int]

    def __init__(self) -> None:
        self._members: list[Member] = []

    def apply(self, fleet: Fleet, rng: random.Random) -> str:
        if fleet.clocks is None:
            raise RuntimeError(
                "the fleet has the machine's clock: start it with Fleet(clocks=True)"
            )
        everybody = [*fleet.workers, *fleet.maintainers]
        self._members = everybody if rng.random() < 0.3 else [rng.choice(everybody)]
        for member in self._members:
            fleet.clocks.move(member.name, self.by_s)
        time.sleep(SEEN_WITHIN_S)
        names = "all" if self._members == everybody else self._members[0].name
        return f"{names}, {self.by_s / 60:+g} min"

    def heal(self, fleet: Fleet) -> None:
        if fleet.clocks is not None:
            for member in self._members:
                fleet.clocks.move(member.name, 0)


class Ahead(_Moved):
    """Ten minutes ahead."""

    name: ClassVar[str] = "clock moved ahead"
    by_s: ClassVar[int] = FAR_S


class Behind(_Moved):
    """Ten minutes behind."""

    name: ClassVar[str] = "clock moved back"
    by_s: ClassVar[int] = -FAR_S


if faketime_library() is not None:
    register(Ahead)
    register(Behind)
