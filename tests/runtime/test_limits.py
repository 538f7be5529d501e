"""Time-outs and deadlines, and handlers that do not stop when their time is over."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest

from tests.runtime.rig import Gate, Rig
from tests.support.eventually import eventually
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import Reason, RunState
from workhorse.handlers.context import AsyncContext, Context
from workhorse.handlers.signals import StopReason
from workhorse.store.base.database import ManualClock
from workhorse.store.lifecycle.sweeping import end_overdue
from workhorse.telemetry import Metric

ONCE = RetryPolicy(max_attempts=1)


def test_a_time_out_ends_an_async_handler_as_a_task(rig: Rig) -> None:
    told: list[Any] = []

    @rig.task("t")
    async def endless(ctx: AsyncContext) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            told.append(ctx.cancelled.reason)

    claimed = rig.claimed("t", timeout_ms=50, retry=ONCE)

    assert rig.worker().process_run(claimed) is RunState.FAILED

    view = rig.view(claimed.id)
    assert (view.reason, view.error_type) == (Reason.TIMEOUT, "AttemptTimeout")
    assert told == [StopReason.TIMEOUT]


def test_a_time_out_spends_an_attempt(rig: Rig) -> None:
    @rig.task("t")
    async def endless() -> None:
        await asyncio.get_running_loop().create_future()

    claimed = rig.claimed("t", timeout_ms=50)

    assert rig.worker().process_run(claimed) is RunState.SCHEDULED
    assert rig.view(claimed.id).attempt == 2


@pytest.mark.parametrize("how", ["value", "other error", "group"])
def test_a_time_out_is_known_by_state_whatever_the_handler_makes_of_it(rig: Rig, how: str) -> None:
    @rig.task("t")
    async def swallows() -> str:
        if how == "group":
            async with asyncio.TaskGroup() as group:
                group.create_task(_endless())
        try:
            await _endless()
        except asyncio.CancelledError:
            if how == "value":
                return "swallowed"
            raise ConnectionError("a library's own view of it") from None
        return ""

    claimed = rig.claimed("t", timeout_ms=50, retry=ONCE)

    assert rig.worker().process_run(claimed) is RunState.FAILED
    assert rig.view(claimed.id).reason is Reason.TIMEOUT


async def _endless() -> None:
    await asyncio.get_running_loop().create_future()


def test_an_async_handler_that_does_not_stop_is_settled_and_its_slot_stays_taken(rig: Rig) -> None:
    let_go = threading.Event()

    @rig.task("t")
    async def deaf() -> None:
        while not let_go.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    run_id = rig.enqueue("t", timeout_ms=50, retry=ONCE)
    worker = rig.worker(concurrency=1, cancel_wait_ms=100)
    worker.start()

    eventually(lambda: rig.state(run_id) is RunState.FAILED)
    eventually(lambda: not worker.busy())  # it hears of its commit after everybody else
    assert worker._parts.slots.free == 0
    eventually(lambda: worker._parts.holdings.stuck == 1)
    assert rig.count(Metric.HANDLERS_STUCK) == 1

    let_go.set()
    eventually(lambda: worker._parts.slots.free == 1)
    assert worker._parts.holdings.stuck == 0


def test_a_plain_function_past_its_time_out_is_settled_and_its_slot_stays_taken(rig: Rig) -> None:
    gate = Gate()
    told: list[Any] = []

    @rig.task("t")
    def slow(ctx: Context) -> str:
        gate.come()
        told.append(ctx.cancelled.reason)
        return "too late"

    run_id = rig.enqueue("t", timeout_ms=50, retry=ONCE)
    waiting = rig.enqueue("t", timeout_ms=60_000)
    worker = rig.worker(concurrency=1)
    worker.start()

    eventually(lambda: rig.state(run_id) is RunState.FAILED)
    assert rig.view(run_id).reason is Reason.TIMEOUT
    eventually(lambda: not worker.busy())  # it hears of its commit after everybody else
    eventually(lambda: worker._parts.holdings.stuck == 1)
    assert worker._parts.slots.free == 0
    assert rig.state(waiting) is RunState.READY
    assert rig.count(Metric.HANDLERS_STUCK) == 1

    gate.open()
    eventually(lambda: rig.state(waiting) is RunState.SUCCEEDED)
    assert told == [StopReason.TIMEOUT, None]
    assert worker._parts.holdings.stuck == 0
    assert rig.view(run_id).result is None


def test_the_time_of_earlier_activations_counts(rig: Rig) -> None:
    """An attempt's active time is added up: what a hand-back left is all that remains."""
    gate = Gate()

    @rig.task("t")
    async def endless() -> None:
        gate.reached.set()
        await _endless()

    run_id = rig.enqueue("t", timeout_ms=600_000, retry=ONCE)
    claimed = rig.claim()
    worker = rig.worker()
    rest = replace(claimed, active_ms=599_950)

    assert worker.process_run(rest) is RunState.FAILED
    assert rig.view(run_id).reason is Reason.TIMEOUT


def test_the_active_time_is_stored_with_a_hand_back(rig: Rig) -> None:
    started = threading.Event()

    @rig.task("t")
    async def endless() -> None:
        started.set()
        await _endless()

    rig.enqueue("t", timeout_ms=600_000)
    worker = rig.worker()
    worker.start()
    assert started.wait(10)
    worker.stop(0)

    again = rig.claim()
    assert 0 < again.active_ms < 60_000
    assert again.hand_backs == 1


def test_a_deadline_ends_the_run_whatever_budget_is_left(rig: Rig, kind: str) -> None:
    told: list[Any] = []
    let_go = threading.Event()

    def plain(ctx: Context) -> None:
        ctx.cancelled.wait(20)
        told.append(ctx.cancelled.reason)

    async def waits(ctx: AsyncContext) -> None:
        try:
            await _endless()
        finally:
            told.append(ctx.cancelled.reason)

    rig.task("t")(plain if kind == "plain" else waits)
    claimed = rig.claimed("t", deadline_ms=60_000)
    assert claimed.deadline_in_ms == 60_000
    soon = replace(claimed, deadline_in_ms=50)

    assert rig.worker().process_run(soon) is RunState.FAILED

    assert rig.view(claimed.id).reason is Reason.DEADLINE
    eventually(lambda: told == [StopReason.DEADLINE])
    let_go.set()


def test_a_run_that_maintenance_ended_at_its_deadline_is_not_written_over(
    rig: Rig, clock: ManualClock, kind: str
) -> None:
    gate = Gate()

    async def waits() -> str:
        await asyncio.to_thread(gate.come)
        return "late"

    def plain() -> str:
        gate.come()
        return "late"

    rig.task("t")(plain if kind == "plain" else waits)
    run_id = rig.enqueue("t", deadline_ms=60_000)
    worker = rig.worker()
    worker.start()
    gate.wait()
    clock.advance(60_001)
    rig.store.run(end_overdue)
    gate.open()

    eventually(lambda: not worker.busy())
    view = rig.view(run_id)
    assert (view.state, view.reason, view.result) == (RunState.FAILED, Reason.DEADLINE, None)


def test_a_value_in_time_is_kept(rig: Rig, kind: str) -> None:
    async def waits() -> str:
        return "in time"

    rig.task("t")((lambda: "in time") if kind == "plain" else waits)
    claimed = rig.claimed("t", timeout_ms=60_000, deadline_ms=60_000)

    assert rig.worker().process_run(claimed) is RunState.SUCCEEDED
