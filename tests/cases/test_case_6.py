"""A job that kills its process, and what lies in the queue behind it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import timedelta

import pytest

from tests.cases.scene import Scene
from tests.runtime import program
from tests.runtime.rig import Rig, start_program
from tests.store.acting import promoted, recovered
from tests.support.eventually import eventually
from tests.support.processes import Processes
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import Reason, RunState
from workhorse.store.base.database import Store

BACKOFF = RetryPolicy(max_attempts=3, first=timedelta(seconds=10), jitter=False)


@pytest.mark.parametrize("cancelled", ["never", "while it rests", "while its lease runs"])
def test_case_6_a_run_that_kills_its_process_rests_is_lost_and_blocks_nobody(
    scene: Scene, cancelled: str
) -> None:
    """Three leases are lost, with a backoff between; its wakeups come meanwhile; others go on."""
    rig, clock = scene.rig, scene.clock
    scene.task("kills")
    scene.task("light")
    deadly = rig.enqueue("kills", retry=BACKOFF, priority=100, wake=True)
    rests = []
    for attempt in (1, 2, 3):
        taken = rig.claim()  # by a worker that dies with it, of the same name each time
        assert (taken.id, taken.attempt) == (deadly, attempt)
        if attempt == 2 and cancelled == "while its lease runs":
            rig.cancel(deadly)
        worker = scene.worker()
        scene.show_again(deadly)
        scene.ended(rig.enqueue("light", wake=True))
        worker.stop()
        assert rig.view(deadly).fence == attempt
        scene.pass_time(30_001)

        recovered(rig.store)

        view = rig.view(deadly)
        if view.state.finished:
            break
        assert (view.state, view.attempt) == (RunState.SCHEDULED, attempt + 1)
        assert view.due_at is not None
        rests.append(view.due_at - clock.now)
        if attempt == 1 and cancelled == "while it rests":
            rig.cancel(deadly)
            break
        worker = scene.worker()
        scene.show_again(deadly)  # a wakeup that comes during the rest starts nothing
        scene.ended(rig.enqueue("light", wake=True))
        worker.stop()
        assert rig.view(deadly).fence == attempt
        scene.pass_time(10_000 * attempt)
        promoted(rig.store)

    view = rig.view(deadly)
    if cancelled == "never":
        assert (view.state, view.reason, view.attempt) == (RunState.FAILED, Reason.LOST, 3)
        assert rests == [timedelta(seconds=10), timedelta(seconds=20)]
    else:
        assert (view.state, view.reason) == (RunState.CANCELLED, Reason.CANCELLED)
        assert rests == [timedelta(seconds=10)]
    assert deadly not in scene.starts


@pytest.fixture
def fleet(postgresql_url: str) -> Iterator[Rig]:
    """As that of the runtime's tests, on PostgreSQL."""
    store = Store.open(postgresql_url)
    rig = Rig(store)
    rig.registry = program.registry
    yield rig
    rig.close()
    store.close()


def test_case_6_an_async_handler_that_kills_its_process(
    fleet: Rig, processes: Processes, postgresql_url: str
) -> None:
    """The real thing, once: SIGKILL, a supervisor that starts the worker again, a real backoff."""
    policy = RetryPolicy(max_attempts=2, first=timedelta(milliseconds=50))
    deadly = fleet.enqueue("async.kills", retry=policy, priority=100)
    behind = fleet.enqueue_many("light", 5, retry=RetryPolicy(first=timedelta(0)))
    for attempt in (1, 2):
        process = start_program(processes, postgresql_url, lease_ms=1_000)
        process.wait_for(f"started {deadly} {attempt}")
        assert process.wait() == -signal.SIGKILL

        def recovered_it(attempt: int = attempt) -> bool:
            recovered(fleet.store)
            promoted(fleet.store)
            view = fleet.view(deadly)
            return view.state.finished or (view.attempt > attempt and view.state is RunState.READY)

        eventually(recovered_it, within=60)

    start_program(processes, postgresql_url, lease_ms=1_000)

    def all_done() -> bool:
        # A light run may have been claimed after the deadly one: its lease then ends later.
        recovered(fleet.store)
        promoted(fleet.store)
        return all(fleet.state(run_id) is RunState.SUCCEEDED for run_id in behind)

    eventually(all_done, within=120)
    view = fleet.view(deadly)
    assert (view.state, view.reason, view.attempt) == (RunState.FAILED, Reason.LOST, 2)
