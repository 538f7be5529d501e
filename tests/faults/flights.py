"""How many calls of handlers were under way when a fault struck.

A fault that hits an idle fleet proves nothing, so the report says it of each.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from tests.faults.evidence import Activation
from tests.faults.fleet import Hit

EVER = float("inf")


class Flights:
    """Calls of handlers, by the time that they took.

    Args:
        activations: All of a campaign.
        lives: When each process group ended: what died with it was under way until then.
    """

    def __init__(self, activations: Iterable[Activation], lives: Mapping[int, float]) -> None:
        self._begun: dict[int, list[float]] = defaultdict(list)
        self._over: dict[int, list[float]] = defaultdict(list)
        for one in activations:
            over = one.over if one.over is not None else lives.get(one.group, EVER)
            for group in (0, one.group):
                self._begun[group].append(one.started)
                self._over[group].append(max(one.started, over))
        for each in (*self._begun.values(), *self._over.values()):
            each.sort()

    def under_way(self, at: float, group: int = 0) -> int:
        """Return how many were under way at an instant; in one process group, or in all."""
        begun = bisect_right(self._begun.get(group, []), at)
        return begun - bisect_right(self._over.get(group, []), at)

    def by_fault(self, hits: Iterable[Hit]) -> dict[str, Counter[int]]:
        """Return for each fault how often so many were under way when it struck.

        Of a fault that strikes one process, those of that process are counted.
        """
        found: dict[str, Counter[int]] = defaultdict(Counter)
        for hit in hits:
            found[hit.fault][self.under_way(hit.at, hit.group)] += 1
        return dict(found)
