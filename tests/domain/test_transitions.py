"""The table of docs/design.md, section 2, row by row, as far as an outcome decides it.

Rows that no outcome of an activation decides (enqueue, promote, claim, deliver, cancel, rerun) are
the store's, and so is a cancel that was asked meanwhile.
"""

import random
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workhorse.domain.boundaries import BoundaryKind, Wait
from workhorse.domain.outcomes import (
    Failed,
    Finish,
    HandBack,
    HandedBack,
    LeaseExpired,
    Outcome,
    Retry,
    Settlement,
    Succeeded,
    Suspend,
    Suspended,
)
from workhorse.domain.retry import DEFAULT_RETRY, RetryPolicy
from workhorse.domain.runs import MAX_HAND_BACKS, Failure, Reason, RunState
from workhorse.domain.transitions import INTERRUPTED, LEASE_EXPIRED, settlement_of

NAP = Wait(kind=BoundaryKind.TIMER, name="nap")
BOOM = Failure("ValueError", "boom", "Traceback ...")
THREE = RetryPolicy(max_attempts=3, first=timedelta(seconds=1), jitter=False)
ONE = replace(THREE, max_attempts=1)


def settle(
    outcome: Outcome, *, attempt: int = 1, hand_backs: int = 0, retry: RetryPolicy = THREE
) -> Settlement:
    return settlement_of(
        outcome, attempt=attempt, hand_backs=hand_backs, retry=retry, draw=random.Random(0)
    )


def test_succeed_ends_the_run_with_its_result() -> None:
    assert settle(Succeeded('{"ok":true}')) == Finish(RunState.SUCCEEDED, result='{"ok":true}')


def test_success_on_a_later_or_last_attempt_is_success_all_the_same() -> None:
    assert settle(Succeeded(), attempt=3) == Finish(RunState.SUCCEEDED, result="null")


@pytest.mark.parametrize("reason", [Reason.ERROR, Reason.TIMEOUT])
def test_fail_with_budget_left_spends_an_attempt_and_rests(reason: Reason) -> None:
    assert settle(Failed(BOOM, reason), attempt=1) == Retry(1_000, reason, BOOM)
    assert settle(Failed(BOOM, reason), attempt=2) == Retry(2_000, reason, BOOM)


def test_fail_with_a_policy_that_does_not_rest_is_due_at_once() -> None:
    at_once = replace(THREE, first=timedelta(0))

    assert settle(Failed(BOOM), retry=at_once) == Retry(0, Reason.ERROR, BOOM)


@pytest.mark.parametrize("reason", [Reason.ERROR, Reason.TIMEOUT])
def test_fail_without_budget_ends_the_run(reason: Reason) -> None:
    ended = Finish(RunState.FAILED, reason=reason, failure=BOOM)

    assert settle(Failed(BOOM, reason), attempt=3) == ended
    assert settle(Failed(BOOM, reason), attempt=1, retry=ONE) == ended
    assert settle(Failed(BOOM, reason), attempt=9) == ended  # the policy's budget was less


@pytest.mark.parametrize("reason", [Reason.NOT_RETRYABLE, Reason.DEADLINE])
def test_what_cannot_be_retried_ends_the_run_whatever_is_left(reason: Reason) -> None:
    assert settle(Failed(BOOM, reason), attempt=1) == Finish(
        RunState.FAILED, reason=reason, failure=BOOM
    )


def test_waits_suspend_the_run_and_spend_nothing() -> None:
    for attempt, retry in ((3, THREE), (1, ONE)):
        assert settle(Suspended((NAP,)), attempt=attempt, retry=retry) == Suspend((NAP,))


def test_hand_back_makes_the_run_ready_and_spends_nothing() -> None:
    for hand_backs in range(MAX_HAND_BACKS - 1):
        assert settle(HandedBack(), hand_backs=hand_backs) == HandBack()
    assert settle(HandedBack(), attempt=1, retry=ONE) == HandBack()


def test_the_twentieth_hand_back_of_an_attempt_is_an_error() -> None:
    assert settle(HandedBack(), hand_backs=19) == Retry(1_000, Reason.INTERRUPTED, INTERRUPTED)
    assert settle(HandedBack(), hand_backs=19, attempt=3) == Finish(
        RunState.FAILED, reason=Reason.INTERRUPTED, failure=INTERRUPTED
    )


def test_a_lost_lease_spends_an_attempt() -> None:
    assert settle(LeaseExpired(), attempt=1) == Retry(1_000, Reason.LOST, LEASE_EXPIRED)


def test_a_lost_lease_without_budget_fails_the_run_as_lost() -> None:
    lost = Finish(RunState.FAILED, reason=Reason.LOST, failure=LEASE_EXPIRED)

    assert settle(LeaseExpired(), attempt=3) == lost
    assert settle(LeaseExpired(), attempt=1, retry=ONE) == lost


def test_a_rest_is_drawn_from_the_runs_policy() -> None:
    rests = set()
    for seed in range(50):
        retry = settlement_of(
            LeaseExpired(),
            attempt=5,
            hand_backs=0,
            retry=DEFAULT_RETRY,
            draw=random.Random(seed),
        )
        assert isinstance(retry, Retry)
        rests.add(retry.delay_ms)

    assert len(rests) > 40
    assert max(rests) <= 16_000


outcomes = st.one_of(
    st.just(Succeeded()),
    st.builds(Failed, st.just(BOOM), st.sampled_from(Reason)),
    st.just(Suspended((NAP,))),
    st.just(HandedBack()),
    st.just(LeaseExpired()),
)


@given(outcomes, st.integers(1, 1000), st.integers(0, 25), st.integers(1, 1000))
def test_every_outcome_ends_retries_or_parks_and_the_budget_is_kept(
    outcome: Outcome, attempt: int, hand_backs: int, budget: int
) -> None:
    retry = replace(DEFAULT_RETRY, max_attempts=budget)

    settlement = settle(outcome, attempt=attempt, hand_backs=hand_backs, retry=retry)

    match settlement:
        case Finish(state):
            assert state in (RunState.SUCCEEDED, RunState.FAILED)
            assert (settlement.result is None) == (state is RunState.FAILED)
            assert (settlement.failure is None) == (settlement.reason is None)
        case Retry(delay_ms):
            assert attempt < budget
            assert 0 <= delay_ms <= retry.bound_ms(attempt)
        case Suspend(waits):
            assert waits == (NAP,)
        case HandBack():
            assert hand_backs + 1 < MAX_HAND_BACKS


def test_an_outcome_that_nobody_knows_is_a_mistake_and_not_a_success() -> None:
    with pytest.raises(AssertionError):
        settle("done")  # type: ignore[arg-type]
