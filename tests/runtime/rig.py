"""A worker's surroundings for tests: store, lane, tasks, and what was published and counted."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lanes.polling import PollingLane
from tests.support.processes import Processes, RunningProcess
from workhorse.domain.hints import Hint
from workhorse.domain.ids import RunId, new_run_id
from workhorse.domain.runs import ClaimedRun, NewRun, RunState, RunView
from workhorse.handlers.registry import TaskDecorator, TaskRegistry
from workhorse.ports import Lane, Outgoing, Wakeup
from workhorse.runtime.base.options import Shutdown, WorkerOptions
from workhorse.runtime.base.pace import Pace
from workhorse.runtime.process.worker import Worker
from workhorse.store.base.database import Store
from workhorse.store.lifecycle.claiming import claim
from workhorse.store.operators.operating import cancel
from workhorse.store.operators.viewing import show
from workhorse.store.producing.enqueueing import enqueue
from workhorse.telemetry import Counters, Metric

LEASE_MS = 30_000

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {"PYTHONPATH": str(ROOT)}

# The shutdown's parts, short enough for tests that go through all of them.
QUICK = Shutdown(
    drain_ms=5_000, cancel_grace_ms=50, hand_back_ms=2_000, backstop_ms=60_000, second_signal_ms=200
)


class Rig:
    """Makes workers on a store and ends them with the test."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.registry = TaskRegistry()
        self.counters = Counters()
        self.published: list[Hint] = []
        self.workers: list[Worker] = []
        self.options = WorkerOptions(shutdown=QUICK, lease_ms=LEASE_MS, idle_ms=100)
        self.lane: Lane = PollingLane()

    def task(self, name: str, **arguments: Any) -> TaskDecorator:
        """Register a handler: `@rig.task("name")`."""
        return self.registry.task(name, **arguments)

    def worker(
        self,
        queues: Sequence[str] = ("default",),
        concurrency: int = 4,
        *,
        lane: Lane | None = None,
        store: Store | None = None,
        heartbeat_store: Store | None = None,
        pace: Pace | None = None,
        poll_ms: int = 20,
        can_claim: Callable[[], Any] | None = None,
        on_claimed: Callable[..., Any] | None = None,
        **options: Any,
    ) -> Worker:
        """Return a worker; options are fields of `WorkerOptions`."""
        worker = Worker(
            queues,
            concurrency,
            poll_ms=poll_ms,
            can_claim=can_claim,
            on_claimed=on_claimed,
            store=store or self.store,
            heartbeat_store=heartbeat_store,
            lane=lane or self.lane,
            registry=self.registry,
            publish=self._publish,
            counters=self.counters,
            options=replace(self.options, **options),
            pace=pace,
        )
        self.workers.append(worker)
        return worker

    def close(self) -> None:
        """End the workers."""
        for worker in self.workers:
            worker.stop(0)
        self.lane.close()

    def _publish(self, hints: Sequence[Hint]) -> None:
        self.published += hints
        self.lane.send([Outgoing(Wakeup(hint.run_id, hint.queue), hint.delay_ms) for hint in hints])

    # -- runs ------------------------------------------------------------------------------------

    def enqueue(
        self,
        task: str,
        payload: str = "null",
        *,
        queue: str = "default",
        wake: bool = False,
        **fields: Any,
    ) -> RunId:
        """Store a run; `wake` sends its wakeup too."""
        return self.enqueue_many(task, 1, payload=payload, queue=queue, wake=wake, **fields)[0]

    def enqueue_many(
        self,
        task: str,
        count: int,
        *,
        payload: str = "null",
        queue: str = "default",
        wake: bool = False,
        **fields: Any,
    ) -> list[RunId]:
        """Store runs that are alike, in this order."""
        new = [
            NewRun(id=new_run_id(), task=task, queue=queue, payload=payload, **fields)
            for _ in range(count)
        ]
        self.store.run(enqueue, new, reach=self.lane.reach_ms)
        if wake:
            self.wake(*(run.id for run in new), queue=queue)
        return [run.id for run in new]

    def wake(self, *run_ids: RunId, queue: str = "default") -> None:
        """Send wakeups."""
        self.lane.send([Outgoing(Wakeup(run_id, queue)) for run_id in run_ids])

    def claim(self, *, free: int = 1, lease_ms: int = LEASE_MS, queue: str = "default") -> Any:
        """Claim a run by hand, as another worker would; with `free` > 1 a list of them."""
        runs = self.store.run(
            claim,
            queue=queue,
            ids=(),
            tasks=self.registry.names(),
            free=free,
            token=secrets.randbits(62),
            lease_ms=lease_ms,
        ).runs
        return runs if free > 1 else runs[0]

    def claimed(self, task: str, payload: str = "null", **fields: Any) -> ClaimedRun:
        """Store a run and claim it."""
        run_id = self.enqueue(task, payload, **fields)
        run: ClaimedRun = self.claim()
        assert run.id == run_id
        return run

    def view(self, run_id: RunId) -> RunView:
        return self.store.run(show, run_id)

    def state(self, run_id: RunId) -> RunState:
        return self.view(run_id).state

    def cancel(self, run_id: RunId) -> None:
        self.store.run(cancel, run_id, by="test", why="", request_id=secrets.token_hex(8))

    def count(self, metric: Metric, label: str | None = None) -> int:
        return self.counters.get(metric, label=label)


def beat(worker: Worker) -> None:
    """Have all that a worker holds renewed now, not at the next third of its lease.

    A test need not make leases short then, which a busy machine would let run out.
    """
    for held in worker._parts.holdings.all():
        held.ask_ms = 0.0
    worker._parts.engine._heartbeat.wake()


def start_program(
    processes: Processes, url: str, *, drain_ms: int = 20_000, lease_ms: int = 30_000
) -> RunningProcess:
    """Start a worker's process, see `program`; its tasks are those of the fixture `fleet`."""
    return processes.python(
        "-m", "tests.runtime.program", url, str(drain_ms), str(lease_ms),
        env=ENVIRONMENT, cwd=ROOT,
    )  # fmt: skip


class Gate:
    """Where a handler says that it has come, and waits to be let on; events, not sleeps."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def come(self) -> None:
        """From the handler: say so, and wait."""
        self.reached.set()
        assert self.opened.wait(20), "nobody opened the gate"

    def wait(self) -> None:
        """From the test: wait until a handler has come."""
        assert self.reached.wait(20), "no handler came"

    def open(self) -> None:
        self.opened.set()
