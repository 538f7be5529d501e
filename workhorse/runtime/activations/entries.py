"""From an activation that has ended to what is written for it.

Source: docs/design.md, section 2.
"""

from __future__ import annotations

import random
from typing import Final

from workhorse.domain.outcomes import Finish, Settlement, Succeeded
from workhorse.domain.runs import Failure, Reason, RunState
from workhorse.domain.transitions import settlement_of, success_of
from workhorse.runtime.activations.activation import Activation
from workhorse.store.lifecycle.settling import Entry

_REFUSED: Final = "SettlementRefused"


def decide(activation: Activation, draw: random.Random) -> Settlement:
    """Decide what is written, once: an offer that is repeated says the same."""
    if activation.settlement is None:
        claimed, outcome = activation.claimed, activation.outcome
        if type(outcome) is Succeeded:
            activation.settlement = success_of(outcome)
            return activation.settlement
        if outcome is None:
            raise AssertionError(f"{activation!r} was offered without an outcome")
        activation.settlement = settlement_of(
            outcome,
            attempt=claimed.attempt,
            # They count for one that ends without an end alone.
            hand_backs=0 if activation.progressed else claimed.hand_backs,
            retry=claimed.retry,
            draw=draw,
        )
    return activation.settlement


def entry_of(activation: Activation) -> Entry:
    """Return what the store is handed."""
    claimed, settlement = activation.claimed, activation.settlement
    if settlement is None:
        raise AssertionError(f"{activation!r} has no settlement")
    return Entry(
        activation.lease,
        settlement,
        claimed.queue,
        activation.active_ms,
        claimed.inbox,
        type(settlement) is not Finish and activation.progressed,
    )


def refusal(error: Exception) -> Finish:
    """Return the settlement of a run whose own the database refuses."""
    failure = Failure(
        _REFUSED,
        f"the handler's result or error cannot be stored: the database refused it "
        f"({type(error).__name__})",
    )
    return Finish(RunState.FAILED, Reason.NOT_RETRYABLE, failure=failure)


def is_refusal(settlement: Settlement | None) -> bool:
    """Say whether a settlement is one of `refusal`."""
    return (
        isinstance(settlement, Finish)
        and settlement.failure is not None
        and settlement.failure.error_type == _REFUSED
    )
