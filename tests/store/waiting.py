"""Runs that wait, and what comes to them from outside: in one short call each."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from tests.store.acting import (
    a_claimed,
    a_run,
    end,
    lease_of,
    reach,
    rows,
    take_one,
    waiting,
)
from workhorse.domain.boundaries import BoundaryKind, DeliveryResult, NewBoundary, Wait
from workhorse.domain.hints import Hint
from workhorse.domain.ids import RunId
from workhorse.domain.outcomes import Suspend
from workhorse.domain.recording import NewChild, Record
from workhorse.domain.runs import ClaimedRun, OnFailure, RunState
from workhorse.store.base.database import Store, Tx
from workhorse.store.base.pages import Swept
from workhorse.store.durable.boundaries import record
from workhorse.store.durable.delivering import deliver
from workhorse.store.durable.freeing import arm, free, free_noted
from workhorse.store.durable.tokens import complete_token, create_token
from workhorse.store.producing.enqueueing import enqueue

SIGNAL, HUMAN, TOKEN, CHILD = (
    BoundaryKind.SIGNAL,
    BoundaryKind.HUMAN,
    BoundaryKind.TOKEN,
    BoundaryKind.CHILD,
)
_refs = itertools.count(1)


# -- signals -------------------------------------------------------------------------------------


def a_waiting(
    store: Store,
    *,
    kind: BoundaryKind = SIGNAL,
    name: str = "word",
    timeout_ms: int | None = None,
    **fields: Any,
) -> RunId:
    """Return a run that waits for a value."""
    claimed = a_claimed(store, **fields)
    settled = end(store, claimed, waiting(kind, timeout_ms, name))
    assert settled.written == {claimed.id: RunState.WAITING}
    return claimed.id


def wait_again(
    store: Store,
    claimed: ClaimedRun,
    *names: str,
    kind: BoundaryKind = SIGNAL,
    new: bool = True,
) -> RunState:
    """Settle a run at some waits; return the state that it has then."""
    waits = tuple(
        Wait(kind=kind, name=name, new=NewBoundary(name=name, kind=kind, seq=n) if new else None)
        for n, name in enumerate(names)
    )
    return end(store, claimed, Suspend(waits)).written[claimed.id]


def send(
    store: Store,
    run_id: RunId,
    value: str = '"go"',
    *,
    kind: BoundaryKind = SIGNAL,
    name: str = "word",
    key: str | None = None,
    **more: str,
) -> tuple[DeliveryResult, list[Hint]]:
    """Deliver a value."""
    return store.run(deliver, run_id, kind, name, value, key=key, **more)


def said(
    tx: Tx, run_id: RunId, value: str, *, key: str | None = None, name: str = "word"
) -> DeliveryResult:
    """Deliver a value in an open transaction."""
    return deliver(tx, run_id, SIGNAL, name, value, key=key)[0]


def delivered(store: Store, run_id: RunId) -> list[tuple[str, str, str | None]]:
    """Return name, state and value of what was delivered to a run, in order."""
    found = rows(
        store,
        "select name, state, value from {s}deliveries where run_id = :id order by inbox, name",
        id=run_id,
    )
    return [(row.name, row.state, row.value) for row in found]


# -- tokens --------------------------------------------------------------------------------------


def a_ref(store: Store, timeout_ms: int | None = None) -> str:
    """Make a token; return its reference."""
    ref = f"tok_{next(_refs):04}"
    store.run(create_token, ref, timeout_ms=timeout_ms)
    return ref


def waiting_for(*refs: str) -> Suspend:
    """An activation's end at waits for tokens."""
    waits = (
        Wait(
            kind=TOKEN,
            name=f"t {ref}",
            new=NewBoundary(name=f"t {ref}", kind=TOKEN, seq=n, detail=f'"{ref}"'),
            token=ref,
        )
        for n, ref in enumerate(refs)
    )
    return Suspend(tuple(waits))


def linked(store: Store, ref: str, **fields: Any) -> RunId:
    """Return a run that waits for a token."""
    claimed = a_claimed(store, **fields)
    settled = end(store, claimed, waiting_for(ref))
    assert settled.written == {claimed.id: RunState.WAITING}
    return claimed.id


def complete(
    store: Store, ref: str, value: str = '"paid"', *, key: str | None = None
) -> DeliveryResult:
    """Complete a token: the fact alone, without a pass."""
    return store.run(complete_token, ref, value, key=key)


# -- children ------------------------------------------------------------------------------------


def a_child(
    store: Store, parent: ClaimedRun, name: str = "part", *, keep: bool = False, **fields: Any
) -> RunId:
    """Start a child under its parent's lease."""
    run = a_run(**fields)._replace(parent=parent.id, keep=keep)
    new = NewBoundary(name=name, kind=CHILD, seq=1, detail=f'"{run.id}"')
    wanted = Record(lease=lease_of(parent), boundary=new, child=NewChild(run=run))
    store.run(record, [wanted], reach=reach)
    return run.id


def a_family(store: Store, children: int = 1, **fields: Any) -> tuple[RunId, list[RunId]]:
    """Return a run that waits for its children, and them."""
    parent = a_claimed(store)
    names = [f"part {n}" for n in range(children)]
    ids = [a_child(store, parent, name, **fields) for name in names]
    assert wait_again(store, parent, *names, kind=CHILD, new=False) is RunState.WAITING
    return parent.id, ids


# -- runs that come after others -----------------------------------------------------------------


def put_after(
    store: Store,
    *after: RunId,
    on_failure: OnFailure | None = None,
    armed: bool = True,
    **fields: Any,
) -> RunId:
    """Enqueue a run that comes after others."""
    run = a_run(**fields)._replace(after=after, on_failure=on_failure)
    done = store.run(enqueue, [run], reach=reach)[0]
    if armed:
        store.run(arm, sources=after)
    return done.run_id


# -- passes --------------------------------------------------------------------------------------


def passed(store: Store, source: str, limit: int = 100) -> Swept:
    return store.run(free, source, limit=limit)


def freed(store: Store) -> Swept:
    """Do passes, as maintenance does, until nothing is left to do."""
    total = Swept()
    for _ in range(200):
        swept = store.run(free_noted)
        total.count += swept.count
        total.hints += swept.hints
        if not swept.full and not notes(store):
            return total
    raise AssertionError("passes that never end")


def notes(store: Store) -> list[str]:
    return [row.source for row in rows(store, "select source from {s}freed order by source")]


def links_of(store: Store, source: str) -> int:
    found = rows(store, "select count(*) from {s}links where source = :source", source=source)
    return int(found[0][0])


def claim_and_end(store: Store, ids: Sequence[RunId], **how: Any) -> None:
    """Run runs to their end."""
    for run_id in ids:
        end(store, take_one(store, run_id), **how)
