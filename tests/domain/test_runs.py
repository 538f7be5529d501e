"""The forms of a run: which states are final, what a lease shows, when an attempt is the last."""

import json
from datetime import UTC, datetime

import pytest

from workhorse.domain.hints import Hint, no_reach
from workhorse.domain.ids import RunId
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import ClaimedRun, Lease, Reason, RunState, first_line

RUN = RunId("0197c5a0-7b5e-7c7b-9f5d-1d4c3a1b2c3d")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_three_states_are_final() -> None:
    assert [state.value for state in RunState if state.finished] == [
        "succeeded",
        "failed",
        "cancelled",
    ]


def test_states_and_reasons_are_stored_by_names_that_stay() -> None:
    # Rows, dashboards and alarms are built on them.
    assert {state.value for state in RunState} == {
        "scheduled",
        "ready",
        "running",
        "waiting",
        "succeeded",
        "failed",
        "cancelled",
    }
    assert {reason.value for reason in Reason} == {
        "error",
        "not_retryable",
        "timeout",
        "lost",
        "interrupted",
        "deadline",
        "cancelled",
    }


def test_a_lease_shows_its_fence_and_never_its_token() -> None:
    lease = Lease(RUN, fence=3, token=424_242)

    assert "fence=3" in repr(lease)
    assert "424242" not in repr(lease)


def test_a_lease_cannot_be_taken_apart() -> None:
    """What collects errors and logs writes out the parts of a tuple, the token among them."""
    lease: object = Lease(RUN, fence=3, token=424_242)

    assert not isinstance(lease, tuple)
    with pytest.raises(TypeError):
        json.dumps(lease)


def test_a_lease_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Lease(RUN, fence=3, token=4).token = 5  # type: ignore[misc]


@pytest.mark.parametrize(("attempt", "final"), [(1, False), (2, False), (3, True), (4, True)])
def test_the_last_attempt_of_the_budget_is_final(attempt: int, final: bool) -> None:
    run = ClaimedRun(
        id=RUN,
        task="mail",
        queue="default",
        payload="null",
        attempt=attempt,
        lease=None,
        retry=RetryPolicy(max_attempts=3),
        created_at=NOW,
        started_at=NOW,
    )

    assert run.is_final_attempt is final


def test_without_a_lane_no_wakeup_can_be_delayed() -> None:
    assert no_reach("default") == 0


def test_a_hint_is_sent_at_once_unless_it_says_otherwise() -> None:
    assert Hint(RUN, "default").delay_ms == 0


@pytest.mark.parametrize(
    ("message", "quoted"),
    [
        (None, ""),
        ("\n what \n more", "what "),
        ("x" * 400, "x" * 400),
        ("x" * 401, "x" * 397 + "..."),
    ],
)
def test_an_error_is_quoted_by_its_first_line_and_what_is_cut_is_seen(
    message: str | None, quoted: str
) -> None:
    assert first_line(message) == quoted
