"""Deliveries are stored, and whoever waits for them is woken: for runs that are locked already.

Source: docs/design.md, sections 3 and 7; docs/adr/0012-boundaries-and-deliveries.md
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    Boolean,
    Select,
    Text,
    case,
    exists,
    func,
    insert,
    literal_column,
    not_,
    null,
    select,
    update,
)
from sqlalchemy.sql.expression import Executable

from workhorse.domain.boundaries import BoundaryKind, DeliveryState
from workhorse.domain.hints import Hint
from workhorse.domain.ids import RunId
from workhorse.domain.runs import RunState
from workhorse.store.base.database import Tx
from workhorse.store.base.dialect import Dialect
from workhorse.store.base.schema import Id, Number, boundaries, deliveries, live, outcomes
from workhorse.store.live.turns import has_turn

_NAME_COLUMNS: Final = {"n": Number, "run_id": Id, "kind": Text(), "name": Text()}
_COLUMNS: Final = {
    **_NAME_COLUMNS,
    "state": Text(),
    "inbox": Number,
    "value": Text(),
    "bytes": Number,
    "child": Id,
    "key": Text(),
    "by": Text(),
    "why": Text(),
}
_WAKE_COLUMNS: Final = {"id": Id, "added": Number, "wake": Boolean()}


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDelivery:
    """A delivery that is to be stored.

    `value` is JSON text; `child` is a run that has succeeded, whose result is the value. `key` is
    the sender's idempotency key; `by` and `why` belong to a decision.
    """

    run_id: RunId
    kind: BoundaryKind
    name: str
    state: DeliveryState = DeliveryState.VALUE
    value: str | None = None
    child: RunId | None = None
    key: str | None = None
    by: str | None = None
    why: str | None = None


@dataclass(slots=True)
class Put:
    """What `put` did: the runs that are ready by it, and their wakeups."""

    woken: list[RunId]
    hints: list[Hint]


def put(tx: Tx, new: Sequence[NewDelivery]) -> Put:
    """Store deliveries to runs whose live rows this transaction has locked.

    One whose name has taken a delivery before is left out, and one whose run has ended. A run goes
    on where it waits for what came.
    """
    if not new:
        return Put([], [])
    fresh: dict[tuple[RunId, str, str], tuple[NewDelivery, Any]] = {}
    for row in look(tx, new):
        each = new[row.n]
        if not row.settled:
            fresh.setdefault((each.run_id, each.kind, each.name), (each, row))
    return store(tx, [each for each, _ in fresh.values()], [row for _, row in fresh.values()])


def in_turn(tx: Tx, rows: Sequence[Any]) -> list[Hint]:
    """Return wakeups for live rows that are ready now, without those behind others of a session.

    Args:
        rows: `id`, `queue` and `session` of each.
    """
    in_line = [str(row.id) for row in rows if row.session is not None]
    behind = tx.fetch(_others_turn, ids=json.dumps(in_line)) if in_line else ()
    waiting = {str(row.id) for row in behind}
    return [Hint(RunId(str(row.id)), row.queue) for row in rows if str(row.id) not in waiting]


def look(tx: Tx, new: Sequence[NewDelivery]) -> Sequence[Any]:
    """Return what deliveries, by their place `n`, would meet; none for one whose run has ended.

    A row says how the run stands (`state`, `blockers`, `inbox`), whether it has got to a wait of
    that name (`reached`), and whether that has its delivery (`settled`).
    """
    batch = [
        {"n": n, "run_id": each.run_id, "kind": each.kind, "name": each.name}
        for n, each in enumerate(new)
    ]
    return tx.fetch(_seen, batch=json.dumps(batch))


def store(tx: Tx, new: Sequence[NewDelivery], found: Sequence[Any]) -> Put:
    """Store deliveries that met no other; `found` is what `look` said of each."""
    added: dict[RunId, int] = {}
    wake: dict[RunId, bool] = {}
    batch = []
    for each, row in zip(new, found, strict=True):
        added[each.run_id] = added.get(each.run_id, 0) + 1
        waits = row.state == RunState.WAITING and row.blockers == 0 and bool(row.reached)
        wake[each.run_id] = wake.get(each.run_id, False) or waits
        batch.append(
            {
                "run_id": each.run_id,
                "kind": each.kind,
                "name": each.name,
                "state": each.state,
                "inbox": row.inbox + added[each.run_id],
                "value": each.value,
                "bytes": len((each.value or "").encode()),
                "child": each.child,
                "key": each.key,
                "by": each.by,
                "why": each.why,
            }
        )
    if not batch:
        return Put([], [])
    tx.write(_insert, batch=json.dumps(batch, separators=(",", ":"), ensure_ascii=False))
    counts = [{"id": run_id, "added": n, "wake": wake[run_id]} for run_id, n in added.items()]
    rows = tx.fetch(_count, batch=json.dumps(counts))
    woken = [row for row in rows if wake[RunId(str(row.id))]]
    return Put([RunId(str(row.id)) for row in woken], in_turn(tx, woken))


# -- statements ----------------------------------------------------------------------------------


def _seen(d: Dialect) -> Executable:
    u = d.rows("batch", _NAME_COLUMNS)
    settled = exists().where(
        deliveries.c.run_id == u.c.run_id,
        deliveries.c.kind == u.c.kind,
        deliveries.c.name == u.c.name,
    )
    reached = exists().where(
        boundaries.c.run_id == u.c.run_id,
        boundaries.c.name == u.c.name,
        boundaries.c.kind == u.c.kind,
    )
    return (
        select(
            u.c.n,
            live.c.state,
            live.c.blockers,
            live.c.inbox,
            settled.label("settled"),
            reached.label("reached"),
        )
        .select_from(u.join(live, live.c.id == u.c.run_id))
        .order_by(u.c.n)
    )


def _insert(d: Dialect) -> Executable:
    u = d.rows("batch", _COLUMNS)
    # Copied by the database: a result may be sixteen times larger than any other delivery.
    result: Select[Any] = select(outcomes.c.result).where(outcomes.c.id == u.c.child)
    size: Select[Any] = select(d.octets(outcomes.c.result)).where(outcomes.c.id == u.c.child)
    names = ("run_id", "kind", "name", "state", "inbox")
    return insert(deliveries).from_select(
        [*names, "value", "bytes", "key", "by", "why", "created_at"],
        select(
            *(u.c[name] for name in names),
            func.coalesce(u.c.value, result.scalar_subquery()),
            case((u.c.child.is_(null()), u.c.bytes), else_=size.scalar_subquery()),
            u.c.key,
            u.c.by,
            u.c.why,
            d.clock,
        ),
    )


def _count(d: Dialect) -> Executable:
    u, v = d.rows("batch", _WAKE_COLUMNS), d.rows("batch", _WAKE_COLUMNS, "v")
    return (
        update(live)
        .where(live.c.id == v.c.id, d.among(live.c.id, select(u.c.id)))
        .values(
            inbox=live.c.inbox + v.c.added,
            state=case((v.c.wake, literal_column("'ready'")), else_=live.c.state),
            ready_at=case((v.c.wake, d.clock), else_=live.c.ready_at),
            due_at=case((v.c.wake, null()), else_=live.c.due_at),
            wake_sent=case((v.c.wake, literal_column("false")), else_=live.c.wake_sent),
        )
        .returning(live.c.id, live.c.queue, live.c.session)
    )


def _others_turn(d: Dialect) -> Executable:
    # Not in RETURNING: SQLite's names no tables there, so a sub-select would compare with itself.
    return select(live.c.id).where(d.one_of(live.c.id, "ids"), not_(has_turn(live)))
