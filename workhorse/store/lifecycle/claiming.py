"""Claims: ready -> running under a new fence, a whole batch at once.

A claim takes the runs that wakeups named and fills up from the queue; see `picking` for which.

Source: docs/design.md, sections 3 and 4; docs/adr/0005-claims-by-id-and-by-page.md
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    and_,
    bindparam,
    case,
    func,
    literal_column,
    null,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql.expression import Executable

from workhorse.domain.ids import RunId
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import DEFAULT_PRIORITY, ClaimedRun, Lease
from workhorse.store.base.database import Tx, writes_once
from workhorse.store.base.dialect import Dialect
from workhorse.store.base.schema import Number, live, runs
from workhorse.store.durable.histories import with_history
from workhorse.store.lifecycle.cursors import (
    SLOW_COMMIT_US,
    Cursor,
    Head,
    before,
    head_of,
    place_of,
    probes_of,
)
from workhorse.store.lifecycle.picking import (
    PAGE,
    edge_alone,
    edge_of,
    picked_ids,
    picks_of,
    rest_of,
)

MAX_CLAIM: Final = 200
"""Runs that one claim takes at most: larger batches cost more a run, not less."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a claim took.

    Args:
        runs: The runs, each with its lease; by priority, then age.
        cursor: Where the sweep goes on; None when the page was not full: the sweep is at its end.
        full: Whether the page was full, so that more may lie behind it.
        head: Where a look at the head may start that leaves out what is gone from it by now; None
            where that is not known any better than before.
    """

    runs: list[ClaimedRun]
    cursor: Cursor | None = None
    full: bool = False
    head: Head | None = None


@writes_once
def claim(
    tx: Tx,
    *,
    queue: str,
    ids: Sequence[RunId],
    tasks: Sequence[str],
    free: int,
    token: int,
    lease_ms: int,
    scan: bool = True,
    cursor: Cursor | Head | None = None,
    sessions: bool = True,
) -> Claim:
    """Claim the named runs that can run, and fill up from the queue.

    Args:
        ids: Runs that wakeups named; those that are ready, or scheduled and due, are taken.
        tasks: The tasks that the worker knows.
        free: The most runs to take, up to 200.
        token: Drawn for this call by the worker: 63 random bits.
        lease_ms: How long the leases last.
        scan: Whether to fill up from the queue.
        cursor: Where the sweep's next page starts; None is the queue's very head.
        sessions: False leaves runs with a session alone.
    """
    free = min(free, MAX_CLAIM)
    if free <= 0 or not tasks or not (ids or scan):
        return Claim([])
    params: dict[str, Any] = {"queue": queue, "free": free}
    if ids:
        params |= {"ids": json.dumps(list(ids)), "tasks": json.dumps(list(tasks))}
    if scan:
        params["probes"] = probes_of(tasks, cursor)
    form = (bool(ids), scan, sessions)
    if tx.dialect.one_statement:
        taken = tx.fetch_raw(_claim, *form, **params, token=token, lease_ms=lease_ms)
        edge, rest, now_us = _ends_among(taken) if scan else (None, None, None)
    else:
        rest = now_us = None
        edge_params = {name: params[name] for name in ("queue", "probes")} if scan else {}
        edge = tx.fetch(edge_alone, **edge_params)[0].edge if scan else None
        picked = tx.fetch_raw(picked_ids, *form, **params)
        chosen = json.dumps([row[0] for row in picked])
        tx.write(_take, chosen=chosen, token=token, lease_ms=lease_ms)
        taken = tx.fetch_raw(_read_chosen, chosen=chosen) if picked else []
    claimed = with_history(tx, _claimed_runs(tx, taken, token=token, queue=queue))
    claimed.sort(key=lambda run: (-run.priority, run.id))
    end, count = (None, 0) if edge is None else place_of(edge)
    full = count >= PAGE
    head = None
    # An empty page says nothing: the queue may be paused.
    if now_us is not None and end is not None and not isinstance(cursor, Cursor):
        stop = before(place_of(rest)[0]) if rest is not None else end if full else None
        head = head_of(cursor, claimed, stop, now_us - SLOW_COMMIT_US)
    return Claim(claimed, end if full else None, full, head)


def claimed_under(tx: Tx, token: int) -> list[ClaimedRun]:
    """Return what a claim took whose answer was lost."""
    rows = tx.fetch_raw(_read_claimed, token=token)
    claimed = _claimed_runs(tx, [row[1:] for row in rows], token=token, queue="")
    for run, row in zip(claimed, rows, strict=True):
        run.queue = row[0]
    return with_history(tx, claimed)


def turn_was_taken(error: BaseException) -> bool:
    """Say whether a claim failed since another one took the same turn of a session.

    Both saw it free, and the index let one of them pass.
    """
    if not isinstance(error, IntegrityError):
        return False
    state = getattr(error.orig, "sqlstate", None)  # SQLite has none
    return state in (None, "23505")


def _ends_among(rows: list[tuple[Any, ...]]) -> tuple[str | None, str | None, int]:
    """Take the row of a claim's answer that is no run out of it: what it says of the page."""
    at = next(at for at in (-1, *range(len(rows))) if rows[at][0] is None)
    edge, rest, now_us = json.loads(rows.pop(at)[-1])
    return edge, rest, now_us


def _claimed_runs(
    tx: Tx, rows: Sequence[tuple[Any, ...]], *, token: int, queue: str
) -> list[ClaimedRun]:
    """Make runs of rows of `_shown`."""
    read = tx.dialect.read_aware
    claimed = []
    for id_, task, attempt, fence, payload, created_at, started_at, extras in rows:
        run = ClaimedRun(
            id=id_,
            task=task,
            queue=queue,
            payload=payload,
            attempt=attempt,
            lease=Lease(id_, fence, token),
            created_at=read(created_at),
            started_at=read(started_at),
        )
        if extras is not None:
            _add_extras(run, json.loads(extras))
        claimed.append(run)
    return claimed


def _add_extras(run: ClaimedRun, extras: list[Any]) -> None:
    (
        run.inbox, run.hand_backs, run.active_ms, rank, run.session, run.deadline_in_ms, tags,
        run.key, retry, run.timeout_ms, run.traceparent,
    ) = extras  # fmt: skip
    run.priority = 100 - rank
    if tags is not None:
        run.tags = tuple(json.loads(tags))
    if retry is not None:
        run.retry = RetryPolicy.from_json(retry)


# -- statements ----------------------------------------------------------------------------------


def _claim(d: Dialect, named: bool, scan: bool, sessions: bool) -> Executable:
    picks, page, more = picks_of(d, named=named, scan=scan, sessions=sessions)
    chosen = d.among(live.c.id, picks)
    taken = _taking(d, chosen).returning(*(live.c[name] for name in _TAKEN)).cte("taken")
    shown = _shown(d, taken)
    answer = select(*shown).select_from(taken.outerjoin(runs, runs.c.id == taken.c.id))
    if page is None:
        return answer
    edge = edge_of(d, page).scalar_subquery()
    rest = rest_of(d, page, more, picks)
    # A row of its own: in a column it would come with each run.
    ends = select(*(null() for _ in shown[1:]), d.json_list(edge, rest, d.micros(d.now)))
    return answer.union_all(ends)


def _take(d: Dialect) -> Executable:
    return _taking(d, d.one_of(live.c.id, "chosen"))  # type: ignore[no-any-return]


def _taking(d: Dialect, chosen: ColumnElement[bool]) -> Any:
    return (
        update(live)
        .where(chosen)
        .values(
            state="running",
            fence=live.c.fence + literal_column("1"),
            token=bindparam("token", type_=Number),
            lease_expires_at=d.after(d.clock, bindparam("lease_ms", type_=BigInteger)),
            ready_at=null(),
            due_at=null(),
            wake_sent=literal_column("false"),
            started_at=func.coalesce(live.c.started_at, d.clock),
        )
    )


def _read_chosen(d: Dialect) -> Executable:
    return (
        select(*_shown(d, live))
        .join(runs, runs.c.id == live.c.id)
        .where(d.one_of(live.c.id, "chosen"))
    )


def _read_claimed(d: Dialect) -> Executable:
    return (
        select(live.c.queue, *_shown(d, live))
        .join(runs, runs.c.id == live.c.id)
        .where(
            live.c.token == bindparam("token", type_=Number),
            live.c.state == literal_column("'running'"),
        )
    )


def _shown(d: Dialect, row: FromClause) -> list[ColumnElement[Any]]:
    """Return what a claim answers: few columns, for each costs the driver about as much as a row.

    What most runs have nothing of stands in one of them, as a JSON list, which is null for these.
    """
    left = case((row.c.deadline_at.is_(null()), null()), else_=d.millis(d.clock, row.c.deadline_at))
    zero: ColumnElement[int] = literal_column("0")
    usual = and_(
        row.c.inbox == zero,
        row.c.hand_backs == zero,
        row.c.active_ms == zero,
        row.c.rank == literal_column(str(100 - DEFAULT_PRIORITY)),
        row.c.session.is_(null()),
        row.c.deadline_at.is_(null()),
        runs.c.tags.is_(null()),
        runs.c.key.is_(null()),
        runs.c.retry.is_(null()),
        runs.c.timeout_ms.is_(null()),
        runs.c.traceparent.is_(null()),
    )
    extras = d.json_list(
        row.c.inbox, row.c.hand_backs, row.c.active_ms, row.c.rank, row.c.session, left,
        runs.c.tags, runs.c.key, runs.c.retry, runs.c.timeout_ms, runs.c.traceparent,
    )  # fmt: skip
    return [
        row.c.id,
        row.c.task,
        row.c.attempt,
        row.c.fence,
        runs.c.payload,
        runs.c.created_at,
        row.c.started_at,
        case((usual, null()), else_=extras).label("extras"),
    ]


_TAKEN: Final = (
    "id", "task", "attempt", "fence", "inbox", "hand_backs", "active_ms", "rank", "session",
    "deadline_at", "started_at",
)  # fmt: skip
"""What `_shown` looks at of a live row."""
