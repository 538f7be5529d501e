"""Processes that beat: who is listed, as what, and for how long."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.store.acting import rows
from workhorse.domain.presence import Process, ProcessKind, ProcessState, ProcessView
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.fleet.presence import (
    Serving,
    beat,
    beat_and_look,
    leave,
    list_processes,
    prune,
)

A = Process(
    key="k-a",
    id="w-a",
    kind=ProcessKind.WORKER,
    host="ip-10-0-0-1",
    pid=1,
    version="0.1",
    build="7",
    lane="sqs",
    queues=("mail", "default"),
    slots=10,
)
B = replace(A, key="k-b", id="w-b", host="ip-10-0-0-2", build="8")


def listed(store: Store) -> list[ProcessView]:
    return store.read(list_processes)


def states(store: Store) -> dict[str, str]:
    return {each.key: each.state.value for each in listed(store)}


def test_a_beat_says_what_a_process_is(store: Store, clock: ManualClock) -> None:
    store.run(beat, A, up_ms=1_500)

    (seen,) = listed(store)
    assert seen == ProcessView(
        key="k-a",
        id="w-a",
        kind=ProcessKind.WORKER,
        state=ProcessState.LIVE,
        host="ip-10-0-0-1",
        pid=1,
        version="0.1",
        build="7",
        lane="sqs",
        queues=("mail", "default"),
        slots=10,
        every_ms=10_000,
        started_at=clock.now - timedelta(milliseconds=1_500),
        beat_at=clock.now,
        age_ms=0,
    )


def test_a_beat_moves_one_row_and_keeps_its_start(store: Store, clock: ManualClock) -> None:
    started_at = clock.now
    store.run(beat, A, up_ms=0)
    clock.advance(10_000)

    store.run(beat, A, up_ms=10_004)  # the two clocks do not go alike

    (seen,) = listed(store)
    assert (seen.started_at, seen.beat_at) == (started_at, clock.now)


def test_a_process_without_beats_is_late_and_live_again_with_the_next(
    store: Store, clock: ManualClock
) -> None:
    """Frozen and thawed, or cut off from the database for a while."""
    store.run(beat, A, up_ms=0)
    clock.advance(29_999)
    assert states(store) == {"k-a": "live"}

    clock.advance(1)
    assert states(store) == {"k-a": "late"}

    store.run(beat, A, up_ms=30_000)
    assert states(store) == {"k-a": "live"}


def test_a_process_thawed_after_an_hour_is_listed_with_the_start_it_had(
    store: Store, clock: ManualClock
) -> None:
    started_at = clock.now
    store.run(beat, A, up_ms=0)
    clock.advance(3_600_000)
    assert listed(store) == []
    assert store.run(prune).count == 1

    store.run(beat, A, up_ms=3_600_000)

    assert [each.started_at for each in listed(store)] == [started_at]


def test_two_processes_of_one_id_are_two(store: Store) -> None:
    """Started anew before the old one is gone, or two of the same configuration."""
    store.run(beat, A, up_ms=0)
    store.run(beat, replace(A, key="k-a2"), up_ms=0)

    store.run(leave, "k-a")

    assert [(each.id, each.key) for each in listed(store)] == [("w-a", "k-a2")]


@pytest.mark.parametrize("other", [replace(A, pid=2), replace(A, host="ip-10-0-0-2")])
def test_another_process_under_the_same_key_has_its_own_start(
    store: Store, clock: ManualClock, other: Process
) -> None:
    """A pass of maintenance is a process, and a minute later comes the next."""
    store.run(beat, A, up_ms=0)
    clock.advance(60_000)

    store.run(beat, other, up_ms=0)

    (seen,) = listed(store)
    assert (seen.host, seen.pid, seen.started_at) == (other.host, other.pid, clock.now)


def test_how_often_a_process_means_to_beat_says_when_it_is_late(
    store: Store, clock: ManualClock
) -> None:
    store.run(beat, replace(A, kind=ProcessKind.MAINTENANCE, every_ms=60_000), up_ms=0)

    clock.advance(179_999)
    assert states(store) == {"k-a": "live"}
    clock.advance(1)
    assert states(store) == {"k-a": "late"}


def test_a_function_that_is_not_invoked_is_not_late(store: Store, clock: ManualClock) -> None:
    store.run(beat, replace(A, kind=ProcessKind.FUNCTION), up_ms=0)

    clock.advance(40_000)

    assert states(store) == {"k-a": "idle"}


def test_a_process_that_stops_says_so_and_goes(store: Store) -> None:
    store.run(beat, A, up_ms=0, stopping=True)
    store.run(beat, B, up_ms=0)
    assert states(store) == {"k-a": "stopping", "k-b": "live"}

    store.run(leave, "k-a")
    store.run(leave, "k-a")

    assert states(store) == {"k-b": "live"}


def test_a_beat_of_a_clock_that_was_ahead_is_corrected_by_the_next(
    store: Store, clock: ManualClock
) -> None:
    """The database fails over to a host whose clock is a day behind the old one's."""
    clock.advance(timedelta(days=1))
    store.run(beat, A, up_ms=0)
    store.run(beat, B, up_ms=0)
    clock.advance(-timedelta(days=1))
    assert states(store) == {"k-a": "late", "k-b": "late"}
    assert store.run(beat_and_look, A, up_ms=0) == []

    assert states(store)["k-a"] == "live"
    assert store.run(prune).count == 1  # who does not beat again is gone
    assert states(store) == {"k-a": "live"}


# -- builds of others ----------------------------------------------------------------------------


def test_a_beat_answers_the_builds_of_other_live_workers(store: Store) -> None:
    others = [
        B,
        replace(B, key="k-b2"),
        replace(B, key="k-c", build="9", queues=("reports",)),
        replace(B, key="k-d", build=""),
        replace(B, key="k-e", build="10", kind=ProcessKind.MAINTENANCE),
        replace(B, key="k-f", build="11", kind=ProcessKind.FUNCTION),
    ]
    for other in others:
        store.run(beat, other, up_ms=0)
    store.run(beat, replace(B, key="k-g", build="12"), up_ms=0, stopping=True)

    answer = store.run(beat_and_look, A, up_ms=0)

    assert sorted(answer, key=lambda each: each.build) == [
        Serving("8", ("mail", "default")),
        Serving("9", ("reports",)),
    ]
    assert states(store)["k-a"] == "live"


@pytest.mark.parametrize("repeated", [False, True], ids=["first", "repeated"])
def test_a_worker_does_not_see_itself(store: Store, *, repeated: bool) -> None:
    if repeated:
        store.run(beat, A, up_ms=0)

    assert store.run(beat_and_look, A, up_ms=0) == []


def test_the_builds_of_those_that_are_late_do_not_count(store: Store, clock: ManualClock) -> None:
    store.run(beat, B, up_ms=0)
    clock.advance(29_999)
    assert store.run(beat_and_look, A, up_ms=0) == [Serving("8", ("mail", "default"))]

    clock.advance(1)

    assert store.run(beat_and_look, A, up_ms=0) == []


# -- growth --------------------------------------------------------------------------------------


def test_pruning_goes_page_by_page_and_leaves_who_was_heard_of(
    store: Store, clock: ManualClock
) -> None:
    for at in range(5):
        store.run(beat, replace(A, key=f"k-{at}"), up_ms=0)
    clock.advance(3_599_999)
    store.run(beat, B, up_ms=0)
    assert store.run(prune).count == 0

    clock.advance(1)

    swept = [store.run(prune, 2) for _ in range(3)]
    assert [(each.count, each.full) for each in swept] == [(2, True), (2, True), (1, False)]
    assert rows(store, "select key from {s}processes") == [("k-b",)]


def test_beats_change_no_index(postgresql_store: Store, clock: ManualClock) -> None:
    """They are updates within the row's page, which the next ones make room for again."""
    for _ in range(200):
        clock.advance(10_000)
        postgresql_store.run(beat, A, up_ms=0)

    told = """
        select pg_relation_size(oid), reloptions from pg_class
         where oid = '{s}processes'::regclass"""
    ((size, room),) = rows(postgresql_store, told)
    assert (size, room) == (8192, ["fillfactor=50"])
    indexed = """
        select attname from pg_index i
          join pg_attribute a on a.attrelid = i.indrelid and a.attnum = any(i.indkey)
         where i.indrelid = '{s}processes'::regclass"""
    assert rows(postgresql_store, indexed) == [("key",)]


def test_a_beat_that_somebody_holds_up_does_not_hold_up_pruning(
    postgresql_store: Store, clock: ManualClock
) -> None:
    postgresql_store.run(beat, A, up_ms=0)
    postgresql_store.run(beat, B, up_ms=0)
    clock.advance(3_600_000)
    with postgresql_store.engine.begin() as conn:
        conn.exec_driver_sql(
            "select 1 from workhorse.processes where key = 'k-a' for update"
        ).fetchone()
        assert postgresql_store.run(prune).count == 1

    assert [key for (key,) in rows(postgresql_store, "select key from {s}processes")] == ["k-a"]
