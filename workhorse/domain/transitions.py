"""Which settlement follows from an outcome: the table of docs/design.md, section 2."""

from __future__ import annotations

import random
from typing import Final, assert_never

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
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import MAX_HAND_BACKS, Failure, Reason, RunState

_FINAL_REASONS: Final = frozenset({Reason.NOT_RETRYABLE, Reason.DEADLINE})

LEASE_EXPIRED: Final = Failure(
    "LeaseExpired", "the lease ran out before the run was settled: its worker died or was cut off"
)
INTERRUPTED: Final = Failure(
    "Interrupted",
    f"the attempt was handed back {MAX_HAND_BACKS} times by workers that stopped before it got to "
    "a new boundary; give its workers a longer drain, or the handler checkpoints",
)


def settlement_of(
    outcome: Outcome,
    *,
    attempt: int,
    hand_backs: int,
    retry: RetryPolicy,
    draw: random.Random,
) -> Settlement:
    """Decide what is written for an activation that ended so.

    Whether a cancel was asked meanwhile is the store's to see, under the row's lock: any settlement
    then ends the run as cancelled, its value or error kept.

    Args:
        outcome: How the activation ended.
        attempt: The attempt it belongs to, from 1.
        hand_backs: How often this attempt was handed back before, without a new boundary since.
        retry: The run's policy.
        draw: Where the jitter comes from.
    """
    match outcome:
        case Succeeded():
            return success_of(outcome)
        case Suspended(waits):
            return Suspend(waits)
        case HandedBack():
            if hand_backs + 1 < MAX_HAND_BACKS:
                return HandBack()
            return _spend(Reason.INTERRUPTED, INTERRUPTED, attempt, retry, draw)
        case LeaseExpired():
            return _spend(Reason.LOST, LEASE_EXPIRED, attempt, retry, draw)
        case Failed(failure, reason):
            return _spend(reason, failure, attempt, retry, draw)
        case _:
            assert_never(outcome)


def success_of(outcome: Succeeded) -> Finish:
    """Return what is written for a handler that has returned."""
    return Finish(RunState.SUCCEEDED, None, outcome.result)


def _spend(
    reason: Reason, failure: Failure, attempt: int, retry: RetryPolicy, draw: random.Random
) -> Settlement:
    if reason in _FINAL_REASONS or attempt >= retry.max_attempts:
        return Finish(RunState.FAILED, reason=reason, failure=failure)
    return Retry(retry.rest_ms(attempt, draw), reason, failure)
