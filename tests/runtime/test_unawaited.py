"""Calls of an async context that are never awaited: an error, not a stage that is lost."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.runtime.rig import Rig
from workhorse import errors, waits
from workhorse.domain.boundaries import BoundaryKind
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import Reason, RunState, RunView
from workhorse.handlers.context import AsyncContext
from workhorse.store.durable.delivering import deliver
from workhorse.store.operators.history import attempts_of

AGAIN = RetryPolicy(max_attempts=5, first=timedelta(0))
HOUR = timedelta(hours=1)

Handler = Callable[[AsyncContext], Awaitable[Any]]


def one() -> int:
    return 1


def ran(rig: Rig, run: Handler) -> RunView:
    """Have a worker run a handler once."""
    rig.task("t")(run)
    claimed = rig.claimed("t", retry=AGAIN)
    rig.worker().process_run(claimed)
    return rig.view(claimed.id)


def line_of(run: Handler, text: str) -> str:
    """Return the file and line of some text in a handler."""
    code = run.__code__
    with open(code.co_filename, encoding="utf-8") as file:
        lines = file.read().splitlines()
    at = next(n for n in range(code.co_firstlineno, len(lines)) if text in lines[n - 1])
    return f"{code.co_filename}:{at}"


def test_it_ends_the_run_and_names_the_call_and_its_line(rig: Rig) -> None:
    async def forgets(ctx: AsyncContext) -> str:
        await ctx.checkpoint("first", one)
        ctx.checkpoint("charge", one)  # type: ignore[unused-coroutine]
        return "done"

    view = ran(rig, forgets)

    assert (view.state, view.attempt, view.reason) == (RunState.FAILED, 1, Reason.NOT_RETRYABLE)
    assert view.error_type == "workhorse.errors.BoundaryNotAwaitedError"
    place = line_of(forgets, '"charge"')
    assert f"never awaited ctx.checkpoint('charge') at {place}, so" in (view.error_message or "")
    assert view.result is None


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda ctx: ctx.transaction("a", lambda connection: 1), "ctx.transaction('a')"),
        (lambda ctx: ctx.patched("a"), "ctx.patched('a')"),
        (lambda ctx: ctx.progress(1), "ctx.progress()"),
        (lambda ctx: ctx.sleep("a", HOUR), "ctx.sleep('a')"),
        (lambda ctx: ctx.wait_for_signal("a"), "ctx.wait_for_signal('a')"),
        (lambda ctx: ctx.wait_any({"a": waits.signal()}), "ctx.wait_any()"),
        (lambda ctx: ctx.wait_any({"a": waits.signal()}, name="b"), "ctx.wait_any('b')"),
        (lambda ctx: ctx.token("a"), "ctx.token('a')"),
        (lambda ctx: ctx.get_checkpoint("a"), "ctx.get_checkpoint('a')"),
    ],
    ids=lambda each: each if isinstance(each, str) else "call",
)
def test_each_call_is_one_that_must_be_awaited(
    rig: Rig, call: Callable[[AsyncContext], Awaitable[object]], said: str
) -> None:
    async def forgets(ctx: AsyncContext) -> None:
        call(ctx)

    assert f"never awaited {said} at {__file__}:" in (ran(rig, forgets).error_message or "")


def test_several_are_named_and_no_endless_list_of_them(rig: Rig) -> None:
    async def forgets(ctx: AsyncContext) -> None:
        for n in range(8):
            ctx.checkpoint(f"page {n}", one)  # type: ignore[unused-coroutine]

    message = ran(rig, forgets).error_message or ""

    assert message.count("ctx.checkpoint('page ") == 5
    assert "and 3 more" in message


async def returned(ctx: AsyncContext) -> Any:
    return ctx.checkpoint("a", one)


async def kept(ctx: AsyncContext) -> Any:
    value = ctx.checkpoint("a", one)
    return {"value": value}


@pytest.mark.parametrize("handler", [returned, kept])
def test_it_is_said_rather_than_that_a_coroutine_is_no_value(rig: Rig, handler: Handler) -> None:
    async def outer(ctx: AsyncContext) -> Any:
        return await handler(ctx)

    assert ran(rig, outer).error_type == "workhorse.errors.BoundaryNotAwaitedError"


def test_an_error_of_the_handler_stands_and_says_it_too(rig: Rig) -> None:
    """A coroutine where a value should be: the reason stands below the error that it came to."""

    async def forgets(ctx: AsyncContext) -> None:
        order: Any = ctx.checkpoint("order", one)
        order["id"]

    view = ran(rig, forgets)

    assert (view.state, view.attempt) == (RunState.READY, 2)
    [failed] = rig.store.run(attempts_of, view.id)
    assert failed.error_type == "builtins.TypeError"
    place = line_of(forgets, '"order"')
    assert f"never awaited ctx.checkpoint('order') at {place}" in (failed.error_traceback or "")


# -- what is none --------------------------------------------------------------------------------


async def in_a_task(ctx: AsyncContext) -> Any:
    return await asyncio.create_task(ctx.checkpoint("a", one))


async def gathered(ctx: AsyncContext) -> Any:
    return sum(await asyncio.gather(ctx.checkpoint("a", one), ctx.checkpoint("b", lambda: 0)))


async def in_a_group(ctx: AsyncContext) -> Any:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(ctx.checkpoint("a", one))
    return task.result()


async def with_a_time_out(ctx: AsyncContext) -> Any:
    return await asyncio.wait_for(ctx.checkpoint("a", one), 60)


async def later(ctx: AsyncContext) -> Any:
    call = ctx.checkpoint("a", one)
    await ctx.checkpoint("b", one)
    return await call


async def cancelled_before_it_began(ctx: AsyncContext) -> Any:
    asyncio.create_task(ctx.checkpoint("a", one)).cancel()
    return 1


async def left_in_a_task(ctx: AsyncContext) -> Any:
    left = asyncio.create_task(ctx.get_checkpoint("a"))
    left.add_done_callback(lambda task: task.exception())
    return 1


async def closed(ctx: AsyncContext) -> Any:
    ctx.checkpoint("a", one).close()
    return 1


async def a_refused_name(ctx: AsyncContext) -> Any:
    try:
        await ctx.checkpoint("", one)
    except errors.InvalidNameError:
        return 1


@pytest.mark.parametrize(
    "handler",
    [
        in_a_task, gathered, in_a_group, with_a_time_out, later, cancelled_before_it_began,
        left_in_a_task, closed, a_refused_name,
    ],
    ids=lambda each: each.__name__.replace("_", " "),
)  # fmt: skip
def test_who_awaits_it_otherwise_has_not_forgotten_it(rig: Rig, handler: Handler) -> None:
    async def outer(ctx: AsyncContext) -> Any:
        return await handler(ctx)

    view = ran(rig, outer)

    assert (view.state, view.result) == (RunState.SUCCEEDED, "1"), view.error_message


def test_a_branch_that_a_suspension_left_out_is_no_mistake(rig: Rig) -> None:
    async def waits_first(ctx: AsyncContext) -> Any:
        second = ctx.checkpoint("second", one)
        word = await ctx.wait_for_signal("word")
        return [word, await second]

    rig.task("t")(waits_first)
    claimed = rig.claimed("t", retry=AGAIN)
    worker = rig.worker()

    assert worker.process_run(claimed) is RunState.WAITING
    gc.collect()  # Python would warn of it here, which fails a test
    rig.store.run(deliver, claimed.id, BoundaryKind.SIGNAL, "word", '"go"', key=None)
    assert worker.process_run(rig.claim()) is RunState.SUCCEEDED
    assert rig.view(claimed.id).result == '["go",1]'
