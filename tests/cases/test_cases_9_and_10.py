"""When a run is due is the store's to say, whatever wakeups come before, after, or never."""

from __future__ import annotations

from datetime import timedelta, timezone

import pytest

from tests.cases.scene import Scene
from tests.store.acting import promoted, recovered
from tests.support.eventually import eventually
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import RunState

EVEREST = timezone(timedelta(hours=5, minutes=45))


def test_case_9_and_10_a_run_starts_when_it_is_due_and_not_when_it_is_woken(scene: Scene) -> None:
    """One is told an instant of another zone, another a delay, a third sleeps in its handler."""
    rig = scene.rig
    scene.task("plain")
    scene.sleeper("sleeps", 5_000)
    at = (scene.clock.now + timedelta(seconds=5)).astimezone(EVEREST)
    told = rig.enqueue("plain", run_at=at, wake=True)
    delayed = rig.enqueue("plain", delay_ms=5_000, wake=True)
    sleeper = rig.enqueue("sleeps", wake=True)
    scene.worker()
    eventually(lambda: rig.state(sleeper) is RunState.SCHEDULED)
    runs = (told, delayed, sleeper)

    scene.clock.advance(4_999)
    scene.show_again(*runs)
    promoted(rig.store)
    witness = rig.enqueue("plain", wake=True)
    scene.ended(witness)
    assert [rig.state(run_id) for run_id in runs] == [RunState.SCHEDULED] * 3
    assert not scene.starts.keys() & {told, delayed}
    assert {rig.view(run_id).due_at for run_id in runs} == {
        scene.clock.now + timedelta(milliseconds=1)
    }

    scene.clock.advance(1)
    promoted(rig.store)
    scene.show_again(*runs)
    views = scene.ended(*runs)
    assert {view.attempt for view in views} == {1}
    assert [view.fence for view in views] == [1, 1, 2]


@pytest.mark.parametrize("back_ms", [0, 600_000], ids=["forwards", "ten minutes back"])
def test_case_10_a_lease_ends_by_the_stores_clock_alone(scene: Scene, back_ms: int) -> None:
    """A wakeup says nothing about a lease; nor does a clock that goes back free it early."""
    rig = scene.rig
    scene.task("work")
    run_id = rig.enqueue("work", wake=True, retry=RetryPolicy(first=timedelta(0)))
    assert rig.claim().id == run_id
    scene.clock.advance(-back_ms)
    scene.clock.advance(29_999)
    worker = scene.worker()
    scene.show_again(run_id)
    witness = rig.enqueue("work", wake=True)
    scene.ended(witness)
    assert recovered(rig.store).count == 0
    assert (rig.state(run_id), rig.view(run_id).fence) == (RunState.RUNNING, 1)

    scene.pass_time(back_ms + 2)
    recovered(rig.store)
    promoted(rig.store)
    scene.show_again(run_id)
    (view,) = scene.ended(run_id)
    assert (view.attempt, view.fence) == (2, 2)
    worker.stop()
