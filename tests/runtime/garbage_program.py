"""Runs that end in many ways; prints, for each, what of them is left to Python's collector.

What is freed by its counts is gone when its last user lets go of it. What refers to itself waits
for the collector, which has to be looked for among all that lives.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from workhorse import AsyncContext, BatchItem, Context, NonRetryableError, Workhorse

RUNS = 5
_OURS = frozenset({  # a worker itself, which ends once, may leave what it likes
    "Activation", "ActivationCore", "ActivationRecorder", "AsyncContext", "Batch", "BatchItem",
    "ClaimedRun", "Context", "Guard", "LatestProgress", "Replay",
})  # fmt: skip
_left: set[asyncio.Task[None]] = set()


async def async_returns() -> None: ...


async def async_turns() -> None:
    await asyncio.sleep(0)


async def async_raises() -> None:
    raise NonRetryableError("as it was asked to")


async def async_looks_at_its_context(ctx: AsyncContext) -> str:
    return f"{ctx.run.id} {ctx.stopping.reason}"


async def async_has_boundaries(ctx: AsyncContext) -> None:
    for number in range(3):
        await ctx.checkpoint(f"step {number}", lambda: None)


async def async_has_tasks(ctx: AsyncContext) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(ctx.checkpoint(f"branch {number}", lambda: None))


async def async_leaves_a_task() -> None:
    _left.add(asyncio.create_task(asyncio.sleep(60)))


async def async_has_a_timeout() -> None:
    async with asyncio.timeout(60):
        await asyncio.sleep(0)


async def async_waits(ctx: AsyncContext) -> None:
    await ctx.wait_for_signal("come")


async def async_sleeps(ctx: AsyncContext) -> None:
    await ctx.sleep("long", timedelta(days=1))


async def async_waits_in_branches(ctx: AsyncContext) -> None:
    await asyncio.gather(ctx.wait_for_signal("come"), ctx.wait_for_signal("go"))


async def async_tells_its_progress(ctx: AsyncContext) -> None:
    await ctx.progress("half")


async def async_has_a_transaction(ctx: AsyncContext) -> None:
    await ctx.transaction("write", lambda _conn: None)


async def async_in_a_batch(items: list[BatchItem[None]]) -> None:
    await asyncio.sleep(0)


async def async_in_a_batch_that_raises(items: list[BatchItem[None]]) -> None:
    raise NonRetryableError("as it was asked to")


def plain_returns() -> None: ...


def plain_raises() -> None:
    raise NonRetryableError("as it was asked to")


def plain_has_boundaries(ctx: Context) -> None:
    for number in range(3):
        ctx.checkpoint(f"step {number}", lambda: None)


def plain_waits(ctx: Context) -> None:
    ctx.wait_for_signal("come")


def plain_tells_its_progress(ctx: Context) -> None:
    ctx.progress("half")


def plain_has_a_transaction(ctx: Context) -> None:
    ctx.transaction("write", lambda _conn: None)


def plain_in_a_batch(items: list[BatchItem[None]]) -> None: ...


HANDLERS: tuple[Callable[..., Awaitable[None] | Any], ...] = (
    async_returns, async_turns, async_raises, async_looks_at_its_context, async_has_boundaries,
    async_has_tasks, async_leaves_a_task, async_has_a_timeout, async_waits, async_sleeps,
    async_waits_in_branches, async_tells_its_progress, async_has_a_transaction, async_in_a_batch,
    async_in_a_batch_that_raises,
    plain_returns, plain_raises, plain_has_boundaries, plain_waits, plain_tells_its_progress,
    plain_has_a_transaction, plain_in_a_batch,
)  # fmt: skip


def main(database_url: str) -> None:
    """Drain some runs of each handler, without the collector; ask it then what there was."""
    logging.disable(logging.CRITICAL)
    left: dict[str, dict[str, int]] = {}
    with Workhorse(database_url=database_url, lane="polling", queues=["q"], concurrency=2) as app:
        app.migrate()
        for handler in HANDLERS:
            options: dict[str, Any] = {"batch": RUNS} if "in_a_batch" in handler.__name__ else {}
            task = app.task(handler.__name__, queue="q", **options)(handler)
            app.enqueue_many([task.prepare()] * RUNS)
            gc.collect()
            gc.disable()
            app.worker().drain()
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            gc.set_debug(0)
            kinds = Counter(map(type, gc.garbage))
            left[handler.__name__] = {
                kind.__name__: count
                for kind, count in kinds.items()
                if kind.__name__ in _OURS and kind.__module__.startswith("workhorse.")
            }
            del kinds
            gc.garbage.clear()
            gc.enable()
    print(json.dumps(left))


if __name__ == "__main__":
    main(sys.argv[1])
