"""`make bench`: the rates of one worker process on this machine, and the conditions they hold for.

Each rate is the median of three rounds, the workloads alternating, each on a database of its own.
Writes `benchmarks/results/latest.json`.
"""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import workloads
from tests.support.postgres import PostgresServer

ROUNDS = 3
RESULTS = Path(__file__).parent / "results" / "latest.json"


def main() -> int:
    """Run all workloads; print a table and write the results."""
    console = Console()
    rounds: dict[str, list[float]] = {}
    with PostgresServer(durable=True) as server, tempfile.TemporaryDirectory() as folder:
        conditions = _conditions(server)
        console.print(", ".join(f"{name}: {value}" for name, value in conditions.items()))

        def fresh_postgresql() -> str:
            return server.databases.url(server.databases.create())

        def fresh_sqlite() -> str:
            return f"sqlite:///{tempfile.mkdtemp(dir=folder)}/bench.sqlite3"

        for number in range(ROUNDS):
            console.print(f"round {number + 1} of {ROUNDS}")
            for name, value in _round(fresh_postgresql, fresh_sqlite).items():
                rounds.setdefault(name, []).append(value)
    results = {name: _rounded(statistics.median(values)) for name, values in rounds.items()}
    table = Table("figure", "median", "lowest", "highest")
    for name, values in rounds.items():
        table.add_row(
            name, *(f"{_rounded(v):,}" for v in (results[name], min(values), max(values)))
        )
    console.print(table)
    RESULTS.parent.mkdir(exist_ok=True)
    document = {**results, "conditions": conditions, "rounds": rounds}
    RESULTS.write_text(json.dumps(document, indent=2) + "\n")
    console.print(f"written to {RESULTS.relative_to(Path.cwd())}")
    return 0


def _round(postgresql: Callable[[], str], sqlite: Callable[[], str]) -> dict[str, float]:
    drained = workloads.drain_noop_async(postgresql())
    latencies = workloads.latency_idle(postgresql())
    return {
        "enqueue_single_per_s": workloads.enqueue_single(postgresql()),
        "enqueue_bulk_per_s": workloads.enqueue_bulk(postgresql()),
        "drain_noop_async_per_s": drained.per_s,
        "flows3_per_s": workloads.flows3(postgresql()),
        "sqlite_flows3_per_s": workloads.flows3(sqlite()),
        "sqlite_drain_noop_per_s": workloads.drain_noop_async(sqlite()).per_s,
        "latency_idle_p50_ms": workloads.percentile(latencies, 0.5),
        "latency_idle_p99_ms": workloads.percentile(latencies, 0.99),
        "statements_per_run": drained.statements_per_run,
        "commits_per_run": drained.commits_per_run,
    }


def _rounded(value: float) -> float:
    """Four digits say all that such a measurement knows."""
    return float(f"{value:.4g}")


def _conditions(server: PostgresServer) -> dict[str, Any]:
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "python": platform.python_version(),
        "postgresql": f"{server.version}, fsync and synchronous_commit on, unix socket",
        "sqlite": f"{sqlite3.sqlite_version}, WAL, synchronous full",
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "runs_drained": workloads.DRAINED,
        "concurrency": workloads.CONCURRENCY,
    }


if __name__ == "__main__":
    sys.exit(main())
