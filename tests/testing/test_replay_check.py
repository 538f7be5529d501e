"""`check_replay`: what still replays, and each kind of difference, named by its line."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypedDict

import pytest

from workhorse import AsyncContext, BatchItem, Context, RetryPolicy, Workhorse, waits
from workhorse.errors import ConfigurationError, WorkhorseError
from workhorse.testing import Kit, ReplayDivergenceError, check_replay

DAY = timedelta(days=1)


def nothing() -> None:
    """An operation that a check is never to call."""


def never() -> Any:
    raise AssertionError("an operation was called")


def line_of(handler: Callable[..., Any], marked: str) -> str:
    """`file:line` of the line of a handler that holds this text."""
    lines, first = inspect.getsourcelines(handler)
    (offset,) = [at for at, line in enumerate(lines) if marked in line]
    return f"{__file__}:{first + offset}"


class Made:
    """Makes runs of handlers and exports them."""

    def __init__(self, app: Workhorse, kit: Kit) -> None:
        self.app = app
        self.kit = kit

    def export(
        self, handler: Callable[..., Any], payload: Any = None, *, until: timedelta | None = None
    ) -> dict[str, Any]:
        """Run a handler, to its end or for a time, and export its run."""
        task = self.app.task(handler.__name__, retry=RetryPolicy(max_attempts=1))(handler)
        run = task.enqueue(payload) if task.takes_payload else task.enqueue()
        if until is None:
            self.kit.run_to_end(run)
        else:
            self.kit.run_until_idle()
            self.kit.advance(until)
            self.kit.run_until_idle()
        document: dict[str, Any] = json.loads(json.dumps(self.app.admin.export(run.id)))
        return document


@pytest.fixture
def made(app: Workhorse, kit: Kit) -> Made:
    return Made(app, kit)


def diverges(handler: Callable[..., Any], exported: Any, **options: Any) -> ReplayDivergenceError:
    with pytest.raises(ReplayDivergenceError) as raised:
        check_replay(handler, exported, **options)
    return raised.value


# -- what still replays --------------------------------------------------------------------------


def test_a_finished_run_replays_to_its_end(made: Made) -> None:
    """No operation is called; the values of the first time answer."""

    def order(ctx: Context, number: int) -> int:
        charged = ctx.checkpoint("charge", lambda: number * 2, input=number)
        ctx.sleep("day", DAY)
        return int(ctx.checkpoint("ship", lambda: charged + 1))

    exported = made.export(order, 3)

    def same(ctx: Context, number: int) -> int:
        charged = ctx.checkpoint("charge", never, input=number)
        ctx.sleep("day", DAY)
        assert charged == 6
        return int(ctx.checkpoint("ship", never))

    check = check_replay(same, exported)

    assert check.reached == ("charge", "day", "ship")
    assert check.ended == "the handler returned"
    assert check.run_id == exported["run"]["id"]


def test_a_run_that_waits_replays_up_to_its_wait(made: Made) -> None:
    def order(ctx: Context) -> None:
        ctx.checkpoint("charge", nothing)
        ctx.wait_for_signal("delivered")
        never()

    exported = made.export(order, until=DAY)

    check = check_replay(order, exported)

    assert check.reached == ("charge", "delivered")
    assert check.ended == "at the open wait 'delivered'"


def test_a_run_that_sleeps_replays_up_to_its_timer(made: Made) -> None:
    """What is behind it has not happened, so it must not happen here either."""

    def order(ctx: Context) -> None:
        ctx.sleep("first", DAY)
        ctx.sleep("second", 2 * DAY)
        never()

    assert check_replay(order, made.export(order, until=DAY)).ended == "at the open wait 'second'"


def test_new_boundaries_behind_the_stored_ones_end_the_check(made: Made) -> None:
    def order(ctx: Context) -> None:
        ctx.checkpoint("charge", nothing)

    exported = made.export(order)

    def longer(ctx: Context) -> None:
        ctx.checkpoint("charge", never)
        ctx.checkpoint("thank", never)

    check = check_replay(longer, exported)

    assert check.ended == f"at a new checkpoint 'thank' ({line_of(longer, 'thank')})"


@pytest.mark.parametrize(
    "begin",
    [
        lambda ctx: ctx.transaction("new", lambda connection: never()),
        lambda ctx: ctx.sleep("new", DAY),
        lambda ctx: ctx.sleep("new", timedelta(0)),
        lambda ctx: ctx.wait_for_signal("new"),
        lambda ctx: ctx.wait_for_human("new", "context"),
        lambda ctx: ctx.token("new"),
        lambda ctx: ctx.wait_any({"new": waits.signal(), "newer": waits.timer(DAY)}),
    ],
)
def test_nothing_new_is_begun_of_any_kind(made: Made, begin: Callable[[Context], object]) -> None:
    def order(ctx: Context) -> None:
        ctx.checkpoint("charge", nothing)

    exported = made.export(order)

    def longer(ctx: Context) -> None:
        ctx.checkpoint("charge", never)
        ctx.progress("half")
        begin(ctx)
        never()

    assert check_replay(longer, exported).ended.startswith("at a new ")


def test_waits_of_all_kinds_replay(made: Made, app: Workhorse, kit: Kit) -> None:
    began = kit.now

    @app.task("part")
    def part(ctx: Context, number: int) -> int:
        return number

    def order(ctx: Context) -> list[Any]:
        token = ctx.token("reference", timeout=DAY)
        first = ctx.wait_any({"paid": waits.signal(), "late": waits.timer(DAY)})
        ctx.sleep_until("instant", began)
        return [
            first.name,
            ctx.wait_for_token("callback", token) if first.name == "paid" else None,
            ctx.wait_for_signal("missing", timeout=DAY, default="none"),
            ctx.child("one", part, 7),
            ctx.children("many", part, [1, 2, 3], max_parallel=2),
        ]

    exported = made.export(order)
    assert exported["run"]["state"] == "succeeded"
    check = check_replay(order, exported)

    assert check.ended == "the handler returned"
    assert set(check.reached) == {each["name"] for each in exported["boundaries"]}


def test_a_choice_that_is_open_or_due_replays(made: Made, app: Workhorse, kit: Kit) -> None:
    """What came for a choice and was not looked at yet ends the check, with all waits reached."""

    def order(ctx: Context) -> None:
        ctx.wait_any({"b": waits.signal(), "a": waits.timer(DAY), "c": waits.signal()})

    exported = made.export(order, until=timedelta(0))
    assert check_replay(order, exported).ended.startswith("at the open wait")
    app.send_signal(exported["run"]["id"], "c", 1)

    delivered = app.admin.export(exported["run"]["id"])

    assert check_replay(order, delivered).ended.startswith("at a new any 'any:a'")


def test_tasks_that_run_side_by_side_may_have_ended_in_any_order(made: Made) -> None:
    async def order(ctx: AsyncContext) -> None:
        released = asyncio.Event()

        async def slow() -> None:
            await released.wait()

        async def quick() -> None:
            released.set()

        await asyncio.gather(ctx.checkpoint("slow", slow), ctx.checkpoint("quick", quick))
        await ctx.checkpoint("both", nothing)

    exported = made.export(order)
    assert [each["name"] for each in exported["boundaries"]] == ["quick", "slow", "both"]

    assert check_replay(order, exported).reached == ("slow", "quick", "both")


def test_a_task_that_comes_to_its_boundary_a_few_turns_later_is_waited_for(made: Made) -> None:
    """On a replay the others are answered at once, and the handler is at its wait before it."""

    async def order(ctx: AsyncContext) -> None:
        stored = asyncio.Event()

        async def side() -> None:
            for _ in range(5):
                await asyncio.sleep(0)
            await ctx.checkpoint("side", nothing)
            stored.set()

        async def both() -> None:
            await stored.wait()

        task = asyncio.create_task(side())
        await ctx.checkpoint("main", both)
        await ctx.wait_for_signal("go")
        await task

    exported = made.export(order, until=timedelta(0))

    assert check_replay(order, exported).reached == ("main", "go", "side")


def test_an_async_check_may_be_made_on_a_running_loop(made: Made) -> None:
    async def order(ctx: AsyncContext) -> None:
        await ctx.checkpoint("charge", nothing)

    exported = made.export(order)

    async def test() -> str:
        return check_replay(order, exported).ended

    assert asyncio.run(test()) == "the handler returned"


def test_a_patch_keeps_old_runs_on_the_old_way(made: Made) -> None:
    def order(ctx: Context) -> None:
        ctx.checkpoint("charge", nothing)
        ctx.checkpoint("ship", nothing)

    exported = made.export(order)

    def patched(ctx: Context) -> None:
        if ctx.patched("insured"):
            ctx.checkpoint("insure", never)
        ctx.checkpoint("charge", never)
        ctx.checkpoint("ship", never)

    assert check_replay(patched, exported).ended == "the handler returned"
    exported["boundaries"] = []
    assert check_replay(patched, exported).ended.startswith("at a new checkpoint 'insure'")


def test_a_handler_that_fails_where_the_run_failed_replays(made: Made) -> None:
    def order(ctx: Context) -> None:
        ctx.checkpoint("charge", nothing)
        raise ValueError("no")

    assert check_replay(order, made.export(order)).ended == "the handler raised ValueError"


def test_boundaries_inside_of_others_may_be_left_out(made: Made) -> None:
    def order(ctx: Context) -> None:
        ctx.checkpoint("outer", lambda: ctx.checkpoint("inner", nothing))

    exported = made.export(order)

    assert diverges(order, exported).boundary == "inner"
    assert check_replay(order, exported, optional=["inner"]).reached == ("outer",)


def test_a_task_is_checked_with_what_its_context_shows(made: Made, app: Workhorse) -> None:
    @app.task("order", aliases=["orders.old"])
    def order(ctx: Context, number: int) -> Any:
        return ctx.checkpoint(f"{ctx.run.tags[0]} {ctx.run.session} {ctx.run.key}", nothing)

    run = order.enqueue(1, tags=["tag"], session="s", key="k")
    made.kit.run_to_end(run)

    assert check_replay(order, app.admin.export(run.id)).reached == ("tag s k",)
    assert check_replay(order, json.dumps(app.admin.export(run.id))).task == "order"


# -- what does not, and where --------------------------------------------------------------------


def two_stages(ctx: Context) -> None:
    ctx.checkpoint("charge", nothing, input=1)
    ctx.sleep("day", DAY)
    ctx.checkpoint("ship", nothing)


def test_a_new_boundary_before_a_stored_one(made: Made) -> None:
    def order(ctx: Context) -> None:
        ctx.checkpoint("charge", never)
        ctx.checkpoint("insure", never)
        ctx.sleep("day", DAY)

    found = diverges(order, made.export(two_stages))

    assert found.boundary == "day"
    assert found.expected == "timer 'day'"
    assert found.came == "a new checkpoint 'insure'"
    assert found.place == line_of(order, "insure")
    assert str(found).startswith(f"{found.place}: run ")


def test_a_renamed_boundary(made: Made) -> None:
    async def order(ctx: AsyncContext) -> None:
        await ctx.checkpoint("charged", never)

    found = diverges(order, made.export(two_stages))

    assert (found.boundary, found.came) == ("charge", "a new checkpoint 'charged'")
    assert found.place == line_of(order, "charged")


def test_a_boundary_that_is_left_out(made: Made) -> None:
    def order(ctx: Context) -> None:
        ctx.checkpoint("charge", never)
        ctx.checkpoint("ship", never)

    found = diverges(order, made.export(two_stages))

    assert (found.expected, found.came) == ("timer 'day'", "checkpoint 'ship'")
    assert found.place == line_of(order, "ship")


def test_a_handler_that_returns_too_early(made: Made) -> None:
    def order(ctx: Context) -> None:
        ctx.checkpoint("charge", never)

    found = diverges(order, made.export(two_stages))

    assert (found.boundary, found.came) == ("day", "the end: the handler returned")
    assert found.place == line_of(order, "def order")


def test_a_handler_that_raises_too_early(made: Made) -> None:
    def order(ctx: Context) -> None:
        ctx.checkpoint("charge", never)
        raise ValueError("secret")

    found = diverges(order, made.export(two_stages))

    assert (found.boundary, found.came) == ("day", "ValueError, which it raised")
    assert found.place == line_of(order, "raise")
    assert "secret" not in str(found)


def test_another_order(made: Made) -> None:
    def order(ctx: Context) -> None:
        ctx.sleep("day", DAY)
        ctx.checkpoint("charge", never, input=1)
        ctx.checkpoint("ship", never)

    found = diverges(order, made.export(two_stages))

    assert (found.boundary, found.came) == ("charge", "timer 'day'")
    assert found.place == line_of(order, "day")


def test_another_order_before_tasks_begin(made: Made) -> None:
    """What runs side by side is free among itself, but not of what was before it."""

    async def before(ctx: AsyncContext) -> None:
        await asyncio.gather(ctx.checkpoint("a", nothing), ctx.checkpoint("b", nothing))
        await ctx.checkpoint("c", nothing)

    exported = made.export(before)

    async def after(ctx: AsyncContext) -> None:
        await ctx.checkpoint("c", never)
        await asyncio.gather(ctx.checkpoint("a", never), ctx.checkpoint("b", never))

    found = diverges(after, exported)

    assert (found.boundary, found.came) == ("a", "checkpoint 'c'")
    assert found.place == line_of(after, '"c"')


@pytest.mark.parametrize(
    ("call", "came"),
    [
        (lambda ctx: ctx.wait_for_signal("day", DAY), "signal 'day'"),
        (lambda ctx: ctx.checkpoint("day", never), "checkpoint 'day'"),
        (lambda ctx: ctx.wait_any({"x": waits.signal()}, name="day"), "any 'day'"),
        (lambda ctx: ctx.patched("day"), "patch 'day'"),
    ],
)
def test_another_kind(made: Made, call: Callable[[Context], object], came: str) -> None:
    def order(ctx: Context) -> None:
        ctx.checkpoint("charge", never)
        call(ctx)

    found = diverges(order, made.export(two_stages))

    assert (found.boundary, found.expected, found.came) == ("day", "timer 'day'", came)
    assert found.place is not None
    assert found.place.startswith(f"{__file__}:")


def test_another_duration(made: Made) -> None:
    """The run keeps its first target, so nothing fails; but it is not what the code now says."""

    def order(ctx: Context) -> None:
        ctx.checkpoint("charge", never)
        ctx.sleep("day", 2 * DAY)

    found = diverges(order, made.export(two_stages))

    assert found.expected == "timer 'day' of 1 day, 0:00:00"
    assert found.came == "timer 'day' of 2 days, 0:00:00"
    assert found.place == line_of(order, "sleep")


@pytest.mark.parametrize(("was", "now"), [(DAY, None), (None, DAY), (DAY, 2 * DAY)])
def test_another_time_out(made: Made, was: timedelta | None, now: timedelta | None) -> None:
    def before(ctx: Context) -> None:
        ctx.wait_for_signal("paid", timeout=was, default=0)

    def after(ctx: Context) -> None:
        ctx.wait_for_signal("paid", timeout=now, default=0)

    found = diverges(after, made.export(before, until=timedelta(0)))

    assert found.boundary == "paid"
    assert found.place == line_of(after, "paid")


def test_a_rerun_has_no_durations_to_compare(made: Made) -> None:
    """Its boundaries were copied later than they were made."""
    exported = made.export(two_stages)
    run = made.app.admin.rerun(exported["run"]["id"], by="ann", boundaries="all")
    made.kit.advance(DAY)

    assert check_replay(two_stages, made.app.admin.export(run.id)).reached[-1] == "ship"


def test_another_instant(made: Made, kit: Kit) -> None:
    at = kit.now + DAY

    def before(ctx: Context) -> None:
        ctx.sleep_until("at", at)

    def after(ctx: Context) -> None:
        ctx.sleep_until("at", at + timedelta(seconds=1))

    found = diverges(after, made.export(before))

    assert found.came == "one for another instant"
    assert found.place == line_of(after, "sleep_until")


def test_another_input(made: Made) -> None:
    def order(ctx: Context) -> None:
        ctx.checkpoint("charge", never, input=2)

    found = diverges(order, made.export(two_stages))

    assert (found.boundary, found.came) == ("charge", "one for another input")
    assert found.place == line_of(order, "charge")


def test_another_child(made: Made, app: Workhorse) -> None:
    @app.task("part")
    def part(ctx: Context, number: int) -> int:
        return number

    def before(ctx: Context) -> None:
        ctx.child("one", part, 1)

    async def after(ctx: AsyncContext) -> None:
        await ctx.child("one", part, 2)

    found = diverges(after, made.export(before))

    assert found.came == "one for another task or payload"
    assert found.place == line_of(after, '"one"')


def test_a_payload_that_the_handler_refuses(made: Made) -> None:
    class Order(TypedDict):
        number: int

    def before(ctx: Context, number: int) -> None:
        pass

    def after(ctx: Context, order: Order) -> None:
        pass

    after.__annotations__["order"] = Order
    found = diverges(after, made.export(before, 7))

    assert found.came.startswith("one that it refuses (payload of task ")
    assert found.place == line_of(after, "def after")


def test_the_line_is_the_users_also_in_a_helper(made: Made) -> None:
    def helper(ctx: Context) -> None:
        ctx.checkpoint("insure", never)

    def order(ctx: Context) -> None:
        ctx.checkpoint("charge", never)
        helper(ctx)

    assert diverges(order, made.export(two_stages)).place == line_of(helper, "insure")


def test_a_handler_that_swallows_its_end_is_found_out_all_the_same(made: Made) -> None:
    def order(ctx: Context) -> None:
        try:
            ctx.checkpoint("charged", never)
        except BaseException:  # noqa: BLE001 - that is what it is about
            return

    assert diverges(order, made.export(two_stages)).came == "a new checkpoint 'charged'"


def test_a_task_group_that_wraps_the_end_changes_nothing(made: Made) -> None:
    async def order(ctx: AsyncContext) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.checkpoint("charge", never, input=1))
            group.create_task(ctx.checkpoint("insure", never))

    found = diverges(order, made.export(two_stages))

    assert (found.boundary, found.came) == ("day", "a new checkpoint 'insure'")


# -- documents -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("{", "no JSON"),
        ([], "no exported run"),
        ({"run": {}}, "no exported run"),
        ({"workhorse_export": 99}, "format 99"),
        ({"workhorse_export": 1, "run": {"id": "x"}}, "damaged"),
        ({"workhorse_export": 1}, "damaged"),
    ],
)
def test_what_is_no_exported_run_is_refused(document: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        check_replay(two_stages, document)


def test_a_divergence_is_an_assertion_and_one_of_ours() -> None:
    assert issubclass(ReplayDivergenceError, AssertionError)
    assert issubclass(ReplayDivergenceError, WorkhorseError)


def test_a_batch_handler_has_no_way_to_replay(app: Workhorse, kit: Kit) -> None:
    @app.task("b", batch=10)
    def handler(items: list[BatchItem[int]]) -> None: ...

    run = handler.enqueue(1)
    kit.run_until_idle()
    exported = app.admin.export(run.id)

    with pytest.raises(ConfigurationError, match="no boundaries"):
        check_replay(handler, exported)
    assert exported["boundaries"] == []
