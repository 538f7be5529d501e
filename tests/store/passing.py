"""Runs with a history, for tests of those who read it: boundaries, deliveries, in a few words."""

from __future__ import annotations

from typing import Any

from tests.store.acting import do, lease_of, reach, rows
from workhorse.domain.boundaries import BoundaryKind, DeliveryState, NewBoundary
from workhorse.domain.ids import RunId
from workhorse.domain.recording import Record, Recorded
from workhorse.domain.runs import ClaimedRun
from workhorse.store.base.database import Store
from workhorse.store.durable.boundaries import record


def passed(
    store: Store,
    claimed: ClaimedRun,
    name: str,
    kind: BoundaryKind = BoundaryKind.CHECKPOINT,
    **fields: Any,
) -> str:
    """Write a boundary behind those that the run has; return its name."""
    (found,) = rows(
        store, "select count(*) as n from {s}boundaries where run_id = :id", id=claimed.id
    )
    boundary = NewBoundary(name=name, kind=kind, seq=found.n + 1, **fields)
    answer = store.run(record, [Record(lease=lease_of(claimed), boundary=boundary)], reach=reach)
    assert [each.result for each in answer.answers] == [Recorded.STORED]
    return name


def received(
    store: Store,
    run_id: RunId,
    name: str,
    kind: BoundaryKind = BoundaryKind.SIGNAL,
    *,
    state: DeliveryState = DeliveryState.VALUE,
    value: str | None = None,
    by: str | None = None,
    why: str | None = None,
) -> None:
    """Put a delivery with a run, as it lies there once somebody has made it."""
    (found,) = rows(store, "select count(*) as n from {s}deliveries where run_id = :id", id=run_id)
    clock = store.manual_clock
    assert clock is not None
    do(
        store,
        "insert into {s}deliveries"
        ' (run_id, kind, name, state, inbox, value, bytes, key, "by", why, created_at)'
        " values (:run_id, :kind, :name, :state, :inbox, :value, :bytes, :key, :by, :why, :at)",
        run_id=run_id,
        kind=kind.value,
        name=name,
        state=state.value,
        inbox=found.n + 1,
        value=value,
        bytes=len(value or ""),
        key="k",
        by=by,
        why=why,
        at=store.dialect.write_instant(clock.now),
    )
    do(store, "update {s}live set inbox = :n where id = :id", n=found.n + 1, id=run_id)
