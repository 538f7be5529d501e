"""Cancels, and cancels that race a settle: forced into both orders by locks."""

from __future__ import annotations

import pytest

from tests.store.acting import (
    BROKEN,
    EACH_SETTLEMENT,
    FAIL,
    LEASE_MS,
    RETRY,
    SUCCEED,
    WAIT_AN_HOUR,
    a_claimed,
    a_token,
    an_entry,
    draw,
    end,
    ids_of,
    lease_of,
    live_row,
    put,
    reach,
    recovered,
    rows,
    seen,
    state_of,
    take,
)
from tests.store.rivals import Rival
from workhorse.domain.ids import RunId, new_run_id
from workhorse.domain.outcomes import Settlement
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import RunState
from workhorse.errors import RunNotFoundError
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.lifecycle.claiming import claim
from workhorse.store.lifecycle.settling import Settled, _give_back, settle
from workhorse.store.lifecycle.sweeping import end_overdue, finish_cancelled
from workhorse.store.live.ending import Ending, end_runs
from workhorse.store.operators.operating import CancelResult, cancel

each_settlement = pytest.mark.parametrize(
    "settlement", EACH_SETTLEMENT.values(), ids=EACH_SETTLEMENT
)


def _cancel(store: Store, run_id: RunId, request_id: str = "r1") -> CancelResult:
    return store.run(cancel, run_id, by="ann", why="wrong order", request_id=request_id)[0]


@each_settlement
def test_any_settle_of_a_cancelled_run_ends_it_as_cancelled(
    store: Store, clock: ManualClock, settlement: Settlement
) -> None:
    claimed = a_claimed(store)
    assert _cancel(store, claimed.id) is CancelResult.ASKED
    assert state_of(store, claimed.id) is RunState.RUNNING

    settled = end(store, claimed, settlement)

    run = seen(store, claimed.id)
    assert settled.written == {claimed.id: RunState.CANCELLED}
    assert settled.hints == []
    assert (run.state, run.reason, run.cancel_asked_at) == ("cancelled", "cancelled", clock.now)


def test_the_value_or_error_of_a_cancelled_run_is_kept(store: Store) -> None:
    done, failed, retried = a_claimed(store), a_claimed(store), a_claimed(store)
    for claimed, settlement in ((done, SUCCEED), (failed, FAIL), (retried, RETRY)):
        _cancel(store, claimed.id)
        end(store, claimed, settlement)

    assert seen(store, done.id).result == SUCCEED.result
    for run in (seen(store, failed.id), seen(store, retried.id)):
        assert (run.error_type, run.error_message) == (BROKEN.error_type, BROKEN.message)
    assert len(rows(store, "select * from {s}attempts")) == 2


def test_a_cancelled_batch_goes_beside_others(store: Store) -> None:
    cancelled, kept = a_claimed(store), a_claimed(store)
    _cancel(store, cancelled.id)

    settled = store.run(settle, [an_entry(cancelled, RETRY), an_entry(kept, RETRY)], reach=reach)

    assert settled.written == {cancelled.id: "cancelled", kept.id: "scheduled"}
    assert [hint.run_id for hint in settled.hints] == [kept.id]


def test_a_cancelled_run_that_nobody_settles_is_ended_when_its_lease_ran_out(
    store: Store, clock: ManualClock
) -> None:
    claimed, other = a_claimed(store), a_claimed(store)
    _cancel(store, claimed.id)
    clock.advance(LEASE_MS - 1)
    assert store.run(finish_cancelled, reach=reach, draw=draw()).count == 0
    clock.advance(1)

    assert store.run(finish_cancelled, reach=reach, draw=draw()).count == 1

    run = seen(store, claimed.id)
    assert (run.state, run.reason, run.error_type) == ("cancelled", "cancelled", "LeaseExpired")
    assert state_of(store, other.id) is RunState.RUNNING


def test_recovery_ends_a_cancelled_run_too(store: Store, clock: ManualClock) -> None:
    claimed = a_claimed(store)
    _cancel(store, claimed.id)
    clock.advance(LEASE_MS)

    assert recovered(store).count == 1

    assert state_of(store, claimed.id) is RunState.CANCELLED


def test_a_deadline_after_a_cancel_ends_the_run_as_cancelled(
    store: Store, clock: ManualClock
) -> None:
    claimed = a_claimed(store, deadline_ms=1_000)
    _cancel(store, claimed.id)
    clock.advance(1_000)

    store.run(end_overdue)

    assert state_of(store, claimed.id) is RunState.CANCELLED


def test_the_first_ask_stands_and_each_is_audited(store: Store, clock: ManualClock) -> None:
    claimed = a_claimed(store)
    first = clock.now
    _cancel(store, claimed.id, "r1")
    clock.advance(1_000)

    assert _cancel(store, claimed.id, "r2") is CancelResult.ASKED

    assert seen(store, claimed.id).cancel_asked_at == first
    audit = rows(store, "select * from {s}audit order by request_id")
    assert [(row.act, row.subject, row.by, row.why, row.answer) for row in audit] == [
        ("cancel", str(claimed.id), "ann", "wrong order", "asked")
    ] * 2


def test_a_request_that_is_repeated_gets_the_same_answer(store: Store) -> None:
    """The first answer may have been lost with its connection."""
    run_id = put(store)
    assert _cancel(store, run_id, "r1") is CancelResult.CANCELLED

    assert _cancel(store, run_id, "r1") is CancelResult.CANCELLED
    assert _cancel(store, run_id, "r2") is CancelResult.ALREADY_FINISHED
    assert len(rows(store, "select * from {s}audit")) == 1


def test_others_are_left_as_they_are(store: Store) -> None:
    running, other = a_claimed(store), a_claimed(store)
    ready, beside = put(store), put(store)

    assert _cancel(store, running.id) is CancelResult.ASKED
    assert _cancel(store, ready) is CancelResult.CANCELLED

    asked = rows(store, "select id from {s}live where cancel_asked_at is not null")
    assert [str(row.id) for row in asked] == [running.id]
    assert state_of(store, beside) is RunState.READY
    assert end(store, other).written == {other.id: RunState.SUCCEEDED}


def test_a_run_that_does_not_exist_is_named(store: Store) -> None:
    run_id = new_run_id()
    end(store, a_claimed(store))
    put(store)

    with pytest.raises(RunNotFoundError, match=run_id):
        _cancel(store, run_id)


def test_a_run_whose_cancel_was_asked_is_never_given_back(store: Store) -> None:
    """The second half of a settle guards itself too, whatever came between it and the first."""
    claimed = a_claimed(store)
    _cancel(store, claimed.id)
    settled = Settled()

    store.run(_give_back, [an_entry(claimed, RETRY)], reach, settled)

    assert (settled.written, settled.hints) == ({}, [])
    assert state_of(store, claimed.id) is RunState.RUNNING


# -- races, on row locks -------------------------------------------------------------------------


@each_settlement
def test_a_cancel_that_waits_for_a_settle_decides_on_what_it_left(
    postgresql_store: Store, settlement: Settlement
) -> None:
    """In one statement it would change nothing and say nothing."""
    store = postgresql_store
    claimed = a_claimed(store)
    with Rival(store) as worker, Rival(store) as operator:
        worker.call(settle, [an_entry(claimed, settlement)], reach=reach)
        answer = operator.start(cancel, claimed.id, by="ann", why="no", request_id="r")
        operator.wait_until_blocked()
        worker.commit()
        result, _ = answer.result(10)
        operator.commit()

    ended = settlement in (SUCCEED, FAIL)
    assert result is (CancelResult.ALREADY_FINISHED if ended else CancelResult.CANCELLED)
    assert state_of(store, claimed.id) == (settlement.state if ended else "cancelled")  # type: ignore[union-attr]


@each_settlement
def test_a_settle_that_waits_for_a_cancel_ends_cancelled(
    postgresql_store: Store, settlement: Settlement
) -> None:
    store = postgresql_store
    claimed = a_claimed(store)
    with Rival(store) as worker, Rival(store) as operator:
        assert (
            operator.call(cancel, claimed.id, by="ann", why="no", request_id="r")[0]
            is CancelResult.ASKED
        )
        answer = worker.start(settle, [an_entry(claimed, settlement)], reach=reach)
        worker.wait_until_blocked()
        operator.commit()
        assert answer.result(10).written == {claimed.id: RunState.CANCELLED}
        worker.commit()

    assert state_of(store, claimed.id) is RunState.CANCELLED


def test_a_cancel_cannot_slip_in_between_the_two_halves_of_a_settle(
    postgresql_store: Store,
) -> None:
    """First some of a batch end, then the others are given back: their rows stay locked."""
    store = postgresql_store
    first, second = a_claimed(store), a_claimed(store)
    with Rival(store) as worker, Rival(store) as operator:
        worker.call(
            end_runs,
            [
                Ending(first.id, lease_of(first).token, SUCCEED),
                Ending(second.id, lease_of(second).token, None),
            ],
            under_lease=True,
        )
        answer = operator.start(cancel, second.id, by="ann", why="no", request_id="r")
        operator.wait_until_blocked()
        written = worker.call(settle, [an_entry(second, WAIT_AN_HOUR)], reach=reach).written
        worker.commit()

        assert written == {second.id: RunState.WAITING}
        assert answer.result(10)[0] is CancelResult.CANCELLED
        operator.commit()
    assert state_of(store, second.id) is RunState.CANCELLED


def test_a_cancel_that_waits_for_a_claim_asks(postgresql_store: Store) -> None:
    store = postgresql_store
    run_id = put(store)
    with Rival(store) as worker, Rival(store) as operator:
        taken = worker.call(
            claim, queue="default", ids=[run_id], tasks=["orders.ship"], free=1, token=a_token(),
            lease_ms=LEASE_MS,
        )  # fmt: skip
        assert ids_of(taken) == [run_id]
        answer = operator.start(cancel, run_id, by="ann", why="no", request_id="r")
        operator.wait_until_blocked()
        worker.commit()
        assert answer.result(10)[0] is CancelResult.ASKED
        operator.commit()


def test_a_claim_passes_a_run_that_is_being_cancelled(postgresql_store: Store) -> None:
    store = postgresql_store
    run_id = put(store)
    with Rival(store) as operator:
        operator.call(cancel, run_id, by="ann", why="no", request_id="r")
        assert take(store, run_id, scan=True).runs == []
        operator.commit()

    assert live_row(store, run_id) is None


def test_a_settle_and_a_deadline_that_meet_end_the_run_once(
    postgresql_store: Store, clock: ManualClock
) -> None:
    store = postgresql_store
    claimed = a_claimed(store, deadline_ms=1_000)
    other = a_claimed(store, deadline_ms=1_000, retry=RetryPolicy(max_attempts=1))
    clock.advance(1_000)
    with Rival(store) as worker, Rival(store) as maintenance:
        worker.call(settle, [an_entry(claimed, SUCCEED)], reach=reach)
        swept = maintenance.call(end_overdue)  # passes the row that is held
        assert swept.count == 1
        late = worker.start(settle, [an_entry(other, SUCCEED)], reach=reach)
        worker.wait_until_blocked()
        maintenance.commit()
        assert late.result(10).written == {}
        worker.commit()

    assert state_of(store, claimed.id) is RunState.SUCCEEDED
    assert seen(store, other.id).reason == "deadline"
