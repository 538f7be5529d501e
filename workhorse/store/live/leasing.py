"""Leases held: the predicate that guards every write, and renewals.

Source: docs/design.md, section 3; docs/adr/0002-a-lease-is-guarded-by-its-token.md
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    Select,
    and_,
    bindparam,
    case,
    literal_column,
    null,
    select,
    update,
)
from sqlalchemy.sql.expression import Executable

from workhorse.domain.runs import Lease
from workhorse.store.base.database import Tx
from workhorse.store.base.dialect import Dialect
from workhorse.store.base.schema import Id, Number, live

LEASE_COLUMNS = {"id": Id, "token": Number}


class Renewal(StrEnum):
    """What became of a lease that was to be renewed."""

    RENEWED = "renewed"
    BUSY = "busy"
    """Somebody holds the row just now, which says nothing: ask again."""
    EXPIRED = "expired"
    """It ran out, and is not revived; nobody has taken the run yet."""
    CANCELLED = "cancelled"
    """Somebody asked to cancel the run; its lease is not extended."""
    LOST = "lost"
    """The run is under another lease, or none."""


def held_by(row: FromClause, u: FromClause) -> ColumnElement[bool]:
    """Say that a live row is still under a lease: the one guard of every write made under it.

    It compares id and token, never a worker's name, and never the fence alone: a database set back
    to an older moment can issue a fence twice, a token it cannot. It does not name the state, which
    a token implies: naming it lures the planner into reading every leased row.
    """
    return and_(row.c.id == u.c.id, row.c.token == u.c.token)


def lock_held(u: FromClause, *columns: Any, delete: bool = False) -> Select[Any]:
    """Return the live rows under the leases of a batch, locked in id order until the commit.

    Every write under a lease joins this. A weaker lock, or a plain join, is no guard: a claim
    passes it. Rows are locked in one order everywhere, so that two batches cannot deadlock.
    """
    return (
        select(live.c.id, *columns)
        .select_from(u.join(live, held_by(live, u)))
        .order_by(live.c.id)
        .with_for_update(key_share=not delete, of=live)
    )


def lease_batch(leases: Sequence[Lease]) -> str:
    """Return the parameter for the rows of some leases."""
    return json.dumps([{"id": lease.run_id, "token": lease.token} for lease in leases])


def renew(tx: Tx, leases: Sequence[Lease], lease_ms: int) -> dict[Lease, Renewal]:
    """Extend leases from now on, all in one statement; answer for each.

    A row that is locked delays nobody: it is passed by, and says nothing. An expired lease is
    never revived, and one whose run is to be cancelled is left to run out.
    """
    if not leases:
        return {}
    batch = lease_batch(leases)
    if tx.dialect.one_statement:
        rows = tx.fetch(_renew, batch=batch, lease_ms=lease_ms)
    else:
        tx.write(_extend, batch=batch, lease_ms=lease_ms)
        rows = tx.fetch(_answer, batch=batch)
    answers = {(str(row.id), row.token): Renewal(row.answer) for row in rows}
    return {lease: answers.get((lease.run_id, lease.token), Renewal.LOST) for lease in leases}


def _renewable(d: Dialect, row: FromClause) -> ColumnElement[bool]:
    return and_(row.c.lease_expires_at > d.clock, row.c.cancel_asked_at.is_(null()))


def _renew(d: Dialect) -> Executable:
    u = d.rows("batch", LEASE_COLUMNS)
    locked = (
        select(live.c.id, live.c.lease_expires_at, live.c.cancel_asked_at)
        .select_from(u.join(live, held_by(live, u)))
        .order_by(live.c.id)
        .with_for_update(key_share=True, of=live, skip_locked=True)
        .cte("locked")
        .prefix_with("MATERIALIZED", dialect="postgresql")
    )
    # The clock is read after the lock: with the statement's start, a renewal that waited would
    # revive a lease that ran out meanwhile.
    extended = (
        update(live)
        .where(
            d.among(live.c.id, select(locked.c.id).where(_renewable(d, locked))),
        )
        .values(lease_expires_at=d.after(d.clock, bindparam("lease_ms", type_=BigInteger)))
        .returning(live.c.id)
        .cte("extended")
    )
    v = d.rows("batch", LEASE_COLUMNS, "v")
    answer = case(
        (extended.c.id.is_not(null()), literal_column("'renewed'")),
        (locked.c.cancel_asked_at.is_not(null()), literal_column("'cancelled'")),
        (locked.c.id.is_not(null()), literal_column("'expired'")),
        else_=literal_column("'busy'"),
    )
    return select(v.c.id, v.c.token, answer.label("answer")).select_from(
        v.join(live, held_by(live, v))
        .outerjoin(locked, locked.c.id == v.c.id)
        .outerjoin(extended, extended.c.id == v.c.id)
    )


def _extend(d: Dialect) -> Executable:
    u = d.rows("batch", LEASE_COLUMNS)
    held = lock_held(u).where(_renewable(d, live)).cte("held")
    return (
        update(live)
        .where(d.among(live.c.id, select(held.c.id)))
        .values(lease_expires_at=d.after(d.clock, bindparam("lease_ms", type_=BigInteger)))
    )


def _answer(d: Dialect) -> Executable:
    """Answer after `_extend`, in its transaction: what could be extended has been."""
    u = d.rows("batch", LEASE_COLUMNS)
    answer = case(
        (live.c.cancel_asked_at.is_not(null()), literal_column("'cancelled'")),
        (live.c.lease_expires_at <= d.clock, literal_column("'expired'")),
        else_=literal_column("'renewed'"),
    )
    return select(live.c.id, live.c.token, answer.label("answer")).select_from(
        u.join(live, held_by(live, u))
    )
