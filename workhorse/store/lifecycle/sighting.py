"""What is known of runs that wakeups name and a claim did not take.

Source: docs/design.md, section 4
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from sqlalchemy import and_, case, exists, func, literal_column, null, or_, select, true
from sqlalchemy.sql.expression import Executable

from workhorse.domain.ids import RunId
from workhorse.domain.runs import RunState
from workhorse.domain.sightings import Sighting
from workhorse.store.base.database import Tx
from workhorse.store.base.dialect import Dialect
from workhorse.store.base.schema import live, outcomes, queues, runs
from workhorse.store.live.turns import has_turn


def sight(tx: Tx, ids: Sequence[RunId]) -> dict[RunId, Sighting]:
    """Return what is known of runs; one that is not there has no entry."""
    if not ids:
        return {}
    seen = {}
    for row in tx.fetch(_sight, ids=json.dumps(list(ids))):
        seen[RunId(str(row.id))] = Sighting(
            state=RunState(row.state),
            queue=row.queue,
            task=row.task,
            due_in_ms=None if row.due_in_ms is None else int(row.due_in_ms),
            lease_expired=bool(row.lease_expired),
            queue_paused=bool(row.paused),
            turn=bool(row.turn),
        )
    return seen


# -- statements ----------------------------------------------------------------------------------


def _sight(d: Dialect) -> Executable:
    paused = exists().where(queues.c.name == runs.c.queue, queues.c.paused_at.is_not(null()))
    expired = and_(live.c.token.is_not(null()), live.c.lease_expires_at <= d.clock)
    return (
        select(
            runs.c.id,
            func.coalesce(outcomes.c.state, live.c.state).label("state"),
            runs.c.queue,
            runs.c.task,
            case((live.c.due_at.is_(null()), null()), else_=d.millis(d.clock, live.c.due_at)).label(
                "due_in_ms"
            ),
            case((expired, true()), else_=literal_column("false")).label("lease_expired"),
            paused.label("paused"),
            has_turn(live).label("turn"),
        )
        .select_from(
            runs.outerjoin(live, live.c.id == runs.c.id).outerjoin(
                outcomes, outcomes.c.id == runs.c.id
            )
        )
        .where(
            d.one_of(runs.c.id, "ids"),
            or_(live.c.id.is_not(null()), outcomes.c.id.is_not(null())),
        )
    )
