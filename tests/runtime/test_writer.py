"""Settles: many in a commit, offered until the store answers, and apart from those that cannot."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy.exc import DataError

from lanes.memory import MemoryLane
from tests.runtime.faults import Away, FaultyStore, Lost, writes_batch
from tests.runtime.rig import Gate, Rig
from tests.support.eventually import eventually
from workhorse.domain.hints import Hint
from workhorse.domain.ids import RunId
from workhorse.domain.outcomes import Succeeded
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import Reason, RunState
from workhorse.errors import StoreUnavailableError
from workhorse.runtime.activations import verdicts
from workhorse.runtime.writing.batching import Batch
from workhorse.store.durable.freeing import arm
from workhorse.store.lifecycle.settling import settle
from workhorse.telemetry import Metric


@pytest.fixture
def faulty(rig: Rig) -> Iterator[FaultyStore]:
    store = FaultyStore(rig.store)
    yield store
    rig.close()
    store.close()


def hold_back(faulty: FaultyStore, kind: str, rig: Rig) -> tuple[Gate, list[Batch]]:
    """Register a task that ends at once, and a store whose first settle waits; note batches."""
    gate = Gate()
    batches: list[Batch] = []
    original = faulty.try_once

    def try_once(op: Any, /, *args: Any, **kwargs: Any) -> Any:
        if writes_batch(op):
            batches.append(args[0])
            if len(batches) == 1:
                gate.come()
        return original(op, *args, **kwargs)

    faulty.try_once = try_once  # type: ignore[method-assign]

    async def waits() -> None: ...

    rig.task("t")((lambda: None) if kind == "plain" else waits)
    return gate, batches


def test_what_is_waiting_is_settled_in_one_commit(rig: Rig, faulty: FaultyStore, kind: str) -> None:
    gate, batches = hold_back(faulty, kind, rig)
    worker = rig.worker(concurrency=30, store=faulty)
    worker.start()
    rig.wake(rig.enqueue("t"))
    gate.wait()
    rest = rig.enqueue_many("t", 20)
    rig.wake(*rest)
    held = worker._parts.holdings.all
    eventually(lambda: sum(each.outcome is not None for each in held()) == 21)

    gate.open()

    eventually(lambda: all(rig.state(run_id) is RunState.SUCCEEDED for run_id in rest))
    assert [len(batch.settles) for batch in batches] == [1, 20]


def test_a_batch_stays_within_its_bounds(rig: Rig, faulty: FaultyStore) -> None:
    """At most 200 runs, and about 8 MiB: results are up to 1 MiB each."""
    gate, batches = hold_back(faulty, "plain", rig)
    large = "x" * (1024 * 1024 - 2)
    rig.task("large")(lambda: large)
    worker = rig.worker(concurrency=300, store=faulty)
    worker.start()
    rig.wake(rig.enqueue("t"))
    gate.wait()
    rig.enqueue_many("t", 250)
    rig.wake(*rig.enqueue_many("large", 20))
    held = worker._parts.holdings.all
    eventually(lambda: sum(each.outcome is not None for each in held()) == 271, within=30)

    gate.open()

    eventually(lambda: not worker.busy(), within=30)
    for batch in batches:
        ends = [each.activation.settlement for each in batch.settles]
        results = [getattr(end, "result", None) or "" for end in ends]
        assert len(ends) <= 200
        assert sum(map(len, results)) <= 9 * 1024 * 1024


def test_a_settle_is_offered_until_the_store_answers(rig: Rig, faulty: FaultyStore) -> None:
    rig.task("t")(lambda: "kept")
    away = faulty.faults["write_batch"] = Away()
    run_id = rig.enqueue("t")
    worker = rig.worker(concurrency=1, store=faulty)
    worker.start()
    for _ in range(4):
        assert away.asked.acquire(timeout=10)
    assert worker.busy()
    eventually(lambda: worker._parts.slots.free == 0)

    away.back.set()

    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)
    eventually(lambda: worker._parts.slots.free == 1)
    assert rig.view(run_id).result == '"kept"'


def test_what_follows_an_end_follows_it_where_its_answer_was_lost(
    rig: Rig, faulty: FaultyStore
) -> None:
    """The next of its session is woken, and who comes after it is freed, by the second try."""
    rig.task("t")(lambda: None)
    first, second = rig.enqueue_many("t", 2, session="s")
    after = rig.enqueue("t", after=(first,))
    rig.store.run(arm)
    claimed = rig.claim()
    assert claimed.id == first
    lost = faulty.faults["write_batch"] = Lost()

    worker = rig.worker(store=faulty)
    assert worker.process_run(claimed) is RunState.SUCCEEDED

    assert lost.happened.is_set()
    worker.stop(5)
    assert {hint.run_id for hint in rig.published} == {second, after}
    assert rig.state(after) is RunState.READY


def test_a_cancel_is_told_where_the_answer_to_its_end_was_lost(
    rig: Rig, faulty: FaultyStore
) -> None:
    rig.task("t")(lambda: None)
    claimed = rig.claimed("t")
    rig.cancel(claimed.id)
    faulty.faults["write_batch"] = Lost()

    assert rig.worker(store=faulty).process_run(claimed) is RunState.CANCELLED

    assert rig.state(claimed.id) is RunState.CANCELLED


def test_a_settle_whose_answer_was_lost_is_my_own_success(
    rig: Rig, faulty: FaultyStore, kind: str
) -> None:
    """It is repeated, finds its token gone, and its token in the outcome."""

    async def waits() -> str:
        return "once"

    rig.task("t")((lambda: "once") if kind == "plain" else waits)
    lost = faulty.faults["write_batch"] = Lost()
    claimed = rig.claimed("t")

    assert rig.worker(store=faulty).process_run(claimed) is RunState.SUCCEEDED

    assert lost.happened.is_set()
    assert rig.view(claimed.id).result == '"once"'
    assert rig.count(Metric.LEASES_LOST) == 0


def test_a_stop_gives_up_a_settle_that_the_store_does_not_take(
    rig: Rig, faulty: FaultyStore
) -> None:
    rig.task("t")(lambda: None)
    away = faulty.faults["write_batch"] = Away()
    run_id = rig.enqueue("t")
    shutdown = replace(rig.options.shutdown, hand_back_ms=300)
    worker = rig.worker(store=faulty, shutdown=shutdown)
    worker.start()
    assert away.asked.acquire(timeout=10)

    assert worker.stop(0) is False
    assert rig.state(run_id) is RunState.RUNNING


class RowLockedError(StoreUnavailableError):
    """As the store raises it when a row's lock was not got."""

    def __init__(self) -> None:
        super().__init__("locked")
        self.__cause__ = psycopg.errors.LockNotAvailable("canceling statement due to lock timeout")


def settles_but(guilty: set[RunId], error: Callable[[], Exception]) -> Any:
    """Return a replacement for `try_once` that refuses batches with one of these runs."""

    def wrap(original: Any) -> Any:
        def try_once(op: Any, /, *args: Any, **kwargs: Any) -> Any:
            refused = writes_batch(op)
            if refused and any(entry.lease.run_id in guilty for entry in args[0].settles):
                raise error()
            return original(op, *args, **kwargs)

        return try_once

    return wrap


@pytest.mark.parametrize(
    "error", [RowLockedError, lambda: RuntimeError("a bug")], ids=["locked", "bug"]
)
def test_a_batch_is_split_until_the_guilty_entry_stands_alone(
    rig: Rig, faulty: FaultyStore, error: Callable[[], Exception]
) -> None:
    release = threading.Event()

    @rig.task("t")
    async def together() -> None:
        while not release.is_set():
            await _tick()

    run_ids = rig.enqueue_many("t", 16)
    guilty = {run_ids[5]}
    faulty.try_once = settles_but(guilty, error)(faulty.try_once)  # type: ignore[method-assign]
    worker = rig.worker(concurrency=16, store=faulty)
    worker.start()
    eventually(lambda: len(worker._parts.holdings.all()) == 16)
    release.set()

    others = [run_id for run_id in run_ids if run_id not in guilty]
    eventually(lambda: all(rig.state(run_id) is RunState.SUCCEEDED for run_id in others))
    assert rig.state(run_ids[5]) is RunState.RUNNING
    assert len(worker._parts.holdings.all()) == 1
    eventually(lambda: worker._parts.slots.free == 15)

    guilty.clear()
    eventually(lambda: rig.state(run_ids[5]) is RunState.SUCCEEDED)


async def _tick() -> None:
    await asyncio.sleep(0.001)


def test_a_value_that_the_database_refuses_ends_its_run_and_no_other(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should a check ever miss one: the run fails by name instead of being offered for ever."""
    original = verdicts.of_value

    def careless(activation: Any, value: object) -> Any:
        if value == "bad":
            return Succeeded("\0" if rig.store.kind == "postgresql" else _Unbindable('"x"'))
        return original(activation, value)

    monkeypatch.setattr(verdicts, "of_value", careless)

    @rig.task("t")
    def echo(payload: str) -> str:
        return payload

    good = rig.enqueue_many("t", 3, payload='"good"')
    bad = rig.enqueue("t", '"bad"')
    if rig.store.kind == "sqlite":
        refused = DataError("settle", {}, ValueError())
        monkeypatch.setattr("workhorse.runtime.writing.batching.settle", _refusing(refused))

    assert rig.worker().drain() == 4

    assert {rig.state(run_id) for run_id in good} == {RunState.SUCCEEDED}
    view = rig.view(bad)
    assert (view.state, view.reason) == (RunState.FAILED, Reason.NOT_RETRYABLE)
    assert view.error_type == "SettlementRefused"


class _Unbindable(str):
    __slots__ = ()


def _refusing(error: Exception) -> Any:
    def refuse(tx: Any, entries: Any, *, reach: Any) -> Any:
        if any(isinstance(getattr(e.settlement, "result", None), _Unbindable) for e in entries):
            raise error
        return settle(tx, entries, reach=reach)

    return refuse


def test_a_writer_that_fails_is_started_again_and_settles_what_it_held(
    rig: Rig, faulty: FaultyStore
) -> None:
    rig.task("t")(lambda: None)
    run_id = rig.enqueue("t")
    worker = rig.worker(store=faulty)
    original = worker._parts.engine._writer._settled
    failures = iter([RuntimeError("a bug")])

    def fails_once(answers: Any) -> None:
        for error in failures:
            raise error
        original(answers)

    worker._parts.engine._writer._settled = fails_once
    worker.start()

    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)
    eventually(lambda: not worker.busy())
    assert rig.count(Metric.LOOP_RESTARTS, "writer") == 1


def test_wakeups_follow_the_commit(rig: Rig, faulty: FaultyStore) -> None:
    """For a retry with its delay, and for the next of a session."""
    rig.lane = MemoryLane()

    @rig.task("fails")
    def fails() -> None:
        raise ValueError("again")

    rig.task("t")(lambda: None)
    worker = rig.worker(store=faulty)
    retried = rig.claimed("fails", retry=RetryPolicy(first=timedelta(seconds=7), jitter=False))
    worker.process_run(retried)
    first, second = rig.enqueue_many("t", 2, session="s")
    claimed = rig.claim()
    assert claimed.id == first
    worker.process_run(claimed)

    eventually(lambda: len(rig.published) == 2)
    assert rig.published == [Hint(retried.id, "default", 7_000), Hint(second, "default")]


def test_a_broker_that_fails_delays_no_settle(rig: Rig) -> None:
    rig.task("t")(lambda: None)
    worker = rig.worker()
    first, second = rig.enqueue_many("t", 2, session="s")

    def broken(hints: Any) -> None:
        raise ConnectionError("the broker is away")

    worker._parts.engine.publisher._publish = broken
    assert worker.process_run(rig.claim()) is RunState.SUCCEEDED
    eventually(lambda: rig.count(Metric.WAKEUPS_NOT_SENT) == 1)
    assert worker.process_run(rig.claim()) is RunState.SUCCEEDED
    assert {rig.state(first), rig.state(second)} == {RunState.SUCCEEDED}


def test_a_row_that_is_really_locked_delays_only_its_own_settle(
    postgresql_rig: Rig, postgresql_url: str
) -> None:
    rig = postgresql_rig
    release = threading.Event()

    @rig.task("t")
    async def together() -> None:
        while not release.is_set():
            await _tick()

    run_ids = rig.enqueue_many("t", 4)
    worker = rig.worker(concurrency=4)
    worker.start()
    eventually(lambda: len(worker._parts.holdings.all()) == 4)
    with psycopg.connect(postgresql_url) as other:
        other.execute("select 1 from workhorse.live where id = %s for update", [run_ids[1]])
        release.set()
        rest = [run_id for run_id in run_ids if run_id != run_ids[1]]
        eventually(
            lambda: all(rig.state(run_id) is RunState.SUCCEEDED for run_id in rest), within=30
        )
        assert rig.state(run_ids[1]) is RunState.RUNNING
        other.rollback()
    eventually(lambda: rig.state(run_ids[1]) is RunState.SUCCEEDED, within=30)
    assert rig.view(run_ids[1]).attempt == 1
