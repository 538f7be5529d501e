"""A blocked event loop or a busy plain handler: renewals go on, and the culprit is named."""

from __future__ import annotations

import asyncio
import random
import threading
from datetime import timedelta
from typing import Any

import pytest

from tests.runtime.rig import Rig, start_program
from tests.support.eventually import eventually
from tests.support.processes import Processes
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import RunState
from workhorse.store.lifecycle.sweeping import recover
from workhorse.telemetry import Metric

LEASE_MS = 3_000


def test_case_12_blocked_loop(live_rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """The blocking handler and three light ones beside it keep their leases, past their length."""
    rig, release, started = live_rig, threading.Event(), threading.Event()

    @rig.task("blocks")
    async def blocks() -> None:
        started.set()
        while not release.is_set():  # a pure-Python loop that awaits nothing
            sum(range(500))

    @rig.task("light")
    async def light() -> None:
        await asyncio.to_thread(release.wait, 60)

    lights = rig.enqueue_many("light", 3)
    worker = rig.worker(concurrency=4, lease_ms=LEASE_MS, blocked_ms=200)
    worker.start()
    eventually(lambda: len(worker._parts.holdings.all()) == 3)
    blocking = rig.enqueue("blocks")
    assert started.wait(10)

    _outlive(rig, [*lights, blocking])

    assert rig.count(Metric.LOOP_BLOCKED) == 1
    (warning,) = [each.getMessage() for each in caplog.records if "blocked" in each.getMessage()]
    assert "task 'blocks'" in warning
    assert blocking in warning
    assert "test_case_12" in warning
    assert worker._parts.engine.loop_blocked
    release.set()
    runs = [*lights, blocking]
    eventually(lambda: all(rig.state(each) is RunState.SUCCEEDED for each in runs))
    assert {rig.view(each).fence for each in runs} == {1}
    eventually(lambda: not worker._parts.engine.loop_blocked)


def test_case_12_a_task_that_the_handler_started_is_named_by_its_handler(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()

    @rig.task("starts one that blocks")
    async def starts() -> None:
        async def blocks() -> None:
            while not release.is_set():
                sum(range(500))

        await asyncio.create_task(blocks())

    run_id = rig.enqueue("starts one that blocks")
    worker = rig.worker(blocked_ms=100)
    worker.start()

    eventually(lambda: rig.count(Metric.LOOP_BLOCKED))
    eventually(lambda: "starts one that blocks" in caplog.text)
    release.set()
    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)


def test_case_12_a_busy_plain_handler(live_rig: Rig) -> None:
    rig, release = live_rig, threading.Event()

    @rig.task("busy")
    def busy() -> None:
        while not release.is_set():
            sum(range(500))

    @rig.task("light")
    async def light() -> None:
        await asyncio.to_thread(release.wait, 60)

    runs = [*rig.enqueue_many("light", 3), rig.enqueue("busy")]
    worker = rig.worker(concurrency=4, lease_ms=LEASE_MS, blocked_ms=10_000)
    worker.start()
    eventually(lambda: len(worker._parts.holdings.all()) == 4)

    _outlive(rig, runs)

    release.set()
    eventually(lambda: all(rig.state(each) is RunState.SUCCEEDED for each in runs))
    assert {rig.view(each).fence for each in runs} == {1}
    assert rig.count(Metric.LOOP_BLOCKED) == 0


def test_case_12_a_c_call_that_holds_the_interpreter(
    fleet: Rig, processes: Processes, sqlite_url: str
) -> None:
    """Nothing can be renewed meanwhile; the loss is noticed before anything is stored."""
    policy = RetryPolicy(first=timedelta(0))
    run_id = fleet.enqueue("holds the interpreter", "4.0", retry=policy)
    process = start_program(processes, sqlite_url, lease_ms=1_000)
    process.wait_for(f"started {run_id} 1")
    draw = random.Random(1)
    eventually(
        lambda: fleet.store.run(recover, reach=fleet.lane.reach_ms, draw=draw).count, within=30
    )
    successor = fleet.claim()
    assert successor.id == run_id

    process.wait_for(f"let go {run_id} 1")
    process.wait_for(f"run {run_id}: its lease (was taken|is gone)")

    view = fleet.view(run_id)
    assert (view.state, view.attempt, view.fence) == (RunState.RUNNING, 2, 2)


def _outlive(rig: Rig, runs: list[Any]) -> None:
    """Wait until each lease was renewed twice, while recovery tries to take them."""
    seen: dict[Any, set[Any]] = {run_id: set() for run_id in runs}

    def renewed() -> bool:
        rig.store.run(recover, reach=rig.lane.reach_ms, draw=random.Random(1))
        for run_id in runs:
            view = rig.view(run_id)
            assert view.state is RunState.RUNNING
            seen[run_id].add(view.lease_expires_at)
        return all(len(expiries) > 3 for expiries in seen.values())

    eventually(renewed, within=30, every=0.1)
