"""What is written together with a boundary: a child, a token, waits that close, children that end.

All of it happens in the boundary's transaction, under the lock of the run's row.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from sqlalchemy import Text, func, literal, literal_column, select, true, update
from sqlalchemy.sql.expression import Executable

from workhorse.domain.boundaries import DeliveryState
from workhorse.domain.hints import Hint, Reach
from workhorse.domain.recording import Record
from workhorse.domain.runs import Enqueued, NewRun
from workhorse.store.base.database import Tx
from workhorse.store.base.dialect import Dialect, upsert
from workhorse.store.base.schema import Id, LinkKind, deliveries, live
from workhorse.store.durable.freeing import cancel_children
from workhorse.store.durable.links import write_links
from workhorse.store.durable.tokens import create_tokens
from workhorse.store.producing.enqueueing import enqueue, hints_of

_CLOSED_COLUMNS = {"id": Id, "kind": Text(), "name": Text()}


def write_extras(tx: Tx, records: Sequence[Record], *, reach: Reach) -> list[Hint]:
    """Write what belongs to boundaries that were just inserted; return the wakeups to follow."""
    hints: list[Hint] = []
    create_tokens(tx, [(record.token, record.lease.run_id) for record in records if record.token])
    started = [record for record in records if record.child is not None]
    if started:
        hints += _start_children(tx, started, reach)
    closed = [
        {"id": record.lease.run_id, "kind": kind, "name": name}
        for record in records
        for kind, name in record.closes
    ]
    if closed:
        tx.write(_close, batch=json.dumps(closed))
    ended = [child for record in records for child in record.cancels]
    if ended:
        parents = {record.lease.run_id for record in records if record.cancels}
        hints += cancel_children(tx, ended, parents=sorted(parents)).hints
    return hints


def _start_children(tx: Tx, records: Sequence[Record], reach: Reach) -> list[Hint]:
    runs: list[NewRun] = [record.child.run for record in records if record.child]
    done: list[Enqueued] = enqueue(tx, runs, reach=reach)
    rows = [
        {"source": run.id, "run_id": record.lease.run_id, "name": record.boundary.name}
        for record, run in zip(records, runs, strict=True)
    ]
    tx.write(write_links, LinkKind.CHILD, batch=json.dumps(rows))
    # Its end is to cancel the children that it leaves behind.
    tx.write(_watch, ids=json.dumps(sorted({record.lease.run_id for record in records})))
    return hints_of(runs, done, reach=reach)


def _watch(d: Dialect) -> Executable:
    return update(live).where(d.one_of(live.c.id, "ids")).values(watched=true())


def _close(d: Dialect) -> Executable:
    u = d.rows("batch", _CLOSED_COLUMNS)
    number = select(live.c.inbox).where(live.c.id == u.c.id).scalar_subquery()
    statement: Executable = (
        upsert(d, deliveries)
        .from_select(
            ["run_id", "kind", "name", "state", "inbox", "bytes", "created_at"],
            select(
                u.c.id, u.c.kind, u.c.name, literal(str(DeliveryState.CLOSED), Text),
                func.coalesce(number, literal_column("0")), literal_column("0"), d.clock,
            ).where(u.c.id.is_not(None)),
        )
        .on_conflict_do_nothing(index_elements=["run_id", "kind", "name"])
    )  # fmt: skip
    return statement
