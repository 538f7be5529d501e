"""Runs are inserted: the immutable part, and with it the live row, ready or scheduled.

Ids are the producer's, so an insert repeated after a lost answer cannot double: the live row is
written only together with the immutable one.

Source: docs/adr/0004-a-run-in-three-parts.md; docs/cases.md, case 3.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    FromClause,
    Select,
    Text,
    and_,
    case,
    false,
    func,
    literal_column,
    not_,
    null,
    or_,
    select,
    true,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.expression import Executable

from workhorse.domain.hints import Reach
from workhorse.domain.ids import RunId
from workhorse.domain.instants import to_micros
from workhorse.domain.runs import NewRun
from workhorse.store.base.database import Tx
from workhorse.store.base.dialect import Dialect
from workhorse.store.base.schema import Id, Number, live, runs
from workhorse.store.producing.inserting_plain import (
    PLAIN_COLUMNS,
    document,
    insert_plain,
    is_plain,
    row_of,
    runs_from,
)
from workhorse.store.producing.predecessors import link

_RUN_COLUMNS = PLAIN_COLUMNS | {
    "rerun_of": Id,
    "delay_ms": Number,
    "run_at_us": Number,
    "deadline_ms": Number,
    "reach_ms": Number,
    "parent_id": Id,
    "keep": Boolean(),
    "on_failure": Text(),
    "blockers": Number,
}
_STORED = [*PLAIN_COLUMNS, "rerun_of", "parent_id", "keep", "on_failure"]
_LIVE_COLUMNS = [
    "id", "queue", "task", "state", "rank", "ready_at", "due_at", "wake_sent", "attempt", "fence",
    "inbox", "hand_backs", "active_ms", "session", "line_at", "deadline_at", "watched", "blockers",
]  # fmt: skip


def insert(
    tx: Tx, new: Sequence[NewRun], reach: Reach, rerun_of: RunId | None
) -> dict[str, int | None]:
    """Insert runs; return for each that may not be ready the time until it is due, else None."""
    if rerun_of is None and all(map(is_plain, new)):
        insert_plain(tx, new)
        return {}
    batch = document([row_of(run) | _placing(run, reach, rerun_of) for run in new])
    if tx.dialect.one_statement:
        rows = tx.fetch(_insert_both, batch=batch)
    else:
        fresh = json.dumps([row[0] for row in tx.fetch(_insert_runs, batch=batch)])
        rows = tx.fetch(_insert_live, batch=batch, fresh=fresh)
    due = {str(row[0]): row[1] for row in rows}
    # A run that an earlier try has inserted is linked already, and may have been freed since.
    link(tx, [run for run in new if run.after and run.id in due])
    if len(due) < len(new):
        # Some were inserted before, by a try whose answer was lost: they get the same answer.
        before = json.dumps([run.id for run in new if run.id not in due])
        due |= {str(row.id): row.due_in for row in tx.fetch(_due_of, ids=before)}
    return due


def _placing(run: NewRun, reach: Reach, rerun_of: RunId | None) -> dict[str, Any]:
    """Return what says when a run is due, and on whom it depends."""
    return {
        "rerun_of": rerun_of,
        "delay_ms": run.delay_ms,
        "run_at_us": None if run.run_at is None else to_micros(run.run_at),
        "deadline_ms": run.deadline_ms,
        "reach_ms": reach(run.queue),
        "parent_id": run.parent,
        "keep": run.keep if run.parent is not None else None,
        "on_failure": run.on_failure,
        "blockers": len(run.after),
    }


# -- statements ----------------------------------------------------------------------------------


def _insert_both(d: Dialect) -> Executable:
    u = select(d.rows("batch", _RUN_COLUMNS)).cte("u")  # read once, and used twice
    fresh = runs_from(d, u, _STORED).returning(runs.c.id).cte("fresh")
    rows = _live_rows(d, u, u.c.id.in_(select(fresh.c.id)))
    return (
        postgresql.insert(live)
        .from_select(_LIVE_COLUMNS, rows)
        .add_cte(fresh)
        .returning(live.c.id, _due_in(d).label("due_in"))
    )


def _insert_runs(d: Dialect) -> Executable:
    statement: Executable = runs_from(d, d.rows("batch", _RUN_COLUMNS), _STORED).returning(
        runs.c.id
    )
    return statement


def _insert_live(d: Dialect) -> Executable:
    u = d.rows("batch", _RUN_COLUMNS)
    rows = _live_rows(d, u, d.one_of(u.c.id, "fresh"))
    return (
        sqlite.insert(live)
        .from_select(_LIVE_COLUMNS, rows)
        .returning(live.c.id, _due_in(d).label("due_in"))
    )


def _live_rows(d: Dialect, u: FromClause, fresh: ColumnElement[bool]) -> Select[Any]:
    """Return the live rows of a batch: ready, or scheduled where they are due later.

    Those that come after others wait for them, without a time.
    """
    at = case(
        (u.c.run_at_us.is_not(null()), d.instant_of(u.c.run_at_us)),
        else_=d.after(d.clock, func.coalesce(u.c.delay_ms, literal_column("0"))),
    )
    placed = select(u, at.label("at"), d.clock.label("made_at")).where(fresh).subquery("p")
    p = placed.c
    blocked = p.blockers > literal_column("0")
    later = and_(p.at > p.made_at, not_(blocked))
    near = d.millis(p.made_at, p.at) <= p.reach_ms
    return select(
        p.id,
        p.queue,
        p.task,
        case(
            (blocked, literal_column("'waiting'")),
            (later, literal_column("'scheduled'")),
            else_=literal_column("'ready'"),
        ).label("state"),
        (literal_column("100", BigInteger) - p.priority).label("rank"),
        case((or_(blocked, later), null()), else_=p.made_at).label("ready_at"),
        case((later, p.at), else_=null()).label("due_at"),
        case((and_(later, near), true()), else_=false()).label("wake_sent"),
        literal_column("1").label("attempt"),
        literal_column("0").label("fence"),
        literal_column("0").label("inbox"),
        literal_column("0").label("hand_backs"),
        literal_column("0").label("active_ms"),
        p.session,
        case((p.session.is_(null()), null()), (later, p.at), else_=p.made_at).label("line_at"),
        case((p.deadline_ms.is_(null()), null()), else_=d.after(p.made_at, p.deadline_ms)).label(
            "deadline_at"
        ),
        # A child's end is always told.
        case((p.parent_id.is_not(null()), true()), else_=false()).label("watched"),
        p.blockers,
    )


def _due_of(d: Dialect) -> Executable:
    return select(live.c.id, _due_in(d).label("due_in")).where(d.one_of(live.c.id, "ids"))


def _due_in(d: Dialect) -> ColumnElement[Any]:
    return case((live.c.due_at.is_(null()), null()), else_=d.millis(d.clock, live.c.due_at))
