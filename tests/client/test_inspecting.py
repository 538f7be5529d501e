"""Operators' looks into durable runs: checked at the call, paged, exported whole; reruns."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.client.ends import lease_run, pass_boundaries
from workhorse.app import Workhorse
from workhorse.domain.boundaries import BoundaryKind, NewBoundary
from workhorse.domain.hints import no_reach
from workhorse.domain.ids import RunId, new_run_id
from workhorse.domain.outcomes import Finish
from workhorse.domain.recording import NewProgress
from workhorse.domain.runs import Lease, RunState
from workhorse.errors import (
    BoundaryNotFoundError,
    ConfigurationError,
    InvalidNameError,
    RunNotFoundError,
)
from workhorse.handlers.tasks import Task
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.durable.boundaries import write_progress
from workhorse.store.lifecycle.settling import Entry, settle

SUCCEEDED = Finish(RunState.SUCCEEDED, result="2")


def durable(store: Store, task: Task[Any, Any], payload: Any = 1) -> tuple[RunId, Lease]:
    """A run under a lease with two checkpoints, a timer and a human wait."""
    run_id = task.enqueue(payload).id
    lease = lease_run(store, run_id)
    pass_boundaries(
        store,
        lease,
        NewBoundary(
            name="charge",
            kind=BoundaryKind.CHECKPOINT,
            seq=1,
            value='{"x":1.0,"é":null}',
            fingerprint="f",
        ),
        NewBoundary(name="nap", kind=BoundaryKind.TIMER, seq=2, delay_ms=1_500),
        NewBoundary(name="none", kind=BoundaryKind.CHECKPOINT, seq=3, value="null"),
        NewBoundary(name="approve", kind=BoundaryKind.HUMAN, seq=4, detail='{"sum":7}'),
    )
    return run_id, lease


def test_checkpoints_and_waits_are_listed(
    app: Workhorse, store: Store, double: Task[int, int]
) -> None:
    run_id, _ = durable(store, double)
    admin = app.admin

    first = admin.list_checkpoints(run_id, limit=1)
    rest = admin.list_checkpoints(run_id, after=first[-1].name)
    waits = admin.list_waits(queue="default", limit=1)
    more = admin.list_waits(run_id.upper(), after=waits[-1].cursor)

    assert [(each.name, each.value) for each in first + rest] == [
        ("charge", '{"x":1.0,"é":null}'),
        ("none", "null"),
    ]
    assert [(each.kind, each.name, each.context) for each in waits + more] == [
        ("human", "approve", '{"sum":7}'),
        ("timer", "nap", None),
    ]
    assert admin.list_waits(kind="human") == waits
    assert admin.list_waits(kind=BoundaryKind.SIGNAL) == []


def test_a_timeline_is_told_in_pages(app: Workhorse, store: Store, double: Task[int, int]) -> None:
    run_id, _ = durable(store, double)
    app.complete_human_wait(run_id, "approve", "secret", by="ann", why="fine")

    first = app.admin.timeline(run_id, limit=4)
    rest = app.admin.timeline(run_id, after=first[-1].cursor)

    assert [each.what for each in first] == ["created", "started", "boundary", "boundary"]
    assert [(each.what, each.name, each.by) for each in rest] == [
        ("boundary", "none", None),
        ("boundary", "approve", None),
        ("delivery", "approve", "ann"),
        ("act", "decide", "ann"),
    ]
    assert "secret" not in repr(first + rest)


def test_a_run_is_exported_whole_and_as_json_can_carry_it(
    app: Workhorse, store: Store, clock: ManualClock
) -> None:
    """Null is a value; what is not there is left out."""

    @app.task("sell", queue="shop")
    def sell(order: dict[str, Any]) -> None:
        pass

    at = clock.now
    run_id, _ = durable(store, sell, {"n": 2**70, "x": 1.0})
    app.complete_human_wait(run_id, "approve", None, by="ann", why="secret why")
    app.send_signal(run_id, "early", [1])

    document = app.admin.export(run_id)

    made = at.isoformat(timespec="microseconds").replace("+00:00", "Z")
    nap = (at + timedelta(milliseconds=1_500)).isoformat(timespec="microseconds")
    assert json.loads(json.dumps(document)) == document
    assert document["workhorse_export"] == 1
    assert document["payload"] == {"n": 2**70, "x": 1.0}
    assert document["run"] == {
        "id": run_id,
        "task": "sell",
        "queue": "shop",
        "state": "running",
        "attempt": 1,
        "created_at": made,
        "started_at": made,
    }
    assert document["boundaries"] == [
        {
            "seq": 1,
            "name": "charge",
            "kind": "checkpoint",
            "fingerprint": "f",
            "created_at": made,
            "value": {"x": 1.0, "é": None},
        },
        {
            "seq": 2,
            "name": "nap",
            "kind": "timer",
            "wake_at": nap.replace("+00:00", "Z"),
            "created_at": made,
        },
        {"seq": 3, "name": "none", "kind": "checkpoint", "created_at": made, "value": None},
        {"seq": 4, "name": "approve", "kind": "human", "created_at": made, "detail": {"sum": 7}},
    ]
    assert type(document["boundaries"][0]["value"]["x"]) is float
    delivery = {"state": "value", "at": made}
    assert document["deliveries"] == [
        {"inbox": 1, "kind": "human", "name": "approve", **delivery, "value": None},
        {"inbox": 2, "kind": "signal", "name": "early", **delivery, "value": [1]},
    ]


def test_a_rerun_takes_over_all_unless_it_is_told_otherwise(
    app: Workhorse, store: Store, double: Task[int, int]
) -> None:
    run_id, lease = durable(store, double)
    store.run(settle, [Entry(lease, SUCCEEDED)], reach=no_reach)
    admin = app.admin

    def taken(*boundaries: str) -> list[str]:
        again = admin.rerun(run_id, *boundaries, by="ann")
        return [each["name"] for each in admin.export(again.id)["boundaries"]]

    assert taken() == taken("all") == ["charge", "nap", "none", "approve"]
    assert taken("none") == []
    assert taken("nap") == ["charge", "nap"]
    with pytest.raises(BoundaryNotFoundError, match="'charge', 'nap', 'none', 'approve'"):
        taken("chrge")
    with pytest.raises(InvalidNameError, match="boundary has 0 characters"):
        taken("")


def test_a_run_shows_its_progress(app: Workhorse, store: Store, double: Task[int, int]) -> None:
    run_id, lease = durable(store, double)
    assert app.admin.show(run_id).progress is None
    store.run(write_progress, [NewProgress(lease, '{"done":3}')])

    view = app.admin.show(run_id)

    assert (view.progress, view.parent_id) == ('{"done":3}', None)


def test_a_run_that_is_not_there_is_named(app: Workhorse) -> None:
    missing = new_run_id()
    admin = app.admin
    calls: list[Callable[[], object]] = [
        lambda: admin.list_checkpoints(missing),
        lambda: admin.list_waits(missing),
        lambda: admin.timeline(missing),
        lambda: admin.export(missing),
    ]
    for call in calls:
        with pytest.raises(RunNotFoundError, match=missing):
            call()


@pytest.mark.parametrize(
    ("said", "error", "message"),
    [
        ({"limit": 0}, ConfigurationError, "limit is 0; it must be 1 to 1,000"),
        ({"limit": 1_001}, ConfigurationError, "limit is 1001"),
        ({"kind": "checkpoint"}, ConfigurationError, "child, human, signal, timer, token"),
        ({"kind": 7}, ConfigurationError, "kind 7 is no kind of wait"),
        ({"queue": "A B"}, InvalidNameError, "queue"),
        ({"after": "x"}, ConfigurationError, "no place in a list of waits"),
        ({"after": "x:y"}, InvalidNameError, "is not a UUID"),
        ({"run_id": "x"}, InvalidNameError, "is not a UUID"),
    ],
)
def test_a_look_that_cannot_be_meant_is_refused(
    app: Workhorse, said: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        app.admin.list_waits(**said)
