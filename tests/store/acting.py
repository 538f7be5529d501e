"""What the store's tests do, in one short call each: enqueue, claim, settle, look at the tables."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import text

from workhorse.domain.boundaries import NO_HISTORY, BoundaryKind, History, NewBoundary, Wait
from workhorse.domain.hints import Hint
from workhorse.domain.ids import RunId, new_run_id
from workhorse.domain.outcomes import Finish, HandBack, Retry, Settlement, Suspend
from workhorse.domain.recording import Record, RecordAnswer
from workhorse.domain.retry import DEFAULT_RETRY, RetryPolicy
from workhorse.domain.runs import ClaimedRun, Failure, Lease, NewRun, Reason, RunState, RunView
from workhorse.store.base.database import Store
from workhorse.store.durable.boundaries import record
from workhorse.store.durable.histories import load
from workhorse.store.lifecycle.claiming import Claim, claim
from workhorse.store.lifecycle.cursors import Cursor, Head
from workhorse.store.lifecycle.settling import Entry, Settled, settle
from workhorse.store.lifecycle.sweeping import Swept, promote, recover
from workhorse.store.operators.viewing import show
from workhorse.store.producing.enqueueing import enqueue

TASK = "orders.ship"
QUEUE = "default"
LEASE_MS = 30_000
REACH_MS = 900_000

BROKEN = Failure("ValueError", "it broke", "Traceback: it broke")
SUCCEED = Finish(RunState.SUCCEEDED, result='{"done":true}')
FAIL = Finish(RunState.FAILED, Reason.ERROR, failure=BROKEN)
RETRY = Retry(5_000, Reason.ERROR, BROKEN)
RETRY_NOW = Retry(0, Reason.ERROR, BROKEN)


_names = itertools.count(1)


def waiting(kind: BoundaryKind, delay_ms: int | None = None, name: str | None = None) -> Suspend:
    """An activation's end at a wait that is reached for the first time."""
    name = name or f"{kind} {next(_names)}"
    new = NewBoundary(name=name, kind=kind, seq=1, delay_ms=delay_ms)
    return Suspend((Wait(kind=kind, name=name, new=new),))


def sleeping(delay_ms: int) -> Suspend:
    return waiting(BoundaryKind.TIMER, delay_ms)


def waiting_at_most(delay_ms: int) -> Suspend:
    return waiting(BoundaryKind.SIGNAL, delay_ms)


SLEEP = sleeping(60_000)
WAIT = waiting(BoundaryKind.SIGNAL, name="word")
WAIT_AN_HOUR = waiting_at_most(3_600_000)
HAND_BACK = HandBack()
EACH_SETTLEMENT: dict[str, Settlement] = {
    "succeed": SUCCEED,
    "fail": FAIL,
    "retry": RETRY,
    "retry at once": RETRY_NOW,
    "sleep": SLEEP,
    "wait": WAIT,
    "wait with a time-out": WAIT_AN_HOUR,
    "hand back": HAND_BACK,
}

_tokens = itertools.count(7_000_000_000_000_000_001)


def reach(queue: str) -> int:
    """A broker that delays messages up to 15 minutes."""
    return REACH_MS


def draw(seed: int = 1) -> random.Random:
    return random.Random(seed)


# -- enqueue -------------------------------------------------------------------------------------


def a_run(
    *,
    run_id: RunId | None = None,
    task: str = TASK,
    queue: str = QUEUE,
    payload: str = "null",
    priority: int = 50,
    delay_ms: int = 0,
    run_at: datetime | None = None,
    key: str | None = None,
    fingerprint: str | None = None,
    session: str | None = None,
    tags: tuple[str, ...] = (),
    deadline_ms: int | None = None,
    timeout_ms: int | None = None,
    retry: RetryPolicy = DEFAULT_RETRY,
    traceparent: str | None = None,
    parent: RunId | None = None,
) -> NewRun:
    """Return a run as a producer hands it over."""
    if key is not None and fingerprint is None:
        fingerprint = f"of {payload}"
    return NewRun(
        id=run_id or new_run_id(),
        task=task,
        queue=queue,
        payload=payload,
        priority=priority,
        delay_ms=delay_ms,
        run_at=run_at,
        key=key,
        fingerprint=fingerprint,
        session=session,
        tags=tags,
        deadline_ms=deadline_ms,
        timeout_ms=timeout_ms,
        retry=retry,
        traceparent=traceparent,
        parent=parent,
    )


def put(store: Store, **fields: Any) -> RunId:
    """Enqueue one run."""
    return store.run(enqueue, [a_run(**fields)], reach=reach)[0].run_id


def put_many(store: Store, count: int, **fields: Any) -> list[RunId]:
    """Enqueue some runs in one transaction."""
    done = store.run(enqueue, [a_run(**fields) for _ in range(count)], reach=reach)
    return [each.run_id for each in done]


# -- claim ---------------------------------------------------------------------------------------


def a_token() -> int:
    """Draw a token that no test has drawn before: nearly 63 bits long."""
    return next(_tokens)


def take(
    store: Store,
    *ids: RunId,
    scan: bool = False,
    free: int = 200,
    queue: str = QUEUE,
    tasks: Sequence[str] = (TASK,),
    token: int | None = None,
    lease_ms: int = LEASE_MS,
    cursor: Cursor | Head | None = None,
    sessions: bool = True,
) -> Claim:
    """Claim by ids, and by scan where asked."""
    return store.run(
        claim,
        queue=queue,
        ids=ids,
        tasks=tasks,
        free=free,
        token=token or a_token(),
        lease_ms=lease_ms,
        scan=scan,
        cursor=cursor,
        sessions=sessions,
    )


def take_one(store: Store, run_id: RunId, **how: Any) -> ClaimedRun:
    """Claim one run, which must be claimable."""
    claimed = take(store, run_id, **how).runs
    assert [run.id for run in claimed] == [run_id]
    return claimed[0]


def a_claimed(store: Store, *, lease_ms: int = LEASE_MS, **fields: Any) -> ClaimedRun:
    """Enqueue and claim one run."""
    run_id = put(store, **fields)
    task, queue = fields.get("task", TASK), fields.get("queue", QUEUE)
    return take_one(store, run_id, tasks=[task], queue=queue, lease_ms=lease_ms)


def lease_of(claimed: ClaimedRun) -> Lease:
    assert claimed.lease is not None
    return claimed.lease


def ids_of(claim: Claim) -> list[RunId]:
    return [run.id for run in claim.runs]


# -- settle and sweep ----------------------------------------------------------------------------


def an_entry(claimed: ClaimedRun, settlement: Settlement, active_ms: int = 0) -> Entry:
    return Entry(
        lease_of(claimed),
        settlement,
        queue=claimed.queue,
        active_ms=active_ms,
        inbox=claimed.inbox,
    )


def end(store: Store, claimed: ClaimedRun, settlement: Settlement = SUCCEED) -> Settled:
    """Settle one run under its lease."""
    return store.run(settle, [an_entry(claimed, settlement)], reach=reach)


def recovered(store: Store, ids: Sequence[RunId] | None = None) -> Swept:
    return store.run(recover, reach=reach, draw=draw(), ids=ids)


def promoted(store: Store, ids: Sequence[RunId] | None = None) -> Swept:
    return store.run(promote, ids=ids)


def hinted(hints: Sequence[Hint]) -> list[RunId]:
    return [hint.run_id for hint in hints]


# -- look ----------------------------------------------------------------------------------------


def seen(store: Store, run_id: RunId) -> RunView:
    return store.run(show, run_id)


def state_of(store: Store, run_id: RunId) -> RunState:
    return seen(store, run_id).state


def rows(store: Store, sql: str, **params: Any) -> list[Any]:
    """Return what a query finds; `{s}` in it stands before the name of a table."""
    with store.engine.connect() as conn:
        return list(conn.execute(text(_placed(store, sql)), params).all())


def do(store: Store, sql: str, **params: Any) -> int:
    """Change tables behind the store's back; answer how many rows."""
    with store.engine.begin() as conn:
        return conn.execute(text(_placed(store, sql)), params).rowcount


def live_row(store: Store, run_id: RunId) -> Any:
    """Return a run's live row, None when it has ended."""
    found = rows(store, "select * from {s}live where id = :id", id=run_id)
    return found[0] if found else None


def _placed(store: Store, sql: str) -> str:
    return sql.replace("{s}", f'"{store.schema}".' if store.kind == "postgresql" else "")


# -- boundaries ----------------------------------------------------------------------------------


def a_checkpoint(name: str = "stage", value: str = "1", *, seq: int = 1) -> NewBoundary:
    return NewBoundary(name=name, kind=BoundaryKind.CHECKPOINT, seq=seq, value=value)


def write(store: Store, claimed: ClaimedRun, *new: NewBoundary) -> list[RecordAnswer]:
    """Record boundaries under a run's lease, in one batch."""
    records = [Record(lease=lease_of(claimed), boundary=each) for each in new]
    return store.run(record, records, reach=reach).answers


def history_of(store: Store, run_id: RunId) -> History:
    return store.run(load, [run_id]).get(run_id, NO_HISTORY)


def names_passed(store: Store, run_id: RunId) -> list[str]:
    return [boundary.name for boundary in history_of(store, run_id).boundaries]
