"""SIGSTOP for longer than the lease, then SIGCONT: the thawed worker stores nothing.

Real worker processes, on both databases, on the polling and on the SQS lane: another worker takes
over, and whatever the first one still tries to write is refused, also where its handler swallows
that it is, and returns a result.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.flow import frozen
from tests.runtime.rig import ENVIRONMENT, ROOT
from tests.support.eventually import eventually
from tests.support.processes import Processes, RunningProcess
from tests.support.sqs import SqsEndpoint
from workhorse.app import Workhorse
from workhorse.domain.runs import RunState
from workhorse.handlers.producing import RunHandle

LEASE_S = 2.0
WITHIN = 60.0


@dataclass
class Fleet:
    """Workers of `frozen`, each with one slot, and maintenance in the test's own process."""

    app: Workhorse
    env: dict[str, str]
    url: str
    folder: Path
    processes: Processes

    def worker(self) -> RunningProcess:
        process = self.processes.python(
            "-m", "workhorse.cli", "--app", "tests.flow.frozen:app", "worker",
            env=ENVIRONMENT | self.env, cwd=ROOT,
        )  # fmt: skip
        process.wait_for("1 worker, 1 slots")
        return process

    def enqueue(self, kind: str) -> RunHandle[Any]:
        return self.app.registry.require(f"frozen.{kind}").enqueue(str(self.folder))

    def read(self, what: str, fence: int) -> dict[str, Any]:
        """Wait until the handler of a lease has said something, and return it."""
        path = self.folder / f"{what}-{fence}"
        eventually(path.exists, within=WITHIN, what=f"the handler of lease {fence} has {what}")
        return dict(json.loads(path.read_text()))

    def let_go(self, fence: int) -> None:
        (self.folder / f"go-{fence}").touch()

    def recover(self, fence: int) -> int:
        """Maintain until a handler has begun under a later lease; return that one's fence."""

        def later() -> int:
            self.app.maintenance().run_once()
            begun = [int(path.name.partition("-")[2]) for path in self.folder.glob("begun-*[0-9]")]
            return max(begun) if max(begun) > fence else 0

        return eventually(later, within=WITHIN, every=0.1, what="another worker takes over")

    def freeze(self, worker: RunningProcess) -> None:
        """Stop a worker in the midst of its handler, but not in the midst of a write on SQLite.

        There a process that is stopped while it has the file locked stops everybody else too, which
        no lease can help.
        """
        while True:
            worker.send_group(signal.SIGSTOP)
            eventually(lambda: all(map(_is_stopped, _group(worker.pid))), what="it has stopped")
            if not self._is_locked():
                return
            worker.send_group(signal.SIGCONT)
            threading.Event().wait(0.05)  # the write that is under way comes to its end

    def _is_locked(self) -> bool:
        kind, _, path = self.url.partition(":///")
        if kind != "sqlite":
            return False
        with closing(sqlite3.connect(path, timeout=0.5, isolation_level=None)) as connection:
            try:
                connection.execute("begin immediate")
                connection.execute("rollback")
            except sqlite3.OperationalError:
                return True
        return False


def _group(pid: int) -> list[int]:
    members = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(each.name)) == pid and _state_of(int(each.name)) != "Z":
                members.append(int(each.name))
        except (ProcessLookupError, FileNotFoundError):
            continue
    assert members
    return members


def _state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _is_stopped(pid: int) -> bool:
    return _state_of(pid) == "T"


@pytest.fixture
def make_fleet(processes: Processes, tmp_path: Path) -> Iterator[Callable[..., Fleet]]:
    apps: list[Workhorse] = []

    def make(url: str, **lane: str) -> Fleet:
        named = {"lane": "polling", **lane}
        app = Workhorse(
            registry=frozen.app.registry,
            database_url=url,
            hint_stride=1,
            **named,  # type: ignore[arg-type]  # each is a text
        )
        apps.append(app)
        env = {f"WORKHORSE_{name.upper()}": value for name, value in named.items()} | {
            "WORKHORSE_DATABASE_URL": url,
            "WORKHORSE_QUEUES": frozen.QUEUE,
            "WORKHORSE_CONCURRENCY": "1",
            "WORKHORSE_PROCESSES": "1",
            "WORKHORSE_LEASE_SECONDS": str(LEASE_S),
            "WORKHORSE_DRAIN_SECONDS": "1",
        }
        return Fleet(app, env, url, tmp_path, processes)

    yield make
    for app in apps:
        app.close()


def _thaw_and_judge(fleet: Fleet, kind: str, *, successor_ends_first: bool) -> None:
    first = fleet.worker()
    run = fleet.enqueue(kind)
    assert fleet.read("begun", 1) == {"first": "of 1"}
    fleet.freeze(first)
    second = fleet.worker()

    fence = fleet.recover(1)
    # The boundary that was stored before the freeze stands, and is not run again.
    assert fleet.read("begun", fence) == {"first": "of 1"}
    if successor_ends_first:
        fleet.let_go(fence)
        assert run.result(WITHIN) == f"of {fence}"

    # In the order in which its handler may get on before its worker has noticed anything.
    fleet.let_go(1)
    first.send_group(signal.SIGCONT)
    tried = fleet.read("ended", 1)
    assert tried["second"] in ("LeaseLostError", "CancelledError"), tried
    if not successor_ends_first:
        # What the thawed worker settles is refused: the run is its successor's still.
        first.wait_for("its lease (is gone|was taken)")
        # It works on, without a restart: its only slot is free, the other worker's is not.
        assert fleet.app.registry.require("frozen.light").enqueue().result(WITHIN) == "done"
        assert run.view().state is RunState.RUNNING
        fleet.let_go(fence)

    assert run.result(WITHIN) == f"of {fence}"
    assert fleet.read("ended", fence)["second"] == f"of {fence}"
    view = run.view()
    assert (view.state, view.fence, view.attempt) == (RunState.SUCCEEDED, fence, fence)
    stored = fleet.app.admin.list_checkpoints(run.id)
    assert {each.name: json.loads(each.value or "") for each in stored} == {
        "first": "of 1",
        "second": f"of {fence}",
    }
    for worker in (first, second):
        worker.send(signal.SIGTERM)
        assert worker.wait(within=WITHIN) == 0


@pytest.mark.parametrize("kind", ["plain", "async", "process"])
@pytest.mark.parametrize("order", ["while its successor runs", "after its successor has ended"])
def test_a_thawed_worker_stores_nothing(
    make_fleet: Callable[..., Fleet], database_url: str, kind: str, order: str
) -> None:
    fleet = make_fleet(database_url)
    _thaw_and_judge(fleet, kind, successor_ends_first=order.startswith("after"))


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_thawed_worker_on_the_sqs_lane_stores_nothing(
    make_fleet: Callable[..., Fleet],
    database_url: str,
    endpoint: SqsEndpoint,
    kind: str,
) -> None:
    """Its message was deleted when it claimed; recovery sends the wakeup for its successor."""
    prefix = f"wh-{uuid.uuid4().hex[:8]}-"
    queue = endpoint.create_queue(f"{prefix}{frozen.QUEUE}", visibility_s=120)
    fleet = make_fleet(
        database_url,
        lane="sqs",
        aws_endpoint_url=endpoint.url,
        aws_region="us-east-1",
        sqs_queue_prefix=prefix,
    )
    _thaw_and_judge(fleet, kind, successor_ends_first=False)
    queue.delete()
