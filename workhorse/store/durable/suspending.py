"""Runs give their lease up at waits: the waits are stored, and the run is due at the first of them.

A part of `settling.settle`, whose first statement has locked the rows of the batch.

Source: docs/design.md, sections 2, 3 and 7
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Text,
    and_,
    case,
    false,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.sql.expression import Executable

from workhorse.domain.boundaries import BoundaryKind, DeliveryState, NewBoundary, Wait
from workhorse.domain.hints import Hint, Reach
from workhorse.domain.ids import RunId
from workhorse.domain.runs import Lease, RunState
from workhorse.store.base.database import Tx
from workhorse.store.base.dialect import Dialect, upsert
from workhorse.store.base.schema import Id, LinkKind, Number, boundaries, deliveries, live, tokens
from workhorse.store.durable.boundaries import insert_waits
from workhorse.store.durable.links import write_links
from workhorse.store.live.leasing import LEASE_COLUMNS, held_by, lease_batch, lock_held

_RUN_COLUMNS: Final = {
    "id": Id,
    "token": Number,
    "timers": Boolean(),
    "reach_ms": Number,
    "active_ms": Number,
    "inbox": Number,
}
_WAIT_COLUMNS: Final = {"id": Id, "name": Text()}
_DELIVERY_COLUMNS: Final = {
    "id": Id,
    "name": Text(),
    "state": Text(),
    "value": Text(),
    "bytes": Number,
}


@dataclass(frozen=True, slots=True)
class Suspension:
    """What is to be written for one lease: all waits that the activation got to and found open.

    `inbox` is the count of deliveries that the claim returned.
    """

    lease: Lease
    waits: tuple[Wait, ...]
    queue: str = ""
    active_ms: int = 0
    inbox: int = 0


def suspend(
    tx: Tx, suspensions: Sequence[Suspension], *, reach: Reach
) -> tuple[dict[RunId, RunState], list[Hint]]:
    """Write suspensions under their leases; return the states that now stand, and the wakeups.

    A run to which something was delivered since its claim is ready at once: what it waits for may
    be there already. So is one with a wait that was stored before and is not there any more: the
    store was set back to an older copy, and whatever would have ended that wait is gone too.
    """
    linked = _held(tx, _linked(suspensions))
    stands = _read_tokens(tx, sorted({wait.token or "" for _, wait in linked})) if linked else {}
    new = [
        (each.lease, _until(wait.new, stands.get(wait.token or "")))
        for each in suspensions
        for wait in each.waits
        if wait.new is not None
    ]
    insert_waits(tx, new)
    if linked:
        _link(tx, linked, stands)
    states: dict[RunId, RunState] = {}
    hints: list[Hint] = []
    for row in tx.fetch(
        _suspend, runs=_run_rows(suspensions, reach), waits=_wait_rows(suspensions)
    ):
        run_id, state = RunId(str(row.id)), RunState(row.state)
        states[run_id] = state
        if state is RunState.READY:
            hints.append(Hint(run_id, row.queue))
        elif row.wake_sent:
            hints.append(Hint(run_id, row.queue, max(0, int(row.due_in_ms))))
    return states, hints


# -- tokens --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Token:
    state: str
    value: str | None
    due_at: Any


def _linked(suspensions: Sequence[Suspension]) -> list[tuple[Lease, Wait]]:
    return [
        (each.lease, wait)
        for each in suspensions
        for wait in each.waits
        if wait.kind is BoundaryKind.TOKEN and wait.new is not None
    ]


def _held(tx: Tx, linked: Sequence[tuple[Lease, Wait]]) -> list[tuple[Lease, Wait]]:
    """Leave out those whose lease is gone: nothing of them is stored, their links neither."""
    if not linked:
        return []
    leases = list(dict.fromkeys(lease for lease, _ in linked))
    rows = tx.fetch(_under_lease, batch=lease_batch(leases))
    held = {(str(row.id), row.token) for row in rows}
    return [(lease, wait) for lease, wait in linked if (lease.run_id, lease.token) in held]


def _read_tokens(tx: Tx, refs: Sequence[str]) -> dict[str, _Token]:
    # Shared locks, in one order: who completes a token either comes before, and is seen here, or
    # waits for this commit, and sees the link.
    return {
        row.ref: _Token(row.state, row.value, tx.read_instant(row.due_at))
        for row in tx.fetch(_tokens, refs=json.dumps(list(refs)))
    }


def _until(new: NewBoundary, token: _Token | None) -> NewBoundary:
    """Give a wait the token's own time-out, so that it is noticed in time."""
    if token is None or token.due_at is None:
        return new
    return replace(new, wake_at=token.due_at)


def _link(tx: Tx, linked: Sequence[tuple[Lease, Wait]], stands: dict[str, _Token]) -> None:
    links_to_open, settled = [], []
    for lease, wait in linked:
        token = stands.get(wait.token or "")
        if token is not None and token.state == "open":
            links_to_open.append({"run_id": lease.run_id, "name": wait.name, "source": wait.token})
            continue
        # One that is unknown fails at the boundary: nobody could ever complete it.
        state = token.state if token is not None else DeliveryState.FAILED
        value = token.value if token is not None else None
        settled.append(
            {
                "id": lease.run_id,
                "name": wait.name,
                "state": state,
                "value": value,
                "bytes": len((value or "").encode()),
            }
        )
    if links_to_open:
        tx.write(write_links, LinkKind.TOKEN, batch=json.dumps(links_to_open))
    if settled:
        batch = json.dumps(settled)
        tx.write(_deliver_settled, batch=batch)
        tx.write(_count_settled, ids=json.dumps(sorted({str(each["id"]) for each in settled})))


# -- parameters ----------------------------------------------------------------------------------


def _run_rows(suspensions: Sequence[Suspension], reach: Reach) -> str:
    return json.dumps(
        [
            {
                "id": each.lease.run_id,
                "token": each.lease.token,
                "timers": all(wait.kind is BoundaryKind.TIMER for wait in each.waits),
                "reach_ms": reach(each.queue),
                "active_ms": each.active_ms,
                "inbox": each.inbox,
            }
            for each in suspensions
        ],
        separators=(",", ":"),
    )


def _wait_rows(suspensions: Sequence[Suspension]) -> str:
    return json.dumps(
        [
            {"id": each.lease.run_id, "name": wait.name}
            for each in suspensions
            for wait in each.waits
        ],
        separators=(",", ":"),
        ensure_ascii=False,
    )


# -- statements ----------------------------------------------------------------------------------


def _under_lease(d: Dialect) -> Executable:
    return lock_held(d.rows("batch", LEASE_COLUMNS), live.c.token)


def _tokens(d: Dialect) -> Executable:
    return (
        select(tokens.c.ref, tokens.c.state, tokens.c.value, tokens.c.due_at)
        .where(d.one_of(tokens.c.ref, "refs"))
        .order_by(tokens.c.ref)
        .with_for_update(read=True, of=tokens)
    )


def _deliver_settled(d: Dialect) -> Executable:
    u = d.rows("batch", _DELIVERY_COLUMNS)
    number = select(live.c.inbox + literal_column("1")).where(live.c.id == u.c.id).scalar_subquery()
    statement: Executable = (
        upsert(d, deliveries)
        .from_select(
            ["run_id", "kind", "name", "state", "inbox", "value", "bytes", "created_at"],
            select(
                u.c.id, literal(str(BoundaryKind.TOKEN), Text), u.c.name, u.c.state, number,
                u.c.value, u.c.bytes, d.clock,
            ).where(u.c.id.is_not(null())),
        )
        .on_conflict_do_nothing(index_elements=["run_id", "kind", "name"])
    )  # fmt: skip
    return statement


def _count_settled(d: Dialect) -> Executable:
    return (
        update(live)
        .where(d.one_of(live.c.id, "ids"))
        .values(inbox=live.c.inbox + literal_column("1"))
    )


def _suspend(d: Dialect) -> Executable:
    u = d.rows("runs", _RUN_COLUMNS)
    held = lock_held(u).cte("held").prefix_with("MATERIALIZED", dialect="postgresql")
    w = d.rows("waits", _WAIT_COLUMNS, "w")
    stored = and_(boundaries.c.run_id == w.c.id, boundaries.c.name == w.c.name)
    first = (
        select(
            w.c.id.label("run_id"),
            func.min(boundaries.c.wake_at).label("at"),
            (func.count() - func.count(boundaries.c.run_id)).label("gone"),
        )
        .select_from(w.outerjoin(boundaries, stored))
        .group_by(w.c.id)
        .cte("first")
        .prefix_with("MATERIALIZED", dialect="postgresql")
    )
    v = d.rows("runs", _RUN_COLUMNS, "v")
    due: ColumnElement[Any] = (
        select(first.c.at).where(first.c.run_id == live.c.id).scalar_subquery()
    )
    gone = select(first.c.gone).where(first.c.run_id == live.c.id).scalar_subquery()
    # A delivery that came since the claim is not waited for again. A run with timers alone waits
    # for none; and one without a single time could never be scheduled. A wait that the store has
    # lost since, when it was set back to an older copy, has nobody who would end it: the next
    # activation stores it anew, with what it started.
    arrived = or_(
        and_(~v.c.timers, live.c.inbox != v.c.inbox),
        func.coalesce(gone, literal_column("0")) > literal_column("0"),
    )
    near = and_(due.is_not(null()), d.millis(d.clock, due) <= v.c.reach_ms)
    none = null()
    return (
        update(live)
        .where(held_by(live, v), d.among(live.c.id, select(held.c.id)))
        .values(
            state=case(
                (arrived, literal_column("'ready'")),
                (and_(v.c.timers, due.is_not(none)), literal_column("'scheduled'")),
                else_=literal_column("'waiting'"),
            ),
            ready_at=case((arrived, d.clock), else_=none),
            due_at=case((arrived, none), else_=due),
            wake_sent=case((or_(arrived, ~near), false()), else_=true()),
            token=none,
            lease_expires_at=none,
            # A wait is a boundary: what was handed back before it does not count any more.
            hand_backs=literal_column("0"),
            active_ms=live.c.active_ms + v.c.active_ms,
        )
        .returning(
            live.c.id,
            live.c.queue,
            live.c.state,
            live.c.wake_sent,
            func.coalesce(d.millis(d.clock, live.c.due_at), literal_column("0")).label("due_in_ms"),
        )
    )
