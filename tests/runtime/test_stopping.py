"""Starting, stopping, handing back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from datetime import timedelta
from types import SimpleNamespace as Namespace
from typing import Any

import pytest

from lanes.memory import MemoryLane
from tests.runtime.rig import Gate, Rig
from tests.support.eventually import eventually
from workhorse.domain.hints import Hint
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import MAX_HAND_BACKS, Reason, RunState
from workhorse.errors import ConfigurationError, SchemaMismatchError, WorkhorseError
from workhorse.handlers.context import AsyncContext, Context
from workhorse.handlers.signals import Stopped, StopReason
from workhorse.runtime.base.options import Shutdown
from workhorse.store.base.database import Store
from workhorse.store.base.schema import VERSION
from workhorse.telemetry import Metric


def test_a_worker_runs_what_is_there_and_what_comes(rig: Rig, kind: str) -> None:
    def plain() -> str:
        return "done"

    async def waits() -> str:
        return "done"

    rig.task("t")(plain if kind == "plain" else waits)
    before = rig.enqueue_many("t", 10)
    worker = rig.worker()
    worker.start()
    after = rig.enqueue_many("t", 10)
    rig.wake(*after)

    eventually(lambda: all(rig.state(run_id).finished for run_id in before + after))
    assert worker.stop()
    assert rig.count(Metric.RUNS_SETTLED, "succeeded") == 20


def test_a_worker_is_started_once(rig: Rig) -> None:
    worker = rig.worker()
    worker.start()
    with pytest.raises(WorkhorseError):
        worker.start()

    assert worker.stop()
    with pytest.raises(WorkhorseError):
        worker.start()


@pytest.mark.parametrize(
    ("queues", "concurrency", "poll_ms"),
    [([], 1, 50), ("default", 1, 50), (["a"], 0, 50), (["a"], 1, 0)],
)
def test_a_worker_that_cannot_work_is_refused(
    rig: Rig, queues: Any, concurrency: int, poll_ms: int
) -> None:
    with pytest.raises(ConfigurationError):
        rig.worker(queues, concurrency, poll_ms=poll_ms)


def test_a_worker_is_named_w_and_eight_hex_digits(rig: Rig) -> None:
    name = rig.worker().worker_id

    assert name.startswith("w-")
    assert len(bytes.fromhex(name[2:])) == 4


def test_the_start_line_says_what_runs_where(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "workhorse.worker")
    worker = rig.worker(["a", "b"], 7, lane_name="polling", environment="staging")

    worker.start()

    (line,) = [each.getMessage() for each in caplog.records if "slots" in each.getMessage()]
    for part in (worker.worker_id, "workhorse 0.", f"schema {VERSION}", "'staging'", "lane polling",
                 "queues a, b", "7 slots", rig.store.description):  # fmt: skip
        assert part in line


def test_a_database_without_tables_is_refused(empty_database_url: str) -> None:
    store = Store.open(empty_database_url)
    rig = Rig(store)
    try:
        worker = rig.worker()
        with pytest.raises(SchemaMismatchError):
            worker.start()
        with pytest.raises(SchemaMismatchError):
            rig.worker().drain()
    finally:
        rig.close()
        store.close()


def test_busy_is_from_the_claims_answer_to_the_settle(rig: Rig, kind: str) -> None:
    gate = Gate()

    async def waits() -> None:
        await asyncio.to_thread(gate.come)

    rig.task("t")(gate.come if kind == "plain" else waits)
    worker = rig.worker()
    worker.start()
    assert not worker.busy()
    run_id = rig.enqueue("t")
    rig.wake(run_id)
    gate.wait()

    assert worker.busy()
    gate.open()
    eventually(lambda: not worker.busy())
    assert rig.state(run_id) is RunState.SUCCEEDED


def test_a_stop_lets_runs_end_by_themselves(rig: Rig, kind: str) -> None:
    gate = Gate()
    called = threading.Event()
    seen: list[Any] = []

    def plain(ctx: Context) -> str:
        called.set()
        assert ctx.stopping.wait(20)
        seen.append((ctx.stopping.reason, bool(ctx.cancelled)))
        gate.come()
        return "by itself"

    async def waits(ctx: AsyncContext) -> str:
        called.set()
        assert await ctx.stopping.wait(20)
        seen.append((ctx.stopping.reason, bool(ctx.cancelled)))
        await asyncio.to_thread(gate.come)
        return "by itself"

    rig.task("t")(plain if kind == "plain" else waits)
    worker = rig.worker(concurrency=1)
    worker.start()
    run_id = rig.enqueue("t")
    rig.wake(run_id)
    assert called.wait(20)
    waiting = rig.enqueue("t")
    results: list[bool] = []
    stops = [
        threading.Thread(target=lambda: results.append(worker.stop(timedelta(seconds=20))))
        for _ in range(2)
    ]
    stops[0].start()
    gate.wait()
    stops[1].start()
    assert not results

    gate.open()

    for stop in stops:
        stop.join(20)
    assert results == [True, True]
    assert seen == [(StopReason.SHUTDOWN, False)]
    assert rig.view(run_id).result == '"by itself"'
    assert rig.state(waiting) is RunState.READY


def test_nothing_is_claimed_once_a_stop_has_begun(rig: Rig) -> None:
    gate = Gate()
    rig.task("t")(gate.come)
    worker = rig.worker(concurrency=4)
    worker.start()
    rig.wake(rig.enqueue("t"))
    gate.wait()
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    eventually(lambda: worker._parts.ended.is_set())

    late = rig.enqueue("t")
    rig.wake(late)
    gate.open()

    stopping.join(20)
    assert rig.state(late) is RunState.READY


def test_when_the_drain_ends_async_handlers_are_cancelled_and_handed_back(rig: Rig) -> None:
    told: list[Any] = []

    @rig.task("t")
    async def endless(ctx: AsyncContext) -> None:
        rig_gate.reached.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            told.append((ctx.cancelled.reason, ctx.stopping.reason))

    rig_gate = Gate()
    worker = rig.worker()
    worker.start()
    run_id = rig.enqueue("t")
    rig.wake(run_id)
    rig_gate.wait()
    rig.published.clear()

    assert worker.stop(0.05) is False

    assert told == [(StopReason.SHUTDOWN, StopReason.SHUTDOWN)]
    view = rig.view(run_id)
    assert (view.state, view.attempt) == (RunState.READY, 1)
    assert rig.published == [Hint(run_id, "default")]
    assert rig.count(Metric.RUNS_SETTLED, "handed_back") == 1


def test_a_handler_cleans_up_before_its_run_is_handed_back(rig: Rig) -> None:
    order: list[str] = []
    started = threading.Event()

    @rig.task("t")
    async def endless() -> None:
        started.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0.05)
            order.append("cleaned up")

    rig.enqueue("t")
    worker = rig.worker()
    settled = worker._parts.engine._writer._settled

    def note(answers: Any) -> None:
        order.append("settled")
        settled(answers)

    worker._parts.engine._writer._settled = note
    worker.start()
    assert started.wait(10)

    assert worker.stop(0) is False
    assert order == ["cleaned up", "settled"]


def test_a_handler_that_ends_itself_when_it_is_told_is_handed_back(rig: Rig, kind: str) -> None:
    """Also where a TaskGroup wraps the stop."""
    started = threading.Event()

    def plain(ctx: Context) -> None:
        started.set()
        ctx.cancelled.wait(20)
        ctx.cancelled.raise_if_set()

    async def waits(ctx: AsyncContext) -> None:
        async def part() -> None:
            started.set()
            await ctx.cancelled.wait(20)
            ctx.cancelled.raise_if_set()

        async with asyncio.TaskGroup() as group:
            group.create_task(part())

    rig.task("t")(plain if kind == "plain" else waits)
    worker = rig.worker()
    worker.start()
    run_id = rig.enqueue("t")
    rig.wake(run_id)
    assert started.wait(10)

    assert worker.stop(0) is False

    view = rig.view(run_id)
    assert (view.state, view.attempt) == (RunState.READY, 1)


@pytest.mark.parametrize("other_error", [False, True])
def test_who_swallows_what_ends_it_at_a_boundary_is_handed_back_all_the_same(
    rig: Rig, kind: str, other_error: bool
) -> None:
    """What it comes to is made without that boundary: its end would be no end."""
    started = threading.Event()

    def come_to() -> str:
        if other_error:
            raise ConnectionError("a library's own view of it")
        return "went on"

    def plain(ctx: Context) -> str:
        started.set()
        ctx.stopping.wait(20)
        with contextlib.suppress(BaseException):
            return ctx.checkpoint("charge", lambda: "charged")
        return come_to()

    async def waits(ctx: AsyncContext) -> str:
        started.set()
        await ctx.stopping.wait(20)
        with contextlib.suppress(BaseException):
            await ctx.sleep("a rest", timedelta(hours=1))
        return come_to()

    rig.task("t")(plain if kind == "plain" else waits)
    worker = rig.worker()
    worker.start()
    run_id = rig.enqueue("t")
    rig.wake(run_id)
    assert started.wait(10)

    assert worker.stop(20) is False

    view = rig.view(run_id)
    assert (view.state, view.attempt, view.result) == (RunState.READY, 1, None)


def test_an_error_after_the_stop_is_still_an_error(rig: Rig, kind: str) -> None:
    started = threading.Event()

    def plain(ctx: Context) -> None:
        started.set()
        ctx.stopping.wait(20)
        raise ValueError("of its own")

    async def waits(ctx: AsyncContext) -> None:
        started.set()
        await ctx.stopping.wait(20)
        raise ValueError("of its own")

    rig.task("t")(plain if kind == "plain" else waits)
    worker = rig.worker()
    worker.start()
    run_id = rig.enqueue("t")
    rig.wake(run_id)
    assert started.wait(10)

    assert worker.stop(20) is True

    view = rig.view(run_id)
    assert (view.state, view.attempt) == (RunState.SCHEDULED, 2)


def test_a_plain_function_that_does_not_return_is_handed_back_as_the_last_act(rig: Rig) -> None:
    gate = Gate()
    results: list[str] = []

    @rig.task("t")
    def deaf() -> str:
        gate.come()
        results.append("returned")
        return "too late"

    worker = rig.worker()
    worker.start()
    run_id = rig.enqueue("t")
    rig.wake(run_id)
    gate.wait()

    assert worker.stop(0) is False
    assert rig.state(run_id) is RunState.READY

    gate.open()
    eventually(lambda: results)
    assert rig.state(run_id) is RunState.READY


def test_a_stop_ends_a_receive_that_is_under_way(rig: Rig) -> None:
    rig.lane = MemoryLane()
    worker = rig.worker()
    worker.start()
    eventually(lambda: rig.count(Metric.SCAN_PAGES))
    began = time.monotonic()

    assert worker.stop()

    assert time.monotonic() - began < 15  # not the 20 s of a receive


def test_release_in_flight_hands_back_each_run_once(rig: Rig, kind: str) -> None:
    gate = Gate()

    async def waits() -> None:
        await asyncio.to_thread(gate.come)

    rig.task("t")(gate.come if kind == "plain" else waits)
    worker = rig.worker(concurrency=2)
    worker.start()
    run_ids = rig.enqueue_many("t", 2)
    rig.wake(*run_ids)
    eventually(lambda: [rig.state(run_id) for run_id in run_ids] == [RunState.RUNNING] * 2)
    gate.wait()
    released: list[int] = []
    calls = [
        threading.Thread(target=lambda: released.append(worker.release_in_flight()))
        for _ in range(4)
    ]
    for call in calls:
        call.start()
    for call in calls:
        call.join(20)

    assert sorted(released)[-1] == 2
    assert rig.count(Metric.RUNS_SETTLED, "handed_back") == 2
    assert worker.release_in_flight() == 0
    assert {rig.state(run_id) for run_id in run_ids} == {RunState.READY}
    assert not worker.busy()
    gate.open()
    worker.stop()
    assert {rig.state(run_id) for run_id in run_ids} == {RunState.READY}


def test_what_a_released_handler_returns_is_not_stored(rig: Rig) -> None:
    gate = Gate()
    returned = threading.Event()

    @rig.task("t")
    def work(ctx: Context) -> str:
        gate.come()
        assert ctx.cancelled.reason is StopReason.SHUTDOWN
        returned.set()
        return "late"

    worker = rig.worker()
    worker.start()
    run_id = rig.enqueue("t")
    rig.wake(run_id)
    gate.wait()

    assert worker.release_in_flight() == 1
    gate.open()
    assert returned.wait(10)

    worker.stop()
    assert rig.state(run_id) is RunState.READY


def test_stopped_is_a_failure_where_nobody_said_stop(rig: Rig) -> None:
    @rig.task("t")
    def invents_it() -> None:
        raise Stopped("nobody said so", reason=StopReason.SHUTDOWN)

    claimed = rig.claimed("t")

    assert rig.worker().process_run(claimed) is RunState.SCHEDULED
    assert rig.view(claimed.id).attempt == 2


def test_the_twentieth_hand_back_of_an_attempt_is_an_error(rig: Rig) -> None:
    """With one attempt, the twentieth hand-back ends the run as interrupted."""
    started = threading.Event()

    @rig.task("t")
    async def endless() -> None:
        started.set()
        await asyncio.get_running_loop().create_future()

    run_id = rig.enqueue("t", retry=RetryPolicy(max_attempts=1))
    for _ in range(MAX_HAND_BACKS):
        started.clear()
        worker = rig.worker()
        worker.start()
        assert started.wait(10)
        worker.stop(0)

    assert rig.view(run_id).reason is Reason.INTERRUPTED


def test_the_parts_of_a_shutdown_leave_time_before_the_backstop(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As shipped: whatever hangs, all of it ends half a second before the backstop would come."""
    gate = Gate()
    rig.task("t")(gate.come)
    rig.enqueue("t")
    shutdown = Shutdown()
    worker = rig.worker(shutdown=shutdown)
    worker.start()
    gate.wait()
    parts, waits = worker._parts, []

    def not_quiet(timeout: float) -> bool:
        waits.append(timeout * 1000)
        return False

    monkeypatch.setattr(parts, "_wait_until_quiet", not_quiet)
    monkeypatch.setattr(parts, "close", lambda within_ms: waits.append(within_ms))
    parts.shut_down(shutdown.drain_ms / 1000)
    monkeypatch.undo()
    gate.open()

    assert waits[:2] == [shutdown.drain_ms, shutdown.cancel_grace_ms]
    assert len(waits) == 4
    assert sum(waits[1:]) <= shutdown.backstop_ms - 500


@pytest.mark.parametrize("late_s", [1.0, 2.5])
def test_who_holds_the_interpreter_takes_the_time_from_what_comes_next(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, late_s: float
) -> None:
    """The drain ends late: what follows is done in less, and the backstop stays away."""
    gate, now = Gate(), [100.0]
    rig.task("t")(gate.come)
    rig.enqueue("t")
    shutdown = Shutdown()
    worker = rig.worker(shutdown=shutdown)
    worker.start()
    gate.wait()
    parts = worker._parts

    def not_quiet(timeout: float) -> bool:
        now[0] += timeout + (late_s if timeout == shutdown.drain_ms / 1000 else 0.0)
        return False

    def close(within_ms: float) -> None:
        now[0] += within_ms / 1000

    monkeypatch.setattr("workhorse.runtime.process.parts.time", Namespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(parts, "_wait_until_quiet", not_quiet)
    monkeypatch.setattr(parts, "close", close)
    parts.shut_down(shutdown.drain_ms / 1000)
    monkeypatch.undo()
    gate.open()

    backstop_s = (shutdown.drain_ms + shutdown.backstop_ms) / 1000
    assert now[0] - 100.0 <= backstop_s - 0.5 + 0.001


def test_executors_that_hang_share_what_time_there_is(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]

    def hangs(timeout: float) -> bool:
        now[0] += timeout
        return False

    engine = rig.worker()._parts.engine
    monkeypatch.setattr(
        "workhorse.runtime.execution.engine.time", Namespace(monotonic=lambda: now[0])
    )
    monkeypatch.setattr(engine, "_executors", [Namespace(close=hangs) for _ in range(4)])

    assert not engine.close(99.0)

    assert now[0] <= 100.5
