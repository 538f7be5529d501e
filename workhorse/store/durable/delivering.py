"""Deliveries: values from outside, and time-outs, for runs that wait or will.

Whoever delivers locks the run's live row by id first and decides in the next statement on what it
found. A name takes one delivery; the first one stands, be it a value, a time-out or a close.

Source: docs/design.md, sections 2, 3 and 7; docs/adr/0012-boundaries-and-deliveries.md
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Text,
    and_,
    bindparam,
    exists,
    func,
    literal_column,
    not_,
    null,
    or_,
    select,
)
from sqlalchemy.sql.expression import Executable

from workhorse.domain.boundaries import MAX_UNREAD, BoundaryKind, DeliveryResult, DeliveryState
from workhorse.domain.hints import Hint
from workhorse.domain.ids import RunId
from workhorse.domain.values import fingerprint
from workhorse.errors import DeliveryLimitExceededError, RunNotFoundError
from workhorse.store.base.database import Tx
from workhorse.store.base.dialect import Dialect
from workhorse.store.base.schema import Id, boundaries, deliveries, live, outcomes
from workhorse.store.durable.judging import judge
from workhorse.store.durable.putting import NewDelivery, look, put, store
from workhorse.store.durable.tokens import settle_due

SENT: Final = (BoundaryKind.SIGNAL, BoundaryKind.HUMAN)
"""What people and programs send to a run by its id; the other kinds come by themselves."""


def deliver(
    tx: Tx,
    run_id: RunId,
    kind: BoundaryKind,
    name: str,
    value: str,
    *,
    key: str | None,
    by: str | None = None,
    why: str | None = None,
) -> tuple[DeliveryResult, list[Hint]]:
    """Deliver a value to a run under a name; answer what came of it, and the wakeups to follow.

    A run that waits for the name goes on; for another the value is kept. A value that comes after
    a wait's time, but before somebody has recorded its time-out, is in time.

    Args:
        value: JSON text.
        key: Makes a repetition known again: the same key and value answer `DUPLICATE`.
        by: Who decided.
        why: His reason.

    Raises:
        RunNotFoundError: No run has that id.
        DeliveryConflictError: Another value was delivered under the same key before; it stands.
        DeliveryLimitExceededError: 1,000 values lie with the run unread.
    """
    if not tx.fetch(_lock_one, id=run_id):
        if tx.fetch(_has_ended, id=run_id):
            return DeliveryResult.RUN_FINISHED, []
        raise RunNotFoundError(
            f"run {run_id} is not in this store; check the id, the database and the environment"
        )
    new = NewDelivery(run_id=run_id, kind=kind, name=name, value=value, key=key, by=by, why=why)
    found = look(tx, [new])[0]
    if found.settled:
        standing = tx.fetch(_standing, id=run_id, kind=kind, name=name)[0]
        first = standing.state, standing.value, standing.key
        return judge(f"run {run_id}: {kind} {name!r}", *first, value=value, key=key), []
    # Each delivery is in the inbox, so the count is worth its reads only near the limit.
    if kind in SENT and not found.reached and found.inbox >= MAX_UNREAD:
        unread = tx.fetch(_unread, id=run_id)[0].unread
        if unread >= MAX_UNREAD:
            raise DeliveryLimitExceededError(
                f"run {run_id}: {unread:,} signals and decisions lie unread, the most that are "
                f"kept; {kind} {name!r} was not stored. Deliver it again when the run has got to "
                "its waits, or send fewer names"
            )
    done = store(tx, [new], [found])
    return (DeliveryResult.DELIVERED if done.woken else DeliveryResult.KEPT), done.hints


def was_delivered(
    tx: Tx, run_id: RunId, kind: BoundaryKind, name: str, value: str, *, key: str
) -> bool:
    """Say whether a run has taken this value under this key, also where it has ended since.

    Its sender may not have heard of that: his value may be what the run has ended by.
    """
    for row in tx.fetch(_standing, id=run_id, kind=kind, name=name):
        if (row.state, row.key) == (DeliveryState.VALUE, key):
            return row.value == value or fingerprint(row.value) == fingerprint(value)
    return False


def time_out(tx: Tx, ids: Sequence[RunId]) -> list[RunId]:
    """Record the time-outs of waits whose time has come, for runs that this transaction has locked.

    A token is settled first, and what it says then is delivered: it may have been completed.
    Returns the runs that are ready by it; the others were due for a timer.
    """
    overdue = tx.fetch(_overdue_waits, ids=json.dumps(list(ids)))
    refs = {json.loads(row.detail) for row in overdue if row.kind == BoundaryKind.TOKEN}
    ends = settle_due(tx, sorted(refs)) if refs else {}
    new = []
    for row in overdue:
        end = ends.get(json.loads(row.detail)) if row.kind == BoundaryKind.TOKEN else None
        new.append(
            NewDelivery(
                run_id=RunId(str(row.run_id)),
                kind=BoundaryKind(row.kind),
                name=row.name,
                state=end.state if end is not None else DeliveryState.TIMED_OUT,
                value=end.value if end is not None else None,
            )
        )
    return put(tx, new).woken


# -- statements ----------------------------------------------------------------------------------


def _id() -> Any:
    return bindparam("id", type_=Id)


def _lock_one(_d: Dialect) -> Executable:
    return select(live.c.id).where(live.c.id == _id()).with_for_update(key_share=True)


def _has_ended(_d: Dialect) -> Executable:
    return select(outcomes.c.id).where(outcomes.c.id == _id())


def _standing(_d: Dialect) -> Executable:
    return select(deliveries.c.state, deliveries.c.value, deliveries.c.key).where(
        deliveries.c.run_id == _id(),
        deliveries.c.kind == bindparam("kind", type_=Text),
        deliveries.c.name == bindparam("name", type_=Text),
    )


def _unread(_d: Dialect) -> Executable:
    reached = exists().where(
        boundaries.c.run_id == deliveries.c.run_id,
        boundaries.c.name == deliveries.c.name,
        boundaries.c.kind == deliveries.c.kind,
    )
    return select(func.count().label("unread")).where(
        deliveries.c.run_id == _id(),
        or_(*(deliveries.c.kind == literal_column(f"'{kind}'") for kind in SENT)),
        deliveries.c.state == literal_column("'value'"),
        not_(reached),
    )


def _overdue_waits(d: Dialect) -> Executable:
    b = boundaries.c
    awaited: ColumnElement[bool] = or_(
        *(
            b.kind == literal_column(f"'{kind}'")
            for kind in (*SENT, BoundaryKind.TOKEN, BoundaryKind.CHILD)
        )
    )
    settled = exists().where(
        deliveries.c.run_id == b.run_id, deliveries.c.kind == b.kind, deliveries.c.name == b.name
    )
    return (
        select(b.run_id, b.kind, b.name, b.detail)
        .where(
            d.one_of(b.run_id, "ids"),
            b.wake_at.is_not(null()),  # said for the index
            and_(b.wake_at <= d.clock, awaited, not_(settled)),
        )
        .order_by(b.run_id, b.wake_at, b.seq)  # who is late says so in the order it was to be
    )
