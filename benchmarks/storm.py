"""`make bench-storm`: 24,000 sleeping runs come due in one minute; when do they go on?

    python -m benchmarks.storm [--lane polling] [--sleepers 24000] [--spread 60]

One worker process and one maintenance, which runs each second as in a fleet, on PostgreSQL. The
wake times are spread evenly over a minute, or over another time; over 0 seconds, all are due at the
same instant. A run is late from its wake time to the line after its sleep. Without options it
writes `benchmarks/results/storm.json`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.cost import server_cpu_s
from benchmarks.figures import percentile
from benchmarks.server import bench_server, postmaster
from workhorse.app import Workhorse
from workhorse.handlers.context import AsyncContext

CONCURRENCY = 200
# How fast they fall asleep at the least; the first is due when all of them sleep.
ASLEEP_PER_S = 600
RESULTS = Path(__file__).parent / "results" / "storm.json"


def main() -> int:
    """Let them sleep and wake; print and write how late they went on."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.storm")
    parser.add_argument("--lane", default="polling", choices=["polling", "memory", "notify"])
    parser.add_argument("--sleepers", type=int, default=24_000)
    parser.add_argument("--spread", type=float, default=60.0, help="seconds")
    told = parser.parse_args()
    with bench_server() as server:
        url = server.databases.url(server.databases.create())
        results = Storm(told.sleepers, told.spread).run(url, told.lane, postmaster(server))
    results = {"lane": told.lane, "sleepers": told.sleepers, "spread_s": told.spread, **results}
    if vars(told) == vars(parser.parse_args([])):
        RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    Console().print_json(data=results)
    return 1 if results["early"] else 0


class Storm:
    """The sleepers, and what became of them."""

    def __init__(self, sleepers: int, spread_s: float) -> None:
        self._sleepers = sleepers
        self._spread_s = spread_s
        self._came = 0
        self._last_came_s = 0.0
        self._late_s: list[float] = []
        self._all_awake = threading.Event()

    def run(self, url: str, lane: str, server: int) -> dict[str, Any]:
        """Enqueue them, let them sleep, and wait until all have gone on."""
        lead_s = self._sleepers / ASLEEP_PER_S + 5
        with Workhorse(
            database_url=url, lane=lane, queues=["storm"], concurrency=CONCURRENCY
        ) as app:
            app.migrate()

            @app.task("nap", queue="storm")
            async def nap(ctx: AsyncContext, wake_at_s: float) -> None:
                self._came += 1  # the handlers share one thread
                self._last_came_s = time.time()
                await ctx.sleep_until("nap", datetime.fromtimestamp(wake_at_s, UTC))
                self._late_s.append(time.time() - wake_at_s)
                if len(self._late_s) == self._sleepers:
                    self._all_awake.set()

            with app.maintenance(), app.worker() as worker:
                first_s = time.time() + lead_s
                draw = random.Random(7)
                app.enqueue_many(
                    [
                        nap.prepare(first_s + draw.uniform(0, self._spread_s))
                        for _ in range(self._sleepers)
                    ]
                )
                enqueued_s = time.time()
                time.sleep(max(0.0, first_s - 1 - time.time()))
                if self._came < self._sleepers or worker.busy():
                    raise RuntimeError(f"{self._came} of {self._sleepers} slept in {lead_s:g} s")
                asleep_per_s = self._sleepers / (self._last_came_s - enqueued_s)
                client, spent = time.process_time(), server_cpu_s(server)
                if not self._all_awake.wait(self._spread_s + 300):
                    raise RuntimeError(f"{len(self._late_s)} of {self._sleepers} woke up")
                done_s = time.time() - first_s - self._spread_s
                while worker.busy():
                    time.sleep(0.01)
                client, spent = time.process_time() - client, server_cpu_s(server) - spent
                worker.stop(timedelta(seconds=5))
        late_ms = [each * 1000 for each in self._late_s]
        return {
            "asleep_per_s": round(asleep_per_s),
            "late_p50_ms": round(percentile(late_ms, 0.5)),
            "late_p99_ms": round(percentile(late_ms, 0.99)),
            "late_most_ms": round(max(late_ms)),
            "early": sum(each < 0 for each in late_ms),
            "all_on_after_the_last_s": round(done_s, 2),
            "client_cpu_us_per_run": round(client / self._sleepers * 1e6, 1),
            "server_cpu_us_per_run": round(spent / self._sleepers * 1e6, 1),
        }


if __name__ == "__main__":
    sys.exit(main())
