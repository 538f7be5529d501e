"""`ctx.progress`: the latest value is written, at most each 100 ms, and never without the lease."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.runtime.rig import Gate, Rig
from tests.support.eventually import eventually
from workhorse.domain.ids import new_run_id
from workhorse.domain.outcomes import Retry
from workhorse.domain.recording import NewProgress
from workhorse.domain.runs import Failure, Lease, Reason, RunState
from workhorse.handlers.context import AsyncContext, Context
from workhorse.runtime.activations.progress import LatestProgress
from workhorse.runtime.base.pace import SystemPace
from workhorse.runtime.writing import batching
from workhorse.store.durable.boundaries import write_progress
from workhorse.store.lifecycle.settling import Entry, settle

LEASE = Lease(new_run_id(), 1, 1)


class StillPace(SystemPace):
    def __init__(self) -> None:
        self.now = 1_000.0

    def now_ms(self) -> float:
        return self.now


class Alarms:
    """Timers that the test lets go off."""

    def __init__(self) -> None:
        self.set: list[tuple[float, Callable[[], None]]] = []

    def at(self, when_ms: float, call: Callable[[], None]) -> None:
        self.set.append((when_ms, call))

    def go_off(self) -> float:
        when, call = self.set.pop(0)
        call()
        return when


def said(value: int) -> NewProgress:
    return NewProgress(LEASE, str(value))


class Latest:
    def __init__(self) -> None:
        self.pace, self.alarms = StillPace(), Alarms()
        self.asked = 0
        self.progress = LatestProgress(self._ask, timers=self.alarms, pace=self.pace)

    def _ask(self) -> None:
        self.asked += 1


def test_the_first_is_written_at_once_and_the_next_a_while_later() -> None:
    latest = Latest()
    first, second, third = said(1), said(2), said(3)

    latest.progress.put(first)
    assert latest.asked == 1
    assert latest.progress.take() is first
    latest.progress.is_written(first)

    latest.pace.now += 40
    latest.progress.put(second)
    latest.progress.put(third)
    assert latest.asked == 1
    assert latest.alarms.go_off() == 1_100.0
    assert latest.asked == 2
    assert latest.progress.take() is third


def test_after_a_while_it_is_written_at_once_again() -> None:
    latest = Latest()
    latest.progress.put(said(1))
    latest.progress.take()
    latest.pace.now += 100

    latest.progress.put(said(2))

    assert latest.asked == 2


def test_what_is_under_way_is_still_unwritten() -> None:
    """A settle takes it along once more, in case that its own write fails."""
    latest = Latest()
    value = said(1)
    latest.progress.put(value)
    assert latest.progress.take() is value
    assert latest.progress.take() is value

    latest.progress.is_written(value)

    assert latest.progress.take() is None


def test_one_whose_run_is_locked_is_put_off() -> None:
    latest = Latest()
    value = said(1)
    latest.progress.put(value)
    latest.progress.take()

    latest.progress.put_off()

    assert latest.alarms.go_off() == 2_000.0
    assert latest.asked == 2
    assert latest.progress.take() is value


def test_what_is_dropped_is_not_written() -> None:
    latest = Latest()
    latest.progress.put(said(1))

    latest.progress.drop()

    assert latest.progress.take() is None


# -- in a worker ---------------------------------------------------------------------------------


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The values of each write."""
    writes: list[list[str]] = []

    def noted(tx: Any, items: Any) -> None:
        writes.append([item.value for item in items])
        write_progress(tx, items)

    monkeypatch.setattr(batching, "write_progress", noted)
    return writes


def test_the_last_value_is_written_with_the_settle(
    rig: Rig, kind: str, written: list[list[str]]
) -> None:
    def plain(ctx: Context) -> None:
        for at in range(1_000):
            ctx.progress({"at": at})

    async def waits(ctx: AsyncContext) -> None:
        for at in range(1_000):
            await ctx.progress({"at": at})

    rig.task("t")(plain if kind == "plain" else waits)
    claimed = rig.claimed("t")

    assert rig.worker().process_run(claimed) is RunState.SUCCEEDED

    assert rig.view(claimed.id).progress == '{"at":999}'
    assert len(written) < 20


def test_a_value_is_seen_while_the_handler_runs(rig: Rig) -> None:
    gate = Gate()

    @rig.task("t")
    def reports(ctx: Context) -> None:
        ctx.progress("first")
        ctx.progress("second")
        gate.come()

    run_id = rig.enqueue("t")
    worker = rig.worker()
    worker.start()
    gate.wait()

    eventually(lambda: rig.view(run_id).progress == '"second"')
    gate.open()


def test_progress_survives_the_end_and_a_failure(rig: Rig) -> None:
    @rig.task("t")
    def fails(ctx: Context) -> None:
        ctx.progress("half")
        raise ValueError("no")

    claimed = rig.claimed("t")

    assert rig.worker().process_run(claimed) is RunState.SCHEDULED
    assert rig.view(claimed.id).progress == '"half"'


def test_nothing_is_written_once_the_lease_is_gone(rig: Rig, written: list[list[str]]) -> None:
    taken, refused = threading.Event(), threading.Event()
    started = threading.Event()

    @rig.task("t")
    async def reports(ctx: AsyncContext) -> None:
        await ctx.progress("before")
        started.set()
        await asyncio.to_thread(taken.wait, 20)
        await ctx.progress("after")  # nobody has told the worker yet: the store is what decides
        refused.set()

    run_id = rig.enqueue("t")
    worker = rig.worker()
    worker.start()
    assert started.wait(10)
    eventually(lambda: rig.view(run_id).progress == '"before"')
    (held,) = worker._parts.holdings.all()
    elsewhere = Retry(60_000, Reason.LOST, Failure("LeaseExpired", "by another worker"))
    rig.store.run(settle, [Entry(held.lease, elsewhere)], reach=rig.lane.reach_ms)
    taken.set()

    assert refused.wait(10)
    eventually(lambda: not worker.busy())
    assert any('"after"' in values for values in written)
    assert rig.view(run_id).progress == '"before"'
