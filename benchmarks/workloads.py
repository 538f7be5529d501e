"""The workloads. Each opens an app of its own on a fresh, migrated database and returns figures."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine

from workhorse.app import Workhorse
from workhorse.handlers.context import AsyncContext

CONCURRENCY = 200
DRAINED = 10_000
BULK = 1_000
SINGLES = 300
PINGS = 200
FLOWS = 3_000


def _app(url: str, lane: str) -> Workhorse:
    app = Workhorse(database_url=url, lane=lane, queues=["bench"], concurrency=CONCURRENCY)
    app.migrate()
    return app


def enqueue_single(url: str) -> float:
    """One caller, one run a call, each committed before the next; runs a second."""
    with _app(url, "polling") as app:

        @app.task("noop", queue="bench")
        async def noop(number: int) -> None: ...

        noop.enqueue(0)
        started = time.perf_counter()
        for number in range(SINGLES):
            noop.enqueue(number)
        return SINGLES / (time.perf_counter() - started)


def enqueue_bulk(url: str) -> float:
    """One caller, 1,000 runs a call; runs a second."""
    with _app(url, "polling") as app:

        @app.task("noop", queue="bench")
        async def noop(number: int) -> None: ...

        noop.enqueue(0)
        started = time.perf_counter()
        for _ in range(5):
            app.enqueue_many([noop.prepare(number) for number in range(BULK)])
        return 5 * BULK / (time.perf_counter() - started)


@dataclass(frozen=True)
class Drained:
    """A drain: runs a second, and what it cost the database."""

    per_s: float
    statements_per_run: float
    commits_per_run: float


def drain_noop_async(url: str) -> Drained:
    """One worker process drains 10,000 no-op async runs; the clock stops when all have ended."""
    with _app(url, "polling") as app:

        @app.task("noop", queue="bench")
        async def noop(number: int) -> None: ...

        app.enqueue_many([noop.prepare(number) for number in range(DRAINED)])
        worker = app.worker()
        with _counting() as counted:
            started = time.perf_counter()
            executed = worker.drain()
            seconds = time.perf_counter() - started
        if executed != DRAINED:
            raise RuntimeError(f"{executed} runs were drained, not {DRAINED}")
        return Drained(
            DRAINED / seconds, counted["statements"] / DRAINED, counted["commits"] / DRAINED
        )


def flows3(url: str) -> float:
    """One worker process drains 3,000 runs of three checkpoints each; runs a second.

    Each checkpoint is committed before the next begins; many runs share a commit.
    """
    with _app(url, "polling") as app:

        @app.task("flow", queue="bench")
        async def flow(ctx: AsyncContext, number: int) -> int:
            charged = await ctx.checkpoint("charge", lambda: number)
            shipped = await ctx.checkpoint("ship", lambda: charged + 1)
            return await ctx.checkpoint("mail", lambda: shipped + 1)

        app.enqueue_many([flow.prepare(number) for number in range(FLOWS)])
        started = time.perf_counter()
        executed = app.worker().drain()
        seconds = time.perf_counter() - started
        if executed != FLOWS:
            raise RuntimeError(f"{executed} flows were drained, not {FLOWS}")
        return FLOWS / seconds


def latency_idle(url: str) -> list[float]:
    """Enqueue call to handler start on an idle worker in the same process; milliseconds.

    Wakeups go over the memory lane: what is measured is the store's and the worker's share, two
    commits in all, and no broker.
    """
    with _app(url, "memory") as app:
        arrived = threading.Event()
        at = 0.0

        @app.task("ping", queue="bench")
        async def ping(number: int) -> None:
            nonlocal at
            at = time.perf_counter()
            arrived.set()

        worker = app.worker(concurrency=10)
        worker.start()
        try:
            taken = []
            for number in range(PINGS + 20):
                arrived.clear()
                called = time.perf_counter()
                ping.enqueue(number)
                if not arrived.wait(30):
                    raise RuntimeError("a run was not started within 30 s")
                taken.append((at - called) * 1000)
                # Idle again: the settle of this run must not be what the next one waits for.
                while worker.busy():
                    time.sleep(0.001)
            return taken[20:]
        finally:
            worker.stop(timedelta(seconds=10))


@contextmanager
def _counting() -> Iterator[dict[str, int]]:
    """Count statements and commits of all connections of this process."""
    counts = {"statements": 0, "commits": 0}
    lock = threading.Lock()

    def statement(*_arguments: Any) -> None:
        with lock:
            counts["statements"] += 1

    def commit(_conn: Any) -> None:
        with lock:
            counts["commits"] += 1

    event.listen(Engine, "before_cursor_execute", statement)
    event.listen(Engine, "commit", commit)
    try:
        yield counts
    finally:
        event.remove(Engine, "before_cursor_execute", statement)
        event.remove(Engine, "commit", commit)


def percentile(values: list[float], share: float) -> float:
    """Return the value below which a share of the values lies."""
    return statistics.quantiles(sorted(values), n=1000, method="inclusive")[int(share * 1000) - 1]
