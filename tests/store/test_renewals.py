"""Leases are extended, and never revived; a row that somebody holds delays no other renewal."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import pytest
from sqlalchemy import event

from tests.store.acting import (
    EACH_SETTLEMENT,
    LEASE_MS,
    SUCCEED,
    a_claimed,
    end,
    lease_of,
    put_many,
    recovered,
    rows,
    seen,
    take,
)
from tests.store.rivals import Rival
from tests.support.eventually import eventually
from workhorse.domain.outcomes import Settlement
from workhorse.domain.runs import Lease
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.live import leasing
from workhorse.store.live.leasing import Renewal, renew
from workhorse.store.operators.operating import cancel


def _renewed(store: Store, *leases: Lease, lease_ms: int = LEASE_MS) -> list[Renewal]:
    answers = store.run(renew, leases, lease_ms)
    assert set(answers) == set(leases)
    return [answers[lease] for lease in leases]


def _expiry(store: Store, lease: Lease) -> datetime:
    expires_at = seen(store, lease.run_id).lease_expires_at
    assert expires_at is not None
    return expires_at


def test_a_renewal_counts_from_its_own_time(store: Store, clock: ManualClock) -> None:
    lease = lease_of(a_claimed(store, lease_ms=30_000))
    clock.advance(29_999)

    assert _renewed(store, lease, lease_ms=45_000) == [Renewal.RENEWED]

    assert _expiry(store, lease) == clock.now + timedelta(seconds=45)


def test_all_leases_of_a_worker_are_renewed_together(store: Store, clock: ManualClock) -> None:
    leases = [lease_of(run) for run in take(store, *put_many(store, 150)).runs]
    clock.advance(10_000)

    assert set(_renewed(store, *leases)) == {Renewal.RENEWED}

    assert {_expiry(store, lease) for lease in leases} == {
        clock.now + timedelta(milliseconds=LEASE_MS)
    }


def test_nothing_to_renew_asks_nothing(store: Store) -> None:
    assert store.run(renew, [], LEASE_MS) == {}


def test_a_lease_may_be_asked_for_twice(store: Store) -> None:
    lease = lease_of(a_claimed(store))

    assert _renewed(store, lease, lease) == [Renewal.RENEWED, Renewal.RENEWED]


def test_an_expired_lease_is_not_revived(store: Store, clock: ManualClock) -> None:
    lease = lease_of(a_claimed(store))
    expires_at = _expiry(store, lease)
    clock.advance(LEASE_MS)

    assert _renewed(store, lease) == [Renewal.EXPIRED]

    assert _expiry(store, lease) == expires_at
    assert recovered(store).count == 1


def test_a_lease_whose_run_was_recovered_is_lost(store: Store, clock: ManualClock) -> None:
    lease = lease_of(a_claimed(store))
    clock.advance(LEASE_MS)
    recovered(store)

    assert _renewed(store, lease) == [Renewal.LOST]


@pytest.mark.parametrize("settlement", EACH_SETTLEMENT.values(), ids=EACH_SETTLEMENT)
def test_a_lease_that_was_given_up_is_lost(store: Store, settlement: Settlement) -> None:
    claimed = a_claimed(store)
    end(store, claimed, settlement)

    assert _renewed(store, lease_of(claimed)) == [Renewal.LOST]


def test_after_a_cancel_was_asked_a_lease_is_not_extended(store: Store, clock: ManualClock) -> None:
    claimed, other = a_claimed(store), a_claimed(store)
    lease = lease_of(claimed)
    expires_at = _expiry(store, lease)
    store.run(cancel, claimed.id, by="ann", why="no", request_id="r")
    clock.advance(1_000)

    assert _renewed(store, lease, lease_of(other)) == [Renewal.CANCELLED, Renewal.RENEWED]

    assert _expiry(store, lease) == expires_at
    assert end(store, claimed, SUCCEED).written == {claimed.id: "cancelled"}


def test_one_batch_may_have_every_answer(store: Store, clock: ManualClock) -> None:
    expired = lease_of(a_claimed(store, lease_ms=1))
    cancelled = a_claimed(store)
    store.run(cancel, cancelled.id, by="ann", why="no", request_id="r")
    given_up = a_claimed(store)
    end(store, given_up)
    held = lease_of(a_claimed(store))
    clock.advance(1)

    answers = _renewed(store, expired, lease_of(cancelled), lease_of(given_up), held)

    assert answers == [Renewal.EXPIRED, Renewal.CANCELLED, Renewal.LOST, Renewal.RENEWED]


def test_a_renewal_changes_the_expiry_and_nothing_else(store: Store, clock: ManualClock) -> None:
    claimed = a_claimed(store, session="s", deadline_ms=10**9)
    before = rows(store, "select * from {s}live")[0]._asdict()
    clock.advance(1_000)

    _renewed(store, lease_of(claimed))

    after = rows(store, "select * from {s}live")[0]._asdict()
    assert before.pop("lease_expires_at") != after.pop("lease_expires_at")
    assert before == after


# -- locks ---------------------------------------------------------------------------------------


def test_a_locked_row_says_nothing_and_delays_no_other(
    postgresql_store: Store, clock: ManualClock
) -> None:
    store = postgresql_store
    leases = [lease_of(run) for run in take(store, *put_many(store, 5)).runs]
    clock.advance(1_000)
    with Rival(store) as other:
        other.lock(leases[2].run_id)

        answers = _renewed(store, *leases)

    assert answers.pop(2) is Renewal.BUSY
    assert set(answers) == {Renewal.RENEWED}
    assert _renewed(store, leases[2]) == [Renewal.RENEWED]


def test_a_lock_held_for_two_leases_length_delays_no_other_renewal(postgresql_url: str) -> None:
    """By the server's own clock: while one row is held, the others never come near their end."""
    lease_ms = 2_000
    store = Store.open(postgresql_url)
    locked, *others = (
        lease_of(run) for run in take(store, *put_many(store, 4), lease_ms=lease_ms).runs
    )
    with Rival(store) as other:
        other.lock(locked.run_id)
        (since,) = rows(store, "select clock_timestamp()")[0]

        def held_long_enough() -> bool:
            answers = _renewed(store, locked, *others, lease_ms=lease_ms)
            assert answers == [Renewal.BUSY, Renewal.RENEWED, Renewal.RENEWED, Renewal.RENEWED]
            (now,) = rows(store, "select clock_timestamp()")[0]
            left = [_expiry(store, lease) - now for lease in others]
            assert min(left) > timedelta(0)
            return bool(now - since >= timedelta(milliseconds=2 * lease_ms))

        eventually(held_long_enough, within=60, every=0.2)

    assert _renewed(store, locked, lease_ms=lease_ms) == [Renewal.EXPIRED]
    store.close()


def test_a_renewal_that_waited_past_the_end_does_not_revive(
    sqlite_store: Store, clock: ManualClock
) -> None:
    """The clock is read once the write lock is there, not when the renewal was asked for."""
    store = sqlite_store
    lease = lease_of(a_claimed(store))
    worker, asked = store.sibling(connections=1), threading.Event()
    event.listen(worker.engine, "checkout", lambda *_: asked.set())
    with Rival(store) as writer, ThreadPoolExecutor(1) as thread:
        answer = thread.submit(worker.run, renew, [lease], LEASE_MS)
        assert asked.wait(10)
        clock.advance(LEASE_MS)
        writer.commit_and_rest()

        assert answer.result(20) == {lease: Renewal.EXPIRED}
    worker.close()


def test_renewals_are_judged_after_the_lock(postgresql_url: str) -> None:
    """With the statement's start, a renewal that waited would revive a lease that ran out."""
    store = Store.open(postgresql_url)
    try:
        sql = store._statements.prepare(leasing._renew).sql
    finally:
        store.close()

    assert "skip locked" in sql.lower()
    assert "clock_timestamp()" in sql
    assert "statement_timestamp()" not in sql


def test_renewals_and_settles_of_many_do_not_deadlock(postgresql_store: Store) -> None:
    """Both lock in id order, whatever order they are asked in."""
    store = postgresql_store
    leases = [lease_of(run) for run in take(store, *put_many(store, 50)).runs]

    def renewing(number: int) -> None:
        mine = store.sibling(connections=1)
        try:
            for _ in range(15):
                order = leases if number % 2 else leases[::-1]
                assert set(mine.try_once(renew, order, LEASE_MS).values()) <= {
                    Renewal.RENEWED,
                    Renewal.BUSY,
                }
        finally:
            mine.close()

    with ThreadPoolExecutor(4) as workers:
        list(workers.map(renewing, range(4)))
