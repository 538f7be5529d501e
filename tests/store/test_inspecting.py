"""What operators look at in a durable run: checkpoints, open waits; paged, and in order."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.store.acting import SUCCEED, a_claimed, end, lease_of, put, reach, take_one
from tests.store.passing import passed, received
from workhorse.domain.boundaries import BoundaryKind, DeliveryState, NewBoundary
from workhorse.domain.ids import RunId, new_run_id
from workhorse.domain.recording import Record
from workhorse.domain.runs import RunState
from workhorse.errors import BoundaryNotFoundError, RunNotFoundError
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.durable.boundaries import record
from workhorse.store.operators.inspecting import (
    WaitView,
    list_checkpoints,
    list_waits,
    read_boundaries,
    read_deliveries,
)

CHILD, HUMAN, SIGNAL, TIMER, TOKEN = (
    BoundaryKind.CHILD,
    BoundaryKind.HUMAN,
    BoundaryKind.SIGNAL,
    BoundaryKind.TIMER,
    BoundaryKind.TOKEN,
)


def _named(waits: list[WaitView]) -> list[tuple[RunId, str]]:
    return [(wait.run_id, wait.name) for wait in waits]


# -- checkpoints ---------------------------------------------------------------------------------


def test_checkpoints_are_shown_in_the_order_of_the_run(store: Store, clock: ManualClock) -> None:
    run = a_claimed(store)
    passed(store, run, "b", value='{"é":1}', fingerprint="f")
    clock.advance(1_000)
    passed(store, run, "nap", TIMER, delay_ms=5)
    passed(store, run, "a", value="2")

    first, second = store.run(list_checkpoints, run.id)

    assert (first.name, second.name) == ("b", "a")
    assert (first.seq, first.value, first.size_bytes) == (1, '{"é":1}', 8)
    assert (first.fingerprint, first.fence, second.fingerprint) == ("f", 1, None)
    assert second.created_at - first.created_at == timedelta(seconds=1)


def test_checkpoints_come_in_pages(store: Store) -> None:
    run = a_claimed(store)
    names = [passed(store, run, f"step {at % 3}-{at}") for at in range(7)]
    other = a_claimed(store)
    for name in reversed(names):  # at other places in another run
        passed(store, other, name)

    pages: list[list[str]] = []
    after = ""
    while page := store.run(list_checkpoints, run.id, limit=3, after=after):
        pages.append([each.name for each in page])
        after = page[-1].name

    assert pages == [names[:3], names[3:6], names[6:]]


def test_a_page_behind_a_name_that_is_not_there_is_refused(store: Store) -> None:
    run = a_claimed(store)
    passed(store, run, "charge")
    passed(store, run, "ship")

    with pytest.raises(BoundaryNotFoundError, match="no boundary 'chrge'.*'charge', 'ship'"):
        store.run(list_checkpoints, run.id, after="chrge")
    assert store.run(list_checkpoints, run.id, after="ship") == []


def test_no_more_names_are_listed_than_anybody_reads(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workhorse.store.operators.inspecting._MOST_NAMED", 2)
    run = a_claimed(store)
    passed(store, run, "a")
    passed(store, run, "b")
    with pytest.raises(BoundaryNotFoundError, match="'a', 'b'$"):
        store.run(list_checkpoints, run.id, after="x")

    passed(store, run, "c")

    with pytest.raises(BoundaryNotFoundError, match="'a', 'b', ...$"):
        store.run(list_checkpoints, run.id, after="x")


def test_a_run_without_checkpoints_has_none_and_no_run_is_an_error(store: Store) -> None:
    assert store.run(list_checkpoints, put(store)) == []
    missing = new_run_id()
    with pytest.raises(RunNotFoundError, match=missing):
        store.run(list_checkpoints, missing)
    with pytest.raises(RunNotFoundError, match=missing):
        store.run(list_waits, run_id=missing)


# -- waits ---------------------------------------------------------------------------------------


def test_an_open_wait_says_what_it_waits_for(store: Store, clock: ManualClock) -> None:
    run = a_claimed(store, queue="q", task="t")
    since = clock.now
    child = new_run_id()
    passed(store, run, "approve", HUMAN, detail='{"sum":7}', delay_ms=60_000)
    passed(store, run, "label", CHILD, detail=f'"{child}"')
    passed(store, run, "paid", TOKEN, detail='"secret reference"')

    approve, label, paid = store.run(list_waits)

    assert (approve.run_id, approve.task, approve.queue) == (run.id, "t", "q")
    assert (approve.kind, approve.name, approve.state) == (HUMAN, "approve", RunState.RUNNING)
    assert (approve.since, approve.due_at) == (since, since + timedelta(minutes=1))
    assert (approve.context, approve.child) == ('{"sum":7}', None)
    assert (label.context, label.child, label.due_at) == (None, child, None)
    assert (paid.context, paid.child) == (None, None)


@pytest.mark.parametrize("state", list(DeliveryState))
def test_what_is_settled_is_not_open(store: Store, state: DeliveryState) -> None:
    run = a_claimed(store)
    passed(store, run, "paid", SIGNAL)
    passed(store, run, "pay", HUMAN)
    received(store, run.id, "paid", state=state)
    received(store, run.id, "pay", SIGNAL)  # of another kind, so not for that wait
    received(store, run.id, "early", SIGNAL)  # for a wait that has not come yet

    assert _named(store.run(list_waits)) == [(run.id, "pay")]


def test_a_timer_is_open_until_its_time_unless_it_was_closed(
    store: Store, clock: ManualClock
) -> None:
    run = a_claimed(store)
    passed(store, run, "nap", TIMER, delay_ms=1_000)
    passed(store, run, "rest", TIMER, delay_ms=2_000)
    passed(store, run, "while", TIMER, delay_ms=3_000)
    received(store, run.id, "rest", TIMER, state=DeliveryState.CLOSED)
    assert _named(store.run(list_waits)) == [(run.id, "nap"), (run.id, "while")]

    clock.advance(1_000)
    assert _named(store.run(list_waits, kind=TIMER)) == [(run.id, "while")]


def test_the_waits_of_a_run_that_has_ended_are_not_open(store: Store) -> None:
    run = a_claimed(store)
    passed(store, run, "paid", SIGNAL)
    end(store, run, SUCCEED)

    assert store.run(list_waits) == store.run(list_waits, run_id=run.id) == []


def test_waits_are_found_by_run_queue_and_kind(store: Store) -> None:
    one, other = a_claimed(store, queue="a"), a_claimed(store, queue="b")
    for run in (one, other):
        passed(store, run, "approve", HUMAN)
        passed(store, run, "paid", SIGNAL)

    assert _named(store.run(list_waits, run_id=one.id)) == [
        (one.id, "approve"),
        (one.id, "paid"),
    ]
    assert _named(store.run(list_waits, queue="b", kind=SIGNAL)) == [(other.id, "paid")]
    assert store.run(list_waits, run_id=one.id, queue="b") == []
    assert store.run(list_waits, kind=CHILD) == []


def test_waits_come_in_pages_that_end_within_a_run(store: Store) -> None:
    wanted = []
    for _ in range(3):
        run = a_claimed(store)
        wanted += [(run.id, passed(store, run, f"wait {at}", SIGNAL)) for at in range(3)]

    pages = []
    after = None
    while page := store.run(list_waits, limit=2, after=after):
        pages.append(_named(page))
        after = (page[-1].run_id, page[-1].name)
        assert page[-1].cursor == f"{after[0]}:{after[1]}"

    assert [wait for page in pages for wait in page] == wanted
    assert [len(page) for page in pages] == [2, 2, 2, 2, 1]


# -- whole histories -----------------------------------------------------------------------------


def test_a_history_is_read_whole_in_bounded_reads(
    store: Store, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    monkeypatch.setattr("workhorse.store.operators.inspecting.READ_AT_ONCE", 2)
    run = a_claimed(store)
    wake_at = clock.now + timedelta(days=1)
    passed(store, run, "z", value="1", fingerprint="f")
    passed(store, run, "until", TIMER, wake_at=wake_at)
    passed(store, run, "paid", SIGNAL, detail="2")
    for at in range(3):
        received(store, run.id, f"signal {2 - at}", value=str(at))

    boundaries = store.run(read_boundaries, run.id)
    deliveries = store.run(read_deliveries, run.id)

    assert [(each.seq, each.name, each.kind) for each in boundaries] == [
        (1, "z", "checkpoint"),
        (2, "until", "timer"),
        (3, "paid", "signal"),
    ]
    assert (boundaries[0].value, boundaries[0].fingerprint) == ("1", "f")
    assert (boundaries[1].wake_at, boundaries[1].absolute) == (wake_at, True)
    assert (boundaries[2].detail, boundaries[2].absolute) == ("2", False)
    assert [(each.inbox, each.name, each.value) for each in deliveries] == [
        (1, "signal 2", "0"),
        (2, "signal 1", "1"),
        (3, "signal 0", "2"),
    ]


def test_waits_that_were_closed_together_are_all_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have one number among them."""
    monkeypatch.setattr("workhorse.store.operators.inspecting.READ_AT_ONCE", 2)
    run = a_claimed(store)
    received(store, run.id, "first", value="1")
    closes = tuple((kind, f"{at}") for at in range(5) for kind in (SIGNAL, HUMAN))
    choice = NewBoundary(name="choice", kind=BoundaryKind.ANY, seq=1)
    closing = Record(lease=lease_of(run), boundary=choice, closes=closes)
    store.run(record, [closing], reach=reach)

    deliveries = store.run(read_deliveries, run.id)

    assert {(each.kind, each.name) for each in deliveries} == {*closes, (SIGNAL, "first")}
    assert len(deliveries) == 11


def test_another_runs_history_is_its_own(store: Store) -> None:
    one, other = a_claimed(store), a_claimed(store)
    passed(store, one, "a", SIGNAL)
    received(store, one.id, "a")

    assert store.run(read_boundaries, other.id) == []
    assert store.run(read_deliveries, other.id) == []
    assert store.run(list_waits) == []
    assert take_one(store, put(store)).id
