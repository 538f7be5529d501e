"""Runs that come after others: they are linked to these, and wait for their ends.

Source: docs/adr/0013-what-ends-frees.md
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from sqlalchemy import (
    BigInteger,
    Text,
    and_,
    cast,
    false,
    func,
    insert,
    literal,
    literal_column,
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
    batch = json.dumps(after)
    tx.write(_insert_links, batch=batch)
    # One row of a chain is seen in its new place by the next pass alone.
    while any(run.session is not None for run in new) and tx.write(_line_up, batch=batch):
        pass


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


def _line_up(d: Dialect) -> Executable:
    """Put runs behind those of their session that they come after.

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
