"""When a failed attempt is tried again.

The policy travels in the run's row, so maintenance can recover a run whose task it does not know.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from workhorse.domain.instants import check_duration, to_millis
from workhorse.domain.showing import shown
from workhorse.errors import ConfigurationError

_LONGEST: Final = timedelta(days=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How many attempts a run has, and how long it rests between two.

    The rest before attempt n + 1 is drawn evenly from 1 ms to `first * factor ** (n - 1)`, at most
    `longest` ("full jitter"), so runs that failed together do not come back together. With
    `jitter=False` it is that bound itself.

    Args:
        max_attempts: 1 to 1,000. With 1, an error, a time-out or a lost lease ends the run.
        first: The bound of the first rest; zero makes the run ready again at once.
        factor: What the bound is multiplied with each time, 1 to 100.
        longest: The largest bound, at most 30 days.
        jitter: Whether the rest is drawn at random below its bound.
    """

    max_attempts: int = 10
    first: timedelta = timedelta(seconds=1)
    factor: float = 2.0
    longest: timedelta = timedelta(minutes=5)
    jitter: bool = True

    def __post_init__(self) -> None:
        if type(self.max_attempts) is not int or not 1 <= self.max_attempts <= 1000:
            raise ConfigurationError(
                f"max_attempts is {shown(self.max_attempts)}; "
                "it must be a whole number from 1 to 1,000"
            )
        if type(self.factor) not in (int, float) or not 1 <= self.factor <= 100:
            raise ConfigurationError(
                f"factor is {shown(self.factor)}; it must be a number from 1 to 100"
            )
        if type(self.jitter) is not bool:
            raise ConfigurationError(f"jitter is {shown(self.jitter)}; it must be True or False")
        check_duration("first", self.first, most=_LONGEST)
        check_duration("longest", self.longest, most=_LONGEST)

    def bound_ms(self, attempt: int) -> int:
        """Return the longest rest, in milliseconds, after the given attempt (1, 2, ...) failed."""
        first, longest = to_millis(self.first), to_millis(self.longest)
        if first == 0:
            return 0
        try:
            grown = first * self.factor ** (attempt - 1)
        except OverflowError:
            return longest
        return min(longest, int(min(grown, 1e15)))

    def rest_ms(self, attempt: int, draw: random.Random) -> int:
        """Return the rest, in milliseconds, after the given attempt failed."""
        bound = self.bound_ms(attempt)
        # Never zero of a bound that is not: who is to rest is scheduled, not ready.
        return draw.randint(min(1, bound), bound) if self.jitter else bound

    def to_json(self) -> str | None:
        """Return what the run's row keeps; None for the default policy, which most runs have."""
        if self == DEFAULT_RETRY:
            return None
        return json.dumps(
            {
                "max_attempts": self.max_attempts,
                "first_ms": to_millis(self.first),
                "factor": self.factor,
                "longest_ms": to_millis(self.longest),
                "jitter": self.jitter,
            },
            separators=(",", ":"),
        )

    @staticmethod
    def from_json(text: str | None) -> RetryPolicy:
        """Return the policy of a run's row."""
        if text is None:
            return DEFAULT_RETRY
        kept = json.loads(text)
        return RetryPolicy(
            max_attempts=kept["max_attempts"],
            first=timedelta(milliseconds=kept["first_ms"]),
            factor=kept["factor"],
            longest=timedelta(milliseconds=kept["longest_ms"]),
            jitter=kept["jitter"],
        )


DEFAULT_RETRY: Final = RetryPolicy()
