"""Timers between two passes of maintenance: carried by delayed wakeups, exact by the store."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import partial

import pytest

from lanes.memory import MemoryLane
from tests.support.eventually import eventually
from workhorse import AsyncContext, Context, Workhorse
from workhorse.domain.runs import RunState
from workhorse.handlers.producing import RunHandle
from workhorse.store.base.database import ManualClock

NAPS_S = (2, 2, 3, 7, 12, 31, 59, 60, 61, 75, 99, 100)
MAINTENANCE_S = 60
ASLEEP = (RunState.SCHEDULED, RunState.WAITING)


@pytest.fixture
def app(database_url: str, clock: ManualClock) -> Iterator[Workhorse]:
    lane = MemoryLane(clock=lambda: clock.now.timestamp() * 1000)
    with Workhorse(database_url=database_url, lane=lane, clock=clock, concurrency=20) as app:
        yield app
    lane.close()


def _have_ended(runs: list[RunHandle[None]]) -> bool:
    return all(run.view().state.finished for run in runs)


def test_sleeps_end_when_they_are_due_though_maintenance_comes_once_a_minute(
    app: Workhorse, clock: ManualClock
) -> None:
    """Plain and async, and a wait's time-out too; none is early, none waits for the pass."""
    woken_at = {}
    started = clock.now

    @app.task()
    def plain(ctx: Context, seconds: int) -> None:
        ctx.sleep("nap", timedelta(seconds=seconds))
        woken_at[ctx.run.id] = clock.now

    @app.task()
    async def asynchronous(ctx: AsyncContext, seconds: int) -> None:
        await ctx.wait_for_signal("never", timeout=timedelta(seconds=seconds), default=None)
        woken_at[ctx.run.id] = clock.now

    runs = {task.enqueue(seconds): seconds for seconds in NAPS_S for task in (plain, asynchronous)}
    worker, maintenance = app.worker(), app.maintenance()
    worker.start()
    try:
        eventually(lambda: all(run.view().state in ASLEEP for run in runs))
        maintenance.run_once()
        next_pass_s = MAINTENANCE_S
        for seconds in sorted(set(NAPS_S)):
            clock.advance(started + timedelta(seconds=seconds, milliseconds=-1) - clock.now)
            due = [run for run, nap_s in runs.items() if nap_s == seconds]
            assert all(not run.view().state.finished for run in due)
            clock.advance(1)
            eventually(partial(_have_ended, due))
            if seconds >= next_pass_s:
                maintenance.run_once()
                next_pass_s += MAINTENANCE_S
    finally:
        worker.stop(5)

    assert {run_id: at - started for run_id, at in woken_at.items()} == {
        run.id: timedelta(seconds=seconds) for run, seconds in runs.items()
    }
    assert {run.view().attempt for run in runs} == {1}
