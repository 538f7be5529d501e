"""A fleet of real processes on real parts: PostgreSQL, an SQS endpoint, producers, workers of
several lanes and maintenance, each in a process group of its own and started again when it ends, as
a supervisor would.

Faults reach the parts through it: `workers`, `server`, `broker`, `admin()`.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psycopg

from tests.faults import ledger
from tests.faults.broker import Broker
from tests.faults.wires.moving import Clocks
from tests.faults.wires.proxies import Wires
from tests.support.folders import disk_root
from tests.support.guardian import guardian
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import PostgresServer
from tests.support.processes import RunningProcess
from workhorse.store.base.database import Store
from workhorse.store.base.migrating import migrate

ROOT: Final = Path(__file__).parents[2]
DATABASE: Final = "faults_tests"
QUEUES: Final = ("work", "batch", "process", "bad")
POOLED: Final = 6
"""Sessions of a pooler, for a fleet that would hold five times as many."""
DRIVER: Final = "faults"
"""The driver's own sessions, by their application name: no fault hits them."""
_SESSIONS: Final = (
    "select pid from pg_stat_activity"
    " where backend_type = 'client backend' and application_name <> %s order by pid"
)
LANES: Final = ("sqs", "polling", "notify")
"""Of the workers, in turn."""
CLIENTS: Final = ("aioboto3", "boto3", "lean")
"""Of SQS, of all members, in turn; which one begins is the seed's."""
ENOUGH: Final = "enough"
"""A file that tells producers to enqueue no more."""
FULL: Final = "full"
"""A file that tells producers to pause."""
STARTED: Final = re.compile(r"1 worker, \d+ slots")
"""What a worker says when it has begun."""
SETTLED_S: Final = 1.0
"""How much later it holds runs."""
_BACKSTOP: Final = 5
_LAST_WORDS: Final = 6_000
_TABLES: Final = """
create table faults_book (run_id uuid not null, fence bigint not null, nonce text not null);
create table faults_orders (run_id uuid not null);
"""


@dataclass
class Member:
    """A place in the fleet; its process is replaced when it ends."""

    name: str
    arguments: list[str]
    env: dict[str, str]
    process: RunningProcess | None = None
    since: float = 0.0
    at_work: float | None = None
    """When its process was first seen to have started its work, if it was."""
    starts: int = 0
    wanted: bool = True
    exits: list[int] = field(default_factory=list)
    lives: list[tuple[int, float]] = field(default_factory=list)
    """The processes that have ended, and when."""

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid


@dataclass(frozen=True)
class Hit:
    """A moment at which a fault struck, by CLOCK_MONOTONIC; `group` is the process that it hit."""

    fault: str
    at: float
    group: int = 0


@dataclass(frozen=True)
class Incident:
    """A time in which a part was broken, by CLOCK_MONOTONIC; `group` is the process that it hit."""

    what: str
    began: float
    ended: float
    group: int = 0


class Fleet:
    """Starts all of it; leaving it ends all of it.

    Args:
        seed: What the producers draw from.
        runs: How many enqueues all producers make together.
        rate: How many of them a second.
        workers: How many worker processes.
        lease_s: The workers' lease.
        bad: How many of a thousand runs are of handlers that misbehave.
        millis: How long a handler works at most.
        tasks: Whose runs are enqueued; by default all of them, by their weights.
        env: More of the members' environment.
        app: Whose tasks are run.
        quick_broker: Whether the endpoint is that of the benchmarks, which answers ten times as
            many calls as moto's server, and keeps less.
        wires: Puts something between the members and what they reach: is handed this fleet when
            its server and broker run, and returns what that changes in the environment, e.g. the
            URL of a proxy.
        wired: Puts each member behind proxies of its own, to the database and to the broker, which
            faults can break: see `tests.faults.wires`.
        pooler: Puts a PgBouncer in transaction mode before the database, with few sessions. Only
            the lane `notify` listens past it, as it has to.
        clocks: Gives workers and maintenance clocks that faults can move.
    """

    def __init__(
        self,
        *,
        seed: int,
        runs: int,
        rate: float,
        workers: int = 3,
        producers: int = 2,
        lease_s: float = 3.0,
        bad: int = 25,
        millis: int = 300,
        tasks: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        app: str = "tests.faults.handlers:app",
        quick_broker: bool = False,
        wires: Callable[[Fleet], Mapping[str, str]] | None = None,
        wired: bool = False,
        pooler: bool = False,
        clocks: bool = False,
    ) -> None:
        self.lease_s = lease_s
        self.incidents: list[Incident] = []
        self.unhealed: list[str] = []
        self.misses: list[str] = []
        self.oddities: list[str] = []
        """How processes ended that were cut off by their own backstop, with their last words."""
        self._struck = threading.local()
        self._taken: list[Member] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self.folder = Path(tempfile.mkdtemp(prefix="wh-faults-", dir=disk_root()))
        guardian().watch_folder(self.folder)
        self.server = PostgresServer(
            tcp=True,
            settings={
                "max_connections": "80",
                "deadlock_timeout": "200ms",
                "log_statement": "none",
                "max_wal_size": "256MB",  # it is copied, again and again
            },
        )
        self.broker = Broker(quick=quick_broker)
        self.broker.start()
        self.broker.create_queues([f"workhorse-{queue}" for queue in QUEUES])
        with self.admin("postgres") as connection:
            connection.execute(f"create database {DATABASE}")
        self.url = self.server.url(DATABASE)
        self._create_tables()
        self.pooler = PgBouncer(self.url, sessions=POOLED) if pooler else None
        self.env = {
            "WORKHORSE_DATABASE_URL": self.url,
            "WORKHORSE_AWS_ENDPOINT_URL": self.broker.url,
            "WORKHORSE_AWS_REGION": "us-east-1",
            "WORKHORSE_LANE": "sqs",
            "WORKHORSE_LEASE_SECONDS": str(lease_s),
            "WORKHORSE_DRAIN_SECONDS": "1",
            "WORKHORSE_CONCURRENCY": "8",
            "WORKHORSE_PROCESSES": "1",
            "WORKHORSE_QUEUES": ",".join(QUEUES),
            "WORKHORSE_HINT_STRIDE": "1",
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",  # no endpoint checks it
            "AWS_EC2_METADATA_DISABLED": "true",
            "FAULTS_FOLDER": str(self.folder),
            "FAULTS_SEED": str(seed),
            "FAULTS_RUNS": str(runs // producers),
            "FAULTS_RATE": str(rate / producers),
            "FAULTS_BAD": str(bad),
            "FAULTS_MILLIS": str(millis),
            "FAULTS_TASKS": ",".join(tasks),
            **(env or {}),
        }
        if self.pooler is not None:
            self.env["WORKHORSE_DATABASE_URL"] = self.pooler.url()
            self.env["WORKHORSE_LISTEN_URL"] = self.url
        if wires is not None:
            self.env |= wires(self)
        cli = ["-m", "workhorse.cli", "--app", app]
        self.workers = [
            Member(
                f"worker {at} ({LANES[at % len(LANES)]})",
                [*cli, "worker"],
                {"FAULTS_ROLE": "worker", "WORKHORSE_LANE": LANES[at % len(LANES)]},
            )
            for at in range(workers)
        ]
        self.maintainers = [Member("maintenance", [*cli, "maintain"], {})]
        self.producers = [
            Member(f"producer {at}", ["-m", "tests.faults.producer", str(at)], {})
            for at in range(producers)
        ]
        for at, member in enumerate(self.members):
            member.env["WORKHORSE_SQS_CLIENT"] = CLIENTS[(seed + at) % len(CLIENTS)]
        self.clocks: Clocks | None = None
        if clocks:
            watched = [*self.workers, *self.maintainers]
            self.clocks = Clocks(self.folder, [member.name for member in watched])
            for member in watched:
                member.env |= self.clocks.env(member.name)
        self.wires: Wires | None = None
        if wired:
            self.wires = Wires(
                self.env["WORKHORSE_DATABASE_URL"],
                self.env["WORKHORSE_AWS_ENDPOINT_URL"],
                [member.name for member in self.members],
            )
            for member in self.members:
                member.env |= self.wires.env(member.name)
        self._supervisor = threading.Thread(target=self._supervise, name="supervisor")

    @property
    def members(self) -> list[Member]:
        """All places of the fleet."""
        return [*self.workers, *self.maintainers, *self.producers]

    def start(self) -> None:
        """Start all members."""
        for member in self.members:
            self.launch(member)
        self._supervisor.start()

    # -- for faults ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def admin(self, database: str = DATABASE) -> Iterator[psycopg.Connection[Any]]:
        """A connection of the driver's own, in autocommit, straight to the server."""
        url = self.server.url(database)
        with psycopg.connect(
            url, autocommit=True, connect_timeout=5, application_name=DRIVER
        ) as connection:
            yield connection

    def sessions(self, connection: psycopg.Connection[Any]) -> list[int]:
        """Return the fleet's sessions, by the process ids of their backends."""
        return [row[0] for row in connection.execute(_SESSIONS, [DRIVER]).fetchall()]

    def end_sessions(
        self, connection: psycopg.Connection[Any], pids: Sequence[int] | None = None
    ) -> None:
        """Terminate sessions, by default all of the fleet's."""
        pids = self.sessions(connection) if pids is None else pids
        connection.execute("select pg_terminate_backend(pid) from unnest(%s::int[]) pid", [pids])

    @contextlib.contextmanager
    def incident(self, what: str, member: Member | None = None) -> Iterator[None]:
        """Note that a part is broken for the time of the context."""
        began, group = time.monotonic(), member.pid if member is not None else 0
        try:
            yield
        finally:
            self.note(what, began, group=group)

    def note(self, what: str, began: float, *, group: int = 0) -> None:
        """Note that a part was broken from then until now."""
        with self._lock:
            self.incidents.append(Incident(what, began, time.monotonic(), group))

    def any_worker(self, rng: random.Random) -> Member:
        """Draw a worker that runs."""
        return rng.choice([each for each in self.workers if self.runs(each)] or self.workers)

    @contextlib.contextmanager
    def taken_worker(self, rng: random.Random) -> Iterator[Member]:
        """Draw a worker for the time of the context: one that runs, and that no other fault has.

        One that has run for a while is better than one that is just starting: it has runs to lose.
        """
        deadline = time.monotonic() + 15
        while True:
            with self._lock:
                free = [each for each in self.workers if each not in self._taken]
                running = [each for each in free if self.runs(each)]
                now = time.monotonic()
                older = [each for each in running if now - self._at_work_at(each) > SETTLED_S]
                if older or (now > deadline and (free := running or free or self.workers)):
                    member = rng.choice(older or free)
                    self._taken.append(member)
                    break
            time.sleep(0.05)
        try:
            yield member
        finally:
            with self._lock:
                self._taken.remove(member)

    def _at_work_at(self, member: Member) -> float:
        if member.at_work is None and member.process is not None:
            if not STARTED.search(member.process.output()):
                return time.monotonic()
            member.at_work = time.monotonic()
        return member.at_work or time.monotonic()

    def hit(self, member: Member) -> None:
        """Say that the fault that is being applied strikes now, and whom."""
        self._struck.hit = (time.monotonic(), member.pid)

    def struck(self) -> tuple[float, int] | None:
        """Return when, and which process, the fault that this thread applied has struck."""
        hit: tuple[float, int] | None = getattr(self._struck, "hit", None)
        self._struck.hit = None
        return hit

    def runs(self, member: Member) -> bool:
        """Whether its process runs now."""
        return member.process is not None and member.process.exit_code is None

    def hold(self, member: Member) -> None:
        """Wait until a member runs, so that there is something to break."""
        deadline = time.monotonic() + 30
        while not self.runs(member) and time.monotonic() < deadline:
            time.sleep(0.02)

    # -- supervision -----------------------------------------------------------------------------

    def launch(self, member: Member) -> None:
        """Start a member's process, in the place of one that has ended."""
        with self._lock:
            if member.process is not None:
                self._keep_log(member)
                member.process.close()  # whatever it forked goes with it, as with a container
            member.process = RunningProcess(
                [sys.executable, *member.arguments], env={**self.env, **member.env}, cwd=ROOT
            )
            member.since, member.at_work = time.monotonic(), None
            member.starts += 1

    def _supervise(self) -> None:
        while not self._ended.wait(0.2):
            for member in self.members:
                process = member.process
                if process is None or process.exit_code is None or not member.wanted:
                    continue
                member.exits.append(process.exit_code)
                member.lives.append((process.pid, time.monotonic()))
                if process.exit_code == _BACKSTOP:
                    words = process.output()[-_LAST_WORDS:]
                    self.oddities.append(f"{member.name} was cut off by its backstop:\n{words}")
                if member in self.producers and process.exit_code == 0:
                    member.wanted = False
                    continue
                self.launch(member)

    def accepted(self) -> int:
        """How many runs the producers' record says were accepted."""
        path = self.folder / ledger.PRODUCERS
        return path.read_bytes().count(b'"what":"accepted"') if path.exists() else 0

    def lives(self) -> dict[int, float]:
        """Return when each process that has ended did so."""
        return {pid: ended for member in self.members for pid, ended in member.lives}

    def pause_producers(self, on: bool) -> None:
        """Have producers enqueue nothing for a while, or go on."""
        path = self.folder / FULL
        path.touch() if on else path.unlink(missing_ok=True)

    def enough(self) -> None:
        """Tell the producers to enqueue no more."""
        (self.folder / ENOUGH).touch()

    def produced(self) -> bool:
        """Whether all producers are done."""
        return not any(member.wanted for member in self.producers)

    def unfinished(self) -> int:
        """How many runs have not ended; -1 where the database does not say."""
        with contextlib.suppress(psycopg.Error), self.admin() as connection:
            found = connection.execute("select count(*) from workhorse.live").fetchone()
            return int(found[0]) if found else -1
        return -1

    def at_rest(self) -> bool:
        """Whether all runs have ended and all that their ends free was freed."""
        with contextlib.suppress(psycopg.Error), self.admin() as connection:
            found = connection.execute(
                "select (select count(*) from workhorse.live)"
                " + (select count(*) from workhorse.freed)"
            ).fetchone()
            return found is not None and bool(found[0] == 0)
        return False

    def stop(self, within: float = 45.0) -> dict[str, int]:
        """Ask all members to end; return the exit codes of those that ended by themselves."""
        self._ended.set()
        if self._supervisor.is_alive():
            self._supervisor.join()
        for member in self.members:
            if member.process is not None and member.process.exit_code is None:
                member.process.send_group(signal.SIGCONT)
                member.process.send(signal.SIGTERM)
        deadline = time.monotonic() + within
        codes: dict[str, int] = {}
        for member in self.members:
            if member.process is None:
                continue
            while member.process.exit_code is None and time.monotonic() < deadline:
                time.sleep(0.05)
            if member.process.exit_code is not None:
                codes[member.name] = member.process.exit_code
        return codes

    def exits(self) -> Counter[int]:
        """How often a process ended with which code, negative after a signal."""
        return Counter(code for member in self.members for code in member.exits)

    def close(self) -> None:
        """End all of it and remove its folder."""
        self._ended.set()
        if self._supervisor.is_alive():
            self._supervisor.join()
        for member in self.members:
            if member.process is not None:
                self._keep_log(member)
                member.process.close()
        if self.wires is not None:
            self.wires.close()
        if self.pooler is not None:
            self.pooler.close()
        self.broker.close()
        self.server.close()
        if os.environ.get("FAULTS_KEEP"):
            print(f"kept: {self.folder}")
        else:
            shutil.rmtree(self.folder, ignore_errors=True)
        guardian().release_folder(self.folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _keep_log(self, member: Member) -> None:
        assert member.process is not None
        with (self.folder / f"{member.name.replace(' ', '-')}.log").open("a") as kept:
            kept.write(member.process.output())
            kept.write(f"--- ended with {member.process.exit_code}\n")

    def _create_tables(self) -> None:
        store = Store.open(self.url)
        try:
            migrate(store)
        finally:
            store.close()
        with self.admin() as connection:
            connection.execute(_TABLES)
