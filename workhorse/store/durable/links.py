"""The statements of `freeing`: links, notes of ends, and the live rows that they lead to."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ColumnElement,
    Select,
    Text,
    case,
    cast,
    delete,
    exists,
    false,
    func,
    literal,
    literal_column,
    not_,
    null,
    select,
    text,
    true,
    tuple_,
    update,
)
from sqlalchemy.sql.expression import Executable

from workhorse.store.base.dialect import Dialect, upsert
from workhorse.store.base.pages import PAGE
from workhorse.store.base.schema import Id, LinkKind, Number, freed, links, live, outcomes, runs

_LINK_COLUMNS = {"source": Text(), "run_id": Id, "name": Text()}
_COUNT_COLUMNS = {"id": Id, "count": Number}


def _most(limit: int) -> ColumnElement[Any]:
    # A literal: a prepared limit turns into a plan that reads everything.
    return literal_column(str(int(limit)))


# -- notes ---------------------------------------------------------------------------------------


def oldest_noted(_d: Dialect, limit: int) -> Executable:
    """What was noted longest ago."""
    return (
        select(freed.c.source)
        .order_by(freed.c.at, freed.c.source)
        .limit(_most(limit))
        .with_for_update(skip_locked=True)
    )


def lock_noted(d: Dialect) -> Executable:
    """Those of `sources` that are noted, and that no other pass has in hand."""
    return (
        select(freed.c.source)
        .where(d.one_of(freed.c.source, "sources"))
        .with_for_update(skip_locked=True)
    )


def forget(d: Dialect) -> Executable:
    """Remove the notes from which no link leads any more."""
    left = exists().where(links.c.source == freed.c.source)
    return delete(freed).where(d.one_of(freed.c.source, "sources"), not_(left))


def defer(d: Dialect) -> Executable:
    """Put notes behind the others: what keeps them from being worked off may last."""
    return update(freed).where(d.one_of(freed.c.source, "sources")).values(at=d.clock)


# -- links ---------------------------------------------------------------------------------------


def page_of_links(d: Dialect, limit: int) -> Executable:
    """Some links that lead from `sources`."""
    return (
        select(links.c.kind, links.c.source, links.c.run_id, links.c.name)
        .where(d.one_of(links.c.source, "sources"))
        .limit(_most(limit))
    )


def lock_waiting(d: Dialect) -> Executable:
    """The live rows of `ids` that nobody holds, to be written or deleted."""
    return (
        select(live.c.id, live.c.state, live.c.blockers, runs.c.on_failure)
        .join(runs, runs.c.id == live.c.id)
        .where(d.one_of(live.c.id, "ids"))
        .with_for_update(of=live, skip_locked=True)
    )


def unfinished(d: Dialect) -> Executable:
    """Those of `ids` that have a live row, whoever holds it."""
    return select(live.c.id).where(d.one_of(live.c.id, "ids"))


def ends_of_runs(d: Dialect) -> Executable:
    """How the runs of `ids` ended; without their results, which may be large."""
    return (
        select(
            outcomes.c.id,
            outcomes.c.state,
            outcomes.c.reason,
            outcomes.c.error_type,
            outcomes.c.error_message,
            runs.c.task,
        )
        .join(runs, runs.c.id == outcomes.c.id)
        .where(d.one_of(outcomes.c.id, "ids"))
    )


def unblock(d: Dialect) -> Executable:
    """Count ends of runs that others come after; those that wait for none any more are ready."""
    u, v = d.rows("batch", _COUNT_COLUMNS), d.rows("batch", _COUNT_COLUMNS, "v")
    left = live.c.blockers - v.c.count
    done = left <= literal_column("0")
    return (
        update(live)
        .where(live.c.id == v.c.id, d.among(live.c.id, select(u.c.id)))
        .values(
            blockers=case((done, literal_column("0")), else_=left),
            state=case((done, literal_column("'ready'")), else_=live.c.state),
            ready_at=case((done, d.clock), else_=live.c.ready_at),
        )
        .returning(live.c.id, live.c.queue, live.c.state, live.c.session)
    )


def remove_links(d: Dialect) -> Executable:
    """Remove the links of a batch, all of which lead from `sources`."""
    u = d.rows("batch", _LINK_COLUMNS)
    return delete(links).where(
        d.one_of(links.c.source, "sources"),
        tuple_(links.c.source, links.c.run_id, links.c.name).in_(
            select(u.c.source, u.c.run_id, u.c.name)
        ),
    )


def write_links(d: Dialect, kind: LinkKind) -> Executable:
    """Link runs to what they wait for: rows of source, run and the name of the wait."""
    u = d.rows("batch", _LINK_COLUMNS)
    # The condition keeps SQLite from reading ON as a join's.
    rows = select(literal(str(kind), Text), u.c.source, u.c.run_id, u.c.name, true()).where(
        u.c.run_id.is_not(null())
    )
    return _insert(d, rows)


def link_cancels(d: Dialect) -> Executable:
    """Link runs that are to be cancelled to their parents, for the passes."""
    rows = select(
        literal(str(LinkKind.CANCEL), Text),
        literal_column("'cancel:'", Text) + cast(runs.c.parent_id, Text),
        runs.c.id,
        literal_column("''"),
        true(),
    ).where(d.one_of(runs.c.id, "ids"), d.one_of(runs.c.parent_id, "parents"))
    return _insert(d, rows)


def _insert(d: Dialect, rows: Select[Any]) -> Executable:
    statement: Executable = (
        upsert(d, links)
        .from_select(["kind", "source", "run_id", "name", "armed"], rows)
        .on_conflict_do_nothing(index_elements=["source", "run_id", "name"])
    )
    return statement


# -- runs that come after others -----------------------------------------------------------------


def _unarmed() -> ColumnElement[bool]:
    return text("not links.armed")  # type: ignore[return-value]  # as the partial index says it


def unarmed(d: Dialect, named: bool) -> Executable:
    """Runs of whom it is not known yet whether they ended before they were linked to."""
    only = d.one_of(links.c.source, "sources") if named else true()
    return (
        select(links.c.source)
        .distinct()
        .where(_unarmed(), only)
        .order_by(links.c.source)
        .limit(_most(PAGE))
    )


def lock_watchable(d: Dialect) -> Executable:
    """The live rows of `ids` that nobody holds, in one order."""
    return (
        select(live.c.id)
        .where(d.one_of(live.c.id, "ids"))
        .order_by(live.c.id)
        .with_for_update(key_share=True, skip_locked=True)
    )


def watch(d: Dialect) -> Executable:
    """Have the ends of runs noted."""
    return update(live).where(d.one_of(live.c.id, "ids")).values(watched=true())


def note_armed(d: Dialect) -> Executable:
    """Note of links that it is known what becomes of them."""
    return update(links).where(d.one_of(links.c.source, "sources"), _unarmed()).values(armed=true())


# -- children ------------------------------------------------------------------------------------


def _left_behind(d: Dialect) -> list[ColumnElement[bool]]:
    return [
        d.one_of(runs.c.parent_id, "parents"),
        runs.c.parent_id.is_not(null()),  # said for the index
        func.coalesce(runs.c.keep, false()) == false(),
        live.c.cancel_asked_at.is_(null()),
    ]


def children_left(d: Dialect, limit: int) -> Executable:
    """Children of `parents` that are to be cancelled, and that nobody holds."""
    return (
        select(live.c.id, live.c.state)
        .select_from(runs)
        .join(live, live.c.id == runs.c.id)
        .where(*_left_behind(d))
        .limit(_most(limit))
        .with_for_update(of=live, skip_locked=True)
    )


def parents_left(d: Dialect) -> Executable:
    """Those of `parents` with children that are still to be cancelled."""
    return (
        select(runs.c.parent_id)
        .distinct()
        .select_from(runs)
        .join(live, live.c.id == runs.c.id)
        .where(*_left_behind(d))
    )


def ask_cancel(d: Dialect) -> Executable:
    """Ask that running runs end as cancelled."""
    return (
        update(live)
        .where(d.one_of(live.c.id, "ids"))
        .values(cancel_asked_at=func.coalesce(live.c.cancel_asked_at, d.clock))
    )
