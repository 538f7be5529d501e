"""Calls at once: one execution of a name, whoever waits for it and whoever gives up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from tests.handlers.durable import FakeRun
from tests.support.eventually import eventually
from workhorse.domain.boundaries import BoundaryKind
from workhorse.errors import CheckpointConflictError, LeaseLostError, WaitConflictError
from workhorse.handlers.context import ActivationCore, AsyncContext, Context
from workhorse.handlers.recording import Pending
from workhorse.handlers.registry import TaskRegistry
from workhorse.handlers.signals import Suspended

PATIENCE = 10  # seconds; far more than any of these waits takes
TASK = TaskRegistry().register(lambda: None, "a task")


class Gated:
    """An async operation that ends when it is told to."""

    def __init__(self, result: object = "done") -> None:
        self.calls = 0
        self.gate = asyncio.Event()
        self._result = result

    async def __call__(self) -> Any:
        self.calls += 1
        await self.gate.wait()
        if isinstance(self._result, BaseException):
            raise self._result
        return self._result


async def turns(count: int = 5) -> None:
    """Let the other tasks go as far as they can."""
    for _ in range(count):
        await asyncio.sleep(0)


def in_loop(handler: Callable[[FakeRun, AsyncContext], Awaitable[None]]) -> ActivationCore:
    run = FakeRun()
    core = run.activate()
    asyncio.run(asyncio.wait_for(handler(run, AsyncContext(core)), PATIENCE))
    return core


# -- tasks ---------------------------------------------------------------------------------------


def test_one_name_in_many_tasks_is_one_execution() -> None:
    async def handler(run: FakeRun, ctx: AsyncContext) -> None:
        operation = Gated({"paid": 1})
        tasks = [asyncio.create_task(ctx.checkpoint("a", operation)) for _ in range(5)]
        await turns()
        operation.gate.set()

        results = await asyncio.gather(*tasks)

        assert results == [{"paid": 1}] * 5
        assert len({id(result) for result in results}) == 5, "each gets an object of its own"
        assert (operation.calls, len(run.records)) == (1, 1)

    assert in_loop(handler).new_boundaries == 1


def test_the_others_get_the_error_and_the_next_call_runs_it_again() -> None:
    async def handler(run: FakeRun, ctx: AsyncContext) -> None:
        fails = Gated(ValueError("card"))
        tasks = [asyncio.create_task(ctx.checkpoint("a", fails)) for _ in range(3)]
        await turns()
        fails.gate.set()

        results = await asyncio.gather(*tasks, return_exceptions=True)

        assert [str(result) for result in results] == ["card"] * 3
        assert (fails.calls, run.records) == (1, [])
        assert await ctx.checkpoint("a", lambda: 2) == 2

    in_loop(handler)


def test_each_of_them_is_held_to_its_own_input() -> None:
    async def handler(run: FakeRun, ctx: AsyncContext) -> None:
        operation = Gated()
        first = asyncio.create_task(ctx.checkpoint("a", operation, input=1))
        other = asyncio.create_task(ctx.checkpoint("a", operation, input=2))
        signal = asyncio.create_task(ctx.wait_for_signal("a"))
        await turns()
        operation.gate.set()

        assert await first == "done"
        with pytest.raises(CheckpointConflictError, match="another input"):
            await other
        with pytest.raises(WaitConflictError, match="'a' is a checkpoint"):
            await signal

    in_loop(handler)


def test_a_leader_that_is_cancelled_hands_over_to_another() -> None:
    async def handler(run: FakeRun, ctx: AsyncContext) -> None:
        operation = Gated()
        leader, second, third = (
            asyncio.create_task(ctx.checkpoint("a", operation)) for _ in range(3)
        )
        await turns()
        leader.cancel()
        await turns()
        operation.gate.set()

        assert [await second, await third] == ["done", "done"]
        assert leader.cancelled()
        assert (operation.calls, len(run.records)) == (2, 1)

    in_loop(handler)


def test_one_who_waits_may_be_cancelled_alone() -> None:
    async def handler(run: FakeRun, ctx: AsyncContext) -> None:
        operation = Gated()
        leader = asyncio.create_task(ctx.checkpoint("a", operation))
        second = asyncio.create_task(ctx.checkpoint("a", operation))
        await turns()
        second.cancel()
        await turns()
        operation.gate.set()
        assert await leader == "done"

    in_loop(handler)


@pytest.mark.parametrize("call", ["checkpoint", "transaction"])
def test_a_call_cancelled_while_its_write_is_under_way_leaves_the_boundary_known(call: str) -> None:
    """The flight belongs to the core: nobody runs the operation again."""

    async def handler(run: FakeRun, ctx: AsyncContext) -> None:
        run.hold = True
        first = asyncio.create_task(getattr(ctx, call)("a", lambda *_: "first"))
        await turns()
        assert len(run.held) == 1
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        second = asyncio.create_task(ctx.checkpoint("a", lambda: "second"))
        await turns()
        assert not second.done(), "it waits for the write"

        run.hold = False
        run.release()

        assert await second == "first"
        assert await ctx.checkpoint("a", lambda: "third") == "first"
        assert len(run.records) == 1

    assert in_loop(handler).new_boundaries == 1


def test_a_write_that_fails_after_its_call_was_cancelled_frees_the_name() -> None:
    async def handler(run: FakeRun, ctx: AsyncContext) -> None:
        unanswered: Pending[Any] = Pending()
        write = run.record
        run.record = lambda record: unanswered  # type: ignore[method-assign]
        first = asyncio.create_task(ctx.checkpoint("a", lambda: 1))
        await turns()
        first.cancel()
        await turns()
        run.record = write  # type: ignore[method-assign]
        second = asyncio.create_task(ctx.checkpoint("a", lambda: 2))
        await turns()
        unanswered.fail(OSError("the store is gone"))

        with pytest.raises(OSError, match="gone"):
            await second
        assert await ctx.checkpoint("a", lambda: 3) == 3

    in_loop(handler)


@pytest.mark.parametrize("backwards", [False, True])
def test_writes_may_be_answered_in_any_order(backwards: bool) -> None:
    async def handler(run: FakeRun, ctx: AsyncContext) -> None:
        run.hold = True
        calls = [ctx.checkpoint(name, lambda name=name: name) for name in "abc"]  # type: ignore[misc]
        tasks = [asyncio.create_task(call) for call in calls]
        await turns()
        assert [record.boundary.seq for record in run.records] == [1, 2, 3]
        run.release(backwards=backwards)
        assert [await task for task in tasks] == ["a", "b", "c"]

    assert in_loop(handler).new_boundaries == 3


def test_waits_that_several_tasks_reach_in_one_turn_are_all_kept() -> None:
    async def handler(run: FakeRun, ctx: AsyncContext) -> None:
        ends = await asyncio.gather(
            ctx.wait_for_signal("a"),
            ctx.sleep("b", duration_ms=5),
            ctx.wait_for_signal("a"),
            ctx.child("c", TASK),
            return_exceptions=True,
        )
        assert [type(end) for end in ends] == [Suspended] * 4
        assert run.suspended == 1

    core = in_loop(handler)
    assert [wait.name for wait in core.suspension] == ["a", "b", "c"], "the child is started"


def test_a_child_whose_start_is_under_way_when_another_suspends_is_waited_for_too() -> None:
    async def handler(run: FakeRun, ctx: AsyncContext) -> None:
        run.hold = True
        child = asyncio.create_task(ctx.child("c", TASK))
        same = asyncio.create_task(ctx.child("c", TASK))
        await turns()
        waiting = asyncio.create_task(ctx.wait_for_signal("a"))
        await turns()
        run.release()
        with pytest.raises(Suspended):
            await waiting
        for task in (child, same):
            with pytest.raises(Suspended):
                await task
        assert len(run.records) == 1, "it is started once"

    core = in_loop(handler)
    assert [wait.name for wait in core.suspension] == ["a", "c"]


def test_an_operation_under_way_when_another_task_suspends_is_stored_all_the_same() -> None:
    async def handler(run: FakeRun, ctx: AsyncContext) -> None:
        operation = Gated()
        task = asyncio.create_task(ctx.checkpoint("a", operation))
        await turns()
        waiting = asyncio.create_task(ctx.wait_for_signal("paid"))
        await turns()
        assert (waiting.done(), run.suspended) == (False, 0)
        operation.gate.set()
        assert await task == "done"
        with pytest.raises(Suspended):
            await waiting

    assert in_loop(handler).new_boundaries == 1


def test_an_operation_that_waits_suspends_and_those_who_joined_it_too() -> None:
    async def handler(run: FakeRun, ctx: AsyncContext) -> None:
        async def operation() -> None:
            await asyncio.sleep(0)
            await ctx.wait_for_signal("paid")

        ends = await asyncio.gather(
            *(ctx.checkpoint("a", operation) for _ in range(2)), return_exceptions=True
        )
        assert [type(end) for end in ends] == [Suspended] * 2

    assert [wait.name for wait in in_loop(handler).suspension] == ["paid"]


def test_fail_pending_lets_nobody_wait_any_more() -> None:
    async def handler(run: FakeRun, ctx: AsyncContext) -> None:
        operation = Gated()
        leader = asyncio.create_task(ctx.checkpoint("a", operation))
        second = asyncio.create_task(ctx.checkpoint("a", operation))
        await turns()
        ctx._core.fail_pending(LeaseLostError("gone"))

        with pytest.raises(LeaseLostError):
            await second
        with pytest.raises(LeaseLostError):
            await ctx.checkpoint("b", lambda: 1)
        with pytest.raises(LeaseLostError):
            await ctx.wait_for_signal("c")
        leader.cancel()

    in_loop(handler)


def test_a_name_is_free_after_every_kind_of_failure() -> None:
    """No failure leaves a flight behind, for which later calls would wait for ever."""

    async def handler(run: FakeRun, ctx: AsyncContext) -> None:
        for operation in (lambda: {1}, lambda: "x" * 2**21, lambda: 1 / 0):
            with pytest.raises((ValueError, ZeroDivisionError)):
                await ctx.checkpoint("a", operation)
        with pytest.raises(ValueError, match="context"):
            await ctx.wait_for_human("a", {1})
        assert ctx._core.replay._flights == {}
        assert await ctx.checkpoint("a", lambda: 1) == 1

    in_loop(handler)


# -- threads -------------------------------------------------------------------------------------


def in_threads(*calls: Callable[[], object]) -> list[object]:
    """Return what each call returns or raises."""
    ends: list[object] = [None] * len(calls)

    def call(at: int) -> None:
        try:
            ends[at] = calls[at]()
        except BaseException as error:  # noqa: BLE001 - it is compared
            ends[at] = error

    threads = [threading.Thread(target=call, args=[at]) for at in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    return ends


def test_one_name_in_many_threads_is_one_execution() -> None:
    run = FakeRun()
    ctx = Context(run.activate())
    calls: list[int] = []
    start = threading.Barrier(8)

    def operation() -> list[int]:
        calls.append(1)
        return [1]

    def call() -> object:
        start.wait(PATIENCE)
        return [ctx.checkpoint(f"a{number}", operation) for number in range(50)]

    assert in_threads(*[call] * 8) == [[[1]] * 50] * 8
    assert (len(calls), len(run.records)) == (50, 50)
    assert sorted(record.boundary.seq for record in run.records) == list(range(1, 51))


def test_threads_that_join_get_the_leaders_error() -> None:
    run = FakeRun()
    core = run.activate()
    ctx = Context(core)
    entered = threading.Event()

    def fails() -> None:
        entered.set()
        eventually(lambda: _joined(core, "a"))
        raise ValueError("card")

    def join() -> object:
        entered.wait(PATIENCE)
        return ctx.checkpoint("a", lambda: pytest.fail("it ran"))

    ends = in_threads(lambda: ctx.checkpoint("a", fails), join)

    assert [str(end) for end in ends] == ["card", "card"]


def test_a_thread_waits_for_an_answer_that_another_thread_gives() -> None:
    run = FakeRun()
    run.hold = True
    ctx = Context(run.activate())

    def answer() -> None:
        eventually(lambda: bool(run.held))
        run.release()

    assert in_threads(lambda: ctx.checkpoint("a", lambda: 1), answer) == [1, None]


def test_waits_of_several_threads_are_all_kept_and_the_worker_is_told_once() -> None:
    run = FakeRun()
    core = run.activate()
    ctx = Context(core)
    start = threading.Barrier(8)

    def call(number: int) -> None:
        start.wait(PATIENCE)
        ctx.wait_for_signal(f"s{number % 4}")

    ends = in_threads(*[partial(call, number) for number in range(8)])

    assert [type(end) for end in ends] == [Suspended] * 8
    assert sorted(wait.name for wait in core.suspension) == ["s0", "s1", "s2", "s3"]
    assert run.suspended == 1
    assert all(wait.kind is BoundaryKind.SIGNAL for wait in core.suspension)


def _joined(core: ActivationCore, name: str) -> bool:
    flight = core.replay._flights.get(name)
    return flight is not None and flight.joined is not None
