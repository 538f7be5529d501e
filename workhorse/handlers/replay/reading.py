"""Values of boundaries and deliveries: most came with the claim, large ones are read by name.

Source: docs/design.md, section 7.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from workhorse.domain.boundaries import Boundary, BoundaryKind, Delivered
from workhorse.domain.recording import ReadValue
from workhorse.domain.values import decode
from workhorse.errors import LeaseLostError
from workhorse.handlers.replay.flights import Steps
from workhorse.handlers.replay.state import Replay


def boundary_value(replay: Replay, stored: Boundary) -> Steps[Any]:
    """Return the value of a boundary; a fresh object at each call."""
    text = stored.value
    if text is None and stored.left_out:
        text = yield from _read(replay, stored.name, None)
        replay.boundaries[stored.name] = replace(stored, value=text, left_out=False)
    return None if text is None else decode(text)


def delivered_text(replay: Replay, delivered: Delivered) -> Steps[str]:
    """Return the JSON text that was delivered."""
    text = delivered.value
    if text is None and delivered.left_out:
        text = yield from _read(replay, delivered.name, delivered.kind)
        key = (delivered.kind, delivered.name)
        replay.deliveries[key] = replace(delivered, value=text, left_out=False)
    return "null" if text is None else text


def _read(replay: Replay, name: str, kind: BoundaryKind | None) -> Steps[str]:
    text = yield replay.gate.writer.read(ReadValue(replay.lease.run_id, name, kind))
    if text is None:
        raise LeaseLostError(f"{replay.owner}: the value of '{name}' is no longer in the store")
    return str(text)
