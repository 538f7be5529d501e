"""Enqueue call to handler start in one process: the store's and the worker's share, no broker."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

from benchmarks.figures import percentile
from benchmarks.workloads.base import Figures, Place

PINGS = 200
_WARM_UP = 20


def idle(place: Place) -> Figures:
    """On an idle worker; wakeups go over the memory lane, so it is two commits in all."""
    with place.app("memory") as app:
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
            for number in range(PINGS + _WARM_UP):
                arrived.clear()
                called = time.perf_counter()
                ping.enqueue(number)
                if not arrived.wait(30):
                    raise RuntimeError("a run was not started within 30 s")
                taken.append((at - called) * 1000)
                # Idle again: the settle of this run must not be what the next one waits for.
                while worker.busy():
                    time.sleep(0.001)
        finally:
            worker.stop(timedelta(seconds=10))
    counted = taken[_WARM_UP:]
    return {"p50_ms": percentile(counted, 0.5), "p99_ms": percentile(counted, 0.99)}
