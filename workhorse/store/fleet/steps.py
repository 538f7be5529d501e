"""The rows of maintenance's steps: which is due, who does it, when it last ran.

A step's row is taken with SKIP LOCKED and its time moved on in the same transaction, before the
work: so any number of maintenance processes does each step once an interval.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import (
    BigInteger,
    Boolean,
    Text,
    bindparam,
    exists,
    not_,
    or_,
    select,
    update,
)
from sqlalchemy.sql.expression import Executable

from workhorse.store.base.database import Tx
from workhorse.store.base.dialect import Dialect, upsert
from workhorse.store.base.schema import Number, steps


@dataclass(frozen=True, slots=True)
class Step:
    """A step's row. `last_at` is when its work last ended; None where it never ran."""

    name: str
    next_at: datetime
    last_at: datetime | None
    last_count: int | None


def take(tx: Tx, name: str, interval_ms: int, *, force: bool = False) -> bool:
    """Take a step that is due (or any, by force) and move it on by its interval."""
    if tx.fetch(_take, name=name, interval_ms=interval_ms, force=force):
        return True
    return bool(tx.fetch(_first, name=name, interval_ms=interval_ms))


def record(tx: Tx, name: str, count: int) -> None:
    """Note that a step's work has been done, and how many rows it changed."""
    tx.write(_record, name=name, done=count)


def list_steps(tx: Tx) -> list[Step]:
    """Return all steps, by name."""
    return [
        Step(
            row.name,
            tx.dialect.read_instant(row.next_at),
            tx.read_instant(row.last_at),
            row.last_count,
        )
        for row in tx.fetch(_list)
    ]


def _take(d: Dialect) -> Executable:
    interval = bindparam("interval_ms", type_=BigInteger)
    due = (
        select(steps.c.name)
        .where(
            steps.c.name == bindparam("name", type_=Text),
            or_(
                steps.c.next_at <= d.now,
                # Written by a clock that was ahead: it would keep the step from being done for as
                # long as that clock was wrong.
                steps.c.next_at > d.after(d.now, interval),
                bindparam("force", type_=Boolean),
            ),
        )
        .with_for_update(skip_locked=True)
    )
    return (
        update(steps)
        .where(d.among(steps.c.name, due))
        .values(next_at=d.after(d.clock, interval))
        .returning(steps.c.name)
    )


def _first(d: Dialect) -> Executable:
    name = bindparam("name", type_=Text)
    # Only where there is no row: an insert would wait for whoever is just moving the row on.
    row = select(name, d.after(d.clock, bindparam("interval_ms", type_=BigInteger))).where(
        not_(exists().where(steps.c.name == name))
    )
    statement: Executable = (
        upsert(d, steps)
        .from_select(["name", "next_at"], row)
        .on_conflict_do_nothing(index_elements=["name"])
        .returning(steps.c.name)
    )
    return statement


def _record(d: Dialect) -> Executable:
    return (
        update(steps)
        .where(steps.c.name == bindparam("name", type_=Text))
        .values(last_at=d.clock, last_count=bindparam("done", type_=Number))
    )


def _list(_d: Dialect) -> Executable:
    return select(steps).order_by(steps.c.name)
