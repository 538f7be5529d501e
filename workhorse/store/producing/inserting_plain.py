"""Runs that are ready at once and depend on no others: the most frequent insert.

A batch is read once: the live rows are made of the immutable ones.

Source: docs/adr/0004-a-run-in-three-parts.md
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    Select,
    Table,
    Text,
    bindparam,
    case,
    cast,
    false,
    literal_column,
    null,
    select,
    true,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.expression import Executable

from workhorse.domain.retry import DEFAULT_RETRY
from workhorse.domain.runs import NewRun
from workhorse.store.base.database import Tx
from workhorse.store.base.dialect import Dialect, array_text, upsert
from workhorse.store.base.schema import Id, Number, live, runs
from workhorse.store.producing.ringing import ring_free

PLAIN_COLUMNS: Final[dict[str, Any]] = {
    "id": Id,
    "task": Text(),
    "queue": Text(),
    "payload": Text(),
    "priority": Number,
    "key": Text(),
    "session": Text(),
    "tags": Text(),
    "retry": Text(),
    "timeout_ms": Number,
    "traceparent": Text(),
}

_SAID: Final = tuple(name for name in PLAIN_COLUMNS if name not in ("id", "payload"))
_what_is_said: Final = itemgetter(
    *(n for n, name in enumerate(NewRun._fields) if name not in ("id", "payload"))
)


def is_plain(run: NewRun) -> bool:
    """Say whether a run is ready at once and depends on no others."""
    return (
        run.delay_ms == 0
        and run.run_at is None
        and run.deadline_ms is None
        and run.parent is None
        and not run.after
    )


def stands_alone(run: NewRun) -> bool:
    """Say whether a run comes in by one statement: it is ready at once, and has no key."""
    return run.key is None and is_plain(run)


def are_alike(new: Sequence[NewRun]) -> bool:
    """Say whether runs stand alone and differ in id and payload only, as most in bulk do."""
    if len(new) < 2 or not stands_alone(new[0]):
        return False
    said = _what_is_said(new[0])
    return all(map(said.__eq__, map(_what_is_said, new)))


def insert_alike(tx: Tx, new: Sequence[NewRun]) -> None:
    """Insert runs of which `are_alike` is true."""
    if not tx.dialect.one_statement:
        insert_plain(tx, new)
        return
    said = dict.fromkeys(_SAID) | row_of(new[0])
    said["ids"] = array_text([run.id for run in new])
    said["payloads"] = array_text([run.payload for run in new])
    del said["id"], said["payload"]
    tx.write(_insert_alike, **said)


def insert_plain(tx: Tx, new: Sequence[NewRun]) -> None:
    """Insert runs that are ready at once and depend on no others: the most frequent case.

    No row comes back. Those that a try inserted whose answer was lost were ready too.
    """
    batch = document([row_of(run) for run in new])
    if tx.dialect.one_statement:
        tx.write(_insert_both, batch=batch)
    else:
        fresh = [row[0] for row in tx.fetch(_insert_runs, batch=batch)]
        tx.write(_insert_live, fresh=json.dumps(fresh))


def enqueue_alone(tx: Tx, run: NewRun, channels: Sequence[str] = ()) -> list[str]:
    """Insert a run that stands alone, and ring channels, by one statement; return those rung."""
    if not channels or not tx.dialect.one_statement:
        insert_plain(tx, [run])
        return []
    batch = document([row_of(run)])
    rung = tx.fetch_raw(_insert_ringing, batch=batch, channels=json.dumps(list(channels)))
    return [row[0] for row in rung]


def row_of(run: NewRun) -> dict[str, Any]:
    """Return what the table of runs keeps of one; what is null is left out."""
    row: dict[str, Any] = {
        "id": run.id,
        "task": run.task,
        "queue": run.queue,
        "payload": run.payload,
        "priority": run.priority,
    }
    if run.key is not None:
        row["key"] = run.key
    if run.session is not None:
        row["session"] = run.session
    if run.tags:
        row["tags"] = json.dumps(run.tags)
    if run.retry is not DEFAULT_RETRY:
        row["retry"] = run.retry.to_json()
    if run.timeout_ms is not None:
        row["timeout_ms"] = run.timeout_ms
    if run.traceparent is not None:
        row["traceparent"] = run.traceparent
    return row


def document(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a batch as its statement takes it."""
    return json.dumps(rows, separators=(",", ":"))


# -- statements ----------------------------------------------------------------------------------


def runs_from(d: Dialect, u: FromClause, columns: Sequence[str]) -> Any:
    """Return the insert of a batch's immutable parts; what is there already is left alone."""
    insert = upsert(d, runs).from_select(
        [*columns, "created_at"],
        select(*(u.c[name] for name in columns), d.clock).where(
            true() if d.one_statement else literal_column("1 = 1")
        ),
    )
    return insert.on_conflict_do_nothing(index_elements=["id"])


def _insert_both(d: Dialect) -> Any:
    return _insert_of(d, d.rows("batch", PLAIN_COLUMNS))


def _insert_alike(d: Dialect) -> Any:
    """Insert runs that are alike: what they share is said once, and no document is read."""
    u = d.arrays({"id": ("ids", Id), "payload": ("payloads", Text())})
    said = (cast(bindparam(name), PLAIN_COLUMNS[name]).label(name) for name in _SAID)
    return _insert_of(d, select(u.c.id, u.c.payload, *said).subquery("said"))


def _insert_of(d: Dialect, u: FromClause) -> Any:
    fresh = runs_from(d, u, list(PLAIN_COLUMNS)).returning(*_parts(runs)).cte("fresh")
    rows = _live_rows(fresh)
    return postgresql.insert(live).from_select(list(rows.selected_columns.keys()), rows)


def _insert_ringing(d: Dialect) -> Executable:
    placed = _insert_both(d).returning(live.c.id).cte("placed")
    return ring_free(d).add_cte(placed)


def _insert_runs(d: Dialect) -> Executable:
    u = d.rows("batch", PLAIN_COLUMNS)
    statement: Executable = runs_from(d, u, list(PLAIN_COLUMNS)).returning(runs.c.id)
    return statement


def _insert_live(d: Dialect) -> Executable:
    fresh = select(*_parts(runs)).where(d.one_of(runs.c.id, "fresh")).subquery("fresh")
    rows = _live_rows(fresh)
    return sqlite.insert(live).from_select(list(rows.selected_columns.keys()), rows)


def _parts(t: Table) -> list[ColumnElement[Any]]:
    return [t.c.id, t.c.queue, t.c.task, t.c.priority, t.c.session, t.c.created_at]


def _live_rows(fresh: FromClause) -> Select[Any]:
    """Return the live rows of runs that are ready."""
    f = fresh.c
    return select(
        f.id,
        f.queue,
        f.task,
        literal_column("'ready'").label("state"),
        (literal_column("100", BigInteger) - f.priority).label("rank"),
        f.created_at.label("ready_at"),
        false().label("wake_sent"),
        literal_column("1").label("attempt"),
        literal_column("0").label("fence"),
        literal_column("0").label("inbox"),
        literal_column("0").label("hand_backs"),
        literal_column("0").label("active_ms"),
        f.session,
        case((f.session.is_(null()), null()), else_=f.created_at).label("line_at"),
    )
