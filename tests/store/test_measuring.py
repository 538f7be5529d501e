"""What a fleet is measured by: how much waits, for how long, and what failed meanwhile."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.store.acting import (
    FAIL,
    RETRY,
    SLEEP,
    WAIT,
    a_claimed,
    do,
    end,
    put,
    put_many,
    take,
    take_one,
)
from workhorse.domain.measures import Measures
from workhorse.domain.presence import Process, ProcessKind
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.fleet import measuring
from workhorse.store.fleet.measuring import Measured, mark, measure
from workhorse.store.fleet.presence import beat
from workhorse.store.fleet.steps import take as take_step
from workhorse.store.operators.operating import pause_queue, resume_queue

STEP = "measure"
WORKER = Process(
    key="k-a", id="w-a", kind=ProcessKind.WORKER, host="here", pid=1, version="0.1",
    queues=("default",),
)  # fmt: skip


def measured(store: Store) -> Measured:
    return store.read(measure, STEP)


def of(store: Store, queue: str = "default") -> Measures:
    (found,) = [each for each in measured(store).queues if each.queue == queue]
    return found


def counted(store: Store) -> int:
    """Measure as maintenance does, and answer the failed runs of all queues."""
    store.run(take_step, STEP, 60_000, force=True)
    found = measured(store)
    return found.all.failed if store.run(mark, STEP, found.span) else -1


# -- counts --------------------------------------------------------------------------------------


def test_runs_are_counted_by_state(store: Store) -> None:
    put_many(store, 3)
    put(store, delay_ms=60_000)
    a_claimed(store)
    for settlement in (RETRY, SLEEP, WAIT):
        end(store, a_claimed(store), settlement)

    assert of(store) == Measures(
        queue="default", runnable=3, running=1, scheduled=3, waiting=1, failed=0, workers=0
    )


def test_queues_are_measured_each_and_together(store: Store, clock: ManualClock) -> None:
    put_many(store, 2, queue="mail")
    clock.advance(5_000)
    a_claimed(store, queue="orders")
    put(store, queue="late", delay_ms=60_000)
    end(store, a_claimed(store, queue="quiet"), WAIT)
    store.run(beat, WORKER, up_ms=0)
    store.run(beat, replace(WORKER, key="k-b", queues=("default", "mail")), up_ms=0)

    found = measured(store)

    assert [(m.queue, m.runnable, m.running, m.workers) for m in found.queues] == [
        ("default", 0, 0, 2), ("late", 0, 0, 0), ("mail", 2, 0, 1), ("orders", 0, 1, 0),
        ("quiet", 0, 0, 0),
    ]  # fmt: skip
    assert found.all == Measures(
        queue=None, oldest_runnable_ms=5_000, runnable=2, running=1, scheduled=1, waiting=1,
        workers=2,
    )  # fmt: skip
    assert found.at == clock.now


def test_all_queues_that_hold_runs_of_a_state_are_measured(store: Store) -> None:
    for queue in ("a", "b", "c"):
        put(store, queue=queue)

    assert [each.queue for each in measured(store).queues] == ["a", "b", "c"]


def test_a_fleet_without_anything_has_measures_too(store: Store) -> None:
    found = measured(store)

    assert (found.all, found.queues) == (Measures(queue=None), [])


def test_the_backlog_of_a_worker_is_what_is_to_be_done_and_under_way(store: Store) -> None:
    a_claimed(store)
    put_many(store, 4)
    assert of(store).backlog_per_worker == 5  # nobody is there: as for one

    for key in ("k-a", "k-b"):
        store.run(beat, replace(WORKER, key=key), up_ms=0)

    assert of(store).backlog_per_worker == 2.5


def test_only_live_workers_count(store: Store, clock: ManualClock) -> None:
    store.run(beat, WORKER, up_ms=0)
    clock.advance(30_000)
    store.run(beat, replace(WORKER, key="k-b"), up_ms=0, stopping=True)
    store.run(beat, replace(WORKER, key="k-c", kind=ProcessKind.MAINTENANCE), up_ms=0)
    store.run(beat, replace(WORKER, key="k-d"), up_ms=0)
    store.run(beat, replace(WORKER, key="k-e", kind=ProcessKind.FUNCTION), up_ms=0)

    assert of(store).workers == 2


def test_a_queue_whose_workers_are_gone_is_measured_for_an_hour(
    store: Store, clock: ManualClock
) -> None:
    """So that an alarm for a queue without workers has a number to look at."""
    store.run(beat, WORKER, up_ms=0)
    clock.advance(3_599_999)
    assert of(store) == Measures(queue="default")

    clock.advance(1)

    assert measured(store).queues == []


def test_counts_stop_at_a_bound(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "COUNTED", 3)
    store._statements._prepared.clear()
    put_many(store, 5)
    put_many(store, 5, delay_ms=60_000)

    found = of(store)
    store._statements._prepared.clear()

    assert (found.runnable, found.scheduled) == (3, 3)


# -- the oldest run ------------------------------------------------------------------------------


def age(store: Store, queue: str = "default") -> int:
    return of(store, queue).oldest_runnable_ms


def test_the_oldest_is_found_whatever_its_task_and_priority(
    store: Store, clock: ManualClock
) -> None:
    for task, priority in (("b", 90), ("b", 10), ("a", 50), ("c", 50)):
        put(store, task=task, priority=priority)
        put(store, task=task, priority=priority, queue="other")
        clock.advance(1_000)
    assert age(store) == 4_000

    oldest = take(store, scan=True, free=1, tasks=["b"]).runs  # the higher priority, here the older
    assert len(oldest) == 1
    assert age(store) == 3_000

    take(store, scan=True, free=1, tasks=["b"])
    assert age(store) == 2_000

    take(store, scan=True, tasks=["a", "c"])
    for priority in (1, 90, 50):  # the oldest is the last in order
        put(store, priority=priority)
        clock.advance(1_000)
    assert age(store) == 3_000


def test_age_counts_from_when_a_run_became_ready(store: Store, clock: ManualClock) -> None:
    """Not from its creation: it slept, or was tried before."""
    run = a_claimed(store)
    clock.advance(60_000)
    end(store, run, RETRY)
    clock.advance(4_999)
    assert age(store) == 0

    clock.advance(1)
    take_one(store, run.id)
    clock.advance(7_000)
    assert age(store) == 0


def test_a_paused_queue_has_nothing_runnable(store: Store, clock: ManualClock) -> None:
    put(store)
    put(store, delay_ms=60_000)
    clock.advance(5_000)
    store.run(pause_queue, "default", by="ops", why="")

    found = of(store)

    assert (found.paused, found.runnable, found.oldest_runnable_ms, found.scheduled) == (
        True, 0, 0, 1,
    )  # fmt: skip


def test_a_queue_that_was_paused_once_is_measured_as_any(store: Store) -> None:
    put(store)
    store.run(pause_queue, "default", by="ops", why="")
    store.run(resume_queue, "default", by="ops", why="")

    found = of(store)

    assert (found.paused, found.runnable) == (False, 1)


def test_a_run_of_a_task_that_nobody_knows_grows_old(store: Store, clock: ManualClock) -> None:
    """Whoever is alarmed finds out that no worker has that task."""
    put(store, task="nobody.knows")

    clock.advance(9_000)

    assert age(store) == 9_000


def test_a_run_that_waits_for_its_turn_does_not_grow_old(store: Store, clock: ManualClock) -> None:
    a_claimed(store, session="s")
    put_many(store, 3, session="s")
    clock.advance(60_000)
    assert age(store) == 0

    put(store)  # behind those in the same index
    clock.advance(2_000)
    assert age(store) == 2_000


def test_a_run_whose_turn_it_is_grows_old(store: Store, clock: ManualClock) -> None:
    put_many(store, 3, session="s")

    clock.advance(60_000)

    assert age(store) == 60_000


def test_ready_times_of_a_clock_that_was_ahead_are_no_age(store: Store, clock: ManualClock) -> None:
    clock.advance(timedelta(hours=1))
    put(store)
    clock.advance(-timedelta(hours=1))

    assert age(store) == 0


# -- failed runs ---------------------------------------------------------------------------------


def fail(store: Store, count: int = 1, **fields: Any) -> None:
    for _ in range(count):
        end(store, a_claimed(store, **fields), FAIL)


def test_failed_runs_are_counted_once(store: Store, clock: ManualClock) -> None:
    fail(store, 2)
    end(store, a_claimed(store))
    clock.advance(10_000)
    assert counted(store) == 2
    clock.advance(60_000)
    assert counted(store) == 0

    fail(store, 3, queue="mail")
    clock.advance(60_000)
    found = measured(store)

    assert [(each.queue, each.failed) for each in found.queues] == [("mail", 3)]
    assert found.all.failed == 3
    assert counted(store) == 3
    assert counted(store) == 0


def test_an_end_that_may_still_commit_is_left_to_the_next(store: Store, clock: ManualClock) -> None:
    fail(store)
    clock.advance(9_999)
    assert counted(store) == 0

    clock.advance(1)

    assert counted(store) == 1
    assert counted(store) == 0


def test_a_measuring_that_failed_loses_nothing(store: Store, clock: ManualClock) -> None:
    assert counted(store) == 0
    fail(store, 2)
    clock.advance(60_000)
    assert measured(store).all.failed == 2  # and nobody was told of it
    clock.advance(120_000)

    assert counted(store) == 2


def test_of_two_measurings_at_once_one_counts(store: Store, clock: ManualClock) -> None:
    """A scheduled pass while the loop does the same."""
    assert counted(store) == 0
    fail(store, 2)
    clock.advance(30_000)
    one, other = measured(store), measured(store)
    clock.advance(1)
    third = measured(store)

    assert store.run(mark, STEP, one.span)
    assert store.run(mark, STEP, other.span)  # the same moment, as a call whose answer was lost
    assert not store.run(mark, STEP, third.span)
    assert third.without_ends().all.failed == 0
    assert third.without_ends().queues[0].failed == 0


def test_other_steps_have_no_part_in_the_mark(store: Store, clock: ManualClock) -> None:
    store.run(take_step, "before", 60_000)
    first = measured(store)
    clock.advance(1)
    assert counted(store) == 0
    store.run(take_step, "since", 60_000)
    fail(store)
    clock.advance(70_000)

    assert not store.run(mark, STEP, first.span)
    assert counted(store) == 1


def test_many_measurings_at_once_count_each_run_once(real_clock_store: Store) -> None:
    store = real_clock_store
    store.run(take_step, STEP, 60_000)
    fail(store, 5)
    do(store, "update {s}outcomes set finished_at = :at", at=_long_ago(store))
    found: list[int] = []
    start = threading.Barrier(4)

    def go() -> None:
        mine = store.sibling(connections=1)
        start.wait(20)
        for _ in range(5):
            seen = mine.read(measure, STEP)
            if mine.run(mark, STEP, seen.span):
                found.append(seen.all.failed)
        mine.close()

    threads = [threading.Thread(target=go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert sum(found) == 5


def _long_ago(store: Store) -> object:
    return store.dialect.write_instant(store.about_now() - timedelta(seconds=30))


def test_after_a_long_silence_an_hour_is_caught_up_with(store: Store, clock: ManualClock) -> None:
    assert counted(store) == 0
    fail(store, 2)
    clock.advance(timedelta(hours=1))
    fail(store, 3)
    clock.advance(11_000)

    assert counted(store) == 3


def test_the_first_measuring_looks_back_a_minute(store: Store, clock: ManualClock) -> None:
    fail(store)
    clock.advance(70_000)
    fail(store, 2)
    clock.advance(10_000)

    assert counted(store) == 2


@pytest.mark.parametrize("back", [timedelta(seconds=30), timedelta(days=1)], ids=str)
def test_a_clock_that_goes_back_neither_stops_the_count_nor_doubles_it(
    store: Store, clock: ManualClock, back: timedelta
) -> None:
    fail(store, 2)
    clock.advance(20_000)
    assert counted(store) == 2
    clock.advance(-back)

    assert counted(store) == 0
    clock.advance(timedelta(seconds=60))
    fail(store)
    clock.advance(11_000)
    assert counted(store) == 1
