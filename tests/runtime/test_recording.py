"""Boundaries through the writer: many in a commit, repeated, refused, and lost with the lease."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from sqlalchemy.exc import DataError

from lanes.memory import MemoryLane
from tests.runtime.faults import Away, FaultyStore, Lost, writes_batch
from tests.runtime.rig import Gate, Rig
from tests.support.eventually import eventually
from workhorse.domain.boundaries import History
from workhorse.domain.hints import Hint
from workhorse.domain.ids import RunId
from workhorse.domain.outcomes import Finish, HandBack, Retry
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import MAX_HAND_BACKS, Failure, Reason, RunState
from workhorse.errors import LeaseLostError, StoreUnavailableError
from workhorse.handlers.context import AsyncContext, Context
from workhorse.runtime.writing import batching
from workhorse.runtime.writing.batching import Batch
from workhorse.store.durable.boundaries import lock_leases, record
from workhorse.store.durable.histories import load
from workhorse.store.lifecycle.settling import Entry, settle
from workhorse.telemetry import Metric

ONCE = RetryPolicy(max_attempts=1)
TAKEN = Retry(60_000, Reason.LOST, Failure("LeaseExpired", "by another worker"))


@pytest.fixture
def faulty(rig: Rig) -> Iterator[FaultyStore]:
    store = FaultyStore(rig.store)
    yield store
    rig.close()
    store.close()


@pytest.fixture
def heartbeat(rig: Rig) -> Iterator[FaultyStore]:
    store = FaultyStore(rig.store, connections=1)
    yield store
    rig.close()
    store.close()


def stored(rig: Rig, run_id: RunId) -> dict[str, str | None]:
    """Return the values of a run's boundaries, by name."""
    history = rig.store.run(load, [run_id]).get(run_id, History())
    return {each.name: each.value for each in history.boundaries}


def stages(kind: str, *names: str, then: Callable[[], Any] = lambda: None) -> Any:
    """Return a handler that passes checkpoints, each with its name as its value."""

    def plain(ctx: Context) -> Any:
        for name in names:
            ctx.checkpoint(name, partial(str, name))
        return then()

    async def waits(ctx: AsyncContext) -> Any:
        for name in names:
            await ctx.checkpoint(name, partial(str, name))
        return then()

    return plain if kind == "plain" else waits


def test_what_a_handler_passes_is_stored_before_it_goes_on(rig: Rig, kind: str) -> None:
    seen: list[dict[str, str | None]] = []
    claimed: list[Any] = []

    def look() -> None:
        seen.append(stored(rig, claimed[0].id))

    rig.task("t")(stages(kind, "a", "b", then=look))
    claimed.append(rig.claimed("t"))

    assert rig.worker().process_run(claimed[0]) is RunState.SUCCEEDED
    assert seen == [{"a": '"a"', "b": '"b"'}]


def test_an_activation_without_boundaries_costs_what_its_settle_does(
    rig: Rig, faulty: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.task("t")(lambda: None)
    claimed, other = rig.claimed("t"), rig.claimed("t")
    statements: list[str] = []
    execute = FaultyStore.execute

    def noted(self: Any, conn: Any, builder: Any, *rest: Any) -> Any:
        statements.append(builder.__name__)
        return execute(self, conn, builder, *rest)

    monkeypatch.setattr(FaultyStore, "execute", noted)

    assert rig.worker(store=faulty).process_run(claimed) is RunState.SUCCEEDED

    by_worker, statements[:] = list(statements), []
    assert other.lease is not None
    entry = Entry(other.lease, Finish(RunState.SUCCEEDED, result="null"), "default")
    faulty.run(settle, [entry], reach=rig.lane.reach_ms)
    assert by_worker == statements


class Held:
    """A store whose first batch waits until the test lets it go; the batches are noted."""

    def __init__(self, faulty: FaultyStore) -> None:
        self.gate = Gate()
        self.batches: list[Batch] = []
        self._original = faulty.try_once
        faulty.try_once = self._try_once  # type: ignore[method-assign]

    def _try_once(self, op: Any, /, *args: Any, **kwargs: Any) -> Any:
        if writes_batch(op):
            self.batches.append(args[0])
            if len(self.batches) == 1:
                self.gate.come()
        return self._original(op, *args, **kwargs)

    def queued(self, worker: Any) -> int:
        return len(worker._parts.engine._writer._waiting)


def test_boundaries_of_many_runs_share_a_commit_and_cross_to_the_loop_at_once(
    rig: Rig, faulty: FaultyStore, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(faulty)
    rig.task("t")(stages(kind, "a"))
    worker = rig.worker(concurrency=30, store=faulty)
    crossings: list[Any] = []
    post = worker._parts.engine.loop.post

    def noted(call: Any) -> bool:
        if call.__name__ == "give_there":
            crossings.append(call)
        return post(call)

    monkeypatch.setattr(worker._parts.engine._writer, "_post", noted)
    worker.start()
    rig.wake(rig.enqueue("t"))
    held.gate.wait()
    rest = rig.enqueue_many("t", 20)
    rig.wake(*rest)
    eventually(lambda: held.queued(worker) == 20)

    held.gate.open()

    eventually(lambda: all(rig.state(run_id) is RunState.SUCCEEDED for run_id in rest))
    assert [len(batch.records) for batch in held.batches[:2]] == [1, 20]
    carried = sum(1 for batch in held.batches if batch.records)
    assert len(crossings) == (carried if kind == "async" else 0)


def test_settles_and_boundaries_of_others_share_a_commit_and_lock_first(
    rig: Rig, faulty: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(faulty)
    locked: list[int] = []

    def noted(tx: Any, leases: Any) -> None:
        locked.append(len(leases))
        lock_leases(tx, leases)

    monkeypatch.setattr(batching, "lock_leases", noted)
    rig.task("first")(lambda: None)
    rig.task("ends")(lambda: None)
    rig.task("passes")(stages("plain", "a"))
    worker = rig.worker(concurrency=5, store=faulty)
    worker.start()
    rig.wake(rig.enqueue("first"))
    held.gate.wait()
    runs = [rig.enqueue("ends"), rig.enqueue("passes")]
    rig.wake(*runs)
    eventually(lambda: held.queued(worker) == 2)

    held.gate.open()

    eventually(lambda: all(rig.state(run_id) is RunState.SUCCEEDED for run_id in runs))
    mixed = held.batches[1]
    assert (len(mixed.records), len(mixed.settles)) == (1, 1)
    assert locked == [2]


# -- answers that are lost, and a store that is away ---------------------------------------------


def test_a_boundary_whose_answer_was_lost_is_my_own(
    rig: Rig, faulty: FaultyStore, kind: str
) -> None:
    """It is repeated, and finds its own row equal."""
    calls: list[str] = []
    rig.task("t")(stages(kind, "a", "b", then=lambda: calls.append("end")))
    lost = faulty.faults["write_batch"] = Lost()
    claimed = rig.claimed("t", retry=ONCE)

    assert rig.worker(store=faulty).process_run(claimed) is RunState.SUCCEEDED

    assert lost.happened.is_set()
    assert stored(rig, claimed.id) == {"a": '"a"', "b": '"b"'}
    assert calls == ["end"]


def test_a_handler_waits_for_a_store_that_is_away(rig: Rig, faulty: FaultyStore, kind: str) -> None:
    rig.task("t")(stages(kind, "a"))
    away = faulty.faults["write_batch"] = Away()
    run_id = rig.enqueue("t", retry=ONCE)
    worker = rig.worker(concurrency=1, store=faulty)
    worker.start()
    for _ in range(3):
        assert away.asked.acquire(timeout=10)
    assert worker.busy()

    away.back.set()

    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)
    assert stored(rig, run_id) == {"a": '"a"'}


def notes_its_error(kind: str, errors: list[BaseException]) -> Any:
    """Return a handler that notes what its checkpoint raises, and raises it further."""

    def plain(ctx: Context) -> None:
        try:
            ctx.checkpoint("a", lambda: 1)
        except BaseException as error:
            errors.append(error)
            raise

    async def waits(ctx: AsyncContext) -> None:
        try:
            await ctx.checkpoint("a", lambda: 1)
        except BaseException as error:
            errors.append(error)
            raise

    return plain if kind == "plain" else waits


def test_a_boundary_under_way_fails_at_once_when_the_lease_lapses(
    rig: Rig, faulty: FaultyStore, heartbeat: FaultyStore, kind: str
) -> None:
    """While the store is still away: no handler waits for a write that cannot count."""
    errors: list[BaseException] = []
    rig.task("t")(notes_its_error(kind, errors))
    away = faulty.faults["write_batch"] = Away()
    heartbeat.faults["renew"] = Away()
    run_id = rig.enqueue("t")
    worker = rig.worker(store=faulty, heartbeat_store=heartbeat, lease_ms=500)
    worker.start()
    assert away.asked.acquire(timeout=10)

    eventually(lambda: errors)
    assert isinstance(errors[0], LeaseLostError)
    assert not away.back.is_set()

    away.back.set()
    eventually(lambda: not worker.busy())
    assert stored(rig, run_id) == {}
    assert rig.view(run_id).attempt == 2


def test_a_boundary_under_a_lease_that_was_taken_is_not_stored(rig: Rig, kind: str) -> None:
    """The store says so before the heartbeat does; the handler is told, and nothing is sent."""
    gate, errors = Gate(), list[BaseException]()

    def plain(ctx: Context) -> None:
        gate.come()
        try:
            ctx.checkpoint("a", lambda: 1)
        except LeaseLostError as error:
            errors.append(error)

    async def waits(ctx: AsyncContext) -> None:
        await asyncio.to_thread(gate.come)
        try:
            await ctx.checkpoint("a", lambda: 1)
        except (LeaseLostError, asyncio.CancelledError) as error:  # its task is cancelled too
            errors.append(error)

    rig.task("t")(plain if kind == "plain" else waits)
    run_id = rig.enqueue("t")
    worker = rig.worker()
    worker.start()
    gate.wait()
    (held,) = worker._parts.holdings.all()
    rig.store.run(settle, [Entry(held.lease, TAKEN)], reach=rig.lane.reach_ms)

    gate.open()

    eventually(lambda: not worker.busy())
    eventually(lambda: len(errors) == 1)
    assert stored(rig, run_id) == {}
    assert rig.state(run_id) is RunState.SCHEDULED
    assert held.lost
    assert rig.count(Metric.LEASES_LOST) == 1
    assert rig.count(Metric.RUNS_SETTLED, "succeeded") == 0


def test_a_stop_gives_up_a_boundary_that_the_store_does_not_take(
    rig: Rig, faulty: FaultyStore, kind: str
) -> None:
    errors: list[BaseException] = []
    rig.task("t")(notes_its_error(kind, errors))
    away = faulty.faults["write_batch"] = Away()
    rig.enqueue("t")
    shutdown = replace(rig.options.shutdown, hand_back_ms=300)
    worker = rig.worker(store=faulty, shutdown=shutdown)
    worker.start()
    assert away.asked.acquire(timeout=10)

    assert worker.stop(0) is False

    eventually(lambda: errors)
    assert isinstance(errors[0], LeaseLostError if kind == "plain" else asyncio.CancelledError)


def test_a_boundary_asked_for_after_the_worker_has_ended_is_refused(rig: Rig) -> None:
    gate, errors = Gate(), list[BaseException]()

    @rig.task("t")
    def late(ctx: Context) -> None:
        gate.come()
        for call in (lambda: ctx.checkpoint("a", lambda: 1), lambda: ctx.progress(1)):
            try:
                call()
            except BaseException as error:  # noqa: BLE001 - whatever it is
                errors.append(error)

    run_id = rig.enqueue("t")
    worker = rig.worker()
    worker.start()
    gate.wait()
    assert worker.stop(0) is False
    assert rig.state(run_id) is RunState.READY

    gate.open()

    eventually(lambda: errors)
    assert stored(rig, run_id) == {}


def test_what_a_handler_has_left_behind_begins_nothing_more(rig: Rig, kind: str) -> None:
    """A thread, or a task, of a handler that has returned: its operation is not called."""
    errors, called, returned = list[BaseException](), list[str](), threading.Event()
    left: list[asyncio.Task[None]] = []

    @rig.task("t")
    def plain(ctx: Context) -> None:
        def late() -> None:
            returned.wait(10)
            try:
                ctx.checkpoint("a", lambda: called.append("a"))
            except BaseException as error:  # noqa: BLE001 - whatever it is
                errors.append(error)

        threading.Thread(target=late).start()

    @rig.task("async")
    async def waits(ctx: AsyncContext) -> None:
        async def late() -> None:
            await asyncio.to_thread(returned.wait, 10)
            try:
                await ctx.checkpoint("a", lambda: called.append("a"))
            except BaseException as error:  # noqa: BLE001 - whatever it is
                errors.append(error)

        left.append(asyncio.create_task(late()))

    run_id = rig.enqueue("t" if kind == "plain" else "async")
    worker = rig.worker()
    worker.start()
    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)

    returned.set()

    eventually(lambda: errors)
    worker.stop()
    assert "activation has ended" in str(errors[0])
    assert (type(errors[0]), called, stored(rig, run_id)) == (LeaseLostError, [], {})


# -- what is refused -----------------------------------------------------------------------------


def refusing(name: str, error: Exception) -> Any:
    """Return a replacement for `record` that refuses batches with a boundary of that name."""

    def refuse(tx: Any, records: Any, *, reach: Any) -> Any:
        if any(each.boundary.name == name for each in records):
            raise error
        return record(tx, records, reach=reach)

    return refuse


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (DataError("insert", {}, ValueError()), Reason.NOT_RETRYABLE),
        (RuntimeError("a bug"), Reason.ERROR),
    ],
    ids=["value", "bug"],
)
def test_a_boundary_that_the_database_refuses_fails_its_attempt_and_no_other(
    rig: Rig,
    faulty: FaultyStore,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    reason: Reason,
) -> None:
    held = Held(faulty)
    monkeypatch.setattr(batching, "record", refusing("bad", error))
    rig.task("good")(stages(kind, "a"))
    rig.task("bad")(stages(kind, "bad"))
    worker = rig.worker(concurrency=20, store=faulty)
    worker.start()
    first = rig.enqueue("good")
    rig.wake(first)
    held.gate.wait()
    good = rig.enqueue_many("good", 7)
    bad = rig.enqueue("bad", retry=ONCE)
    good += rig.enqueue_many("good", 7)
    rig.wake(*good, bad)
    eventually(lambda: held.queued(worker) == 15)

    held.gate.open()

    eventually(lambda: all(rig.state(run_id) is RunState.SUCCEEDED for run_id in [first, *good]))
    eventually(lambda: rig.state(bad) is RunState.FAILED)
    view = rig.view(bad)
    assert view.reason is reason
    assert f"run {bad}: boundary 'bad'" in (view.error_message or "")
    assert stored(rig, bad) == {}


class RowLockedError(StoreUnavailableError):
    """As the store raises it when a row's lock was not got."""

    def __init__(self) -> None:
        super().__init__("locked")
        self.__cause__ = psycopg.errors.LockNotAvailable("canceling statement due to lock timeout")


def test_a_boundary_whose_row_is_locked_waits_and_delays_no_other(
    rig: Rig, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = threading.Event()
    locked.set()

    def refuse(tx: Any, records: Any, *, reach: Any) -> Any:
        if locked.is_set() and any(each.boundary.name == "bad" for each in records):
            raise RowLockedError
        return record(tx, records, reach=reach)

    monkeypatch.setattr(batching, "record", refuse)
    rig.task("good")(stages(kind, "a"))
    rig.task("bad")(stages(kind, "bad"))
    worker = rig.worker(concurrency=8)
    worker.start()
    bad, good = rig.enqueue("bad", retry=ONCE), rig.enqueue_many("good", 6)
    rig.wake(bad, *good)

    eventually(lambda: all(rig.state(run_id) is RunState.SUCCEEDED for run_id in good))
    assert rig.state(bad) is RunState.RUNNING

    locked.clear()
    eventually(lambda: rig.state(bad) is RunState.SUCCEEDED)
    assert stored(rig, bad) == {"bad": '"bad"'}


def test_what_was_set_apart_is_offered_also_by_a_writer_that_is_never_idle(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored_late = threading.Event()
    offers = 0

    def refuse(tx: Any, records: Any, *, reach: Any) -> Any:
        nonlocal offers
        if any(each.boundary.name == "bad" for each in records):
            offers += len(records) == 1
            if offers < 2:
                raise RowLockedError
        else:
            # What the others ask for next is there before this batch is written.
            for _ in range(100):
                if worker._parts.engine._writer._waiting or stored_late.wait(0.001):
                    break
        return record(tx, records, reach=reach)

    def busy(ctx: Context) -> None:
        for at in range(5_000):
            ctx.checkpoint(f"{at}", lambda: 1)
            if stored_late.is_set():
                break

    def bad(ctx: Context) -> None:
        ctx.checkpoint("bad", lambda: 1)
        stored_late.set()

    monkeypatch.setattr(batching, "record", refuse)
    rig.task("busy")(busy)
    rig.task("bad")(bad)
    worker = rig.worker(concurrency=4)
    worker.start()
    rig.wake(*rig.enqueue_many("busy", 3), rig.enqueue("bad", retry=ONCE))

    try:
        assert stored_late.wait(5)
    finally:
        stored_late.set()


def test_a_settle_does_not_wait_for_a_boundary_that_was_set_apart(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its handler has ended, so it is not stored any more, and what waits for it is told."""
    errors: list[BaseException] = []
    refused = threading.Event()

    def refuse(tx: Any, records: Any, *, reach: Any) -> Any:
        refused.set()
        raise RowLockedError

    monkeypatch.setattr(batching, "record", refuse)
    rig.task("t")(notes_its_error("plain", errors))
    run_id = rig.enqueue("t", timeout_ms=300, retry=ONCE)
    worker = rig.worker()
    worker.start()
    assert refused.wait(10)

    eventually(lambda: rig.state(run_id) is RunState.FAILED)

    assert rig.view(run_id).reason is Reason.TIMEOUT
    eventually(lambda: errors)
    assert isinstance(errors[0], LeaseLostError)
    monkeypatch.undo()
    assert stored(rig, run_id) == {}
    assert worker._parts.engine.flush(5)


# -- hand-backs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [["a"], []], ids=["a new boundary", "none"])
def test_hand_backs_count_anew_from_a_new_boundary(rig: Rig, kind: str, names: list[str]) -> None:
    gate = Gate()

    def plain(ctx: Context) -> None:
        for name in names:
            ctx.checkpoint(name, lambda: 1)
        gate.reached.set()
        ctx.cancelled.wait(20)
        ctx.cancelled.raise_if_set()

    async def waits(ctx: AsyncContext) -> None:
        for name in names:
            await ctx.checkpoint(name, lambda: 1)
        gate.reached.set()
        await asyncio.get_running_loop().create_future()

    rig.task("t")(plain if kind == "plain" else waits)
    run_id = rig.enqueue("t", retry=ONCE)
    for _ in range(MAX_HAND_BACKS - 1):
        rig.store.run(settle, [Entry(rig.claim().lease, HandBack())], reach=rig.lane.reach_ms)
    claimed = rig.claim()
    assert claimed.hand_backs == MAX_HAND_BACKS - 1
    worker = rig.worker()
    thread = threading.Thread(target=worker.process_run, args=(claimed,))
    thread.start()
    gate.wait()

    worker.release_in_flight()

    thread.join(10)
    if names:
        assert rig.claim().hand_backs == 1
    else:
        assert rig.view(run_id).reason is Reason.INTERRUPTED


# -- what goes with a boundary -------------------------------------------------------------------


def test_the_wakeup_of_a_child_follows_the_commit(rig: Rig, kind: str) -> None:
    rig.lane = MemoryLane()
    child = rig.task("child")(lambda: None)

    def plain(ctx: Context) -> None:
        ctx.child("c", child, None)

    async def waits(ctx: AsyncContext) -> None:
        await ctx.child("c", child, None)

    rig.task("t")(plain if kind == "plain" else waits)
    claimed = rig.claimed("t")

    assert rig.worker().process_run(claimed) is RunState.WAITING

    child_id = rig.claim().id
    eventually(lambda: rig.published == [Hint(child_id, "default")])


# -- values that did not come with the claim -----------------------------------------------------


def test_a_large_value_is_read_by_name_when_it_is_reached(rig: Rig, kind: str) -> None:
    large, calls = "x" * 300_000, list[str]()
    fails = [True]

    def operation() -> str:
        calls.append("large")
        return large

    def plain(ctx: Context) -> int:
        ctx.checkpoint("small", lambda: 1)
        value = ctx.checkpoint("large", operation)
        if fails:
            fails.clear()
            raise ValueError("again")
        return len(value)

    async def waits(ctx: AsyncContext) -> int:
        await ctx.checkpoint("small", lambda: 1)
        value = await ctx.checkpoint("large", operation)
        if fails:
            fails.clear()
            raise ValueError("again")
        return len(value)

    rig.task("t")(plain if kind == "plain" else waits)
    claimed = rig.claimed("t", retry=RetryPolicy(first=timedelta(0)))
    worker = rig.worker()
    assert worker.process_run(claimed) is RunState.READY
    again = rig.claim()
    assert [each.left_out for each in again.history.boundaries] == [False, True]

    assert worker.process_run(again) is RunState.SUCCEEDED

    assert rig.view(claimed.id).result == "300000"
    assert calls == ["large"]
