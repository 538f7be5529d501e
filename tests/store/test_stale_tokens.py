"""A stale token writes nothing: each write that is made under a lease, on both databases.

The last tests set the database back to a copy from before the claim, where a fence comes again: the
token has to decide.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import make_url

from tests.store.acting import (
    EACH_SETTLEMENT,
    HAND_BACK,
    LEASE_MS,
    SUCCEED,
    a_checkpoint,
    a_claimed,
    a_run,
    an_entry,
    end,
    lease_of,
    put,
    reach,
    recovered,
    rows,
    seen,
    state_of,
    take_one,
)
from tests.store.invariants import check_invariants
from tests.support.databases import Databases
from workhorse.domain.boundaries import BoundaryKind, NewBoundary
from workhorse.domain.ids import RunId
from workhorse.domain.outcomes import Settlement
from workhorse.domain.recording import (
    NewChild,
    NewProgress,
    NewToken,
    Record,
    RecordAnswer,
    Recorded,
)
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import ClaimedRun, Lease
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.durable.boundaries import record, write_progress
from workhorse.store.lifecycle.settling import settle, settled_before
from workhorse.store.live.leasing import Renewal, renew

each_settlement = pytest.mark.parametrize(
    "settlement", EACH_SETTLEMENT.values(), ids=EACH_SETTLEMENT.keys()
)


def _taken_over(store: Store, clock: ManualClock) -> tuple[ClaimedRun, ClaimedRun]:
    """Return a run as its first worker knows it, and as its second does, who holds it now."""
    stale = a_claimed(store, retry=RetryPolicy(jitter=False))
    clock.advance(LEASE_MS)
    recovered(store)
    clock.advance(1_000)
    return stale, take_one(store, stale.id)


_TABLES = (
    "select * from {s}live",
    "select * from {s}outcomes",
    "select * from {s}attempts",
    "select * from {s}keys",
    "select * from {s}audit",
    "select * from {s}runs",
    "select * from {s}boundaries",
    "select * from {s}deliveries",
    "select * from {s}progress",
    "select * from {s}tokens",
    "select * from {s}links",
    "select * from {s}freed",
)


def _everything(store: Store) -> list[list[str]]:
    return [sorted(map(str, rows(store, sql))) for sql in _TABLES]


@each_settlement
def test_a_settlement_of_a_taken_lease_stores_nothing(
    store: Store, clock: ManualClock, settlement: Settlement
) -> None:
    stale, _ = _taken_over(store, clock)
    before = _everything(store)

    settled = end(store, stale, settlement)

    assert (settled.written, settled.hints) == ({}, [])
    assert _everything(store) == before


def _records(stale: ClaimedRun) -> dict[str, Record]:
    """Each kind of boundary, with all that can be written together with one."""
    child = a_run(parent=stale.id)
    kinds = {
        "checkpoint": a_checkpoint(),
        "timer": NewBoundary(name="nap", kind=BoundaryKind.TIMER, seq=1, delay_ms=0),
        "child": NewBoundary(name="part", kind=BoundaryKind.CHILD, seq=1),
        "token": NewBoundary(name="hook", kind=BoundaryKind.REFERENCE, seq=1, value='"wht_1"'),
        "choice": NewBoundary(name="any", kind=BoundaryKind.ANY, seq=1, value="1"),
        "cancel": NewBoundary(name="cancel", kind=BoundaryKind.GROUP, seq=1),
    }
    records = {name: Record(lease=lease_of(stale), boundary=new) for name, new in kinds.items()}
    with_it: dict[str, dict[str, Any]] = {
        "child": {"child": NewChild(run=child)},
        "token": {"token": NewToken(ref="wht_1", timeout_ms=1_000)},
        "choice": {"closes": ((BoundaryKind.SIGNAL, "word"),)},
        "cancel": {"cancels": (child.id,)},
    }
    return {name: replace(each, **with_it.get(name, {})) for name, each in records.items()}


@pytest.mark.parametrize("kind", ["checkpoint", "timer", "child", "token", "choice", "cancel"])
def test_a_boundary_of_a_taken_lease_stores_nothing_nor_what_belongs_to_it(
    store: Store, clock: ManualClock, kind: str
) -> None:
    stale, _ = _taken_over(store, clock)
    before = _everything(store)

    written = store.run(record, [_records(stale)[kind]], reach=reach)

    assert (written.answers, written.hints) == ([RecordAnswer(Recorded.LOST)], [])
    assert _everything(store) == before


def test_progress_of_a_taken_lease_stores_nothing(store: Store, clock: ManualClock) -> None:
    stale, _ = _taken_over(store, clock)
    before = _everything(store)

    store.run(write_progress, [NewProgress(lease=lease_of(stale), value="1")])

    assert _everything(store) == before


@each_settlement
def test_a_settlement_of_a_given_up_lease_stores_nothing(
    store: Store, clock: ManualClock, settlement: Settlement
) -> None:
    stale = a_claimed(store)
    end(store, stale, HAND_BACK)
    before = _everything(store)

    assert end(store, stale, settlement).written == {}

    assert _everything(store) == before


@each_settlement
def test_a_stale_entry_does_not_keep_the_rest_of_its_batch_from_being_stored(
    store: Store, clock: ManualClock, settlement: Settlement
) -> None:
    stale, current = _taken_over(store, clock)
    other = a_claimed(store)

    settled = store.run(
        settle, [an_entry(stale, SUCCEED), an_entry(other, settlement)], reach=reach
    )

    assert list(settled.written) == [other.id]
    assert seen(store, stale.id).fence == lease_of(current).fence
    assert end(store, current).written == {current.id: "succeeded"}


def test_a_taken_lease_is_not_renewed(store: Store, clock: ManualClock) -> None:
    stale, current = _taken_over(store, clock)
    expires = seen(store, stale.id).lease_expires_at
    clock.advance(10)

    answers = store.run(renew, [lease_of(stale)], 60_000)

    assert answers == {lease_of(stale): Renewal.LOST}
    assert seen(store, current.id).lease_expires_at == expires


def test_a_right_token_with_another_run_is_no_lease(store: Store) -> None:
    mine, other = a_claimed(store), a_claimed(store)
    crossed = Lease(other.id, 1, lease_of(mine).token)
    before = _everything(store)

    entry = an_entry(other, SUCCEED)
    settled = store.run(settle, [type(entry)(crossed, SUCCEED)], reach=reach)

    assert settled.written == {}
    assert store.run(renew, [crossed], 60_000) == {crossed: Renewal.LOST}
    assert _everything(store) == before


def test_the_fence_is_not_what_guards(store: Store) -> None:
    """The fence is for people: a lease that names another fence is held by its token alone."""
    claimed = a_claimed(store)
    odd = Lease(claimed.id, 99, lease_of(claimed).token)

    assert store.run(renew, [odd], 60_000) == {odd: Renewal.RENEWED}


def test_recovery_under_a_lease_that_was_taken_writes_nothing(
    store: Store, clock: ManualClock
) -> None:
    """Recovery settles under the very lease that it saw expired, like a worker would."""
    from tests.store.acting import draw
    from workhorse.domain.outcomes import LeaseExpired
    from workhorse.domain.transitions import settlement_of

    stale, current = _taken_over(store, clock)
    settlement = settlement_of(
        LeaseExpired(), attempt=1, hand_backs=0, retry=RetryPolicy(), draw=draw()
    )

    assert end(store, stale, settlement).written == {}

    assert seen(store, current.id).lease_expires_at is not None


def test_a_success_is_known_again_by_its_token_alone(store: Store, clock: ManualClock) -> None:
    stale, current = _taken_over(store, clock)
    end(store, current, SUCCEED)

    assert set(store.run(settled_before, [lease_of(current)]).written) == {current.id}
    assert store.run(settled_before, [lease_of(stale)]).written == {}
    assert store.run(settled_before, []).written == {}


def test_what_recovery_ended_is_nobodys_own_success(store: Store, clock: ManualClock) -> None:
    """A worker whose run was ended as lost must not take the outcome for its own."""
    late = a_claimed(store, retry=RetryPolicy(max_attempts=1))
    clock.advance(LEASE_MS)
    recovered(store)
    assert seen(store, late.id).reason == "lost"

    assert end(store, late, SUCCEED).written == {}

    assert store.run(settled_before, [lease_of(late)]).written == {}


# -- a database that was set back ----------------------------------------------------------------

SetBack = Callable[[], Store]


@pytest.fixture
def opened_later(
    request: pytest.FixtureRequest, database_url: str, clock: ManualClock
) -> Iterator[Callable[[Store], SetBack]]:
    """Copies the database of a store; what it returns opens a store on the copy, once."""
    made: list[Store] = []
    names: list[str] = []

    def copy(store: Store) -> SetBack:
        store.close()  # writes all of it into the one file; a template must be left alone
        url = make_url(database_url)
        if store.kind == "sqlite":
            assert url.database is not None
            path = f"{url.database}.copy"
            shutil.copyfile(url.database, path)
            copied = url.set(database=path).render_as_string()
        else:
            databases: Databases = request.getfixturevalue("postgres")
            name = databases.create(template=url.database)
            names.append(name)
            copied = databases.url(name)

        def reopen() -> Store:
            made.append(Store.open(copied, clock=clock))
            return made[-1]

        return reopen

    yield copy
    for store in made:
        check_invariants(store)
        store.close()
    for name in names:
        request.getfixturevalue("postgres").drop(name)


def _claimed_again_after_a_restore(
    store: Store, opened_later: Callable[[Store], SetBack], run_id: RunId
) -> tuple[Store, ClaimedRun, ClaimedRun]:
    """Claim a run, set the database back to before it, and claim the run again there."""
    set_back = opened_later(store)
    stale = take_one(store, run_id)
    restored = set_back()
    current = take_one(restored, run_id)
    assert lease_of(stale).fence == lease_of(current).fence  # the fence comes twice
    return restored, stale, current


@each_settlement
def test_after_a_restore_a_settlement_from_before_stores_nothing(
    store: Store, opened_later: Callable[[Store], SetBack], settlement: Settlement
) -> None:
    restored, stale, current = _claimed_again_after_a_restore(store, opened_later, put(store))
    before = _everything(restored)

    assert end(restored, stale, settlement).written == {}

    assert _everything(restored) == before
    assert end(restored, current, SUCCEED).written == {current.id: "succeeded"}


def test_after_a_restore_a_lease_from_before_is_not_renewed(
    store: Store, opened_later: Callable[[Store], SetBack], clock: ManualClock
) -> None:
    restored, stale, current = _claimed_again_after_a_restore(store, opened_later, put(store))
    expires = seen(restored, current.id).lease_expires_at
    clock.advance(1_000)

    assert restored.run(renew, [lease_of(stale)], 90_000) == {lease_of(stale): Renewal.LOST}

    assert seen(restored, current.id).lease_expires_at == expires


def test_after_a_restore_an_end_from_before_is_not_its_own(
    store: Store, opened_later: Callable[[Store], SetBack]
) -> None:
    restored, stale, current = _claimed_again_after_a_restore(store, opened_later, put(store))
    end(restored, current, SUCCEED)

    assert restored.run(settled_before, [lease_of(stale)]).written == {}
    assert set(restored.run(settled_before, [lease_of(current)]).written) == {current.id}


def test_after_a_restore_to_before_the_claim_nothing_is_held(
    store: Store, opened_later: Callable[[Store], SetBack]
) -> None:
    run_id = put(store)
    set_back = opened_later(store)
    stale = take_one(store, run_id)

    restored = set_back()

    assert end(restored, stale, SUCCEED).written == {}
    assert state_of(restored, run_id) == "ready"
