"""What an activation asks its worker to write or read between two of its steps.

Source: docs/design.md, section 7
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from workhorse.domain.boundaries import Boundary, BoundaryKind, Delivered, NewBoundary
from workhorse.domain.ids import RunId
from workhorse.domain.runs import Lease, NewRun


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """A wait token that is to be made together with its boundary."""

    ref: str
    timeout_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewChild:
    """A run that is to be started together with its boundary; its end becomes a delivery."""

    run: NewRun
    on_parent_end: str = "cancel"
    """`cancel`, or `keep`."""


@dataclass(slots=True, kw_only=True)
class Record:
    """Write a boundary under the lease, and what belongs to it, in one transaction.

    `closes` names waits (kind and name) that take no value any more; `cancels` names children of
    the run that are to end as cancelled.
    """

    lease: Lease
    boundary: NewBoundary
    token: NewToken | None = None
    child: NewChild | None = None
    closes: tuple[tuple[BoundaryKind, str], ...] = ()
    cancels: tuple[RunId, ...] = ()


class Recorded(StrEnum):
    """What came of a `Record`."""

    STORED = "stored"
    """It is stored, also by an earlier try of the same write."""
    EXISTS = "exists"
    """Another row stands under that name; it comes with the answer, its value read."""
    LOST = "lost"
    """The lease is gone; nothing was stored."""


@dataclass(slots=True)
class RecordAnswer:
    """The answer to a `Record`: `boundary` is the row that stands, with its value.

    `kept` is what had come already for waits that were to be closed: it stands.
    """

    result: Recorded
    boundary: Boundary | None = None
    kept: tuple[Delivered, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadValue:
    """Read a value that did not come with the claim: a boundary's, or with `kind` a delivery's."""

    run_id: RunId
    name: str
    kind: BoundaryKind | None = None


@dataclass(frozen=True, slots=True)
class NewProgress:
    """Replace what a run says of its progress; `value` is JSON text."""

    lease: Lease
    value: str


Request: TypeAlias = Record | ReadValue | NewProgress
