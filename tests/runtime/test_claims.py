"""Claims whose answers are lost or late, and sessions that two workers want."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from lanes.memory import MemoryLane
from tests.runtime.faults import Away, FaultyStore, Lost, Refused
from tests.runtime.rig import Rig
from tests.support.eventually import eventually
from workhorse.domain.runs import RunState
from workhorse.runtime.base.pace import SystemPace
from workhorse.telemetry import Metric


@pytest.fixture
def faulty(rig: Rig) -> Iterator[FaultyStore]:
    store = FaultyStore(rig.store)
    yield store
    rig.close()
    store.close()


class ShiftedPace(SystemPace):
    """The system's clock, and what a test adds to it."""

    def __init__(self) -> None:
        self.shift_ms = 0.0

    def now_ms(self) -> float:
        return super().now_ms() + self.shift_ms


def test_a_claim_whose_answer_was_lost_is_looked_up_and_run(rig: Rig, faulty: FaultyStore) -> None:
    """No lease has to run out for it, and no attempt is spent."""
    rig.task("t")(lambda: None)
    run_ids = rig.enqueue_many("t", 3)
    faulty.faults["claim"] = Lost()
    worker = rig.worker(concurrency=4, store=faulty)
    worker.start()

    eventually(lambda: all(rig.state(run_id) is RunState.SUCCEEDED for run_id in run_ids))

    assert "claimed_under" in faulty.calls[faulty.calls.index("claim") :]
    assert {(view.attempt, view.fence) for view in map(rig.view, run_ids)} == {(1, 1)}
    eventually(lambda: worker._parts.slots.free == 4)


def test_a_lost_claim_that_took_nothing_gives_its_slots_back(rig: Rig, faulty: FaultyStore) -> None:
    rig.task("t")(lambda: None)
    lost = faulty.faults["claim"] = Lost(3)
    worker = rig.worker(concurrency=2, store=faulty)
    worker.start()
    eventually(lambda: lost.times == 0)

    run_id = rig.enqueue("t")
    rig.wake(run_id)

    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)
    eventually(lambda: worker._parts.slots.free == 2)


def test_a_claim_whose_answer_is_lost_while_a_worker_stops_is_handed_back(
    rig: Rig, faulty: FaultyStore
) -> None:
    """No lease has to run out for it, and no attempt is spent."""
    rig.task("t")(lambda: None)
    run_id = rig.enqueue("t")
    worker = rig.worker(store=faulty)
    lost = Lost()

    def lose(carry_out: Callable[[], Any]) -> Any:
        worker._parts.end_claims()
        return lost(carry_out)

    faulty.faults["claim"] = lose
    worker.start()
    assert lost.happened.wait(20)

    assert worker.stop(5)
    assert rig.view(run_id).fence == 1
    assert rig.state(run_id) is RunState.READY


def test_a_claim_that_is_looked_up_too_late_is_handed_back(rig: Rig, faulty: FaultyStore) -> None:
    started = []
    rig.task("t")(lambda: started.append(1))
    run_id = rig.enqueue("t")
    pace = ShiftedPace()
    away = Away()

    def lose(carry_out: object) -> object:
        faulty.faults["claimed_under"] = away
        return lost(carry_out)  # type: ignore[arg-type]

    lost = Lost()
    faulty.faults["claim"] = lose
    allowed = threading.Event()
    allowed.set()
    worker = rig.worker(concurrency=1, store=faulty, pace=pace, can_claim=allowed.is_set)
    worker.start()
    assert away.asked.acquire(timeout=10)
    allowed.clear()
    pace.shift_ms = 20_001.0

    away.back.set()

    eventually(lambda: rig.state(run_id) is RunState.READY)
    assert not started
    assert rig.view(run_id).attempt == 1
    assert rig.count(Metric.RUNS_SETTLED, "handed_back") == 1


def test_a_claim_that_is_answered_late_is_handed_back_and_not_started(
    rig: Rig, faulty: FaultyStore
) -> None:
    started = []
    rig.task("t")(lambda: started.append(1))
    run_id = rig.enqueue("t")
    pace = ShiftedPace()
    allowed = threading.Event()
    allowed.set()

    def late(carry_out: object) -> object:
        answer = carry_out()  # type: ignore[operator]
        if answer.runs:
            pace.shift_ms += 20_001.0
            allowed.clear()
        return answer

    faulty.faults["claim"] = late
    worker = rig.worker(concurrency=1, store=faulty, pace=pace, can_claim=allowed.is_set)
    worker.start()

    eventually(lambda: rig.count(Metric.RUNS_SETTLED, "handed_back") == 1)
    view = rig.view(run_id)
    assert (view.state, view.attempt) == (RunState.READY, 1)
    assert not started
    eventually(lambda: [hint.run_id for hint in rig.published] == [run_id])
    eventually(lambda: worker._parts.slots.free == 1)


def test_a_session_that_another_worker_took_is_left_alone_at_the_third_trial(
    rig: Rig, faulty: FaultyStore
) -> None:
    rig.task("t")(lambda: None)
    taken = IntegrityError("claim", {}, sqlite3.IntegrityError("unique"))
    in_session = rig.enqueue("t", session="s")
    alone = rig.enqueue("t")
    sessions: list[bool] = []
    refused = Refused(taken, times=2)
    original = faulty.run_once

    def run_once(op: object, /, *args: object, **kwargs: object) -> object:
        sessions.append(bool(kwargs["sessions"]))
        return original(op, *args, **kwargs)  # type: ignore[arg-type]

    faulty.run_once = run_once  # type: ignore[method-assign,assignment]
    faulty.faults["claim"] = refused
    worker = rig.worker(store=faulty)
    worker.start()

    eventually(lambda: rig.state(alone) is RunState.SUCCEEDED)
    eventually(lambda: rig.state(in_session) is RunState.SUCCEEDED)
    assert sessions[:3] == [True, True, False]
    assert rig.count(Metric.LOOP_RESTARTS, "intake-default") == 0


def test_case_11_an_intake_that_fails_is_started_again(rig: Rig, faulty: FaultyStore) -> None:
    rig.task("t")(lambda: None)
    run_id = rig.enqueue("t")
    faulty.faults["claim"] = Refused(RuntimeError("a bug"), times=2)
    worker = rig.worker(concurrency=1, store=faulty)
    worker.start()

    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)

    assert rig.count(Metric.LOOP_RESTARTS, "intake-default") == 2
    eventually(lambda: worker._parts.slots.free == 1)


def test_case_11_nothing_is_received_until_the_store_answers(rig: Rig, faulty: FaultyStore) -> None:
    rig.task("t")(lambda: None)
    received: list[int] = []

    class Lane(MemoryLane):
        def receiver(self, queue: str):  # type: ignore[no-untyped-def]
            receiver = super().receiver(queue)
            original = receiver.receive

            def receive(limit: int, wait_ms: int) -> object:
                messages = original(limit, wait_ms)
                received.append(len(messages))
                return messages

            receiver.receive = receive  # type: ignore[method-assign,assignment]
            return receiver

    rig.lane = Lane()
    away = Away()
    worker = rig.worker(concurrency=4, store=faulty)
    worker.start()
    eventually(lambda: rig.count(Metric.SCAN_PAGES))
    faulty.faults |= {"claim": away, "claimed_under": away}
    first, second = rig.enqueue_many("t", 2)
    rig.wake(first)
    for _ in range(3):
        assert away.asked.acquire(timeout=10)
    seen = sum(received)

    rig.wake(second)
    for _ in range(2):
        assert away.asked.acquire(timeout=10)

    assert sum(received) == seen == 1
    away.back.set()
    # The scan after the outage finds both, whatever became of their messages.
    eventually(lambda: all(rig.state(each) is RunState.SUCCEEDED for each in (first, second)))
    assert rig.count(Metric.STORE_ERRORS) >= 5


def test_case_11_one_queue_that_finds_the_store_away_stops_the_others_receives(
    rig: Rig, faulty: FaultyStore
) -> None:
    rig.task("t")(lambda: None)
    lane = rig.lane = MemoryLane()
    away = faulty.faults["claimed_under"] = Away()
    away.back.set()
    worker = rig.worker(store=faulty, long_poll_ms=50)
    worker.start()
    eventually(lambda: rig.count(Metric.SCAN_PAGES))
    away.back.clear()
    worker._calls.away = True  # as any other thread's call would have found
    for _ in range(2):
        assert away.asked.acquire(timeout=10)

    run_id = rig.enqueue("t", wake=True)
    assert away.asked.acquire(timeout=10)

    assert lane.backlog("default") == 1
    away.back.set()
    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)


def test_case_11_a_worker_starts_while_its_store_is_away(rig: Rig, faulty: FaultyStore) -> None:
    rig.task("t")(lambda: None)
    away = Away()
    faulty.faults |= dict.fromkeys(("claim", "claimed_under", "_version"), away)
    run_id = rig.enqueue("t")
    worker = rig.worker(store=faulty)

    worker.start()
    for _ in range(3):
        assert away.asked.acquire(timeout=10)
    assert "claim" not in faulty.calls

    away.back.set()
    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)


class _FullError(Exception):
    """What an executor refuses runs with, once."""


def test_what_no_executor_takes_is_handed_back(rig: Rig) -> None:
    """Nobody else would know of it, and its lease would be renewed for ever."""

    @rig.task("asynchronous")
    async def waits() -> None: ...

    rig.task("plain")(lambda: None)
    run_ids = rig.enqueue_many("asynchronous", 10) + rig.enqueue_many("plain", 10)
    worker = rig.worker(concurrency=40)
    loop: Any = worker._parts.engine.loop
    submit, refusals = loop.submit, iter([True])

    def refuse_once(activations: object) -> None:
        if next(refusals, False):
            raise _FullError
        submit(activations)

    loop.submit = refuse_once
    worker.start()

    eventually(lambda: {rig.state(run_id) for run_id in run_ids} == {RunState.SUCCEEDED})
    assert {rig.view(run_id).attempt for run_id in run_ids} == {1}
