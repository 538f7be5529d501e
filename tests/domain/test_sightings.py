"""The table of docs/design.md, section 4, row by row: what becomes of a message."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workhorse.domain.runs import RunState
from workhorse.domain.sightings import (
    DELETE,
    NEAR_MS,
    Delete,
    Fate,
    Note,
    ShowAgain,
    Sighting,
    fate_of,
)

IN_A_SECOND = ShowAgain(1_000)


def seen(state: RunState, **more: Any) -> Sighting:
    return Sighting(**{"state": state, "queue": "default", "task": "mail", **more})


def fate(sighting: Sighting | None, **more: Any) -> tuple[Fate, Note]:
    told: dict[str, Any] = {
        "queue": "default",
        "known_task": True,
        "seen_before": False,
        "room": True,
    }
    return fate_of(sighting, **{**told, **more})


def test_a_run_with_a_live_lease_needs_no_message() -> None:
    assert fate(seen(RunState.RUNNING)) == (DELETE, Note.STALE)


@pytest.mark.parametrize("state", [RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED])
def test_a_finished_run_needs_no_message(state: RunState) -> None:
    assert fate(seen(state)) == (DELETE, Note.STALE)
    # Whoever it belonged to: nothing about it can change any more.
    assert fate(seen(state), queue="other", known_task=False, room=False) == (DELETE, Note.STALE)


def test_a_run_that_waits_without_a_time_out_needs_no_message() -> None:
    assert fate(seen(RunState.WAITING)) == (DELETE, Note.STALE)


@pytest.mark.parametrize("state", [RunState.SCHEDULED, RunState.WAITING])
def test_a_message_is_shown_again_at_a_time_within_the_next_minute(state: RunState) -> None:
    for due_in_ms in (1, 1_500, NEAR_MS):
        assert fate(seen(state, due_in_ms=due_in_ms)) == (ShowAgain(due_in_ms), Note.EARLY)


@pytest.mark.parametrize("state", [RunState.SCHEDULED, RunState.WAITING])
def test_a_message_for_a_later_time_goes(state: RunState) -> None:
    assert fate(seen(state, due_in_ms=NEAR_MS + 1)) == (DELETE, Note.STALE)


@pytest.mark.parametrize("state", [RunState.SCHEDULED, RunState.WAITING])
def test_what_is_due_and_was_not_promoted_in_place_is_looked_at_again(state: RunState) -> None:
    for due_in_ms in (0, -1, -(10**9)):
        assert fate(seen(state, due_in_ms=due_in_ms)) == (IN_A_SECOND, Note.LOCKED)


def test_an_expired_lease_that_was_not_recovered_in_place_is_looked_at_again() -> None:
    assert fate(seen(RunState.RUNNING, lease_expired=True)) == (IN_A_SECOND, Note.LOCKED)


def test_a_run_of_a_paused_queue_needs_no_message() -> None:
    assert fate(seen(RunState.READY, queue_paused=True)) == (DELETE, Note.STALE)


def test_a_run_whose_turn_it_is_not_needs_no_message() -> None:
    assert fate(seen(RunState.READY, turn=False)) == (DELETE, Note.STALE)


def test_a_ready_run_whose_row_is_locked_is_looked_at_again_in_a_second() -> None:
    assert fate(seen(RunState.READY)) == (IN_A_SECOND, Note.LOCKED)


def test_a_ready_run_for_which_there_is_no_room_is_shown_to_others_at_once() -> None:
    assert fate(seen(RunState.READY), room=False) == (ShowAgain(0), Note.CROWDED)


def test_what_cannot_be_claimed_goes_also_when_there_is_no_room() -> None:
    for sighting in (seen(RunState.READY, queue_paused=True), seen(RunState.READY, turn=False)):
        assert fate(sighting, room=False) == (DELETE, Note.STALE)


@pytest.mark.parametrize(
    "state", [RunState.READY, RunState.RUNNING, RunState.SCHEDULED, RunState.WAITING]
)
def test_a_run_of_another_queue_or_task_is_counted_and_left_to_its_own_workers(
    state: RunState,
) -> None:
    assert fate(seen(state, queue="other")) == (DELETE, Note.OTHER_QUEUE)
    assert fate(seen(state), known_task=False) == (DELETE, Note.UNKNOWN_TASK)
    assert fate(seen(state, queue="other"), known_task=False) == (DELETE, Note.OTHER_QUEUE)


def test_a_run_that_is_not_there_is_looked_for_once_more_then_given_up() -> None:
    assert fate(None) == (ShowAgain(5_000), Note.UNSEEN)
    assert fate(None, seen_before=True) == (DELETE, Note.MISSING)


sightings = st.builds(
    Sighting,
    state=st.sampled_from(RunState),
    queue=st.sampled_from(["default", "other"]),
    task=st.just("mail"),
    due_in_ms=st.none() | st.integers(-(10**6), 10**9),
    lease_expired=st.booleans(),
    queue_paused=st.booleans(),
    turn=st.booleans(),
)


@given(st.none() | sightings, st.booleans(), st.booleans(), st.booleans())
def test_a_message_never_stays_hidden_for_long_and_goes_only_for_a_reason(
    sighting: Sighting | None, known_task: bool, seen_before: bool, room: bool
) -> None:
    decided, note = fate(sighting, known_task=known_task, seen_before=seen_before, room=room)

    if isinstance(decided, ShowAgain):
        assert 0 <= decided.after_ms <= NEAR_MS
    else:
        assert note in (Note.STALE, Note.OTHER_QUEUE, Note.UNKNOWN_TASK, Note.MISSING)
        # The one state in which a message may be a run's only way to a worker.
        if sighting is not None and sighting.state is RunState.READY and note is Note.STALE:
            assert sighting.queue_paused or not sighting.turn


@pytest.mark.parametrize(
    ("sighting", "overdue"),
    [
        (seen(RunState.RUNNING, lease_expired=True), True),
        (seen(RunState.RUNNING), False),
        (seen(RunState.SCHEDULED, due_in_ms=0), True),
        (seen(RunState.SCHEDULED, due_in_ms=-5), True),
        (seen(RunState.SCHEDULED, due_in_ms=1), False),
        (seen(RunState.WAITING, due_in_ms=0), True),
        (seen(RunState.WAITING, due_in_ms=1), False),
        (seen(RunState.WAITING), False),
        (seen(RunState.READY), False),
        (seen(RunState.SUCCEEDED), False),
    ],
)
def test_recovery_promotion_or_a_time_out_comes_first_where_something_is_overdue(
    sighting: Sighting, overdue: bool
) -> None:
    assert sighting.overdue is overdue


def test_fates_are_values() -> None:
    assert Delete() == DELETE
    assert ShowAgain(1) != ShowAgain(2)
