"""Suspension: a handler that came to a wait gives its lease up, whatever it makes of it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from tests.runtime.faults import Away, FaultyStore
from tests.runtime.rig import Gate, Rig, beat
from tests.support.eventually import eventually
from workhorse.domain.boundaries import BoundaryKind
from workhorse.domain.ids import RunId
from workhorse.domain.outcomes import Retry
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import Failure, Reason, RunState
from workhorse.handlers.context import AsyncContext, Context
from workhorse.handlers.signals import StopReason, Suspended
from workhorse.store.base.database import ManualClock
from workhorse.store.durable.delivering import deliver
from workhorse.store.lifecycle.settling import Entry, settle
from workhorse.store.lifecycle.sweeping import promote
from workhorse.store.operators.inspecting import list_waits
from workhorse.telemetry import Metric

ONCE = RetryPolicy(max_attempts=1)
HOUR = timedelta(hours=1)
TAKEN = Retry(60_000, Reason.LOST, Failure("LeaseExpired", "by another worker"))

AsyncWait = Callable[[AsyncContext], Awaitable[object]]


def open_waits(rig: Rig, run_id: RunId) -> list[str]:
    return [each.name for each in rig.store.run(list_waits, run_id=run_id)]


def send(rig: Rig, run_id: RunId, name: str, value: str = '"word"') -> None:
    rig.store.run(deliver, run_id, BoundaryKind.SIGNAL, name, value, key=None)


def test_a_sleep_gives_the_lease_up_and_spends_nothing(
    rig: Rig, clock: ManualClock, kind: str
) -> None:
    calls: list[str] = []

    def plain(ctx: Context) -> str:
        ctx.checkpoint("before", lambda: calls.append("before"))
        ctx.sleep("nap", HOUR)
        calls.append("after")
        return "slept"

    async def waits(ctx: AsyncContext) -> str:
        await ctx.checkpoint("before", lambda: calls.append("before"))
        await ctx.sleep("nap", HOUR)
        calls.append("after")
        return "slept"

    rig.task("t")(plain if kind == "plain" else waits)
    claimed = rig.claimed("t", retry=ONCE)
    worker = rig.worker()

    assert worker.process_run(claimed) is RunState.SCHEDULED

    assert not worker.busy()
    assert rig.count(Metric.RUNS_SETTLED, "parked") == 1
    clock.advance(3_600_000)
    rig.store.run(promote)
    assert worker.process_run(rig.claim()) is RunState.SUCCEEDED
    view = rig.view(claimed.id)
    assert (view.attempt, view.fence, view.result) == (1, 2, '"slept"')
    assert calls == ["before", "after"]


def test_a_wait_is_ended_by_what_comes(rig: Rig, kind: str) -> None:
    def plain(ctx: Context) -> Any:
        return ctx.wait_for_signal("go")

    async def waits(ctx: AsyncContext) -> Any:
        return await ctx.wait_for_signal("go")

    rig.task("t")(plain if kind == "plain" else waits)
    claimed = rig.claimed("t")
    worker = rig.worker()
    assert worker.process_run(claimed) is RunState.WAITING

    send(rig, claimed.id, "go")

    assert worker.process_run(rig.claim()) is RunState.SUCCEEDED
    assert rig.view(claimed.id).result == '"word"'


def test_what_came_since_the_claim_is_not_waited_for(rig: Rig, kind: str) -> None:
    gate = Gate()

    def plain(ctx: Context) -> Any:
        if not gate.opened.is_set():
            gate.come()
        return ctx.wait_for_signal("go")

    async def waits(ctx: AsyncContext) -> Any:
        if not gate.opened.is_set():
            await asyncio.to_thread(gate.come)
        return await ctx.wait_for_signal("go")

    rig.task("t")(plain if kind == "plain" else waits)
    run_id = rig.enqueue("t")
    worker = rig.worker()
    worker.start()
    gate.wait()
    send(rig, run_id, "go")

    gate.open()

    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)
    assert rig.view(run_id).fence == 2


# -- handlers that make something else of it -----------------------------------------------------


async def _direct(ctx: AsyncContext) -> None:
    await ctx.wait_for_signal("go")


async def _in_a_group(ctx: AsyncContext) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(ctx.wait_for_signal("go"))
        group.create_task(_endless())


async def _gathered(ctx: AsyncContext) -> None:
    await asyncio.gather(ctx.wait_for_signal("go"), _endless())


async def _gathered_with_exceptions(ctx: AsyncContext) -> None:
    await asyncio.gather(ctx.wait_for_signal("go"), _endless(), return_exceptions=True)


async def _in_a_timeout(ctx: AsyncContext) -> None:
    async with asyncio.timeout(20):
        await ctx.wait_for_signal("go")


async def _waited_for(ctx: AsyncContext) -> None:
    await asyncio.wait_for(ctx.wait_for_signal("go"), 20)


async def _shielded(ctx: AsyncContext) -> None:
    await asyncio.shield(ctx.wait_for_signal("go"))


async def _in_a_task_of_its_own(ctx: AsyncContext) -> None:
    started = asyncio.create_task(_direct(ctx))
    await _endless()
    await started


async def _beside_a_task_that_nobody_asks(ctx: AsyncContext) -> None:
    started = asyncio.create_task(_direct(ctx))
    await asyncio.sleep(0)
    await ctx.wait_for_signal("go")
    await started


async def _swallowed(ctx: AsyncContext) -> str:
    with contextlib.suppress(BaseException):
        await ctx.wait_for_signal("go")
    return "went on"


async def _turned_into_another_error(ctx: AsyncContext) -> None:
    try:
        await ctx.wait_for_signal("go")
    except BaseException:  # noqa: BLE001 - that is what is tested
        raise ConnectionError("a library's own view of it") from None


async def _cleaned_up_behind(ctx: AsyncContext) -> None:
    """Whatever is waited for on the way out is no wait that the run has got to."""
    try:
        await ctx.wait_for_signal("go")
    finally:
        await ctx.sleep("cool down", timedelta(milliseconds=1))


async def _after_a_while(name: str) -> str:
    await asyncio.sleep(0.01)
    return name


async def _endless() -> None:
    await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize(
    "how",
    [
        _direct,
        _in_a_group,
        _gathered,
        _gathered_with_exceptions,
        _in_a_timeout,
        _waited_for,
        _shielded,
        _in_a_task_of_its_own,
        _beside_a_task_that_nobody_asks,
        _swallowed,
        _cleaned_up_behind,
        _turned_into_another_error,
    ],
)
def test_an_async_handler_is_suspended_whatever_it_makes_of_it(
    rig: Rig, how: AsyncWait, caplog: pytest.LogCaptureFixture
) -> None:
    """And the event loop has nothing to complain of."""

    @rig.task("t")
    async def handler(ctx: AsyncContext) -> None:
        await how(ctx)

    run_id = rig.enqueue("t", retry=ONCE)
    worker = rig.worker(cancel_wait_ms=60_000)
    worker.start()

    eventually(lambda: rig.state(run_id) is RunState.WAITING)
    eventually(lambda: worker._parts.slots.free == 4)

    assert open_waits(rig, run_id) == ["go"]
    gc.collect()
    assert [each for each in caplog.records if each.name == "asyncio"] == []


@pytest.mark.parametrize("other_error", [False, True])
def test_a_plain_handler_that_swallows_it_is_suspended_all_the_same(
    rig: Rig, other_error: bool
) -> None:
    @rig.task("t")
    def handler(ctx: Context) -> str:
        try:
            ctx.wait_for_signal("go")
        except BaseException:  # noqa: BLE001 - that is what is tested
            if other_error:
                raise ValueError("another") from None
        return "went on"

    claimed = rig.claimed("t", retry=ONCE)

    assert rig.worker().process_run(claimed) is RunState.WAITING
    assert open_waits(rig, claimed.id) == ["go"]


def test_whoever_swallows_it_is_warned_once_for_a_run(
    rig: Rig, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    def plain(ctx: Context) -> None:
        for name in ("a", "b"):
            try:
                ctx.wait_for_signal(name)
            except BaseException:  # noqa: BLE001 - that is what is tested
                return

    async def waits(ctx: AsyncContext) -> None:
        for name in ("a", "b"):
            try:
                await ctx.wait_for_signal(name)
            except BaseException:  # noqa: BLE001 - that is what is tested
                return

    rig.task("t")(plain if kind == "plain" else waits)
    claimed = rig.claimed("t")
    worker = rig.worker()
    assert worker.process_run(claimed) is RunState.WAITING
    send(rig, claimed.id, "a")
    assert worker.process_run(rig.claim()) is RunState.WAITING

    (line,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert line.startswith(f"run {claimed.id}: the handler of task 't' caught")


def test_a_handler_that_lets_it_pass_is_not_warned(
    rig: Rig, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    def plain(ctx: Context) -> None:
        try:
            ctx.wait_for_signal("go")
        except Exception:  # noqa: BLE001 - it is none
            return

    rig.task("t")(plain if kind == "plain" else _in_a_group)
    claimed = rig.claimed("t")

    assert rig.worker().process_run(claimed) is RunState.WAITING
    assert [each for each in caplog.records if each.levelname == "WARNING"] == []


# -- several waits, and what runs beside them ----------------------------------------------------


def test_waits_that_are_reached_in_the_same_turn_are_waited_for_together(rig: Rig) -> None:
    @rig.task("t")
    async def handler(ctx: AsyncContext) -> list[object]:
        later = asyncio.create_task(ctx.wait_for_signal("c"))
        async with asyncio.TaskGroup() as group:
            first = group.create_task(ctx.wait_for_signal("a"))
            second = group.create_task(ctx.wait_for_signal("b"))
        return [first.result(), second.result(), await later]

    claimed = rig.claimed("t")

    assert rig.worker().process_run(claimed) is RunState.WAITING
    assert open_waits(rig, claimed.id) == ["a", "b", "c"]


@pytest.mark.parametrize("first", ["timer", "signal"])
def test_an_instant_beside_another_wait_wakes_the_run(
    rig: Rig, clock: ManualClock, first: str
) -> None:
    """Its boundary is under way when the other wait ends the activation."""
    wake_at = clock.now + HOUR
    reminded: list[int] = []

    @rig.task("t")
    async def handler(ctx: AsyncContext) -> None:
        async def remind() -> None:
            await ctx.sleep_until("reminder", wake_at)
            reminded.append(ctx.lease.fence)

        async with asyncio.TaskGroup() as group:
            if first == "timer":
                group.create_task(remind())
            group.create_task(ctx.wait_for_signal("word"))
            if first == "signal":
                group.create_task(remind())

    claimed = rig.claimed("t")
    assert rig.worker().process_run(claimed) is RunState.WAITING
    assert open_waits(rig, claimed.id) == ["reminder", "word"]
    assert rig.view(claimed.id).due_at == wake_at

    clock.advance(HOUR)
    rig.store.run(promote)
    assert rig.worker().process_run(rig.claim()) is RunState.WAITING
    assert (reminded, rig.view(claimed.id).due_at) == ([2], None)


def test_a_task_that_had_no_turn_yet_gets_it(rig: Rig) -> None:
    """The handler itself comes to its wait in the step in which it starts the task."""

    @rig.task("t")
    async def handler(ctx: AsyncContext) -> None:
        later = asyncio.create_task(ctx.wait_for_signal("later"))
        await ctx.wait_for_signal("first")
        await later

    claimed = rig.claimed("t")

    assert rig.worker().process_run(claimed) is RunState.WAITING
    assert open_waits(rig, claimed.id) == ["first", "later"]


def test_a_wait_that_cleaning_up_comes_to_is_none(rig: Rig, kind: str) -> None:
    """It would begin to run although the handler has not come to it yet."""

    def plain(ctx: Context) -> None:
        try:
            ctx.wait_for_signal("go")
        finally:
            ctx.sleep("cool down", HOUR)

    async def waits(ctx: AsyncContext) -> None:
        async def part() -> None:
            try:
                await _endless()
            finally:
                await ctx.sleep("cool down", HOUR)

        async with asyncio.TaskGroup() as group:
            group.create_task(part())
            group.create_task(ctx.wait_for_signal("go"))

    rig.task("t")(plain if kind == "plain" else waits)
    claimed = rig.claimed("t")

    assert rig.worker().process_run(claimed) is RunState.WAITING
    assert open_waits(rig, claimed.id) == ["go"]


def test_tasks_are_cancelled_and_have_cleaned_up_before_the_settle(rig: Rig) -> None:
    order: list[str] = []

    @rig.task("t")
    async def handler(ctx: AsyncContext) -> None:
        async def part() -> None:
            try:
                await _endless()
            finally:
                await asyncio.sleep(0.05)
                order.append("cleaned up")

        kept = asyncio.create_task(part())
        await asyncio.sleep(0)
        await ctx.wait_for_signal("go")
        await kept

    rig.enqueue("t")
    worker = rig.worker()
    settled = worker._parts.engine._writer._settled

    def note(answers: Any) -> None:
        order.append("settled")
        settled(answers)

    worker._parts.engine._writer._settled = note

    assert worker.drain() == 1
    assert order == ["cleaned up", "settled"]


def test_a_stage_that_does_not_end_is_not_stored(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other branches may go on for a while, not for ever."""
    monkeypatch.setattr("workhorse.handlers.replay.state.PATIENCE_S", 0.05)
    calls: list[str] = []

    @rig.task("t")
    async def handler(ctx: AsyncContext) -> None:
        async def stage() -> str:
            calls.append("begun")
            await _endless()
            return "never"

        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.checkpoint("stage", stage))
            group.create_task(ctx.wait_for_signal("go"))

    claimed = rig.claimed("t")

    assert rig.worker().process_run(claimed) is RunState.WAITING
    assert calls == ["begun"]
    assert open_waits(rig, claimed.id) == ["go"]


def test_branches_beside_a_wait_come_as_far_as_they_can(rig: Rig) -> None:
    """Else a reply is waited for whose question nobody has sent."""
    calls: list[str] = []

    async def ask(ctx: AsyncContext) -> None:
        calls.append(await ctx.checkpoint("draft", partial(_after_a_while, "draft")))
        calls.append(await ctx.transaction("book", lambda _: "book"))
        calls.append(await ctx.checkpoint("send", partial(_after_a_while, "send")))
        await ctx.sleep("look again", timedelta(hours=1))

    @rig.task("t")
    async def handler(ctx: AsyncContext) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.wait_for_signal("reply"))
            group.create_task(ask(ctx))

    claimed = rig.claimed("t")

    assert rig.worker().process_run(claimed) is RunState.WAITING
    assert calls == ["draft", "book", "send"]
    assert open_waits(rig, claimed.id) == ["look again", "reply"]


@pytest.mark.parametrize("gathered", [True, False])
def test_a_branch_that_fails_beside_a_wait_spends_the_attempt(rig: Rig, gathered: bool) -> None:
    """Else the question is not asked again before the reply to it has come."""
    asked: list[str] = []

    async def question() -> str:
        asked.append("once")
        await asyncio.sleep(0.01)
        if len(asked) == 1:
            raise ConnectionError
        return "sent"

    @rig.task("t")
    async def handler(ctx: AsyncContext) -> None:
        branches = [ctx.wait_for_signal("reply"), ctx.checkpoint("question", question)]
        if gathered:
            await asyncio.gather(*branches)
            return
        async with asyncio.TaskGroup() as group:
            for each in branches:
                group.create_task(each)

    claimed = rig.claimed("t", retry=RetryPolicy(max_attempts=2, first=timedelta(0)))

    assert rig.worker().process_run(claimed) is RunState.READY
    assert rig.view(claimed.id).attempt == 2
    assert open_waits(rig, claimed.id) == []
    assert rig.worker().process_run(rig.claim()) is RunState.WAITING
    assert asked == ["once", "once"]
    assert open_waits(rig, claimed.id) == ["reply"]


def test_a_handler_that_does_not_end_is_settled_and_its_slot_stays_taken(rig: Rig) -> None:
    let_go = threading.Event()

    @rig.task("t")
    async def deaf(ctx: AsyncContext) -> None:
        started = asyncio.create_task(_direct(ctx))
        while not let_go.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue
        assert started.done()

    run_id = rig.enqueue("t")
    worker = rig.worker(concurrency=1, cancel_wait_ms=100)
    worker.start()

    eventually(lambda: rig.state(run_id) is RunState.WAITING)
    eventually(lambda: not worker.busy())
    assert worker._parts.slots.free == 0
    eventually(lambda: worker._parts.holdings.stuck == 1)

    let_go.set()
    eventually(lambda: worker._parts.slots.free == 1)
    assert worker._parts.holdings.stuck == 0


# -- what comes before it ------------------------------------------------------------------------


async def _until_told(ctx: AsyncContext) -> None:
    """Clean up for as long as nobody says why it is to stop, and through the first cancel."""
    while not ctx.cancelled:
        with contextlib.suppress(asyncio.CancelledError):
            await ctx.cancelled.wait(20)


def test_a_time_that_ran_out_comes_first(rig: Rig, kind: str) -> None:
    def plain(ctx: Context) -> None:
        try:
            ctx.wait_for_signal("go")
        finally:
            ctx.cancelled.wait(20)

    async def waits(ctx: AsyncContext) -> None:
        try:
            await ctx.wait_for_signal("go")
        finally:
            await _until_told(ctx)

    rig.task("t")(plain if kind == "plain" else waits)
    claimed = rig.claimed("t", timeout_ms=50, retry=ONCE)

    assert rig.worker().process_run(claimed) is RunState.FAILED
    assert rig.view(claimed.id).reason is Reason.TIMEOUT


def test_a_cancel_comes_first(live_rig: Rig, kind: str) -> None:
    rig, reached = live_rig, threading.Event()

    def plain(ctx: Context) -> None:
        try:
            ctx.wait_for_signal("go")
        finally:
            reached.set()
            ctx.cancelled.wait(20)

    async def waits(ctx: AsyncContext) -> None:
        try:
            await ctx.wait_for_signal("go")
        finally:
            reached.set()
            await _until_told(ctx)

    rig.task("t")(plain if kind == "plain" else waits)
    run_id = rig.enqueue("t")
    worker = rig.worker()
    worker.start()
    assert reached.wait(10)

    rig.cancel(run_id)
    beat(worker)

    eventually(lambda: rig.state(run_id) is RunState.CANCELLED)
    assert rig.view(run_id).error_type == "Cancelled"


def test_a_lease_that_was_taken_comes_first(live_rig: Rig, kind: str) -> None:
    rig, reached = live_rig, threading.Event()
    told: list[Any] = []

    def plain(ctx: Context) -> None:
        try:
            ctx.wait_for_signal("go")
        finally:
            reached.set()
            ctx.cancelled.wait(20)
            told.append(ctx.cancelled.reason)

    async def waits(ctx: AsyncContext) -> None:
        try:
            await ctx.wait_for_signal("go")
        finally:
            reached.set()
            await _until_told(ctx)
            told.append(ctx.cancelled.reason)

    rig.task("t")(plain if kind == "plain" else waits)
    run_id = rig.enqueue("t")
    worker = rig.worker()
    worker.start()
    assert reached.wait(10)
    (held,) = worker._parts.holdings.all()

    rig.store.run(settle, [Entry(held.lease, TAKEN)], reach=rig.lane.reach_ms)
    beat(worker)

    eventually(lambda: not worker.busy())
    eventually(lambda: told == [StopReason.LEASE_LOST])
    assert rig.state(run_id) is RunState.SCHEDULED
    assert open_waits(rig, run_id) == []
    assert rig.count(Metric.LEASES_LOST) == 1


def test_a_suspension_is_offered_although_its_lease_has_lapsed(rig: Rig, kind: str) -> None:
    """As a value would be: the token decides, and nobody has taken the run."""
    heartbeat = FaultyStore(rig.store, connections=1)
    heartbeat.faults["renew"] = Away()
    told: list[Any] = []

    def plain(ctx: Context) -> None:
        try:
            ctx.wait_for_signal("go")
        finally:
            ctx.cancelled.wait(20)
            told.append(ctx.cancelled.reason)

    async def waits(ctx: AsyncContext) -> None:
        try:
            await ctx.wait_for_signal("go")
        finally:
            await _until_told(ctx)
            told.append(ctx.cancelled.reason)

    rig.task("t")(plain if kind == "plain" else waits)
    run_id = rig.enqueue("t")
    worker = rig.worker(lease_ms=500, heartbeat_store=heartbeat)
    worker.start()

    eventually(lambda: rig.state(run_id) is RunState.WAITING)

    assert told == [StopReason.LEASE_LOST]
    assert open_waits(rig, run_id) == ["go"]
    worker.stop(0)
    heartbeat.close()


def test_a_suspension_comes_before_a_shutdown(rig: Rig, kind: str) -> None:
    """Its wait is reached: handed back, the handler would only come to it once more."""
    reached = threading.Event()

    def plain(ctx: Context) -> None:
        try:
            ctx.wait_for_signal("go")
        finally:
            reached.set()
            ctx.cancelled.wait(20)

    async def waits(ctx: AsyncContext) -> None:
        try:
            await ctx.wait_for_signal("go")
        finally:
            reached.set()
            await _until_told(ctx)

    rig.task("t")(plain if kind == "plain" else waits)
    run_id = rig.enqueue("t")
    worker = rig.worker()
    worker.start()
    assert reached.wait(10)

    worker.stop(0)

    assert rig.state(run_id) is RunState.WAITING
    assert rig.count(Metric.RUNS_SETTLED, "parked") == 1


def test_it_is_no_exception() -> None:
    assert not issubclass(Suspended, Exception)
