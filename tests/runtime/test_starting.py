"""What large claims bring is started beside the next claim; nothing on its way is lost sight of."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.runtime.rig import Gate, Rig
from tests.support.eventually import eventually
from workhorse.domain.runs import RunState
from workhorse.runtime.activations.holdings import Holdings
from workhorse.runtime.claims.starting import MANY, Starter
from workhorse.runtime.process.worker import Worker
from workhorse.store.operators.viewing import counts
from workhorse.telemetry import Counters, Metric


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
    rig.enqueue_many("t", MANY - 1)
    worker = rig.worker(concurrency=4 * MANY)
    held = Holding(worker)
    held.gate.open()

    assert worker.drain() == MANY - 1
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
    return worker.release_in_flight()


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


def test_a_start_that_fails_is_no_other_s(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its runs wait for their leases, the next batch is started, and somebody hears of it."""
    rig.enqueue_many("t", 2 * MANY)
    worker = rig.worker(concurrency=2 * MANY)
    held = Holding(worker)
    held.gate.open()
    hold, failures = held._hold, iter([True])

    def once(runs: Sequence[Any], **options: Any) -> Any:
        if next(failures, False):
            raise RuntimeError("planted")
        return hold(runs, **options)

    held._hold = once
    worker.drain(MANY)

    assert worker.drain(MANY) == MANY
    assert _count(rig, RunState.RUNNING) == MANY
    assert rig.count(Metric.LOOP_RESTARTS, "starter") == 1


# -- by itself -----------------------------------------------------------------------------------


def test_no_more_than_two_batches_are_on_their_way() -> None:
    """Who brings a third waits until one of them is started."""
    holdings = Holdings()
    starter = Starter(holdings, counters=Counters())
    gate = Gate()
    done: list[int] = []

    def start(batch: int) -> None:
        gate.come()
        done.append(batch)

    def bring() -> None:
        for batch in range(3):
            starter.start(lambda batch=batch: start(batch), MANY)  # type: ignore[misc]

    bringing = threading.Thread(target=bring)
    bringing.start()
    gate.wait()
    eventually(lambda: holdings.tally().held == 2 * MANY)
    assert starter._under_way == 2
    assert bringing.is_alive()
    assert not starter.flush(0)

    gate.open()
    bringing.join(10)
    assert starter.flush(10)
    assert done == [0, 1, 2]
    assert not holdings


def test_after_its_end_a_batch_is_started_by_who_brings_it() -> None:
    holdings = Holdings()
    starter = Starter(holdings, counters=Counters())
    starter.start(lambda: None, MANY)
    starter.close()
    threads: list[threading.Thread] = []

    starter.start(lambda: threads.append(threading.current_thread()), MANY)

    assert threads == [threading.current_thread()]
    assert starter.flush(10)
    assert not holdings
