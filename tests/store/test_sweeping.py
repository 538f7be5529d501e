"""What maintenance does to runs, page by page; workers do the same in place, for some ids."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.store.acting import (
    LEASE_MS,
    REACH_MS,
    SLEEP,
    SUCCEED,
    WAIT,
    WAIT_AN_HOUR,
    a_claimed,
    a_run,
    an_entry,
    do,
    draw,
    end,
    hinted,
    ids_of,
    lease_of,
    live_row,
    promoted,
    put,
    put_many,
    reach,
    recovered,
    rows,
    seen,
    state_of,
    take,
    take_one,
)
from tests.store.rivals import Rival
from tests.support.eventually import eventually
from tests.support.postgres import PostgresServer
from workhorse.domain.hints import no_reach
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import RunState
from workhorse.store.base.database import ManualClock, Store, Tx
from workhorse.store.base.migrating import migrate
from workhorse.store.lifecycle.settling import settle
from workhorse.store.lifecycle.sweeping import (
    PAGE,
    Swept,
    end_overdue,
    far_timers,
    finish_cancelled,
    recover,
)
from workhorse.store.live.leasing import Renewal, renew
from workhorse.store.operators.operating import cancel
from workhorse.store.producing.enqueueing import enqueue

_QUICK = RetryPolicy(first=timedelta(0))


def _expire(store: Store, clock: ManualClock, count: int) -> None:
    """Leave expired leases behind, of runs whose cancel was asked and that are overdue too."""
    ids = put_many(store, count, deadline_ms=1, retry=_QUICK)
    for start in (0, 200):
        take(store, *ids[start : start + 200])

    def cancel_all(tx: Tx) -> None:
        for run_id in ids:
            cancel(tx, run_id, by="ann", why="no", request_id=run_id)

    store.run(cancel_all)
    clock.advance(LEASE_MS)


# -- pages ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "step",
    [
        lambda store: recovered(store),
        lambda store: store.run(finish_cancelled, reach=reach, draw=draw()),
        lambda store: store.run(end_overdue),
    ],
    ids=["recover", "finish cancelled", "deadlines"],
)
def test_expired_leases_are_ended_in_full_pages(
    store: Store, clock: ManualClock, step: Callable[[Store], Swept]
) -> None:
    _expire(store, clock, 2 * PAGE + 7)

    swept = [step(store) for _ in range(4)]

    assert [each.count for each in swept] == [PAGE, PAGE, 7, 0]
    assert [each.full for each in swept] == [True, True, False, False]
    assert rows(store, "select state, count(*) from {s}outcomes group by state") == [
        ("cancelled", 2 * PAGE + 7)
    ]


def test_due_runs_are_promoted_in_full_pages_the_oldest_first(
    store: Store, clock: ManualClock
) -> None:
    late = put_many(store, PAGE, delay_ms=1_000)
    early = put_many(store, PAGE, delay_ms=500)
    put(store, delay_ms=60_000)
    clock.advance(1_000)

    first, second, third = promoted(store), promoted(store), promoted(store)

    assert [(each.count, each.full) for each in (first, second, third)] == [
        (PAGE, True),
        (PAGE, True),
        (0, False),
    ]
    assert ids_of(take(store, scan=True, free=1))[0] in {*early, *late}
    assert first.hints == second.hints == []  # their delayed messages are under way


def test_the_oldest_due_time_comes_first(store: Store, clock: ManualClock) -> None:
    put_many(store, PAGE, delay_ms=1_000)
    early = put(store, delay_ms=500)
    clock.advance(1_000)

    promoted(store)

    assert state_of(store, early) is RunState.READY


def test_an_empty_store_has_nothing_to_do(store: Store) -> None:
    assert recovered(store) == Swept()
    assert promoted(store) == Swept()
    assert store.run(end_overdue) == Swept()
    assert store.run(finish_cancelled, reach=reach, draw=draw()) == Swept()
    assert store.run(far_timers, reach=reach) == Swept()


# -- in place: only these ids --------------------------------------------------------------------


def test_recovery_in_place_touches_only_the_named_runs(store: Store, clock: ManualClock) -> None:
    named, other = a_claimed(store), a_claimed(store)
    clock.advance(LEASE_MS)

    assert recovered(store, [named.id]).count == 1

    assert state_of(store, named.id) is not RunState.RUNNING
    assert state_of(store, other.id) is RunState.RUNNING
    assert recovered(store, []).count == 0


def test_promotion_in_place_touches_only_the_named_runs(store: Store, clock: ManualClock) -> None:
    named, other = put(store, delay_ms=10), put(store, delay_ms=10)
    not_due = put(store, delay_ms=1_000)
    clock.advance(10)

    assert promoted(store, [named, not_due]).count == 1

    assert [state_of(store, run) for run in (named, other, not_due)] == [
        "ready",
        "scheduled",
        "scheduled",
    ]
    assert promoted(store, []).count == 0


# -- rows that somebody holds --------------------------------------------------------------------


@pytest.mark.parametrize("step", ["recover", "cancelled", "promote", "deadline", "far"])
def test_a_locked_row_is_left_for_the_next_page(
    postgresql_store: Store, clock: ManualClock, step: str
) -> None:
    store = postgresql_store
    if step in ("promote", "far"):
        ids = put_many(store, 3, delay_ms=REACH_MS + 1_000)
        clock.advance(REACH_MS + 1_000 if step == "promote" else 1_000)
    else:
        ids = put_many(store, 3, deadline_ms=LEASE_MS)
        take(store, *ids)
        if step == "cancelled":
            for run_id in ids:
                store.run(cancel, run_id, by="ann", why="no", request_id="r")
        clock.advance(LEASE_MS)
    steps: dict[str, Callable[[], Swept]] = {
        "recover": lambda: recovered(store),
        "cancelled": lambda: store.run(finish_cancelled, reach=reach, draw=draw()),
        "promote": lambda: promoted(store),
        "deadline": lambda: store.run(end_overdue),
        "far": lambda: store.run(far_timers, reach=reach),
    }

    with Rival(store) as other:
        other.lock(ids[1])
        assert steps[step]().count == 2

    assert steps[step]().count == 1


def test_two_recoveries_at_once_spend_one_attempt(
    postgresql_store: Store, clock: ManualClock
) -> None:
    store = postgresql_store
    ids = put_many(store, 6, retry=_QUICK)
    take(store, *ids)
    clock.advance(LEASE_MS)
    with Rival(store) as other:
        theirs = other.call(recover, reach=reach, draw=draw())
        assert (theirs.count, recovered(store).count) == (6, 0)
        other.commit()

    assert recovered(store).count == 0
    assert {seen(store, run_id).attempt for run_id in ids} == {2}


def test_a_lease_that_is_being_renewed_is_not_recovered(
    postgresql_store: Store, clock: ManualClock
) -> None:
    """The renewal came first and holds the row; when it has committed, nothing has expired."""
    store = postgresql_store
    lease = lease_of(a_claimed(store))
    clock.advance(LEASE_MS - 1)
    with Rival(store) as worker:
        assert worker.call(renew, [lease], LEASE_MS) == {lease: Renewal.RENEWED}
        clock.advance(1)
        assert recovered(store).count == 0
        worker.commit()

    assert recovered(store).count == 0
    assert state_of(store, lease.run_id) is RunState.RUNNING


def test_a_lease_that_was_renewed_is_judged_anew(store: Store, clock: ManualClock) -> None:
    claimed = a_claimed(store)
    clock.advance(LEASE_MS - 1)
    store.run(renew, [lease_of(claimed)], LEASE_MS)
    clock.advance(LEASE_MS - 1)

    assert recovered(store).count == 0
    clock.advance(1)
    assert recovered(store).count == 1


def test_a_settle_that_holds_the_row_comes_before_recovery(
    postgresql_store: Store, clock: ManualClock
) -> None:
    """What a worker offers late is its own until somebody has taken the token."""
    store = postgresql_store
    claimed = a_claimed(store)
    clock.advance(LEASE_MS + 1)
    with Rival(store) as worker:
        worker.call(settle, [an_entry(claimed, SUCCEED)], reach=reach)
        assert recovered(store).count == 0
        worker.commit()

    assert recovered(store).count == 0
    assert state_of(store, claimed.id) is RunState.SUCCEEDED


# -- wakeups -------------------------------------------------------------------------------------


def test_a_recovered_run_is_woken_when_it_is_due(store: Store, clock: ManualClock) -> None:
    at_once = a_claimed(store, retry=_QUICK)
    soon = a_claimed(store, retry=RetryPolicy(first=timedelta(seconds=9), jitter=False))
    far = a_claimed(
        store,
        retry=RetryPolicy(first=timedelta(hours=1), longest=timedelta(hours=1), jitter=False),
    )
    clock.advance(LEASE_MS)

    hints = {hint.run_id: hint.delay_ms for hint in recovered(store).hints}

    assert hints == {at_once.id: 0, soon.id: 9_000}
    assert bool(live_row(store, soon.id).wake_sent)
    assert not live_row(store, far.id).wake_sent


def test_a_promotion_wakes_only_what_no_message_is_under_way_for(
    store: Store, clock: ManualClock
) -> None:
    sent = put(store, delay_ms=1_000)
    (unsent,) = store.run(enqueue, [a_run(delay_ms=1_000)], reach=no_reach)
    clock.advance(1_000)

    swept = promoted(store)

    assert (swept.count, hinted(swept.hints)) == (2, [unsent.run_id])
    assert state_of(store, sent) is RunState.READY


# -- far timers ----------------------------------------------------------------------------------


def test_a_far_timer_is_sent_once_it_comes_near(store: Store, clock: ManualClock) -> None:
    scheduled = put(store, delay_ms=REACH_MS + 60_000)
    waiting = a_claimed(store)
    end(store, waiting, WAIT_AN_HOUR)
    clock.advance(59_999)
    assert store.run(far_timers, reach=reach) == Swept()
    clock.advance(1)

    swept = store.run(far_timers, reach=reach)

    assert [(hint.run_id, hint.delay_ms) for hint in swept.hints] == [(scheduled, REACH_MS)]
    assert store.run(far_timers, reach=reach) == Swept()
    clock.advance(3_600_000 - 60_000 - REACH_MS)
    swept = store.run(far_timers, reach=reach)
    assert [(hint.run_id, hint.delay_ms) for hint in swept.hints] == [(waiting.id, REACH_MS)]


def test_a_far_timer_that_was_sent_is_not_woken_again_by_its_promotion(
    store: Store, clock: ManualClock
) -> None:
    put(store, delay_ms=REACH_MS + 1)
    clock.advance(1)
    store.run(far_timers, reach=reach)
    clock.advance(REACH_MS)

    swept = promoted(store)

    assert (swept.count, swept.hints) == (1, [])


def test_a_timer_that_is_overdue_is_sent_without_a_delay(store: Store, clock: ManualClock) -> None:
    put(store, delay_ms=REACH_MS + 1)
    clock.advance(REACH_MS + 5_000)

    assert [hint.delay_ms for hint in store.run(far_timers, reach=reach).hints] == [0]


def test_far_timers_go_out_in_full_pages(store: Store, clock: ManualClock) -> None:
    put_many(store, PAGE + 3, delay_ms=REACH_MS + 1)
    clock.advance(1)

    first, second = (store.run(far_timers, reach=reach) for _ in range(2))

    assert [(each.count, each.full) for each in (first, second)] == [(PAGE, True), (3, False)]


def test_queues_that_delay_nothing_do_not_fill_the_page(store: Store, clock: ManualClock) -> None:
    for name in ("fifo1", "fifo2"):
        put_many(store, PAGE, queue=name, delay_ms=1_000)
        do(store, "update {s}live set wake_sent = false")
    near = put(store, queue="standard", delay_ms=REACH_MS + 1)
    clock.advance(1)

    swept = store.run(far_timers, reach=lambda queue: REACH_MS if queue == "standard" else 0)

    assert hinted(swept.hints) == [near]


def test_a_queue_with_a_shorter_reach_waits_for_its_own_time(
    store: Store, clock: ManualClock
) -> None:
    short, long = (put(store, queue=name, delay_ms=REACH_MS + 1) for name in ("short", "long"))
    clock.advance(1)

    def each(queue: str) -> int:
        return 60_000 if queue == "short" else REACH_MS

    assert hinted(store.run(far_timers, reach=each).hints) == [long]
    clock.advance(REACH_MS - 60_000)
    assert hinted(store.run(far_timers, reach=each).hints) == [short]


def test_a_full_page_that_is_out_of_reach_is_not_asked_for_again_at_once(
    store: Store, clock: ManualClock
) -> None:
    put_many(store, PAGE, delay_ms=REACH_MS + 1)
    clock.advance(1)

    assert store.run(far_timers, reach=lambda _: 60_000) == Swept()


def test_a_wait_without_a_time_out_is_no_timer(store: Store, clock: ManualClock) -> None:
    claimed = a_claimed(store)
    end(store, claimed, WAIT)
    clock.advance(timedelta(days=400))

    assert store.run(far_timers, reach=reach) == Swept()
    assert promoted(store) == Swept()


# -- a job that kills its process (docs/cases.md, case 6) ----------------------------------------


def test_case_6_a_job_that_kills_its_process_is_lost_after_its_attempts(
    store: Store, clock: ManualClock
) -> None:
    policy = RetryPolicy(max_attempts=3, first=timedelta(seconds=1), jitter=False)
    deadly = put(store, retry=policy, priority=100)
    clock.advance(1)
    others = put_many(store, 3)

    rests = []
    for attempt in (1, 2, 3):
        promoted(store)
        claimed = take(store, scan=True, free=2).runs
        assert [(run.id, run.attempt) for run in claimed[:1]] == [(deadly, attempt)]
        end(store, claimed[1], SUCCEED)  # the rest of the queue keeps moving
        clock.advance(LEASE_MS)
        assert recovered(store).count == 1
        run = seen(store, deadly)
        if run.due_at is not None:
            rests.append(run.due_at - clock.now)
            assert take(store, deadly).runs == []
            clock.advance(run.due_at - clock.now)

    run = seen(store, deadly)
    assert (run.state, run.reason, run.attempt, run.fence) == ("failed", "lost", 3, 3)
    assert rests == [timedelta(seconds=1), timedelta(seconds=2)]
    assert [row.reason for row in rows(store, "select * from {s}attempts")] == ["lost"] * 3
    assert {state_of(store, run_id) for run_id in others} == {"succeeded"}


def test_case_6_a_job_that_kills_its_process_can_be_cancelled_at_any_time(
    store: Store, clock: ManualClock
) -> None:
    claimed = a_claimed(store)
    clock.advance(LEASE_MS)
    recovered(store)

    store.run(cancel, claimed.id, by="ann", why="it kills", request_id="r")

    assert state_of(store, claimed.id) is RunState.CANCELLED


def test_waits_and_sleeps_are_no_lost_attempts(store: Store, clock: ManualClock) -> None:
    claimed = a_claimed(store, retry=RetryPolicy(max_attempts=1))
    for _ in range(3):
        end(store, claimed, SLEEP)
        clock.advance(60_000)
        assert recovered(store).count == 0
        claimed = take_one(store, claimed.id)
    assert claimed.attempt == 1


# -- a server that has just started --------------------------------------------------------------


def test_recovery_leaves_leases_alone_while_the_server_has_just_started(
    own_postgres: PostgresServer,
) -> None:
    """What workers finished while it was away lands first. By the server's own clock."""
    url = own_postgres.url(own_postgres.databases.create())
    store = Store.open(url)
    migrate(store)
    claimed, named = a_claimed(store, lease_ms=50), a_claimed(store, lease_ms=50)
    store.close()
    own_postgres.restart()

    def up_for() -> timedelta:
        found = rows(store, "select clock_timestamp() - pg_postmaster_start_time()")
        up: timedelta = found[0][0]
        return up

    def expired() -> bool:
        found = rows(store, "select 1 from {s}live where lease_expires_at <= clock_timestamp()")
        return len(found) == 2

    def recovered_at_last() -> int:
        in_place = recovered(store, [named.id]).count
        swept = in_place + store.run(finish_cancelled, reach=reach, draw=draw()).count
        swept += recovered(store).count
        assert not swept or up_for() >= timedelta(seconds=10)
        return swept

    eventually(expired)
    first_look = recovered_at_last()
    assert first_look == 0 or up_for() >= timedelta(seconds=10)
    assert first_look + eventually(recovered_at_last, within=60, every=0.2) == 2
    assert end(store, claimed, SUCCEED).written == {}
    store.close()
