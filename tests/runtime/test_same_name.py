"""One name, one stage: what a handler gets that asks for a name twice (docs/adr/0025)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from tests.durable.handlers import Steps, handler, its
from tests.runtime.rig import Rig
from workhorse import waits
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import Reason, RunState, RunView
from workhorse.handlers.context import AsyncContext, Context
from workhorse.store.base.database import ManualClock
from workhorse.store.lifecycle.sweeping import promote

AGAIN = RetryPolicy(max_attempts=5, first=timedelta(0))
NONE = timedelta(0)

_numbers = count()


def one() -> int:
    return 1


def ran(rig: Rig, run: Callable[..., Any], name: str | None = None) -> RunView:
    """Have a worker run a handler once. What is said once for a task is said once for each."""
    name = name or f"task {next(_numbers)}"
    rig.task(name)(run)
    claimed = rig.claimed(name, retry=AGAIN)
    rig.worker().process_run(claimed)
    return rig.view(claimed.id)


# -- two stages ----------------------------------------------------------------------------------


async def two_checkpoints(ctx: Any) -> None:
    await its(ctx.checkpoint("a", one))
    await its(ctx.checkpoint("a", lambda: 2))


async def two_transactions(ctx: Any) -> None:
    await its(ctx.transaction("a", lambda connection: 1))
    await its(ctx.transaction("a", lambda connection: 2))


async def two_sleeps(ctx: Any) -> None:
    await its(ctx.sleep("a", NONE))
    await its(ctx.sleep("a", NONE))


async def two_tokens(ctx: Any) -> None:
    await its(ctx.token("a"))
    await its(ctx.token("a"))


async def two_choices(ctx: Any) -> None:
    await its(ctx.wait_any({"a": waits.timer(NONE)}))
    await its(ctx.wait_any({"a": waits.timer(NONE)}))


async def a_choice_and_its_name(ctx: Any) -> None:
    await its(ctx.wait_any({"a": waits.timer(NONE)}))
    await its(ctx.wait_any({"a": waits.timer(NONE)}, name="any:a"))


@pytest.mark.parametrize(
    "steps",
    [
        two_checkpoints, two_transactions, two_sleeps, two_tokens, two_choices,
        a_choice_and_its_name,
    ],
    ids=lambda each: each.__name__.replace("_", " "),
)  # fmt: skip
def test_a_second_stage_of_a_name_ends_the_run_and_both_lines_are_named(
    rig: Rig, kind: str, steps: Steps
) -> None:
    view = ran(rig, handler(kind, steps))

    assert (view.state, view.attempt, view.reason) == (RunState.FAILED, 1, Reason.NOT_RETRYABLE)
    assert view.error_type == "workhorse.errors.DuplicateBoundaryError"
    line = steps.__code__.co_firstlineno
    both = f"at {__file__}:{line + 1} and at {__file__}:{line + 2};"
    assert both in (view.error_message or "")


def test_the_second_is_found_behind_a_wait_too(rig: Rig, clock: ManualClock, kind: str) -> None:
    """The activation that gets to it has the first from the store."""

    async def steps(ctx: Any) -> None:
        await its(ctx.checkpoint("a", one))
        await its(ctx.sleep("nap", timedelta(hours=1)))
        await its(ctx.checkpoint("a", lambda: 2))

    rig.task("t")(handler(kind, steps))
    claimed = rig.claimed("t", retry=AGAIN)
    worker = rig.worker()
    assert worker.process_run(claimed) is RunState.SCHEDULED
    clock.advance(3_600_000)
    rig.store.run(promote)

    assert worker.process_run(rig.claim()) is RunState.FAILED
    assert rig.view(claimed.id).error_type == "workhorse.errors.DuplicateBoundaryError"


# -- the same stage again ------------------------------------------------------------------------


async def in_a_loop(ctx: Any) -> Any:
    return [await its(ctx.checkpoint("fetch", lambda n=n: n)) for n in range(3)]


async def tried_again(ctx: Any) -> Any:
    """As who calls an outside system between two stages may do."""
    for failures in range(2):
        order = await its(ctx.checkpoint("order", lambda: 7))
        if failures == 0:
            continue  # it was busy
        return order
    return None


@pytest.mark.parametrize(
    ("steps", "name", "result"),
    [(in_a_loop, "fetch", "[0,0,0]"), (tried_again, "order", "7")],
    ids=["in a loop", "tried again"],
)
def test_the_same_place_is_answered_and_that_is_said_once(
    rig: Rig, kind: str, caplog: pytest.LogCaptureFixture, steps: Steps, name: str, result: str
) -> None:
    task = f"task {next(_numbers)}"
    rig.task(task)(handler(kind, steps))
    worker = rig.worker()

    for _ in range(2):
        with caplog.at_level(logging.WARNING, "workhorse.handlers"):
            claimed = rig.claimed(task)
            worker.process_run(claimed)
        assert rig.view(claimed.id).result == result

    said = [each.getMessage() for each in caplog.records if "asks for" in each.getMessage()]
    assert len(said) == 1
    line = steps.__code__.co_firstlineno
    assert f"task '{task}' asks for '{name}' at {__file__}:" in said[0]
    assert line < int(said[0].partition(f"{__file__}:")[2].split(" ")[0]) <= line + 4


# -- what is no second stage ---------------------------------------------------------------------


async def one_that_failed(ctx: Any) -> Any:
    try:
        await its(ctx.checkpoint("a", lambda: 1 // 0))
    except ZeroDivisionError:
        return await its(ctx.checkpoint("a", one))


async def a_look(ctx: Any) -> Any:
    await its(ctx.checkpoint("a", one))
    return await its(ctx.get_checkpoint("a"))


async def a_look_before(ctx: Any) -> Any:
    await its(ctx.get_checkpoint("a"))
    await its(ctx.get_wait("a"))
    return await its(ctx.checkpoint("a", one))


async def patches(ctx: Any) -> Any:
    old = await its(ctx.patched("new"))
    return int(await its(ctx.patched("new")) and old)


async def one_timer_in_two_choices(ctx: Any) -> Any:
    await its(ctx.wait_any({"late": waits.timer(NONE), "b": waits.signal()}))
    await its(ctx.wait_any({"late": waits.timer(NONE), "c": waits.signal()}, name="second"))
    return 1


@pytest.mark.parametrize(
    "steps",
    [one_that_failed, a_look, a_look_before, patches, one_timer_in_two_choices],
    ids=lambda each: each.__name__.replace("_", " "),
)
def test_who_asks_for_what_is_there_is_answered(
    rig: Rig, kind: str, caplog: pytest.LogCaptureFixture, steps: Steps
) -> None:
    view = ran(rig, handler(kind, steps))

    assert (view.state, view.result) == (RunState.SUCCEEDED, "1"), view.error_message
    assert "asks for" not in caplog.text


def test_branches_share_one_execution_in_whichever_order_they_come(rig: Rig, kind: str) -> None:
    """Who of them comes first, and whether the others come meanwhile, is a matter of luck."""
    made: list[int] = []

    def load() -> int:
        made.append(1)
        return 1

    def plain(ctx: Context) -> int:
        def here() -> int:
            return ctx.checkpoint("rates", load)

        def there() -> int:
            return ctx.checkpoint("rates", load)

        with ThreadPoolExecutor(1) as pool:  # one behind the other, in one thread
            return sum([*pool.map(lambda call: call(), [here, there]), here()])

    async def waits(ctx: AsyncContext) -> int:
        async def here() -> int:
            return await ctx.checkpoint("rates", load)

        async def there() -> int:
            return await ctx.checkpoint("rates", load)

        branches = [asyncio.create_task(here()), asyncio.create_task(there())]
        return await branches[0] + await branches[1] + await here()

    view = ran(rig, plain if kind == "plain" else waits)

    assert (view.state, view.result) == (RunState.SUCCEEDED, "3"), view.error_message
    assert made == [1]
