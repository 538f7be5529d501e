"""A run as a document: what a check needs to replay it, with any version of its handler.

Source: docs/design.md, section 7
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from workhorse.domain.boundaries import Boundary, Delivered
from workhorse.domain.runs import RunView
from workhorse.domain.values import decode

FORMAT: Final = 1
"""Rises when a reader of the older format would misread a document."""


def document_of(
    run: RunView, boundaries: Sequence[Boundary], deliveries: Sequence[Delivered]
) -> dict[str, Any]:
    """Return a run as a value that JSON can carry.

    Instants are ISO 8601 in UTC, to the microsecond. Values, contexts and what else was stored as
    JSON stand in it as what they are; a part that the run does not have is left out, so that null
    is a value.

    Args:
        run: The run.
        boundaries: All that it has passed, in order.
        deliveries: All that came for it, in order.
    """
    return {
        "workhorse_export": FORMAT,
        "run": _given(
            id=run.id,
            task=run.task,
            queue=run.queue,
            state=run.state.value,
            attempt=run.attempt,
            session=run.session,
            tags=list(run.tags) or None,
            key=run.key,
            created_at=_instant(run.created_at),
            started_at=_instant(run.started_at),
            finished_at=_instant(run.finished_at),
            rerun_of=run.rerun_of,
            parent_id=run.parent_id,
        ),
        "payload": decode(run.payload),
        "boundaries": [_boundary(each) for each in boundaries],
        "deliveries": [_delivery(each) for each in deliveries],
    }


def _boundary(each: Boundary) -> dict[str, Any]:
    return {
        **_given(
            seq=each.seq,
            name=each.name,
            kind=each.kind.value,
            fingerprint=each.fingerprint,
            wake_at=_instant(each.wake_at),
            absolute=each.absolute or None,
            created_at=_instant(each.created_at),
        ),
        **_values(value=each.value, detail=each.detail),
    }


def _delivery(each: Delivered) -> dict[str, Any]:
    return {
        **_given(
            inbox=each.inbox,
            kind=each.kind.value,
            name=each.name,
            state=each.state.value,
            at=_instant(each.at),
        ),
        **_values(value=each.value),
    }


def _given(**parts: object) -> dict[str, Any]:
    return {name: part for name, part in parts.items() if part is not None}


def _values(**texts: str | None) -> dict[str, Any]:
    return {name: decode(text) for name, text in texts.items() if text is not None}


def _instant(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(timespec="microseconds").replace("+00:00", "Z")
