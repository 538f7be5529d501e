"""What a handler returns or raises and nobody can keep ends its run, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from tests.cases.scene import SETTINGS, Scene
from tests.support.eventually import eventually
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import Reason, RunState, RunView
from workhorse.domain.values import MAX_PAYLOAD_BYTES
from workhorse.telemetry import Metric

AGAIN_AND_AGAIN = RetryPolicy(max_attempts=5, first=timedelta(0))


def the_end_of(scene: Scene, body: Callable[[Any], Any], **options: Any) -> RunView:
    """Run a handler between two others, whose wakeups lie before and behind its own."""
    rig = scene.rig
    scene.task("poison", body, **options)
    scene.task("light")
    before = rig.enqueue("light", wake=True)
    poison = rig.enqueue("poison", retry=AGAIN_AND_AGAIN, priority=60, wake=True)
    behind = rig.enqueue_many("light", 3, wake=True)
    scene.worker()
    eventually(lambda: rig.state(poison).finished)
    scene.show_again(poison, *behind)
    scene.ended(before, *behind)
    loops = [name for name in rig.counters.snapshot() if Metric.LOOP_RESTARTS in name]
    assert loops == []
    view = rig.view(poison)
    assert scene.starts[poison] == view.fence
    return view


def _result(value: Any) -> Callable[[Any], Any]:
    return lambda _ctx: value


def test_case_7_a_result_over_the_cap_is_tried_once(scene: Scene) -> None:
    """By a byte, and by 64 MiB: five attempts are left, without a rest; nothing loops."""
    far = scene.setting == SETTINGS[-1]
    size = MAX_PAYLOAD_BYTES * 64 if far else MAX_PAYLOAD_BYTES + 1

    view = the_end_of(scene, _result("x" * (size - 2)))

    assert (view.state, view.reason) == (RunState.FAILED, Reason.NOT_RETRYABLE)
    assert (view.attempt, view.fence) == (1, 1)
    assert view.error_message is not None
    assert f"{size:,}" in view.error_message
    assert f"{MAX_PAYLOAD_BYTES:,}" in view.error_message


def test_case_8_a_nan_in_a_result_is_tried_once(scene: Scene) -> None:
    view = the_end_of(scene, _result({"loss": float("nan")}))

    assert (view.state, view.reason) == (RunState.FAILED, Reason.NOT_RETRYABLE)
    assert (view.attempt, view.fence) == (1, 1)
    assert view.error_message is not None
    assert "$.loss" in view.error_message


class _Odd(Exception):  # noqa: N818
    """It cannot be pickled, printed, or made anew from its arguments."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)
        self.second = lambda: second

    def __str__(self) -> str:
        raise RuntimeError("not even that")

    __repr__ = __str__


def test_case_17_an_odd_exception_spends_its_attempts_and_stops_nobody(scene: Scene) -> None:
    """It is stored as text each time."""

    def odd(_ctx: Any) -> None:
        raise _Odd("a", "b") from ExceptionGroup("both", [_Odd("c", "d"), ValueError("plain")])

    view = the_end_of(scene, odd)

    assert (view.state, view.reason) == (RunState.FAILED, Reason.ERROR)
    assert (view.attempt, view.fence) == (5, 5)
    assert view.error_type is not None
    assert view.error_type.endswith("_Odd")


def test_case_17_its_type_still_decides_whether_it_is_tried_again(scene: Scene) -> None:
    def odd(_ctx: Any) -> None:
        raise _Odd("a", "b")

    view = the_end_of(scene, odd, not_retryable=[_Odd])

    assert (view.state, view.reason) == (RunState.FAILED, Reason.NOT_RETRYABLE)
    assert (view.attempt, view.fence) == (1, 1)
