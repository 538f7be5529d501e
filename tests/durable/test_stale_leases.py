"""What an activation asks for under a lease that is gone, in a batch with its successor's."""

from __future__ import annotations

import pytest

from tests.store.acting import a_claimed, history_of, lease_of, reach, recovered, rows, take_one
from tests.store.waiting import CHILD, a_ref, complete, delivered, links_of, waiting_for
from workhorse.domain.boundaries import BoundaryKind, NewBoundary
from workhorse.domain.ids import RunId, new_run_id
from workhorse.domain.recording import NewChild, Record, Recorded
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import ClaimedRun, NewRun
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.durable.boundaries import record
from workhorse.store.lifecycle.settling import Entry, settle

AT_ONCE = RetryPolicy(max_attempts=5, first=RetryPolicy().first * 0)


def two_leases(store: Store, clock: ManualClock) -> tuple[ClaimedRun, ClaimedRun]:
    """A run that was claimed again when its lease ran out: the stale claim, and the current one."""
    stale = a_claimed(store, retry=AT_ONCE)
    clock.advance(30_001)
    recovered(store)
    return stale, take_one(store, stale.id)


@pytest.mark.parametrize("first", ["stale", "current"])
def test_of_one_name_in_a_batch_the_current_leases_is_stored(
    store: Store, clock: ManualClock, first: str
) -> None:
    """A worker can hold both; the one that is answered as stored must be the one that is."""
    stale, current = two_leases(store, clock)
    new = NewBoundary(name="charge", kind=BoundaryKind.CHECKPOINT, seq=1)
    records = [
        Record(lease=lease_of(stale), boundary=_valued(new, '"stale"')),
        Record(lease=lease_of(current), boundary=_valued(new, '"current"')),
    ]
    if first == "current":
        records.reverse()

    answers = store.run(record, records, reach=reach).answers

    expected = [Recorded.LOST, Recorded.STORED]
    assert [each.result for each in answers] == (expected[::-1] if first == "current" else expected)
    assert [each.value for each in history_of(store, current.id).boundaries] == ['"current"']


def test_a_stale_lease_starts_no_child_beside_its_successors(
    store: Store, clock: ManualClock
) -> None:
    """The child that is started is the one that the boundary names."""
    stale, current = two_leases(store, clock)
    records = [_child(stale), _child(current)]

    store.run(record, records, reach=reach)

    (started,) = rows(store, "select id from {s}runs where parent_id is not null")
    assert history_of(store, current.id).boundaries[0].detail == f'"{started.id}"'
    assert links_of(store, str(started.id)) == 1


@pytest.mark.parametrize("settled", [False, True], ids=["open", "settled"])
def test_a_stale_suspension_at_a_token_stores_nothing(
    store: Store, clock: ManualClock, settled: bool
) -> None:
    """Neither its link, nor what the token says already, nor the count of it."""
    ref = a_ref(store)
    if settled:
        complete(store, ref)
    stale, current = two_leases(store, clock)

    written = store.run(settle, [Entry(lease_of(stale), waiting_for(ref))], reach=reach).written

    assert written == {}
    assert links_of(store, ref) == 0
    assert delivered(store, current.id) == []
    (live,) = rows(store, "select inbox from {s}live where id = :id", id=current.id)
    assert live.inbox == 0


def _valued(new: NewBoundary, value: str) -> NewBoundary:
    return NewBoundary(name=new.name, kind=new.kind, seq=new.seq, value=value)


def _child(claimed: ClaimedRun) -> Record:
    run = NewRun(
        id=RunId(new_run_id()), task="part", queue="default", payload="null", parent=claimed.id
    )
    new = NewBoundary(name="part", kind=CHILD, seq=1, detail=f'"{run.id}"')
    return Record(lease=lease_of(claimed), boundary=new, child=NewChild(run=run))
