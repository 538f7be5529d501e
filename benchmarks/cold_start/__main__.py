"""`make bench-lambda`: cold starts and warm invocations of a function, on SQLite and PostgreSQL.

    python -m benchmarks.cold_start [--cold 9] [--warm 200]

Each function is a process of its own under the runtime interface client that Lambda itself uses
(awslambdaric), which gets its work from a runtime API on loopback. A cold start is a new process:
init ends when it asks for its first invocation, and the first line of the first run's handler is
what users wait for. Each invocation is handed one wakeup. Written are `results/cold_start.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.figures import percentile
from benchmarks.server import bench_server
from lanes import wire
from tests.support.lambda_runtime import Function, a_record
from workhorse.domain.hints import no_reach
from workhorse.domain.ids import RunId, new_run_id
from workhorse.domain.runs import NewRun
from workhorse.ports import Wakeup
from workhorse.store.base.database import Store
from workhorse.store.base.migrating import migrate
from workhorse.store.operators.viewing import show
from workhorse.store.producing.enqueueing import enqueue

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "cold_start.json"
LIMIT_S = 2.0
"""From the start of the process to the first line of a handler."""


class Bench:
    """Functions on one database."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._store = Store.open(url)
        migrate(self._store)

    def cold(self) -> dict[str, float]:
        """Start a process and run one run; return the seconds from the start of the process."""
        function = self._function()
        try:
            run_id, event = self._a_run()
            function.invoke(event)
            answered_at = time.time()
            first_line_at = self._stamped(run_id)
            return {
                "init": function.ready_at - function.started_at,
                "first_line": first_line_at - function.started_at,
                "answer": answered_at - function.started_at,
            }
        finally:
            function.close()

    def warm(self, count: int) -> list[float]:
        """Return how long invocations of a process that is up take, in seconds."""
        function = self._function()
        try:
            for _ in range(10):
                function.invoke(self._a_run()[1])
            took = []
            for _ in range(count):
                _, event = self._a_run()
                began = time.perf_counter()
                function.invoke(event)
                took.append(time.perf_counter() - began)
            return took
        finally:
            function.close()

    def close(self) -> None:
        """Disconnect."""
        self._store.close()

    def _function(self) -> Function:
        return Function(
            "function.handler",
            folder=HERE,
            env={
                "PYTHONPATH": str(ROOT),
                "WORKHORSE_DATABASE_URL": self._url,
                # Nothing is sent here, and nobody would answer.
                "WORKHORSE_AWS_ENDPOINT_URL": "http://127.0.0.1:9",
            },
        )

    def _a_run(self) -> tuple[RunId, dict[str, Any]]:
        run = NewRun(id=new_run_id(), task="stamp", queue="default", payload='"one"')
        self._store.run(enqueue, [run], reach=no_reach)
        return run.id, {"Records": [a_record(wire.encode(Wakeup(run.id, "default")))]}

    def _stamped(self, run_id: RunId) -> float:
        return float(self._store.run(show, run_id).result or "nan")


def measure(url: str, *, cold: int, warm: int) -> dict[str, float]:
    """Return the figures of one database, in milliseconds."""
    bench = Bench(url)
    try:
        bench.cold()  # byte code is written, and files are read into memory
        starts = [bench.cold() for _ in range(cold)]
        invocations = bench.warm(warm)
    finally:
        bench.close()
    figures = {
        f"{name}_{kind}_ms": round(1000 * pick([start[name] for start in starts]), 1)
        for name in ("init", "first_line", "answer")
        for kind, pick in (("median", statistics.median), ("worst", max))
    }
    figures["warm_median_ms"] = round(1000 * statistics.median(invocations), 2)
    figures["warm_p99_ms"] = round(1000 * percentile(invocations, 0.99), 2)
    return figures


def main() -> int:
    """Measure and print; 1 where a cold start's median is over the limit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cold_start")
    parser.add_argument("--cold", type=int, default=9, help="cold starts of each")
    parser.add_argument("--warm", type=int, default=200, help="warm invocations of each")
    told = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, bench_server() as server:
        urls = {
            "sqlite": f"sqlite:///{folder}/bench.sqlite3",
            "postgresql": server.databases.url(server.databases.create()),
        }
        results = {kind: measure(url, cold=told.cold, warm=told.warm) for kind, url in urls.items()}
    table = Table("milliseconds", *results)
    for name in next(iter(results.values())):
        table.add_row(name.removesuffix("_ms"), *(f"{each[name]:,}" for each in results.values()))
    Console().print(table)
    conditions = {
        "python": ".".join(map(str, sys.version_info[:3])),
        "cores": os.cpu_count(),
        "cold": told.cold,
        "warm": told.warm,
    }
    RESULTS.write_text(json.dumps({**conditions, **results}, indent=2) + "\n")
    late = [kind for kind, each in results.items() if each["first_line_median_ms"] > LIMIT_S * 1000]
    for kind in late:
        print(
            f"cold start: {kind} takes more than {LIMIT_S:g} s to the first line of a handler; "
            "a machine that is busy with other things is slower by a multiple",
            file=sys.stderr,
        )
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
