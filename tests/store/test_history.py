"""A run's history: failed attempts, each with its lease, and operators' acts in order."""

from __future__ import annotations

from tests.store.acting import FAIL, RETRY_NOW, a_claimed, end, take_one
from workhorse.domain.ids import new_run_id
from workhorse.domain.runs import Reason
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.operators.history import Act, acts_on, attempts_of
from workhorse.store.operators.operating import cancel, pause_queue, resume_queue


def test_failed_attempts_are_kept_in_order(store: Store, clock: ManualClock) -> None:
    first = a_claimed(store)
    end(store, first, RETRY_NOW)
    clock.advance(1_000)
    second = take_one(store, first.id)
    end(store, second, FAIL)

    kept = store.run(attempts_of, first.id)

    assert [(each.attempt, each.fence, each.reason) for each in kept] == [
        (1, 1, Reason.ERROR),
        (2, 2, Reason.ERROR),
    ]
    assert {(each.error_type, each.error_message) for each in kept} == {("ValueError", "it broke")}
    assert [each.error_traceback for each in kept] == ["Traceback: it broke"] * 2
    assert kept[1].ended_at == clock.now
    assert kept[0].ended_at < kept[1].ended_at


def test_a_run_without_a_past_and_one_that_is_not_there_have_none(store: Store) -> None:
    end(store, a_claimed(store), FAIL)  # of another run
    assert store.run(attempts_of, a_claimed(store).id) == []
    assert store.run(attempts_of, new_run_id()) == []
    assert store.run(acts_on, new_run_id()) == []


def test_acts_are_told_with_who_and_why(store: Store, clock: ManualClock) -> None:
    claimed = a_claimed(store)
    store.run(cancel, claimed.id, by="ann", why="wrong order", request_id="r1")
    store.run(pause_queue, "default", by="ann", why="bounces")
    paused_at = clock.now
    clock.advance(1_000)
    store.run(resume_queue, "default", by="bob", why="")

    assert store.run(acts_on, claimed.id) == [
        Act(paused_at, "cancel", "ann", "wrong order", "asked")
    ]
    assert store.run(acts_on, "default") == [
        Act(paused_at, "pause", "ann", "bounces", None),
        Act(clock.now, "resume", "bob", "", None),
    ]
