"""`python -m benchmarks.sqs`: what the SQS lane costs a worker and a producer.

One worker process serves 10,000 no-op runs whose wakeups travel over SQS: one wakeup for ten runs
(`stride`), and one a run (`each`); once with the runs there before the worker starts (`backlog`),
and once with an idle worker that they come to (`flow`). The endpoint is `benchmarks.sqs_endpoint`,
in a process of its own. Time runs until all runs have ended; messages that are stale by then are
cleared away afterwards (`cleared`). CPU is the worker's own, all its threads.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.sqs_endpoint import sqs_endpoint
from tests.support.postgres import PostgresServer
from tests.support.processes import RunningProcess
from tests.support.sqs import raw_client
from workhorse.app import Workhorse
from workhorse.handlers.tasks import Task
from workhorse.ports import Lane

QUEUE: Final = "bench"
RUNS: Final = 10_000
CONCURRENCY: Final = 100
WAKEUPS: Final = {"stride": 10, "each": 1}
CLIENTS: Final = ("boto3", "aioboto3", "lean")


def _app(database_url: str, endpoint_url: str, client: str, stride: int) -> Workhorse:
    return Workhorse(
        database_url=database_url,
        lane="sqs",
        queues=[QUEUE],
        concurrency=CONCURRENCY,
        hint_stride=stride,
        aws_endpoint_url=endpoint_url,
        aws_region="us-east-1",
        sqs_client=client,
    )


class _Counted:
    """The task, and how often it was called."""

    def __init__(self, app: Workhorse) -> None:
        self.calls = 0

        @app.task("noop", queue=QUEUE)
        async def noop(number: int) -> None:
            self.calls += 1

        self.task: Task[Any, Any] = noop


# -- the worker's process --------------------------------------------------------------------------


def serve(database_url: str, endpoint_url: str, client: str) -> None:
    """Serve the queue until all runs have ended and no message is left; print what it took."""
    started = time.perf_counter()
    with _app(database_url, endpoint_url, client, 10) as app:
        counted = _Counted(app)
        worker = app.worker()
        worker.start()
        print("up", flush=True)
        while counted.calls == 0:
            time.sleep(0.001)
        first, used = time.perf_counter(), time.process_time()
        while counted.calls < RUNS or worker.busy():
            time.sleep(0.005)
        ended = {"s": time.perf_counter() - first, "cpu_s": time.process_time() - used}
        since_start = time.perf_counter() - started
        broker = raw_client(endpoint_url)
        url = broker.get_queue_url(QueueName=f"workhorse-{QUEUE}")["QueueUrl"]
        while _left(broker, url):
            time.sleep(0.02)
        cleared = {"s": time.perf_counter() - first, "cpu_s": time.process_time() - used}
        threads = _thread_seconds()
        found = {
            "ended": ended,
            "since_start_s": since_start,
            "cleared": cleared,
            "rss_mb": _memory("VmRSS"),
            "most_rss_mb": _memory("VmHWM"),
            "threads_s": threads,
            "counts": dict(app.counters.snapshot()),
        }
        print("result", json.dumps(found), flush=True)
        worker.stop(timedelta(seconds=5))


def _left(broker: Any, url: str) -> int:
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    found = broker.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return sum(int(found[name]) for name in names)


def _memory(name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return round(int(line.split()[1]) / 1024, 1)
    return 0.0


def _thread_seconds() -> dict[str, float]:
    """Return the CPU seconds of each thread that used some, by its name."""
    tick = os.sysconf("SC_CLK_TCK")
    found: dict[str, float] = {}
    for thread in threading.enumerate():
        stat = Path(f"/proc/self/task/{thread.native_id}/stat")
        if stat.exists():
            fields = stat.read_text().rpartition(")")[2].split()
            seconds = (int(fields[11]) + int(fields[12])) / tick
            if seconds >= 0.05:
                found[thread.name] = round(found.get(thread.name, 0) + seconds, 2)
    return found


# -- the parent ------------------------------------------------------------------------------------


def _produce(app: Workhorse, task: Task[Any, Any]) -> dict[str, float]:
    started, used = time.perf_counter(), time.process_time()
    app.enqueue_many(task.prepare(number) for number in range(RUNS))
    return {"s": time.perf_counter() - started, "cpu_s": time.process_time() - used}


def measure(server: PostgresServer, client: str, wakeups: str, mode: str) -> dict[str, Any]:
    """Measure one worker; on a database, a queue and an endpoint of its own."""
    database_url = server.databases.url(server.databases.create())
    with sqs_endpoint() as endpoint_url:
        broker = raw_client(endpoint_url)
        broker.create_queue(QueueName=f"workhorse-{QUEUE}")
        app = _app(database_url, endpoint_url, client, WAKEUPS[wakeups])
        app.migrate()
        task = _Counted(app).task
        command = [sys.executable, "-m", "benchmarks.sqs", "--serve"]
        command += [database_url, endpoint_url, client]
        with app:
            _warm(app.lane)
            if mode == "backlog":
                produced = _produce(app, task)
            with RunningProcess(command) as process:
                if mode == "flow":
                    process.wait_for("^up$", within=60)
                    time.sleep(2)
                    produced = _produce(app, task)
                found = json.loads(process.wait_for("^result (.*)$", within=300)[1])
    return {"produced": produced, **found}


def _warm(lane: Lane) -> None:
    lane.backlog(QUEUE)


def _rounds(server: PostgresServer, arguments: argparse.Namespace) -> Iterator[tuple[str, ...]]:
    cases = [
        (client, wakeups, mode)
        for wakeups in arguments.wakeups
        for mode in arguments.modes
        for client in arguments.clients
    ]
    taken: dict[tuple[str, str, str], list[dict[str, Any]]] = {case: [] for case in cases}
    for _ in range(arguments.rounds):
        for case in cases:
            taken[case].append(measure(server, *case))
            if arguments.verbose:
                print(case, json.dumps(taken[case][-1]), flush=True)

    def middle(case: tuple[str, str, str], *path: str) -> float:
        values: list[float] = []
        for found in taken[case]:
            value: Any = found
            for name in path:
                value = value[name]
            values.append(value)
        return statistics.median(values)

    for case in cases:
        yield (
            *case,
            f"{RUNS / middle(case, 'ended', 's'):,.0f}",
            f"{middle(case, 'ended', 'cpu_s') / RUNS * 1e6:,.0f}",
            f"{RUNS / middle(case, 'cleared', 's'):,.0f}",
            f"{middle(case, 'cleared', 'cpu_s') / RUNS * 1e6:,.0f}",
            f"{middle(case, 'produced', 'cpu_s') / RUNS * 1e6:,.0f}",
            f"{RUNS / middle(case, 'produced', 's'):,.0f}",
            f"{middle(case, 'rss_mb'):.0f}",
        )


def main() -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--serve", nargs=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", nargs="+", default=CLIENTS)
    parser.add_argument("--wakeups", nargs="+", default=list(WAKEUPS))
    parser.add_argument("--modes", nargs="+", default=["backlog", "flow"])
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        os.environ.setdefault(name, "local")  # the endpoint takes any
    if arguments.serve:
        serve(*arguments.serve)
        return 0
    names = ("client", "wakeups", "mode", "runs/s", "CPU us/run", "cleared/s", "CPU us/run")
    table = Table(*names, "producer us/run", "enqueued/s", "RSS MB")
    with PostgresServer(durable=True) as server:
        for row in _rounds(server, arguments):
            table.add_row(*row)
    Console(width=120).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
