"""`get_checkpoint`, `get_wait`: look at what is there, and begin nothing.

Source: docs/design.md, section 7.
"""

from __future__ import annotations

from typing import Any

from workhorse.domain.boundaries import AWAITED, BoundaryKind, DeliveryState
from workhorse.domain.missing import MISSING
from workhorse.domain.names import check_boundary
from workhorse.domain.values import decode
from workhorse.handlers.replay.flights import Steps
from workhorse.handlers.replay.state import Replay


def get_checkpoint(replay: Replay, name: str) -> Steps[Any]:
    """Return the value of a checkpoint, or MISSING."""
    check_boundary(name)
    replay.check_lease()
    stored = replay.boundaries.get(name)
    if stored is None or stored.kind is not BoundaryKind.CHECKPOINT:
        return MISSING
    return (yield from replay.value_of(stored))


def get_wait(replay: Replay, name: str) -> Steps[Any]:
    """Return what has come for a wait, or MISSING."""
    check_boundary(name)
    replay.check_lease()
    stored = replay.boundaries.get(name)
    if stored is not None and stored.kind is BoundaryKind.TIMER:
        return None if stored.due else MISSING
    # What was sent before its wait is there already.
    kinds = (BoundaryKind.SIGNAL, BoundaryKind.HUMAN) if stored is None else (stored.kind,)
    for kind in kinds:
        delivered = replay.deliveries.get((kind, name)) if kind in AWAITED else None
        if delivered is not None and delivered.state is DeliveryState.VALUE:
            return decode((yield from replay.text_of(delivered)))
    return MISSING
