"""Enqueues: one after the other, many a call, and of many callers at once."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from benchmarks.workloads.base import Figures, Place
from workhorse.app import Workhorse
from workhorse.handlers.tasks import Task

BULK = 1_000
SINGLES = 500
CALLERS = 64
EACH = 100


def _noop(app: Workhorse) -> Task[Any, Any]:
    @app.task("noop", queue="bench")
    async def noop(number: int) -> None: ...

    noop.enqueue(0)
    return noop


def single(place: Place) -> Figures:
    """One caller, one run a call, each committed before the next; runs a second."""
    with place.app() as app:
        noop = _noop(app)
        started = time.perf_counter()
        for number in range(SINGLES):
            noop.enqueue(number)
        return {"per_s": SINGLES / (time.perf_counter() - started)}


def bulk(place: Place) -> Figures:
    """One caller, 1,000 runs a call; runs a second."""
    with place.app() as app:
        noop = _noop(app)
        started = time.perf_counter()
        for _ in range(10):
            app.enqueue_many([noop.prepare(number) for number in range(BULK)])
        return {"per_s": 10 * BULK / (time.perf_counter() - started)}


def stream(place: Place) -> Figures:
    """One caller, an iterator that is committed in thousands; runs a second."""
    with place.app() as app:
        noop = _noop(app)
        started = time.perf_counter()
        app.enqueue_many(noop.prepare(number) for number in range(20 * BULK))
        return {"per_s": 20 * BULK / (time.perf_counter() - started)}


def threads(place: Place) -> Figures:
    """64 threads, one run a call, which share commits; each waits for its own."""
    with place.app(share_commits=True) as app:
        noop = _noop(app)
        gate = threading.Barrier(CALLERS + 1)

        def call() -> None:
            gate.wait()
            for number in range(EACH):
                noop.enqueue(number)

        callers = [threading.Thread(target=call) for _ in range(CALLERS)]
        for caller in callers:
            caller.start()
        gate.wait()
        started = time.perf_counter()
        for caller in callers:
            caller.join()
        return {"per_s": CALLERS * EACH / (time.perf_counter() - started)}


def tasks(place: Place) -> Figures:
    """64 tasks of one event loop, one run a call, which share commits; each awaits its own."""

    async def all_of(noop: Task[Any, Any]) -> float:
        async def call() -> None:
            for number in range(EACH):
                await noop.enqueue_async(number)

        await noop.enqueue_async(0)
        started = time.perf_counter()
        await asyncio.gather(*(call() for _ in range(CALLERS)))
        return time.perf_counter() - started

    with place.app(share_commits=True) as app:
        return {"per_s": CALLERS * EACH / asyncio.run(all_of(_noop(app)))}
