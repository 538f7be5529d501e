"""`crash_after`: what a process that was killed leaves behind, and what it never does again."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from tests.support.eventually import eventually
from workhorse import AsyncContext, Context, RetryPolicy, RunState, Workhorse
from workhorse.errors import InvalidNameError
from workhorse.testing import CrashMissedError, Kit
from workhorse.testing.crashes import Crashes

AT_ONCE = RetryPolicy(max_attempts=3, first=timedelta(0))


def two_stages(app: Workhorse, kind: str, done: list[str]) -> Any:
    if kind == "plain":

        @app.task("order", retry=AT_ONCE)
        def order(ctx: Context) -> str:
            ctx.checkpoint("charge", lambda: done.append("charge"))
            done.append("between")
            ctx.checkpoint("ship", lambda: done.append("ship"))
            return f"attempt {ctx.attempt}"

        return order

    @app.task("order", retry=AT_ONCE)
    async def order_async(ctx: AsyncContext) -> str:
        await ctx.checkpoint("charge", lambda: done.append("charge"))
        done.append("between")
        await ctx.checkpoint("ship", lambda: done.append("ship"))
        return f"attempt {ctx.attempt}"

    return order_async


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_crash_stores_the_boundary_and_leaves_the_lease_held(
    app: Workhorse, kit: Kit, kind: str
) -> None:
    """No settle, no release, nothing renewed: the run is running, under the lease as it was."""
    done: list[str] = []
    run = two_stages(app, kind, done).enqueue()
    held_until = kit.now + kit.lease
    crash = kit.crash_after("charge")
    assert not crash

    assert kit.run_until_idle() == 1

    assert crash
    assert crash.run_id == run.id
    view = run.view()
    assert view.state is RunState.RUNNING
    assert view.lease_expires_at == held_until
    assert (view.fence, view.attempt, view.error_type, view.result) == (1, 1, None, None)
    assert [each.name for each in app.admin.list_checkpoints(run.id)] == ["charge"]
    assert done == ["charge"]


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_what_was_stored_before_a_crash_is_not_run_again(
    app: Workhorse, kit: Kit, kind: str
) -> None:
    done: list[str] = []
    run = two_stages(app, kind, done).enqueue()
    kit.crash_after("charge")
    kit.run_until_idle()

    kit.advance(kit.lease - timedelta(milliseconds=1))
    assert kit.run_until_idle() == 0, "the lease holds until it runs out"
    kit.advance(timedelta(milliseconds=1))

    assert kit.run_until_idle() == 1
    assert run.result() == "attempt 2", "a lost lease spends an attempt"
    assert done == ["charge", "between", "ship"]


def test_the_clock_moves_to_the_end_of_the_lease_by_itself(app: Workhorse, kit: Kit) -> None:
    done: list[str] = []
    two_stages(app, "plain", done).enqueue()
    kit.crash_after("charge")
    kit.run_until_idle()
    began = kit.now

    assert kit.advance_to_next() == began + kit.lease
    assert kit.run_until_idle() == 1


def test_a_run_comes_through_a_crash_after_each_of_its_boundaries(app: Workhorse, kit: Kit) -> None:
    """The whole of it in one test: each effect once, whatever dies when."""
    done: list[str] = []

    @app.task("order", retry=RetryPolicy(max_attempts=10, first=timedelta(0)))
    def order(ctx: Context) -> None:
        ctx.checkpoint("charge", lambda: done.append("charge"))
        ctx.sleep("day", timedelta(days=1))
        ctx.wait_for_signal("delivered")
        ctx.checkpoint("thank", lambda: done.append("thank"))

    run = order.enqueue()
    app.send_signal(run.id, "delivered")
    crashes = [kit.crash_after(name) for name in ("charge", "day", "delivered", "thank")]

    kit.run_to_end(run)

    assert all(crashes)
    assert run.view().state is RunState.SUCCEEDED
    assert done == ["charge", "thank"]


def test_a_crash_at_a_wait_stores_the_wait_and_sends_no_wakeup(app: Workhorse, kit: Kit) -> None:
    """The settle is the commit: the run sleeps, and nobody was told when to wake it."""

    @app.task("nap")
    def nap(ctx: Context) -> None:
        ctx.sleep("nap", timedelta(minutes=5))

    run = nap.enqueue()
    kit.wakeups.clear()
    crash = kit.crash_after("nap")

    kit.run_until_idle()

    assert crash
    assert run.view().state is RunState.SCHEDULED
    assert kit.wakeups == []
    kit.run_to_end(run)


def test_a_crash_at_a_child_leaves_the_child_for_the_nets(app: Workhorse, kit: Kit) -> None:
    @app.task("part")
    def part(ctx: Context) -> int:
        return 1

    @app.task("whole", retry=AT_ONCE)
    def whole(ctx: Context) -> int:
        value: int = ctx.child("part", part)
        return value

    run = whole.enqueue()
    kit.wakeups.clear()
    kit.crash_after("part")

    kit.run_until_idle()
    assert [view.state for view in app.admin.list_runs(task="part")] == [RunState.SUCCEEDED]
    assert run.view().state is RunState.RUNNING

    assert kit.run_to_end(run).result() == 1
    assert len(app.admin.list_runs(task="part")) == 1


def test_a_crash_is_for_one_task_and_happens_once(app: Workhorse, kit: Kit) -> None:
    for name in ("first", "second"):

        @app.task(name)
        def handler(ctx: Context) -> None:
            ctx.checkpoint("stage", lambda: None)

    runs = [app.registry.require(name).enqueue() for name in ("first", "second", "second")]
    kit.crash_after("stage", task="second")

    kit.run_until_idle()

    states = sorted(run.view().state for run in runs)
    assert states == [RunState.RUNNING, RunState.SUCCEEDED, RunState.SUCCEEDED]
    assert runs[0].view().state is RunState.SUCCEEDED


def test_an_except_clause_does_not_survive_a_crash(app: Workhorse, kit: Kit) -> None:
    """What a dead process would not do, `except Exception` must not do."""
    seen: list[str] = []

    @app.task("careful")
    def careful(ctx: Context) -> None:
        try:
            ctx.checkpoint("stage", lambda: None)
        except Exception:  # noqa: BLE001 - that is what it is about
            seen.append("survived")
        seen.append("went on")

    careful.enqueue()
    kit.crash_after("stage")
    kit.run_until_idle()

    assert seen == []


def test_tasks_of_an_async_handler_are_unwound_with_it(app: Workhorse, kit: Kit) -> None:
    ended: list[str] = []

    @app.task("busy")
    async def busy(ctx: AsyncContext) -> None:
        async def wait() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("ended")

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        await ctx.checkpoint("stage", lambda: None)
        await task

    busy.enqueue()
    kit.crash_after("stage")
    kit.run_until_idle()

    eventually(lambda: ended == ["ended"])


def test_a_crash_that_did_not_happen_fails_the_test(app: Workhorse) -> None:
    """A mistyped name would test nothing."""
    kit = Kit(app).__enter__()
    kit.crash_after("chrage")
    kit.crash_after("other")
    with pytest.raises(CrashMissedError, match="'chrage', 'other'"):
        kit.__exit__(None, None, None)


def test_a_test_that_fails_says_why_itself(app: Workhorse) -> None:
    kit = Kit(app).__enter__()
    kit.crash_after("never")
    kit.__exit__(ZeroDivisionError, ZeroDivisionError(), None)


def test_a_crash_needs_names_that_can_be() -> None:
    crashes = Crashes()
    with pytest.raises(InvalidNameError):
        crashes.arm("", None)
    with pytest.raises(InvalidNameError):
        crashes.arm("stage", "")
    crash = crashes.arm("stage", "order")
    assert repr(crash) == "<Crash after 'stage' of task 'order': has not happened>"
    crashes.forget()
    crashes.check_all_happened()
