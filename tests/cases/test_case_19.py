"""Producers that are ahead of the workers, a task that is renamed or gone, and a rollback."""

from __future__ import annotations

from tests.cases.scene import Scene
from tests.store.acting import promoted
from tests.support.eventually import eventually
from workhorse.domain.ids import RunId
from workhorse.domain.runs import RunState


def _untouched(scene: Scene, *run_ids: RunId) -> None:
    for run_id in run_ids:
        view = scene.rig.view(run_id)
        assert (view.state, view.attempt, view.fence) == (RunState.READY, 1, 0)


def test_case_19_a_deployment_and_its_rollback_cost_no_run_an_attempt(scene: Scene) -> None:
    """Unknown runs are more urgent than all others, and their wakeups come again and again."""
    old, new = scene, scene.successor()
    for each, name, aliases in ((old, "sleepy", ()), (new, "sleepier", ("sleepy",))):
        each.task("charge")
        each.sleeper(name, 5_000, aliases=aliases)
    new.task("charge.v2")
    enqueue = old.rig.enqueue
    asleep = enqueue("sleepy", wake=True)
    ahead = enqueue("charge.v2", priority=100, wake=True)
    gone = enqueue("gone", priority=100, wake=True)

    worker = old.worker()
    eventually(lambda: old.rig.state(asleep) is RunState.SCHEDULED)
    old.show_again(ahead, gone)
    old.ended(*[enqueue("charge", wake=True) for _ in range(3)])
    if old.has_messages:
        eventually(lambda: old.noted("unknown_task") >= 2)
    _untouched(old, ahead, gone)
    worker.stop()

    worker = new.worker()  # the deployment
    old.pass_time(5_000)
    promoted(old.rig.store)
    old.show_again(ahead, gone, asleep)
    views = new.ended(ahead, asleep)
    assert [(view.attempt, view.fence) for view in views] == [(1, 1), (1, 2)]
    assert views[1].task == "sleepy"
    worker.stop()

    late = enqueue("charge.v2", priority=100, wake=True)
    worker = old.worker()  # the rollback
    old.show_again(late, gone)
    old.ended(enqueue("charge", wake=True))
    _untouched(old, late, gone)
    worker.stop()
