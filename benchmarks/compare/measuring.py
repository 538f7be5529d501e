"""Takes one entrant through the workloads, each in processes of its own, on a fresh database."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from benchmarks.children import Answer, Child, run
from benchmarks.compare.kit import WARM_UP
from benchmarks.compare.plan import Plan
from benchmarks.environments import UnavailableError
from benchmarks.figures import percentile
from benchmarks.peers import sqs_queue
from benchmarks.server import postmaster
from benchmarks.sqs_endpoint import sqs_endpoint
from tests.support.postgres import PostgresServer

SINGLES = 300
PINGS = 60
SWEEPS = 2
_READY_WITHIN_S = 30.0
_OURS_QUEUE = "workhorse-bench"

Figures = dict[str, float]


@dataclass
class Entry:
    """An entrant and what stands ready for it."""

    plan: Plan
    python: Path
    server: PostgresServer
    best: dict[str, str] = field(default_factory=dict)
    """What the sweep has found."""

    @contextmanager
    def fresh(self, settings: Mapping[str, str] | None = None) -> Iterator[Session]:
        """Give it a database of its own, and an endpoint where it needs one."""
        with ExitStack() as stack:
            told = {**self.plan.settings, **self.best, **(settings or {})}
            url = ""
            if self.plan.store:
                name = self.server.databases.create()
                stack.callback(self.server.databases.drop, name)
                url = self.server.databases.url(name)
            if self.plan.sqs:
                endpoint = stack.enter_context(sqs_endpoint())
                if self.plan.store:
                    told["endpoint"] = endpoint
                    sqs_queue.call(endpoint, "CreateQueue", QueueName=_OURS_QUEUE)
                else:
                    url = endpoint
            session = Session(self, url, told)
            session.run("setup")
            yield session


@dataclass
class Session:
    """One entrant on one database."""

    entry: Entry
    url: str
    settings: Mapping[str, str]
    queued: int = 0

    def arguments(self, role: str, count: int, *, flows: bool = False) -> list[str]:
        """Return the command line for a role."""
        told = [role, "--url", self.url, "--count", str(count)]
        if self.entry.plan.store:
            told += ["--postmaster", str(postmaster(self.entry.server))]
        for name, value in self.settings.items():
            told += ["--set", f"{name}={value}"]
        return [*told, "--flows"] if flows else told

    def run(
        self, role: str, count: int = 0, *, flows: bool = False, within_s: float = 90
    ) -> Answer:
        """Take a role, in a process of its own; return its answer."""
        self._calm()
        plan = self.entry.plan
        told = self.arguments(role, count, flows=flows)
        return run(self.entry.python, plan.module, told, within_s=within_s)

    def enqueue(self, role: str, count: int, *, flows: bool = False) -> Answer:
        """Enqueue; remembers how many there are, with the first, which warms up."""
        answer = self.run(role, count, flows=flows)
        self.queued += count + 1
        return answer

    def drain(self, *, flows: bool = False) -> Answer:
        """Drain what was enqueued."""
        count, self.queued = self.queued, 0
        return self.run("drain", count, flows=flows)

    def latencies_ms(
        self, role: str, count: int, *, skip: int = WARM_UP, rate: float = 0.0
    ) -> tuple[list[float], float]:
        """Enqueue in one process while another serves; return latencies, and the server's RSS.

        Args:
            role: `call` now and then, or `feed` at a rate.
            count: How many jobs.
            skip: How many of the first do not count.
            rate: Jobs a second.
        """
        self._calm()
        plan, python = self.entry.plan, self.entry.python
        with Child(python, plan.module, self.arguments("serve", count)) as worker:
            deadline = time.monotonic() + _READY_WITHIN_S
            while "ready" not in worker.lines():
                if not worker.running():
                    worker.answer(within_s=1)
                if time.monotonic() > deadline:
                    raise UnavailableError(f"its worker was not ready in {_READY_WITHIN_S:g} s")
                time.sleep(0.02)
            told = [*self.arguments(role, count), "--rate", str(rate)]
            called = run(python, plan.module, told, within_s=120)
            served = worker.answer(within_s=60)
        started = served["started_ns"]
        late = [
            (started[number] - at) / 1e6
            for number, at in called["called_ns"].items()
            if int(number) >= skip
        ]
        return late, float(served["rss_mb"])

    def _calm(self) -> None:
        """Take what the last workload has left to write out of the next one."""
        with psycopg.connect(self.entry.server.url(), autocommit=True) as connection:
            connection.execute("checkpoint")


def throughput(entry: Entry) -> Figures:
    """Enqueue singly and in bulk, then drain it all."""
    plan = entry.plan
    with entry.fresh() as session:
        single = session.enqueue("single", SINGLES)
        bulk = session.enqueue("bulk", plan.jobs)
        drained = session.drain()
    figures: Figures = {
        "enqueue_single_per_s": single["per_s"],
        "enqueue_bulk_per_s": bulk["per_s"],
        "drain_per_s": drained["per_s"],
        "drain_client_us": drained["client_cpu_us"],
        "drain_rss_mb": drained["rss_mb"],
    }
    if plan.store:
        figures["drain_server_us"] = drained["server_cpu_us"]
    return figures


def latency(entry: Entry) -> Figures:
    """Enqueue call to handler start, the worker idle and in another process."""
    with entry.fresh(entry.plan.latency) as session:
        late, rss = session.latencies_ms("call", PINGS + WARM_UP)
    return {
        "latency_p50_ms": percentile(late, 0.5),
        "latency_p99_ms": percentile(late, 0.99),
        "idle_rss_mb": rss,
    }


def flows(entry: Entry) -> Figures:
    """Drain flows of three steps, each stored before the next begins."""
    if not entry.plan.flows:
        return {}
    with entry.fresh() as session:
        session.enqueue("bulk", entry.plan.flows, flows=True)
        drained = session.drain(flows=True)
    return {"flows3_per_s": drained["per_s"], "flows3_client_us": drained["client_cpu_us"]}


def sweep(entry: Entry) -> dict[str, float]:
    """Try the setting that matters, and keep the best; return what each value made at best."""
    tried: dict[str, float] = {}
    for name, values in entry.plan.sweep.items():
        for value in values * SWEEPS:
            with entry.fresh({name: value}) as session:
                session.enqueue("bulk", entry.plan.jobs // 2)
                rate = float(session.drain()["per_s"])
            # The best of its tries: what else the machine does only ever slows one down.
            tried[f"{name}={value}"] = max(rate, tried.get(f"{name}={value}", 0.0))
        best = max(tried, key=lambda each: tried[each])
        entry.best[name] = best.partition("=")[2]
    return tried


WORKLOADS: Mapping[str, Callable[[Entry], Figures]] = {
    "throughput": throughput,
    "latency": latency,
    "flows": flows,
}
