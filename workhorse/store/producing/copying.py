"""A rerun takes over what the run before it has passed.

Copies are rows of the new run's own, written at its making and under no lease (fence 0). What is
still open of a child or a token is left out: the new run starts, or links, anew when it gets there.
What a choice had closed stays closed where the choice is taken over too, and is else open again.

Source: docs/design.md, section 2
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Text,
    and_,
    bindparam,
    case,
    exists,
    func,
    insert,
    literal,
    literal_column,
    null,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.sql.expression import Executable

from workhorse.domain.boundaries import BoundaryKind, DeliveryState
from workhorse.domain.ids import RunId
from workhorse.store.base.database import Tx
from workhorse.store.base.dialect import Dialect
from workhorse.store.base.schema import Id, Number, boundaries, deliveries, live

_BOUNDARY: Final = (
    "name", "kind", "seq", "value", "bytes", "fingerprint", "detail", "wake_at", "absolute",
)  # fmt: skip
_DELIVERY: Final = ("kind", "name", "state", "value", "bytes", "key", "by", "why")


def copy_history(tx: Tx, source: RunId, target: RunId, *, upto: int | None) -> None:
    """Copy boundaries, and the deliveries that belong to them, to a run that was just inserted.

    Args:
        source: A run that has ended.
        target: The new run.
        upto: The place of the last boundary to copy; None copies all, and what came for the run
            that no wait has asked for yet.
    """
    ids = {"source": source, "target": target}
    place = {} if upto is None else {"upto": upto}
    passed = tx.write(_copy_boundaries, upto is not None, **ids, **place)
    came = tx.write(_copy_deliveries, upto is not None, **ids, **place)
    if passed or came:
        # By this number a claim knows that there is something to load.
        tx.write(_count, id=target, inbox=max(came, 1))


# -- statements ----------------------------------------------------------------------------------


def _source() -> Any:
    return bindparam("source", type_=Id)


def _target() -> Any:
    return bindparam("target", type_=Id)


def _copy_boundaries(d: Dialect, partly: bool) -> Executable:
    b = boundaries.c
    anew = _is_one_of(b.kind, BoundaryKind.CHILD, BoundaryKind.TOKEN)
    settled = exists().where(
        deliveries.c.run_id == b.run_id,
        deliveries.c.kind == b.kind,
        deliveries.c.name == b.name,
        or_(~_is_closed(), _is_passed_over(d, partly)),
    )
    copied = select(
        _target(), *(b[name] for name in _BOUNDARY), literal_column("0", Number), d.clock
    ).where(b.run_id == _source(), or_(~anew, settled), *_within(b, partly))
    return insert(boundaries).from_select(["run_id", *_BOUNDARY, "fence", "created_at"], copied)


def _copy_deliveries(d: Dialect, partly: bool) -> Executable:
    v = deliveries.c
    wanted = _has_boundary(_target())
    if not partly:
        sent = _is_one_of(v.kind, BoundaryKind.SIGNAL, BoundaryKind.HUMAN)
        wanted = or_(wanted, and_(sent, ~_has_boundary(_source())))
    wanted = case((_is_closed(), _is_passed_over(d, partly)), else_=wanted)
    number = func.row_number().over(order_by=v.inbox)
    copied = select(_target(), *(v[name] for name in _DELIVERY), number, d.clock).where(
        v.run_id == _source(), wanted
    )
    return insert(deliveries).from_select(["run_id", *_DELIVERY, "inbox", "created_at"], copied)


def _within(columns: Any, partly: bool) -> list[ColumnElement[bool]]:
    return [columns.seq <= bindparam("upto", type_=Number)] if partly else []


def _is_closed() -> ColumnElement[bool]:
    return deliveries.c.state == literal(DeliveryState.CLOSED.value, Text)


def _is_passed_over(d: Dialect, partly: bool) -> ColumnElement[bool]:
    """Say that a delivery's name is among those of a choice that is taken over."""
    chosen_among = boundaries.alias("a")
    a = chosen_among.c
    choice = _is_one_of(a.kind, BoundaryKind.ANY)
    # Looked into only where it is a choice, whatever the database looks at first.
    names = d.elements(case((choice, a.detail), else_=null()))
    chosen = (
        select(names.c.value)
        .select_from(chosen_among.join(names, true()))
        .where(a.run_id == _source(), choice, *_within(a, partly))
    )
    return deliveries.c.name.in_(chosen)


def _is_one_of(kind: ColumnElement[str], *kinds: BoundaryKind) -> ColumnElement[bool]:
    return or_(*(kind == literal(each.value, Text) for each in kinds))


def _has_boundary(run_id: Any) -> ColumnElement[bool]:
    b = boundaries.alias("b").c
    return exists().where(
        b.run_id == run_id, b.name == deliveries.c.name, b.kind == deliveries.c.kind
    )


def _count(_d: Dialect) -> Executable:
    return (
        update(live)
        .where(live.c.id == bindparam("id", type_=Id))
        .values(inbox=bindparam("inbox", type_=Number))
    )
