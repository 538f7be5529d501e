"""What breaks when: drawn from a seed, so that it can be printed, and done again."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.faults.faults import Fault

EVERY_S: Final = 20.0
"""How far apart faults of one kind are, so that a fleet has time to work between those of all."""
AT_LEAST: Final = 5
"""So often each fault comes, however many share their kind's time."""


@dataclass(frozen=True, slots=True)
class Step:
    """A fault, not before `at` seconds from the start, and what it draws its targets from."""

    at: float
    kind: str
    fault: str
    seed: int
    holds_s: float

    def __str__(self) -> str:
        return (
            f"{self.at:8.1f} s  {self.kind:9} {self.fault} (held {self.holds_s:.1f} s, {self.seed})"
        )


def draw_plan(
    seed: int,
    faults: Iterable[type[Fault]],
    *,
    seconds: float,
    times: int | Mapping[str, int] | None = None,
    first_s: float = 5.0,
) -> list[Step]:
    """Return the steps of a plan, in order.

    Faults of one kind share the time evenly among them, each as often as the others, in an order of
    the seed's.

    Args:
        seed: The same seed, faults and times give the same plan.
        faults: Which there are.
        seconds: How long it takes, about.
        times: How often each fault is to come, or how often which; by default one of each kind
            comes every 20 s, and each fault five times at least.
        first_s: When the first one comes.
    """
    by_kind: dict[str, list[type[Fault]]] = {}
    for fault in faults:
        by_kind.setdefault(fault.kind, []).append(fault)
    steps: list[Step] = []
    for kind, known in by_kind.items():
        draw = random.Random(f"{seed} {kind}")
        fits = max(AT_LEAST, int((seconds - first_s) / (EVERY_S * len(known))))
        order = [
            fault
            for fault in known
            for _ in range(
                times.get(fault.name, 0) if isinstance(times, Mapping) else times or fits
            )
        ]
        draw.shuffle(order)
        every = (seconds - first_s) / max(1, len(order))
        for nth, fault in enumerate(order):
            at = first_s + every * (nth + draw.uniform(0, 0.5))
            low, high = fault.holds
            steps.append(
                Step(at, kind, fault.name, draw.getrandbits(32), round(draw.uniform(low, high), 1))
            )
    return sorted(steps, key=lambda step: (step.at, step.kind))


def show(plan: Sequence[Step]) -> str:
    """Return the plan as text, a line a step."""
    return "\n".join(map(str, plan))
