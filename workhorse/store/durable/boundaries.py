"""Boundaries: what a run has passed, written under its lease; `histories` reads them.

A boundary is written once and never changed; the insert compares. Writes of many runs share one
statement, and what belongs to a boundary (a child, a token, waits that close) the same transaction.

Source: docs/design.md, sections 3 and 7; docs/adr/0012-boundaries-and-deliveries.md
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sqlalchemy import (
    Text,
    and_,
    case,
    exists,
    func,
    literal_column,
    null,
    select,
)
from sqlalchemy.sql.expression import Executable

from workhorse.domain.boundaries import (
    Boundary,
    BoundaryKind,
    Delivered,
    DeliveryState,
    NewBoundary,
)
from workhorse.domain.hints import Hint, Reach
from workhorse.domain.instants import to_micros
from workhorse.domain.recording import NewProgress, ReadValue, Record, RecordAnswer, Recorded
from workhorse.domain.runs import Lease
from workhorse.store.base.database import Tx
from workhorse.store.base.dialect import Dialect, upsert
from workhorse.store.base.schema import Id, Number, boundaries, deliveries, live, progress
from workhorse.store.durable.accompanying import write_extras
from workhorse.store.durable.histories import is_due
from workhorse.store.live.leasing import LEASE_COLUMNS, held_by, lease_batch, lock_held

_COLUMNS: Final = {
    "id": Id,
    "token": Number,
    "name": Text(),
    "kind": Text(),
    "seq": Number,
    "value": Text(),
    "bytes": Number,
    "fingerprint": Text(),
    "detail": Text(),
    "delay_ms": Number,
    "wake_us": Number,
}
_NAME_COLUMNS: Final = {"id": Id, "kind": Text(), "name": Text()}
_PROGRESS_COLUMNS: Final = {"id": Id, "token": Number, "value": Text()}


@dataclass(slots=True)
class Written:
    """What `record` did: an answer for each record, in order, and the wakeups that must follow."""

    answers: list[RecordAnswer] = field(default_factory=list)
    hints: list[Hint] = field(default_factory=list)


def lock_leases(tx: Tx, leases: Sequence[Lease]) -> None:
    """Lock the rows of all leases of a transaction at its start, in one order.

    A transaction that first records and then settles would otherwise lock in two rounds, and could
    deadlock with another that has the same rows.
    """
    if leases and tx.dialect.one_statement:
        tx.fetch(_lock, batch=lease_batch(leases))


def record(tx: Tx, records: Sequence[Record], *, reach: Reach) -> Written:
    """Write boundaries under their leases; nothing is stored under a lease that is gone.

    Where a boundary of that name stands already it is compared: an equal one is answered as
    stored, since an earlier try of the same write may have lost its answer.

    Args:
        reach: How far ahead a queue's wakeups can be sent, for children.
    """
    written = Written()
    if not records:
        return written
    first = {_key(each): at for at, each in reversed(list(enumerate(records)))}
    if len(first) < len(records):
        return _in_turn(tx, records, set(first.values()), reach)
    batch = _batch([(each.lease, each.boundary) for each in records])
    fresh = {(str(row.run_id), row.name): row for row in tx.fetch(_insert, batch=batch)}
    mine = {at for at, each in enumerate(records) if _key(each) in fresh}
    others = [each for at, each in enumerate(records) if at not in mine]
    standing = _standing_rows(tx, others) if others else {}
    for at, each in enumerate(records):
        if at in mine:
            stored = _as_stored(tx, each.boundary, fresh[_key(each)])
            written.answers.append(RecordAnswer(Recorded.STORED, stored))
        else:
            written.answers.append(_compare(each, standing))
    extras = [each for at, each in enumerate(records) if at in mine]
    if any(each.token or each.child or each.closes or each.cancels for each in extras):
        written.hints += write_extras(tx, extras, reach=reach)
    if any(each.closes for each in records):
        written.answers = _with_kept(tx, records, written.answers)
    return written


def _with_kept(
    tx: Tx, records: Sequence[Record], answers: Sequence[RecordAnswer]
) -> list[RecordAnswer]:
    """Say what had come already for waits that were to be closed, also when a write is repeated."""
    stored = [
        each
        for each, answer in zip(records, answers, strict=True)
        if each.closes and answer.result is Recorded.STORED
    ]
    asked = [
        {"id": each.lease.run_id, "kind": kind, "name": name}
        for each in stored
        for kind, name in each.closes
    ]
    kept: dict[str, list[Delivered]] = {}
    for row in tx.fetch(_came, batch=json.dumps(asked)) if asked else ():
        came = Delivered(
            kind=BoundaryKind(row.kind),
            name=row.name,
            state=DeliveryState(row.state),
            inbox=row.inbox,
            value=row.value,
            at=tx.read_instant(row.created_at),
        )
        kept.setdefault(str(row.run_id), []).append(came)
    return [
        replace(
            answer,
            kept=tuple(
                came
                for came in kept.get(str(each.lease.run_id), ())
                if (came.kind, came.name) in each.closes
            ),
        )
        for each, answer in zip(records, answers, strict=True)
    ]


def _in_turn(tx: Tx, records: Sequence[Record], first: set[int], reach: Reach) -> Written:
    """Write a batch in which a run's name is said more than once: each is judged by itself.

    A worker that lost a lease and claimed the run again may offer both: which of them was inserted
    could not be told from its name.
    """
    parts: tuple[list[int], list[int]] = ([], [])
    for at in range(len(records)):
        parts[at not in first].append(at)
    answers: dict[int, RecordAnswer] = {}
    written = Written()
    for part in parts:
        done = record(tx, [records[at] for at in part], reach=reach)
        answers |= zip(part, done.answers, strict=True)
        written.hints += done.hints
    written.answers = [answers[at] for at in range(len(records))]
    return written


def _key(record: Record) -> tuple[str, str]:
    return str(record.lease.run_id), record.boundary.name


def read_values(tx: Tx, requests: Sequence[ReadValue]) -> list[str | None]:
    """Return values by name, in order; None where there is none."""
    if not requests:
        return []
    batch = json.dumps(
        [{"id": each.run_id, "kind": each.kind, "name": each.name} for each in requests]
    )
    found = {
        (str(row.run_id), row.asked, row.name): row.value for row in tx.fetch(_values, batch=batch)
    }
    return [found.get((str(each.run_id), each.kind, each.name)) for each in requests]


def write_progress(tx: Tx, items: Sequence[NewProgress]) -> None:
    """Replace what runs say of their progress, under their leases; the last of a run stands."""
    if not items:
        return
    latest = {each.lease.run_id: each for each in items}
    batch = json.dumps(
        [
            {"id": each.lease.run_id, "token": each.lease.token, "value": each.value}
            for each in latest.values()
        ]
    )
    tx.write(_write_progress, batch=batch)


def insert_waits(tx: Tx, waits: Sequence[tuple[Lease, NewBoundary]]) -> None:
    """Write the boundaries of waits that an activation ends at; one that stands is left alone."""
    if waits:
        tx.fetch(_insert, batch=_batch(waits))


def _batch(rows: Sequence[tuple[Lease, NewBoundary]]) -> str:
    return json.dumps(
        [
            {
                "id": lease.run_id,
                "token": lease.token,
                "name": new.name,
                "kind": new.kind,
                "seq": new.seq,
                "value": new.value,
                "bytes": new.size_bytes,
                "fingerprint": new.fingerprint,
                "detail": new.detail,
                "delay_ms": new.delay_ms,
                "wake_us": None if new.wake_at is None else to_micros(new.wake_at),
            }
            for lease, new in rows
        ],
        separators=(",", ":"),
        ensure_ascii=False,
    )


def _as_stored(tx: Tx, new: NewBoundary, row: Any) -> Boundary:
    return Boundary(
        name=new.name,
        kind=new.kind,
        seq=new.seq,
        value=new.value,
        fingerprint=new.fingerprint,
        detail=new.detail,
        wake_at=tx.read_instant(row.wake_at),
        absolute=new.wake_at is not None,
        due=bool(row.due),
    )


def _standing_rows(tx: Tx, records: Sequence[Record]) -> dict[tuple[str, int, str], Boundary]:
    batch = _batch([(each.lease, replace(each.boundary, value=None)) for each in records])
    return {
        (str(row.run_id), row.token, row.name): Boundary(
            name=row.name,
            kind=BoundaryKind(row.kind),
            seq=row.seq,
            value=row.value,
            fingerprint=row.fingerprint,
            detail=row.detail,
            wake_at=tx.read_instant(row.wake_at),
            absolute=bool(row.absolute),
            due=bool(row.due),
            created_at=tx.read_instant(row.created_at),
        )
        for row in tx.fetch(_standing, batch=batch)
    }


def _compare(record: Record, standing: dict[tuple[str, int, str], Boundary]) -> RecordAnswer:
    lease, new = record.lease, record.boundary
    found = standing.get((str(lease.run_id), lease.token, new.name))
    if found is None:
        return RecordAnswer(Recorded.LOST)
    same = (found.kind, found.value, found.fingerprint, found.detail) == (
        new.kind,
        new.value,
        new.fingerprint,
        new.detail,
    )
    return RecordAnswer(Recorded.STORED if same else Recorded.EXISTS, found)


# -- statements ----------------------------------------------------------------------------------


def _lock(d: Dialect) -> Executable:
    return lock_held(d.rows("batch", LEASE_COLUMNS), delete=True)


def _insert(d: Dialect) -> Executable:
    u = d.rows("batch", _COLUMNS)
    held = (
        lock_held(u, live.c.token, live.c.fence)
        .cte("held")
        .prefix_with("MATERIALIZED", dialect="postgresql")
    )
    v = d.rows("batch", _COLUMNS, "v")
    fence = (
        select(func.max(held.c.fence))
        .where(held.c.id == v.c.id, held.c.token == v.c.token)
        .scalar_subquery()
    )
    wake_at = case(
        (v.c.wake_us.is_not(null()), d.instant_of(v.c.wake_us)),
        (v.c.delay_ms.is_not(null()), d.after(d.clock, v.c.delay_ms)),
        else_=null(),
    )
    rows = select(
        v.c.id, v.c.name, v.c.kind, v.c.seq, v.c.value, v.c.bytes, v.c.fingerprint, v.c.detail,
        wake_at, v.c.wake_us.is_not(null()), fence, d.clock,
    ).where(exists().where(held.c.id == v.c.id, held.c.token == v.c.token))  # fmt: skip
    statement: Executable = (
        upsert(d, boundaries)
        .from_select(
            [
                "run_id", "name", "kind", "seq", "value", "bytes", "fingerprint", "detail",
                "wake_at", "absolute", "fence", "created_at",
            ],
            rows,
        )
        .on_conflict_do_nothing(index_elements=["run_id", "name"])
        .returning(
            boundaries.c.run_id, boundaries.c.name, boundaries.c.wake_at,
            is_due(d, boundaries.c.wake_at).label("due"),
        )
    )  # fmt: skip
    return statement


def _standing(d: Dialect) -> Executable:
    u = d.rows("batch", _COLUMNS)
    return select(
        boundaries, live.c.token, is_due(d, boundaries.c.wake_at).label("due")
    ).select_from(
        u.join(live, held_by(live, u)).join(
            boundaries, and_(boundaries.c.run_id == u.c.id, boundaries.c.name == u.c.name)
        )
    )


def _values(d: Dialect) -> Executable:
    u = d.rows("batch", _NAME_COLUMNS)
    v = d.rows("batch", _NAME_COLUMNS, "v")
    passed = select(
        boundaries.c.run_id, u.c.kind.label("asked"), boundaries.c.name, boundaries.c.value
    ).select_from(
        u.join(
            boundaries,
            and_(
                u.c.kind.is_(null()),
                boundaries.c.run_id == u.c.id,
                boundaries.c.name == u.c.name,
            ),
        )
    )
    sent = select(deliveries.c.run_id, v.c.kind, deliveries.c.name, deliveries.c.value).select_from(
        v.join(
            deliveries,
            and_(
                deliveries.c.run_id == v.c.id,
                deliveries.c.kind == v.c.kind,
                deliveries.c.name == v.c.name,
            ),
        )
    )
    return passed.union_all(sent)


def _came(d: Dialect) -> Executable:
    u = d.rows("batch", _NAME_COLUMNS)
    return select(deliveries).select_from(
        u.join(
            deliveries,
            and_(
                deliveries.c.run_id == u.c.id,
                deliveries.c.kind == u.c.kind,
                deliveries.c.name == u.c.name,
                deliveries.c.state != literal_column("'closed'"),
            ),
        )
    )


def _write_progress(d: Dialect) -> Executable:
    u = d.rows("batch", _PROGRESS_COLUMNS)
    held = (
        lock_held(u, live.c.fence, u.c.value)
        .cte("held")
        .prefix_with("MATERIALIZED", dialect="postgresql")
    )
    insert = upsert(d, progress).from_select(
        ["run_id", "value", "fence", "at"],
        # The condition keeps SQLite from reading ON as a join's.
        select(held.c.id, held.c.value, held.c.fence, d.clock).where(held.c.id.is_not(null())),
    )
    statement: Executable = insert.on_conflict_do_update(
        index_elements=["run_id"],
        set_={name: getattr(insert.excluded, name) for name in ("value", "fence", "at")},
    )
    return statement
