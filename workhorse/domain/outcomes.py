"""How an activation ended, and what the store is to write about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from workhorse.domain.runs import Failure, Reason, RunState

# -- what the worker saw -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The handler returned; `result` is JSON text."""

    result: str = "null"


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt failed: by an error, its time-out, or the run's deadline."""

    failure: Failure
    reason: Reason = Reason.ERROR


@dataclass(frozen=True, slots=True)
class Slept:
    """The handler gave its lease up until a time from now, by the database's clock."""

    delay_ms: int


@dataclass(frozen=True, slots=True)
class Waited:
    """The handler gave its lease up for a value from outside, perhaps with a time-out."""

    timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class HandedBack:
    """The activation was ended by a shutdown; it spends nothing."""


@dataclass(frozen=True, slots=True)
class LeaseExpired:
    """The lease ran out; said by recovery, never by a worker of its own run."""


Outcome: TypeAlias = Succeeded | Failed | Slept | Waited | HandedBack | LeaseExpired

# -- what the store writes -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
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
class Park:
    """Give the lease up and spend nothing.

    `state` is `scheduled` (due after `delay_ms`), `waiting` (with a time-out after `delay_ms`, or
    none; the store writes `ready` instead when a delivery came since the claim), or `ready` (handed
    back; counted).
    """

    state: RunState
    delay_ms: int | None = None


Settlement: TypeAlias = Finish | Retry | Park
