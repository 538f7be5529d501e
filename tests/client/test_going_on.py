"""Deliveries and reruns seen by real handlers: what was passed is not done again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from workhorse import AsyncContext, Context, Workhorse, waits
from workhorse.domain.boundaries import DeliveryResult
from workhorse.domain.runs import RunState
from workhorse.errors import ChildFailedError, RunFailedError


@pytest.fixture
def app(database_url: str) -> Any:
    """An app that needs no broker."""
    with Workhorse(database_url=database_url, lane="polling") as app:
        yield app


def drained(app: Workhorse) -> int:
    """Execute all that can go on."""
    worker = app.worker()
    count = worker.drain()
    worker.stop(0)
    return count


def test_a_run_goes_on_with_what_it_was_sent(app: Workhorse) -> None:
    """A signal, a decision and a token's value, in a plain handler and an async one."""
    ref = app.create_token()

    @app.task()
    def plain(ctx: Context) -> list[Any]:
        return [
            ctx.wait_for_signal("paid"),
            ctx.wait_for_human("approve", {"sum": 7}),
            ctx.wait_for_token("hook", ref),
        ]

    @app.task()
    async def asynchronous(ctx: AsyncContext) -> list[Any]:
        return [
            await ctx.wait_for_signal("paid"),
            await ctx.wait_for_human("approve", {"sum": 7}),
            await ctx.wait_for_token("hook", ref),
        ]

    runs = [plain.enqueue(), asynchronous.enqueue()]
    assert drained(app) == 2
    assert runs[0].send_signal("paid", 1) is DeliveryResult.DELIVERED
    assert app.send_signal(runs[1].id, "paid", 1) is DeliveryResult.DELIVERED
    drained(app)
    assert {wait.name for wait in app.admin.list_waits(kind="human")} == {"approve"}
    for run in runs:
        assert app.complete_human_wait(run.id, "approve", "yes", by="ann") == "delivered"
    drained(app)
    assert app.complete_token(ref, {"ok": True}) is DeliveryResult.DELIVERED
    drained(app)

    for run in runs:
        assert run.result(timeout=0) == [1, "yes", {"ok": True}]
        assert run.view().attempt == 1


@pytest.mark.parametrize(
    ("boundaries", "done_again"),
    [("all", ["ship"]), ("charge", ["pack", "ship"]), ("none", ["charge", "pack", "ship"])],
)
def test_a_rerun_does_again_what_it_did_not_take_over(
    app: Workhorse, boundaries: str, done_again: list[str]
) -> None:
    """The wait whose signal came for the first run is settled in the second."""
    done: list[str] = []
    broken = [True]

    @app.task(not_retryable=(ValueError,))
    def order(ctx: Context) -> str:
        def stage(name: str) -> str:
            def work() -> str:
                done.append(name)
                return name

            return str(ctx.checkpoint(name, work))

        stage("charge")
        if ctx.wait_for_signal("paid", default=None) is None:
            raise AssertionError
        stage("pack")
        if broken[0]:
            raise ValueError("the lorry broke down")
        return f"{stage('ship')}ped"

    first = order.enqueue()
    first.send_signal("paid", 7)
    drained(app)
    with pytest.raises(RunFailedError):
        first.result(timeout=0)
    assert done == ["charge", "pack"]
    done.clear()
    broken[0] = False

    again = app.admin.rerun(first.id, boundaries, by="ann")
    if boundaries != "all":  # the signal belongs to a wait that was not taken over
        again.send_signal("paid", 7)
    drained(app)

    assert again.result(timeout=0) == "shipped"
    assert done == done_again
    assert [each.what for each in app.admin.timeline(again.id)][-1] == "ended"


@pytest.mark.parametrize("boundaries", ["all", "quick", "asked", "slow"])
def test_a_choice_that_a_rerun_did_not_take_over_is_taken_anew(
    app: Workhorse, boundaries: str
) -> None:
    """What the first had closed by it is open again, and what has settled one of them stands."""
    broken = [True]

    @app.task()
    def slow(ctx: Context) -> None:
        ctx.sleep("for a day", timedelta(days=1))

    @app.task(not_retryable=(ValueError,))
    def choose(ctx: Context) -> list[Any]:
        first = ctx.wait_any(
            {"asked": waits.signal(), "quick": waits.signal(), "slow": waits.child(slow)}
        )
        if broken[0]:
            raise ValueError
        return [*first]

    first = choose.enqueue()
    drained(app)
    first.send_signal("quick", 1)
    drained(app)
    with pytest.raises(RunFailedError):
        first.result(timeout=0)
    broken[0] = False

    again = app.admin.rerun(first.id, boundaries, by="ann")
    drained(app)
    again.send_signal("quick", 1)  # which some have taken over
    drained(app)

    assert again.result(timeout=0) == ["quick", 1]


def test_what_comes_after_a_failed_run_runs_all_the_same_where_it_is_said(app: Workhorse) -> None:
    @app.task(not_retryable=(ValueError,))
    def work(fails: bool) -> None:
        if fails:
            raise ValueError

    runs = [work.enqueue(fails) for fails in (True, False)]
    summary = work.enqueue(False, after=runs, on_failure="run")
    strict = work.enqueue(False, after=runs)
    drained(app)
    app.maintenance().run_once()
    drained(app)

    assert summary.view().state is RunState.SUCCEEDED
    with pytest.raises(RunFailedError, match="DependencyFailed"):
        strict.result(timeout=0)


def test_whoever_ends_a_run_frees_those_who_wait_for_it(app: Workhorse) -> None:
    """Without maintenance: by the worker that settles it, and by whoever cancels it."""

    @app.task()
    async def child(number: int) -> int:
        return number + 1

    @app.task()
    async def stuck(ctx: AsyncContext) -> None:
        await ctx.wait_for_signal("never")

    @app.task()
    async def parent(ctx: AsyncContext) -> int:
        return await ctx.child("first", child, 1)

    @app.task()
    async def left_behind(ctx: AsyncContext) -> str:
        try:
            await ctx.child("stuck", stuck)
        except ChildFailedError as error:
            return error.reason
        return "it ended"

    run, other = parent.enqueue(), left_behind.enqueue()
    late = child.enqueue(5, after=[run.id])
    drained(app)

    assert (run.result(0), late.result(0)) == (2, 6)
    (waiting,) = app.admin.list_runs(task=stuck.name)
    assert app.cancel(waiting.id) is RunState.CANCELLED
    drained(app)
    assert other.result(0) == "cancelled"


def test_children_go_with_their_parent(app: Workhorse) -> None:
    @app.task()
    async def child(ctx: AsyncContext) -> None:
        await ctx.wait_for_signal("never")

    @app.task()
    async def parent(ctx: AsyncContext) -> None:
        await ctx.child("a", child)

    run = parent.enqueue()
    drained(app)
    (waiting,) = app.admin.list_runs(task=child.name)

    assert app.cancel(run.id) is RunState.CANCELLED

    assert app.run(waiting.id).view().state is RunState.CANCELLED


def test_a_token_that_nobody_made_ends_the_run(app: Workhorse) -> None:
    """By a plain error of a known type; nothing is tried again, and nothing hangs."""

    @app.task()
    def hook(ctx: Context) -> None:
        ctx.wait_for_token("hook", "wht_that_nobody_has_made")

    run = hook.enqueue()
    drained(app)

    with pytest.raises(RunFailedError) as raised:
        run.result(0)
    assert raised.value.error_type == "workhorse.errors.TokenNotFoundError"
    assert raised.value.reason == "not_retryable"


def test_a_sleep_until_what_has_passed_keeps_its_lease(app: Workhorse) -> None:
    @app.task()
    async def late(ctx: AsyncContext) -> int:
        await ctx.sleep_until("yesterday", datetime.now(UTC) - timedelta(days=1))
        await ctx.sleep("nothing", timedelta(0))
        return ctx.lease.fence

    run = late.enqueue()
    drained(app)

    assert run.result(0) == 1
