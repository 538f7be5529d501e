"""Handlers in processes that are to end: told, given time, killed; and runs that wait for one."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.runtime import process_handlers
from tests.runtime.rig import Rig
from tests.support.eventually import eventually
from tests.support.processes import is_running
from workhorse.domain.ids import RunId
from workhorse.domain.outcomes import Retry
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import Failure, Reason, RunState
from workhorse.runtime.activations.activation import Activation
from workhorse.runtime.execution.engine import Engine
from workhorse.runtime.process.worker import Worker
from workhorse.store.base.database import Store
from workhorse.store.lifecycle.settling import Entry, settle
from workhorse.store.operators.inspecting import list_checkpoints
from workhorse.telemetry import Metric

ONCE = RetryPolicy(max_attempts=1)
LEASE_MS = 900
TAKEN = Retry(60_000, Reason.LOST, Failure("LeaseExpired", "by another worker"))


@pytest.fixture
def live(live_rig: Rig) -> Rig:
    """A worker's surroundings by the database's own time, on both databases."""
    live_rig.registry = process_handlers.registry
    return live_rig


@pytest.fixture
def lite(sqlite_url: str) -> Iterator[Rig]:
    """As `live`, on SQLite alone: for what the database has no part in."""
    store = Store.open(sqlite_url)
    rig = Rig(store)
    rig.registry = process_handlers.registry
    yield rig
    rig.close()
    store.close()


def started(rig: Rig, *, cancel_wait_ms: int = 10_000) -> Worker:
    """Start a worker with two slots and one process."""
    worker = rig.worker(
        concurrency=2, processes=1, lease_ms=LEASE_MS, cancel_wait_ms=cancel_wait_ms
    )
    worker.start()
    return worker


def enqueue(rig: Rig, task: str, folder: Path, **fields: Any) -> RunId:
    folder.mkdir(exist_ok=True)
    return rig.enqueue(task, json.dumps(str(folder)), **fields)


def process_of(folder: Path) -> int:
    """Wait until the handler was called, and return its process."""
    eventually((folder / "begun").exists, within=30)
    return int((folder / "begun").read_text())


def has_failed(rig: Rig, run_id: RunId) -> bool:
    return rig.state(run_id) is RunState.FAILED


def outlive(rig: Rig, run_id: RunId) -> None:
    """Wait until a lease was renewed three times."""
    seen: set[Any] = set()

    def renewed() -> bool:
        seen.add(rig.view(run_id).lease_expires_at)
        return len(seen) > 3

    eventually(renewed, within=30)


# -- cancelled, out of time, without a lease -----------------------------------------------------


def test_a_cancelled_handler_is_told(live: Rig, tmp_path: Path) -> None:
    run_id = enqueue(live, "listens", tmp_path)
    started(live)
    pid = process_of(tmp_path)

    live.cancel(run_id)

    eventually(lambda: live.state(run_id) is RunState.CANCELLED)
    assert (tmp_path / "cancelled").read_text() == "cancelled\n"
    assert is_running(pid)


@pytest.mark.parametrize("task", ["deaf", "holds the interpreter"])
def test_one_that_does_not_listen_is_killed_and_nothing_stays_stuck(
    lite: Rig, tmp_path: Path, task: str
) -> None:
    run_id = enqueue(lite, task, tmp_path)
    started(lite, cancel_wait_ms=100)
    pid = process_of(tmp_path)

    lite.cancel(run_id)

    eventually(lambda: lite.state(run_id) is RunState.CANCELLED)
    eventually(lambda: not is_running(pid))
    following = enqueue(lite, "echo", tmp_path)
    eventually(lambda: lite.state(following) is RunState.SUCCEEDED)
    assert lite.count(Metric.HANDLERS_STUCK) == 0


def test_one_whose_time_is_over_is_told_then_killed(lite: Rig, tmp_path: Path) -> None:
    told, deaf = tmp_path / "told", tmp_path / "deaf"
    first = enqueue(lite, "listens", told, retry=ONCE, timeout_ms=300)
    second = enqueue(lite, "deaf", deaf, retry=ONCE, timeout_ms=300)

    started(lite, cancel_wait_ms=100)

    pid = process_of(deaf)
    for run_id in (first, second):
        eventually(partial(has_failed, lite, run_id))
        assert lite.view(run_id).reason is Reason.TIMEOUT
    assert (told / "cancelled").read_text() == "timeout\n"
    eventually(lambda: not is_running(pid))


def test_the_deadline_of_a_run_ends_it_too(lite: Rig, tmp_path: Path) -> None:
    warm = enqueue(lite, "echo", tmp_path)
    started(lite)
    eventually(lambda: lite.state(warm) is RunState.SUCCEEDED)

    run_id = enqueue(lite, "listens", tmp_path, deadline_ms=1_000)

    eventually(lambda: lite.state(run_id) is RunState.FAILED)
    assert lite.view(run_id).reason is Reason.DEADLINE
    assert (tmp_path / "cancelled").read_text() == "deadline\n"


def test_one_whose_lease_was_taken_stores_nothing(live: Rig, tmp_path: Path) -> None:
    run_id = enqueue(live, "comes to a boundary", tmp_path)
    worker = started(live)
    process_of(tmp_path)
    (held,) = worker._parts.holdings.all()

    live.store.run(settle, [Entry(held.lease, TAKEN)], reach=live.lane.reach_ms)

    eventually((tmp_path / "lost").exists)
    eventually(lambda: not worker.busy())
    assert not (tmp_path / "late").exists()
    assert live.state(run_id) is RunState.SCHEDULED
    assert live.store.run(list_checkpoints, run_id=run_id) == []
    assert live.count(Metric.LEASES_LOST) == 1


# -- what waits for a process --------------------------------------------------------------------


def test_the_time_of_an_attempt_begins_with_its_call(lite: Rig, tmp_path: Path) -> None:
    ahead, behind = tmp_path / "ahead", tmp_path / "behind"
    enqueue(lite, "goes when let", ahead, priority=90)
    started(lite)
    process_of(ahead)
    run_id = enqueue(lite, "echo", behind, timeout_ms=500)
    eventually(lambda: lite.state(run_id) is RunState.RUNNING)

    outlive(lite, run_id)  # each renewal is a third of the lease later: longer than its time

    (ahead / "let go").touch()
    eventually(lambda: lite.state(run_id) is RunState.SUCCEEDED)
    assert lite.view(run_id).attempt == 1


def test_what_waits_is_cancelled_without_a_call(lite: Rig, tmp_path: Path) -> None:
    ahead, behind = tmp_path / "ahead", tmp_path / "behind"
    enqueue(lite, "goes when let", ahead, priority=90)
    worker = started(lite)
    process_of(ahead)
    cancelled = enqueue(lite, "deaf", behind)
    eventually(lambda: len(worker._parts.holdings.all()) == 2)

    lite.cancel(cancelled)

    eventually(lambda: lite.state(cancelled) is RunState.CANCELLED)
    overdue = enqueue(lite, "deaf", behind, deadline_ms=500)
    eventually(lambda: lite.state(overdue) is RunState.FAILED)
    assert lite.view(overdue).reason is Reason.DEADLINE
    assert not (behind / "begun").exists()
    (ahead / "let go").touch()


def test_what_waits_is_handed_back_as_soon_as_the_worker_stops(lite: Rig, tmp_path: Path) -> None:
    ahead, behind = tmp_path / "ahead", tmp_path / "behind"
    enqueue(lite, "goes when let", ahead, priority=90)
    worker = started(lite)
    process_of(ahead)
    run_id = enqueue(lite, "deaf", behind)
    eventually(lambda: len(worker._parts.holdings.all()) == 2)

    stopping = threading.Thread(target=worker.stop, args=(30,))
    stopping.start()

    eventually(lambda: lite.state(run_id) is RunState.READY)  # while the one ahead goes on
    assert stopping.is_alive()
    (ahead / "let go").touch()
    stopping.join(20)
    assert not (behind / "begun").exists()


# -- the worker's end ----------------------------------------------------------------------------


def test_a_handler_that_ends_by_itself_is_waited_for(live: Rig, tmp_path: Path) -> None:
    run_id = enqueue(live, "ends", tmp_path)
    worker = started(live)
    pid = process_of(tmp_path)

    assert worker.stop(20)

    assert live.view(run_id).result == '"shutdown"'
    assert not is_running(pid)


def test_one_that_swallows_what_ends_it_is_handed_back(live: Rig, tmp_path: Path) -> None:
    run_id = enqueue(live, "goes on without its boundary", tmp_path)
    worker = started(live)
    process_of(tmp_path)

    assert not worker.stop(20)

    view = live.view(run_id)
    assert (view.state, view.attempt, view.result) == (RunState.READY, 1, None)


@pytest.mark.parametrize("task", ["deaf", "holds the interpreter"])
def test_one_that_does_not_is_killed_before_its_run_is_handed_back(
    live: Rig, tmp_path: Path, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that its successor is alone: what a thread does goes on until its process ends."""
    run_id = enqueue(live, task, tmp_path)
    pid, seen = 0, []
    monkeypatch.setattr(live, "_publish", lambda hints: seen.append(is_running(pid)))
    worker = started(live)
    pid = process_of(tmp_path)

    assert not worker.stop(0)

    assert seen == [False]  # when the wakeup of the hand-back was sent
    view = live.view(run_id)
    assert (view.state, view.attempt) == (RunState.READY, 1)


def test_releasing_kills_too(lite: Rig, tmp_path: Path) -> None:
    run_id = enqueue(lite, "deaf", tmp_path)
    worker = started(lite)
    pid = process_of(tmp_path)

    assert worker.release_in_flight() == 1

    assert lite.state(run_id) is RunState.READY
    eventually(lambda: not is_running(pid))


@pytest.mark.parametrize("task", ["deaf", "deaf on the loop"])
def test_one_that_is_cancelled_just_before_its_call_is_not_called(
    lite: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    """Who ends handlers finds none yet: it must not begin afterwards and stay for ever."""
    original = Engine.dispatch

    def dispatch(self: Engine, activations: Sequence[Activation]) -> None:
        for each in activations:
            self._endings.cancel_asked(each)
        original(self, activations)

    warm = enqueue(lite, "echo", tmp_path)
    worker = started(lite, cancel_wait_ms=100)
    eventually(lambda: lite.state(warm) is RunState.SUCCEEDED)  # a process has nothing to do
    monkeypatch.setattr(Engine, "dispatch", dispatch)

    run_id = enqueue(lite, task, tmp_path, retry=ONCE)

    eventually(partial(has_failed, lite, run_id))
    assert lite.view(run_id).reason is Reason.CANCELLED
    eventually(lambda: worker._parts.slots.free == 2)
    assert not (tmp_path / "begun").exists()
