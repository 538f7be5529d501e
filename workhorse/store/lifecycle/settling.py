"""An activation's last write: many runs of one worker in one transaction.

Source: docs/design.md, sections 2 and 3
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, assert_never

from sqlalchemy import (
    Boolean,
    Text,
    case,
    cast,
    exists,
    func,
    literal_column,
    null,
    select,
    update,
)
from sqlalchemy.sql.expression import Executable

from workhorse.domain.hints import Hint, Reach
from workhorse.domain.ids import RunId
from workhorse.domain.outcomes import Finish, HandBack, Retry, Settlement, Suspend
from workhorse.domain.runs import Failure, Lease, Reason, RunState
from workhorse.store.base.database import Tx
from workhorse.store.base.dialect import Dialect
from workhorse.store.base.schema import Id, Number, freed, live, outcomes, runs
from workhorse.store.durable.suspending import Suspension, suspend
from workhorse.store.live.ending import (
    Ending,
    Successes,
    end_runs,
    end_succeeded,
    next_turns,
    note_attempts,
)
from workhorse.store.live.leasing import LEASE_COLUMNS, held_by, lease_batch, lock_held

_COLUMNS: Final = {
    "id": Id,
    "token": Number,
    "state": Text(),
    "delay_ms": Number,
    "near": Boolean(),
    "spend": Number,
    "hand_back": Number,
    "progressed": Boolean(),
    "active_ms": Number,
}


@dataclass(slots=True)
class Entry:
    """What is to be written for one lease.

    Args:
        lease: The lease that the activation held.
        settlement: What `domain.transitions.settlement_of` decided.
        queue: The run's queue: decides how far ahead its wakeup can be sent.
        active_ms: How long the activation took.
        inbox: The count of deliveries that the claim returned.
        progressed: Whether the activation has stored a boundary: hand-backs count anew from there.
    """

    lease: Lease
    settlement: Settlement
    queue: str = ""
    active_ms: int = 0
    inbox: int = 0
    progressed: bool = False


@dataclass(slots=True)
class Settled:
    """What was written. A run that is not in `written` is under another lease, or none.

    `freed` are runs that have ended and for whose end somebody waits: a pass (`freeing.free_all`)
    is to follow the commit, and maintenance does it where it does not.
    """

    written: dict[RunId, RunState] = field(default_factory=dict)
    hints: list[Hint] = field(default_factory=list)
    freed: list[RunId] = field(default_factory=list)


def settle(tx: Tx, entries: Sequence[Entry], *, reach: Reach, signed: bool = True) -> Settled:
    """Write settlements under their leases; nothing is stored under a lease that is gone.

    A run whose cancel was asked ends as cancelled, its value or error kept.

    Args:
        entries: What is to be written; more than one for a run are judged one after the other.
        reach: How far ahead a queue's wakeups can be sent.
        signed: Whether the holder of the leases settles, who will know its own outcomes again
            (`settled_before`); recovery, which acts under a lease of somebody else, does not sign.
    """
    settled = Settled()
    if not entries:
        return settled
    first = {entry.lease.run_id: entry for entry in reversed(entries)}
    if len(first) < len(entries):
        # A worker that lost a lease and claimed the run again may offer both; each is judged alone.
        for part in (list(first.values()), [e for e in entries if first[e.lease.run_id] is not e]):
            done = settle(tx, part, reach=reach, signed=signed)
            settled.written |= done.written
            settled.hints += done.hints
            settled.freed += done.freed
        return settled
    successes = None
    if signed and tx.dialect.one_statement:
        successes = successes_of([(entry.lease, entry.settlement) for entry in entries])
    if successes is not None:
        return settle_successes(tx, successes)
    ended = end_runs(tx, [_ending(entry, signed=signed) for entry in entries], under_lease=True)
    settled = Settled(ended.states, ended.hints, ended.freed)
    rest = [
        entry
        for entry in entries
        if not isinstance(entry.settlement, Finish) and entry.lease.run_id not in settled.written
    ]
    given_back = [entry for entry in rest if not isinstance(entry.settlement, Suspend)]
    if given_back:
        _give_back(tx, given_back, reach, settled)
    suspended = [
        Suspension(entry.lease, entry.settlement.waits, entry.queue, entry.active_ms, entry.inbox)
        for entry in rest
        if isinstance(entry.settlement, Suspend)
    ]
    if suspended:
        states, hints = suspend(tx, suspended, reach=reach)
        settled.written |= states
        settled.hints += hints
    return settled


def settle_successes(tx: Tx, successes: Successes) -> Settled:
    """Write successes of different runs, by one statement. PostgreSQL alone."""
    ended = end_succeeded(tx, successes)
    return Settled(ended.states, ended.hints, ended.freed)


def settled_before(tx: Tx, leases: Sequence[Lease]) -> Settled:
    """Return what stands of ends that name these leases: my own, whose answer was lost.

    What was to follow that answer is in it too: wakeups of sessions, and whose end is waited for.
    """
    settled = Settled()
    if not leases:
        return settled
    sessions = set()
    for row in tx.fetch(_own_outcomes, batch=lease_batch(leases)):
        run_id = RunId(str(row.id))
        settled.written[run_id] = RunState(row.state)
        if row.noted:
            settled.freed.append(run_id)
        if row.session is not None:
            sessions.add(row.session)
    if sessions:
        settled.hints = next_turns(tx, sessions)
    return settled


def successes_of(ends: Sequence[tuple[Lease, Settlement | None]]) -> Successes | None:
    """Return id, token and result of each; None where one of them is no success."""
    successes = []
    for lease, settlement in ends:
        if type(settlement) is not Finish or settlement.state is not RunState.SUCCEEDED:
            return None
        if settlement.result is None:
            return None  # the database says what is wrong with that
        successes.append((lease.run_id, lease.token, settlement.result))
    return successes


def _ending(entry: Entry, *, signed: bool) -> Ending:
    lease, settlement = entry.lease, entry.settlement
    finish = settlement if isinstance(settlement, Finish) else None
    if isinstance(settlement, Retry):
        reason, failure = settlement.reason, settlement.failure
        return Ending(lease.run_id, lease.token, None, reason, failure, signed=signed)
    return Ending(lease.run_id, lease.token, finish, signed=signed)


def _give_back(tx: Tx, entries: Sequence[Entry], reach: Reach, settled: Settled) -> None:
    by_id = {entry.lease.run_id: entry for entry in entries}
    rows = [_row(entry, reach) for entry in entries]
    failed: list[tuple[RunId, int, int, Reason, Failure]] = []
    for row in tx.fetch(_give, batch=json.dumps(rows, separators=(",", ":"))):
        run_id, state = RunId(str(row.id)), RunState(row.state)
        settled.written[run_id] = state
        settlement = by_id[run_id].settlement
        if isinstance(settlement, Retry):
            failed.append(
                (run_id, row.attempt - 1, row.fence, settlement.reason, settlement.failure)
            )
        if state is RunState.READY:
            # A session's run whose turn it is not cannot be here: it held the turn.
            settled.hints.append(Hint(run_id, row.queue))
        elif row.wake_sent:
            settled.hints.append(Hint(run_id, row.queue, int(row.due_in_ms)))
    note_attempts(tx, failed)


def _row(entry: Entry, reach: Reach) -> dict[str, Any]:
    settlement = entry.settlement
    spend = hand_back = 0
    match settlement:
        case Retry(delay_ms):
            spend = 1
            state = RunState.SCHEDULED if delay_ms > 0 else RunState.READY
            delay: int | None = delay_ms or None
        case HandBack():
            state, delay, hand_back = RunState.READY, None, 1
        case Finish() | Suspend():  # pragma: no cover - `settle` hands none over
            raise AssertionError(f"a {type(settlement).__name__} is not given back")
        case _:
            assert_never(settlement)
    return {
        "id": entry.lease.run_id,
        "token": entry.lease.token,
        "state": state,
        "delay_ms": delay,
        "near": delay is not None and delay <= reach(entry.queue),
        "spend": spend,
        "hand_back": hand_back,
        "progressed": entry.progressed,
        "active_ms": entry.active_ms,
    }


# -- statements ----------------------------------------------------------------------------------


def _give(d: Dialect) -> Executable:
    u = d.rows("batch", _COLUMNS)
    v = d.rows("batch", _COLUMNS, "v")
    held = lock_held(u).where(live.c.cancel_asked_at.is_(null())).cte("held")
    ready = v.c.state == literal_column("'ready'")
    none = null()
    return (
        update(live)
        .where(held_by(live, v), d.among(live.c.id, select(held.c.id)))
        .values(
            state=v.c.state,
            ready_at=case((ready, d.clock), else_=none),
            due_at=case((v.c.delay_ms.is_(none), none), else_=d.after(d.clock, v.c.delay_ms)),
            wake_sent=v.c.near,
            attempt=live.c.attempt + v.c.spend,
            token=none,
            lease_expires_at=none,
            # What was handed back before a new boundary does not count any more.
            hand_backs=case(
                (v.c.hand_back == literal_column("0"), literal_column("0")),
                (v.c.progressed, literal_column("1")),
                else_=live.c.hand_backs + literal_column("1"),
            ),
            active_ms=case(
                (v.c.spend == literal_column("1"), literal_column("0")),
                else_=live.c.active_ms + v.c.active_ms,
            ),
        )
        .returning(
            live.c.id,
            live.c.queue,
            live.c.state,
            live.c.attempt,
            live.c.fence,
            live.c.wake_sent,
            func.coalesce(d.millis(d.clock, live.c.due_at), literal_column("0")).label("due_in_ms"),
        )
    )


def _own_outcomes(d: Dialect) -> Executable:
    u = d.rows("batch", LEASE_COLUMNS)
    noted = exists().where(freed.c.source == cast(outcomes.c.id, Text))
    return select(
        outcomes.c.id, outcomes.c.state, runs.c.session, noted.label("noted")
    ).select_from(u.join(outcomes, held_by(outcomes, u)).join(runs, runs.c.id == outcomes.c.id))
