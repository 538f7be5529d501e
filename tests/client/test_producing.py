"""Enqueue outside of a caller's transaction: one transaction, one send, and what fails where."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from tests.client.lanes import RecordingLane
from workhorse.app import Workhorse
from workhorse.client.background import Background
from workhorse.domain.runs import RunState
from workhorse.errors import IdempotencyConflictError, StoreUnavailableError
from workhorse.handlers.tasks import Task
from workhorse.ports import SendReport
from workhorse.store.base.database import ManualClock, Store
from workhorse.telemetry import Metric


def test_an_enqueue_is_one_commit_and_then_one_send(
    app: Workhorse, double: Task[int, int], lane: RecordingLane
) -> None:
    """The run is there before anybody is told of it, and nothing is written after that."""
    double.enqueue(0)
    lane.sent.clear()
    commits: list[int] = []
    event.listen(app.store.engine, "commit", lambda _connection: commits.append(len(lane.sent)))

    run = double.enqueue(1, tags=["a"], session="s")

    assert commits == [0]
    assert [(each.run_id, each.seen, each.outgoing.delay_ms) for each in lane.sent] == [
        (run.id, True, 0)
    ]
    assert (run.created, run.queue, run.view().state) == (True, "default", RunState.READY)
    assert app.counters.get(Metric.WAKEUPS_SENT) == 2


def test_a_lane_that_fails_costs_nothing_but_time(
    app: Workhorse, double: Task[int, int], lane: RecordingLane
) -> None:
    """Enqueue raises for the store, never for the lane; what was not sent is counted."""
    lane.error = RuntimeError("no broker")
    first = double.enqueue(1)
    second = asyncio.run(double.enqueue_async(2))
    lane.error = None
    lane.report = lambda count: SendReport(sent=0, failed=count, error="throttled")
    third = double.enqueue(3)

    assert {run.view().state for run in (first, second, third)} == {RunState.READY}
    assert app.counters.get(Metric.WAKEUPS_NOT_SENT) == 3
    assert app.counters.get(Metric.WAKEUPS_SENT) == 0


@pytest.mark.parametrize(
    ("delay", "reach", "sent"),
    [
        (timedelta(seconds=10), 900_000, [10_000]),
        (timedelta(milliseconds=1), 900_000, [1]),
        (timedelta(minutes=15), 900_000, [900_000]),
        (timedelta(minutes=15, milliseconds=1), 900_000, []),
        (timedelta(seconds=10), 0, []),
        (timedelta(0), 0, [0]),
    ],
    ids=str,
)
def test_a_delay_travels_with_the_wakeup_where_the_lane_reaches_so_far(
    delay: timedelta, reach: int, sent: list[int], double: Task[int, int], lane: RecordingLane
) -> None:
    """What lies further is left to maintenance."""
    lane.reach = reach
    double.enqueue(1, delay=delay)

    assert [each.outgoing.delay_ms for each in lane.sent] == sent


def test_a_run_that_its_key_led_to_is_not_woken_again(
    double: Task[int, int], lane: RecordingLane
) -> None:
    """The first enqueue answered for it; its queue is the owner's, whatever was asked for."""
    first = double.enqueue(1, key="k", queue="one")
    again = double.enqueue(1, key="k", queue="two")
    with pytest.raises(IdempotencyConflictError, match="belongs to run"):
        double.enqueue(2, key="k")

    assert (again.id, again.created, again.queue) == (first.id, False, "one")
    assert lane.ids == [first.id]


def test_an_insert_whose_answer_was_lost_makes_one_run(
    app: Workhorse, double: Task[int, int], lane: RecordingLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The id was drawn before, so the second try finds its own run."""
    store = app.store
    monkeypatch.setattr(store.dialect, "is_lost", lambda _error: True)
    lost: list[str] = []

    def lose(connection: Any) -> None:
        if not lost:
            lost.append("once")
            connection.connection.driver_connection.commit()
            raise OperationalError("commit", None, ConnectionError("gone"))

    event.listen(store.engine, "commit", lose)
    run = double.enqueue(1, key="k")

    assert lost
    assert run.created
    assert [view.id for view in app.admin.list_runs()] == [run.id]
    assert lane.ids == [run.id]


def test_a_store_that_does_not_answer_is_an_error_of_the_enqueue(
    double: Task[int, int], lane: RecordingLane, app: Workhorse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was accepted, so nobody is told of it."""

    def refuse(*_arguments: object, **_options: object) -> None:
        raise StoreUnavailableError("no answer")

    monkeypatch.setattr(app.store, "run", refuse)
    with pytest.raises(StoreUnavailableError):
        double.enqueue(1)
    with pytest.raises(StoreUnavailableError):
        asyncio.run(double.enqueue_async(1))

    assert lane.calls == []


def test_a_far_date_is_judged_by_the_test_clock(
    app: Workhorse, double: Task[int, int], clock: ManualClock
) -> None:
    """The coarse check of `run_at` compares with the app's time, not the host's."""
    due = clock.now + timedelta(days=364)

    assert double.enqueue(1, run_at=due).view().due_at == due
    assert app.store.manual_clock is clock


def test_context_variables_reach_the_threads(background: Background) -> None:
    """What a caller set is there for whatever the store's thread logs."""
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name")

    async def main() -> str:
        name.set("request 7")
        return await background.call(name.get)

    assert asyncio.run(main()) == "request 7"


def test_background_calls_end_with_their_errors(
    background: Background, caplog: pytest.LogCaptureFixture
) -> None:
    """To the caller who waits, and to the log where nobody does."""

    def fail() -> None:
        raise LookupError("broken")

    async def main() -> None:
        await background.call(fail)

    with pytest.raises(LookupError):
        asyncio.run(main())
    background.submit(fail)
    assert background.settle(10)
    background.close()

    assert "a call in the background failed" in caplog.text


@pytest.fixture
def background() -> Iterator[Background]:
    """Threads that end with the test."""
    background = Background()
    yield background
    background.close()


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_is_not_taken_for_a_lane_that_fails(
    end: type[BaseException], double: Task[int, int], lane: RecordingLane, store: Store
) -> None:
    """It passes, and the run is committed."""

    def interrupt(_count: int) -> SendReport:
        raise end

    lane.report = interrupt
    with pytest.raises(end):
        double.enqueue(1)

    assert len(lane.sent) == 1
    assert lane.sent[0].seen
