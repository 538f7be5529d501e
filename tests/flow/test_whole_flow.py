"""The main job on real parts: PostgreSQL, an SQS endpoint, worker and maintenance processes.

Workers are killed with SIGKILL while they hold leases, wakeups are doubled, lost, or all lost; the
end is judged by a ledger that the handlers keep, against the store. FLOW_RUNS makes it smaller.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.flow import fleet
from tests.support.eventually import eventually
from tests.support.processes import Processes, RunningProcess
from tests.support.sqs import SqsEndpoint, SqsQueue
from workhorse.app import Workhorse
from workhorse.domain.runs import RunState
from workhorse.store.base.database import Store
from workhorse.store.operators import viewing

RUNS = int(os.environ.get("FLOW_RUNS", "1000"))
WORKERS = 3
KILLS = max(1, RUNS // 50)
KILL_EVERY_S = 2.0
SEED = 20261129


@dataclass
class Account:
    """What the ledger says: which (run, fence) was started, took effect and ended, and by whom."""

    starts: Counter[tuple[str, int]] = field(default_factory=Counter)
    ends: set[tuple[str, int]] = field(default_factory=set)
    open_by_pid: dict[int, set[tuple[str, int]]] = field(default_factory=lambda: defaultdict(set))
    ends_by_pid: Counter[int] = field(default_factory=Counter)


def read_ledger(path: Path) -> Account:
    account = Account()
    for line in path.read_text().splitlines() if path.exists() else ():
        pid, run_id, fence, what = line.split(" ")
        lease = (run_id, int(fence))
        if what == "start":
            account.starts[lease] += 1
            account.open_by_pid[int(pid)].add(lease)
        elif what == "end":
            account.ends.add(lease)
            account.open_by_pid[int(pid)].discard(lease)
            account.ends_by_pid[int(pid)] += 1
    return account


@dataclass
class Flow:
    """A fleet on its own database and queue."""

    env: dict[str, str]
    ledger: Path
    app: Workhorse
    store: Store
    processes: Processes
    workers: list[RunningProcess] = field(default_factory=list)
    produced: int = 0
    producer: threading.Thread | None = None
    ended: threading.Event = field(default_factory=threading.Event)

    def start_worker(self) -> RunningProcess:
        return self.processes.python("-m", "tests.flow.fleet", "worker", env=self.env)

    def start_fleet(self) -> None:
        self.workers = [self.start_worker() for _ in range(WORKERS)]
        self.processes.python("-m", "tests.flow.fleet", "maintenance", env=self.env)

    def produce(self, *, over_s: float, until: threading.Event | None = None) -> None:
        """Enqueue all runs, evenly over a time, from a thread of the test's process.

        It goes on beyond them until `until` is set: on a slow machine the kills take longer.
        """
        draw = random.Random(SEED)
        tasks = [self.app.registry.require(name) for name in ("flow.async", "flow.plain")]

        def run() -> None:
            started = time.monotonic()
            while self.produced < RUNS or (until is not None and not until.is_set()):
                tasks[self.produced % 2].enqueue(draw.randint(50, 500))
                self.produced += 1
                ahead = started + over_s * self.produced / RUNS - time.monotonic()
                if self.ended.wait(max(0.0, ahead)):
                    return

        self.producer = threading.Thread(target=run)
        self.producer.start()

    def wait_for_producer(self) -> None:
        """Wait until it has ended, for as long as it enqueues: a busy machine is only slow."""
        producer, seen = self.producer, -1
        assert producer is not None
        while producer.is_alive() and self.produced > seen:
            seen = self.produced
            producer.join(120)
        assert not producer.is_alive(), f"it enqueued {self.produced} runs, and then no other"

    def close(self) -> None:
        self.ended.set()
        if self.producer is not None:
            self.producer.join()
        self.app.close()

    def kill_one(self, draw: random.Random) -> bool:
        """SIGKILL a worker that holds a lease and has ended a run, and start another.

        Only one that has got something done: on a slow machine a fleet whose workers are killed as
        soon as they are up would get nowhere, with no fault of its own.
        """
        account = read_ledger(self.ledger)
        fit = [
            at
            for at, worker in enumerate(self.workers)
            if account.open_by_pid[worker.pid] and account.ends_by_pid[worker.pid]
        ]
        if not fit:
            return False
        at = draw.choice(fit)
        victim = self.workers[at]
        victim.kill()
        held = bool(read_ledger(self.ledger).open_by_pid[victim.pid])
        self.workers[at] = self.start_worker()
        return held

    def finished(self) -> int:
        counts = self.store.run(viewing.counts)
        return sum(counts[state] for state in RunState if state.finished)

    def wait_for_all(self) -> None:
        """Wait until all runs have ended, for as long as more of them do.

        A busy machine is only slow; a run that was lost keeps the rest waiting for nothing.
        """
        self.wait_for_producer()
        done = self.finished()
        while done < self.produced:
            more = f"{done} of {self.produced} runs have ended, and then another one"
            done = eventually(partial(self._more_than, done), within=120, every=0.2, what=more)

    def _more_than(self, done: int) -> int:
        now = self.finished()
        return now if now > done else 0


@pytest.fixture
def make_flow(
    postgresql_url: str,
    endpoint: SqsEndpoint,
    processes: Processes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Any]:
    made: list[Flow] = []
    queues: list[SqsQueue] = []

    def make(*, drop: float, double: float) -> Flow:
        ledger = tmp_path / "ledger"
        env = {
            "WORKHORSE_DATABASE_URL": postgresql_url,
            "WORKHORSE_QUEUES": "flow",
            "WORKHORSE_LEASE_SECONDS": "2",
            "WORKHORSE_CONCURRENCY": "4",
            "WORKHORSE_AWS_ENDPOINT_URL": endpoint.url,
            "WORKHORSE_AWS_REGION": "us-east-1",
            "FLOW_DROP": str(drop),
            "FLOW_DOUBLE": str(double),
            "FLOW_SEED": str(SEED),
            "FLOW_LEDGER": str(ledger),
        }
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        queues.append(endpoint.create_queue("workhorse-flow"))
        app = fleet.make_app()
        flow = Flow(env, ledger, app, app.store, processes)
        made.append(flow)
        return flow

    yield make
    for flow in made:
        flow.close()
    for queue in queues:
        queue.delete()


def judge(flow: Flow) -> int:
    """Hold the store against the ledger; return the number of recoveries."""
    account = read_ledger(flow.ledger)
    with flow.store.engine.begin() as conn:

        def rows(sql: str) -> list[Any]:
            return list(conn.exec_driver_sql(sql))

        outcomes = {
            str(row[0]): (row[1], row[2], row[3])
            for row in rows("select id, state, attempt, fence from workhorse.outcomes")
        }
        lost = Counter(
            str(row[0])
            for row in rows("select run_id from workhorse.attempts where reason = 'lost'")
        )
        failed = rows("select run_id, reason from workhorse.attempts where reason <> 'lost'")
        unfinished = rows("select id from workhorse.live")
        # Who lives says so now and then, and holds a lock for that moment: none may stay.
        eventually(
            lambda: (
                not rows(
                    "select l.pid from pg_locks l join pg_class c on c.oid = l.relation"
                    " join pg_namespace n on n.oid = c.relnamespace"
                    " where n.nspname = 'workhorse' and l.pid <> pg_backend_pid()"
                    " and l.mode in ('RowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')"
                )
            )
        )
    assert len(outcomes) == flow.produced >= RUNS
    assert {state for state, _, _ in outcomes.values()} == {"succeeded"}
    assert unfinished == []
    assert failed == []
    twice = [lease for lease, count in account.starts.items() if count > 1]
    assert twice == []
    for run_id, (_, attempt, fence) in outcomes.items():
        assert attempt == 1 + lost[run_id], f"run {run_id}"
        # What succeeded was run to its end, under the very fence that the store kept.
        assert (run_id, fence) in account.ends
    return sum(lost.values())


def test_a_fleet_whose_workers_are_killed_loses_and_doubles_nothing(make_flow: Any) -> None:
    """1,000 runs, every message doubled and a tenth dropped, 20 kills of workers with leases."""
    flow: Flow = make_flow(drop=0.1, double=1.0)
    flow.start_fleet()
    draw = random.Random(SEED)
    killed = threading.Event()
    flow.produce(over_s=RUNS * 0.055, until=killed)
    for _ in range(KILLS):
        # The kills' own rhythm. Which of them hit a worker with a lease, the ledger says.
        time.sleep(KILL_EVERY_S)
        eventually(lambda: flow.kill_one(draw), within=60)
    killed.set()
    flow.wait_for_all()
    assert judge(flow) >= 1


def test_a_fleet_that_gets_no_message_at_all_comes_to_the_same_end(make_flow: Any) -> None:
    """Every message is dropped: the workers' scans alone find what is ready."""
    flow: Flow = make_flow(drop=1.0, double=0.0)
    flow.produce(over_s=0)
    flow.wait_for_producer()
    flow.start_fleet()
    draw = random.Random(SEED)
    for _ in range(max(1, RUNS // 300)):
        time.sleep(KILL_EVERY_S)  # the kills' own rhythm
        eventually(lambda: flow.kill_one(draw), within=60)
    flow.wait_for_all()
    judge(flow)
