"""Signals and deaths of a worker whose handlers have processes: none of those outlives it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.runtime import process_handlers
from tests.runtime.rig import ENVIRONMENT, ROOT, Rig
from tests.support.eventually import eventually
from tests.support.processes import Processes, RunningProcess, is_running
from workhorse.domain.boundaries import NO_HISTORY
from workhorse.domain.ids import RunId, new_run_id
from workhorse.domain.retry import DEFAULT_RETRY
from workhorse.domain.runs import RunState
from workhorse.handlers.places import place_of
from workhorse.runtime.base import exits
from workhorse.runtime.execution.processes.frames import Begin, Frames, Prepare, Ready, to_child
from workhorse.store.base.database import Store

PROGRAM = "tests.runtime.process_program"


@pytest.fixture
def fleet(sqlite_url: str) -> Iterator[Rig]:
    """A store on a file, and the tasks of `process_handlers`."""
    store = Store.open(sqlite_url)
    rig = Rig(store)
    rig.registry = process_handlers.registry
    yield rig
    rig.close()
    store.close()


def start(
    processes: Processes, url: str, *, drain_ms: int = 20_000, lease_ms: int = 30_000
) -> RunningProcess:
    return processes.python(
        "-m", PROGRAM, url, str(drain_ms), str(lease_ms), env=ENVIRONMENT, cwd=ROOT
    )


def enqueue(rig: Rig, task: str, folder: Path) -> RunId:
    return rig.enqueue(task, json.dumps(str(folder)))


def process_of(worker: RunningProcess, folder: Path) -> int:
    """Wait until the handler was called, and return its process."""

    def called() -> bool:
        assert worker.exit_code is None, worker.output()
        return (folder / "begun").exists()

    eventually(called, within=30)
    return int((folder / "begun").read_text())


@pytest.mark.parametrize(
    ("number", "to_group"),
    [(signal.SIGTERM, False), (signal.SIGINT, True)],
    ids=["SIGTERM", "Ctrl-C"],
)
def test_case_4_a_handler_that_ends_by_itself_is_waited_for(
    fleet: Rig,
    processes: Processes,
    sqlite_url: str,
    tmp_path: Path,
    number: signal.Signals,
    to_group: bool,
) -> None:
    """Also where Ctrl-C reaches its process too: that leaves its end to the worker."""
    run_id = enqueue(fleet, "ends", tmp_path)
    worker = start(processes, sqlite_url)
    pid = process_of(worker, tmp_path)

    (worker.send_group if to_group else worker.send)(number)

    assert worker.wait() == exits.STOPPED
    assert fleet.view(run_id).result == '"shutdown"'
    assert not is_running(pid)


def test_case_4_a_signal_to_the_group_reaches_no_process_that_is_just_starting(
    fleet: Rig, processes: Processes, sqlite_url: str, tmp_path: Path
) -> None:
    run_id = enqueue(fleet, "ends", tmp_path)
    worker = start(processes, sqlite_url)
    worker.wait_for("process [0-9]+ of handlers was started")

    worker.send_group(signal.SIGINT)

    # What had no process yet is handed back; a process that was there is not hurt.
    assert worker.wait() in (exits.STOPPED, exits.HANDED_BACK)
    view = fleet.view(run_id)
    assert view.attempt == 1
    assert view.state in (RunState.READY, RunState.SUCCEEDED)
    assert "has ended" not in worker.output()


def test_case_4_at_the_end_of_the_drain_a_handler_is_told_and_handed_back(
    fleet: Rig, processes: Processes, sqlite_url: str, tmp_path: Path
) -> None:
    run_id = enqueue(fleet, "listens", tmp_path)
    worker = start(processes, sqlite_url, drain_ms=200)
    process_of(worker, tmp_path)

    worker.send(signal.SIGTERM)

    assert worker.wait() == exits.HANDED_BACK
    worker.wait_for(f"published {run_id}")
    assert (tmp_path / "cancelled").read_text() == "shutdown\n"
    view = fleet.view(run_id)
    assert (view.state, view.attempt) == (RunState.READY, 1)


def test_case_4_a_busy_handler_does_not_keep_the_worker_and_goes_with_it(
    fleet: Rig, processes: Processes, sqlite_url: str, tmp_path: Path
) -> None:
    run_id = enqueue(fleet, "holds the interpreter", tmp_path)
    worker = start(processes, sqlite_url, drain_ms=100)
    pid = process_of(worker, tmp_path)
    began = time.monotonic()

    worker.send(signal.SIGTERM)

    assert worker.wait() == exits.HANDED_BACK
    assert time.monotonic() - began < 10
    assert not is_running(pid)
    view = fleet.view(run_id)
    assert (view.state, view.attempt) == (RunState.READY, 1)


def test_case_4_a_second_signal_ends_all_of_them_at_once(
    fleet: Rig, processes: Processes, sqlite_url: str, tmp_path: Path
) -> None:
    run_id = enqueue(fleet, "holds the interpreter", tmp_path)
    worker = start(processes, sqlite_url)
    pid = process_of(worker, tmp_path)
    worker.send(signal.SIGTERM)
    worker.wait_for("it stops")

    def ended() -> bool:
        worker.send(signal.SIGINT)
        return worker.exit_code is not None

    eventually(ended, every=0.05)
    assert worker.wait() == exits.FORCED
    eventually(lambda: not is_running(pid))
    assert fleet.state(run_id) is RunState.RUNNING


def test_case_4_processes_do_not_outlive_a_worker_that_is_killed(
    fleet: Rig, processes: Processes, sqlite_url: str, tmp_path: Path
) -> None:
    enqueue(fleet, "holds the interpreter", tmp_path)
    worker = start(processes, sqlite_url)
    pid = process_of(worker, tmp_path)

    worker.send(signal.SIGKILL)

    assert worker.wait() == -signal.SIGKILL
    eventually(lambda: not is_running(pid))


def test_case_4_under_a_shell_that_waits_for_it(
    fleet: Rig, processes: Processes, sqlite_url: str, tmp_path: Path
) -> None:
    run_id = enqueue(fleet, "ends", tmp_path)
    line = f'"{sys.executable}" -m {PROGRAM} "{sqlite_url}" 20000; echo "code $?"'
    shell = processes.start("sh", "-c", f"trap : TERM; {line}", env=ENVIRONMENT, cwd=ROOT)
    pid = process_of(shell, tmp_path)

    shell.send_group(signal.SIGTERM)

    shell.wait_for("^code 0$")
    assert fleet.state(run_id) is RunState.SUCCEEDED
    assert not is_running(pid)


def test_case_4_as_process_1(
    fleet: Rig, processes: Processes, sqlite_url: str, tmp_path: Path
) -> None:
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("the program unshare is not installed; install util-linux")
    probe = processes.start(unshare, "--user", "--map-root-user", "--pid", "--fork", "true")
    if probe.wait() != 0:
        pytest.skip("this system gives no namespaces; run as root, or allow user namespaces")
    run_id = enqueue(fleet, "ends", tmp_path)
    worker = processes.start(
        unshare, "--user", "--map-root-user", "--pid", "--fork",
        sys.executable, "-m", PROGRAM, sqlite_url, "20000",
        env=ENVIRONMENT, cwd=ROOT,
    )  # fmt: skip
    process_of(worker, tmp_path)

    worker.send_group(signal.SIGTERM)

    worker.wait_for(f"^exit {exits.STOPPED}")
    assert fleet.state(run_id) is RunState.SUCCEEDED


def test_case_12_a_process_that_holds_its_interpreter_keeps_its_lease(
    fleet: Rig, processes: Processes, sqlite_url: str, tmp_path: Path
) -> None:
    """A thread that does so keeps the renewals from their work; a process only itself."""
    run_id = enqueue(fleet, "holds the interpreter", tmp_path)
    worker = start(processes, sqlite_url, lease_ms=1_500)
    process_of(worker, tmp_path)
    seen: set[Any] = set()

    def renewed() -> bool:
        view = fleet.view(run_id)
        assert view.state is RunState.RUNNING
        seen.add(view.lease_expires_at)
        return len(seen) > 4  # longer than its length

    eventually(renewed, within=30)
    assert fleet.view(run_id).fence == 1
    assert "lease" not in worker.output()


# -- a process by itself -------------------------------------------------------------------------

BOOT = """
import sys
from workhorse.runtime.execution.processes import child, tether
tether._die_with_parent = lambda: print("the kernel is not asked", flush=True)
child.main({fd}, {worker})
"""


def alone(line: socket.socket, *, worker: int) -> subprocess.Popen[bytes]:
    """Start a process by hand, on a system whose kernel does not end it with its worker."""
    return subprocess.Popen(
        [sys.executable, "-c", BOOT.format(fd=line.fileno(), worker=worker)],
        pass_fds=[line.fileno()],
        stdout=subprocess.DEVNULL,
        cwd=ROOT,
        env=ENVIRONMENT,
    )


def test_a_process_ends_with_the_line_to_its_worker(tmp_path: Path) -> None:
    """Where the kernel does not see to it, also while a handler is at work."""
    place = place_of(process_handlers.deaf)
    now = datetime.now(UTC)
    begin = Begin(
        place=place, now=now, run_id=new_run_id(), task="deaf", queue="default",
        payload=json.dumps(str(tmp_path)), attempt=1, fence=1, retry=DEFAULT_RETRY, session=None,
        tags=(), key=None, created_at=now, started_at=now, traceparent=None, history=NO_HISTORY,
    )  # fmt: skip
    ours, theirs = socket.socketpair()
    with theirs:
        process = alone(theirs, worker=os.getpid())
    with process:
        with ours:
            ours.settimeout(30)
            ours.sendall(to_child(Prepare(places=(place,))))
            (ready,) = Frames("from_child").feed(ours.recv(1_000))
            assert isinstance(ready, Ready)
            ours.sendall(to_child(begin))
            eventually((tmp_path / "begun").exists)
        assert process.wait(20) == 1


def test_a_process_that_is_idle_leaves_in_order() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        process = alone(theirs, worker=os.getpid())
    with process:
        ours.close()
        assert process.wait(20) == 0


def test_a_process_whose_worker_has_died_before_it_began_ends() -> None:
    ours, theirs = socket.socketpair()
    with theirs, ours, alone(theirs, worker=1) as process:
        assert process.wait(20) == 1
