"""`make bench-compare`: Workhorse beside its peers on one PostgreSQL and one SQS endpoint.

    python -m benchmarks.compare [NAME ...] [--rounds 3] [--no-sweep]

Each peer is installed from the package index into an environment of its own, in versions that are
pinned, and used by its public API at the best setting that a small sweep finds. Rounds alternate
between all of them. Whoever cannot be installed or fails is named with the reason, and the rest
goes on. Writes `benchmarks/results/compare.json`, unless only some are named.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.compare.measuring import WORKLOADS, Entry, sweep
from benchmarks.compare.plan import Plan, chosen, versions
from benchmarks.environments import UnavailableError, environment
from benchmarks.figures import Rounds, add, medians, shown
from benchmarks.server import bench_server
from tests.support.postgres import PostgresServer

RESULTS = Path(__file__).parent.parent / "results" / "compare.json"
_COLUMNS = {
    "enqueue_single_per_s": "single /s",
    "enqueue_bulk_per_s": "bulk /s",
    "drain_per_s": "drain /s",
    "drain_client_us": "client µs",
    "drain_server_us": "server µs",
    "latency_p50_ms": "p50 ms",
    "latency_p99_ms": "p99 ms",
    "flows3_per_s": "flows /s",
    "drain_rss_mb": "RSS MB",
}


def main() -> int:
    """Measure; print the table; write the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-sweep", action="store_true")
    told = parser.parse_args()
    try:
        plans = chosen(told.names)
    except ValueError as error:
        parser.error(str(error))
    console = Console(width=max(Console().width, 120))
    comparison = Comparison(console)
    with bench_server(tcp=True) as server:
        conditions = _conditions(server, told.rounds)
        console.print(", ".join(f"{name}: {value}" for name, value in conditions.items()))
        entries = comparison.prepare(plans, server)
        if not told.no_sweep:
            for entry in entries:
                comparison.sweep(entry)
        for number in range(told.rounds):
            # Turned round each time: nobody always comes after the same neighbour.
            for entry in entries if number % 2 == 0 else reversed(entries):
                comparison.round(entry, number)
    console.print(comparison.table())
    for name, reasons in comparison.gaps.items():
        for workload, reason in reasons.items():
            console.print(f"{name}, {workload}: {reason}", markup=False, highlight=False)
    if told.names:
        console.print("not written: these are only some of all")
        return 0
    document = {"conditions": conditions, "entrants": comparison.results()}
    RESULTS.write_text(json.dumps(document, indent=2) + "\n")
    console.print(f"written to {os.path.relpath(RESULTS)}")
    return 0


class Comparison:
    """What was measured so far, and what could not be."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rounds: dict[str, Rounds] = {}
        self._settings: dict[str, dict[str, Any]] = {}
        self.gaps: dict[str, dict[str, str]] = {}

    def prepare(self, plans: tuple[Plan, ...], server: PostgresServer) -> list[Entry]:
        """Make the environments; returns who can take part."""
        entries = []
        for plan in plans:
            self._rounds[plan.name] = {}
            self._settings[plan.name] = {}
            try:
                python = Path(sys.executable)
                if not plan.ours:
                    python = environment(plan.name, plan.requirements, needs=plan.needs)
                entries.append(Entry(plan, python, server))
                self._settings[plan.name] = versions(plan, python)
            except UnavailableError as error:
                self._missing(plan.name, "all", error)
        return entries

    def sweep(self, entry: Entry) -> None:
        """Find the best setting."""
        name = entry.plan.name
        try:
            tried = {each: round(rate) for each, rate in sweep(entry).items()}
        except UnavailableError as error:
            self._missing(name, "sweep", error)
            return
        if tried:
            self._console.print(f"{name}: drains a second by setting: {tried}", highlight=False)
            self._settings[name] |= {"tried": tried, "taken": dict(entry.best)}

    def round(self, entry: Entry, number: int) -> None:
        """Take it through all workloads once."""
        name = entry.plan.name
        started = time.monotonic()
        for workload, measure in WORKLOADS.items():
            if workload in self.gaps.get(name, {}):
                continue
            try:
                add(self._rounds[name], measure(entry))
            except UnavailableError as error:
                self._missing(name, workload, error)
        seconds = time.monotonic() - started
        self._console.print(f"round {number + 1}: {name}, {seconds:.0f} s", highlight=False)

    def results(self) -> dict[str, Any]:
        """Return all figures, by entrant."""
        return {
            name: {
                **medians(rounds),
                "settings": self._settings[name],
                "rounds": rounds,
                **({"gaps": self.gaps[name]} if name in self.gaps else {}),
            }
            for name, rounds in self._rounds.items()
        }

    def table(self) -> Table:
        """Return the medians, and below each peer how many times as much ours is."""
        table = Table("", *_COLUMNS.values(), title="medians; below: Workhorse / peer")
        for name, rounds in self._rounds.items():
            found = medians(rounds)
            table.add_row(name, *(shown(found.get(each)) for each in _COLUMNS))
            ours = self._ours_for(name)
            if ours:
                table.add_row("", *(_ratio(ours.get(each), found.get(each)) for each in _COLUMNS))
        return table

    def _ours_for(self, name: str) -> dict[str, float]:
        if name.startswith("workhorse"):
            return {}
        over_sqs = name in ("celery", "taskiq-aio-sqs")
        return medians(self._rounds.get("workhorse-sqs" if over_sqs else "workhorse", {}))

    def _missing(self, name: str, workload: str, error: UnavailableError) -> None:
        self.gaps.setdefault(name, {})[workload] = str(error)
        self._console.print(f"{name}, {workload}: {error}", markup=False, highlight=False)


def _ratio(ours: float | None, theirs: float | None) -> str:
    return "" if not ours or not theirs else f"{ours / theirs:.3g}x"


def _conditions(server: PostgresServer, rounds: int) -> dict[str, Any]:
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "python": platform.python_version(),
        "postgresql": f"{server.version}, fsync and synchronous_commit on, loopback",
        "cpus": os.cpu_count(),
        "load": round(statistics.fmean(os.getloadavg()[:2]), 2),
        "rounds": rounds,
    }


if __name__ == "__main__":
    sys.exit(main())
