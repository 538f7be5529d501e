"""What maintenance does to runs, one bounded page a transaction; workers do the same in place.

Pages take rows with SKIP LOCKED: any number of them may run side by side, and a row that somebody
holds is looked at again by the next.

Source: docs/design.md, sections 2 and 9
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    bindparam,
    case,
    literal_column,
    null,
    or_,
    select,
    text,
    true,
    update,
)
from sqlalchemy.sql.expression import Executable

from workhorse.domain.hints import Hint, Reach
from workhorse.domain.ids import RunId
from workhorse.domain.outcomes import Finish, LeaseExpired
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import Failure, Lease, Reason, RunState
from workhorse.domain.transitions import settlement_of
from workhorse.store.base.database import Tx
from workhorse.store.base.dialect import Dialect
from workhorse.store.base.pages import PAGE, Swept
from workhorse.store.base.schema import live, runs
from workhorse.store.durable.delivering import time_out
from workhorse.store.durable.putting import in_turn
from workhorse.store.lifecycle.settling import Entry, settle
from workhorse.store.live.ending import Ending, end_runs

_FARTHEST_MS: Final = 900_000  # the longest delay that a broker takes
_LONGEST_LEASE_MS: Final = 3_600_000  # the longest that a setting allows

DEADLINE_PASSED: Final = Failure("DeadlinePassed", "the time of the whole run ran out")


def recover(
    tx: Tx, *, reach: Reach, draw: random.Random, ids: Sequence[RunId] | None = None
) -> Swept:
    """End expired leases: an attempt is spent, the run is due again by its policy, or has failed.

    Args:
        reach: How far ahead a queue's wakeups can be sent.
        draw: Where the jitter of the rests comes from.
        ids: Only these runs.
    """
    return _recover(tx, "expired", reach, draw, ids)


def finish_cancelled(tx: Tx, *, reach: Reach, draw: random.Random) -> Swept:
    """End runs whose cancel was asked and whose worker did not settle them while it could."""
    return _recover(tx, "cancelled", reach, draw, None)


def _recover(
    tx: Tx, which: str, reach: Reach, draw: random.Random, ids: Sequence[RunId] | None
) -> Swept:
    rows = tx.fetch(_expired, which, ids is not None, **_named(ids))
    astray = [str(row.id) for row in rows if row.astray]
    if astray:
        # Written by a clock that was ahead. Whether their workers live cannot be told yet: those
        # renew them, and the others run out within an hour instead of when that time comes.
        tx.write(_pull_in, ids=json.dumps(astray))
    entries = [
        Entry(
            Lease(RunId(str(row.id)), row.fence, row.token),
            settlement_of(
                LeaseExpired(),
                attempt=row.attempt,
                hand_backs=row.hand_backs,
                retry=RetryPolicy.from_json(row.retry),
                draw=draw,
            ),
            queue=row.queue,
        )
        for row in rows
        if not row.astray
    ]
    # The same write as a worker's own, under the very lease that was seen to be expired.
    settled = settle(tx, entries, reach=reach, signed=False)
    return Swept(len(settled.written), len(rows) >= PAGE, settled.hints)


def promote(tx: Tx, *, ids: Sequence[RunId] | None = None) -> Swept:
    """Make due runs ready, and record the time-outs of waits whose time has come.

    A wait whose delivery is there already has not timed out, whatever the clock says. A wakeup
    follows only where none is under way for that time already.
    """
    rows = tx.fetch(_promote, ids is not None, **_named(ids))
    waiting = [RunId(str(row.id)) for row in rows if row.state == RunState.WAITING]
    if waiting:
        timed_out = set(time_out(tx, waiting))
        others = [run_id for run_id in waiting if run_id not in timed_out]
        if others:
            tx.write(_wake, ids=json.dumps(others))
    unsent = [row for row in rows if not row.wake_sent]
    return Swept(len(rows), len(rows) >= PAGE, in_turn(tx, unsent))


def end_overdue(tx: Tx) -> Swept:
    """Fail unfinished runs whose deadline has passed, whoever holds them."""
    rows = tx.fetch(_overdue)
    finish = Finish(RunState.FAILED, Reason.DEADLINE, failure=DEADLINE_PASSED)
    endings = [Ending(RunId(str(row.id)), None, finish) for row in rows]
    if not endings:
        return Swept()
    ended = end_runs(tx, endings, under_lease=False)
    return Swept(len(ended.states), len(rows) >= PAGE, ended.hints)


def far_timers(tx: Tx, *, reach: Reach) -> Swept:
    """Return delayed wakeups for timers that have come near enough to be sent, and note them."""
    out_of_reach: set[str] = set()
    while True:
        rows = tx.fetch(_far, farthest_ms=_FARTHEST_MS, without=json.dumps(sorted(out_of_reach)))
        none = {row.queue for row in rows if reach(row.queue) <= 0}
        if not none:
            break
        out_of_reach |= none
    near = [row for row in rows if row.due_in_ms <= reach(row.queue)]
    if near:
        tx.write(_note_sent, ids=json.dumps([str(row.id) for row in near]))
    hints = [Hint(RunId(str(row.id)), row.queue, max(0, int(row.due_in_ms))) for row in near]
    return Swept(len(near), bool(near) and len(rows) >= PAGE, hints)


def _named(ids: Sequence[RunId] | None) -> dict[str, Any]:
    return {} if ids is None else {"ids": json.dumps(list(ids))}


# -- statements ----------------------------------------------------------------------------------


def _only(d: Dialect, named: bool) -> ColumnElement[bool]:
    return d.one_of(live.c.id, "ids") if named else true()


def _longest() -> ColumnElement[Any]:
    # A literal: with a parameter the planner takes a third of the leases for astray.
    return literal_column(str(_LONGEST_LEASE_MS), BigInteger)


def _expired(d: Dialect, which: str, named: bool) -> Executable:
    too_far = live.c.lease_expires_at > d.after(d.now, _longest())
    page: Select[Any] = (
        select(
            live.c.id, live.c.fence, live.c.token, live.c.attempt, live.c.hand_backs,
            live.c.queue, runs.c.retry, too_far.label("astray"),
        )
        .join(runs, runs.c.id == live.c.id)
        .where(
            live.c.state == literal_column("'running'"),
            # The lock reads the newest row, so a lease that was renewed meanwhile is not expired.
            or_(live.c.lease_expires_at <= d.now, too_far),
            d.settled_down(),
            _only(d, named),
        )
        .limit(literal_column(str(PAGE)))
        .with_for_update(of=live, skip_locked=True)
    )  # fmt: skip
    return page.where(live.c.cancel_asked_at.is_not(null())) if which == "cancelled" else page


def _pull_in(d: Dialect) -> Executable:
    return (
        update(live)
        .where(d.one_of(live.c.id, "ids"), live.c.token.is_not(null()))
        .values(lease_expires_at=d.after(d.clock, _longest()))
    )


def _promote(d: Dialect, named: bool) -> Executable:
    due = (
        select(live.c.id)
        .where(
            live.c.due_at <= d.now,
            # Said for the index, and for SQLite, whose planner asks for it.
            live.c.due_at.is_not(null()),
            live.c.token.is_(null()),
            _only(d, named),
        )
        .order_by(live.c.due_at)
        .limit(literal_column(str(PAGE)))
        .with_for_update(key_share=True, of=live, skip_locked=True)
    )
    # One that waits is only locked by it: its time-outs are recorded first. So a page of runs that
    # are scheduled, as nearly all are, is one statement.
    waits = live.c.state == literal_column("'waiting'")
    return (
        update(live)
        .where(d.among(live.c.id, due))
        .values(
            state=case((waits, live.c.state), else_=literal_column("'ready'")),
            ready_at=case((waits, null()), else_=d.clock),
            due_at=case((waits, live.c.due_at), else_=null()),
        )
        .returning(live.c.id, live.c.queue, live.c.state, live.c.wake_sent, live.c.session)
    )


def _wake(d: Dialect) -> Executable:
    return (
        update(live)
        .where(d.one_of(live.c.id, "ids"))
        .values(state="ready", ready_at=d.clock, due_at=null())
    )


def _overdue(d: Dialect) -> Executable:
    return (
        select(live.c.id)
        .where(live.c.deadline_at.is_not(null()), live.c.deadline_at <= d.now)
        .order_by(live.c.deadline_at)
        .limit(literal_column(str(PAGE)))
        .with_for_update(of=live, skip_locked=True)
    )


def _far(d: Dialect) -> Executable:
    horizon = d.after(d.now, bindparam("farthest_ms", type_=BigInteger))
    return (
        select(live.c.id, live.c.queue, d.millis(d.clock, live.c.due_at).label("due_in_ms"))
        .where(
            live.c.due_at.is_not(null()),
            text("not live.wake_sent"),  # as the partial index says it
            live.c.due_at <= horizon,
            live.c.queue.not_in(select(d.each("without").c.value)),
        )
        .order_by(live.c.due_at)
        .limit(literal_column(str(PAGE)))
        .with_for_update(key_share=True, of=live, skip_locked=True)
    )


def _note_sent(d: Dialect) -> Executable:
    return (
        update(live)
        .where(d.one_of(live.c.id, "ids"), live.c.due_at.is_not(null()))
        .values(wake_sent=literal_column("true"))
    )


__all__ = ["PAGE", "Swept", "end_overdue", "far_timers", "finish_cancelled", "promote", "recover"]
