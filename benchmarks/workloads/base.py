"""What the workloads share: where they run, the app they open, and what a piece of work costs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from sqlalchemy import event
from sqlalchemy.engine import Engine

from benchmarks.cost import server_cpu_s
from workhorse.app import Workhorse

CONCURRENCY = 400
ASYNC_CONCURRENCY = 800
"""No-op async handlers: of the slots that were tried beside other libraries, what drains most."""

Figures = dict[str, float]


@dataclass(frozen=True)
class Place:
    """Where a workload runs."""

    url: str
    postmaster: int = 0
    """The server's first process; 0 on SQLite."""

    def app(self, lane: str = "polling", **arguments: Any) -> Workhorse:
        """Return an app on the migrated database."""
        arguments = {"queues": ["bench"], "concurrency": CONCURRENCY, **arguments}
        app = Workhorse(database_url=self.url, lane=lane, **arguments)
        app.migrate()
        return app


@dataclass
class Cost:
    """What some work took, once it is over."""

    seconds: float = 0.0
    client_s: float = 0.0
    server_s: float = 0.0
    wal_bytes: int = 0
    counts: dict[str, int] = field(default_factory=lambda: {"statements": 0, "commits": 0})

    def per_run(self, runs: int) -> Figures:
        """Return it for each run."""
        return {
            "client_cpu_us": self.client_s / runs * 1e6,
            "server_cpu_us": self.server_s / runs * 1e6,
            "wal_bytes_per_run": self.wal_bytes / runs,
            "statements_per_run": self.counts["statements"] / runs,
            "commits_per_run": self.counts["commits"] / runs,
        }


@contextmanager
def measured(place: Place) -> Iterator[Cost]:
    """Measure what is done in the context."""
    cost = Cost()
    with _counting(cost.counts):
        wal = _wal_bytes(place)
        client, server = time.process_time(), server_cpu_s(place.postmaster)
        started = time.perf_counter()
        yield cost
        cost.seconds = time.perf_counter() - started
        cost.client_s = time.process_time() - client
        cost.server_s = server_cpu_s(place.postmaster) - server
        cost.wal_bytes = _wal_bytes(place) - wal


def _wal_bytes(place: Place) -> int:
    if not place.postmaster:
        return 0
    with psycopg.connect(place.url, autocommit=True) as connection:
        row = connection.execute("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
        return int(row[0]) if row else 0


@contextmanager
def _counting(counts: dict[str, int]) -> Iterator[None]:
    """Count statements and commits of all connections of this process."""
    lock = threading.Lock()

    def statement(*_arguments: Any) -> None:
        with lock:
            counts["statements"] += 1

    def commit(_conn: Any) -> None:
        with lock:
            counts["commits"] += 1

    event.listen(Engine, "before_cursor_execute", statement)
    event.listen(Engine, "commit", commit)
    try:
        yield
    finally:
        event.remove(Engine, "before_cursor_execute", statement)
        event.remove(Engine, "commit", commit)
