"""One fault at a time, now and then: each in its turn, in an order of the seed's."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Final

from tests.faults.faults import FAULTS, Fault, broker, contention, postgres, setting_back, signals
from tests.faults.plan import Step

_PARTS: Final = {
    signals.__name__: "workers",
    postgres.__name__: "database",
    setting_back.__name__: "database",
    contention.__name__: "database",
    broker.__name__: "broker",
}
PARTS: Final = tuple(dict.fromkeys(_PARTS.values()))
"""What may be broken."""


def known_faults() -> list[type[Fault]]:
    """Return the faults that need nothing between the fleet's members and its parts."""
    return [fault for fault in FAULTS if fault.__module__ in _PARTS]


def part_of(fault: type[Fault]) -> int:
    """Return what it breaks, as an index into `PARTS`."""
    return PARTS.index(_PARTS[fault.__module__])


def draw_modest_plan(
    seed: int,
    faults: Iterable[type[Fault]],
    *,
    seconds: float,
    every_s: float = 15.0,
    first_s: float = 60.0,
) -> list[Step]:
    """Return the steps of a plan, in order.

    Args:
        seed: The same seed, faults and times give the same plan.
        faults: Which there are; each comes once before one comes twice.
        seconds: How long it takes; the last minute, or tenth, has none.
        every_s: How far steps are apart, two thirds to four thirds of it.
        first_s: When the first one comes.
    """
    draw = random.Random(f"soak {seed}")
    known = list(faults)
    last = seconds - min(60.0, seconds / 10)
    steps: list[Step] = []
    turn: list[type[Fault]] = []
    at = first_s
    while known and at < last:
        if not turn:
            turn = draw.sample(known, len(known))
        fault = turn.pop()
        low, high = fault.holds
        holds_s = round(draw.uniform(low, high), 1)
        steps.append(Step(round(at, 1), fault.kind, fault.name, draw.getrandbits(32), holds_s))
        at += draw.uniform(every_s * 2 / 3, every_s * 4 / 3)
    return steps
