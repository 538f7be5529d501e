"""Looks at a queue's head that leave out what earlier ones have passed, and lose nothing (case 15).

On SQLite no look has anything to leave out: the same runs are found from the very head.
"""

from __future__ import annotations

import pytest
from sqlalchemy import text

from tests.store.acting import (
    HAND_BACK,
    LEASE_MS,
    QUEUE,
    RETRY_NOW,
    TASK,
    end,
    ids_of,
    promoted,
    put,
    put_many,
    recovered,
    take,
)
from workhorse.domain.ids import RunId
from workhorse.domain.outcomes import Settlement
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.lifecycle.cursors import SLOW_COMMIT_US, Head
from workhorse.store.lifecycle.picking import PAGE
from workhorse.store.operators.operating import pause_queue, resume_queue


def head_of(store: Store, free: int = 1, cursor: Head | None = None) -> Head:
    """Take some runs; return where a look at the head may begin then."""
    head = take(store, scan=True, free=free, cursor=cursor).head
    assert head is not None
    return head


def test_a_short_look_finds_what_was_left_and_what_came_since(
    postgresql_store: Store, clock: ManualClock
) -> None:
    store = postgresql_store
    put(store)
    clock.advance(10)
    second = put(store)
    head = head_of(store)
    clock.advance(5_000)
    third = put(store)

    assert ids_of(take(store, scan=True, cursor=head)) == [second, third]


def test_a_short_look_finds_what_is_more_or_less_urgent(
    postgresql_store: Store, clock: ManualClock
) -> None:
    store = postgresql_store
    less = put(store, priority=10)
    put(store, priority=50)
    head = head_of(store)
    clock.advance(5_000)
    more, same = put(store, priority=90), put(store, priority=50)

    assert {*ids_of(take(store, scan=True, cursor=head))} == {more, same, less}


def test_a_short_look_finds_the_most_urgent_before_the_next_to_it(
    postgresql_store: Store, clock: ManualClock
) -> None:
    store = postgresql_store
    put(store, priority=99)
    head = head_of(store)
    clock.advance(5_000)
    first = put(store, priority=100)

    assert ids_of(take(store, scan=True, cursor=head)) == [first]


def test_a_short_look_finds_what_lies_behind_a_page_that_was_taken_whole(
    postgresql_store: Store, clock: ManualClock
) -> None:
    store = postgresql_store
    ids = put_many(store, PAGE + 5)
    clock.advance(60_000)
    head = head_of(store, free=PAGE)

    assert ids_of(take(store, scan=True, cursor=head)) == ids[PAGE:]


def test_a_short_look_begins_at_the_first_that_was_left(
    postgresql_store: Store, clock: ManualClock
) -> None:
    """What comes late before it is left to a look at the very head."""
    store = postgresql_store
    put(store)
    clock.advance(10)
    left = put(store)
    clock.advance(60_000)
    head = head_of(store)
    clock.advance(-60_005)
    late = put(store)
    clock.advance(60_005)

    assert ids_of(take(store, scan=True, cursor=head)) == [left]
    assert ids_of(take(store, scan=True)) == [late]


@pytest.fixture
def looked(store: Store, clock: ManualClock) -> Head | None:
    """Return a head that much has been taken of, and that ends at the queue's end."""
    put_many(store, 30)
    clock.advance(60_000)
    head = take(store, scan=True, free=200).head
    assert (head is None) == (store.dialect.name == "sqlite")
    clock.advance(60_000)
    return take(store, scan=True, free=200, cursor=head).head


def found(store: Store, head: Head | None) -> list[RunId]:
    return ids_of(take(store, scan=True, free=200, cursor=head))


def test_a_late_commit_is_found_from_the_very_head(
    store: Store, clock: ManualClock, looked: Head | None
) -> None:
    """And by short looks, where it took no longer than a claim allows for."""
    at = SLOW_COMMIT_US // 1_000
    put(store)
    head = take(store, scan=True, free=200, cursor=looked).head
    clock.advance(1 - at)
    late = put(store)
    assert found(store, head) == [late]
    clock.advance(-2)
    later = put(store)
    clock.advance(60_000)

    assert found(store, head) == ([later] if head is None else [])
    assert found(store, None) == ([] if head is None else [later])


@pytest.mark.parametrize("how", [HAND_BACK, RETRY_NOW], ids=["hand back", "retry"])
def test_a_short_look_finds_what_is_ready_again(
    store: Store, clock: ManualClock, looked: Head | None, how: Settlement
) -> None:
    """Its place is that of now, not of its first time."""
    put(store)
    claim = take(store, scan=True, free=200, cursor=looked)
    clock.advance(LEASE_MS // 2)
    put(store)
    head = take(store, scan=True, free=200, cursor=claim.head).head
    end(store, claim.runs[0], how)

    assert found(store, head) == [claim.runs[0].id]


def test_a_short_look_finds_a_run_whose_worker_was_lost(
    store: Store, clock: ManualClock, looked: Head | None
) -> None:
    lost = put(store)
    claim = take(store, scan=True, free=200, cursor=looked)
    clock.advance(LEASE_MS * 2)
    put(store)
    head = take(store, scan=True, free=200, cursor=claim.head).head
    recovered(store, [lost])
    clock.advance(3_600_000)
    promoted(store, [lost])

    assert found(store, head) == [lost]


def test_a_short_look_finds_a_timer_that_is_due(
    store: Store, clock: ManualClock, looked: Head | None
) -> None:
    timer = put(store, delay_ms=1_000)
    clock.advance(60_000)
    put(store)
    head = take(store, scan=True, free=200, cursor=looked).head
    promoted(store)

    assert found(store, head) == [timer]


def test_a_short_look_finds_a_sessions_next_turn(
    store: Store, clock: ManualClock, looked: Head | None
) -> None:
    """Although earlier looks have seen it, and passed by: no place is behind it."""
    turns = put_many(store, 3, session="s")
    clock.advance(60_000)
    put_many(store, 5)
    claim = take(store, scan=True, free=200, cursor=looked)
    running = next(run for run in claim.runs if run.session)
    clock.advance(60_000)
    put_many(store, 5)
    head = take(store, scan=True, free=200, cursor=claim.head).head
    assert found(store, head) == []

    end(store, running)

    following = found(store, head)
    assert len(following) == 1
    assert {running.id, *following} < {*turns}


def test_a_short_look_finds_what_somebody_else_had_locked(
    postgresql_store: Store, clock: ManualClock
) -> None:
    """A claim that is rolled back leaves what it has locked."""
    store = postgresql_store
    locked = put(store)
    clock.advance(60_000)
    others = put_many(store, 5)
    with store.engine.begin() as other:
        table = f'"{store.schema}".live'
        sql = f"select id from {table} where id = :id for no key update"  # noqa: S608
        other.execute(text(sql), {"id": locked})
        claim = take(store, scan=True, free=200)
        assert {*ids_of(claim)} == {*others}
        other.rollback()

    assert found(store, claim.head) == [locked]


def test_a_short_look_finds_what_a_paused_queue_held(
    store: Store, clock: ManualClock, looked: Head | None
) -> None:
    held = put(store)
    store.run(pause_queue, QUEUE, by="ops", why="a test")
    clock.advance(60_000)
    head = take(store, scan=True, free=200, cursor=looked).head or looked
    store.run(resume_queue, QUEUE, by="ops", why="a test")

    assert found(store, head) == [held]


def test_a_short_look_finds_what_is_left_beside_named_runs(
    store: Store, clock: ManualClock, looked: Head | None
) -> None:
    first = put(store)
    clock.advance(10)
    second = put(store)
    clock.advance(60_000)
    head = take(store, second, scan=True, free=1, cursor=looked).head

    assert found(store, head) == [first]


def test_slots_that_end_leave_the_rest_to_the_next_short_look(
    postgresql_store: Store, clock: ManualClock
) -> None:
    store = postgresql_store
    ids = put_many(store, 30)
    clock.advance(60_000)
    head, taken = None, []
    for _ in range(3):
        claim = take(store, scan=True, free=10, cursor=head)
        taken += ids_of(claim)
        head = claim.head
        assert head is not None

    assert sorted(taken) == sorted(ids)


def test_a_look_that_named_ids_alone_moves_nothing(postgresql_store: Store) -> None:
    run_id = put(postgresql_store)

    assert take(postgresql_store, run_id, scan=False).head is None


def test_a_page_of_a_sweep_moves_nothing(postgresql_store: Store) -> None:
    store = postgresql_store
    put_many(store, 201)
    first = take(store, scan=True, free=1)
    assert first.cursor is not None

    assert take(store, scan=True, free=1, cursor=first.cursor).head is None


def test_there_are_no_more_than_a_few_places(postgresql_store: Store, clock: ManualClock) -> None:
    store = postgresql_store
    for priority in range(20):
        put(store, priority=priority)
    clock.advance(5_000)

    head = head_of(store, free=200)

    assert len(head.places) == 8
    late = [put(store, priority=priority) for priority in range(20)]
    assert {*ids_of(take(store, scan=True, cursor=head))} == {*late}


def test_places_are_kept_where_runs_are_taken_now(
    postgresql_store: Store, clock: ManualClock
) -> None:
    store = postgresql_store
    for priority in range(8):
        put(store, priority=priority)
    clock.advance(5_000)
    before = head_of(store, free=200)
    put(store, priority=90)
    clock.advance(5_000)

    head = head_of(store, cursor=before)

    assert [place.rank for place in head.places][:1] == [10]
    assert {place.rank for place in head.places[1:]} < {place.rank for place in before.places}


def test_sqlite_has_no_places(sqlite_store: Store) -> None:
    put(sqlite_store)

    claim = take(sqlite_store, scan=True, tasks=[TASK])

    assert (len(claim.runs), claim.head) == (1, None)
    end(sqlite_store, claim.runs[0])
