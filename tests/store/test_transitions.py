"""The life of a run, row by row of the table in docs/design.md, section 2."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.store.acting import (
    BROKEN,
    FAIL,
    HAND_BACK,
    LEASE_MS,
    RETRY,
    RETRY_NOW,
    SLEEP,
    SUCCEED,
    WAIT,
    WAIT_AN_HOUR,
    a_claimed,
    an_entry,
    do,
    end,
    lease_of,
    live_row,
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
from workhorse.domain.ids import RunId
from workhorse.domain.outcomes import Settlement
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import Reason, RunState
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.lifecycle.settling import settle
from workhorse.store.lifecycle.sweeping import end_overdue
from workhorse.store.operators.operating import CancelResult, cancel, rerun


def _cancel(store: Store, run_id: RunId) -> CancelResult:
    return store.run(cancel, run_id, by="ann", why="wrong order", request_id="r1")[0]


def _attempts(store: Store, run_id: RunId) -> list[tuple[int, int, str]]:
    found = rows(
        store,
        "select attempt, fence, reason from {s}attempts where run_id = :id order by attempt",
        id=run_id,
    )
    return [(row.attempt, row.fence, row.reason) for row in found]


def test_enqueue_makes_a_run_ready(store: Store, clock: ManualClock) -> None:
    run = seen(store, put(store, payload='{"order":7}'))

    assert (run.state, run.attempt, run.fence) == (RunState.READY, 1, 0)
    assert (run.created_at, run.due_at, run.started_at) == (clock.now, None, None)


def test_enqueue_with_a_delay_makes_a_run_scheduled(store: Store, clock: ManualClock) -> None:
    run = seen(store, put(store, delay_ms=90_000))

    assert run.state is RunState.SCHEDULED
    assert run.due_at == clock.now + timedelta(seconds=90)


def test_promote_makes_a_due_run_ready(store: Store, clock: ManualClock) -> None:
    run_id = put(store, delay_ms=90_000)
    clock.advance(89_999)
    assert promoted(store).count == 0

    clock.advance(1)

    assert promoted(store).count == 1
    assert (state_of(store, run_id), seen(store, run_id).attempt) == (RunState.READY, 1)


def test_a_claim_makes_a_ready_run_running_under_a_lease(store: Store, clock: ManualClock) -> None:
    run_id = put(store)

    claimed = take_one(store, run_id, token=2**63 - 1)

    run = seen(store, run_id)
    assert (run.state, run.attempt, run.fence) == (RunState.RUNNING, 1, 1)
    assert run.lease_expires_at == clock.now + timedelta(milliseconds=LEASE_MS)
    assert (lease_of(claimed).fence, lease_of(claimed).token) == (1, 2**63 - 1)


def test_the_first_claim_starts_a_run_and_later_ones_keep_that(
    store: Store, clock: ManualClock
) -> None:
    claimed = a_claimed(store)
    started = clock.now
    end(store, claimed, RETRY_NOW)
    clock.advance(1_000)

    again = take_one(store, claimed.id)

    assert (claimed.started_at, again.started_at) == (started, started)
    assert (again.attempt, lease_of(again).fence) == (2, 2)


def test_a_success_ends_the_run_with_its_result(store: Store, clock: ManualClock) -> None:
    claimed = a_claimed(store)
    clock.advance(250)

    written = end(store, claimed, SUCCEED).written

    run = seen(store, claimed.id)
    assert written == {claimed.id: RunState.SUCCEEDED}
    assert (run.state, run.result, run.finished_at) == ("succeeded", '{"done":true}', clock.now)
    assert live_row(store, claimed.id) is None
    assert _attempts(store, claimed.id) == []  # a success leaves no history of its own


def test_a_failure_with_budget_left_spends_an_attempt_and_is_scheduled(
    store: Store, clock: ManualClock
) -> None:
    claimed = a_claimed(store)

    written = end(store, claimed, RETRY).written

    run = seen(store, claimed.id)
    assert written == {claimed.id: RunState.SCHEDULED}
    assert (run.state, run.attempt) == (RunState.SCHEDULED, 2)
    assert run.due_at == clock.now + timedelta(milliseconds=RETRY.delay_ms)
    assert _attempts(store, claimed.id) == [(1, 1, "error")]


def test_a_failure_with_budget_left_is_ready_at_zero_delay(store: Store) -> None:
    claimed = a_claimed(store)

    end(store, claimed, RETRY_NOW)

    assert (state_of(store, claimed.id), live_row(store, claimed.id).attempt) == ("ready", 2)


def test_a_failure_without_budget_ends_the_run_with_its_error(store: Store) -> None:
    claimed = a_claimed(store)

    written = end(store, claimed, FAIL).written

    run = seen(store, claimed.id)
    assert written == {claimed.id: RunState.FAILED}
    assert (run.state, run.reason, run.attempt) == (RunState.FAILED, Reason.ERROR, 1)
    assert (run.error_type, run.error_message) == (BROKEN.error_type, BROKEN.message)
    assert run.error_traceback == BROKEN.traceback
    assert _attempts(store, claimed.id) == [(1, 1, "error")]


def test_a_sleep_schedules_and_spends_nothing(store: Store, clock: ManualClock) -> None:
    claimed = a_claimed(store)

    end(store, claimed, SLEEP)

    run = seen(store, claimed.id)
    assert (run.state, run.attempt) == (RunState.SCHEDULED, 1)
    assert run.due_at == clock.now + timedelta(minutes=1)


@pytest.mark.parametrize("wait", [WAIT, WAIT_AN_HOUR], ids=["for ever", "an hour"])
def test_a_wait_gives_the_lease_up_and_spends_nothing(
    store: Store, clock: ManualClock, wait: Settlement
) -> None:
    claimed = a_claimed(store)

    end(store, claimed, wait)

    run = seen(store, claimed.id)
    assert (run.state, run.attempt) == (RunState.WAITING, 1)
    assert run.due_at == (None if wait is WAIT else clock.now + timedelta(hours=1))


def test_a_wait_is_ready_when_a_delivery_came_since_the_claim(store: Store) -> None:
    for wait in (WAIT, WAIT_AN_HOUR):
        claimed = a_claimed(store)
        do(store, "update {s}live set inbox = inbox + 1 where id = :id", id=claimed.id)

        settled = end(store, claimed, wait)

        assert settled.written == {claimed.id: RunState.READY}
        assert [(hint.run_id, hint.delay_ms) for hint in settled.hints] == [(claimed.id, 0)]
        row = live_row(store, claimed.id)
        assert (row.due_at, bool(row.wake_sent)) == (None, False)


def test_a_delivery_before_the_claim_does_not_end_a_later_wait(store: Store) -> None:
    run_id = put(store)
    do(store, "update {s}live set inbox = 3 where id = :id", id=run_id)
    claimed = take_one(store, run_id)

    end(store, claimed, WAIT)

    assert claimed.inbox == 3
    assert state_of(store, run_id) is RunState.WAITING


def test_the_time_out_of_a_wait_makes_it_ready(store: Store, clock: ManualClock) -> None:
    claimed = a_claimed(store)
    end(store, claimed, WAIT_AN_HOUR)
    for_ever = a_claimed(store)
    end(store, for_ever, WAIT)
    clock.advance(timedelta(hours=1))

    assert promoted(store).count == 1

    assert (state_of(store, claimed.id), seen(store, claimed.id).attempt) == ("ready", 1)
    assert state_of(store, for_ever.id) is RunState.WAITING


def test_a_hand_back_makes_the_run_ready_and_spends_nothing(store: Store) -> None:
    claimed = a_claimed(store)

    settled = end(store, claimed, HAND_BACK)

    again = take_one(store, claimed.id)
    assert settled.written == {claimed.id: RunState.READY}
    assert (again.attempt, again.hand_backs) == (1, 1)


@pytest.mark.parametrize("boundary", [SLEEP, WAIT_AN_HOUR, RETRY])
def test_a_boundary_or_an_attempt_ends_the_count_of_hand_backs(
    store: Store, clock: ManualClock, boundary: Settlement
) -> None:
    claimed = a_claimed(store)
    end(store, claimed, HAND_BACK)
    claimed = take_one(store, claimed.id)
    end(store, claimed, boundary)
    clock.advance(timedelta(hours=2))
    promoted(store)

    assert take_one(store, claimed.id).hand_backs == 0


def test_an_expired_lease_spends_an_attempt_and_rests_by_the_policy(
    store: Store, clock: ManualClock
) -> None:
    policy = RetryPolicy(first=timedelta(seconds=4), jitter=False)
    claimed = a_claimed(store, retry=policy)
    clock.advance(LEASE_MS)

    assert recovered(store).count == 1

    run = seen(store, claimed.id)
    assert (run.state, run.attempt) == (RunState.SCHEDULED, 2)
    assert run.due_at == clock.now + timedelta(seconds=4)
    assert _attempts(store, claimed.id) == [(1, 1, "lost")]


def test_an_expired_lease_without_budget_ends_the_run_as_lost(
    store: Store, clock: ManualClock
) -> None:
    claimed = a_claimed(store, retry=RetryPolicy(max_attempts=1))
    clock.advance(LEASE_MS)

    recovered(store)

    run = seen(store, claimed.id)
    assert (run.state, run.reason, run.error_type) == ("failed", "lost", "LeaseExpired")
    assert _attempts(store, claimed.id) == [(1, 1, "lost")]


@pytest.mark.parametrize("state", ["ready", "scheduled", "running", "waiting"])
def test_a_passed_deadline_ends_an_unfinished_run(
    store: Store, clock: ManualClock, state: str
) -> None:
    if state == "ready":
        run_id = put(store, deadline_ms=60_000)
    elif state == "scheduled":
        run_id = put(store, deadline_ms=60_000, delay_ms=3_600_000)
    else:
        claimed = a_claimed(store, deadline_ms=60_000)
        run_id = claimed.id
        if state == "waiting":
            end(store, claimed, WAIT)
    assert state_of(store, run_id) == state
    clock.advance(59_999)
    assert store.run(end_overdue).count == 0

    clock.advance(1)

    assert store.run(end_overdue).count == 1
    run = seen(store, run_id)
    assert (run.state, run.reason, run.finished_at) == ("failed", "deadline", clock.now)
    assert run.error_type == "DeadlinePassed"


def test_a_settle_that_commits_before_the_deadline_is_noted_wins(
    store: Store, clock: ManualClock
) -> None:
    claimed = a_claimed(store, deadline_ms=60_000, lease_ms=120_000)
    clock.advance(60_001)

    end(store, claimed, SUCCEED)

    assert store.run(end_overdue).count == 0
    assert state_of(store, claimed.id) is RunState.SUCCEEDED


def test_a_deadline_that_is_noted_first_wins_over_the_settle(
    store: Store, clock: ManualClock
) -> None:
    claimed = a_claimed(store, deadline_ms=60_000, lease_ms=120_000)
    clock.advance(60_001)
    store.run(end_overdue)

    assert end(store, claimed, SUCCEED).written == {}
    assert state_of(store, claimed.id) is RunState.FAILED


def test_the_deadline_of_a_run_is_told_with_its_claim(store: Store, clock: ManualClock) -> None:
    run_id = put(store, deadline_ms=60_000)
    clock.advance(20_000)

    assert take_one(store, run_id).deadline_in_ms == 40_000
    assert a_claimed(store).deadline_in_ms is None


@pytest.mark.parametrize("settlement", [None, RETRY, RETRY_NOW, SLEEP, WAIT, HAND_BACK])
def test_a_run_that_is_not_running_is_cancelled_at_once(
    store: Store, settlement: Settlement | None, clock: ManualClock
) -> None:
    if settlement is None:
        run_id = put(store)
    else:
        claimed = a_claimed(store)
        run_id = claimed.id
        end(store, claimed, settlement)

    assert _cancel(store, run_id) is CancelResult.CANCELLED

    run = seen(store, run_id)
    assert (run.state, run.reason, run.finished_at) == ("cancelled", "cancelled", clock.now)


def test_a_finished_run_stands_whatever_is_asked(store: Store) -> None:
    claimed = a_claimed(store)
    end(store, claimed, SUCCEED)
    before = seen(store, claimed.id)

    assert _cancel(store, claimed.id) is CancelResult.ALREADY_FINISHED
    assert take(store, claimed.id, scan=True).runs == []
    assert end(store, claimed, FAIL).written == {}
    assert (recovered(store).count, promoted(store).count) == (0, 0)

    assert seen(store, claimed.id) == before


def test_a_finished_run_is_run_again_as_a_new_linked_run(store: Store) -> None:
    claimed = a_claimed(store, payload='{"order":7}', retry=RetryPolicy(max_attempts=2))
    end(store, claimed, FAIL)

    again = store.run(rerun, claimed.id, by="ann", why="fixed", request_id="r2", reach=reach)

    run = seen(store, again.run_id)
    assert (run.state, run.attempt, run.rerun_of) == (RunState.READY, 1, claimed.id)
    assert (run.payload, run.task) == ('{"order":7}', claimed.task)
    assert take_one(store, run.id).retry.max_attempts == 2
    assert state_of(store, claimed.id) is RunState.FAILED


def test_active_time_adds_up_over_the_activations_of_an_attempt(
    store: Store, clock: ManualClock
) -> None:
    claimed = a_claimed(store)
    store.run(settle, [an_entry(claimed, HAND_BACK, active_ms=700)], reach=reach)
    claimed = take_one(store, claimed.id)
    assert claimed.active_ms == 700
    store.run(settle, [an_entry(claimed, SLEEP, active_ms=50)], reach=reach)
    clock.advance(60_000)
    claimed = take_one(store, claimed.id)
    assert claimed.active_ms == 750
    store.run(settle, [an_entry(claimed, RETRY_NOW, active_ms=9)], reach=reach)

    assert take_one(store, claimed.id).active_ms == 0
