"""A rerun takes over what the run before it has passed.

Copies are rows of the new run's own, written at its making and under no lease (fence 0). What is
still open of a child or a token is left out: the new run starts, or links, anew when it gets there.

Source: docs/design.md, section 2
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Text,
    and_,
    bindparam,
    exists,
    func,
    insert,
    literal,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy.sql.expression import Executable

from workhorse.domain.boundaries import BoundaryKind
from workhorse.domain.ids import RunId
from workhorse.store.database import Tx
from workhorse.store.dialect import Dialect
from workhorse.store.inspecting import is_settled
from workhorse.store.schema import Id, Number, boundaries, deliveries, live

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
    came = tx.write(_copy_deliveries, upto is None, **ids)
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
    anew = or_(
        *(b.kind == literal(k.value, Text) for k in (BoundaryKind.CHILD, BoundaryKind.TOKEN))
    )
    copied = select(
        _target(), *(b[name] for name in _BOUNDARY), literal_column("0", Number), d.clock
    ).where(b.run_id == _source(), or_(~anew, is_settled()))
    if partly:
        copied = copied.where(b.seq <= bindparam("upto", type_=Number))
    return insert(boundaries).from_select(["run_id", *_BOUNDARY, "fence", "created_at"], copied)


def _copy_deliveries(d: Dialect, unread: bool) -> Executable:
    v = deliveries.c
    wanted = _has_boundary(_target())
    if unread:
        sent = or_(
            *(v.kind == literal(k.value, Text) for k in (BoundaryKind.SIGNAL, BoundaryKind.HUMAN))
        )
        wanted = or_(wanted, and_(sent, ~_has_boundary(_source())))
    number = func.row_number().over(order_by=v.inbox)
    copied = select(_target(), *(v[name] for name in _DELIVERY), number, d.clock).where(
        v.run_id == _source(), wanted
    )
    return insert(deliveries).from_select(["run_id", *_DELIVERY, "inbox", "created_at"], copied)


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
