"""Runs of a session take turns, in the order of their line."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import IntegrityError

from tests.store.acting import (
    FAIL,
    HAND_BACK,
    LEASE_MS,
    QUEUE,
    RETRY,
    SLEEP,
    SUCCEED,
    TASK,
    WAIT,
    a_claimed,
    a_run,
    a_token,
    an_entry,
    do,
    end,
    hinted,
    ids_of,
    live_row,
    promoted,
    put,
    reach,
    recovered,
    state_of,
    take,
    take_one,
)
from tests.store.rivals import Rival
from workhorse.domain.ids import RunId
from workhorse.domain.outcomes import Settlement
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import RunState
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.lifecycle.claiming import claim, turn_was_taken
from workhorse.store.lifecycle.settling import settle
from workhorse.store.lifecycle.sighting import sight
from workhorse.store.lifecycle.sweeping import end_overdue, promote
from workhorse.store.operators.operating import cancel
from workhorse.store.producing.enqueueing import enqueue


def _line(store: Store, clock: ManualClock, count: int, session: str = "s") -> list[RunId]:
    """Enqueue runs of a session one after the other."""
    line = []
    for _ in range(count):
        line.append(put(store, session=session))
        clock.advance(1)
    return line


def test_only_the_first_of_a_session_is_claimed(store: Store, clock: ManualClock) -> None:
    line = _line(store, clock, 3)

    assert ids_of(take(store, *line)) == [line[0]]
    assert ids_of(take(store, *line, scan=True)) == []


def test_a_batch_by_scan_takes_one_of_each_session(store: Store, clock: ManualClock) -> None:
    first, _ = _line(store, clock, 2, "a")
    second, _ = _line(store, clock, 2, "b")
    free = put(store)

    assert ids_of(take(store, scan=True)) == [first, second, free]


def test_runs_of_one_transaction_take_turns_in_its_order(store: Store) -> None:
    line = [a_run(session="s") for _ in range(5)]
    store.run(enqueue, line, reach=reach)
    for run in line:
        claimed = take(store, scan=True).runs
        assert [each.id for each in claimed] == [run.id]
        end(store, claimed[0])


def test_a_higher_priority_does_not_jump_the_line(store: Store, clock: ManualClock) -> None:
    first = put(store, session="s", priority=1)
    clock.advance(1)
    put(store, session="s", priority=99)

    assert ids_of(take(store, scan=True)) == [first]


def test_a_scheduled_run_stands_in_the_line_where_its_time_is(
    store: Store, clock: ManualClock
) -> None:
    later = put(store, session="s", delay_ms=60_000)
    clock.advance(1)
    now = put(store, session="s")
    clock.advance(60_000)
    promoted(store)
    last = put(store, session="s")

    order = []
    for _ in range(3):
        (claimed,) = take(store, scan=True).runs
        order.append(claimed.id)
        end(store, claimed)
    assert order == [now, later, last]


@pytest.mark.parametrize("settlement", [RETRY, SLEEP, WAIT, HAND_BACK])
def test_the_turn_is_kept_through_rests_and_waits(
    store: Store, clock: ManualClock, settlement: Settlement
) -> None:
    first, second = _line(store, clock, 2)
    claimed = take_one(store, first)

    settled = end(store, claimed, settlement)

    assert second not in hinted(settled.hints)
    assert take(store, second).runs == []
    assert store.run(sight, [second])[second].turn is False


@pytest.mark.parametrize("settlement", [SUCCEED, FAIL])
def test_whoever_ends_a_run_wakes_the_next_of_its_session(
    store: Store, clock: ManualClock, settlement: Settlement
) -> None:
    first, second, _ = _line(store, clock, 3)
    claimed = take_one(store, first)

    settled = end(store, claimed, settlement)

    assert hinted(settled.hints) == [second]
    assert store.run(sight, [second])[second].turn is True
    assert ids_of(take(store, second)) == [second]


def test_one_batch_wakes_the_next_of_each_session(store: Store, clock: ManualClock) -> None:
    ahead = [take_one(store, _line(store, clock, 1, name)[0]) for name in "ab"]
    behind = [_line(store, clock, 1, name)[0] for name in "ab"]

    settled = store.run(settle, [an_entry(each, SUCCEED) for each in ahead], reach=reach)

    assert sorted(hinted(settled.hints)) == sorted(behind)


def test_a_next_run_that_is_not_due_is_not_woken(store: Store, clock: ManualClock) -> None:
    claimed = a_claimed(store, session="s")
    put(store, session="s", delay_ms=60_000)

    assert end(store, claimed).hints == []


def test_a_next_run_that_is_due_and_not_yet_promoted_is_woken(
    postgresql_store: Store, clock: ManualClock
) -> None:
    """A promotion that runs beside the end still sees another's turn, and wakes nobody."""
    store = postgresql_store
    claimed = a_claimed(store, session="s")
    second = put(store, session="s", delay_ms=3_600_000)
    clock.advance(3_600_001)
    with Rival(store) as maintenance:
        swept = maintenance.call(promote)
        settled = end(store, claimed)
        maintenance.commit()

    assert (swept.count, hinted(swept.hints)) == (1, [])
    assert hinted(settled.hints) == [second]
    assert state_of(store, second) is RunState.READY


def test_a_cancel_wakes_the_next(store: Store, clock: ManualClock) -> None:
    first, second = _line(store, clock, 2)

    _, hints = store.run(cancel, first, by="ann", why="no", request_id="r")

    assert hinted(hints) == [second]


def test_the_cancel_of_one_further_behind_wakes_the_first_again(
    store: Store, clock: ManualClock
) -> None:
    """A wakeup too many is harmless; what counts is that it names the one whose turn it is."""
    first, second = _line(store, clock, 2)

    _, hints = store.run(cancel, second, by="ann", why="no", request_id="r")

    assert hinted(hints) == [first]


def test_a_deadline_wakes_the_next(store: Store, clock: ManualClock) -> None:
    put(store, session="s", deadline_ms=1_000)
    clock.advance(1)
    second = put(store, session="s")
    clock.advance(1_000)

    assert hinted(store.run(end_overdue).hints) == [second]


def test_a_lost_run_wakes_the_next(store: Store, clock: ManualClock) -> None:
    a_claimed(store, session="s", retry=RetryPolicy(max_attempts=1))
    clock.advance(1)
    second = put(store, session="s")
    clock.advance(LEASE_MS)

    assert hinted(recovered(store).hints) == [second]


def test_a_promotion_wakes_only_whose_turn_it_is(store: Store, clock: ManualClock) -> None:
    first = put(store, session="s", delay_ms=3_600_000)
    clock.advance(1)
    second = put(store, session="s", delay_ms=3_600_000)
    clock.advance(3_600_001)

    swept = promoted(store)

    assert (swept.count, hinted(swept.hints)) == (2, [first])
    assert state_of(store, second) is RunState.READY


def test_a_claim_without_sessions_leaves_them_alone(store: Store, clock: ManualClock) -> None:
    (line,) = _line(store, clock, 1)
    due = put(store, session="t", delay_ms=1)
    clock.advance(1)
    free = put(store)

    assert ids_of(take(store, line, due, free, scan=True, sessions=False)) == [free]
    assert ids_of(take(store, scan=True, sessions=False)) == []


def test_a_session_reaches_over_queues(store: Store, clock: ManualClock) -> None:
    first = put(store, session="s", queue="a")
    clock.advance(1)
    second = put(store, session="s", queue="b")

    assert take(store, second, queue="b").runs == []
    settled = end(store, take_one(store, first, queue="a"))

    assert [(hint.run_id, hint.queue) for hint in settled.hints] == [(second, "b")]


# -- who comes into the line before one that has its turn already --------------------------------


def test_one_that_stands_before_a_running_run_waits_for_its_end(
    store: Store, clock: ManualClock
) -> None:
    """It was enqueued with an older time: by a clock that went back, or a slow transaction."""
    running = a_claimed(store, session="s", lease_ms=120_000)
    clock.advance(-60_000)
    earlier = put(store, session="s")
    other = put(store)

    assert ids_of(take(store, earlier, other, scan=True)) == [other]
    assert store.run(sight, [earlier])[earlier].turn is False
    settled = end(store, running)
    assert hinted(settled.hints) == [earlier]
    assert ids_of(take(store, scan=True)) == [earlier]


def test_a_slow_producer_does_not_get_two_runs_of_a_session_to_work(
    postgresql_store: Store, clock: ManualClock
) -> None:
    store = postgresql_store
    with Rival(store) as slow:
        (earlier,) = slow.call(enqueue, [a_run(session="s")], reach=reach)
        clock.advance(1)
        running = a_claimed(store, session="s")
        slow.commit()

    assert take(store, earlier.run_id, scan=True).runs == []
    end(store, running)
    assert ids_of(take(store, scan=True)) == [earlier.run_id]


def test_two_workers_that_see_one_turn_free_do_not_both_get_it(
    postgresql_store: Store, clock: ManualClock
) -> None:
    """The last guard: the index lets one pass; the other's batch comes again without sessions."""
    store = postgresql_store
    late = put(store, session="s")
    clock.advance(-1)
    with Rival(store) as one, Rival(store) as two:
        (earlier,) = one.call(enqueue, [a_run(session="s")], reach=reach)
        taken = two.call(
            claim, queue=QUEUE, ids=[late], tasks=[TASK], free=5, token=a_token(), lease_ms=LEASE_MS
        )
        assert ids_of(taken) == [late]
        one.commit()
        other = put(store)
        claimed = one.start(
            claim,
            queue=QUEUE,
            ids=[earlier.run_id, other],
            tasks=[TASK],
            free=5,
            token=a_token(),
            lease_ms=LEASE_MS,
        )
        one.wait_until_blocked()
        two.commit()
        with pytest.raises(IntegrityError, match="live_turn") as caught:
            claimed.result(10)
        assert turn_was_taken(caught.value)
        one.rollback()

    assert state_of(store, earlier.run_id) is RunState.READY
    assert ids_of(take(store, earlier.run_id, other, sessions=False)) == [other]
    assert ids_of(take(store, earlier.run_id)) == []


def test_the_index_is_the_last_guard(store: Store, clock: ManualClock) -> None:
    a_claimed(store, session="s")
    second = put(store, session="s")

    with pytest.raises(IntegrityError) as caught:
        do(
            store,
            "update {s}live set state = 'running', token = 1, fence = 1, ready_at = null,"
            " started_at = line_at, lease_expires_at = line_at where id = :id",
            id=second,
        )
    assert live_row(store, second).state == "ready"
    assert turn_was_taken(caught.value)


def test_what_breaks_otherwise_has_taken_no_turn(postgresql_store: Store) -> None:
    """SQLite does not say which rule it was: there a claim is tried again for each."""
    put(postgresql_store)

    with pytest.raises(IntegrityError) as caught:
        do(postgresql_store, "update {s}live set rank = 101")

    assert not turn_was_taken(caught.value)
    assert not turn_was_taken(ZeroDivisionError())


def test_an_end_wakes_nobody_of_another_session(store: Store, clock: ManualClock) -> None:
    first = _line(store, clock, 2)
    _line(store, clock, 1, session="t")

    settled = end(store, take_one(store, first[0]))

    assert hinted(settled.hints) == [first[1]]
