"""What an examination asks of the store: runs that somebody could take, and for how long."""

from __future__ import annotations

from tests.store.acting import SLEEP, WAIT, a_claimed, end, put
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.fleet.examining import Runnable, read_clock, runnable
from workhorse.store.operators.operating import pause_queue


def _counted(store: Store, *known: str) -> dict[str, int]:
    return {each.queue: each.runs for each in store.read(runnable, known)}


def test_what_could_be_claimed_is_told_for_each_queue(store: Store, clock: ManualClock) -> None:
    first = clock.now
    put(store, queue="late")
    clock.advance(1_000)
    second = clock.now
    put(store, queue="early")
    put(store, queue="early", task="another")
    clock.advance(2_000)
    put(store, queue="early")

    assert store.read(runnable, None) == [
        Runnable("early", 3, second, 2_000),
        Runnable("late", 1, first, 3_000),
    ]


def test_what_nobody_could_claim_is_left_out(store: Store, clock: ManualClock) -> None:
    """Whoever runs, sleeps, waits or waits for its turn, and what a paused queue holds."""
    a_claimed(store, session="s")
    put(store, session="s")
    put(store, delay_ms=60_000)
    for settlement in (SLEEP, WAIT):
        end(store, a_claimed(store), settlement)
    put(store, queue="paused")
    store.run(pause_queue, "paused", by="ann", why="")
    assert store.read(runnable, None) == []

    put(store)

    assert [(each.queue, each.runs) for each in store.read(runnable, None)] == [("default", 1)]


def test_runs_of_the_named_tasks_alone_can_be_asked_for(store: Store) -> None:
    for task in ("a", "a", "b", "c"):
        put(store, task=task)

    assert _counted(store, "a", "c") == {"default": 3}
    assert _counted(store, "b", "nobody's") == {"default": 1}
    assert _counted(store) == {}


def test_the_time_is_the_databases(store: Store, clock: ManualClock) -> None:
    assert store.read(read_clock) == clock.now
