"""Where a queue's next scan starts, and when: cursors, pauses and nets; no clock, no store.

A sweep goes through a queue page by page behind a cursor, so an old prefix that cannot run never
hides later work; once a second a page starts at the very head, so what is new and urgent there does
not wait for a long sweep. A page is incomplete when it was full and still yielded fewer runs than
there were free slots.

Source: docs/design.md, sections 4 and 5; docs/adr/0017-tables-that-grow.md
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from workhorse.runtime.claims.heads import Heads

if TYPE_CHECKING:
    from workhorse.store.lifecycle.claiming import Claim
    from workhorse.store.lifecycle.cursors import Cursor, Head


_PATIENCE: Final = 2
"""So many rings may lead to nothing before the next ones are answered later."""
_LATEST_MS: Final = 100.0
"""How late a ring is answered at the most."""


class Sweep:
    """The scans of one queue by one worker.

    Args:
        poll_ms: The pause after an incomplete page.
        idle_ms: What the pauses grow to while nothing is found, on a lane without messages.
        head_ms: How often a page starts at the very head.
        net_ms: On a lane with messages: draws the time to the next scan once a sweep has ended.
            None where scans are the only way to find runs.
        draw: Draws between zero and a bound, for answers that are put off.
    """

    def __init__(
        self,
        *,
        poll_ms: float,
        idle_ms: float,
        head_ms: float,
        net_ms: Callable[[], float] | None = None,
        draw: Callable[[float], float] = lambda bound: random.uniform(0, bound),  # noqa: S311
    ) -> None:
        self._poll_ms = poll_ms
        self._idle_ms = max(idle_ms, poll_ms)
        self._head_ms = head_ms
        self._net_ms = net_ms
        self._draw = draw
        self._next: Cursor | None = None
        self._resume: Cursor | None = None
        self._head_at = float("-inf")
        self._due_at = float("-inf")
        self._rest = poll_ms
        self._rung = False
        self._in_vain = 0
        self._heads = Heads(head_ms)
        self.pausing = False
        """Whether the time to the next page is a pause that nothing shortens."""

    def due_in(self, now: float) -> float:
        """Return how many milliseconds the next page is away; zero or less is now."""
        return self._due_at - now

    def start_now(self) -> None:
        """Say that something may have changed: the next page is due, from the head."""
        self._due_at = float("-inf")
        self._head_at = float("-inf")
        self._rest = self._poll_ms
        self.pausing = False

    def rung(self, now: float) -> None:
        """Say that the lane knows of new work: the next page is due, from the head.

        All workers of a queue hear its bell, and one of them is enough. Whose rings led to nothing
        lately answers later, and then to several at once; who finds something answers at once.
        """
        self._rung = True
        self._head_at = float("-inf")
        put_off = self._in_vain - _PATIENCE
        if put_off < 0:
            self._due_at = float("-inf")
            self.pausing = False
        else:
            bound = min(_LATEST_MS, 2.0 ** min(put_off, 10))
            self._due_at = min(self._due_at, now + self._draw(bound))
            self.pausing = True

    def start(self, now: float) -> Cursor | Head | None:
        """Return where the page that is fetched now starts; None is the very head."""
        if self._next is not None and now - self._head_at >= self._head_ms:
            self._resume, self._next = self._next, None
        if self._next is None:
            self._head_at = now
            return self._heads.start(now)
        return self._next

    def note(self, claim: Claim, *, asked: int, now: float, took_ms: float = 0.0) -> None:
        """Take in what the page brought: the runs of `claim`, where `asked` slots were free."""
        self.pausing = False
        if self._next is None:
            self._heads.note(claim.head, now, took_ms)
        self._in_vain = 0 if claim.runs else self._in_vain + self._rung
        self._rung = False
        if len(claim.runs) >= asked:
            # Slots ended before the page did, so the page's start stays the lower bound: what was
            # taken is gone from it, and what is left comes first.
            self._due_at = now
            self._rest = self._poll_ms
        elif claim.full:
            # A look at the head does not lose the place that the long sweep had come to.
            self._next, self._resume = self._resume or claim.cursor, None
            self._due_at = now + self._poll_ms
            self.pausing = True
        else:
            self._next = self._resume = None
            self._rest = self._poll_ms if claim.runs else min(self._rest * 2, self._idle_ms)
            self._due_at = now + (self._rest if self._net_ms is None else self._net_ms())
            long_in = self._heads.long_in(now)
            if self._net_ms is None and long_in is not None:
                self._due_at = min(self._due_at, now + long_in)
