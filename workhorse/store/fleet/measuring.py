"""What a fleet is measured by, from the indexes that are there for it, however many runs there are.

Counts stop at a bound, and the oldest runnable run is found by one probe for each task and priority
that has ready runs. Failed runs are counted by when they ended, from where the last measuring left
off: the mark in the step's row, which moves on only once, whoever tries to.

Source: docs/metrics.md; docs/adr/0024-processes-that-beat.md
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    ScalarSelect,
    Text,
    bindparam,
    case,
    func,
    literal_column,
    null,
    or_,
    select,
    tuple_,
    union,
    update,
)
from sqlalchemy.sql.expression import Executable

from workhorse.domain.measures import Measures, together
from workhorse.domain.presence import ProcessKind, ProcessState
from workhorse.store.base.database import Tx
from workhorse.store.base.dialect import Dialect
from workhorse.store.base.schema import Instant, live, outcomes, queues, runs, steps
from workhorse.store.fleet.presence import list_processes
from workhorse.store.live.turns import has_turn

STEP: Final = "measure"
"""The step of maintenance whose row holds the mark."""
COUNTED: Final = 10_000
"""Runs of one queue and state are counted up to this."""
MOST: Final = 100_000
"""Running runs, and failed ones of one measuring, are counted up to this, all queues together."""
_LOOKED_AT: Final = 100
"""Of ready runs that wait for their turn in a session, so many are passed by for each task and
priority; whoever claims has to pass them too."""
LAG: Final = timedelta(seconds=10)
"""Ends are counted once they are so old: one that is written may take a moment to commit."""
USUAL: Final = timedelta(minutes=1)
LONGEST: Final = timedelta(hours=1)
"""After a longer silence only this much is caught up with."""


@dataclass(frozen=True, slots=True)
class Span:
    """The time whose ends are counted, and the mark that it begins at; None before the first."""

    mark: datetime | None
    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class Measured:
    """What was found: all together, and each queue by name."""

    at: datetime
    all: Measures
    queues: list[Measures]
    span: Span

    def without_ends(self) -> Measured:
        """Return the same without failed runs, which somebody else has counted."""
        return dataclasses.replace(
            self,
            all=dataclasses.replace(self.all, failed=0),
            queues=[dataclasses.replace(each, failed=0) for each in self.queues],
        )


def measure(tx: Tx, step: str) -> Measured:
    """Measure all queues that hold runs or had one that failed, and those served within an hour.

    Writes nothing.

    Args:
        step: The step whose row says up to where failed runs were counted.
    """
    at, span = _span(tx, step)
    listed = [each for each in list_processes(tx) if each.kind is not ProcessKind.MAINTENANCE]
    serving = [each.queues for each in listed if each.state is ProcessState.LIVE]
    failed = {
        row.queue: int(row.runs)
        for row in tx.fetch(
            _failed,
            since=tx.dialect.write_instant(span.since),
            until=tx.dialect.write_instant(span.until),
        )
    }
    running = {row.queue: int(row.runs) for row in tx.fetch(_running)}
    paused = {row.name for row in tx.fetch(_paused)}
    found = {row.queue for row in tx.fetch(_queues)}
    names = sorted(found.union(failed, running, *(each.queues for each in listed)))
    each = [
        _measured(
            tx,
            name,
            paused=name in paused,
            running=running.get(name, 0),
            failed=failed.get(name, 0),
            workers=sum(name in served for served in serving),
        )
        for name in names
    ]
    return Measured(at, together(each, len(serving)), each, span)


def mark(tx: Tx, step: str, span: Span) -> bool:
    """Note up to where failed runs were counted; answer whether nobody else has done so.

    It may be repeated when its answer was lost.
    """
    instants = {"reached": span.mark, "until": span.until}
    params = {
        name: None if value is None else tx.dialect.write_instant(value)
        for name, value in instants.items()
    }
    return bool(tx.fetch(_mark, step=step, **params))


def _span(tx: Tx, step: str) -> tuple[datetime, Span]:
    (row,) = tx.fetch(_reached, step=step)
    at, reached = tx.dialect.read_instant(row.at), tx.read_instant(row.reached)
    until = at - LAG
    if reached is None or reached > until + LONGEST:  # the clock was ahead when it was written
        since = until - USUAL
    else:
        since = max(reached, until - LONGEST)
    return at, Span(reached, since, max(since, until))


def _measured(
    tx: Tx, queue: str, *, paused: bool, running: int, failed: int, workers: int
) -> Measures:
    (row,) = tx.fetch(_backlog, paused, queue=queue)
    return Measures(
        queue=queue,
        paused=paused,
        oldest_runnable_ms=max(0, int(row.oldest_ms or 0)),
        runnable=row.ready,
        running=running,
        waiting=row.waiting,
        scheduled=row.scheduled,
        failed=failed,
        workers=workers,
    )


# -- statements ----------------------------------------------------------------------------------


def _reached(d: Dialect) -> Executable:
    mine = select(steps.c.reached_at).where(steps.c.name == bindparam("step", type_=Text))
    return select(d.clock.label("at"), mine.scalar_subquery().label("reached"))


def _mark(_d: Dialect) -> Executable:
    until = bindparam("until", type_=Instant)
    return (
        update(steps)
        .where(
            steps.c.name == bindparam("step", type_=Text),
            # Or it was this very call, whose answer was lost.
            or_(
                steps.c.reached_at.is_not_distinct_from(bindparam("reached", type_=Instant)),
                steps.c.reached_at == until,
            ),
        )
        .values(reached_at=until)
        .returning(steps.c.name)
    )


def _queues(_d: Dialect) -> Executable:
    """Walk from one queue's name to the next, state by state: a probe each."""
    arms = []
    for state in ("ready", "scheduled", "waiting"):
        queue = (
            select(live.c.queue)
            .where(live.c.state == literal_column(f"'{state}'"))
            .order_by(live.c.queue)
            .limit(literal_column("1"))
        )
        walk = select(queue.scalar_subquery().label("queue")).cte(f"{state}_walk", recursive=True)
        after = queue.where(live.c.queue > walk.c.queue).correlate(walk).scalar_subquery()
        walk = walk.union_all(select(after).where(walk.c.queue.is_not(null())))
        arms.append(select(walk.c.queue).where(walk.c.queue.is_not(null())))
    return union(*arms)


def _paused(_d: Dialect) -> Executable:
    return select(queues.c.name).where(queues.c.paused_at.is_not(null()))


def _running(_d: Dialect) -> Executable:
    # Those that run are as many as there are slots.
    some = (
        select(live.c.queue)
        .where(live.c.state == literal_column("'running'"))
        .order_by(live.c.id)
        .limit(literal_column(str(MOST)))
        .subquery("some")
    )
    return select(some.c.queue, func.count().label("runs")).group_by(some.c.queue)


def _failed(_d: Dialect) -> Executable:
    some = (
        select(outcomes.c.id)
        .where(
            outcomes.c.state == literal_column("'failed'"),
            outcomes.c.finished_at > bindparam("since", type_=Instant),
            outcomes.c.finished_at <= bindparam("until", type_=Instant),
        )
        .order_by(outcomes.c.finished_at, outcomes.c.id)
        .limit(literal_column(str(MOST)))
        .subquery("some")
    )
    return (
        select(runs.c.queue, func.count().label("runs"))
        .select_from(some.join(runs, runs.c.id == some.c.id))
        .group_by(runs.c.queue)
    )


def _backlog(d: Dialect, paused: bool) -> Executable:
    nothing = literal_column("0", BigInteger)
    return select(
        (nothing if paused else _count("ready")).label("ready"),
        _count("scheduled").label("scheduled"),
        _count("waiting").label("waiting"),
        (nothing if paused else d.millis(_oldest(), d.now)).label("oldest_ms"),
    )


def _count(state: str) -> ScalarSelect[Any]:
    some = (
        select(live.c.queue)
        .where(
            live.c.state == literal_column(f"'{state}'"),
            live.c.queue == bindparam("queue", type_=Text),
        )
        # The index's own order: without one, the planner may read the table up to where they lie.
        .order_by(*((live.c.task, live.c.rank) if state == "ready" else (live.c.state,)))
        .limit(literal_column(str(COUNTED)))
        .subquery(f"{state}_runs")
    )
    return select(func.count()).select_from(some).scalar_subquery()


def _oldest() -> ScalarSelect[Any]:
    """Return when the oldest run became ready that could be claimed.

    It walks from the oldest run of one task and priority to that of the next. Where that one waits
    for its turn, the first of those behind it that does not stands for it.
    """
    head, following = live.alias("head"), live.alias("following")
    said = [head.c[name] for name in ("id", "task", "rank", "ready_at", "session")]
    first = (
        select(following.c.id)
        .where(*_ready(following))
        .order_by(following.c.task, following.c.rank, following.c.ready_at, following.c.id)
        .limit(literal_column("1"))
    )
    walk = select(*said).where(head.c.id == first.scalar_subquery()).cte("walk", recursive=True)
    after = first.where(
        tuple_(following.c.task, following.c.rank) > tuple_(walk.c.task, walk.c.rank)
    )
    onward = head.c.id == after.correlate(walk).scalar_subquery()
    walk = walk.union_all(select(*said).select_from(walk.join(head, onward)))
    row = live.alias("candidate")
    some = (
        select(row.c.id, row.c.ready_at, row.c.session, row.c.line_at)
        .where(*_ready(row), row.c.task == walk.c.task, row.c.rank == walk.c.rank)
        .order_by(row.c.ready_at, row.c.id)
        .limit(literal_column(str(_LOOKED_AT)))
        .correlate(walk)
        .subquery("some")
    )
    with_turn = select(func.min(some.c.ready_at)).where(has_turn(some)).correlate(walk)
    return select(
        func.min(
            case((walk.c.session.is_(null()), walk.c.ready_at), else_=with_turn.scalar_subquery())
        )
    ).scalar_subquery()


def _ready(row: FromClause) -> tuple[ColumnElement[bool], ...]:
    return (
        row.c.queue == bindparam("queue", type_=Text),
        row.c.state == literal_column("'ready'"),
    )
