"""Looks at a fleet every few seconds: its processes, its database, its broker."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import threading
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Final, LiteralString

import psycopg

from tests.faults.fleet import DRIVER, Member
from tests.soak.fleet import HEALTH, SoakFleet
from tests.soak.procs import Usage, group_usage, groups, sockets_to

EVERY_S: Final = 5.0
_TABLES: Final = (
    "select relname, pg_table_size(relid), pg_indexes_size(relid), n_live_tup, n_dead_tup,"
    " autovacuum_count from pg_stat_all_tables where schemaname = 'workhorse'"
)
_SESSIONS: Final = (
    "select count(*), coalesce(max(extract(epoch from clock_timestamp() - xact_start)), 0)::float"
    " from pg_stat_activity where backend_type = 'client backend' and application_name <> %s"
)
_GAUGE: Final = re.compile(r"^workhorse_(\w+?)(?:\{[^}]*\})? ([\d.e+-]+)$", re.MULTILINE)
_WANTED: Final = frozenset(
    {"slots", "slots_free", "runs_held", "handlers_stuck", "leases_lost_total",
     "store_errors_total", "runs_claimed_total", "loop_restarts_total"}
)  # fmt: skip


@dataclass
class Table:
    """A table of the store."""

    table_mb: float
    indexes_mb: float
    live: int
    dead: int
    vacuums: int


@dataclass
class Database:
    """The database, where it answered."""

    tables: dict[str, Table]
    sessions: int
    oldest_s: float
    """The age of the oldest transaction of the fleet."""
    states: dict[str, int]
    """How many runs are live, by state."""
    outcomes: int
    noted: int
    """Rows of `freed`: ends of which somebody is still to be told."""
    linked: int
    wal_mb: float


@dataclass
class Seen:
    """A member's process."""

    pid: int
    age_s: float
    usage: Usage
    gauges: dict[str, float] = field(default_factory=dict)


@dataclass
class Sample:
    """All that was seen at one moment, by CLOCK_MONOTONIC."""

    at: float
    members: dict[str, Seen]
    database: Database | None
    calls: dict[str, int]
    """Calls to SQS so far, by operation."""
    load: float

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)


class Sampler:
    """Takes samples in a thread of its own, from `start` to `stop`."""

    def __init__(self, fleet: SoakFleet, every_s: float = EVERY_S) -> None:
        self._fleet = fleet
        self._every_s = every_s
        self._over = threading.Event()
        self._lock = threading.Lock()
        self.samples: list[Sample] = []
        self.broken: list[str] = []
        """What went wrong in sampling itself."""
        self._thread = threading.Thread(target=self._go_on, name="soak-sampler")

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def take(self) -> Sample:
        """Take a sample now, and keep it."""
        with self._lock:
            at = time.monotonic()
            by_group, sockets = groups(), sockets_to(self._fleet.server.port)
            members = {}
            for member in self._fleet.members:
                seen = _look(member, by_group, sockets)
                if seen is not None:
                    members[member.name] = seen
            relay = self._fleet.relay
            sample = Sample(
                at, members, self._database(), dict(relay.counts()) if relay else {},
                os.getloadavg()[0],
            )  # fmt: skip
            self.samples.append(sample)
        return sample

    def _go_on(self) -> None:
        due = time.monotonic()
        while not self._over.wait(max(0.0, due - time.monotonic())):
            due += self._every_s
            try:
                self.take()
            except Exception as error:  # noqa: BLE001 - a sample that fails is told of at the end
                self.broken.append(f"{type(error).__name__}: {error}")

    def _database(self) -> Database | None:
        with contextlib.suppress(psycopg.Error, AssertionError), self._fleet.admin() as connection:
            connection.execute("set statement_timeout = '4s'")
            tables = {
                row[0]: Table(row[1] / 1048576, row[2] / 1048576, *row[3:])
                for row in connection.execute(_TABLES).fetchall()
            }
            sessions, oldest_s = _row(connection, _SESSIONS, DRIVER)
            states = connection.execute(
                "select state, count(*) from workhorse.live group by state"
            ).fetchall()
            counts = _row(
                connection,
                "select (select count(*) from workhorse.outcomes),"
                " (select count(*) from workhorse.freed),"
                " (select count(*) from workhorse.links),"
                " (pg_current_wal_insert_lsn() - '0/0')::float / 1048576",
            )
            return Database(tables, sessions, oldest_s, dict(states), *counts)
        return None


def _row(
    connection: psycopg.Connection[Any], sql: LiteralString, *values: object
) -> tuple[Any, ...]:
    found = connection.execute(sql, values).fetchone()
    assert found is not None
    return tuple(found)


def _look(member: Member, by_group: dict[int, list[int]], sockets: frozenset[str]) -> Seen | None:
    process = member.process
    if process is None or process.exit_code is not None:
        return None
    since, pid = member.since, process.pid
    usage = group_usage(pid, by_group, sockets)
    if usage is None:
        return None
    port = member.env.get(HEALTH)
    return Seen(pid, time.monotonic() - since, usage, _gauges(int(port)) if port else {})


def _gauges(port: int) -> dict[str, float]:
    """Return a worker's own counts; none where it does not answer: it is frozen, or starts."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=0.5)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    except (OSError, http.client.HTTPException):
        return {}
    finally:
        connection.close()
    return read_gauges(text)


def read_gauges(text: str) -> dict[str, float]:
    """Return the wanted numbers of Prometheus' text; those with labels are added up."""
    found: dict[str, float] = {}
    for name, value in _GAUGE.findall(text):
        if name in _WANTED:
            found[name] = found.get(name, 0.0) + float(value)
    return found
