"""How an activation ended, and what the store is to write about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from workhorse.domain.boundaries import Wait
from workhorse.domain.runs import Failure, Reason, RunState

# Nobody changes one. Those that nearly every run comes to are not frozen all the same: that
# triples what making one costs.

# -- what the worker saw -------------------------------------------------------------------------


@dataclass(slots=True)
class Succeeded:
    """The handler returned; `result` is JSON text."""

    result: str = "null"


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt failed: by an error, its time-out, or the run's deadline."""

    failure: Failure
    reason: Reason = Reason.ERROR


@dataclass(frozen=True, slots=True)
class Suspended:
    """The handler gave its lease up at one or more waits, until the first of them is settled."""

    waits: tuple[Wait, ...]


@dataclass(frozen=True, slots=True)
class HandedBack:
    """The activation was ended by a shutdown; it spends nothing."""


@dataclass(frozen=True, slots=True)
class LeaseExpired:
    """The lease ran out; said by recovery, never by a worker of its own run."""


Outcome: TypeAlias = Succeeded | Failed | Suspended | HandedBack | LeaseExpired

# -- what the store writes -----------------------------------------------------------------------


@dataclass(slots=True)
class Finish:
    """End the run: its live row goes, its outcome stays."""

    state: RunState
    reason: Reason | None = None
    result: str | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """Spend an attempt: the run is due after `delay_ms`, or ready at zero; the failure is kept."""

    delay_ms: int
    reason: Reason
    failure: Failure


@dataclass(frozen=True, slots=True)
class Suspend:
    """Give the lease up at these waits and spend nothing.

    The run is `scheduled` when all of them are timers, else `waiting`; due at the first of their
    times; but `ready` at once when a delivery came since the claim.
    """

    waits: tuple[Wait, ...]


@dataclass(frozen=True, slots=True)
class HandBack:
    """Make the run ready again and spend nothing; it is counted."""


Settlement: TypeAlias = Finish | Retry | Suspend | HandBack
