"""Renewals: each lease for itself, and what becomes of the handler whose lease is refused."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from tests.runtime.faults import Away, FaultyStore
from tests.runtime.rig import LEASE_MS, Gate, Rig, beat
from tests.support.eventually import eventually
from workhorse.domain.outcomes import Retry
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import Failure, Reason, RunState
from workhorse.errors import LeaseLostError
from workhorse.handlers.context import AsyncContext, Context
from workhorse.handlers.signals import StopReason
from workhorse.store.base.database import ManualClock
from workhorse.store.lifecycle.settling import Entry, settle
from workhorse.store.lifecycle.sweeping import finish_cancelled, recover
from workhorse.telemetry import Metric

DRAW = random.Random(1)


def gate_and_notes() -> tuple[Gate, list[Any]]:
    return Gate(), []


def waiting_handler(kind: str, gate: Gate, told: list[Any]) -> Any:
    """Return a handler that waits for the gate, and notes why it was told to stop."""

    def plain(ctx: Context) -> str:
        gate.come()
        told.append(ctx.cancelled.reason)
        return "by itself"

    async def waits(ctx: AsyncContext) -> str:
        try:
            await asyncio.to_thread(gate.come)
            return "by itself"
        finally:
            told.append(ctx.cancelled.reason)

    return plain if kind == "plain" else waits


@pytest.fixture
def heartbeat(rig: Rig) -> Iterator[FaultyStore]:
    store = FaultyStore(rig.store, connections=1)
    yield store
    rig.close()
    store.close()


def test_a_long_handler_keeps_its_lease(live_rig: Rig, kind: str) -> None:
    """Longer than its lease, by events: each renewal moves the expiry on."""
    rig, (gate, told) = live_rig, gate_and_notes()
    rig.task("t")(waiting_handler(kind, gate, told))
    run_id = rig.enqueue("t")
    worker = rig.worker(lease_ms=2_400)
    worker.start()
    gate.wait()
    seen: set[Any] = set()

    def renewed() -> bool:
        seen.add(rig.view(run_id).lease_expires_at)
        return len(seen) > 4

    eventually(renewed)
    assert rig.store.run(recover, reach=rig.lane.reach_ms, draw=DRAW).count == 0
    gate.open()

    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)
    assert told == [None]
    assert rig.view(run_id).fence == 1


def test_all_leases_of_a_worker_are_renewed_by_one_statement(
    live_rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, release = live_rig, threading.Event()
    batches: list[int] = []
    rig.task("t")(lambda: release.wait(20) and None)
    rig.enqueue_many("t", 20)
    heartbeat = FaultyStore(rig.store, connections=1)
    original = heartbeat.try_once

    def try_once(op: Any, /, *args: Any, **kwargs: Any) -> Any:
        batches.append(len(args[0]))
        return original(op, *args, **kwargs)

    monkeypatch.setattr(heartbeat, "try_once", try_once)
    worker = rig.worker(concurrency=20, lease_ms=1_500, heartbeat_store=heartbeat)
    worker.start()

    eventually(lambda: len(batches) >= 3)
    assert batches[:3] == [20, 20, 20]
    release.set()
    assert worker.stop()


def test_a_locked_row_delays_no_other_renewal(postgresql_rig: Rig, postgresql_url: str) -> None:
    """A lock held on one run's row until its lease has run out."""
    rig, release = postgresql_rig, threading.Event()
    rig.task("t")(lambda: release.wait(30) and None)
    run_ids = rig.enqueue_many("t", 5)
    worker = rig.worker(concurrency=5, lease_ms=3_000)
    worker.start()
    eventually(lambda: len(worker._parts.holdings.all()) == 5)
    held = {each.claimed.id: each for each in worker._parts.holdings.all()}
    locked, others = run_ids[2], [*run_ids[:2], *run_ids[3:]]

    with psycopg.connect(postgresql_url) as other:
        other.execute("select 1 from workhorse.live where id = %s for update", [locked])

        def until_it_lapses() -> bool:
            # Recovery is what would take them: it finds none of the others, at any moment.
            rig.store.run(recover, reach=rig.lane.reach_ms, draw=DRAW, ids=others)
            assert {(rig.view(each).fence, rig.state(each)) for each in others} == {
                (1, RunState.RUNNING)
            }
            return bool(held[locked].lapsed)

        eventually(until_it_lapses, within=20, every=0.1)
        other.rollback()

    assert not any(held[each].lapsed for each in others)
    release.set()
    eventually(lambda: all(rig.state(each) is RunState.SUCCEEDED for each in others))


def test_a_busy_row_is_asked_for_again_in_a_second(
    postgresql_rig: Rig, postgresql_url: str
) -> None:
    """Long before the next third of the lease; its lease goes on when the lock has gone."""
    rig, (gate, told) = postgresql_rig, gate_and_notes()
    rig.task("t")(waiting_handler("plain", gate, told))
    run_id = rig.enqueue("t")
    worker = rig.worker(lease_ms=6_000)
    worker.start()
    gate.wait()
    (held,) = worker._parts.holdings.all()
    claimed_at = held.renewed_ms
    with psycopg.connect(postgresql_url) as other:
        other.execute("select 1 from workhorse.live where id = %s for update", [run_id])
        eventually(lambda: held.ask_ms - claimed_at > 2_500)
        assert held.ask_ms - claimed_at < 3_500
        other.rollback()

    eventually(lambda: held.renewed_ms > claimed_at)
    gate.open()
    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)
    assert told == [None]


def test_a_cancel_reaches_the_handler(
    live_rig: Rig, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Async handlers are cancelled as tasks; plain ones are told, and their value is kept."""
    rig, (gate, told) = live_rig, gate_and_notes()

    async def waits(ctx: AsyncContext) -> None:
        gate.reached.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            told.append(ctx.cancelled.reason)

    def plain(ctx: Context) -> str:
        gate.reached.set()
        assert ctx.cancelled.wait(20)
        told.append(ctx.cancelled.reason)
        return "kept"

    rig.task("t")(plain if kind == "plain" else waits)
    run_id = rig.enqueue("t")
    worker = rig.worker()
    worker.start()
    gate.wait()

    rig.cancel(run_id)
    beat(worker)

    eventually(lambda: rig.state(run_id) is RunState.CANCELLED)
    view = rig.view(run_id)
    assert told == [StopReason.CANCELLED]
    assert view.result == ('"kept"' if kind == "plain" else None)
    eventually(lambda: rig.count(Metric.RUNS_SETTLED, "cancelled") == 1)
    assert "failed" not in caplog.text, "it has not, and is not tried again"


def test_a_cancel_cancels_all_tasks_that_the_handler_started(live_rig: Rig) -> None:
    rig, begun, ended = live_rig, [], []

    @rig.task("t")
    async def starts_others() -> None:
        async def part(name: str) -> None:
            try:
                begun.append(name)
                await asyncio.get_running_loop().create_future()
            finally:
                await asyncio.sleep(0.05)  # cleaning up takes a while, and is waited for
                ended.append(name)

        kept = asyncio.create_task(part("task"))
        try:
            await part("own")
        finally:
            assert not kept.done()

    run_id = rig.enqueue("t")
    worker = rig.worker()
    worker.start()
    eventually(lambda: len(begun) == 2)

    rig.cancel(run_id)
    beat(worker)

    eventually(lambda: rig.state(run_id) is RunState.CANCELLED)
    assert sorted(ended) == ["own", "task"]


def test_a_cancel_does_not_wait_for_the_handler_before_its_tasks(live_rig: Rig) -> None:
    """The handler itself waits for its task, whatever comes: both are cancelled at once."""
    rig, started = live_rig, threading.Event()

    @rig.task("t")
    async def waits_for_its_task() -> None:
        kept = asyncio.create_task(_endless(started))
        try:
            await _endless(started)
        finally:
            await asyncio.wait([kept])

    run_id = rig.enqueue("t")
    worker = rig.worker(cancel_wait_ms=60_000)
    worker.start()
    assert started.wait(10)

    rig.cancel(run_id)
    beat(worker)

    eventually(lambda: rig.state(run_id) is RunState.CANCELLED)


async def _endless(started: threading.Event) -> None:
    started.set()
    await asyncio.get_running_loop().create_future()


def test_what_a_handler_that_was_told_to_stop_leaves_behind_is_cancelled_first(rig: Rig) -> None:
    """A task that goes on after its handler has ended could act for a run that is another's."""
    order: list[str] = []
    started = threading.Event()

    @rig.task("t")
    async def leaves_one(ctx: AsyncContext) -> None:
        async def part() -> None:
            try:
                await _endless(started)
            finally:
                await asyncio.sleep(0.05)
                order.append("cleaned up")

        rig.kept = asyncio.create_task(part())  # type: ignore[attr-defined]
        await ctx.cancelled.wait(20)
        ctx.cancelled.raise_if_set()

    rig.enqueue("t")
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


def test_a_lease_that_was_taken_stops_the_handler_and_nothing_is_sent(
    live_rig: Rig, kind: str
) -> None:
    rig, (gate, told) = live_rig, gate_and_notes()
    rig.task("t")(waiting_handler(kind, gate, told))
    run_id = rig.enqueue("t", retry=RetryPolicy(first=timedelta(0)))
    worker = rig.worker(concurrency=1, lease_ms=30_000)
    worker.start()
    gate.wait()
    (held,) = worker._parts.holdings.all()

    taken = Retry(60_000, Reason.LOST, Failure("LeaseExpired", "by another worker"))
    elsewhere = Entry(held.lease, taken, queue="default")
    rig.store.run(settle, [elsewhere], reach=rig.lane.reach_ms)
    beat(worker)

    eventually(lambda: held.core.cancelled)
    assert held.lost
    if kind == "async":
        eventually(lambda: told == [StopReason.LEASE_LOST])
    gate.open()
    eventually(lambda: not worker.busy())
    eventually(lambda: told == [StopReason.LEASE_LOST])
    assert rig.state(run_id) is RunState.SCHEDULED
    assert rig.count(Metric.LEASES_LOST) == 1
    assert rig.count(Metric.RUNS_SETTLED, "succeeded") == 0


def test_a_lapsed_lease_is_told_and_its_value_still_offered(
    rig: Rig, clock: ManualClock, heartbeat: FaultyStore, kind: str
) -> None:
    """No renewal got through for a whole lease; nobody took the run, so the value counts."""
    gate, told = gate_and_notes()
    rig.task("t")(waiting_handler(kind, gate, told))
    run_id = rig.enqueue("t")
    heartbeat.faults["renew"] = Away()
    worker = rig.worker(lease_ms=500, heartbeat_store=heartbeat)
    worker.start()
    gate.wait()
    (held,) = worker._parts.holdings.all()

    eventually(lambda: held.lapsed)
    gate.open()

    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)
    assert told == [StopReason.LEASE_LOST]
    assert rig.view(run_id).result == '"by itself"'
    assert rig.count(Metric.LEASES_LAPSED) >= 1


def test_who_swallows_a_lapsed_lease_at_a_boundary_is_taken_for_lost(
    rig: Rig, heartbeat: FaultyStore, kind: str
) -> None:
    """What it comes to is made without that boundary, and the attempt is spent as by recovery."""
    gate = Gate()

    def plain(ctx: Context) -> str:
        gate.reached.set()
        ctx.cancelled.wait(20)
        with contextlib.suppress(LeaseLostError):
            return ctx.checkpoint("charge", lambda: "charged")
        return "went on"

    async def waits(ctx: AsyncContext) -> str:
        gate.reached.set()
        await ctx.cancelled.wait(20)
        with contextlib.suppress(LeaseLostError):
            await ctx.sleep("a rest", timedelta(hours=1))
        return "went on"

    rig.task("t")(plain if kind == "plain" else waits)
    run_id = rig.enqueue("t", retry=RetryPolicy(first=timedelta(hours=1)))
    heartbeat.faults["renew"] = Away()
    worker = rig.worker(lease_ms=500, heartbeat_store=heartbeat)
    worker.start()
    gate.wait()

    eventually(lambda: rig.state(run_id) is not RunState.RUNNING)

    view = rig.view(run_id)
    assert (view.state, view.attempt, view.result) == (RunState.SCHEDULED, 2, None)


def test_a_lapsed_lease_that_was_taken_stores_nothing(
    rig: Rig, clock: ManualClock, heartbeat: FaultyStore, kind: str
) -> None:
    gate, told = gate_and_notes()
    rig.task("t")(waiting_handler(kind, gate, told))
    run_id = rig.enqueue("t", retry=RetryPolicy(first=timedelta(seconds=60), jitter=False))
    heartbeat.faults["renew"] = Away()
    worker = rig.worker(lease_ms=500, heartbeat_store=heartbeat)
    worker.start()
    gate.wait()
    (held,) = worker._parts.holdings.all()
    eventually(lambda: held.lapsed)
    clock.advance(501)
    rig.store.run(recover, reach=rig.lane.reach_ms, draw=DRAW)

    gate.open()

    eventually(lambda: not worker.busy())
    view = rig.view(run_id)
    assert (view.state, view.attempt, view.result) == (RunState.SCHEDULED, 2, None)
    assert rig.count(Metric.LEASES_LOST) == 1


def test_an_expired_lease_is_never_revived(
    rig: Rig, clock: ManualClock, heartbeat: FaultyStore
) -> None:
    gate, told = gate_and_notes()
    rig.task("t")(waiting_handler("plain", gate, told))
    run_id = rig.enqueue("t")
    worker = rig.worker(lease_ms=30_000, heartbeat_store=heartbeat)
    worker.start()
    gate.wait()
    (held,) = worker._parts.holdings.all()
    expires_at = rig.view(run_id).lease_expires_at
    clock.advance(30_001)

    beat(worker)

    eventually(lambda: held.lapsed)
    assert rig.view(run_id).lease_expires_at == expires_at
    gate.open()
    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)


def test_a_watchdog_counts_from_when_the_request_was_sent(rig: Rig, heartbeat: FaultyStore) -> None:
    """An answer that took long does not make the lease longer."""
    gate, told = gate_and_notes()
    rig.task("t")(waiting_handler("plain", gate, told))
    rig.enqueue("t")
    sent: list[float] = []
    slow = threading.Event()

    def renews_slowly(carry_out: Any) -> Any:
        sent.append(worker._pace.now_ms())
        answer = carry_out()
        slow.wait(0.1)
        return answer

    heartbeat.faults["renew"] = renews_slowly
    worker = rig.worker(lease_ms=900, heartbeat_store=heartbeat)
    worker.start()
    gate.wait()
    (held,) = worker._parts.holdings.all()
    before = held.renewed_ms

    eventually(lambda: held.renewed_ms > before)
    assert held.renewed_ms <= sent[0]
    gate.open()


def test_case_11_a_renewal_that_hangs_has_its_connection_thrown_away(
    rig: Rig, heartbeat: FaultyStore
) -> None:
    gate, told = gate_and_notes()
    rig.task("t")(waiting_handler("plain", gate, told))
    run_id = rig.enqueue("t")
    broken = threading.Event()
    hangs = [1]

    def hang(carry_out: Any) -> Any:
        if hangs:
            hangs.pop()
            assert broken.wait(20)
        return carry_out()

    heartbeat.faults["renew"] = hang
    heartbeat.abort = broken.set  # type: ignore[method-assign]
    worker = rig.worker(lease_ms=3_000, heartbeat_store=heartbeat)
    worker.start()
    gate.wait()
    (held,) = worker._parts.holdings.all()
    claimed_at = held.renewed_ms

    assert broken.wait(10)
    eventually(lambda: held.renewed_ms > claimed_at)
    assert not held.lapsed
    gate.open()
    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)


def test_a_renewal_under_way_can_be_waited_for(rig: Rig, heartbeat: FaultyStore) -> None:
    gate, told = gate_and_notes()
    rig.task("t")(waiting_handler("plain", gate, told))
    rig.enqueue("t")
    under_way = Gate()

    def hang(carry_out: Any) -> Any:
        under_way.come()
        return carry_out()

    heartbeat.faults["renew"] = hang
    worker = rig.worker(heartbeat_store=heartbeat)
    worker.start()
    gate.wait()
    wait_for_answer = worker._parts.engine._heartbeat.wait_for_answer
    waiter = threading.Thread(target=wait_for_answer, args=(60,))
    wait_for_answer(60)  # there is none: at once
    beat(worker)
    under_way.wait()
    waiter.start()
    wait_for_answer(0.05)
    assert waiter.is_alive()

    under_way.open()

    waiter.join(20)
    assert not waiter.is_alive()
    gate.open()


def test_renewals_go_on_until_the_settle_has_committed(live_rig: Rig) -> None:
    rig = live_rig
    faulty = FaultyStore(rig.store)
    away = faulty.faults["write_batch"] = Away()
    rig.task("t")(lambda: None)
    run_id = rig.enqueue("t")
    worker = rig.worker(store=faulty)
    worker.start()
    assert away.asked.acquire(timeout=10)
    seen: set[Any] = set()

    def renewed() -> bool:
        beat(worker)
        seen.add(rig.view(run_id).lease_expires_at)
        return len(seen) > 4

    eventually(renewed)
    away.back.set()
    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)
    worker.stop()
    faulty.close()


def test_a_refusal_of_a_lease_that_is_being_settled_is_ignored(
    rig: Rig, heartbeat: FaultyStore
) -> None:
    """The settle took the token while the renewal was under way."""
    gate, told = gate_and_notes()
    rig.task("t")(waiting_handler("plain", gate, told))
    run_id = rig.enqueue("t")
    asked, answered = threading.Event(), threading.Event()

    def after_the_settle(carry_out: Any) -> Any:
        asked.set()
        assert settled.wait(20)
        answer = carry_out()
        answered.set()
        return answer

    settled = threading.Event()
    heartbeat.faults["renew"] = after_the_settle
    worker = rig.worker(lease_ms=600, heartbeat_store=heartbeat)
    worker.start()
    gate.wait()
    assert asked.wait(10)
    gate.open()
    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)

    settled.set()

    assert answered.wait(10)
    eventually(lambda: not worker.busy())
    assert rig.count(Metric.LEASES_LOST) == 0


def test_a_cancelled_plain_run_that_does_not_return_is_ended_by_maintenance(
    rig: Rig, clock: ManualClock
) -> None:
    gate, told = gate_and_notes()
    rig.task("t")(waiting_handler("plain", gate, told))
    run_id = rig.enqueue("t")
    worker = rig.worker()
    worker.start()
    gate.wait()
    (held,) = worker._parts.holdings.all()
    rig.cancel(run_id)
    beat(worker)
    eventually(lambda: held.core.cancelled.reason is StopReason.CANCELLED)
    clock.advance(LEASE_MS + 1)

    rig.store.run(finish_cancelled, reach=rig.lane.reach_ms, draw=DRAW)
    gate.open()

    eventually(lambda: not worker.busy())
    view = rig.view(run_id)
    assert (view.state, view.reason) == (RunState.CANCELLED, Reason.CANCELLED)
    assert view.result is None
