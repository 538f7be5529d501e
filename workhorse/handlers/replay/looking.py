"""`get_checkpoint`, `get_wait`, `progress`: calls that are no boundaries.

Source: docs/design.md, section 7.
"""

from __future__ import annotations

from typing import Any

from workhorse.domain.boundaries import AWAITED, BoundaryKind, DeliveryState
from workhorse.domain.missing import MISSING
from workhorse.domain.names import check_boundary
from workhorse.domain.recording import NewProgress
from workhorse.domain.values import MAX_DELIVERY_BYTES, decode, encode
from workhorse.handlers.replay.flights import Steps
from workhorse.handlers.replay.reading import boundary_value, delivered_text
from workhorse.handlers.replay.state import Replay


def get_checkpoint(replay: Replay, name: str) -> Steps[Any]:
    """Return the value of a checkpoint, or MISSING."""
    check_boundary(name)
    replay.gate.check_lease()
    stored = replay.boundaries.get(name)
    if stored is None or stored.kind is not BoundaryKind.CHECKPOINT:
        return MISSING
    return (yield from boundary_value(replay, stored))


def get_wait(replay: Replay, name: str) -> Steps[Any]:
    """Return what has come for a wait, or MISSING."""
    check_boundary(name)
    replay.gate.check_lease()
    stored = replay.boundaries.get(name)
    if stored is not None and stored.kind is BoundaryKind.TIMER:
        return None if stored.due else MISSING
    # What was sent before its wait is there already.
    kinds = (BoundaryKind.SIGNAL, BoundaryKind.HUMAN) if stored is None else (stored.kind,)
    for kind in kinds:
        delivered = replay.deliveries.get((kind, name)) if kind in AWAITED else None
        if delivered is not None and delivered.state is DeliveryState.VALUE:
            return decode((yield from delivered_text(replay, delivered)))
    return MISSING


def say(replay: Replay, value: object) -> Steps[None]:
    """As `progress`, for a call that is awaited."""
    progress(replay, value)
    yield from ()


def progress(replay: Replay, value: object) -> None:
    """Replace what the run says of its progress; nobody waits for the store.

    Raises:
        UnstorableValueError, ValueTooLargeError: The value cannot be stored.
        LeaseLostError: The lease is gone, or the activation has ended.
    """
    replay.gate.check_running()
    writer = replay.gate.writer
    text = encode(f"{replay.owner}: progress", value, cap=MAX_DELIVERY_BYTES)
    writer.progress(NewProgress(replay.lease, text))
