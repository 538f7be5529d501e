"""Runs end: the live row goes, the outcome stays, in one write.

The delete of the live row is the guard for "ends once". Whoever ends a run frees the next of its
session, for which a wakeup must follow; the end of one that is watched is noted for who waits.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    FromClause,
    Text,
    and_,
    bindparam,
    case,
    cast,
    delete,
    func,
    insert,
    literal_column,
    null,
    or_,
    select,
)
from sqlalchemy.sql.expression import Executable

from workhorse.domain.hints import Hint
from workhorse.domain.ids import RunId
from workhorse.domain.outcomes import Finish
from workhorse.domain.runs import Failure, Reason, RunState
from workhorse.store.base.database import Tx
from workhorse.store.base.dialect import Dialect, array_text
from workhorse.store.base.schema import Id, Number, attempts, live, outcomes
from workhorse.store.live.leasing import held_by
from workhorse.store.live.noting import note_freed, noting
from workhorse.store.live.turns import has_turn

_COLUMNS = {
    "id": Id,
    "token": Number,
    "signature": Number,
    "final": Boolean(),
    "state": Text(),
    "reason": Text(),
    "result": Text(),
    "error_type": Text(),
    "error_message": Text(),
    "error_traceback": Text(),
}
_STATES = {str(state): state for state in RunState}
_ATTEMPT_COLUMNS = {
    "run_id": Id,
    "attempt": Number,
    "fence": Number,
    "reason": Text(),
    "error_type": Text(),
    "error_message": Text(),
    "error_traceback": Text(),
}


Successes: TypeAlias = Sequence[tuple[RunId, int, str]]
"""Id, token and result of runs that have succeeded under their leases; no run is there twice."""


@dataclass(slots=True)
class Ending:
    """A run that is to end; without `finish` it ends only where its cancel was asked.

    `reason` and `failure` are those of a failed attempt that would have been tried again.
    `token` is that of the lease it ends under; None where its row is locked already and no lease
    is asked for. `signed` says that it is the lease's holder who ends it: the outcome then names
    the token, by which a worker knows its own success again. Recovery signs nothing.
    """

    run_id: RunId
    token: int | None
    finish: Finish | None
    reason: Reason | None = None
    failure: Failure | None = None
    signed: bool = True


@dataclass(slots=True)
class EndedRuns:
    """The runs that have ended, and how. `freed` are those for whose end somebody waits."""

    states: dict[RunId, RunState] = field(default_factory=dict)
    freed: list[RunId] = field(default_factory=list)
    hints: list[Hint] = field(default_factory=list)


def end_runs(tx: Tx, endings: Sequence[Ending], *, under_lease: bool) -> EndedRuns:
    """End runs; those whose lease is gone are left alone, and not in the answer.

    All the batch's rows stay locked until the commit, those that do not end too: so a cancel cannot
    slip in between this statement and one that gives the others back.
    """
    batch = json.dumps([_row(ending) for ending in endings], separators=(",", ":"))
    if tx.dialect.one_statement:
        rows = tx.fetch_raw(_end, under_lease, batch=batch)
    else:
        rows = tx.fetch_raw(_ending, under_lease, batch=batch)
        tx.write(_insert_outcomes, under_lease, batch=batch)
        tx.write(_delete_live, gone=json.dumps([row[0] for row in rows]))
    by_id = {ending.run_id: ending for ending in endings}
    ended = EndedRuns()
    failed = []
    sessions = set()
    for run_id, state, attempt, fence, session, watched in rows:
        ended.states[run_id] = _STATES[state]
        ending = by_id[run_id]
        failure = ending.failure or (ending.finish.failure if ending.finish else None)
        if failure is not None:
            reason = (ending.finish.reason if ending.finish else ending.reason) or Reason.ERROR
            failed.append((run_id, attempt, fence, reason, failure))
        if watched:
            ended.freed.append(run_id)
        if session is not None:
            sessions.add(session)
    note_attempts(tx, failed)
    note_freed(tx, ended.freed)
    if sessions:
        ended.hints = next_turns(tx, sessions)
    return ended


def end_succeeded(tx: Tx, successes: Successes) -> EndedRuns:
    """End runs that have succeeded. PostgreSQL alone.

    What `end_runs` does for these, which are nearly all, at half the cost: three arrays are read in
    place of a document, and the rows need not be locked before they are deleted. A delete locks
    them in the order of their ids too, since the batch comes in that order. The answer is one row,
    which names no run where all is as usual. The statement notes by itself the ends that somebody
    waits for: nothing else is written, so it may be a transaction alone.
    """
    ids, tokens, results = zip(*sorted(successes), strict=True)
    [(there, unusual)] = tx.fetch_raw(
        _end_succeeded,
        ids=array_text(ids),
        held=array_text(list(map(str, tokens))),
        results=array_text(results),
        offered=len(ids),
    )
    written = ids if there is None else json.loads(there)
    ended = EndedRuns(dict.fromkeys(written, RunState.SUCCEEDED))
    sessions = set()
    for run_id, cancelled, session, watched in json.loads(unusual or "[]"):
        if cancelled:
            ended.states[run_id] = RunState.CANCELLED
        if watched:
            ended.freed.append(run_id)
        if session is not None:
            sessions.add(session)
    if sessions:
        ended.hints = next_turns(tx, sessions)
    return ended


def next_turns(tx: Tx, sessions: set[str]) -> list[Hint]:
    """Return wakeups for the runs whose turn it is now in some sessions, where they are due."""
    rows = tx.fetch(_next_turns, sessions=json.dumps(sorted(sessions)))
    return [Hint(RunId(str(row.id)), row.queue) for row in rows]


def note_attempts(tx: Tx, failed: Sequence[tuple[RunId, int, int, Reason, Failure]]) -> None:
    """Keep failed attempts: run, attempt, fence, reason and error of each."""
    if not failed:
        return
    batch = json.dumps(
        [
            {
                "run_id": run_id,
                "attempt": attempt,
                "fence": fence,
                "reason": reason,
                "error_type": failure.error_type,
                "error_message": failure.message,
                "error_traceback": failure.traceback,
            }
            for run_id, attempt, fence, reason, failure in failed
        ]
    )
    tx.write(_note_attempts, batch=batch)


def _row(ending: Ending) -> dict[str, Any]:
    finish = ending.finish
    failure = ending.failure or (finish.failure if finish else None)
    row: dict[str, Any] = {"id": ending.run_id, "token": ending.token, "final": finish is not None}
    if ending.signed:
        row["signature"] = ending.token
    if finish is not None:
        row["state"] = finish.state
        if finish.result is not None:
            row["result"] = finish.result
        if finish.reason is not None:
            row["reason"] = finish.reason
    if failure is not None:
        row |= {
            "error_type": failure.error_type,
            "error_message": failure.message,
            "error_traceback": failure.traceback,
        }
    return row


# -- statements ----------------------------------------------------------------------------------


def _matches(row: FromClause, u: FromClause, *, under_lease: bool) -> ColumnElement[bool]:
    return held_by(row, u) if under_lease else row.c.id == u.c.id


def _ends(row: FromClause, u: FromClause) -> ColumnElement[bool]:
    return or_(u.c.final, row.c.cancel_asked_at.is_not(null()))


def _state(row: FromClause, u: FromClause) -> ColumnElement[Any]:
    """A cancel that was asked decides, whatever the handler came to."""
    return case(
        (row.c.cancel_asked_at.is_not(null()), literal_column("'cancelled'")), else_=u.c.state
    )


_OUTCOME = [
    "id", "state", "reason", "attempt", "fence", "token", "result", "error_type", "error_message",
    "error_traceback", "cancel_asked_at", "started_at", "finished_at",
]  # fmt: skip


def _outcome(d: Dialect, row: FromClause, u: FromClause) -> list[ColumnElement[Any]]:
    reason = case(
        (row.c.cancel_asked_at.is_not(null()), literal_column("'cancelled'")), else_=u.c.reason
    )
    return [
        row.c.id,
        _state(row, u),
        reason,
        row.c.attempt,
        row.c.fence,
        u.c.signature,
        u.c.result,
        u.c.error_type,
        u.c.error_message,
        u.c.error_traceback,
        row.c.cancel_asked_at,
        row.c.started_at,
        d.clock,
    ]


def _end(d: Dialect, under_lease: bool) -> Executable:
    u = d.rows("batch", _COLUMNS)
    # It carries what was offered along: reading the batch a second time costs a third of the whole.
    held = (
        select(
            live.c.id,
            _ends(live, u).label("ends"),
            *(u.c[name] for name in _COLUMNS if name != "id"),
        )
        .select_from(u.join(live, _matches(live, u, under_lease=under_lease)))
        .order_by(live.c.id)
        .with_for_update(of=live)
        .cte("held")
        .prefix_with("MATERIALIZED", dialect="postgresql")
    )
    gone = (
        delete(live)
        .where(d.among(live.c.id, select(held.c.id).where(held.c.ends)))
        .returning(*_kept_of(live))
        .cte("gone")
    )
    kept = (
        insert(outcomes)
        .from_select(
            _OUTCOME,
            select(*_outcome(d, gone, held)).join(held, held.c.id == gone.c.id),
        )
        .returning(outcomes.c.id, outcomes.c.state)
        .cte("kept")
    )
    return select(
        kept.c.id, kept.c.state, gone.c.attempt, gone.c.fence, gone.c.session, gone.c.watched
    ).join(gone, gone.c.id == kept.c.id)


def _kept_of(row: FromClause) -> list[ColumnElement[Any]]:
    """Return what is needed of a live row that goes."""
    return [
        row.c.id, row.c.attempt, row.c.fence, row.c.cancel_asked_at, row.c.started_at,
        row.c.session, row.c.watched,
    ]  # fmt: skip


def _end_succeeded(d: Dialect) -> Executable:
    u = d.arrays({"id": ("ids", Id), "token": ("held", Number), "result": ("results", Text())})
    gone = (
        delete(live)
        .where(held_by(live, u))
        .returning(*_kept_of(live), u.c.token.label("signature"), u.c.result)
        .cte("gone")
    )
    asked = gone.c.cancel_asked_at.is_not(null())
    cancelled: ColumnElement[str] = literal_column("'cancelled'")
    kept = (
        insert(outcomes)
        .from_select(
            [
                "id", "state", "reason", "attempt", "fence", "token", "result", "cancel_asked_at",
                "started_at", "finished_at",
            ],
            select(
                gone.c.id,
                case((asked, cancelled), else_=literal_column("'succeeded'")),
                case((asked, cancelled), else_=null()),
                gone.c.attempt,
                gone.c.fence,
                gone.c.signature,
                gone.c.result,
                gone.c.cancel_asked_at,
                gone.c.started_at,
                d.clock,
            ),
        )
        .cte("kept")
    )  # fmt: skip
    noted = noting(
        d, select(cast(gone.c.id, Text).label("source")).where(gone.c.watched).subquery("watched")
    ).cte("noted")
    # A row for each run costs both sides nearly as much as its outcome's does.
    told = func.json_build_array(gone.c.id, asked, gone.c.session, gone.c.watched)
    unusual = (
        select(cast(func.json_agg(told), Text))
        .where(or_(asked, gone.c.session.is_not(null()), gone.c.watched))
        .scalar_subquery()
    )
    none: ColumnElement[str] = literal_column("'[]'")
    there = select(func.coalesce(cast(func.json_agg(gone.c.id), Text), none)).scalar_subquery()
    count = select(func.count()).select_from(gone).scalar_subquery()
    offered = bindparam("offered", type_=BigInteger)
    return select(case((count < offered, there), else_=null()), unusual).add_cte(kept, noted)


def _ending(d: Dialect, under_lease: bool) -> Executable:
    u = d.rows("batch", _COLUMNS)
    return (
        select(
            live.c.id,
            _state(live, u).label("state"),
            live.c.attempt,
            live.c.fence,
            live.c.session,
            live.c.watched,
        )
        .select_from(u.join(live, _matches(live, u, under_lease=under_lease)))
        .where(_ends(live, u))
    )


def _insert_outcomes(d: Dialect, under_lease: bool) -> Executable:
    u = d.rows("batch", _COLUMNS)
    ending = (
        select(*_outcome(d, live, u))
        .select_from(u.join(live, _matches(live, u, under_lease=under_lease)))
        .where(_ends(live, u))
    )
    return insert(outcomes).from_select(_OUTCOME, ending)


def _delete_live(d: Dialect) -> Executable:
    return delete(live).where(d.one_of(live.c.id, "gone"))


def _note_attempts(d: Dialect) -> Executable:
    u = d.rows("batch", _ATTEMPT_COLUMNS)
    names = list(_ATTEMPT_COLUMNS)
    return insert(attempts).from_select(
        [*names, "ended_at"], select(*(u.c[name] for name in names), d.clock)
    )


def _next_turns(d: Dialect) -> Executable:
    # One that is due may be promoted just now by somebody who still sees another's turn: neither
    # would wake it. Who gets the wakeup promotes it in place.
    due = and_(live.c.state == literal_column("'scheduled'"), live.c.due_at <= d.now)
    return select(live.c.id, live.c.queue).where(
        live.c.session.is_not(null()),
        d.one_of(live.c.session, "sessions"),
        or_(live.c.state == literal_column("'ready'"), due),
        has_turn(live),
    )
