"""A long run outlives the visibility time-out of its wakeup, and those of nine runs behind it."""

from __future__ import annotations

from tests.cases.scene import Scene
from tests.runtime.rig import Gate
from tests.support.eventually import eventually
from workhorse.domain.runs import RunState


def test_case_1_a_slow_run_and_nine_behind_it_are_started_once_each(scene: Scene) -> None:
    """The broker shows all ten again and again, to both workers, and forgets what was deleted."""
    gate, rig = Gate(), scene.rig
    scene.task("slow", lambda _ctx: gate.come())
    scene.task("quick")
    slow = rig.enqueue("slow", priority=100, wake=True)
    scene.worker()
    gate.wait()
    behind = rig.enqueue_many("quick", 9, wake=True)

    for _ in range(3):
        before = scene.noted("stale")
        scene.show_again(slow, *behind)
        # The one worker has no slot free, and the other is not there yet: nothing is looked at.
        assert scene.noted("stale") == before
    other = scene.worker()
    scene.ended(*behind)
    for _ in range(3):
        before = scene.noted("stale")
        scene.show_again(slow, *behind)
        if scene.has_messages:
            eventually(lambda before=before: scene.noted("stale") >= before + 10)  # type: ignore[misc]
        assert rig.state(slow) is RunState.RUNNING

    gate.open()

    views = scene.ended(slow, *behind)
    assert set(scene.starts.values()) == {1}
    assert len(scene.starts) == 10
    assert {(view.attempt, view.fence) for view in views} == {(1, 1)}
    other.stop()
