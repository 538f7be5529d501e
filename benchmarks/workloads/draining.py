"""Drains: one worker process works off runs that wait; the clock stops when all have ended."""

from __future__ import annotations

from typing import Any

from benchmarks.workloads.base import ASYNC_CONCURRENCY, Figures, Place, measured
from workhorse.app import Workhorse
from workhorse.handlers.batches import BatchItem
from workhorse.handlers.context import AsyncContext
from workhorse.handlers.tasks import Task
from workhorse.runtime.base.garbage import tend_garbage

DRAINED = 20_000
FLOWS = 3_000
BATCH = 100


def _drain(place: Place, app: Workhorse, task: Task[Any, Any], runs: int) -> Figures:
    app.enqueue_many([task.prepare(number) for number in range(runs)])
    worker = app.worker()
    tend_garbage()  # as `workhorse worker` does
    with measured(place) as cost:
        executed = worker.drain()
    if executed != runs:
        raise RuntimeError(f"{executed} runs were drained, not {runs}")
    return {"per_s": runs / cost.seconds, **cost.per_run(runs)}


def noop_async(place: Place) -> Figures:
    """No-op async handlers."""
    with place.app(concurrency=ASYNC_CONCURRENCY) as app:

        @app.task("noop", queue="bench")
        async def noop(number: int) -> None: ...

        return _drain(place, app, noop, DRAINED)


def noop_plain(place: Place) -> Figures:
    """No-op plain functions, on threads."""
    with place.app() as app:

        @app.task("noop", queue="bench")
        def noop(number: int) -> None: ...

        return _drain(place, app, noop, DRAINED)


def noop_batch(place: Place) -> Figures:
    """A no-op handler that takes up to 100 runs a call."""
    with place.app() as app:

        @app.task("noop", queue="bench", batch=BATCH)
        async def noop(items: list[BatchItem[int]]) -> None: ...

        return _drain(place, app, noop, DRAINED)


def flows3(place: Place) -> Figures:
    """Runs of three checkpoints, each committed before the next; many runs share a commit."""
    with place.app() as app:

        @app.task("flow", queue="bench")
        async def flow(ctx: AsyncContext, number: int) -> int:
            charged = await ctx.checkpoint("charge", lambda: number)
            shipped = await ctx.checkpoint("ship", lambda: charged + 1)
            return await ctx.checkpoint("mail", lambda: shipped + 1)

        return _drain(place, app, flow, FLOWS)
