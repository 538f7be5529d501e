"""What `make bench` measures in a round, and under which names the figures stand."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.children import run
from benchmarks.compare.measuring import Entry
from benchmarks.compare.plan import Plan
from benchmarks.figures import percentile
from benchmarks.raw.measuring import LIMIT, raw
from benchmarks.server import postmaster
from tests.support.postgres import PostgresServer

Figures = dict[str, float]

SQS_RUNS = 10_000
SQS_CONCURRENCY = 100
PINGS = 100
HALF_LOAD_S = 4.0
_OURS = "benchmarks.peers.workhorse_"

# Family and name of a workload, and what of its answer is kept under which name.
POSTGRESQL: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("enqueueing", "single", {"per_s": "enqueue_single_per_s"}),
    ("enqueueing", "bulk", {"per_s": "enqueue_bulk_per_s"}),
    ("enqueueing", "stream", {"per_s": "enqueue_stream_per_s"}),
    ("enqueueing", "threads", {"per_s": "enqueue_64_threads_per_s"}),
    ("enqueueing", "tasks", {"per_s": "enqueue_64_tasks_per_s"}),
    (
        "draining",
        "noop_async",
        {
            "per_s": "drain_noop_async_per_s",
            "client_cpu_us": "drain_client_cpu_us",
            "server_cpu_us": "drain_server_cpu_us",
            "wal_bytes_per_run": "wal_bytes_per_run",
            "statements_per_run": "statements_per_run",
            "commits_per_run": "commits_per_run",
        },
    ),
    ("draining", "noop_plain", {"per_s": "drain_noop_plain_per_s"}),
    ("draining", "noop_batch", {"per_s": "drain_noop_batch_per_s"}),
    ("draining", "flows3", {"per_s": "flows3_per_s"}),
    ("latency", "idle", {"p50_ms": "latency_idle_p50_ms", "p99_ms": "latency_idle_p99_ms"}),
)
SQLITE: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("draining", "noop_async", {"per_s": "sqlite_drain_noop_per_s"}),
    ("draining", "flows3", {"per_s": "sqlite_flows3_per_s"}),
)


@dataclass
class Round:
    """One round; what it has measured so far is what later parts may go by."""

    server: PostgresServer
    figures: Figures = field(default_factory=dict)

    def parts(self) -> Iterator[tuple[str, Callable[[], Figures]]]:
        """Give each part with its name, in the order in which they run."""
        yield "raw", self.raw_loop
        for family, name, kept in POSTGRESQL:
            yield f"{family}.{name}", self._workload(family, name, kept, self._postgresql)
        for family, name, kept in SQLITE:
            yield f"sqlite.{family}.{name}", self._workload(family, name, kept, self._sqlite)
        yield "latency.notify", self.latency_notify
        yield "latency.half_load", self.latency_half_load
        yield "sqs", self.sqs

    def raw_loop(self) -> Figures:
        """The limit, and which share of it our drain makes is known afterwards."""
        answer = raw(self.server, "loop", [*LIMIT, "--repeat", "1"])
        return {
            "raw_loop_per_s": answer["per_s"],
            "raw_client_cpu_us": answer["client_cpu_us"],
            "raw_server_cpu_us": answer["server_cpu_us"],
        }

    def latency_notify(self) -> Figures:
        """Enqueue in another process, the worker idle, wakeups over LISTEN and NOTIFY."""
        with self._ours(lane="notify").fresh() as session:
            late, rss = session.latencies_ms("call", PINGS)
        return {
            "latency_notify_p50_ms": percentile(late, 0.5),
            "latency_notify_p99_ms": percentile(late, 0.99),
            "worker_idle_rss_mb": rss,
        }

    def latency_half_load(self) -> Figures:
        """The same, fed at half of what this round has drained."""
        rate = self.figures["drain_noop_async_per_s"] / 2
        count = int(rate * HALF_LOAD_S)
        with self._ours(lane="notify").fresh() as session:
            late, _ = session.latencies_ms("feed", count, skip=count // 4, rate=rate)
        return {
            "half_load_per_s": rate,
            "latency_half_load_p50_ms": percentile(late, 0.5),
            "latency_half_load_p99_ms": percentile(late, 0.99),
        }

    def sqs(self) -> Figures:
        """Runs over SQS, one wakeup for several; the memory is the worker process's own."""
        told = {"lane": "sqs", "stride": "10", "concurrency": str(SQS_CONCURRENCY)}
        with self._ours(sqs=True, **told).fresh() as session:
            enqueued = session.enqueue("bulk", SQS_RUNS)
            drained = session.drain()
        return {
            "sqs_enqueue_bulk_per_s": enqueued["per_s"],
            "sqs_drain_per_s": drained["per_s"],
            "worker_rss_mb": drained["rss_mb"],
        }

    def _ours(self, *, sqs: bool = False, **settings: str) -> Entry:
        plan = Plan("workhorse", _OURS, SQS_RUNS, settings=settings, sqs=sqs)
        return Entry(plan, Path(sys.executable), self.server)

    def _workload(
        self,
        family: str,
        name: str,
        kept: dict[str, str],
        measure: Callable[[str, str], dict[str, float]],
    ) -> Callable[[], Figures]:
        def part() -> Figures:
            answer = measure(family, name)
            return {figure: answer[each] for each, figure in kept.items()}

        return part

    def _postgresql(self, family: str, name: str) -> dict[str, float]:
        database = self.server.databases.create()
        try:
            told = ["--url", self.server.databases.url(database)]
            told += ["--postmaster", str(postmaster(self.server))]
            return run(sys.executable, "benchmarks.workloads", [family, name, *told])
        finally:
            self.server.databases.drop(database)

    def _sqlite(self, family: str, name: str) -> dict[str, float]:
        # Beside the server's files, so on the same disk.
        with tempfile.TemporaryDirectory(dir=self.server.folder.parent) as folder:
            told = ["--url", f"sqlite:///{folder}/bench.sqlite3"]
            return run(sys.executable, "benchmarks.workloads", [family, name, *told])
