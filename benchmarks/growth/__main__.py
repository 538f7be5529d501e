"""`make bench-growth`: what calls cost on grown tables, and while a snapshot is held open.

Case 16: claims, renewals, promotion and recovery on `--runs` runs against 10,000 (SQLite: a tenth
of both). Case 15: claims before, during and after an open snapshot, under which `--snapshot` runs
end. Writes `benchmarks/results/growth.json`; the exit code is 1 where a bound is broken.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.growth.sizes import Compared, compare
from benchmarks.growth.snapshot import Phase, under_a_snapshot
from benchmarks.workloads import percentile
from tests.support.crowd import crowd, look
from tests.support.postgres import PostgresServer
from workhorse.store.base.database import Store
from workhorse.store.base.migrating import migrate

SMALL: Final = 10_000
MOST_LARGE_BY_SMALL: Final = 1.5
MOST_DURING_BY_BEFORE: Final = 3.0
MOST_AFTER_BY_BEFORE: Final = 2.0
"""The table's size after the snapshot, by that before it."""
SLACK_MB: Final = 4.0
"""Added to the size before: what the dead of a few seconds take, which come and go."""
RESULTS: Final = Path(__file__).parent.parent / "results" / "growth.json"
SERVER: Final = {
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "15min",
    # An hour passes in minutes here; the vacuum of the tables comes as much more often.
    "autovacuum_naptime": "5s",
}


def main() -> int:
    """Run both cases; print tables and verdicts, and write the results."""
    given = _arguments()
    console = Console()
    broken: list[str] = []
    document: dict[str, Any] = {}
    with (
        PostgresServer(durable=True, settings=SERVER) as server,
        tempfile.TemporaryDirectory() as folder,
    ):

        def fresh(kind: str) -> Store:
            postgresql = kind == "postgresql"
            url = (
                server.databases.url(server.databases.create())
                if postgresql
                else f"sqlite:///{tempfile.mkdtemp(dir=folder)}/growth.sqlite3"
            )
            store = Store.open(url, connections=2)
            migrate(store)
            return store

        document["conditions"] = _conditions(server)
        said = (f"{name}: {value}" for name, value in document["conditions"].items())
        console.print(", ".join(said))
        for kind, part in (("postgresql", 1), ("sqlite", 10)):
            counts = (SMALL // part, given.runs // part)
            small, large = (_filled(fresh(kind), count, console) for count in counts)
            compared = compare(small, large, given.rounds)
            console.print(_sizes_table(kind, counts, compared))
            broken += [
                f"{kind}: {each.name} costs {each.ratio:.2f} times as much on {counts[1]:,} runs"
                for each in compared
                if each.ratio > MOST_LARGE_BY_SMALL
            ]
            document[f"{kind}_sizes"] = {
                "small": counts[0],
                "large": counts[1],
                "calls": {each.name: {**asdict(each), "ratio": each.ratio} for each in compared},
            }
            small.close()
            large.close()
        for backlog in (1_000, 0):
            store = fresh("postgresql")
            phases = under_a_snapshot(store, given.snapshot, backlog=backlog)
            store.close()
            console.print(_snapshot_table(given.snapshot, backlog, phases))
            broken += _broken_by_snapshot(phases, backlog)
            document[f"snapshot_backlog_{backlog}"] = {
                "runs": given.snapshot,
                **{phase.name: _figures(phase) for phase in phases},
            }
    document["broken"] = broken
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(document, indent=2) + "\n")
    for line in broken or ["all bounds hold"]:
        console.print(line)
    return 1 if broken else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000, help="runs in the large tables")
    parser.add_argument("--rounds", type=int, default=300, help="calls of each kind")
    parser.add_argument(
        "--snapshot", type=int, default=200_000, help="runs that end under the open snapshot"
    )
    return parser.parse_args()


def _filled(store: Store, count: int, console: Console) -> Store:
    started = time.perf_counter()
    crowd(store, count)
    look(store, vacuum=True)
    console.print(f"{store.kind}: {count:,} runs in {time.perf_counter() - started:.1f} s")
    return store


def _broken_by_snapshot(phases: list[Phase], backlog: int) -> list[str]:
    before, during, after = phases
    broken = []
    ratio = _of(during, "claim", 0.99) / _of(before, "claim", 0.99)
    if ratio > MOST_DURING_BY_BEFORE:
        broken.append(f"backlog {backlog}: the claim's p99 is {ratio:.1f} times as high")
    if after.sizes.table_mb > MOST_AFTER_BY_BEFORE * (before.sizes.table_mb + SLACK_MB):
        broken.append(f"backlog {backlog}: the table still takes {after.sizes.table_mb} MB")
    return broken


def _of(phase: Phase, name: str, share: float) -> float:
    took = phase.timings.by_name[name]
    return percentile(took, share) if len(took) > 1 else took[0]


def _figures(phase: Phase) -> dict[str, Any]:
    calls = {
        name: {"calls": len(took), "p50": _of(phase, name, 0.5), "p99": _of(phase, name, 0.99)}
        for name, took in phase.timings.by_name.items()
    }
    return {**calls, **asdict(phase.sizes)}


def _sizes_table(kind: str, counts: tuple[int, int], compared: list[Compared]) -> Table:
    table = Table(
        "ms", f"{counts[0]:,}: p50", "p99", f"{counts[1]:,}: p50", "p99", "ratio of p50", title=kind
    )
    for each in compared:
        numbers = (each.small_p50, each.small_p99, each.large_p50, each.large_p99, each.ratio)
        table.add_row(each.name, *(f"{number:.2f}" for number in numbers))
    return table


def _snapshot_table(runs: int, backlog: int, phases: list[Phase]) -> Table:
    names = ("claim", "renew", "promote", "recover")
    table = Table(
        "ms, p50 / p99", *names, "dead rows", "table MB", "indexes MB",
        title=f"{runs:,} runs end under a snapshot, {backlog} are always pending",
    )  # fmt: skip
    for phase in phases:
        calls = (
            f"{_of(phase, name, 0.5):.1f} / {_of(phase, name, 0.99):.1f}"
            if name in phase.timings.by_name
            else "-"
            for name in names
        )
        megabytes = (f"{size:.1f}" for size in (phase.sizes.table_mb, phase.sizes.indexes_mb))
        table.add_row(phase.name, *calls, f"{phase.sizes.dead:,}", *megabytes)
    return table


def _conditions(server: PostgresServer) -> dict[str, Any]:
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "python": platform.python_version(),
        "postgresql": f"{server.version}, fsync and synchronous_commit on, unix socket",
        "sqlite": sqlite3.sqlite_version,
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
    }


if __name__ == "__main__":
    sys.exit(main())
