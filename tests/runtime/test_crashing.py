"""The seam for tests: an activation that ends at a boundary as if its process had died there."""

from __future__ import annotations

import random
import threading
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from lanes.memory import MemoryLane
from tests.runtime.rig import LEASE_MS, Rig
from tests.support.eventually import eventually
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import RunState
from workhorse.handlers.context import AsyncContext, Context
from workhorse.runtime.base.crashing import Crashed
from workhorse.store.base.database import ManualClock
from workhorse.store.lifecycle.sweeping import recover
from workhorse.telemetry import Metric

DRAW = random.Random(1)
AT_ONCE = RetryPolicy(first=timedelta(0))


class CrashOnce:
    """Ends an activation at a boundary, the first time that it is committed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.told: list[str] = []

    def __call__(self, activation: Any, name: str) -> bool:
        self.told.append(name)
        return name == self.name and self.told.count(name) == 1


def three_stages(kind: str, calls: list[str]) -> Any:
    """Return a handler of three stages that would catch whatever an `except Exception` catches."""

    def plain(ctx: Context) -> str:
        for name in ("a", "b", "c"):
            try:
                ctx.checkpoint(name, partial(calls.append, name))
            except Exception:  # noqa: BLE001 - a dead process catches nothing
                calls.append("caught")
        return "done"

    async def waits(ctx: AsyncContext) -> str:
        for name in ("a", "b", "c"):
            try:
                await ctx.checkpoint(name, partial(calls.append, name))
            except Exception:  # noqa: BLE001 - a dead process catches nothing
                calls.append("caught")
        return "done"

    return plain if kind == "plain" else waits


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_it_leaves_what_a_dead_process_leaves(
    rig: Rig, clock: ManualClock, kind: str, name: str
) -> None:
    calls: list[str] = []
    crash = CrashOnce(name)
    rig.task("t")(three_stages(kind, calls))
    run_id = rig.enqueue("t", retry=AT_ONCE)
    worker = rig.worker(concurrency=1, after_record=crash)
    worker.start()

    eventually(lambda: name in crash.told)
    eventually(lambda: worker._parts.slots.free == 1)
    assert not worker.busy()
    assert rig.state(run_id) is RunState.RUNNING
    expires_at = rig.view(run_id).lease_expires_at
    assert calls == ["a", "b", "c"][: "abc".index(name) + 1]

    clock.advance(LEASE_MS + 1)
    assert rig.view(run_id).lease_expires_at == expires_at
    assert rig.store.run(recover, reach=rig.lane.reach_ms, draw=DRAW).count == 1
    rig.wake(run_id)
    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)
    assert calls == ["a", "b", "c"]
    assert rig.view(run_id).attempt == 2
    assert rig.count(Metric.RUNS_SETTLED, "retry") == 0


def test_whoever_waits_for_the_run_is_let_go(rig: Rig, kind: str) -> None:
    rig.task("t")(three_stages(kind, []))
    claimed = rig.claimed("t")

    assert rig.worker(after_record=CrashOnce("a")).process_run(claimed) is None
    assert rig.state(claimed.id) is RunState.RUNNING


def test_it_ends_a_handler_whatever_else_that_does(rig: Rig) -> None:
    """Its settle is not sent, although it may be decided already."""
    ended = threading.Event()

    @rig.task("t")
    def swallows(ctx: Context) -> str:
        try:
            ctx.checkpoint("a", lambda: 1)
        except Crashed:
            ended.set()
        return "went on"

    claimed = rig.claimed("t")

    assert rig.worker(after_record=CrashOnce("a")).process_run(claimed) is None
    assert ended.wait(10)
    assert rig.state(claimed.id) is RunState.RUNNING


def test_a_wait_is_told_of_too_and_its_wakeup_is_not_sent(rig: Rig, kind: str) -> None:
    """The settle is committed, so all that a process could still lose there is the wakeup."""
    rig.lane = MemoryLane()

    def plain(ctx: Context) -> None:
        ctx.sleep(ctx.run.tags[0], timedelta(seconds=7))

    async def waits(ctx: AsyncContext) -> None:
        await ctx.sleep(ctx.run.tags[0], timedelta(seconds=7))

    rig.task("t")(plain if kind == "plain" else waits)
    crash = CrashOnce("lost")
    worker = rig.worker(after_record=crash)

    for name in ("lost", "sent"):
        claimed = rig.claimed("t", tags=(name,))
        assert worker.process_run(claimed) is RunState.SCHEDULED

    assert crash.told == ["lost", "sent"]
    eventually(lambda: rig.published)
    assert [hint.run_id for hint in rig.published] == [claimed.id]


def test_the_wakeup_of_a_child_is_not_sent(rig: Rig) -> None:
    """The child is there, as is its parent's boundary; the nets find it."""
    rig.lane = MemoryLane()
    child = rig.task("child")(lambda: None)

    @rig.task("t")
    def starts(ctx: Context) -> None:
        ctx.child("c", child, None)

    worker = rig.worker(after_record=CrashOnce("c"))
    assert worker.process_run(rig.claimed("t")) is None

    assert rig.claim().task == "child"
    assert worker._parts.engine.flush(5)
    assert rig.published == []


def test_one_that_fails_crashes_nothing(
    rig: Rig, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(activation: Any, name: str) -> bool:
        raise ValueError("a test's own bug")

    calls: list[str] = []
    rig.task("t")(three_stages(kind, calls))
    claimed = rig.claimed("t")

    assert rig.worker(after_record=fails).process_run(claimed) is RunState.SUCCEEDED
    assert "after_record failed" in caplog.text
