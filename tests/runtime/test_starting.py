"""What large claims bring is started beside the next claim; nothing on its way is lost sight of."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.runtime.rig import Gate, Rig
from tests.support.eventually import eventually
from workhorse.domain.runs import ClaimedRun, RunState
from workhorse.errors import StoreUnavailableError
from workhorse.runtime.activations.holdings import Holdings
from workhorse.runtime.claims.starting import FEW, Starter
from workhorse.runtime.process.worker import Worker
from workhorse.store.operators.viewing import counts
from workhorse.telemetry import Counters, Metric

MANY = FEW + 1


class Holding:
    """The engine's `hold`, which waits at a gate; `threads` says who called it."""

    def __init__(self, worker: Worker) -> None:
        self.gate = Gate()
        self.threads: list[str] = []
        engine = worker._parts.engine
        self._hold: Callable[..., Any] = engine.hold
        setattr(engine, "hold", self)  # noqa: B010 - a method, for this worker alone

    def __call__(self, runs: Sequence[Any], **options: Any) -> Any:
        if runs:
            self.threads.append(threading.current_thread().name)
            self.gate.come()
        return self._hold(runs, **options)


@pytest.fixture
def rig(rig: Rig) -> Rig:
    rig.task("t")(_nothing)
    return rig


async def _nothing() -> None: ...


def _count(rig: Rig, state: RunState) -> int:
    return rig.store.read(counts)[state]


def _expected(worker: Worker) -> int:
    return worker._parts.holdings.tally().held


def test_the_next_claim_is_sent_before_the_last_one_s_runs_are_made(rig: Rig) -> None:
    rig.enqueue_many("t", 4 * MANY)
    worker = rig.worker(concurrency=4 * MANY)
    held = Holding(worker)

    worker.start()
    # Half of the slots a claim: the first is held up where it is made, the second was claimed.
    eventually(lambda: _count(rig, RunState.RUNNING) == 4 * MANY)

    assert worker._parts.holdings.all() == []
    assert _expected(worker) == 4 * MANY
    assert worker.busy()
    held.gate.open()
    eventually(lambda: _count(rig, RunState.SUCCEEDED) == 4 * MANY)
    assert set(held.threads) == {"workhorse-starter"}
    eventually(lambda: not worker.busy())


def test_few_runs_are_started_by_who_has_claimed_them(rig: Rig) -> None:
    rig.enqueue_many("t", FEW)
    worker = rig.worker(concurrency=4 * MANY)
    held = Holding(worker)
    held.gate.open()

    assert worker.drain() == FEW
    assert held.threads == [threading.current_thread().name]


def test_a_drain_counts_what_is_on_its_way(rig: Rig) -> None:
    """It executes no more than it was told, and is over when the last of them has ended."""
    rig.enqueue_many("t", 3 * MANY)
    worker = rig.worker(concurrency=4 * MANY)
    held = Holding(worker)
    drained: list[int] = []
    drain = threading.Thread(target=lambda: drained.append(worker.drain(MANY + 10)))

    drain.start()
    held.gate.wait()
    assert _count(rig, RunState.RUNNING) == MANY + 10
    held.gate.open()
    drain.join(30)

    assert drained == [MANY + 10]
    assert _count(rig, RunState.SUCCEEDED) == MANY + 10
    assert _count(rig, RunState.READY) == 3 * MANY - (MANY + 10)


def _stopped(worker: Worker) -> Any:
    return worker.stop(5)


def _released(worker: Worker) -> Any:
    assert worker.release_in_flight() == 4 * MANY


@pytest.mark.parametrize("end", [_stopped, _released])
def test_what_is_on_its_way_at_the_end_is_handed_back(
    rig: Rig, end: Callable[[Worker], Any]
) -> None:
    """No handler is called, no attempt is spent, and nobody waits for a lease to run out."""
    rig.enqueue_many("t", 4 * MANY)
    worker = rig.worker(concurrency=4 * MANY)
    held = Holding(worker)
    worker.start()
    eventually(lambda: _count(rig, RunState.RUNNING) == 4 * MANY)

    worker._parts.end_claims()
    threading.Timer(0.05, held.gate.open).start()
    end(worker)

    assert _count(rig, RunState.READY) == 4 * MANY  # at once: the process may be gone by now
    assert _count(rig, RunState.SUCCEEDED) == 0
    assert not worker.busy()


class _TooMuchError(Exception):
    """What a test has a part of the worker fail with."""


def test_a_start_that_fails_gives_its_slots_back_and_is_told_of(rig: Rig) -> None:
    """Its runs wait for their leases; nobody waits for them here, and a drain ends with it."""
    rig.enqueue_many("t", MANY)
    worker = rig.worker(concurrency=2 * MANY)
    parts = worker._parts
    held = Holding(worker)
    held.gate.open()
    hold, failures = held._hold, iter([True])

    def once(runs: Sequence[Any], **options: Any) -> Any:
        if next(failures, False):
            raise _TooMuchError
        return hold(runs, **options)

    held._hold = once
    with pytest.raises(_TooMuchError):
        worker.drain()

    assert _count(rig, RunState.RUNNING) == MANY
    assert parts.slots.free == 2 * MANY
    assert rig.count(Metric.LOOP_RESTARTS, "starter") == 1
    rig.enqueue_many("t", MANY)
    assert worker.drain() == MANY


def test_a_start_that_fails_is_told_before_the_next_claim_however_few_it_brings(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is no error of a claim that has committed: what that brought is started and told."""
    told: list[ClaimedRun] = []
    worker = rig.worker(concurrency=4 * MANY, on_claimed=told.extend)
    starter = worker._parts.starter
    rig.enqueue_many("t", MANY)

    def fail(*_: object, **__: object) -> None:
        raise _TooMuchError

    monkeypatch.setattr(worker._parts.engine, "hold", fail)
    worker.start()
    eventually(lambda: rig.count(Metric.LOOP_RESTARTS, "starter") == 1)
    monkeypatch.undo()
    few = rig.enqueue_many("t", 3)

    eventually(lambda: all(rig.state(run_id) is RunState.SUCCEEDED for run_id in few))
    assert rig.count(Metric.LOOP_RESTARTS, "intake-default") == 1
    assert starter._error is None
    eventually(lambda: {run.id for run in told} >= set(few))


def test_what_cannot_be_timed_is_handed_back(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """No handler is called, and nobody renews the leases of what nobody executes."""
    rig.enqueue_many("t", MANY, timeout_ms=60_000)
    worker = rig.worker(concurrency=2 * MANY)

    def fail(*_: object, **__: object) -> None:
        raise _TooMuchError

    monkeypatch.setattr(worker._parts.engine._endings, "set_limit", fail)
    with pytest.raises(_TooMuchError):
        worker.drain()

    eventually(lambda: _count(rig, RunState.READY) == MANY)
    assert worker._parts.slots.free == 2 * MANY


def test_a_drain_tells_of_a_start_that_fails_last(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its slots and runs are given up before its error is known, and wake the drain."""
    rig.enqueue_many("t", MANY)
    worker = rig.worker(concurrency=2 * MANY)
    slots, waiting = worker._parts.slots, threading.Event()
    give_back, check = slots.give_back, worker._parts.starter.check

    def fail(*_: object, **__: object) -> None:
        raise _TooMuchError

    def give_back_late(count: int) -> None:
        give_back(count)
        if threading.current_thread().name == "workhorse-starter":
            waiting.wait(0.2)  # until the drain has asked, if it asks too early

    def check_once() -> None:
        try:
            check()
        finally:
            if not worker._parts.holdings:
                waiting.set()

    monkeypatch.setattr(worker._parts.engine, "hold", fail)
    monkeypatch.setattr(slots, "give_back", give_back_late)
    monkeypatch.setattr(worker._parts.starter, "check", check_once)

    with pytest.raises(_TooMuchError):
        worker.drain()


def test_what_goes_back_while_the_claims_end_is_counted(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.enqueue_many("t", 4 * MANY)
    worker = rig.worker(concurrency=4 * MANY)
    held = Holding(worker)
    worker.start()
    eventually(lambda: _count(rig, RunState.RUNNING) == 4 * MANY)
    end_claims = worker._parts.end_claims

    def end_and_wait() -> None:
        end_claims()
        held.gate.open()
        worker._parts.starter.flush(30)

    monkeypatch.setattr(worker._parts, "end_claims", end_and_wait)

    assert worker.release_in_flight() == 4 * MANY


def test_what_no_executor_takes_is_handed_back(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The executors of other tasks get theirs, and who claims is told of it."""
    rig.task("plain")(lambda: None)
    rig.enqueue_many("t", MANY)
    rig.enqueue_many("plain", MANY)
    worker = rig.worker(concurrency=4 * MANY)

    def refuse(_runs: object) -> None:
        raise _TooMuchError

    monkeypatch.setattr(worker._parts.engine.loop, "submit", refuse)
    with pytest.raises(_TooMuchError):
        worker.drain()

    assert _count(rig, RunState.SUCCEEDED) == MANY
    assert _count(rig, RunState.READY) == MANY


def test_without_a_thread_who_claims_starts_what_he_has(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.enqueue_many("t", 4 * MANY)
    worker = rig.worker(concurrency=2 * MANY)
    held = Holding(worker)
    held.gate.open()

    class Refused(threading.Thread):
        def start(self) -> None:
            if self.name == "workhorse-starter":
                raise RuntimeError("can't start new thread")
            super().start()

    monkeypatch.setattr(threading, "Thread", Refused)

    assert worker.drain() == 4 * MANY
    assert set(held.threads) == {threading.current_thread().name}


def test_a_thread_that_has_died_is_followed_by_another() -> None:
    starter = Starter(counters=Counters())
    done: list[int] = []
    starter.start(lambda: _note(done, 0), MANY)
    assert starter.flush(10)
    assert starter._thread is not None
    starter.close()
    starter._thread.join(10)
    starter._closed = False

    starter.start(lambda: _note(done, 1), MANY)

    assert starter.flush(10)
    assert done == [0, 1]
    starter.close()


def test_a_hook_that_is_told_of_a_claim_holds_no_other_queue_up(rig: Rig) -> None:
    """It holds up who claims, as it always has; what another one claimed is started."""
    told = Gate()
    for queue in ("one", "two"):
        rig.enqueue_many("t", MANY, queue=queue)

    def on_claimed(runs: Sequence[ClaimedRun]) -> None:
        if runs[0].queue == "one":
            told.come()

    worker = rig.worker(["one", "two"], 4 * MANY, on_claimed=on_claimed, hook_ms=60_000)
    worker.start()
    told.wait()

    eventually(lambda: _count(rig, RunState.SUCCEEDED) == 2 * MANY)
    told.open()


def test_a_drain_executes_as_many_as_it_was_told_however_slow_a_start_is(rig: Rig) -> None:
    """A run that has come is counted once, and one on its way is counted."""
    rig.enqueue_many("t", 6 * MANY)

    assert rig.worker(concurrency=2 * MANY).drain(3 * MANY) == 3 * MANY
    assert _count(rig, RunState.READY) == 3 * MANY


def test_slots_that_a_claim_did_not_need_are_free_at_once(rig: Rig) -> None:
    rig.enqueue_many("t", MANY)
    worker = rig.worker(concurrency=8 * MANY)
    held = Holding(worker)

    worker.start()
    held.gate.wait()

    assert worker._parts.slots.free == 7 * MANY
    held.gate.open()


def _interrupted(_tx: object, *_: object, **__: object) -> Any:
    raise KeyboardInterrupt


def _unanswered(_tx: object, *_: object, **__: object) -> Any:
    raise StoreUnavailableError("it is away")


@pytest.mark.parametrize("failing", [_interrupted, _unanswered])
def test_a_drain_that_breaks_off_hands_back_what_is_on_its_way(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, failing: Callable[..., Any]
) -> None:
    """The start of the first claim is held up, and the third claim fails."""
    rig.enqueue_many("t", 6 * MANY)
    worker = rig.worker(concurrency=8 * MANY)
    held = Holding(worker)
    run_once = worker._parts.claimers()[0]._calls.run_once
    asked: list[int] = []

    def ask(op: Callable[..., Any], **options: Any) -> Any:
        asked.append(1)
        if len(asked) == 3:
            threading.Timer(0.3, held.gate.open).start()
            return failing(None)
        return run_once(op, **options | {"free": 2 * MANY})

    monkeypatch.setattr(worker._parts._calls, "run_once", ask)
    with pytest.raises((KeyboardInterrupt, StoreUnavailableError)):
        worker.drain()

    assert _count(rig, RunState.RUNNING) == 0
    assert _count(rig, RunState.READY) == 6 * MANY


def test_a_worker_that_has_ended_leaves_no_thread(rig: Rig) -> None:
    rig.enqueue_many("t", MANY)
    worker = rig.worker(concurrency=2 * MANY)
    starter = worker._parts.starter

    worker.drain()

    assert starter._thread is not None
    starter._thread.join(10)
    assert not starter._thread.is_alive()


# -- by itself -----------------------------------------------------------------------------------


def test_who_waits_for_a_settle_waits_for_what_is_on_its_way() -> None:
    holdings = Holdings()
    holdings.expect(1)
    since = holdings.tally()
    assert holdings.wait_for_settle(since, 0), "there is something to wait for"
    waited: list[bool] = []
    waiting = threading.Thread(target=lambda: waited.append(holdings.wait_for_settle(since, 30)))

    waiting.start()
    eventually(lambda: waited or holdings._changed._waiters)  # type: ignore[attr-defined]
    holdings.expect(-1)
    waiting.join(30)

    assert waited == [False]


def _note(done: list[int], batch: int) -> int:
    done.append(batch)
    return 0


def test_no_more_than_two_batches_are_on_their_way() -> None:
    """Who brings a third waits until one of them is started; his own is in already."""
    starter = Starter(counters=Counters())
    gate = Gate()
    done: list[int] = []
    brought: list[int] = []

    def start(batch: int) -> int:
        gate.come()
        return _note(done, batch)

    def bring() -> None:
        for batch in range(4):
            starter.start(lambda batch=batch: start(batch), MANY)  # type: ignore[misc]
            brought.append(batch)

    bringing = threading.Thread(target=bring)
    bringing.start()
    gate.wait()
    eventually(lambda: starter._under_way == 3)
    assert brought == [0, 1]
    assert not starter.flush(0)

    gate.open()
    bringing.join(10)
    assert starter.flush(10)
    assert done == [0, 1, 2, 3]
    starter.close()


def test_after_its_end_a_batch_is_started_by_who_brings_it() -> None:
    starter = Starter(counters=Counters())
    starter.start(lambda: 0, MANY)
    starter.close()
    threads: list[threading.Thread] = []

    def start() -> int:
        threads.append(threading.current_thread())
        return 0

    starter.start(start, MANY)

    assert threads == [threading.current_thread()]
    assert starter.flush(10)
