"""How many boundaries, bytes and open waits a run may have.

Source: docs/design.md, section 7.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from workhorse.domain.boundaries import (
    MAX_BOUNDARIES,
    MAX_BOUNDARY_BYTES,
    MAX_OPEN_WAITS,
    WAITS,
    Boundary,
    BoundaryKind,
    Delivered,
    History,
    NewBoundary,
)
from workhorse.errors import BoundaryLimitExceededError, WaitLimitExceededError


class Limits:
    """Counts what a run has; its caller holds a lock.

    Args:
        owner: How errors call the run.
        history: What it had when it was claimed.
    """

    __slots__ = ("_bytes", "_count", "_open", "_owner")

    def __init__(self, owner: str, history: History) -> None:
        self._owner = owner
        self._count = max(history.count, len(history.boundaries))
        self._bytes = history.bytes
        self._open: int | None = None

    def check_room(self, name: str) -> None:
        """Refuse a boundary before any work is done for it, where the run has no room for one.

        Raises:
            BoundaryLimitExceededError: It has as many as it may have.
        """
        if self._count >= MAX_BOUNDARIES:
            raise BoundaryLimitExceededError(
                f"{self._owner}: it has {self._count:,} boundaries, the most a run may have; "
                f"'{name}' was not stored. Split the work into child runs"
            )

    def take(
        self,
        new: NewBoundary,
        boundaries: Mapping[str, Boundary],
        deliveries: Mapping[tuple[BoundaryKind, str], Delivered],
    ) -> None:
        """Count a new boundary, or refuse it."""
        self.check_room(new.name)
        size = new.size_bytes
        self._check_bytes(new.name, size)
        if new.kind in WAITS and (new.kind, new.name) not in deliveries and not _is_passed(new):
            if self._open is None:
                self._open = _count_open(boundaries, deliveries)
            if self._open >= MAX_OPEN_WAITS:
                raise WaitLimitExceededError(
                    f"{self._owner}: it has {self._open:,} open waits, the most a run may have; "
                    f"'{new.name}' was not stored. Limit how many it waits for at once"
                )
            self._open += 1
        self._count += 1
        self._bytes += size

    def settled(self) -> None:
        """Note that one of the open waits is open no more."""
        if self._open:
            self._open -= 1

    def recount(self) -> None:
        """Note that a choice was made: the timers that lost in it are waited for no more."""
        self._open = None

    def take_bytes(self, name: str, size: int) -> None:
        """Count bytes, or refuse them where the run has no room.

        Raises:
            BoundaryLimitExceededError: Its boundaries would take more than they may together.
        """
        self._check_bytes(name, size)
        self._bytes += size

    def _check_bytes(self, name: str, size: int) -> None:
        if self._bytes + size > MAX_BOUNDARY_BYTES:
            raise BoundaryLimitExceededError(
                f"{self._owner}: its boundaries take {self._bytes:,} bytes and may take "
                f"{MAX_BOUNDARY_BYTES:,} together; '{name}' with {size:,} was not stored. Keep "
                "large values elsewhere and store their keys"
            )


def _count_open(
    boundaries: Mapping[str, Boundary],
    deliveries: Mapping[tuple[BoundaryKind, str], Delivered],
) -> int:
    # Nothing is delivered for a timer that lost in a `wait_any`, and it may be due in a year.
    decided = {
        name
        for each in boundaries.values()
        if each.kind is BoundaryKind.ANY
        for name in json.loads(each.detail or "[]")
    }
    return sum(
        each.kind in WAITS
        and (each.kind, each.name) not in deliveries
        and not each.due
        and each.name not in decided
        for each in boundaries.values()
    )


def _is_passed(new: NewBoundary) -> bool:
    return new.kind is BoundaryKind.TIMER and new.delay_ms == 0
