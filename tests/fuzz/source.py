"""Where drawn inputs come from: a row of choices, so that each input can be had again, and smaller.

Inputs are drawn by plain functions of a source. Over a seeded generator they cost microseconds,
which a hundred thousand of them need; over hypothesis the same functions are a strategy.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")
Draw = Callable[["Source"], Any]
"""Draws an input; the same choices make the same input. All zeroes is the simplest."""


class Source:
    """Answers choices; `choices` says what was answered.

    Args:
        below: Returns a number from zero to less than the given one.
    """

    def __init__(self, below: Callable[[int], int]) -> None:
        self._below = below
        self.choices: list[int] = []

    def below(self, bound: int) -> int:
        chosen = self._below(bound)
        self.choices.append(chosen)
        return chosen

    def pick(self, among: Sequence[T]) -> T:
        return among[self.below(len(among))]

    def one(self, *draws: Draw) -> Any:
        return self.pick(draws)(self)

    def maybe(self, often: int = 2) -> bool:
        """Say yes once in so many times."""
        return self.below(often) == often - 1

    def many(self, draw: Draw, most: int) -> list[Any]:
        return [draw(self) for _ in range(self.below(most + 1))]

    def fields(self, **draws: Draw) -> dict[str, Any]:
        """Return a dict of most of these."""
        return {name: draw(self) for name, draw in draws.items() if not self.maybe(8)}

    def options(self, **draws: Draw) -> dict[str, Any]:
        """Return a dict of a few of these."""
        return {name: draw(self) for name, draw in draws.items() if self.maybe(4)}


def seeded(number: str) -> Source:
    """Return a source that depends on a text alone."""
    return Source(random.Random(number).randrange)


def repeating(choices: Sequence[int]) -> Source:
    """Return a source that answers what another has answered, and zero behind the end."""
    rest = iter(choices)
    return Source(lambda bound: min(next(rest, 0), bound - 1))


def strategy(draw: Draw) -> st.SearchStrategy[Any]:
    """Return hypothesis' strategy of what is drawn."""

    @st.composite
    def drawn(from_hypothesis: st.DrawFn) -> Any:
        return draw(Source(lambda bound: from_hypothesis(st.integers(0, bound - 1))))

    return drawn()


def simplest(draw: Draw, choices: Sequence[int], fails: Callable[[Any], bool]) -> Any:
    """Return the simplest input that still fails, of those that lie on the way down."""
    best, tries = list(choices), 0
    size = max(1, len(best) // 2)
    while size:
        at = 0
        while at < len(best) and tries < 1_000:
            tries += 1
            for fewer in (
                best[:at] + best[at + size :],
                best[:at] + [0] * size + best[at + size :],
            ):
                if fewer != best and fails(draw(repeating(fewer))):
                    best = fewer
                    break
            else:
                at += size
        size //= 2
    return draw(repeating(best))
