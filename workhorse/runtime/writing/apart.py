"""What failed alone, and is offered again by itself, less and less often."""

from __future__ import annotations

from workhorse.runtime.activations.requests import Item
from workhorse.runtime.base.pace import Backoff, Pace

_NEVER = float("inf")


class SetApart:
    """Items that are offered each by itself; its user holds a lock around all calls."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._offers: list[_Offer] = []

    def __contains__(self, item: Item) -> bool:
        return any(each.item is item for each in self._offers)

    @property
    def waited_for(self) -> bool:
        """Whether somebody still waits for one of them."""
        return any(not each.item.done for each in self._offers)

    def add(self, item: Item) -> None:
        """Set an item apart, or again, for a longer rest than the last time."""
        offer = next((each for each in self._offers if each.item is item), None)
        if offer is None:
            offer = _Offer(item)
            self._offers.append(offer)
        offer.due_ms = self._pace.now_ms() + offer.backoff.next_ms()

    def take_due(self, most: int | None = None) -> list[Item]:
        """Return those whose rest is over, the longest first; each is then added again, or removed.

        Args:
            most: How many at most.
        """
        now = self._pace.now_ms()
        due = [each for each in self._offers if each.due_ms <= now]
        due = sorted(due, key=lambda each: each.due_ms)[:most]
        for each in due:
            each.due_ms = _NEVER
        return [each.item for each in due]

    def remove(self, item: Item) -> None:
        """Forget an item that was taken, unless it was added again meanwhile."""
        self._offers = [
            each for each in self._offers if each.item is not item or each.due_ms != _NEVER
        ]

    def due_in(self) -> float | None:
        """Return how many milliseconds are left until the first one is due."""
        if not self._offers:
            return None
        return min(each.due_ms for each in self._offers) - self._pace.now_ms()

    def hurry(self) -> None:
        """Have all offered in a second: a failure may have left some taken."""
        soon = self._pace.now_ms() + 1_000
        for each in self._offers:
            each.due_ms = min(each.due_ms, soon)


class _Offer:
    __slots__ = ("backoff", "due_ms", "item")

    def __init__(self, item: Item) -> None:
        self.item = item
        self.backoff = Backoff(1_000, 30_000)
        self.due_ms = 0.0
