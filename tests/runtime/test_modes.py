"""The same runs end the same way with wakeups on, off, and hostile."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from lanes.memory import Hostility, MemoryLane
from tests.runtime.rig import Rig
from tests.support.eventually import eventually
from workhorse.domain.ids import RunId
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import RunState
from workhorse.handlers.context import AsyncContext, Context

MODES = {
    "on": Hostility(),
    "off": Hostility(drop=1.0),
    "hostile": Hostility(
        drop=0.2, double=0.5, delay=0.5, reorder=0.5, seed=7, max_delay_ms=50
    ),
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_all_runs_end_once_whatever_becomes_of_their_wakeups(
    live_rig: Rig, kind: str, mode: str
) -> None:
    """Three workers; each run fails once, each session keeps its order."""
    rig = live_rig
    rig.lane = MemoryLane(hostility=MODES[mode])
    lock = threading.Lock()
    starts: Counter[tuple[RunId, int]] = Counter()
    ends: dict[str, list[int]] = {}

    def work(ctx: Any, payload: int) -> int:
        with lock:
            starts[ctx.run.id, ctx.lease.fence] += 1
            if ctx.attempt == 1:
                raise ValueError("once")
            if ctx.run.session:
                ends.setdefault(ctx.run.session, []).append(payload)
        return payload

    def plain(ctx: Context, payload: int) -> int:
        return work(ctx, payload)

    async def waits(ctx: AsyncContext, payload: int) -> int:
        return work(ctx, payload)

    rig.task("t")(plain if kind == "plain" else waits)
    run_ids = []
    policy = RetryPolicy(first=timedelta(0))
    workers = [rig.worker(concurrency=3, scan_ms=200, scan_jitter_ms=50) for _ in range(3)]
    for worker in workers:
        worker.start()
    for n in range(60):
        session = f"s{n % 5}" if n % 2 else None
        run_ids.append(rig.enqueue("t", str(n), session=session, retry=policy, wake=True))

    eventually(lambda: all(rig.state(each) is RunState.SUCCEEDED for each in run_ids), within=60)

    views = [rig.view(each) for each in run_ids]
    assert [view.result for view in views] == [str(n) for n in range(60)]
    assert {(view.attempt, view.fence) for view in views} == {(2, 2)}
    assert set(starts.values()) == {1}
    assert all(order == sorted(order) for order in ends.values())
