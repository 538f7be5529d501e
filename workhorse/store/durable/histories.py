"""Histories: what claimed runs have passed and been sent, read right after the claim.

Source: docs/design.md, sections 3 and 7
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Select,
    Text,
    and_,
    case,
    false,
    func,
    literal,
    literal_column,
    null,
    select,
    type_coerce,
)
from sqlalchemy.sql.expression import Executable

from workhorse.domain.boundaries import (
    LOADED_BYTES,
    Boundary,
    BoundaryKind,
    Delivered,
    DeliveryState,
    History,
)
from workhorse.domain.ids import RunId
from workhorse.domain.runs import ClaimedRun
from workhorse.store.base.database import Tx
from workhorse.store.base.dialect import Dialect
from workhorse.store.base.schema import Instant, boundaries, deliveries

_LARGE_BYTES: Final = LOADED_BYTES // 4
"""A value above this never comes with a claim: it would keep many small ones away."""


def with_history(tx: Tx, claimed: list[ClaimedRun]) -> list[ClaimedRun]:
    """Return claimed runs with what they have passed and been sent.

    A second statement of the claim's transaction, never a part of the claim: that locks the newest
    row, but would read these tables as they were when it started. Runs that nobody has claimed
    before, and that were sent nothing, have none, and cost nothing here.
    """
    asked = [run.id for run in claimed if run.inbox > 0 or (run.lease and run.lease.fence > 1)]
    if not asked:
        return claimed
    found = load(tx, asked)
    return [replace(run, history=found[run.id]) if run.id in found else run for run in claimed]


def load(tx: Tx, ids: Sequence[RunId]) -> dict[RunId, History]:
    """Return the histories of runs; one that has none has no entry."""
    read = tx.read_instant
    passed: dict[RunId, list[Boundary]] = {}
    sent: dict[RunId, list[Delivered]] = {}
    sizes: dict[RunId, int] = {}
    for row in tx.fetch(_load, ids=json.dumps(list(ids))):
        run_id = RunId(str(row.run_id))
        kind, left_out = BoundaryKind(row.kind), bool(row.left_out)
        if row.state is None:
            sizes[run_id] = sizes.get(run_id, 0) + row.bytes
            passed.setdefault(run_id, []).append(
                Boundary(
                    name=row.name,
                    kind=kind,
                    seq=row.seq,
                    value=row.value,
                    left_out=left_out,
                    fingerprint=row.fingerprint,
                    detail=row.detail,
                    wake_at=read(row.wake_at),
                    absolute=bool(row.absolute),
                    due=bool(row.due),
                    created_at=read(row.created_at),
                )
            )
        else:
            sent.setdefault(run_id, []).append(
                Delivered(
                    kind=kind,
                    name=row.name,
                    state=DeliveryState(row.state),
                    inbox=row.seq,
                    value=row.value,
                    left_out=left_out,
                    at=read(row.created_at),
                )
            )
    return {
        run_id: History(
            boundaries=tuple(passed.get(run_id, ())),
            deliveries=tuple(sent.get(run_id, ())),
            count=len(passed.get(run_id, ())),
            bytes=sizes.get(run_id, 0),
            last_seq=max((each.seq for each in passed.get(run_id, ())), default=0),
        )
        for run_id in {*passed, *sent}
    }


# -- statements ----------------------------------------------------------------------------------


def is_due(d: Dialect, wake_at: ColumnElement[Any]) -> ColumnElement[bool]:
    """Say that an instant has come; false where there is none."""
    return func.coalesce(wake_at <= d.clock, false() if d.one_statement else literal_column("0"))


def _load(d: Dialect) -> Executable:
    nothing: ColumnElement[Any] = type_coerce(null(), Text)
    never: ColumnElement[Any] = (
        literal_column("null::timestamptz", Instant) if d.one_statement else null()
    )
    # The context of a human wait is for people, not for the handler.
    detail = case(
        (boundaries.c.kind == literal(str(BoundaryKind.HUMAN), Text), null()),
        else_=boundaries.c.detail,
    )
    passed: Select[Any] = select(
        boundaries.c.run_id, literal_column("0").label("sent"), boundaries.c.name,
        boundaries.c.kind, boundaries.c.seq, boundaries.c.value, boundaries.c.bytes,
        boundaries.c.fingerprint, detail.label("detail"), boundaries.c.wake_at,
        boundaries.c.absolute, nothing.label("state"), boundaries.c.created_at,
    ).where(d.one_of(boundaries.c.run_id, "ids"))  # fmt: skip
    sent: Select[Any] = select(
        deliveries.c.run_id, literal_column("1"), deliveries.c.name, deliveries.c.kind,
        deliveries.c.inbox, deliveries.c.value, deliveries.c.bytes, nothing, nothing, never,
        false() if d.one_statement else literal_column("0"), deliveries.c.state,
        deliveries.c.created_at,
    ).where(d.one_of(deliveries.c.run_id, "ids"))  # fmt: skip
    all_rows = passed.union_all(sent).subquery("items")
    c = all_rows.c
    large = c.bytes > literal_column(str(_LARGE_BYTES), BigInteger)
    so_far = func.sum(case((large, literal_column("0")), else_=c.bytes)).over(
        partition_by=c.run_id, order_by=[c.sent, c.seq, c.name], rows=(None, 0)
    )
    summed = select(all_rows, so_far.label("so_far"), large.label("large")).subquery("summed")
    s = summed.c
    comes = and_(
        ~type_coerce(s.large, Boolean) if d.one_statement else s.large == literal_column("0"),
        s.so_far <= literal_column(str(LOADED_BYTES), BigInteger),
    )
    return select(
        s.run_id, s.name, s.kind, s.seq, case((comes, s.value), else_=null()).label("value"),
        case(
            (and_(s.value.is_not(null()), ~comes), literal_column("1")), else_=literal_column("0")
        ).label("left_out"),
        s.bytes, s.fingerprint, s.detail, s.wake_at, s.absolute, s.state, s.created_at,
        is_due(d, s.wake_at).label("due"),
    ).order_by(s.run_id, s.sent, s.seq)  # fmt: skip
