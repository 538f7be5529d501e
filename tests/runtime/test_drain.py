"""Draining: by scan, without pauses, until nothing is left."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

from tests.runtime.rig import Gate, Rig
from workhorse.domain.ids import RunId
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import ClaimedRun, RunState
from workhorse.errors import StoreUnavailableError, WorkhorseError
from workhorse.runtime.base.pace import SystemPace
from workhorse.store.base.database import Store
from workhorse.telemetry import Metric


class CountedPace(SystemPace):
    """The system's clock; notes each pause of the thread that makes it."""

    def __init__(self) -> None:
        self.pauses: list[tuple[str, float]] = []

    def pause(self, until: threading.Event, ms: float) -> bool:
        self.pauses.append((threading.current_thread().name, ms))
        return super().pause(until, ms)


def test_a_drain_runs_all_there_is(rig: Rig, kind: str) -> None:
    done: list[int] = []

    def plain(payload: int) -> None:
        done.append(payload)

    async def waits(payload: int) -> None:
        done.append(payload)

    rig.task("t")(plain if kind == "plain" else waits)
    for n in range(25):
        rig.enqueue("t", str(n))

    assert rig.worker(concurrency=3).drain() == 25
    assert sorted(done) == list(range(25))


def test_a_drain_of_an_empty_queue_is_zero(rig: Rig) -> None:
    rig.task("t")(lambda: None)

    assert rig.worker().drain() == 0


def test_a_worker_drains_any_number_of_times(rig: Rig) -> None:
    rig.task("t")(lambda: None)
    worker = rig.worker()

    for _ in range(3):
        rig.enqueue("t")
        assert worker.drain() == 1
    assert not worker.busy()


def blocked_sessions(rig: Rig) -> tuple[RunId, list[RunId]]:
    """Make 300 ready runs that wait for their turn behind a run that is running elsewhere."""
    first = rig.enqueue("elsewhere", session="busy", queue="default")
    held: ClaimedRun = rig.claim()
    assert held.id == first
    return first, rig.enqueue_many("t", 300, session="busy")


def test_300_runs_of_a_busy_session_are_passed_without_a_pause(rig: Rig) -> None:
    executed: list[str] = []
    rig.task("elsewhere")(lambda: None)
    rig.task("t")(lambda: executed.append("t"))
    _, blocked = blocked_sessions(rig)
    behind = rig.enqueue_many("t", 10)
    pace = CountedPace()

    assert rig.worker(concurrency=10, pace=pace, poll_ms=5_000).drain(max_runs=5) == 5

    assert len(executed) == 5
    states = [rig.state(run_id) for run_id in behind]
    assert states == [RunState.SUCCEEDED] * 5 + [RunState.READY] * 5
    assert {rig.state(run_id) for run_id in blocked[::50]} == {RunState.READY}
    mine = threading.current_thread().name
    assert [pause for pause in pace.pauses if pause[0] == mine] == []


def test_300_runs_of_an_unknown_task_are_passed(rig: Rig) -> None:
    rig.task("t")(lambda: None)
    unknown = rig.enqueue_many("of another version", 300)
    behind = rig.enqueue_many("t", 10)

    assert rig.worker(concurrency=10).drain(max_runs=5) == 5

    states = [rig.state(run_id) for run_id in behind]
    assert states == [RunState.SUCCEEDED] * 5 + [RunState.READY] * 5
    assert {rig.state(run_id) for run_id in unknown[::50]} == {RunState.READY}


def test_max_runs_is_kept_over_several_queues(rig: Rig) -> None:
    rig.task("t")(lambda: None)
    rig.enqueue_many("t", 10, queue="a")
    rig.enqueue_many("t", 10, queue="b")
    worker = rig.worker(["a", "b"], concurrency=3)

    assert worker.drain(max_runs=7) == 7
    assert worker.drain(max_runs=0) == 0
    assert worker.drain() == 13


def test_a_full_queue_is_scanned_again_only_after_the_others(rig: Rig) -> None:
    order: list[str] = []

    @rig.task("t")
    def note(payload: str) -> None:
        order.append(payload)

    rig.enqueue_many("t", 20, payload='"a"', queue="a")
    rig.enqueue_many("t", 2, payload='"b"', queue="b")

    rig.worker(["a", "b"], concurrency=1).drain()

    assert set(order[:4]) == {"a", "b"}
    assert order[:4].count("b") == 2


def test_runs_of_a_session_come_one_after_the_other_in_order(rig: Rig) -> None:
    order: list[int] = []
    at_once = threading.Semaphore(1)

    @rig.task("t")
    def note(payload: int) -> None:
        assert at_once.acquire(blocking=False), "two runs of the session at once"
        order.append(payload)
        at_once.release()

    for n in range(12):
        rig.enqueue("t", str(n), session="one")

    assert rig.worker(concurrency=4).drain() == 12
    assert order == list(range(12))


def test_a_retry_without_a_rest_is_drained_too(rig: Rig) -> None:
    tries: list[int] = []

    @rig.task("t")
    def fails_twice() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise ValueError("again")

    run_id = rig.enqueue("t", retry=RetryPolicy(first=timedelta(0)))

    assert rig.worker().drain() == 3
    assert rig.state(run_id) is RunState.SUCCEEDED


def test_a_run_that_a_handler_enqueues_is_drained_too(rig: Rig) -> None:
    rig.task("child")(lambda: None)
    rig.task("parent")(lambda: (rig.enqueue("child"), None)[1])
    rig.enqueue("parent")

    assert rig.worker(concurrency=1).drain() == 2


def test_a_higher_priority_comes_first_and_the_oldest_within(rig: Rig) -> None:
    order: list[int] = []

    @rig.task("t")
    def note(payload: int) -> None:
        order.append(payload)

    for payload, priority in [(1, 50), (2, 0), (3, 100), (4, 50), (5, 100)]:
        rig.enqueue("t", str(payload), priority=priority)

    rig.worker(concurrency=1).drain()

    assert order == [3, 5, 1, 4, 2]


def test_can_claim_that_says_no_ends_the_drain(rig: Rig) -> None:
    rig.task("t")(lambda: None)
    run_id = rig.enqueue("t")

    assert rig.worker(can_claim=lambda: False).drain() == 0
    assert rig.state(run_id) is RunState.READY


def test_a_worker_that_is_started_or_stopped_does_not_drain(rig: Rig) -> None:
    rig.task("t")(lambda: None)
    worker = rig.worker()
    worker.start()
    with pytest.raises(WorkhorseError):
        worker.drain()
    worker.stop()
    with pytest.raises(WorkhorseError):
        worker.drain()


def test_a_stop_ends_a_drain_whose_run_cannot_be_settled(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is away, and stays so: the lease of the run expires."""
    rig.task("t")(lambda: None)
    rig.enqueue("t")
    worker = rig.worker()
    offered = threading.Event()

    def away(*_given: Any, **_more: Any) -> None:
        offered.set()
        raise StoreUnavailableError("it does not answer")

    monkeypatch.setattr(worker._calls, "try_once", away)
    drain = threading.Thread(target=worker.drain, daemon=True)
    drain.start()
    assert offered.wait(20)

    assert worker.stop(0) is False
    drain.join(20)
    assert not drain.is_alive()
    assert not worker.busy()


def test_a_drain_can_be_stopped_from_another_thread(rig: Rig) -> None:
    gate = Gate()
    rig.task("t")(gate.come)
    runs = rig.enqueue_many("t", 5)
    worker = rig.worker(concurrency=1)
    drained: list[int] = []
    draining = threading.Thread(target=lambda: drained.append(worker.drain()))
    draining.start()
    gate.wait()
    stopping = threading.Thread(target=worker.stop)
    stopping.start()

    gate.open()

    stopping.join(20)
    draining.join(20)
    assert drained == [1]
    assert [rig.state(run_id) for run_id in runs].count(RunState.READY) == 4


def test_a_drain_without_a_store_says_so(rig: Rig) -> None:
    class Away(Store):
        def run_once(self, op: Any, /, *args: Any, **kwargs: Any) -> Any:
            raise StoreUnavailableError("away")

    rig.task("t")(lambda: None)
    store = Away(
        rig.store.target, schema="workhorse", environment="", clock=rig.store.manual_clock,
        connections=3, pooler=False,
    )  # fmt: skip
    try:
        with pytest.raises(StoreUnavailableError):
            rig.worker(store=store).drain()
    finally:
        store.close()


def test_the_pages_of_a_drain_are_counted(rig: Rig) -> None:
    rig.task("t")(lambda: None)
    rig.enqueue("t")

    rig.worker().drain()

    assert rig.count(Metric.SCAN_PAGES) >= 1
    assert rig.count(Metric.RUNS_CLAIMED) == 1
