"""Runs that come after others: they are linked to these, and wait for their ends.

Source: docs/adr/0013-what-ends-frees.md
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from sqlalchemy import (
    BigInteger,
    Text,
    and_,
    bindparam,
    cast,
    false,
    func,
    insert,
    literal,
    literal_column,
    null,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.sql.expression import Executable

from workhorse.domain.ids import RunId
from workhorse.domain.runs import NewRun
from workhorse.errors import RunNotFoundError
from workhorse.store.base.database import Tx
from workhorse.store.base.dialect import Dialect
from workhorse.store.base.schema import Id, LinkKind, links, live, runs

_LINK_COLUMNS = {"source": Id, "run_id": Id}


def check_predecessors(tx: Tx, new: Sequence[NewRun]) -> None:
    """Make sure that what runs come after is there, or is inserted before them."""
    if not any(run.after for run in new):
        return
    named = sorted({each for run in new for each in run.after})
    known = {str(row.id) for row in tx.fetch(_known, ids=json.dumps(named))}
    for run in new:
        missing = [each for each in run.after if each not in known]
        if missing:
            raise RunNotFoundError(
                f"run {missing[0]}, which a run of task {run.task!r} is to come after, is not in "
                "this store, nor before it in the same call; nothing was enqueued. Check the id, "
                "the database and the environment"
            )
        known.add(run.id)


def name_predecessors(run: NewRun, others: Mapping[RunId, RunId]) -> NewRun:
    """Return a run that names each run that it comes after once: a key's owner where it has one."""
    if not run.after:
        return run
    return run._replace(after=tuple(dict.fromkeys(others.get(each, each) for each in run.after)))


def link(tx: Tx, new: Sequence[NewRun]) -> None:
    """Link runs that were inserted to those that they come after, and line them up behind these."""
    after = [{"source": source, "run_id": run.id} for run in new for source in run.after]
    if not after:
        return
    tx.write(_insert_links, batch=json.dumps(after))
    behind = json.dumps(list(_behind(tx, [run for run in new if run.session is not None])))
    # One row of a chain is seen in its new place by the next pass alone.
    while behind != "[]" and tx.write(_line_up, batch=behind):
        pass


def _behind(tx: Tx, new: Sequence[NewRun]) -> Iterator[dict[str, str]]:
    """Say whom runs have to stand behind in their sessions: whom they come after, and who those
    wait for.
    """
    sources = sorted({source for run in new for source in run.after})
    rows = tx.fetch(_alive, ids=json.dumps(sources)) if sources else ()
    # Nearly all wait for nobody: neither for those that they come after, nor for a turn.
    waiting = {str(row.id): row.session for row in rows if row.blockers > 0 or row.session}
    known: dict[tuple[str, str], set[str]] = {}
    for run in new:
        session = run.session or ""
        for source in run.after:
            yield {"source": source, "run_id": run.id}
            if source in waiting and waiting[source] != session:
                key = source, session
                if key not in known:
                    known[key] = _waited_for(tx, source, session)
                yield from ({"source": each, "run_id": run.id} for each in known[key])


def _waited_for(tx: Tx, run_id: RunId, session: str) -> set[str]:
    """Return the runs of a session that a run of no session, or of another, waits for.

    It waits for those that it comes after, and for its turn, behind others that wait. Where that
    leads to one of the session, there is no need to go on: it stands behind those it waits for.
    """
    found: set[str] = set()
    seen: set[str] = set()
    todo = {str(run_id)}
    while todo:
        seen |= todo
        rows = tx.fetch(_blocked, ids=json.dumps(sorted(todo)), session=session)
        ids = sorted({str(row.id) for row in rows})
        sources = {row.source for row in tx.fetch(_sources, ids=json.dumps(ids))} if ids else set()
        alive = tx.fetch(_alive, ids=json.dumps(sorted(sources))) if sources else ()
        found |= {str(row.id) for row in alive if row.session == session}
        todo = {str(row.id) for row in alive if row.session != session} - seen
    return found


# -- statements ----------------------------------------------------------------------------------


def _known(d: Dialect) -> Executable:
    return select(runs.c.id).where(d.one_of(runs.c.id, "ids"))


def _insert_links(d: Dialect) -> Executable:
    u = d.rows("batch", _LINK_COLUMNS)
    source = cast(u.c.source, Text)
    return insert(links).from_select(
        ["kind", "source", "run_id", "name", "armed"],
        select(
            literal(str(LinkKind.AFTER), Text),
            source,
            u.c.run_id,
            literal("after:", Text) + source,
            false(),
        ),
    )


def _blocked(d: Dialect) -> Executable:
    """Those of `ids` that come after others, and those before them in their sessions that do."""
    session = bindparam("session", type_=Text)
    one, other = live.alias("one"), live.alias("other")
    themselves = select(one.c.id).where(
        d.one_of(one.c.id, "ids"),
        one.c.blockers > literal_column("0"),
        or_(one.c.session.is_(null()), one.c.session != session),
    )
    before = (
        select(other.c.id)
        .select_from(
            one.join(
                other,
                and_(
                    other.c.session == one.c.session,
                    tuple_(other.c.line_at, other.c.id) < tuple_(one.c.line_at, one.c.id),
                ),
            )
        )
        .where(
            d.one_of(one.c.id, "ids"),
            one.c.session != session,
            other.c.blockers > literal_column("0"),
        )
    )
    return themselves.union_all(before)


def _sources(d: Dialect) -> Executable:
    # No index leads from a run to whom it comes after: only where those wait too is this asked.
    return (
        select(links.c.source)
        .distinct()
        .where(links.c.kind == literal(str(LinkKind.AFTER), Text), d.one_of(links.c.run_id, "ids"))
    )


def _alive(d: Dialect) -> Executable:
    return select(live.c.id, live.c.session, live.c.blockers).where(d.one_of(live.c.id, "ids"))


def _line_up(d: Dialect) -> Executable:
    """Put runs behind those of their session that they wait for.

    One of these may be due later, and would wait for its turn behind a run that waits for its end.
    """
    u = d.rows("batch", _LINK_COLUMNS)
    mine, other = live.alias("mine"), live.alias("other")
    behind = (
        select(mine.c.id, func.max(other.c.line_at).label("line_at"))
        .select_from(
            u.join(mine, mine.c.id == u.c.run_id).join(
                other,
                and_(
                    other.c.id == u.c.source,
                    other.c.session == mine.c.session,
                    tuple_(other.c.line_at, other.c.id) > tuple_(mine.c.line_at, mine.c.id),
                ),
            )
        )
        .group_by(mine.c.id)
        .subquery("behind")
    )
    return (
        update(live)
        .where(live.c.id == behind.c.id)
        .values(line_at=d.after(behind.c.line_at, literal_column("1", BigInteger)))
    )
