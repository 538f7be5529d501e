"""`can_claim` and `on_claimed`: plain or async, bounded, and never on the store's threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from lanes.memory import MemoryLane
from tests.runtime.rig import Gate, Rig
from tests.support.eventually import eventually
from workhorse.domain.runs import RunState
from workhorse.telemetry import Metric


def hook_of(kind: str, body: Callable[..., Any]) -> Callable[..., Any]:
    async def waits(*arguments: Any) -> Any:
        await asyncio.sleep(0)
        return body(*arguments)

    return body if kind == "plain" else waits


def test_nothing_is_claimed_or_received_while_can_claim_says_no(rig: Rig, kind: str) -> None:
    rig.task("t")(lambda: None)
    rig.lane = MemoryLane()
    allowed, asked = threading.Event(), threading.Semaphore(0)

    def may() -> bool:
        asked.release()
        return allowed.is_set()

    run_id = rig.enqueue("t", wake=True)
    worker = rig.worker(can_claim=hook_of(kind, may))
    worker.start()
    for _ in range(3):
        assert asked.acquire(timeout=10)
    assert rig.state(run_id) is RunState.READY
    assert rig.lane.backlog("default") == 1

    allowed.set()
    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)


def test_can_claim_is_asked_before_each_receive_and_each_claim(rig: Rig) -> None:
    rig.task("t")(lambda: None)
    order: list[str] = []

    class Lane(MemoryLane):
        def receiver(self, queue: str):  # type: ignore[no-untyped-def]
            receiver = super().receiver(queue)
            original = receiver.receive

            def receive(limit: int, wait_ms: int) -> object:
                order.append("receive")
                return original(limit, wait_ms)

            receiver.receive = receive  # type: ignore[method-assign,assignment]
            return receiver

    def may() -> bool:
        order.append("asked")
        return True

    rig.lane = Lane()
    worker = rig.worker(can_claim=may, on_claimed=lambda runs: order.append("told"))
    worker.start()
    # A look without waiting that goes with the scan at start, then the long one.
    eventually(lambda: order == ["asked", "receive", "asked", "receive"])
    order.clear()
    run_id = rig.enqueue("t", wake=True)
    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)
    eventually(lambda: "told" in order)

    # The message came to a receive that was allowed before; its claim is asked for by itself.
    assert order[: order.index("told")] == ["asked"]


def test_on_claimed_is_told_the_runs(rig: Rig, kind: str) -> None:
    rig.task("t")(lambda: None)
    told: list[list[str]] = []
    run_ids = rig.enqueue_many("t", 3)
    worker = rig.worker(on_claimed=hook_of(kind, lambda runs: told.append([r.id for r in runs])))
    worker.start()

    eventually(lambda: [each for runs in told for each in runs] == run_ids)


def test_hooks_run_outside_the_stores_threads(rig: Rig, kind: str) -> None:
    rig.task("t")(lambda: None)
    names: set[str] = set()

    def note(*_: Any) -> bool:
        names.add(threading.current_thread().name)
        return True

    run_id = rig.enqueue("t")
    worker = rig.worker(can_claim=hook_of(kind, note), on_claimed=hook_of(kind, note))
    worker.start()
    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)

    allowed = "workhorse-hook" if kind == "plain" else "workhorse-async"
    assert names
    assert all(name.startswith(allowed) for name in names)


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), KeyboardInterrupt()])
def test_an_error_in_can_claim_is_logged_counted_and_a_no(
    rig: Rig, kind: str, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    rig.task("t")(lambda: None)
    broken = threading.Event()
    broken.set()

    def may() -> bool:
        if broken.is_set():
            raise error
        return True

    run_id = rig.enqueue("t")
    worker = rig.worker(can_claim=hook_of(kind, may))
    worker.start()
    eventually(lambda: rig.count(Metric.HOOK_ERRORS, "can_claim") >= 2)
    assert rig.state(run_id) is RunState.READY
    assert "the hook can_claim failed" in caplog.text

    broken.clear()
    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)


def test_a_hook_that_does_not_answer_counts_as_a_no_and_is_not_called_again(
    rig: Rig, kind: str
) -> None:
    rig.task("t")(lambda: None)
    gate = Gate()
    calls: list[int] = []

    def may() -> bool:
        calls.append(1)
        if len(calls) == 1:
            gate.come()
        return True

    async def waits() -> bool:
        calls.append(1)
        if len(calls) == 1:
            await asyncio.to_thread(gate.come)
        return True

    run_id = rig.enqueue("t")
    worker = rig.worker(can_claim=may if kind == "plain" else waits, hook_ms=100)
    worker.start()

    eventually(lambda: rig.count(Metric.HOOK_ERRORS, "can_claim") == 1)
    if kind == "plain":
        # An async one was cancelled, and may be asked again.
        assert [worker._parts.hooks.may_claim("default") for _ in range(3)] == [False] * 3
        assert rig.state(run_id) is RunState.READY
        assert len(calls) == 1
    gate.open()
    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)


def test_an_error_in_on_claimed_stops_nothing(rig: Rig, kind: str) -> None:
    rig.task("t")(lambda: None)

    def broken(runs: Any) -> None:
        raise ValueError("no")

    run_ids = rig.enqueue_many("t", 2)
    worker = rig.worker(concurrency=1, on_claimed=hook_of(kind, broken))
    worker.start()

    eventually(lambda: all(rig.state(each) is RunState.SUCCEEDED for each in run_ids))
    eventually(lambda: rig.count(Metric.HOOK_ERRORS, "on_claimed") == 2)
