"""Claims that fill up from the queue: order, pages, cursors, and what a scan passes by."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.store.acting import (
    HAND_BACK,
    LEASE_MS,
    TASK,
    a_claimed,
    a_run,
    end,
    ids_of,
    promoted,
    put,
    put_many,
    reach,
    recovered,
    take,
    take_one,
)
from workhorse.domain.ids import RunId
from workhorse.domain.instants import to_micros
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import ClaimedRun
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.lifecycle.claiming import Claim
from workhorse.store.lifecycle.cursors import Cursor
from workhorse.store.lifecycle.picking import PAGE
from workhorse.store.operators.operating import cancel
from workhorse.store.producing.enqueueing import enqueue


def _sweep(store: Store, free: int, **how: object) -> list[Claim]:
    """Scan page after page, from the head to the end."""
    claims: list[Claim] = []
    cursor: Cursor | None = None
    while True:
        claims.append(take(store, scan=True, free=free, cursor=cursor, **how))  # type: ignore[arg-type]
        cursor = claims[-1].cursor
        if cursor is None:
            return claims
        assert len(claims) < 20


def _all(claims: list[Claim]) -> list[ClaimedRun]:
    return [run for claim in claims for run in claim.runs]


def test_a_scan_takes_by_priority_and_then_by_age(store: Store, clock: ManualClock) -> None:
    order = []
    for priority in (50, 50, 100, 0, 99):
        order.append((-priority, clock.now, put(store, priority=priority)))
        clock.advance(1)

    taken = [ids_of(take(store, scan=True, free=1)) for _ in range(5)]

    assert taken == [[run_id] for _, _, run_id in sorted(order)]


def test_age_counts_from_when_a_run_became_ready(store: Store, clock: ManualClock) -> None:
    later = put(store, delay_ms=60_000)
    clock.advance(30_000)
    before = put(store)
    clock.advance(30_000)
    promoted(store)

    assert ids_of(take(store, scan=True, free=1)) == [before]
    assert ids_of(take(store, scan=True, free=1)) == [later]


def test_the_tasks_of_a_worker_are_one_line(store: Store, clock: ManualClock) -> None:
    line = []
    for task in ("a", "b", "c", "a", "c", "b"):
        line.append(put(store, task=task))
        clock.advance(1)

    taken = [ids_of(take(store, scan=True, free=1, tasks=["c", "a", "b"]))[0] for _ in range(6)]

    assert taken == line


def test_a_claim_fills_up_behind_the_named_runs(store: Store, clock: ManualClock) -> None:
    line = []
    for _ in range(6):
        line.append(put(store))
        clock.advance(1)

    claim = take(store, line[4], line[5], scan=True, free=4)

    assert ids_of(claim) == [line[0], line[1], line[4], line[5]]
    assert ids_of(take(store, scan=True)) == [line[2], line[3]]


def test_a_named_run_at_the_head_is_not_taken_twice(store: Store) -> None:
    ids = put_many(store, 3)

    assert ids_of(take(store, ids[0], scan=True)) == ids
    assert {run.attempt for run in take(store, scan=True).runs} == set()


def test_a_named_run_at_the_head_takes_one_slot(store: Store) -> None:
    ids = put_many(store, 3)

    assert ids_of(take(store, ids[0], scan=True, free=2)) == ids[:2]


def test_a_claim_that_names_only_what_cannot_run_still_fills_up(
    store: Store, clock: ManualClock
) -> None:
    far = put(store, delay_ms=60_000)
    clock.advance(1)
    near = put(store)

    assert ids_of(take(store, far, scan=True)) == [near]


def test_a_scheduled_run_is_not_scanned_before_it_is_promoted(
    store: Store, clock: ManualClock
) -> None:
    run_id = put(store, delay_ms=1)
    clock.advance(1)

    assert take(store, scan=True).runs == []
    promoted(store)
    assert ids_of(take(store, scan=True)) == [run_id]


def test_an_empty_queue_ends_the_sweep_at_once(store: Store) -> None:
    claim = take(store, scan=True)

    assert (claim.runs, claim.cursor, claim.full) == ([], None, False)


def test_a_page_that_is_not_full_is_the_end_of_the_sweep(store: Store) -> None:
    put_many(store, 10)

    claim = take(store, scan=True, free=3)

    assert (len(claim.runs), claim.full, claim.cursor) == (3, False, None)


# -- 300 runs at the head that cannot run --------------------------------------------------------


def _blocked_head(store: Store, clock: ManualClock) -> tuple[ClaimedRun, list[RunId], list[RunId]]:
    """Make 150 runs of busy sessions, 150 of an unknown task, and 10 behind that can run."""
    holder = a_claimed(store, session="busy", lease_ms=10**9)
    clock.advance(1)
    head = [a_run(session="busy") for _ in range(150)]
    head += [a_run(task="unknown") for _ in range(150)]
    store.run(enqueue, head, reach=reach)
    clock.advance(1)
    behind = put_many(store, 10)
    return holder, [run.id for run in head], behind


def test_runs_of_unknown_tasks_are_not_even_looked_at(store: Store, clock: ManualClock) -> None:
    store.run(enqueue, [a_run(task="unknown", priority=99) for _ in range(250)], reach=reach)
    known = put(store)

    claim = take(store, scan=True)

    assert (ids_of(claim), claim.full) == ([known], False)


def test_a_blocked_head_is_passed_once_a_sweep(store: Store, clock: ManualClock) -> None:
    _, _, behind = _blocked_head(store, clock)

    claims = _sweep(store, free=5)

    assert [run.id for run in _all(claims)] == behind[:5]
    assert len(claims) == 1  # the 150 of the session and the 10 behind them are one page


def test_a_head_of_more_than_a_page_does_not_hide_what_is_behind(
    store: Store, clock: ManualClock
) -> None:
    a_claimed(store, session="busy", lease_ms=10**9)
    clock.advance(1)
    store.run(enqueue, [a_run(session="busy") for _ in range(300)], reach=reach)
    clock.advance(1)
    behind = put_many(store, 10)

    claims = _sweep(store, free=5)

    assert [len(claim.runs) for claim in claims] == [0, 5]
    assert [claim.full for claim in claims] == [True, False]
    assert [run.id for run in _all(claims)] == behind[:5]


def test_each_page_begins_behind_the_one_before(store: Store, clock: ManualClock) -> None:
    line = []
    for count in range(3):
        line += put_many(store, PAGE - 50, priority=60 - count)
        clock.advance(1)

    claims = _sweep(store, free=1)

    assert len(claims) == 3
    assert ids_of(claims[0]) == [line[0]]
    assert ids_of(claims[1]) == [line[PAGE]]
    assert ids_of(claims[2]) == [line[2 * PAGE]]


def test_the_cursor_survives_rows_that_vanish(store: Store, clock: ManualClock) -> None:
    head = []
    a_claimed(store, session="busy", lease_ms=10**9)
    for _ in range(2):
        clock.advance(1)
        head += put_many(store, PAGE, session="busy")
    clock.advance(1)
    behind = put(store)
    first = take(store, scan=True)
    assert first.runs == []
    assert first.cursor is not None
    for run_id in head[PAGE - 5 : PAGE + 5]:  # the cursor's own row, and those around it
        store.run(cancel, run_id, by="ann", why="gone", request_id="r")

    second = take(store, scan=True, cursor=first.cursor)

    assert ids_of(second) == [behind]
    assert second.cursor is None


def test_what_became_ready_before_the_cursor_waits_for_the_next_sweep(
    store: Store, clock: ManualClock
) -> None:
    a_claimed(store, session="busy", lease_ms=10**9)
    clock.advance(1)
    put_many(store, PAGE, session="busy")
    clock.advance(1)
    behind = put(store)
    first = take(store, scan=True)
    urgent = put(store, priority=100)

    assert ids_of(take(store, scan=True, cursor=first.cursor)) == [behind]
    assert ids_of(take(store, scan=True)) == [urgent]


def test_a_cursor_tells_apart_runs_of_one_moment(store: Store) -> None:
    """A whole batch is ready at one instant; the id decides, and none is passed by."""
    ids = put_many(store, 2 * PAGE + 20)

    claims = _sweep(store, free=50)

    expected = [ids[start : start + 50] for start in (0, PAGE, 2 * PAGE)]
    expected[2] = ids[2 * PAGE :]
    assert [ids_of(claim) for claim in claims] == expected


def test_a_cursor_goes_on_across_tasks(store: Store, clock: ManualClock) -> None:
    line = [a_run(task=f"t{count % 3}") for count in range(PAGE + 50)]
    for start in range(0, len(line), 50):
        store.run(enqueue, line[start : start + 50], reach=reach)
        clock.advance(1)
    first = take(store, scan=True, free=1, tasks=["t0", "t1", "t2"])

    second = take(store, scan=True, free=1, tasks=["t2", "t1", "t0"], cursor=first.cursor)

    assert ids_of(first) == [line[0].id]
    assert ids_of(second) == [line[PAGE].id]


@pytest.mark.parametrize("queue", ["default", "other"])
def test_a_scan_stays_in_its_queue(store: Store, queue: str) -> None:
    mine = {name: put(store, queue=name) for name in ("default", "other", "third")}

    assert ids_of(take(store, scan=True, queue=queue)) == [mine[queue]]


def test_a_handed_back_run_goes_behind_those_that_waited(store: Store, clock: ManualClock) -> None:
    first = a_claimed(store)
    clock.advance(1)
    waited = put(store)
    clock.advance(1)
    end(store, first, HAND_BACK)

    assert ids_of(take(store, scan=True, free=1)) == [waited]


def test_a_recovered_run_is_scanned_again(store: Store, clock: ManualClock) -> None:
    policy = RetryPolicy(first=RetryPolicy().first * 0)
    claimed = a_claimed(store, retry=policy)
    clock.advance(LEASE_MS)
    recovered(store)

    (again,) = take(store, scan=True).runs

    assert (again.id, again.attempt) == (claimed.id, 2)


def test_instants_are_told_apart_to_the_microsecond(store: Store, clock: ManualClock) -> None:
    """Two pages meet between two microseconds of a far year; a float would mix them up."""
    moment = datetime(2200, 1, 1, microsecond=1, tzinfo=UTC)
    clock.advance(moment - clock.now)
    put_many(store, PAGE)
    clock.advance(timedelta(microseconds=1))
    last = put(store)

    first = take(store, scan=True, free=1)

    assert first.cursor is not None
    assert first.cursor.ready_us == to_micros(moment)
    assert ids_of(take(store, scan=True, free=1, cursor=first.cursor)) == [last]


def test_a_run_that_can_run_is_found_whatever_its_task_is_called(store: Store) -> None:
    for task in ('it"s', "it's", "100%", "%s %(x)s", ":name", "back\\slash", "ü🐎", TASK):
        run_id = put(store, task=task)

        assert ids_of(take(store, scan=True, tasks=["else", task])) == [run_id]
        run_id = put(store, task=task)
        assert take_one(store, run_id, tasks=[task]).task == task
