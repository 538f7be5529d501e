"""Batch handlers in a worker: stops of single runs, of the batch, and of the worker."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Sequence
from contextlib import closing, suppress
from datetime import timedelta
from typing import Any

import pytest

from tests.runtime.batches import ONCE, Items, enqueue, handler, states
from tests.runtime.faults import Away, FaultyStore
from tests.runtime.rig import ENVIRONMENT, ROOT, Gate, Rig, beat
from tests.support.eventually import eventually
from tests.support.processes import Processes, RunningProcess
from workhorse import BatchItem
from workhorse.domain.ids import RunId
from workhorse.domain.outcomes import Retry
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import Failure, Reason, RunState
from workhorse.handlers.signals import StopReason
from workhorse.runtime.activations.activation import Activation
from workhorse.runtime.execution.engine import Engine
from workhorse.store.lifecycle.settling import Entry, settle
from workhorse.store.lifecycle.sweeping import recover
from workhorse.telemetry import Metric

# -- stops ---------------------------------------------------------------------------------------


class Held:
    """A batch of four whose handler waits at a gate, and what it sees when it is let on."""

    def __init__(self, rig: Rig, kind: str) -> None:
        self.rig = rig
        self.gate = Gate()
        self.seen: list[Any] = []
        self.said: list[bool] = []
        rig.task("t", batch=4)(handler(kind, self._body))

    def start(self, **options: Any) -> Any:
        # Runs are ended at once: none of them waits for the handler to clean up.
        self.worker = self.rig.worker(concurrency=4, cancel_wait_ms=60_000, **options)
        self.worker.start()
        self.gate.wait()
        return self.worker

    def _body(self, items: Items) -> list[str]:
        self.items = items
        self.gate.come()
        self.seen += [item.cancelled.reason for item in items]
        self.said += [item.succeed("late") for item in items[:2]]
        return ["returned"] * len(items)

    def held(self, run_id: RunId) -> Any:
        (found,) = [each for each in self.worker._parts.holdings.all() if each.claimed.id == run_id]
        return found


def test_a_cancel_ends_its_own_run_and_the_batch_goes_on(live_rig: Rig, kind: str) -> None:
    rig = live_rig
    held = Held(rig, kind)
    run_ids = enqueue(rig, 4)
    worker = held.start()

    rig.cancel(run_ids[0])
    beat(worker)

    eventually(lambda: states(rig, run_ids) == ["cancelled", "running", "running", "running"])
    assert worker._parts.slots.free == 0
    held.gate.open()
    eventually(lambda: states(rig, run_ids) == ["cancelled", *["succeeded"] * 3])
    assert held.seen == [StopReason.CANCELLED, None, None, None]
    assert held.said == [False, True]
    eventually(lambda: worker._parts.slots.free == 4)
    assert rig.count(Metric.HANDLERS_STUCK) == 0


@pytest.mark.parametrize("count", [1, 3])
def test_what_is_cancelled_just_before_its_call_is_not_handed_over(
    rig: Rig, kind: str, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Who ends runs finds no batch yet: a handler must not begin with what is settled."""
    original = Engine.dispatch

    def dispatch(self: Engine, activations: Sequence[Activation]) -> None:
        for each in activations[:count]:
            self._endings.cancel_asked(each)
        original(self, activations)

    handed: list[list[int]] = []
    monkeypatch.setattr(Engine, "dispatch", dispatch)
    rig.task("t", batch=3)(
        handler(kind, lambda items: handed.append([item.payload for item in items]))
    )
    run_ids = enqueue(rig, 3, retry=ONCE)
    worker = rig.worker(cancel_wait_ms=60_000)

    assert worker.drain() == 3 - count

    assert handed == ([] if count == 3 else [[1, 2]])
    assert states(rig, run_ids) == ["failed"] * count + ["succeeded"] * (3 - count)
    assert rig.view(run_ids[0]).reason is Reason.CANCELLED
    assert not worker.busy()


def test_when_all_are_cancelled_an_async_handler_is_cancelled_as_a_task(live_rig: Rig) -> None:
    """With the tasks that it has started: nobody waits for any of them."""
    rig, ended, kept = live_rig, [], []
    started = threading.Event()

    @rig.task("t", batch=3)
    async def endless(items: list[BatchItem[int]]) -> None:
        async def part() -> None:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                ended.append("part")

        try:
            kept.append(asyncio.get_running_loop().create_task(part()))
            await asyncio.sleep(0)
            items[0].succeed("early")
            started.set()
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append("handler")

    run_ids = enqueue(rig, 3)
    worker = rig.worker()
    worker.start()
    assert started.wait(20)

    rig.cancel(run_ids[1])
    beat(worker)
    eventually(lambda: rig.state(run_ids[1]) is RunState.CANCELLED)
    assert ended == []
    rig.cancel(run_ids[2])
    beat(worker)

    eventually(lambda: sorted(ended) == ["handler", "part"])
    eventually(lambda: states(rig, run_ids) == ["succeeded", "cancelled", "cancelled"])
    eventually(lambda: worker._parts.slots.free == 4)


def test_a_cancel_that_comes_too_late_for_a_run_does_not_end_its_handler(rig: Rig) -> None:
    """All is decided, and not stored yet: the handler still cleans up."""
    gate, ended = Gate(), []

    @rig.task("t", batch=3)
    async def cleans_up(items: list[BatchItem[int]]) -> None:
        for item in items:
            item.succeed("early")
        try:
            await asyncio.to_thread(gate.come)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        ended.append("by itself")

    run_ids = enqueue(rig, 3)
    with closing(FaultyStore(rig.store)) as store:
        away = store.faults["write_batch"] = Away()
        worker = rig.worker(store=store)
        worker.start()
        gate.wait()
        engine = worker._parts.engine
        for held in engine.holdings.all():
            engine._endings.cancel_asked(held)

        posted = threading.Event()
        assert engine.loop.post(posted.set)  # behind what would cancel it
        assert posted.wait(10)
        gate.open()
        eventually(lambda: ended)
        away.back.set()
        eventually(lambda: set(states(rig, run_ids)) == {"succeeded"})
        assert worker.stop()

    assert ended == ["by itself"]


def test_a_handler_that_does_not_stop_counts_as_stuck_once_all_of_its_runs_are_ended(
    live_rig: Rig,
) -> None:
    rig = live_rig
    held = Held(rig, "plain")
    run_ids = enqueue(rig, 4)
    worker = held.start()
    for run_id in run_ids:
        rig.cancel(run_id)
    beat(worker)

    eventually(lambda: set(states(rig, run_ids)) == {"cancelled"})
    eventually(lambda: rig.count(Metric.HANDLERS_STUCK) == 1)
    assert worker._parts.holdings.stuck == 4
    assert worker._parts.slots.free == 0
    held.gate.open()

    eventually(lambda: worker._parts.slots.free == 4)
    assert worker._parts.holdings.stuck == 0
    assert held.said == [False, False]


def test_a_lease_that_was_taken_ends_its_run_here_and_nothing_of_it_is_sent(
    live_rig: Rig, kind: str
) -> None:
    rig = live_rig
    batch = Held(rig, kind)
    run_ids = enqueue(rig, 4)
    worker = batch.start()
    lost = batch.held(run_ids[1])
    taken = Retry(60_000, Reason.LOST, Failure("LeaseExpired", "by another worker"))
    elsewhere = Entry(lost.lease, taken, queue="default")
    rig.store.run(settle, [elsewhere], reach=rig.lane.reach_ms)
    lost.ask_ms = 0.0
    worker._parts.engine._heartbeat.wake()

    eventually(lambda: lost.settled)
    assert worker._parts.slots.free == 0
    batch.gate.open()

    eventually(lambda: states(rig, run_ids) == ["succeeded", "scheduled", *["succeeded"] * 2])
    assert batch.seen == [None, StopReason.LEASE_LOST, None, None]
    assert batch.said == [True, False]
    assert rig.view(run_ids[1]).attempt == 2
    assert rig.count(Metric.LEASES_LOST) == 1
    eventually(lambda: worker._parts.slots.free == 4)


@pytest.mark.parametrize(
    ("limit", "reason"),
    [({"timeout_ms": 1_500}, StopReason.TIMEOUT), ({"deadline_ms": 1_500}, StopReason.DEADLINE)],
    ids=["time-out", "deadline"],
)
def test_a_run_whose_time_is_over_is_ended_by_itself(
    live_rig: Rig, kind: str, limit: dict[str, Any], reason: StopReason
) -> None:
    rig = live_rig
    held = Held(rig, kind)
    run_ids = [*enqueue(rig, 3), rig.enqueue("t", "3", retry=ONCE, **limit)]
    worker = held.start()

    eventually(lambda: states(rig, run_ids) == [*["running"] * 3, "failed"])
    held.gate.open()

    eventually(lambda: states(rig, run_ids) == [*["succeeded"] * 3, "failed"])
    assert held.seen == [None, None, None, reason]
    assert rig.view(run_ids[3]).reason == Reason(reason.value)
    assert rig.count(Metric.HANDLERS_STUCK) == 0
    assert worker.stop()


def test_a_time_out_of_all_cancels_an_async_handler_and_it_has_time_to_clean_up(rig: Rig) -> None:
    cleaned = threading.Event()

    @rig.task("t", batch=3)
    async def endless(items: list[BatchItem[int]]) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0)
            cleaned.set()

    # Long enough for the handler to be called, on a busy machine too.
    run_ids = enqueue(rig, 3, retry=ONCE, timeout_ms=1_000)
    worker = rig.worker()
    worker.start()

    eventually(lambda: set(states(rig, run_ids)) == {"failed"})
    assert cleaned.wait(10)
    eventually(lambda: worker._parts.slots.free == 4)
    assert rig.view(run_ids[0]).error_type == "AttemptTimeout"


def test_a_lapsed_lease_is_told_and_its_value_still_offered(rig: Rig, kind: str) -> None:
    """Nobody took the run, so what the handler says of it counts: as with single runs."""
    batch = Held(rig, kind)
    run_ids = enqueue(rig, 4)
    worker = batch.start()
    lapsed = batch.held(run_ids[2])

    worker._parts.engine._endings.lapsed(lapsed)
    assert rig.state(run_ids[2]) is RunState.RUNNING
    batch.gate.open()

    eventually(lambda: set(states(rig, run_ids)) == {"succeeded"})
    assert batch.seen == [None, None, StopReason.LEASE_LOST, None]


# -- the worker's end ----------------------------------------------------------------------------


def test_a_stop_is_told_at_once_and_a_batch_may_end_by_itself(rig: Rig, kind: str) -> None:
    """Also by an item whose run is settled already."""
    gate = Gate()
    told: list[Any] = []

    def body(items: Items) -> None:
        items[0].succeed("early")
        gate.come()
        told.append(items[0].stopping.wait(20))
        told.append([item.cancelled.reason for item in items])

    rig.task("t", batch=2)(handler(kind, body))
    run_ids = enqueue(rig, 2)
    worker = rig.worker()
    worker.start()
    gate.wait()
    eventually(lambda: rig.state(run_ids[0]) is RunState.SUCCEEDED)
    eventually(lambda: len(worker._parts.holdings.all()) == 1)
    gate.open()

    assert worker.stop()

    assert told == [True, [None, None]]
    assert states(rig, run_ids) == ["succeeded", "succeeded"]


def test_at_the_end_of_the_drain_what_is_undecided_is_handed_back(rig: Rig, kind: str) -> None:
    gate = Gate()
    told: list[Any] = []

    def body(items: Items) -> list[str]:
        items[0].succeed("early")
        gate.reached.set()
        told.extend((item.cancelled.wait(20), item.cancelled.reason) for item in items[1:])
        gate.come()
        return ["late"] * 3

    async def waits(items: list[BatchItem[Any]]) -> None:
        items[0].succeed("early")
        gate.reached.set()
        try:
            async with asyncio.TaskGroup() as group:
                for item in items[1:]:
                    group.create_task(one(item))
        finally:
            told.append("handler")
            items[1].succeed("it had the time for this one")

    async def one(item: BatchItem[Any]) -> None:
        await item.cancelled.wait_async(20)
        told.append((True, item.cancelled.reason))
        await asyncio.get_running_loop().create_future()

    rig.task("t", batch=3)(handler("plain", body) if kind == "plain" else waits)
    run_ids = enqueue(rig, 3)
    worker = rig.worker()
    worker.start()
    gate.wait()
    eventually(lambda: rig.state(run_ids[0]) is RunState.SUCCEEDED)

    assert worker.stop(0) is False
    gate.open()

    views = [rig.view(run_id) for run_id in run_ids]
    second = "ready" if kind == "plain" else "succeeded"
    assert [view.state.value for view in views] == ["succeeded", second, "ready"]
    assert [view.attempt for view in views] == [1, 1, 1]
    assert told[:2] == [(True, StopReason.SHUTDOWN)] * 2
    assert told[2:] == ([] if kind == "plain" else ["handler"])
    assert run_ids[2] in [hint.run_id for hint in rig.published]


def test_an_error_of_single_work_that_was_cancelled_for_the_end_hands_its_run_back(
    rig: Rig,
) -> None:
    """Whatever it raises of that: a handler that answers for its items itself spends nothing."""
    started = threading.Event()

    @rig.task("t", batch=3)
    async def each_by_itself(items: list[BatchItem[int]]) -> list[Any]:
        tasks = [asyncio.create_task(one(item)) for item in items]
        started.set()
        with suppress(asyncio.CancelledError):
            await asyncio.wait(tasks)
        return await asyncio.gather(*tasks, return_exceptions=True)

    async def one(item: BatchItem[int]) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            raise ConnectionError("a library's own view of it") from None

    run_ids = enqueue(rig, 3, retry=ONCE)
    worker = rig.worker()
    worker.start()
    assert started.wait(10)

    assert worker.stop(0) is False

    assert states(rig, run_ids) == ["ready"] * 3


def test_what_a_handler_leaves_behind_is_ended_before_its_runs_are_handed_back(rig: Rig) -> None:
    """A task that goes on after that could act for a run that is another's."""
    order: list[str] = []
    kept: list[asyncio.Task[None]] = []
    started = threading.Event()

    @rig.task("t", batch=3)
    async def leaves_one(items: list[BatchItem[int]]) -> None:
        async def part() -> None:
            try:
                started.set()
                await asyncio.get_running_loop().create_future()
            finally:
                await asyncio.sleep(0.05)
                order.append("cleaned up")

        kept.append(asyncio.create_task(part()))
        await asyncio.get_running_loop().create_future()

    run_ids = enqueue(rig, 3)
    worker = rig.worker()
    settled = worker._parts.engine._writer._settled

    def note(answers: Any) -> None:
        order.append("settled")
        settled(answers)

    worker._parts.engine._writer._settled = note
    worker.start()
    assert started.wait(10)

    assert worker.stop(0) is False

    assert order == ["cleaned up", "settled"]
    assert states(rig, run_ids) == ["ready"] * 3


def test_a_handler_that_has_decided_all_gets_the_time_to_clean_up(rig: Rig, kind: str) -> None:
    gate, cleaned = Gate(), threading.Event()

    def body(items: Items) -> None:
        for item in items:
            item.succeed("early")
        gate.come()
        cleaned.set()

    rig.task("t", batch=3)(handler(kind, body))
    run_ids = enqueue(rig, 3)
    worker = rig.worker()
    worker.start()
    gate.wait()
    eventually(lambda: set(states(rig, run_ids)) == {"succeeded"})
    answers: list[bool] = []
    stopping = threading.Thread(target=lambda: answers.append(worker.stop()))
    stopping.start()
    eventually(lambda: worker._parts.engine._batches._closing)

    gate.open()

    stopping.join(20)
    assert answers == [True]
    assert cleaned.is_set()


def test_release_in_flight_hands_back_what_is_undecided(rig: Rig, kind: str) -> None:
    held = Held(rig, kind)
    run_ids = enqueue(rig, 4)
    worker = held.start()
    held.items[3].succeed("early")

    assert worker.release_in_flight() == 3

    assert states(rig, run_ids) == ["ready", "ready", "ready", "succeeded"]
    held.gate.open()
    eventually(lambda: held.said == [False, False])
    assert held.seen[:3] == [StopReason.SHUTDOWN] * 3


def test_a_batch_for_which_there_is_no_thread_is_handed_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed: list[int] = []
    rig.task("t", batch=3)(handler("plain", lambda items: handed.append(len(items))))
    run_ids = enqueue(rig, 3)
    worker = rig.worker(can_claim=lambda: not refused)
    threads = worker._parts.engine._batches._threads
    refused: list[Any] = []

    def submit(call: Any) -> None:
        refused.append(call)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads, "submit", submit)
    worker.start()

    eventually(lambda: len(refused) == 1)
    eventually(lambda: set(states(rig, run_ids)) == {"ready"})
    eventually(lambda: worker._parts.slots.free == 4)
    assert handed == []


def test_a_batch_handler_that_blocks_the_event_loop_is_named(
    live_rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig, gate = live_rig, Gate()

    @rig.task("t", batch=2)
    async def blocks(items: list[BatchItem[int]]) -> None:
        gate.come()

    enqueue(rig, 2)
    worker = rig.worker(blocked_ms=100)
    worker.start()
    gate.wait()

    eventually(lambda: "has blocked the event loop" in caplog.text)
    gate.open()
    assert "the handler of task 't'" in caplog.text
    assert worker.stop()


def test_when_a_worker_is_killed_in_a_batch_only_what_was_undecided_runs_again(
    live_rig: Rig, processes: Processes, database_url: str
) -> None:
    rig = live_rig
    run_ids = [
        rig.enqueue("batch", str(number), retry=RetryPolicy(first=timedelta(0)))
        for number in range(4)
    ]
    first = _start_program(processes, database_url)
    for run_id in run_ids:
        first.wait_for(f"^started {run_id} 1$")
    eventually(lambda: states(rig, run_ids) == ["succeeded", "running"] * 2)

    first.kill()

    second = _start_program(processes, database_url)

    def ended() -> bool:
        rig.store.run(recover, reach=rig.lane.reach_ms, draw=random.Random(1))
        return set(states(rig, run_ids)) == {"succeeded"}

    eventually(ended, within=20)
    views = [rig.view(run_id) for run_id in run_ids]
    assert [view.result for view in views] == ['"attempt 1"', "null"] * 2
    assert [view.attempt for view in views] == [1, 2] * 2
    started = [run_id for run_id in run_ids if f"started {run_id}" in second.output()]
    assert started == [run_ids[1], run_ids[3]]


def _start_program(processes: Processes, url: str) -> RunningProcess:
    return processes.python(
        "-m", "tests.runtime.batch_program", url, "20000", "1000", env=ENVIRONMENT, cwd=ROOT
    )
