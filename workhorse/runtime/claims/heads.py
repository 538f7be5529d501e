"""Where looks at a queue's head begin: at the very head, or behind what earlier looks have passed.

Runs that were taken leave dead entries at the very head of the queue's index. Usually they cost
next to nothing; but while somebody holds an old snapshot open, each look at the very head reads all
that became dead since. Where such a look was slow and a short one behind it was much quicker, the
looks are short ones for a few seconds.

A short look passes by no run that an earlier one has seen and left. What it may pass by is what
became ready before such a look and was not to be seen by it: a commit that came more than a second
after, a clock that went back, a task that the worker knows since.

Source: docs/adr/0017-tables-that-grow.md
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from workhorse.store.lifecycle.cursors import Head

_SLOW_MS: Final = 2.5
"""A look at the very head that took no longer is not worth a comparison."""
_GROWTH: Final = 3
"""How much longer looks are short each time that they have proved quicker again."""
_AT_MOST_MS: Final = 6_000
"""How long what short looks pass by is passed by at most."""


class Heads:
    """The looks at the head of one queue by one worker.

    Args:
        head_ms: How long short looks, or long ones, are trusted at first.
    """

    def __init__(self, head_ms: float) -> None:
        self._head_ms = head_ms
        self._head: Head | None = None
        self._short = False
        self._suspect_ms: float | None = None
        self._short_until = float("-inf")
        self._long_until = float("-inf")
        self._rest_ms = head_ms

    def start(self, now: float) -> Head | None:
        """Return where a look begins now; None is the very head."""
        wanted = self._suspect_ms is not None or now < self._short_until
        self._short = wanted and self._head is not None
        return self._head if self._short else None

    def note(self, head: Head | None, now: float, took_ms: float) -> None:
        """Take in where a later look may begin, and how long this one took."""
        if head is not None:
            self._head = head
        if not self._short:
            if took_ms <= _SLOW_MS:
                self._rest_ms = self._head_ms
            elif now >= self._long_until and self._head is not None:
                self._suspect_ms = took_ms
        elif self._suspect_ms is not None:
            if took_ms * 2 < self._suspect_ms:
                self._short_until = now + self._rest_ms
                self._rest_ms = min(self._rest_ms * _GROWTH, _AT_MOST_MS)
            else:
                if self._rest_ms == self._head_ms:  # else it was quicker lately: compare again
                    self._long_until = now + self._head_ms
                self._rest_ms = self._head_ms
            self._suspect_ms = None

    def long_in(self, now: float) -> float | None:
        """Return how far away the next look at the very head is; None after such a look."""
        return max(0.0, self._short_until - now) if self._short else None
