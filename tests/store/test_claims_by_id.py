"""Claims of the runs that wakeups name: which are taken, and what a worker gets of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.store.acting import (
    HAND_BACK,
    LEASE_MS,
    RETRY_NOW,
    SLEEP,
    SUCCEED,
    TASK,
    WAIT,
    WAIT_AN_HOUR,
    a_claimed,
    a_token,
    an_entry,
    end,
    ids_of,
    lease_of,
    promoted,
    put,
    put_many,
    reach,
    seen,
    sleeping,
    state_of,
    take,
    take_one,
)
from workhorse.domain.ids import RunId, new_run_id
from workhorse.domain.outcomes import Settlement
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import RunState
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.lifecycle import claiming
from workhorse.store.lifecycle.claiming import claimed_under
from workhorse.store.lifecycle.settling import settle
from workhorse.store.lifecycle.sighting import sight
from workhorse.store.operators.operating import pause_queue, resume_queue


def test_named_runs_are_taken_in_one_batch_under_one_token(store: Store) -> None:
    ids = put_many(store, 5)
    token = a_token()

    claim = take(store, *ids, token=token)

    assert sorted(ids_of(claim)) == sorted(ids)
    assert {lease_of(run).token for run in claim.runs} == {token}
    assert {lease_of(run).run_id for run in claim.runs} == set(ids)
    assert (claim.cursor, claim.full) == (None, False)


def test_a_claim_brings_all_that_an_activation_needs(store: Store, clock: ManualClock) -> None:
    policy = RetryPolicy(max_attempts=3, first=timedelta(seconds=7), factor=1.5, jitter=False)
    created = clock.now
    run_id = put(
        store,
        payload='{"note":"it\'s 100% \\"ok\\" :name \\\\ \u00e9\U0001f40e"}',
        priority=70,
        key="k1",
        session="s1",
        tags=("a b", "ü"),
        deadline_ms=90_000,
        timeout_ms=5_000,
        retry=policy,
        traceparent="00-abc-def-01",
    )
    clock.advance(500)

    run = take_one(store, run_id)

    assert run.payload == '{"note":"it\'s 100% \\"ok\\" :name \\\\ \u00e9\U0001f40e"}'
    assert (run.task, run.queue, run.priority) == (TASK, "default", 70)
    assert (run.key, run.session, run.tags) == ("k1", "s1", ("a b", "ü"))
    assert (run.retry, run.timeout_ms, run.deadline_in_ms) == (policy, 5_000, 89_500)
    assert run.traceparent == "00-abc-def-01"
    assert (run.created_at, run.started_at) == (created, clock.now)
    assert (run.inbox, run.hand_backs, run.active_ms) == (0, 0, 0)


def test_what_was_not_given_comes_back_as_nothing(store: Store) -> None:
    run = a_claimed(store)

    assert (run.key, run.session, run.tags, run.traceparent) == (None, None, (), None)
    assert (run.timeout_ms, run.deadline_in_ms, run.retry) == (None, None, RetryPolicy())


def test_a_run_that_is_scheduled_and_due_is_taken(store: Store, clock: ManualClock) -> None:
    run_id = put(store, delay_ms=60_000)
    clock.advance(59_999)
    assert take(store, run_id).runs == []

    clock.advance(1)

    assert ids_of(take(store, run_id)) == [run_id]


@pytest.mark.parametrize("settlement", [SUCCEED, SLEEP, WAIT, WAIT_AN_HOUR])
def test_a_run_that_has_ended_or_is_not_due_is_not_taken(
    store: Store, settlement: Settlement
) -> None:
    claimed = a_claimed(store)
    end(store, claimed, settlement)

    assert take(store, claimed.id).runs == []


def test_a_wait_whose_time_has_come_is_not_taken(store: Store, clock: ManualClock) -> None:
    """Its time-out is recorded first: the activation is to find it."""
    claimed = a_claimed(store)
    end(store, claimed, WAIT_AN_HOUR)
    clock.advance(3_600_001)

    assert take(store, claimed.id).runs == []
    promoted(store, [claimed.id])
    assert ids_of(take(store, claimed.id)) == [claimed.id]


def test_a_running_run_is_not_taken_even_when_its_lease_ran_out(
    store: Store, clock: ManualClock
) -> None:
    """Recovery comes first: it spends the attempt."""
    claimed = a_claimed(store)
    assert take(store, claimed.id).runs == []
    clock.advance(LEASE_MS * 10)

    assert take(store, claimed.id, scan=True).runs == []
    assert lease_of(claimed).fence == seen(store, claimed.id).fence


def test_a_run_of_an_unknown_task_is_left_as_it_is(store: Store) -> None:
    unknown = put(store, task="orders.new")

    assert take(store, unknown, scan=True).runs == []

    run = seen(store, unknown)
    assert (run.state, run.attempt, run.fence) == (RunState.READY, 1, 0)
    assert ids_of(take(store, unknown, tasks=["orders.new", TASK])) == [unknown]


def test_a_run_of_another_queue_is_not_taken(store: Store) -> None:
    other = put(store, queue="other")

    assert take(store, other, scan=True).runs == []
    assert ids_of(take(store, other, queue="other")) == [other]


def test_nothing_is_taken_from_a_paused_queue(store: Store, clock: ManualClock) -> None:
    ready, scheduled = put(store), put(store, delay_ms=1)
    elsewhere = put(store, queue="open")
    clock.advance(1)
    store.run(pause_queue, "default", by="ann", why="broken")

    assert take(store, ready, scheduled, scan=True).runs == []
    assert ids_of(take(store, elsewhere, queue="open")) == [elsewhere]
    store.run(resume_queue, "default", by="ann", why="repaired")
    assert sorted(ids_of(take(store, ready, scheduled))) == sorted([ready, scheduled])


def test_ids_that_are_not_there_do_not_disturb(store: Store) -> None:
    run_id = put(store)

    assert ids_of(take(store, new_run_id(), run_id, run_id, new_run_id())) == [run_id]


def test_no_more_than_the_free_slots_are_taken(store: Store) -> None:
    ids = put_many(store, 5)

    assert len(take(store, *ids, free=2).runs) == 2
    assert len(take(store, *ids, free=2, scan=True).runs) == 2
    assert len(take(store, *ids, free=2, scan=True).runs) == 1


def test_a_claim_takes_200_at_most(store: Store) -> None:
    ids = put_many(store, 230)

    assert len(take(store, *ids, free=1_000).runs) == 200
    assert len(take(store, free=1_000, scan=True).runs) == 30


def test_a_claim_that_can_bring_nothing_asks_nothing(store: Store) -> None:
    run_id = put(store)

    for claim in (
        take(store, run_id, scan=True, free=0),
        take(store, run_id, scan=True, free=-1),
        take(store, run_id, scan=True, tasks=[]),
        take(store),
    ):
        assert (claim.runs, claim.cursor, claim.full) == ([], None, False)
    assert state_of(store, run_id) is RunState.READY


def test_a_batch_is_sorted_by_priority_and_then_by_age(store: Store) -> None:
    low, old, new, high = (put(store, priority=priority) for priority in (0, 50, 50, 100))

    assert ids_of(take(store, new, low, high, old)) == [high, old, new, low]


def test_each_claim_raises_the_fence_and_takes_a_new_token(store: Store) -> None:
    run_id = put(store)
    leases = []
    for _ in range(3):
        claimed = take_one(store, run_id)
        leases.append(lease_of(claimed))
        end(store, claimed, HAND_BACK)

    assert [lease.fence for lease in leases] == [1, 2, 3]
    assert len({lease.token for lease in leases}) == 3


@pytest.mark.parametrize("token", [1, 2**62, 2**63 - 1])
def test_a_token_of_63_bits_makes_the_trip(store: Store, token: int) -> None:
    claimed = take_one(store, put(store), token=token)

    assert lease_of(claimed).token == token
    assert end(store, claimed, SUCCEED).written == {claimed.id: RunState.SUCCEEDED}


# -- a claim whose answer was lost ---------------------------------------------------------------


def test_what_a_lost_claim_took_is_found_by_its_token(store: Store) -> None:
    ids, token = put_many(store, 3), a_token()
    claim = take(store, *ids, token=token)
    a_claimed(store)

    found = store.run(claimed_under, token)

    assert sorted(found, key=lambda run: run.id) == sorted(claim.runs, key=lambda run: run.id)
    assert store.run(claimed_under, a_token()) == []


def test_what_was_given_up_since_is_not_found(store: Store) -> None:
    token = a_token()
    kept, given, ended = take(store, *put_many(store, 3), token=token).runs
    end(store, given, RETRY_NOW)
    end(store, ended, SUCCEED)

    assert [run.id for run in store.run(claimed_under, token)] == [kept.id]


# -- what is seen of runs that a claim did not take ----------------------------------------------


def test_sight_tells_why_a_run_was_not_taken(store: Store, clock: ManualClock) -> None:
    running = a_claimed(store)
    expired = a_claimed(store, lease_ms=1_000)
    scheduled = put(store, delay_ms=90_000)
    waiting = a_claimed(store)
    end(store, waiting, WAIT)
    timed = a_claimed(store)
    end(store, timed, WAIT_AN_HOUR)
    done = a_claimed(store)
    end(store, done, SUCCEED)
    ready = put(store, queue="other", task="t2")
    missing = new_run_id()
    clock.advance(1_000)
    ids = [running.id, expired.id, scheduled, waiting.id, timed.id, done.id, ready, missing]

    sightings = store.run(sight, ids)

    def told(run_id: RunId) -> tuple[str, int | None, bool, bool]:
        seen = sightings[run_id]
        return (seen.state, seen.due_in_ms, seen.lease_expired, seen.overdue)

    assert told(running.id) == ("running", None, False, False)
    assert told(expired.id) == ("running", None, True, True)
    assert told(scheduled) == ("scheduled", 89_000, False, False)
    assert told(waiting.id) == ("waiting", None, False, False)
    assert told(timed.id) == ("waiting", 3_599_000, False, False)
    assert told(done.id) == ("succeeded", None, False, False)
    assert told(ready) == ("ready", None, False, False)
    assert (sightings[ready].queue, sightings[ready].task) == ("other", "t2")
    assert all(sighting.turn and not sighting.queue_paused for sighting in sightings.values())
    assert missing not in sightings


def test_sight_tells_what_is_overdue_and_what_is_paused(store: Store, clock: ManualClock) -> None:
    run_id = put(store, delay_ms=10)
    clock.advance(11)
    store.run(pause_queue, "default", by="ann", why="broken")

    seen = store.run(sight, [run_id])[run_id]

    assert (seen.overdue, seen.queue_paused) == (True, True)


def test_sight_is_of_the_named_runs_and_their_own_queues(store: Store) -> None:
    run_id = put(store)
    put(store, queue="other")
    store.run(pause_queue, "other", by="ann", why="it is full")

    found = store.run(sight, [run_id])

    assert {each: seen.queue_paused for each, seen in found.items()} == {run_id: False}


def test_sight_knows_of_a_pause_that_it_is_over(store: Store) -> None:
    """Else the message would go, as that of a run that nobody may take."""
    run_id = put(store)
    store.run(pause_queue, "default", by="ann", why="broken")
    store.run(resume_queue, "default", by="ann", why="repaired")

    assert not store.run(sight, [run_id])[run_id].queue_paused


def test_sight_of_nothing_asks_nothing(store: Store) -> None:
    assert store.run(sight, []) == {}


@pytest.mark.parametrize(
    "what",
    [
        {"key": "k"},
        {"traceparent": "00-1"},
        {"timeout_ms": 7},
        {"tags": ("t",)},
        {"session": "s"},
        {"priority": 51},
        {"priority": 49},
        {"retry": RetryPolicy(max_attempts=9)},
    ],
    ids=lambda what: " ".join(map(str, *what.items())),
)
def test_what_a_run_has_alone_comes_with_its_claim(store: Store, what: dict[str, Any]) -> None:
    """Most runs have nothing of it, and the claim leaves all of it out for these."""
    claimed = take_one(store, put(store, **what))

    assert {name: getattr(claimed, name) for name in what} == what


def test_a_run_that_has_nothing_of_its_own_comes_short(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As nearly all do: what is read of each row is what a large claim costs."""
    longer: list[RunId] = []
    monkeypatch.setattr(claiming, "_add_extras", lambda run, extras: longer.append(run.id))
    usual, other = put(store), put(store, session="s")

    take(store, usual, other)

    assert longer == [other]


def test_a_deadline_alone_comes_with_its_claim(store: Store) -> None:
    assert take_one(store, put(store, deadline_ms=7_000)).deadline_in_ms == 7_000


def test_a_run_has_started_when_it_was_claimed_first(store: Store, clock: ManualClock) -> None:
    claimed = a_claimed(store)
    end(store, claimed, HAND_BACK)
    clock.advance(1_000)

    assert take_one(store, claimed.id).started_at == clock.now - timedelta(seconds=1)


def test_the_time_that_was_worked_comes_with_the_next_claim(
    store: Store, clock: ManualClock
) -> None:
    claimed = a_claimed(store)
    store.run(settle, [an_entry(claimed, sleeping(1_000), active_ms=70)], reach=reach)
    clock.advance(1_000)

    assert take_one(store, claimed.id).active_ms == 70


def test_a_pause_of_another_queue_stops_nothing(store: Store) -> None:
    run_id = put(store)
    store.run(pause_queue, "other", by="ann", why="it is full")

    assert ids_of(take(store, scan=True)) == [run_id]
