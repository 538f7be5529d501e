"""What happened to a run, in order: its making, its boundaries and deliveries, operators' acts.

Source: docs/design.md, section 7
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    Select,
    Text,
    bindparam,
    cast,
    func,
    literal,
    literal_column,
    null,
    select,
    tuple_,
    union_all,
)
from sqlalchemy.sql.expression import Executable

from workhorse.domain.ids import RunId
from workhorse.domain.instants import to_micros
from workhorse.errors import ConfigurationError
from workhorse.store.base.database import Tx
from workhorse.store.base.dialect import Dialect
from workhorse.store.base.schema import (
    Id,
    Instant,
    Number,
    attempts,
    audit,
    boundaries,
    deliveries,
    live,
    outcomes,
    runs,
)
from workhorse.store.operators.inspecting import require_run


class Happened(StrEnum):
    """What an entry of a timeline tells. At the same instant they stand in this order."""

    CREATED = "created"
    STARTED = "started"
    """It was claimed for the first time."""
    BOUNDARY = "boundary"
    """A checkpoint was stored, or a wait was reached."""
    DELIVERY = "delivery"
    """A value came, or a wait timed out or was closed."""
    ATTEMPT = "attempt"
    """An attempt failed."""
    ACT = "act"
    """An operator did something."""
    ENDED = "ended"


_ORDER: Final = tuple(Happened)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEntry:
    """One thing that happened to a run; what does not belong to it is None. No values stand here.

    `name` is a boundary's, or what an operator did; `kind` a boundary's; `state` a delivery's or
    the run's at its end; `reason` why an attempt or the run failed; `number` the attempt's, or a
    boundary's or delivery's place in the run. `fence` 0 is a boundary that a rerun took over.
    """

    at: datetime
    what: Happened
    name: str | None = None
    kind: str | None = None
    state: str | None = None
    number: int | None = None
    fence: int | None = None
    size_bytes: int | None = None
    due_at: datetime | None = None
    reason: str | None = None
    error_type: str | None = None
    by: str | None = None
    why: str | None = None
    answer: str | None = None
    cursor: str = field(repr=False)
    """Where the next page starts when this is the last of one."""


def timeline(
    tx: Tx, run_id: RunId, *, limit: int = 100, after: str | None = None
) -> list[TimelineEntry]:
    """Return what happened to a run, the first first.

    Args:
        run_id: The run.
        limit: How many entries at most.
        after: The cursor of the last entry of the page before this one.

    Raises:
        RunNotFoundError: No run has that id.
        ConfigurationError: The cursor is none.
    """
    params = {} if after is None else _place(after)
    rows = tx.fetch(_timeline, bool(params), id=run_id, subject=run_id, most=limit, **params)
    if not rows:
        require_run(tx, run_id)
    return [_entry(tx, row) for row in rows]


def _entry(tx: Tx, row: Any) -> TimelineEntry:
    at = tx.dialect.read_instant(row.at)
    return TimelineEntry(
        at=at,
        what=_ORDER[row.rank],
        name=row.name,
        kind=row.kind,
        state=row.state,
        number=row.number,
        fence=row.fence,
        size_bytes=row.bytes,
        due_at=tx.read_instant(row.due_at),
        reason=row.reason,
        error_type=row.error_type,
        by=row.by,
        why=row.why,
        answer=row.answer,
        cursor=f"{to_micros(at)}:{row.rank}:{row.place}:{row.tie}",
    )


_DIGITS: Final = re.compile("[0-9]{1,19}", re.ASCII)


def _place(cursor: object) -> dict[str, Any]:
    parts = cursor.split(":", 3) if isinstance(cursor, str) else []
    numbers = parts[:3]
    if len(parts) < 4 or not all(_DIGITS.fullmatch(part) for part in numbers):
        raise ConfigurationError(
            "after is no place in a timeline; pass the cursor of the last entry of a page"
        )
    micros, rank, place = map(int, numbers)
    if max(micros, rank, place) >= 2**62:
        raise ConfigurationError("after is no place in a timeline: a number in it is too large")
    return {"after_us": micros, "after_rank": rank, "after_place": place, "after_tie": parts[3]}


# -- statements ----------------------------------------------------------------------------------

_COLUMNS: Final[dict[str, Any]] = {
    "name": Text(),
    "kind": Text(),
    "state": Text(),
    "number": Number,
    "fence": Number,
    "bytes": Number,
    "due_at": Instant,
    "reason": Text(),
    "error_type": Text(),
    "by": Text(),
    "why": Text(),
    "answer": Text(),
}


def _part(
    what: Happened,
    table: FromClause,
    at: ColumnElement[Any],
    *,
    place: ColumnElement[Any] | None = None,
    tie: ColumnElement[Any] | None = None,
    **columns: ColumnElement[Any],
) -> Select[Any]:
    return select(
        at.label("at"),
        literal_column(str(_ORDER.index(what)), Number).label("rank"),
        (literal_column("0", Number) if place is None else place).label("place"),
        (literal("", Text) if tie is None else tie).label("tie"),
        *(columns.get(name, cast(null(), kind)).label(name) for name, kind in _COLUMNS.items()),
    ).select_from(table)


def _timeline(d: Dialect, behind: bool) -> Executable:
    run_id = bindparam("id", type_=Id)
    first_claim = func.coalesce(outcomes.c.started_at, live.c.started_at)
    whole = runs.outerjoin(live, live.c.id == runs.c.id).outerjoin(
        outcomes, outcomes.c.id == runs.c.id
    )
    b, v, a, o = boundaries.c, deliveries.c, attempts.c, outcomes.c
    parts: Sequence[Select[Any]] = [
        _part(Happened.CREATED, runs, runs.c.created_at).where(runs.c.id == run_id),
        _part(Happened.STARTED, whole, first_claim).where(
            runs.c.id == run_id, first_claim.is_not(null())
        ),
        _part(
            Happened.BOUNDARY, boundaries, b.created_at, place=b.seq, tie=b.name,
            name=b.name, kind=b.kind, number=b.seq, fence=b.fence, bytes=b.bytes, due_at=b.wake_at,
        ).where(b.run_id == run_id),
        _part(
            Happened.DELIVERY, deliveries, v.created_at, place=v.inbox, tie=v.name,
            name=v.name, kind=v.kind, state=v.state, number=v.inbox, bytes=v.bytes, by=v.by,
            why=v.why,
        ).where(v.run_id == run_id),
        _part(
            Happened.ATTEMPT, attempts, a.ended_at, place=a.attempt,
            number=a.attempt, fence=a.fence, reason=a.reason, error_type=a.error_type,
        ).where(a.run_id == run_id),
        _part(
            Happened.ACT, audit, audit.c.at, tie=cast(audit.c.id, Text),
            name=audit.c.act, by=audit.c.by, why=audit.c.why, answer=audit.c.answer,
        ).where(audit.c.subject == bindparam("subject", type_=Text)),
        _part(
            Happened.ENDED, outcomes, o.finished_at,
            state=o.state, number=o.attempt, fence=o.fence, reason=o.reason,
            error_type=o.error_type,
        ).where(o.id == run_id),
    ]  # fmt: skip
    every = union_all(*parts).subquery("every")
    e = every.c
    statement = select(every)
    if behind:
        statement = statement.where(
            tuple_(e.at, e.rank, e.place, e.tie)
            > tuple_(
                d.instant_of(bindparam("after_us", type_=BigInteger)),
                bindparam("after_rank", type_=Number),
                bindparam("after_place", type_=Number),
                bindparam("after_tie", type_=Text),
            )
        )
    return statement.order_by(e.at, e.rank, e.place, e.tie).limit(bindparam("most", type_=Number))
