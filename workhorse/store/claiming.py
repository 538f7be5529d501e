"""Claims: ready -> running under a new fence, a whole batch at once.

A claim takes the runs that wakeups named and fills up from the queue. What it scans is a page of
candidates in order (priority, then age) behind a cursor; so runs at the head that cannot be taken
(another's turn in a session) are passed by, once a sweep, and never hide those behind them. Runs of
unknown tasks are not even read: the index is probed once per known task.

Source: docs/design.md, sections 3 and 4; docs/adr/0005-claims-by-id-and-by-page.md
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    Select,
    Text,
    and_,
    bindparam,
    case,
    cast,
    exists,
    func,
    literal_column,
    not_,
    null,
    or_,
    select,
    true,
    tuple_,
    type_coerce,
    update,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql.expression import Executable

from workhorse.domain.ids import RunId
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import DEFAULT_PRIORITY, ClaimedRun, Lease, RunState
from workhorse.domain.sightings import Sighting
from workhorse.store.database import Tx, writes_once
from workhorse.store.dialect import Dialect
from workhorse.store.histories import with_history
from workhorse.store.schema import Id, Number, live, outcomes, queues, runs

PAGE: Final = 200
"""Candidates that a scan looks at. A literal in the statement: with a parameter for its limit, the
database may choose a plan that sorts the whole backlog."""
MAX_CLAIM: Final = 200
"""Runs that one claim takes at most: larger batches cost more a run, not less."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where the next page of a sweep starts; to be handed back, not to be looked into."""

    rank: int
    ready_us: int
    id: str


@dataclass(frozen=True, slots=True)
class Head:
    """A queue's head without what earlier looks have passed; not to be looked into.

    Runs that were taken leave dead entries in the index, and those at the very head are read by
    each look at it for as long as somebody's snapshot may still see them. What is not read again
    lies before a place in a rank; other ranks are read whole. No place is behind a run that was
    seen and left, for want of a slot, of its turn or of its row's lock.
    """

    places: tuple[Cursor, ...]


_ID: Final = 0
_ENDS: Final = -1
"""Where these stand in a row of `_claim`."""
_FIRST: Final = "00000000-0000-0000-0000-000000000000"
_HEAD: Final = Cursor(-1, 0, _FIRST)
_LAST_RANK: Final = 100
_SLOW_COMMIT_US: Final = 250_000
"""What became ready this long ago is committed by now, or left to a look at the very head."""
_MOST_PLACES: Final = 8


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
        params["probes"] = _probes(tasks, cursor)
    form = (bool(ids), scan, sessions)
    if tx.dialect.one_statement:
        rows = tx.fetch_raw(_claim, *form, **params, token=token, lease_ms=lease_ms)
        edge, rest, now_us = json.loads(rows[0][_ENDS]) if scan else (None, None, None)
        taken = rows if rows[0][_ID] is not None else []
    else:
        rest = now_us = None
        edge_params = {name: params[name] for name in ("queue", "probes")} if scan else {}
        edge = tx.fetch(_edge_alone, **edge_params)[0].edge if scan else None
        picked = tx.fetch_raw(_picked, *form, **params)
        chosen = json.dumps([row[0] for row in picked])
        tx.write(_take, chosen=chosen, token=token, lease_ms=lease_ms)
        taken = tx.fetch_raw(_read_chosen, chosen=chosen) if picked else []
    claimed = with_history(tx, _claimed_runs(tx, taken, token=token, queue=queue))
    claimed.sort(key=lambda run: (-run.priority, run.id))
    end, count = (None, 0) if edge is None else _place(edge)
    full = count >= PAGE
    head = None
    # An empty page says nothing: the queue may be paused.
    if now_us is not None and end is not None and not isinstance(cursor, Cursor):
        stop = _before(_place(rest)[0]) if rest is not None else end if full else None
        head = _head(cursor, claimed, stop, now_us - _SLOW_COMMIT_US)
    return Claim(claimed, end if full else None, full, head)


def _probes(tasks: Sequence[str], start: Cursor | Head | None) -> str:
    """Return what a page reads: for each task the ranks from a place on to the next place's."""
    places = start.places if isinstance(start, Head) else (start or _HEAD,)
    if places[0].rank > 0 and isinstance(start, Head):
        places = (_HEAD, *places)
    ends = [*(place.rank - 1 for place in places[1:]), _LAST_RANK]
    return json.dumps(
        [
            {
                "task": task,
                "from_rank": place.rank,
                "from_us": place.ready_us,
                "from_id": place.id,
                "to_rank": end,
            }
            for task in tasks
            for place, end in zip(places, ends, strict=True)
        ]
    )


def _place(text: str) -> tuple[Cursor, int]:
    """Return the place of a row in the order of a scan, and the number beside it."""
    rank, ready_us, last, count = text.split(" ")
    return Cursor(int(rank), int(ready_us), last), int(count)


def _before(place: Cursor) -> Cursor:
    """Return the place that only this one and later ones are behind."""
    return replace(place, id=str(UUID(int=UUID(place.id).int - 1)))


def _head(
    start: Head | None, claimed: Sequence[ClaimedRun], stop: Cursor | None, seen_us: int
) -> Head | None:
    """Return what a look has left of a queue's head.

    Args:
        start: What it began at.
        claimed: The runs it took.
        stop: What it has taken all up to; None is the end of the queue.
        seen_us: What became ready before is seen by now.
    """
    places = {} if start is None else {place.rank: place for place in start.places}
    taken = {100 - run.priority for run in claimed}
    for rank in taken | set(places):
        if stop is None or rank < stop.rank:
            places[rank] = Cursor(rank, seen_us, _FIRST)
        elif rank == stop.rank:
            places[rank] = stop if stop.ready_us < seen_us else Cursor(rank, seen_us, _FIRST)
    # A place costs a probe for each task: where runs are taken now is where the dead are.
    kept = sorted(places, key=lambda rank: rank not in taken)[:_MOST_PLACES]
    return Head(tuple(places[rank] for rank in sorted(kept))) if kept else None


def claimed_under(tx: Tx, token: int) -> list[ClaimedRun]:
    """Return what a claim took whose answer was lost."""
    rows = tx.fetch_raw(_read_claimed, token=token)
    return with_history(tx, _claimed_runs(tx, rows, token=token))


def turn_was_taken(error: BaseException) -> bool:
    """Say whether a claim failed since another one took the same turn of a session.

    Both saw it free, and the index let one of them pass.
    """
    if not isinstance(error, IntegrityError):
        return False
    state = getattr(error.orig, "sqlstate", None)  # SQLite has none
    return state in (None, "23505")


def sight(tx: Tx, ids: Sequence[RunId]) -> dict[RunId, Sighting]:
    """Return what is known of runs; one that is not there has no entry."""
    if not ids:
        return {}
    seen = {}
    for row in tx.fetch(_sight, ids=json.dumps(list(ids))):
        seen[RunId(str(row.id))] = Sighting(
            state=RunState(row.state),
            queue=row.queue,
            task=row.task,
            due_in_ms=None if row.due_in_ms is None else int(row.due_in_ms),
            lease_expired=bool(row.lease_expired),
            queue_paused=bool(row.paused),
            turn=bool(row.turn),
        )
    return seen


def _claimed_runs(
    tx: Tx, rows: Sequence[tuple[Any, ...]], *, token: int, queue: str | None = None
) -> list[ClaimedRun]:
    """Make runs of rows of `_shown`; where no queue is given, it is the last column."""
    read = tx.dialect.read_aware
    claimed = []
    for id_, task, attempt, fence, payload, created_at, started_at, extras, last in rows:
        run = ClaimedRun(
            id=id_,
            task=task,
            queue=queue or last,
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


# -- what can be claimed -------------------------------------------------------------------------


def open_queue(queue: ColumnElement[str]) -> ColumnElement[bool]:
    """Say that a queue is not paused."""
    return not_(exists().where(queues.c.name == queue, queues.c.paused_at.is_not(null())))


def has_turn(row: FromClause) -> ColumnElement[bool]:
    """Say that no unfinished run of the same session is before this one, and none is running.

    One that runs may stand behind: its line was shorter when it was claimed, before a slow
    transaction committed a run with an older time, or before the clock went back.
    """
    earlier, other = live.alias("e"), live.alias("o")
    return or_(
        row.c.session.is_(null()),
        and_(
            not_(
                exists().where(
                    earlier.c.session == row.c.session,
                    tuple_(earlier.c.line_at, earlier.c.id) < tuple_(row.c.line_at, row.c.id),
                )
            ),
            not_(
                exists().where(
                    other.c.session == row.c.session,
                    other.c.state == literal_column("'running'"),
                    other.c.id != row.c.id,
                )
            ),
        ),
    )


def _is_ready(row: FromClause) -> ColumnElement[bool]:
    """Say that a run is ready, without naming its state, where rows are found by their ids.

    Where the statistics are old and know of few ready rows, the state's name makes the database
    read the index of all of them beside that of the ids.
    """
    return row.c.ready_at.is_not(null())


def _allowed(row: FromClause, *, sessions: bool) -> ColumnElement[bool]:
    return has_turn(row) if sessions else row.c.session.is_(null())


def _named(d: Dialect, *, sessions: bool) -> Select[Any]:
    due = and_(live.c.state == literal_column("'scheduled'"), live.c.due_at <= d.now)
    queue = bindparam("queue", type_=Text)
    return (
        select(live.c.id)
        .where(
            d.one_of(live.c.id, "ids"),
            live.c.queue == queue,
            d.one_of(live.c.task, "tasks"),
            or_(_is_ready(live), due),
            open_queue(queue),
            _allowed(live, sessions=sessions),
        )
        .order_by(live.c.id)
        .limit(bindparam("free", type_=BigInteger))
        .with_for_update(key_share=True, of=live, skip_locked=True)
    )


_PROBE: Final = {
    "task": Text(),
    "from_rank": Number,
    "from_us": Number,
    "from_id": Id,
    "to_rank": Number,
}


def _page(d: Dialect) -> Select[Any]:
    """Return the first candidates of all probes: known tasks, each from some places on."""
    queue = bindparam("queue", type_=Text)
    c = live.alias("c")
    probes = d.rows("probes", _PROBE, "probe")
    start = tuple_(probes.c.from_rank, d.instant_of(probes.c.from_us), probes.c.from_id)
    candidates = (
        select(c.c.id, c.c.rank, c.c.ready_at)
        .where(
            c.c.queue == queue,
            c.c.task == probes.c.task,
            c.c.state == literal_column("'ready'"),
            tuple_(c.c.rank, c.c.ready_at, c.c.id) > start,
            c.c.rank <= probes.c.to_rank,
        )
        .order_by(c.c.rank, c.c.ready_at, c.c.id)
        .limit(literal_column(str(PAGE)))
    )
    if d.one_statement:
        near: FromClause = candidates.correlate(probes).lateral("n")
        source = probes.join(near, true())
    else:  # SQLite has no lateral join, but an IN that sees the row beside it
        near = live.alias("n")
        ids = candidates.with_only_columns(c.c.id).correlate(probes)
        source = probes.join(near, near.c.id.in_(ids))
    return (
        select(near.c.id, near.c.rank, near.c.ready_at)
        .select_from(source)
        .where(open_queue(queue))
        .order_by(near.c.rank, near.c.ready_at, near.c.id)
        .limit(literal_column(str(PAGE)))
    )


def _edge(d: Dialect, page: FromClause) -> Select[Any]:
    """Return a page's last row and its length, as one text."""
    count = select(func.count()).select_from(page).scalar_subquery()
    return (
        select(_as_text(d, page, count).label("edge"))
        .select_from(page)
        .order_by(page.c.rank.desc(), page.c.ready_at.desc(), page.c.id.desc())
        .limit(literal_column("1"))
    )


def _rest(d: Dialect, page: FromClause, picks: Any) -> Select[Any]:
    """Return the first row of a page that is not taken, as one text."""
    return (
        select(_as_text(d, page, literal_column("0")))
        .select_from(page)
        .where(page.c.id.not_in(picks))
        .order_by(page.c.rank, page.c.ready_at, page.c.id)
        .limit(literal_column("1"))
    )


def _as_text(d: Dialect, page: FromClause, count: ColumnElement[Any]) -> ColumnElement[str]:
    space: ColumnElement[str] = literal_column("' '")
    text: ColumnElement[str] = cast(page.c.rank, Text)
    for part in (d.micros(page.c.ready_at), page.c.id, count):
        text = text.concat(space).concat(cast(part, Text))
    return text


def _picks(d: Dialect, *, named: bool, scan: bool, sessions: bool) -> tuple[Select[Any], Any]:
    """Return the ids to take, and the page that was scanned for them."""
    page = _page(d).cte("page").prefix_with("MATERIALIZED", dialect="postgresql") if scan else None
    named_ids = (
        _named(d, sessions=sessions).cte("named").prefix_with("MATERIALIZED", dialect="postgresql")
        if named
        else None
    )
    arms = []
    if named_ids is not None:
        arms.append(select(named_ids.c.id))
    if page is not None:
        free: ColumnElement[Any] = bindparam("free", type_=BigInteger)
        wanted = and_(_is_ready(live), _allowed(live, sessions=sessions))
        if named_ids is not None:
            free = free - select(func.count()).select_from(named_ids).scalar_subquery()
            wanted = and_(wanted, live.c.id.not_in(select(named_ids.c.id)))
        # By an array: a join with the page invites a plan that reads the whole backlog.
        more = (
            select(live.c.id)
            .where(d.among(live.c.id, select(page.c.id)), wanted)
            .order_by(live.c.rank, live.c.ready_at, live.c.id)
            .limit(free)
            .with_for_update(key_share=True, of=live, skip_locked=True)
            .cte("more")
            .prefix_with("MATERIALIZED", dialect="postgresql")
        )
        arms.append(select(more.c.id))
    picks = arms[0] if len(arms) == 1 else arms[0].union_all(arms[1])
    return picks, page  # type: ignore[return-value]


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


def _claim(d: Dialect, named: bool, scan: bool, sessions: bool) -> Executable:
    picks, page = _picks(d, named=named, scan=scan, sessions=sessions)
    chosen = d.among(live.c.id, picks)
    taken = _taking(d, chosen).returning(*(live.c[name] for name in _TAKEN)).cte("taken")
    if page is None:
        ends: FromClause = select(type_coerce(null(), Text).label("ends")).subquery("ends")
    else:
        edge = _edge(d, page).scalar_subquery()
        rest = _rest(d, page, picks).scalar_subquery()
        # By itself, for it stands in each row of the answer and is made once.
        ends = (
            select(d.json_list(edge, rest, d.micros(d.now)).label("ends"))
            .cte("ends")
            .prefix_with("MATERIALIZED", dialect="postgresql")
        )
    return select(*_shown(d, taken), ends.c.ends).select_from(
        ends.outerjoin(taken, true()).outerjoin(runs, runs.c.id == taken.c.id)
    )


def _picked(d: Dialect, named: bool, scan: bool, sessions: bool) -> Executable:
    picks, _ = _picks(d, named=named, scan=scan, sessions=sessions)
    return picks


def _edge_alone(d: Dialect) -> Executable:
    edge = _edge(d, _page(d).cte("page")).subquery("edge")
    one = select(literal_column("1").label("one")).subquery("one")
    return select(edge.c.edge).select_from(one.outerjoin(edge, true()))


def _take(d: Dialect) -> Executable:
    return _taking(d, d.one_of(live.c.id, "chosen"))  # type: ignore[no-any-return]


def _read_chosen(d: Dialect) -> Executable:
    return (
        select(*_shown(d, live), null())
        .join(runs, runs.c.id == live.c.id)
        .where(d.one_of(live.c.id, "chosen"))
    )


def _read_claimed(d: Dialect) -> Executable:
    return (
        select(*_shown(d, live), live.c.queue)
        .join(runs, runs.c.id == live.c.id)
        .where(
            live.c.token == bindparam("token", type_=Number),
            live.c.state == literal_column("'running'"),
        )
    )


def _sight(d: Dialect) -> Executable:
    paused = exists().where(queues.c.name == runs.c.queue, queues.c.paused_at.is_not(null()))
    expired = and_(live.c.token.is_not(null()), live.c.lease_expires_at <= d.clock)
    return (
        select(
            runs.c.id,
            func.coalesce(outcomes.c.state, live.c.state).label("state"),
            runs.c.queue,
            runs.c.task,
            case((live.c.due_at.is_(null()), null()), else_=d.millis(d.clock, live.c.due_at)).label(
                "due_in_ms"
            ),
            case((expired, true()), else_=literal_column("false")).label("lease_expired"),
            paused.label("paused"),
            has_turn(live).label("turn"),
        )
        .select_from(
            runs.outerjoin(live, live.c.id == runs.c.id).outerjoin(
                outcomes, outcomes.c.id == runs.c.id
            )
        )
        .where(
            d.one_of(runs.c.id, "ids"),
            or_(live.c.id.is_not(null()), outcomes.c.id.is_not(null())),
        )
    )
