"""What operators look at: runs whole, queues, counts. Everything listed is bounded or paged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import (
    Column,
    MetaData,
    SmallInteger,
    Table,
    Text,
    bindparam,
    func,
    literal_column,
    null,
    select,
    tuple_,
)
from sqlalchemy.sql.expression import Executable

from workhorse.domain.ids import RunId
from workhorse.domain.runs import Reason, RunState, RunView
from workhorse.errors import RunNotFoundError
from workhorse.store.base.database import Tx
from workhorse.store.base.dialect import Dialect
from workhorse.store.base.schema import VIEW, Id, Instant, Number, live, outcomes, queues
from workhorse.store.live.turns import open_queue

COUNTED: Final = 1000
"""Ready runs are counted up to this: more would cost more and say no more."""

run_view: Final = Table(
    VIEW,
    MetaData(),
    Column("id", Id),
    *(Column(name, Text) for name in ("task", "queue", "state", "payload", "session", "tags")),
    *(Column(name, Text) for name in ("key", "reason", "result", "error_type")),
    *(Column(name, Text) for name in ("error_message", "error_traceback")),
    *(Column(name, Number) for name in ("attempt", "fence")),
    Column("priority", SmallInteger),
    *(Column(name, Instant) for name in ("created_at", "due_at", "deadline_at", "started_at")),
    *(Column(name, Instant) for name in ("finished_at", "lease_expires_at", "cancel_asked_at")),
    *(Column(name, Id) for name in ("rerun_of", "parent_id")),
    Column("progress", Text),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """A queue as an operator sees it: whether it is paused, and its unfinished runs by state."""

    name: str
    paused_at: datetime | None = None
    paused_by: str | None = None
    paused_why: str | None = None
    scheduled: int = 0
    ready: int = 0
    running: int = 0
    waiting: int = 0


def show(tx: Tx, run_id: RunId) -> RunView:
    """Return a run whole.

    Raises:
        RunNotFoundError: No run has that id.
    """
    rows = tx.fetch(_show, id=run_id)
    if not rows:
        raise RunNotFoundError(
            f"run {run_id} is not in this store; check the id, the database and the environment"
        )
    return _view(tx, rows[0])


def list_runs(
    tx: Tx,
    *,
    state: RunState | None = None,
    task: str | None = None,
    queue: str | None = None,
    limit: int = 50,
    before: RunId | None = None,
) -> list[RunView]:
    """Return runs, the newest first; `before` is the last id of the page that came before."""
    given = {"state": state, "task": task, "queue": queue, "before": before}
    form = tuple(name for name, value in given.items() if value is not None)
    params = {name: value for name, value in given.items() if value is not None}
    return [_view(tx, row) for row in tx.fetch(_list, form, **params, most=limit)]


def list_queues(tx: Tx) -> list[QueueView]:
    """Return all queues that hold unfinished runs or were paused once, by name."""
    views: dict[str, dict[str, Any]] = {}
    for row in tx.fetch(_queue_rows):
        views[row.name] = {
            "paused_at": tx.read_instant(row.paused_at),
            "paused_by": row.paused_by,
            "paused_why": row.paused_why,
        }
    for row in tx.fetch(_queue_counts):
        views.setdefault(row.queue, {})[row.state] = row.runs
    return [QueueView(name=name, **views[name]) for name in sorted(views)]


def counts(tx: Tx) -> dict[RunState, int]:
    """Return how many runs there are in each state."""
    found = {RunState(row.state): int(row.runs) for row in tx.fetch(_counts)}
    return {state: found.get(state, 0) for state in RunState}


def unknown_tasks(tx: Tx, known: Sequence[str]) -> list[tuple[str, str, int]]:
    """Return (queue, task, ready runs) for tasks that nobody here knows."""
    rows = tx.fetch(_unknown, known=json.dumps(list(known)))
    return [(row.queue, row.task, row.runs) for row in rows]


def open_queues(tx: Tx) -> list[str]:
    """Return the queues that hold ready runs and are not paused."""
    return [row.queue for row in tx.fetch(_open_queues)]


def ready_to_top_up(tx: Tx, queue: str, limit: int) -> tuple[int, list[RunId]]:
    """Return how many runs of a queue are ready (1,000 at most), and the ids of the first."""
    rows = tx.fetch(_ready, queue=queue, most=COUNTED)
    first = sorted(rows, key=lambda row: (row.rank, row.ready_at, str(row.id)))[:limit]
    return len(rows), [RunId(str(row.id)) for row in first]


@dataclass(frozen=True, slots=True)
class ReadyPage:
    """A page of a queue's ready runs; `after` is where the next one starts, None at the end."""

    ids: list[RunId]
    after: ReadyCursor | None


@dataclass(frozen=True, slots=True)
class ReadyCursor:
    """Where in the index a page ended. Opaque: its instant is the driver's own value."""

    task: str
    rank: int
    ready_at: Any
    last: RunId


def ready_page(tx: Tx, queue: str, after: ReadyCursor | None, limit: int) -> ReadyPage:
    """Return the next ready runs of a queue, in the order of their index.

    Args:
        limit: How many at most; it stands in the statement, so keep to few different ones.
    """
    if after is None:
        rows = tx.fetch(_ready_page, False, limit, queue=queue)
    else:
        rows = tx.fetch(
            _ready_page,
            True,
            limit,
            queue=queue,
            task=after.task,
            rank=after.rank,
            ready_at=after.ready_at,
            last=after.last,
        )
    ids = [RunId(str(row.id)) for row in rows]
    if len(ids) < limit:
        return ReadyPage(ids, None)
    end = rows[-1]
    return ReadyPage(ids, ReadyCursor(end.task, end.rank, end.ready_at, ids[-1]))


def _view(tx: Tx, row: Any) -> RunView:
    read = tx.read_instant
    return RunView(
        id=RunId(str(row.id)),
        task=row.task,
        queue=row.queue,
        state=RunState(row.state),
        payload=row.payload,
        attempt=row.attempt,
        fence=row.fence,
        priority=row.priority,
        created_at=tx.dialect.read_instant(row.created_at),
        session=row.session,
        tags=tuple(json.loads(row.tags)) if row.tags else (),
        key=row.key,
        due_at=read(row.due_at),
        deadline_at=read(row.deadline_at),
        started_at=read(row.started_at),
        finished_at=read(row.finished_at),
        lease_expires_at=read(row.lease_expires_at),
        cancel_asked_at=read(row.cancel_asked_at),
        reason=None if row.reason is None else Reason(row.reason),
        result=row.result,
        error_type=row.error_type,
        error_message=row.error_message,
        error_traceback=row.error_traceback,
        rerun_of=_maybe_id(row.rerun_of),
        parent_id=_maybe_id(row.parent_id),
        progress=row.progress,
    )


def _maybe_id(raw: Any) -> RunId | None:
    return None if raw is None else RunId(str(raw))


# -- statements ----------------------------------------------------------------------------------


def _show(_d: Dialect) -> Executable:
    return select(run_view).where(run_view.c.id == bindparam("id", type_=Id))


def _list(_d: Dialect, given: tuple[str, ...]) -> Executable:
    statement = select(run_view)
    for name in given:
        if name == "before":
            statement = statement.where(run_view.c.id < bindparam("before", type_=Id))
        else:
            statement = statement.where(run_view.c[name] == bindparam(name, type_=Text))
    return statement.order_by(run_view.c.id.desc()).limit(bindparam("most", type_=Number))


def _queue_rows(_d: Dialect) -> Executable:
    return select(queues)


def _queue_counts(_d: Dialect) -> Executable:
    return select(live.c.queue, live.c.state, func.count().label("runs")).group_by(
        live.c.queue, live.c.state
    )


def _counts(_d: Dialect) -> Executable:
    unfinished = select(live.c.state, func.count().label("runs")).group_by(live.c.state)
    finished = select(outcomes.c.state, func.count().label("runs")).group_by(outcomes.c.state)
    return unfinished.union_all(finished)


def _unknown(d: Dialect) -> Executable:
    return (
        select(live.c.queue, live.c.task, func.count().label("runs"))
        .where(
            live.c.state == literal_column("'ready'"),
            live.c.task.not_in(select(d.each("known").c.value)),
        )
        .group_by(live.c.queue, live.c.task)
        .order_by(live.c.queue, live.c.task)
    )


def _open_queues(_d: Dialect) -> Executable:
    """Walk from one queue's name to the next: a probe each, however many runs are ready."""
    # Not by min(): where the statistics know of no ready run, it reads them all for the least.
    queue = (
        select(live.c.queue)
        .where(live.c.state == literal_column("'ready'"))
        .order_by(live.c.queue)
        .limit(literal_column("1"))
    )
    walk = select(queue.scalar_subquery().label("queue")).cte("walk", recursive=True)
    after = queue.where(live.c.queue > walk.c.queue).correlate(walk).scalar_subquery()
    walk = walk.union_all(select(after).where(walk.c.queue.is_not(null())))
    return select(walk.c.queue).where(walk.c.queue.is_not(null()), open_queue(walk.c.queue))


def _ready(_d: Dialect) -> Executable:
    return (
        select(live.c.id, live.c.rank, live.c.ready_at)
        .where(
            live.c.queue == bindparam("queue", type_=Text),
            live.c.state == literal_column("'ready'"),
        )
        # The index's own order: without one, the planner may read the table up to where they lie.
        .order_by(live.c.task, live.c.rank, live.c.ready_at, live.c.id)
        .limit(bindparam("most", type_=Number))
    )


def _ready_page(_d: Dialect, goes_on: bool, limit: int) -> Executable:
    place = (live.c.task, live.c.rank, live.c.ready_at, live.c.id)
    statement = select(*place).where(
        live.c.queue == bindparam("queue", type_=Text),
        live.c.state == literal_column("'ready'"),
    )
    if goes_on:
        names = ("task", "rank", "ready_at", "last")
        ended = (bindparam(name, type_=col.type) for name, col in zip(names, place, strict=True))
        statement = statement.where(tuple_(*place) > tuple_(*ended))
    # The index's own order and a limit that stands there: a page is read and no more.
    return statement.order_by(*place).limit(literal_column(str(limit)))
