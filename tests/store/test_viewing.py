"""What operators look at: everything that is listed is bounded or paged."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.store.acting import (
    FAIL,
    LEASE_MS,
    SLEEP,
    SUCCEED,
    WAIT,
    a_claimed,
    a_run,
    end,
    promoted,
    put,
    put_many,
    reach,
    seen,
    take,
)
from workhorse.domain.ids import RunId, new_run_id
from workhorse.domain.runs import RunState
from workhorse.errors import RunNotFoundError
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.operators.operating import cancel, pause_queue
from workhorse.store.operators.viewing import (
    QueueView,
    counts,
    list_queues,
    list_runs,
    open_queues,
    ready_page,
    ready_to_top_up,
    show,
    unknown_tasks,
)
from workhorse.store.producing.enqueueing import enqueue


def _one_of_each(store: Store) -> dict[str, RunId]:
    made = {"ready": put(store), "scheduled": put(store, delay_ms=60_000)}
    claimed = {name: a_claimed(store) for name in ("running", "waiting", "succeeded", "failed")}
    end(store, claimed["waiting"], WAIT)
    end(store, claimed["succeeded"], SUCCEED)
    end(store, claimed["failed"], FAIL)
    made["cancelled"] = put(store)
    store.run(cancel, made["cancelled"], by="ann", why="", request_id="r")
    return {**made, **{name: run.id for name, run in claimed.items()}}


def test_a_run_is_shown_whole(store: Store, clock: ManualClock) -> None:
    made_at = clock.now
    claimed = a_claimed(
        store, payload="[1]", session="s", key="k", tags=("a",), priority=7, deadline_ms=90_000
    )
    clock.advance(5_000)
    store.run(cancel, claimed.id, by="ann", why="no", request_id="r")

    run = seen(store, claimed.id)

    assert (run.payload, run.session, run.key, run.tags) == ("[1]", "s", "k", ("a",))
    assert (run.priority, run.attempt, run.fence) == (7, 1, 1)
    assert (run.created_at, run.started_at, run.cancel_asked_at) == (made_at, made_at, clock.now)
    assert run.lease_expires_at == made_at + timedelta(milliseconds=LEASE_MS)
    assert run.deadline_at == made_at + timedelta(seconds=90)
    assert (run.finished_at, run.result, run.reason, run.rerun_of) == (None, None, None, None)


def test_each_run_is_shown_by_its_id(store: Store) -> None:
    ids = put_many(store, 3)

    assert [seen(store, run_id).id for run_id in ids] == ids


def test_a_run_that_is_not_there_is_named(store: Store) -> None:
    run_id = new_run_id()

    with pytest.raises(RunNotFoundError, match=run_id):
        store.run(show, run_id)


def test_runs_are_listed_the_newest_first_and_in_pages(store: Store) -> None:
    ids = put_many(store, 7)

    first = store.run(list_runs, limit=3)
    second = store.run(list_runs, limit=3, before=first[-1].id)
    third = store.run(list_runs, limit=3, before=second[-1].id)

    assert [run.id for run in first + second + third] == ids[::-1]
    assert store.run(list_runs, before=ids[0]) == []


@pytest.mark.parametrize("state", list(RunState))
def test_runs_are_listed_by_state(store: Store, state: RunState) -> None:
    ids = _one_of_each(store)

    assert [run.id for run in store.run(list_runs, state=state)] == [ids[state]]


def test_runs_are_listed_by_task_and_queue(store: Store) -> None:
    wanted = put(store, task="a", queue="x")
    put(store, task="a", queue="y")
    put(store, task="b", queue="x")

    def found(**how: str) -> list[RunId]:
        return [run.id for run in store.run(list_runs, **how)]  # type: ignore[arg-type]

    assert found(task="a", queue="x") == [wanted]
    assert len(found(task="a")) == len(found(queue="x")) == 2
    assert found(task="%", queue="x") == []
    assert store.run(list_runs, task="a", queue="x", state=RunState.READY, limit=1)[0].id == wanted
    assert found(task="c") == []


def test_50_runs_are_listed_where_no_limit_is_given(store: Store) -> None:
    put_many(store, 60)

    assert len(store.run(list_runs)) == 50


def test_runs_are_counted_by_state(store: Store) -> None:
    assert store.run(counts) == dict.fromkeys(RunState, 0)
    _one_of_each(store)
    put(store)

    assert store.run(counts) == {state: 1 + (state == "ready") for state in RunState}


def test_queues_are_shown_with_their_unfinished_runs(store: Store, clock: ManualClock) -> None:
    _one_of_each(store)
    put_many(store, 2, queue="busy")
    store.run(pause_queue, "empty", by="ann", why="for now")

    assert store.run(list_queues) == [
        QueueView(name="busy", ready=2),
        QueueView(name="default", scheduled=1, ready=1, running=1, waiting=1),
        QueueView(name="empty", paused_at=clock.now, paused_by="ann", paused_why="for now"),
    ]


def test_ready_runs_of_tasks_that_nobody_knows_are_counted(store: Store) -> None:
    put_many(store, 2, task="new", queue="b")
    put(store, task="new", queue="a")
    put(store, task="known")
    put(store, task="later", delay_ms=1_000)

    assert store.run(unknown_tasks, ["known"]) == [("a", "new", 1), ("b", "new", 2)]
    assert store.run(unknown_tasks, []) == [
        ("a", "new", 1),
        ("b", "new", 2),
        ("default", "known", 1),
    ]
    assert store.run(unknown_tasks, ["known", "new"]) == []


# -- what maintenance sends wakeups for ----------------------------------------------------------


def test_queues_with_ready_runs_that_are_not_paused_are_open(store: Store) -> None:
    assert store.run(open_queues) == []
    for name in ("c", "a", "paused", "b"):
        put_many(store, 2, queue=name)
    put(store, queue="later", delay_ms=1_000)
    a_claimed(store, queue="busy")
    store.run(pause_queue, "paused", by="ann", why="")

    assert sorted(store.run(open_queues)) == ["a", "b", "c"]


def test_the_first_ready_runs_are_named_and_counted(store: Store, clock: ManualClock) -> None:
    low = put(store, priority=1)
    clock.advance(1)
    put(store, queue="other")
    high = put(store, priority=99, task="z")
    clock.advance(1)
    new = put(store, priority=1)
    put(store, delay_ms=1_000)

    assert store.run(ready_to_top_up, "default", 2) == (3, [high, low])
    assert store.run(ready_to_top_up, "default", 9) == (3, [high, low, new])
    assert store.run(ready_to_top_up, "empty", 9) == (0, [])


def test_ready_runs_are_counted_up_to_1000(store: Store) -> None:
    for _ in range(2):
        store.run(enqueue, [a_run() for _ in range(550)], reach=reach)

    count, first = store.run(ready_to_top_up, "default", 100)

    assert (count, len(first)) == (1_000, 100)


def test_ready_runs_are_paged_in_the_order_of_their_index(store: Store, clock: ManualClock) -> None:
    a, b = put_many(store, 3, task="a"), put_many(store, 4, task="b")
    put(store, task="a", queue="other")
    scheduled = put(store, task="a", delay_ms=1)
    pages, after = [], None
    while True:
        page = store.run(ready_page, "default", after, 3)
        pages.append(page.ids)
        after = page.after
        if after is None:
            break

    assert pages == [a, b[:3], b[3:]]
    clock.advance(1)
    promoted(store)
    take(store, *a, tasks=["a"])
    assert store.run(ready_page, "default", None, 9).ids == [scheduled, *b]


def test_pages_lose_and_double_no_run_whatever_its_priority_and_age(
    store: Store, clock: ManualClock
) -> None:
    ids = []
    for n in range(24):
        ids.append(put(store, task="ab"[n % 2], priority=(0, 50, 100)[n % 3]))
        clock.advance(n % 4)
    found: list[RunId] = []
    after = None
    while True:
        page = store.run(ready_page, "default", after, 5)
        found += page.ids
        after = page.after
        if after is None:
            break

    assert len(found) == 24
    assert set(found) == set(ids)


def test_what_sleeps_is_in_no_page(store: Store) -> None:
    end(store, a_claimed(store), SLEEP)

    assert store.run(ready_page, "default", None, 9).ids == []
