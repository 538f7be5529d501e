"""A worker that is told to stop while it runs something, and what becomes of that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.cases.scene import Scene
from tests.runtime.rig import QUICK, Gate
from tests.support.eventually import eventually
from workhorse.domain.runs import RunState


@pytest.mark.parametrize("known", [True, False], ids=["told", "deaf"])
def test_case_4_what_is_handed_back_goes_on_elsewhere_whatever_its_wakeup_does(
    scene: Scene, known: bool
) -> None:
    """It has spent no attempt, and the worker that stops takes nothing more."""
    rig, gate, leave = scene.rig, Gate(), Gate()

    def first_time(ctx: Any) -> str:
        if ctx.lease.fence > 1:
            return "elsewhere"
        gate.reached.set()
        if known:  # it looks whether it should stop
            eventually(lambda: bool(ctx.cancelled))
            ctx.cancelled.raise_if_set()
        leave.come()
        return "too late"

    scene.task("long", first_time)
    scene.task("late")
    run_id = rig.enqueue("long", wake=True)
    stopped = scene.worker()
    gate.wait()
    late = rig.enqueue("late", wake=True)

    assert not stopped.stop(0)

    assert (rig.state(late), rig.state(run_id)) == (RunState.READY, RunState.READY)
    assert run_id in [hint.run_id for hint in rig.published]
    scene.worker()
    scene.show_again()
    (view, _) = scene.ended(run_id, late)
    assert (view.attempt, view.fence, view.result) == (1, 2, '"elsewhere"')
    leave.open()
    if not known:
        eventually(lambda: leave.reached.is_set())
    assert scene.starts == {run_id: 2, late: 1}


def test_case_4_a_handler_that_is_told_in_time_ends_its_run_itself(scene: Scene) -> None:
    """When the drain is over, not when it is handed back: what it returns then stands."""
    rig, gate = scene.rig, Gate()

    def long(ctx: Any) -> str:
        gate.reached.set()
        eventually(lambda: bool(ctx.cancelled))
        return "just in time"

    scene.task("long", long)
    run_id = rig.enqueue("long", wake=True)
    worker = scene.worker(shutdown=replace(QUICK, cancel_grace_ms=15_000))
    gate.wait()

    worker.stop(0)

    view = rig.view(run_id)
    assert (view.state, view.attempt, view.fence) == (RunState.SUCCEEDED, 1, 1)
    assert view.result == '"just in time"'
