"""`make bench`: the rates of one worker process on this machine, and the conditions they hold for.

    python -m benchmarks [PART ...] [--rounds 3]

Each figure is the median of three rounds, the workloads alternating, each in a process of its own
on a database of its own. Writes `benchmarks/results/latest.json`, unless only some parts are named.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import plan
from benchmarks.environments import UnavailableError
from benchmarks.figures import Rounds, add, medians, shown
from benchmarks.server import bench_server
from benchmarks.workloads.base import ASYNC_CONCURRENCY, CONCURRENCY
from benchmarks.workloads.draining import DRAINED
from tests.support.postgres import PostgresServer

RESULTS = Path(__file__).parent / "results" / "latest.json"


def main() -> int:
    """Run all workloads; print a table and write the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("parts", nargs="*", metavar="PART", help="e.g. draining, sqlite or sqs")
    parser.add_argument("--rounds", type=int, default=3)
    told = parser.parse_args()
    console = Console()
    rounds: Rounds = {}
    gaps: dict[str, str] = {}
    with bench_server() as server:
        conditions = _conditions(server, told.rounds)
        console.print(", ".join(f"{name}: {value}" for name, value in conditions.items()))
        for number in range(told.rounds):
            started = time.monotonic()
            add(rounds, _round(server, told.parts, gaps))
            seconds = time.monotonic() - started
            console.print(f"round {number + 1} of {told.rounds}: {seconds:.0f} s")
    results = medians(rounds)
    _print(console, results, rounds)
    for part, reason in gaps.items():
        console.print(f"{part}: {reason}", markup=False, highlight=False)
    if told.parts:
        console.print("not written: these are only some of all")
    else:
        document = {**results, "conditions": conditions, "gaps": gaps, "rounds": rounds}
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(document, indent=2) + "\n")
        console.print(f"written to {os.path.relpath(RESULTS)}")
    return 1 if gaps else 0


def _round(server: PostgresServer, parts: list[str], gaps: dict[str, str]) -> dict[str, float]:
    of_round = plan.Round(server)
    for name, measure in of_round.parts():
        if name in gaps or (parts and not any(each in name for each in parts)):
            continue
        try:
            of_round.figures |= measure()
        except UnavailableError as error:
            gaps[name] = str(error)
        except KeyError as error:  # a figure that this part goes by is missing
            gaps[name] = f"needs {error}, which was not measured"
    return {**of_round.figures, **_shares(of_round.figures)}


def _shares(figures: dict[str, float]) -> dict[str, float]:
    """Return how figures of one round stand to each other."""
    wanted = {
        "drain_share_of_raw": ("drain_noop_async_per_s", "raw_loop_per_s"),
        "shared_commits_gain": ("enqueue_64_tasks_per_s", "enqueue_single_per_s"),
    }
    return {
        name: figures[part] / figures[whole]
        for name, (part, whole) in wanted.items()
        if part in figures and whole in figures
    }


def _print(console: Console, results: dict[str, float], rounds: Rounds) -> None:
    table = Table("figure", "median", "lowest", "highest")
    for name, values in rounds.items():
        table.add_row(name, *map(shown, (results[name], min(values), max(values))))
    console.print(table)


def _conditions(server: PostgresServer, rounds: int) -> dict[str, Any]:
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "python": platform.python_version(),
        "postgresql": f"{server.version}, fsync and synchronous_commit on, unix socket",
        "sqlite": f"{sqlite3.sqlite_version}, WAL, synchronous full",
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "rounds": rounds,
        "runs_drained": DRAINED,
        "concurrency": CONCURRENCY,
        "async_concurrency": ASYNC_CONCURRENCY,
        "sqs_runs": plan.SQS_RUNS,
        "sqs_concurrency": plan.SQS_CONCURRENCY,
    }


if __name__ == "__main__":
    sys.exit(main())
