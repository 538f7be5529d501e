"""The rows of maintenance's steps: a fleet does each once an interval."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from tests.store.rivals import Rival
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.fleet.steps import Step, list_steps, record, take


def _take(store: Store, name: str = "recover", *, force: bool = False) -> bool:
    return store.run(take, name, 1_000, force=force)


def test_a_step_is_taken_once_an_interval(store: Store, clock: ManualClock) -> None:
    assert [_take(store), _take(store)] == [True, False]
    clock.advance(999)
    assert not _take(store)
    clock.advance(1)
    assert [_take(store), _take(store)] == [True, False]


def test_each_step_has_its_own_time(store: Store, clock: ManualClock) -> None:
    for _ in range(2):
        assert _take(store, "recover")
        assert _take(store, "promote")
        clock.advance(1_000)


def test_a_forced_step_is_done_and_moved_on(store: Store, clock: ManualClock) -> None:
    _take(store)
    clock.advance(500)

    assert [_take(store, force=True), _take(store, force=True)] == [True, True]

    clock.advance(999)
    assert not _take(store)
    clock.advance(1)
    assert _take(store)


def test_a_step_that_was_late_is_not_done_twice(store: Store, clock: ManualClock) -> None:
    _take(store)
    clock.advance(timedelta(hours=1))

    assert [_take(store), _take(store)] == [True, False]


def test_a_fleet_that_starts_at_once_does_a_step_once(store: Store) -> None:
    """Also where there is no row yet."""
    start = threading.Barrier(6)

    def look(_: int) -> list[bool]:
        mine = store.sibling(connections=1)
        try:
            start.wait(30)
            return [_take(mine, name) for name in ("recover", "promote", "top_up")]
        finally:
            mine.close()

    with ThreadPoolExecutor(6) as fleet:
        answers = list(fleet.map(look, range(6)))

    assert [sum(each) for each in zip(*answers, strict=True)] == [1, 1, 1]


def test_a_fleet_does_a_step_once_when_it_is_due_again(store: Store, clock: ManualClock) -> None:
    _take(store)
    start = threading.Barrier(6)
    stores = [store.sibling(connections=1) for _ in range(6)]

    def look(mine: Store) -> int:
        start.wait(30)
        return _take(mine)

    with ThreadPoolExecutor(6) as fleet:
        for _ in range(5):
            clock.advance(1_000)
            assert sum(fleet.map(look, stores)) == 1
    for mine in stores:
        mine.close()


def test_a_step_that_is_being_taken_is_not_waited_for(
    postgresql_store: Store, clock: ManualClock
) -> None:
    store = postgresql_store
    _take(store)
    clock.advance(1_000)
    with Rival(store) as other:
        assert other.call(take, "recover", 1_000)

        assert not store.try_once(take, "recover", 1_000)
        other.rollback()

    assert _take(store)  # who took it died before it began


def test_a_step_is_not_blocked_by_a_clock_that_was_far_ahead(
    store: Store, clock: ManualClock
) -> None:
    """It is never due later than its interval says: a time beyond that is a wrong one."""
    clock.advance(timedelta(days=3650))
    _take(store)
    clock.advance(-timedelta(days=3650))

    assert [_take(store), _take(store)] == [True, False]
    clock.advance(1_000)
    assert _take(store)


def test_a_row_says_when_its_step_last_ran_and_what_it_did(
    store: Store, clock: ManualClock
) -> None:
    start = clock.now
    _take(store, "recover")
    _take(store, "promote")
    clock.advance(20)
    store.run(record, "recover", 17)

    due = start + timedelta(seconds=1)
    assert store.run(list_steps) == [
        Step("promote", due, None, None),
        Step("recover", due, clock.now, 17),
    ]


def test_steps_of_a_new_store_were_never_done(store: Store) -> None:
    assert store.run(list_steps) == []
