"""What an examination asks of the store: the time, and runs that wait for somebody to take them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, literal_column, select
from sqlalchemy.sql.expression import Executable

from workhorse.store.base.database import Tx
from workhorse.store.base.dialect import Dialect
from workhorse.store.base.schema import live
from workhorse.store.live.turns import has_turn, open_queue


@dataclass(frozen=True, slots=True)
class Runnable:
    """The runs of an open queue that a worker could claim now."""

    queue: str
    runs: int
    oldest_at: datetime
    oldest_ms: int
    """For how long the oldest of them could have been claimed."""


def read_clock(tx: Tx) -> datetime:
    """Return the time, by the database's clock."""
    (row,) = tx.fetch(_clock)
    return tx.dialect.read_instant(row.at)


def runnable(tx: Tx, known: Sequence[str] | None) -> list[Runnable]:
    """Return what can be claimed in each open queue, by its name.

    Args:
        known: Only runs of these tasks; None for those of all.
    """
    params = {} if known is None else {"known": json.dumps(list(known))}
    return [
        Runnable(
            row.queue, int(row.runs), tx.dialect.read_instant(row.oldest_at), int(row.oldest_ms)
        )
        for row in tx.fetch(_runnable, known is not None, **params)
    ]


def _clock(d: Dialect) -> Executable:
    return select(d.clock.label("at"))


def _runnable(d: Dialect, only_known: bool) -> Executable:
    oldest = func.min(live.c.ready_at)
    statement = (
        select(
            live.c.queue,
            func.count().label("runs"),
            oldest.label("oldest_at"),
            d.millis(oldest, d.now).label("oldest_ms"),
        )
        .where(live.c.state == literal_column("'ready'"), open_queue(live.c.queue), has_turn(live))
        .group_by(live.c.queue)
        .order_by(live.c.queue)
    )
    if only_known:
        statement = statement.where(live.c.task.in_(select(d.each("known").c.value)))
    return statement
