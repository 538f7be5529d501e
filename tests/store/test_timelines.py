"""What happened to a run, in order, and in pages."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.store.acting import FAIL, RETRY, SUCCEED, a_claimed, end, promoted, put, take_one
from tests.store.passing import passed, received
from workhorse.domain.boundaries import BoundaryKind, DeliveryState
from workhorse.domain.ids import RunId, new_run_id
from workhorse.errors import ConfigurationError, RunNotFoundError
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.operators.operating import cancel
from workhorse.store.operators.timelines import TimelineEntry, timeline


def _lived(store: Store, clock: ManualClock) -> RunId:
    """Live through one of each, a second apart."""

    def second() -> None:
        clock.advance(1_000)

    run_id = put(store)
    second()
    first = take_one(store, run_id)
    second()
    passed(store, first, "charge", value='"card 4000"')
    second()
    end(store, first, RETRY)
    clock.advance(5_000)
    promoted(store)
    again = take_one(store, run_id)
    passed(store, again, "approve", BoundaryKind.HUMAN, detail='"context"', delay_ms=60_000)
    second()
    received(
        store, run_id, "approve", BoundaryKind.HUMAN, value='"yes"', by="ann", why="looks good"
    )
    received(store, run_id, "late", state=DeliveryState.CLOSED)
    second()
    store.run(cancel, run_id, by="bob", why="too late", request_id="r")
    second()
    end(store, again, SUCCEED)
    return run_id


def _told(entries: list[TimelineEntry]) -> list[tuple[Any, ...]]:
    return [(each.what, each.name, each.kind, each.state) for each in entries]


WHOLE = [
    ("created", None, None, None),
    ("started", None, None, None),
    ("boundary", "charge", "checkpoint", None),
    ("attempt", None, None, None),
    ("boundary", "approve", "human", None),
    ("delivery", "approve", "human", "value"),
    ("delivery", "late", "signal", "closed"),
    ("act", "cancel", None, None),
    ("ended", None, None, "cancelled"),
]


def test_all_that_happened_is_told_in_order(store: Store, clock: ManualClock) -> None:
    _lived(store, clock)  # another run, of which nothing is told
    begun = clock.now
    entries = store.run(timeline, _lived(store, clock))

    assert _told(entries) == WHOLE
    ends = [(each.at - begun).total_seconds() for each in entries]
    assert ends == sorted(ends) == [0, 1, 2, 3, 8, 9, 9, 10, 11]
    _, _, charge, attempt, approve, delivery, _, act, ended = entries
    assert (charge.number, charge.fence, charge.size_bytes) == (1, 1, 11)
    assert (attempt.number, attempt.fence, attempt.reason) == (1, 1, "error")
    assert attempt.error_type == "ValueError"
    assert (approve.fence, approve.due_at) == (2, approve.at + timedelta(minutes=1))
    assert (delivery.number, delivery.by, delivery.why) == (1, "ann", "looks good")
    assert (act.by, act.why, act.answer) == ("bob", "too late", "asked")
    assert (ended.number, ended.fence, ended.reason) == (2, 2, "cancelled")
    assert not any(secret in repr(entries) for secret in ("card", "yes", "context"))


@pytest.mark.parametrize("limit", [1, 2, 4])
def test_pages_leave_out_nothing_and_repeat_nothing(
    store: Store, clock: ManualClock, limit: int
) -> None:
    run_id = _lived(store, clock)
    entries: list[TimelineEntry] = []
    after = None
    while page := store.run(timeline, run_id, limit=limit, after=after):
        assert len(page) <= limit
        entries += page
        after = page[-1].cursor

    assert _told(entries) == WHOLE


def test_what_happened_at_one_instant_is_told_in_one_order(store: Store) -> None:
    run = a_claimed(store)
    names = [passed(store, run, f"step: {9 - at}") for at in range(5)]
    received(store, run.id, "b:2:0")
    received(store, run.id, "a:1:0")
    end(store, run, FAIL)

    entries: list[TimelineEntry] = []
    while page := store.run(
        timeline, run.id, limit=1, after=entries[-1].cursor if entries else None
    ):
        entries += page

    assert [each.name for each in entries if each.what == "boundary"] == names
    assert [each.name for each in entries if each.what == "delivery"] == ["b:2:0", "a:1:0"]
    assert [each.what for each in entries][:2] == ["created", "started"]
    assert [each.what for each in entries][-2:] == ["attempt", "ended"]


def test_a_run_that_only_waits_its_turn_was_created_and_no_more(store: Store) -> None:
    assert [each.what for each in store.run(timeline, put(store))] == ["created"]


def test_a_run_that_has_not_ended_was_started(store: Store, clock: ManualClock) -> None:
    run_id = put(store)
    clock.advance(1_000)
    take_one(store, run_id)

    created, started = store.run(timeline, run_id)

    assert (created.what, started.what) == ("created", "started")
    assert (created.at, started.at) == (clock.now - timedelta(seconds=1), clock.now)


def test_a_run_that_is_not_there_is_named(store: Store) -> None:
    missing = new_run_id()

    with pytest.raises(RunNotFoundError, match=missing):
        store.run(timeline, missing)


@pytest.mark.parametrize(
    "cursor", ["", "x", "1:2:3", "1:2:x:", "-1:2:3:", "1::3:", "٣:1:1:", f"{2**62}:0:0:"]
)
def test_a_cursor_that_is_none_is_refused(store: Store, cursor: str) -> None:
    with pytest.raises(ConfigurationError, match="no place in a timeline"):
        store.run(timeline, put(store), after=cursor)
