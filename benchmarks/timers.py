"""`make bench-timers`: how late sleeping runs go on, in real time, on an SQS endpoint.

200 runs sleep between 2 and 100 s; one worker process serves them; maintenance runs once a minute,
as a scheduled task does. So the timers are carried by delayed messages, whose delays are whole
seconds, rounded up. The endpoint is moto's, which looks for delayed messages every 50 ms here, and
not once a second as by default: what is measured is our lateness and not the emulator's. Writes
`benchmarks/results/timers.json`.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import Console

from benchmarks.figures import percentile
from tests.support.postgres import PostgresServer
from tests.support.sqs import moto_server
from workhorse.app import Workhorse
from workhorse.domain.ids import RunId
from workhorse.handlers.context import AsyncContext
from workhorse.store.durable.histories import load

SLEEPERS = 200
SHORTEST_S, LONGEST_S = 2.0, 100.0
MAINTENANCE_S = 60.0
RESULTS = Path(__file__).parent / "results" / "timers.json"


def main() -> int:
    """Let them sleep; print and write how late they were."""
    console = Console()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        os.environ.setdefault(name, "local")  # the endpoint takes any
    with PostgresServer(durable=True) as server, moto_server(look_s=0.05) as endpoint:
        endpoint.create_queue("workhorse-timers")
        url = server.databases.url(server.databases.create())
        late_ms = _sleep(url, endpoint.url)
    results = {
        "sleepers": SLEEPERS,
        "late_p50_ms": round(percentile(late_ms, 0.5)),
        "late_p99_ms": round(percentile(late_ms, 0.99)),
        "late_most_ms": round(max(late_ms)),
        "early": sum(late < 0 for late in late_ms),
    }
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    console.print_json(data=results)
    return 0 if results["late_p99_ms"] <= 1_500 and not results["early"] else 1


def _sleep(database_url: str, endpoint_url: str) -> list[float]:
    draw = random.Random(7)
    awake_at: dict[RunId, datetime] = {}
    all_awake, ended = threading.Event(), threading.Event()
    with Workhorse(
        database_url=database_url,
        lane="sqs",
        queues=["timers"],
        concurrency=50,
        aws_endpoint_url=endpoint_url,
        aws_region="us-east-1",
    ) as app:
        app.migrate()

        @app.task("nap", queue="timers")
        async def nap(ctx: AsyncContext, seconds: float) -> None:
            await ctx.sleep("nap", timedelta(seconds=seconds))
            awake_at[ctx.run.id] = datetime.now(UTC)
            if len(awake_at) == SLEEPERS:
                all_awake.set()

        def maintain() -> None:
            while True:
                app.maintenance().run_once()
                if ended.wait(MAINTENANCE_S):
                    return

        maintenance = threading.Thread(target=maintain)
        maintenance.start()
        worker = app.worker()
        worker.start()
        try:
            naps = [draw.uniform(SHORTEST_S, LONGEST_S) for _ in range(SLEEPERS)]
            app.enqueue_many([nap.prepare(seconds) for seconds in naps])
            if not all_awake.wait(LONGEST_S + 60):
                raise RuntimeError(f"{len(awake_at)} of {SLEEPERS} woke up")
            while worker.busy():
                time.sleep(0.05)
            histories = app.store.run(load, list(awake_at))
        finally:
            ended.set()
            worker.stop(timedelta(seconds=5))
            maintenance.join()
    return [
        (awake_at[run_id] - wake_at).total_seconds() * 1000
        for run_id, history in histories.items()
        for boundary in history.boundaries
        if (wake_at := boundary.wake_at) is not None
    ]


if __name__ == "__main__":
    sys.exit(main())
