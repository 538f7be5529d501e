"""Naive, far-off and odd times, and clocks that go wrong (docs/cases.md, cases 9 and 10)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import make_url

from tests.store.acting import (
    LEASE_MS,
    SLEEP,
    SUCCEED,
    WAIT_AN_HOUR,
    a_claimed,
    a_run,
    do,
    end,
    ids_of,
    lease_of,
    promoted,
    put,
    reach,
    recovered,
    rows,
    seen,
    state_of,
    take,
    take_one,
)
from workhorse.domain.retry import RetryPolicy
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.lifecycle.sighting import sight
from workhorse.store.lifecycle.sweeping import end_overdue, far_timers
from workhorse.store.live.leasing import Renewal, renew
from workhorse.store.producing.enqueueing import enqueue

_ZONES = ["Asia/Kolkata", "America/New_York", "Pacific/Chatham", "UTC"]


@pytest.fixture(params=_ZONES)
def host_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Make the process believe that it is somewhere else."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


def _whole_life(store: Store, clock: ManualClock) -> None:
    """Go through all instants that a run has, over a night in which clocks are put back."""
    begins = datetime(2026, 10, 24, 20, 15, 30, 123_457, tzinfo=UTC)
    clock.advance(begins - clock.now)
    run_at = begins + timedelta(hours=12, microseconds=1)
    (answer,) = store.run(enqueue, [a_run(run_at=run_at, deadline_ms=10 * 86_400_000)], reach=reach)
    assert answer.due_in_ms == 12 * 3_600_000 + 1
    run = seen(store, answer.run_id)
    assert (run.created_at, run.due_at) == (begins, run_at)
    assert run.deadline_at == begins + timedelta(days=10)
    assert store.run(sight, [run.id])[run.id].due_in_ms == 12 * 3_600_000 + 1
    clock.advance(run_at - clock.now)
    claimed = take_one(store, run.id)
    assert (claimed.created_at, claimed.started_at) == (begins, run_at)
    assert claimed.deadline_in_ms == 9 * 86_400_000 + 12 * 3_600_000
    assert seen(store, run.id).lease_expires_at == run_at + timedelta(milliseconds=LEASE_MS)
    end(store, claimed, WAIT_AN_HOUR)
    assert seen(store, run.id).due_at == run_at + timedelta(hours=1)
    clock.advance(3_600_000)
    promoted(store)
    end(store, take_one(store, run.id), SUCCEED)
    assert seen(store, run.id).finished_at == clock.now


def test_case_9_the_zone_of_the_host_changes_nothing(
    host_zone: str, store: Store, clock: ManualClock
) -> None:
    _whole_life(store, clock)


@pytest.mark.parametrize("zone", _ZONES)
def test_case_9_the_zone_of_the_database_changes_nothing(
    postgresql_url: str, clock: ManualClock, zone: str
) -> None:
    name = make_url(postgresql_url).database
    first = Store.open(postgresql_url)
    do(first, f"alter database \"{name}\" set timezone to '{zone}'")
    first.close()
    store = Store.open(postgresql_url, clock=clock)
    assert rows(store, "show timezone") == [(zone,)]

    _whole_life(store, clock)
    store.close()


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "America/New_York"])
def test_case_9_the_databases_own_clock_is_read_alike_in_each_zone(
    postgresql_url: str, zone: str
) -> None:
    name = make_url(postgresql_url).database
    store = Store.open(postgresql_url)
    do(store, f"alter database \"{name}\" set timezone to '{zone}'")
    store.close()
    before = datetime.now(UTC)

    run = seen(store, put(store, delay_ms=3_600_000))

    after = datetime.now(UTC)
    slack = timedelta(seconds=1)  # the server is on this host, on the same clock
    assert before - slack <= run.created_at <= after + slack
    assert run.due_at is not None
    assert timedelta(0) <= run.due_at - run.created_at - timedelta(hours=1) < timedelta(seconds=5)
    store.close()


@pytest.mark.parametrize("hour", [timedelta(hours=-1), timedelta(hours=1)])
def test_case_9_a_run_keeps_its_instant_over_a_change_of_summer_time(
    postgresql_url: str, clock: ManualClock, hour: timedelta
) -> None:
    """A day of milliseconds is 24 hours, whatever the database's zone makes of days."""
    name = make_url(postgresql_url).database
    first = Store.open(postgresql_url)
    do(first, f"alter database \"{name}\" set timezone to 'Europe/Berlin'")
    first.close()
    store = Store.open(postgresql_url, clock=clock)
    for eve in (datetime(2026, 3, 28, 12, tzinfo=UTC), datetime(2026, 10, 24, 12, tzinfo=UTC)):
        clock.advance(eve + hour - clock.now)

        run = seen(store, put(store, delay_ms=86_400_000))

        assert run.due_at == clock.now + timedelta(hours=24)
    store.close()


# -- a clock that goes back ----------------------------------------------------------------------


def test_case_10_a_clock_that_goes_back_frees_no_lease_early(
    store: Store, clock: ManualClock
) -> None:
    claimed = a_claimed(store)
    clock.advance(timedelta(hours=-1))

    assert recovered(store).count == 0
    assert take(store, claimed.id, scan=True).runs == []
    clock.advance(LEASE_MS + 1)
    assert recovered(store).count == 0
    assert end(store, claimed, SUCCEED).written == {claimed.id: "succeeded"}


def test_case_10_a_renewal_brings_a_lease_back_to_the_clock(
    store: Store, clock: ManualClock
) -> None:
    """So who lives is not blocked for longer than a lease, and who dies neither."""
    claimed = a_claimed(store)
    clock.advance(timedelta(hours=-1))

    assert store.run(renew, [lease_of(claimed)], LEASE_MS)[lease_of(claimed)] is Renewal.RENEWED

    assert seen(store, claimed.id).lease_expires_at == clock.now + timedelta(milliseconds=LEASE_MS)
    clock.advance(LEASE_MS)
    assert recovered(store).count == 1


def test_case_10_a_clock_that_was_far_ahead_blocks_no_lease_for_ever(
    store: Store, clock: ManualClock
) -> None:
    """The worker died under a clock that was years ahead: its run comes back all the same."""
    clock.advance(timedelta(days=3650))
    dead = a_claimed(store, retry=RetryPolicy(first=timedelta(0)))
    alive = a_claimed(store)
    clock.advance(timedelta(days=-3650))

    assert recovered(store).count == 0  # nobody can tell yet whether its worker lives
    for _ in range(60):
        assert state_of(store, dead.id) == "running"
        assert store.run(renew, [lease_of(alive)], 90_000)[lease_of(alive)] is Renewal.RENEWED
        assert recovered(store).count == 0
        clock.advance(timedelta(minutes=1))

    assert recovered(store).count == 1
    assert state_of(store, dead.id) == "ready"
    assert state_of(store, alive.id) == "running"


def test_case_10_only_the_lease_that_is_astray_is_brought_back(
    store: Store, clock: ManualClock
) -> None:
    """Those beside it, which end in time, keep their end."""
    clock.advance(timedelta(days=1))
    astray = a_claimed(store)
    clock.advance(timedelta(days=-1))
    right = a_claimed(store)
    end = seen(store, right.id).lease_expires_at

    recovered(store)

    assert seen(store, astray.id).lease_expires_at == clock.now + timedelta(hours=1)
    assert seen(store, right.id).lease_expires_at == end


def test_leases_of_an_hour_are_no_mistake(store: Store, clock: ManualClock) -> None:
    claimed = a_claimed(store, lease_ms=3_600_000)

    assert recovered(store).count == 0

    assert seen(store, claimed.id).lease_expires_at == clock.now + timedelta(hours=1)


def test_case_10_a_clock_that_goes_back_delays_what_is_due_by_as_much(
    store: Store, clock: ManualClock
) -> None:
    run_id = put(store, delay_ms=60_000)
    clock.advance(timedelta(hours=-1))
    clock.advance(timedelta(hours=1, minutes=1) - timedelta(microseconds=1))
    assert promoted(store).count == 0

    clock.advance(timedelta(microseconds=1))

    assert promoted(store).count == 1
    assert ids_of(take(store, run_id)) == [run_id]


def test_case_10_what_was_ready_stays_ready_when_the_clock_goes_back(
    store: Store, clock: ManualClock
) -> None:
    old = put(store)
    clock.advance(timedelta(hours=-1))
    new = put(store)

    assert sorted(ids_of(take(store, scan=True))) == sorted([old, new])


def test_case_10_a_clock_that_jumps_ahead_is_survived(store: Store, clock: ManualClock) -> None:
    """Leases run out, timers are due, deadlines pass; each once."""
    running = a_claimed(store, retry=RetryPolicy(first=timedelta(0)))
    sleeping = a_claimed(store)
    end(store, sleeping, SLEEP)
    overdue = put(store, deadline_ms=1_000)
    clock.advance(timedelta(days=30))

    counts = [recovered(store).count, promoted(store).count, store.run(end_overdue).count]

    assert counts == [1, 1, 1]
    assert [state_of(store, run) for run in (running.id, sleeping.id, overdue)] == [
        "ready",
        "ready",
        "failed",
    ]
    assert store.run(far_timers, reach=reach).count == 0


def test_case_10_time_is_the_databases_own_where_no_clock_is_given(real_clock_store: Store) -> None:
    store = real_clock_store
    before = datetime.now(UTC)

    claimed = a_claimed(store, deadline_ms=60_000)

    after = datetime.now(UTC)
    slack = timedelta(seconds=1)
    assert before - slack <= claimed.created_at <= claimed.started_at <= after + slack
    expires_at = seen(store, claimed.id).lease_expires_at
    assert expires_at is not None
    # Two looks at a clock in one statement may be a microsecond apart, either way.
    moment = timedelta(milliseconds=1)
    assert expires_at - claimed.started_at >= timedelta(milliseconds=LEASE_MS) - moment
    assert claimed.deadline_in_ms is not None
    assert 0 < claimed.deadline_in_ms <= 60_000
