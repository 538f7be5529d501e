"""What operators look at in a durable run: its checkpoints, and the waits that are open.

Everything that is listed comes in pages behind a cursor.

Source: docs/design.md, section 7
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Select,
    Text,
    and_,
    bindparam,
    case,
    exists,
    literal,
    null,
    or_,
    select,
    tuple_,
)
from sqlalchemy.sql.expression import Executable

from workhorse.domain.boundaries import WAITS, Boundary, BoundaryKind, Delivered, DeliveryState
from workhorse.domain.ids import RunId
from workhorse.domain.runs import RunState
from workhorse.errors import BoundaryNotFoundError, RunNotFoundError
from workhorse.store.base.database import Tx
from workhorse.store.base.dialect import Dialect
from workhorse.store.base.schema import Id, Number, boundaries, deliveries, live, runs

READ_AT_ONCE: Final = 200
_MOST_NAMED: Final = 50
_FIRST: Final = ""
"""Stands before all names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointView:
    """A checkpoint that a run has stored; `value` is JSON text.

    `fence` is that of the lease it was stored under; 0 where a rerun took it over from its run.
    """

    name: str
    seq: int
    value: str | None
    size_bytes: int
    fingerprint: str | None
    fence: int
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitView:
    """A wait that an unfinished run has reached and nothing has settled.

    `due_at` is a timer's time, or the wait's time-out. `context` is what a human wait shows to
    whoever decides, as JSON text; `child` the run whose end is waited for.
    """

    run_id: RunId
    task: str
    queue: str
    state: RunState
    kind: BoundaryKind
    name: str
    since: datetime
    due_at: datetime | None
    context: str | None
    child: str | None

    @property
    def cursor(self) -> str:
        """Where the next page starts when this is the last of one."""
        return f"{self.run_id}:{self.name}"


def list_checkpoints(
    tx: Tx, run_id: RunId, *, limit: int = 100, after: str = _FIRST
) -> list[CheckpointView]:
    """Return a run's checkpoints in the order in which it came to them.

    Args:
        run_id: The run.
        limit: How many at most.
        after: The last name of the page before this one.

    Raises:
        RunNotFoundError: No run has that id.
        BoundaryNotFoundError: The run has nothing of the name that was given as the last.
    """
    rows = tx.fetch(_checkpoints, id=run_id, after=after, most=limit)
    if not rows:
        require_run(tx, run_id)
        if after != _FIRST:
            require_seq(tx, run_id, after)
    return [
        CheckpointView(
            name=row.name,
            seq=row.seq,
            value=row.value,
            size_bytes=row.bytes,
            fingerprint=row.fingerprint,
            fence=row.fence,
            created_at=tx.dialect.read_instant(row.created_at),
        )
        for row in rows
    ]


def list_waits(
    tx: Tx,
    *,
    run_id: RunId | None = None,
    queue: str | None = None,
    kind: BoundaryKind | None = None,
    limit: int = 100,
    after: tuple[RunId, str] | None = None,
) -> list[WaitView]:
    """Return open waits by run, the oldest run first, and by name.

    Args:
        run_id: Only of this run.
        queue: Only of this queue's runs.
        kind: Only of this kind, which is one of `WAITS`.
        limit: How many at most.
        after: Run and name of the last wait of the page before this one.

    Raises:
        RunNotFoundError: No run has the id that was given.
    """
    given: dict[str, Any] = {"run_id": run_id, "queue": queue, "kind": kind}
    params = {name: value for name, value in given.items() if value is not None}
    if after is not None:
        params |= {"after_run": after[0], "after_name": after[1]}
    rows = tx.fetch(_waits, tuple(sorted(params)), **params, most=limit)
    if not rows and run_id is not None:
        require_run(tx, run_id)
    return [_wait(tx, row) for row in rows]


def read_boundaries(tx: Tx, run_id: RunId) -> list[Boundary]:
    """Return all that a run has passed, in order, with values: up to 64 MiB of them."""
    found: list[Boundary] = []
    after = _FIRST
    while rows := tx.fetch(_whole_boundaries, id=run_id, after=after, most=READ_AT_ONCE):
        found += [_boundary(tx, row) for row in rows]
        after = rows[-1].name
    return found


def read_deliveries(tx: Tx, run_id: RunId) -> list[Delivered]:
    """Return all that came for a run, in the order in which it came, with values."""
    found: list[Delivered] = []
    after: dict[str, Any] = {"inbox": 0, "kind": _FIRST, "name": _FIRST}
    while rows := tx.fetch(_whole_deliveries, id=run_id, **after, most=READ_AT_ONCE):
        found += [_delivered(tx, row) for row in rows]
        after = {key: getattr(rows[-1], key) for key in after}
    return found


def require_seq(tx: Tx, run_id: RunId, name: str) -> int:
    """Return a boundary's place in its run.

    Raises:
        BoundaryNotFoundError: The run has none of that name; the message lists what there is.
    """
    rows = tx.fetch(_seq, id=run_id, name=name)
    if rows:
        return int(rows[0].seq)
    names = [row.name for row in tx.fetch(_names, id=run_id, most=_MOST_NAMED + 1)]
    listed = ", ".join(map(repr, names[:_MOST_NAMED])) + (", ..." * (len(names) > _MOST_NAMED))
    raise BoundaryNotFoundError(
        f"run {run_id} has no boundary {name!r}; "
        + (f"it has, in this order: {listed}" if names else "it has none at all")
    )


def require_run(tx: Tx, run_id: RunId) -> None:
    """Raise `RunNotFoundError` unless there is such a run."""
    if not tx.fetch(_run, id=run_id):
        raise RunNotFoundError(
            f"run {run_id} is not in this store; check the id, the database and the environment"
        )


def _wait(tx: Tx, row: Any) -> WaitView:
    kind = BoundaryKind(row.kind)
    return WaitView(
        run_id=RunId(str(row.id)),
        task=row.task,
        queue=row.queue,
        state=RunState(row.state),
        kind=kind,
        name=row.name,
        since=tx.dialect.read_instant(row.created_at),
        due_at=tx.read_instant(row.wake_at),
        context=row.detail if kind is BoundaryKind.HUMAN else None,
        child=row.detail.strip('"') if kind is BoundaryKind.CHILD and row.detail else None,
    )


def _boundary(tx: Tx, row: Any) -> Boundary:
    return Boundary(
        name=row.name,
        kind=BoundaryKind(row.kind),
        seq=row.seq,
        value=row.value,
        fingerprint=row.fingerprint,
        detail=row.detail,
        wake_at=tx.read_instant(row.wake_at),
        absolute=bool(row.absolute),
        created_at=tx.dialect.read_instant(row.created_at),
    )


def _delivered(tx: Tx, row: Any) -> Delivered:
    return Delivered(
        kind=BoundaryKind(row.kind),
        name=row.name,
        state=DeliveryState(row.state),
        inbox=row.inbox,
        value=row.value,
        at=tx.dialect.read_instant(row.created_at),
    )


# -- statements ----------------------------------------------------------------------------------


def _id() -> Any:
    return bindparam("id", type_=Id)


def _most() -> Any:
    return bindparam("most", type_=Number)


def _of_kind(*kinds: BoundaryKind) -> ColumnElement[bool]:
    return or_(*(boundaries.c.kind == literal(kind.value, Text) for kind in kinds))


def _behind() -> ColumnElement[bool]:
    """Say that a boundary comes after the one of that name, in its run's order."""
    b = boundaries.alias("before")
    after = bindparam("after", type_=Text)
    place = select(b.c.seq).where(b.c.run_id == _id(), b.c.name == after).scalar_subquery()
    return or_(
        after == literal(_FIRST, Text),
        tuple_(boundaries.c.seq, boundaries.c.name) > tuple_(place, after),
    )


def _checkpoints(_d: Dialect) -> Executable:
    return _in_order(select(boundaries)).where(_of_kind(BoundaryKind.CHECKPOINT), _behind())


def _whole_boundaries(_d: Dialect) -> Executable:
    return _in_order(select(boundaries)).where(_behind())


def _in_order(statement: Select[Any]) -> Select[Any]:
    return (
        statement.where(boundaries.c.run_id == _id())
        .order_by(boundaries.c.seq, boundaries.c.name)
        .limit(_most())
    )


def _whole_deliveries(_d: Dialect) -> Executable:
    # Waits that were closed together have one number, and so have what a suspension has settled.
    place = deliveries.c.inbox, deliveries.c.kind, deliveries.c.name
    after = bindparam("inbox", type_=Number), *(bindparam(n, type_=Text) for n in ("kind", "name"))
    return (
        select(deliveries)
        .where(deliveries.c.run_id == _id(), tuple_(*place) > tuple_(*after))
        .order_by(*place)
        .limit(_most())
    )


def _names(_d: Dialect) -> Executable:
    return _in_order(select(boundaries.c.name))


def _seq(_d: Dialect) -> Executable:
    return select(boundaries.c.seq).where(
        boundaries.c.run_id == _id(), boundaries.c.name == bindparam("name", type_=Text)
    )


def _run(_d: Dialect) -> Executable:
    return select(runs.c.id).where(runs.c.id == _id())


def is_settled() -> ColumnElement[bool]:
    """Say that there is a delivery for a boundary's kind and name."""
    return exists().where(
        deliveries.c.run_id == boundaries.c.run_id,
        deliveries.c.kind == boundaries.c.kind,
        deliveries.c.name == boundaries.c.name,
    )


def _waits(d: Dialect, given: Sequence[str]) -> Executable:
    shown = _of_kind(BoundaryKind.HUMAN, BoundaryKind.CHILD)  # a token's reference is a secret
    detail = case((shown, boundaries.c.detail), else_=null())
    statement = (
        select(
            live.c.id, live.c.task, live.c.queue, live.c.state, boundaries.c.kind,
            boundaries.c.name, boundaries.c.created_at, boundaries.c.wake_at,
            detail.label("detail"),
        )
        .join(boundaries, boundaries.c.run_id == live.c.id)
        .where(
            # Whoever was never claimed has reached nothing, unless it is a rerun: no look at those.
            or_(live.c.fence > 0, live.c.inbox > 0),
            _of_kind(*sorted(WAITS)),
            ~is_settled(),
            or_(~_of_kind(BoundaryKind.TIMER), boundaries.c.wake_at > d.now),
        )
        .order_by(live.c.id, boundaries.c.name)
        .limit(_most())
    )  # fmt: skip
    if "run_id" in given:
        statement = statement.where(live.c.id == bindparam("run_id", type_=Id))
    if "queue" in given:
        statement = statement.where(live.c.queue == bindparam("queue", type_=Text))
    if "kind" in given:
        statement = statement.where(boundaries.c.kind == bindparam("kind", type_=Text))
    if "after_run" in given:
        last = bindparam("after_run", type_=Id)
        # Said twice: the first finds the place in the index.
        statement = statement.where(
            and_(
                live.c.id >= last,
                tuple_(live.c.id, boundaries.c.name)
                > tuple_(last, bindparam("after_name", type_=Text)),
            )
        )
    return statement
