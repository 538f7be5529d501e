"""When a bell is rung: at once after a rest, otherwise once at the end of the rest; no clock."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

_MOST_KEPT: Final = 1_000


class Debounce:
    """What is to be rung, and what was rung a moment ago.

    Args:
        gap_ms: How long after one ring of a queue's bell the next one may follow.
    """

    def __init__(self, gap_ms: float) -> None:
        self._gap_ms = gap_ms
        self._rung_at: dict[str, float] = {}
        self._wished: set[str] = set()
        self._most = _MOST_KEPT

    @property
    def wished(self) -> Collection[str]:
        """The queues whose bells are still to be rung."""
        return self._wished

    def take(self, queue: str, now: float) -> bool:
        """Answer whether the caller may ring now; then it counts as rung."""
        # Where a ring is due anyway, one that may be rolled back does not put it off.
        if queue in self._wished or self._in(queue, now) > 0:
            return False
        self._note([queue], now)
        return True

    def wish(self, queue: str, now: float) -> bool:
        """Have a bell rung; answer whether that is due now."""
        self._wished.add(queue)
        return self._in(queue, now) <= 0

    def due(self, now: float) -> list[str]:
        """Return the queues whose bells are to be rung now; they count as rung."""
        due = sorted(queue for queue in self._wished if self._in(queue, now) <= 0)
        self._wished.difference_update(due)
        self._note(due, now)
        return due

    def due_in(self, now: float) -> float | None:
        """Return how many milliseconds the next ring is away; None where none is wished for."""
        return min((max(0.0, self._in(queue, now)) for queue in self._wished), default=None)

    def again(self, queues: Iterable[str]) -> None:
        """Take back that bells were rung: they are due."""
        for queue in queues:
            self._wished.add(queue)
            self._rung_at.pop(queue, None)

    def _note(self, queues: Iterable[str], now: float) -> None:
        self._rung_at.update(dict.fromkeys(queues, now))
        if len(self._rung_at) > self._most:
            # A program may make queues as it goes; those that have rested need no note.
            kept = {each: at for each, at in self._rung_at.items() if at + self._gap_ms > now}
            self._rung_at, self._most = kept, max(_MOST_KEPT, 2 * len(kept))

    def _in(self, queue: str, now: float) -> float:
        return self._rung_at.get(queue, float("-inf")) + self._gap_ms - now
