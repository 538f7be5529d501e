"""Which runs a claim takes: those that wakeups named, and others of a page of the queue.

A page is candidates in order (priority, then age) behind a cursor; so runs at the head that cannot
be taken (another's turn in a session) are passed by, once a sweep, and never hide those behind
them. Runs of unknown tasks are not even read: the index is probed once per known task.

Source: docs/design.md, section 4; docs/adr/0005-claims-by-id-and-by-page.md
"""

from __future__ import annotations

from typing import Any, Final

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
    func,
    literal_column,
    null,
    or_,
    select,
    true,
    tuple_,
)
from sqlalchemy.sql.expression import Executable

from workhorse.store.base.dialect import Dialect
from workhorse.store.base.schema import Id, Number, live
from workhorse.store.live.turns import has_turn, open_queue

PAGE: Final = 200
"""Candidates that a scan looks at. A literal in the statement: with a parameter for its limit, the
database may choose a plan that sorts the whole backlog."""

_PROBE: Final = {
    "task": Text(),
    "from_rank": Number,
    "from_us": Number,
    "from_id": Id,
    "to_rank": Number,
}


def picks_of(d: Dialect, *, named: bool, scan: bool, sessions: bool) -> tuple[Any, Any, Any]:
    """Return the ids to take, the page that was scanned for them, and which are taken of it."""
    page = _page(d).cte("page").prefix_with("MATERIALIZED", dialect="postgresql") if scan else None
    named_ids = (
        _named(d, sessions=sessions).cte("named").prefix_with("MATERIALIZED", dialect="postgresql")
        if named
        else None
    )
    arms = []
    more = None
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
    return picks, page, more


def picked_ids(d: Dialect, named: bool, scan: bool, sessions: bool) -> Executable:
    """Return the ids to take, by themselves: SQLite reads them first."""
    picks, *_ = picks_of(d, named=named, scan=scan, sessions=sessions)
    return picks  # type: ignore[no-any-return]


def edge_alone(d: Dialect) -> Executable:
    """Return a page's edge in one row, which is there for an empty page too."""
    edge = edge_of(d, _page(d).cte("page")).subquery("edge")
    one = select(literal_column("1").label("one")).subquery("one")
    return select(edge.c.edge).select_from(one.outerjoin(edge, true()))


def edge_of(d: Dialect, page: FromClause) -> Select[Any]:
    """Return a page's last row and its length, as one text."""
    count = select(func.count()).select_from(page).scalar_subquery()
    return (
        select(_as_text(d, page, count).label("edge"))
        .select_from(page)
        .order_by(page.c.rank.desc(), page.c.ready_at.desc(), page.c.id.desc())
        .limit(literal_column("1"))
    )


def rest_of(d: Dialect, page: FromClause, more: FromClause, picks: Any) -> ColumnElement[str]:
    """Return the first row of a page that is not taken, as one text; null where all are."""
    first = (
        select(_as_text(d, page, literal_column("0")))
        .select_from(page)
        .where(page.c.id.not_in(picks))
        .order_by(page.c.rank, page.c.ready_at, page.c.id)
        .limit(literal_column("1"))
    )
    # Under load whole pages are taken: counting that costs less than to look for the row.
    seen = select(func.count()).select_from(page).scalar_subquery()
    taken = select(func.count()).select_from(more).scalar_subquery()
    return case((taken < seen, first.scalar_subquery()), else_=null())


def _as_text(d: Dialect, page: FromClause, count: ColumnElement[Any]) -> ColumnElement[str]:
    space: ColumnElement[str] = literal_column("' '")
    text: ColumnElement[str] = cast(page.c.rank, Text)
    for part in (d.micros(page.c.ready_at), page.c.id, count):
        text = text.concat(space).concat(cast(part, Text))
    return text


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


def _is_ready(row: FromClause) -> ColumnElement[bool]:
    """Say that a run is ready, without naming its state, where rows are found by their ids.

    Where the statistics are old and know of few ready rows, the state's name makes the database
    read the index of all of them beside that of the ids.
    """
    return row.c.ready_at.is_not(null())


def _allowed(row: FromClause, *, sessions: bool) -> ColumnElement[bool]:
    return has_turn(row) if sessions else row.c.session.is_(null())
