"""Signals, with real processes: nothing new is claimed, handlers are told, leases are given up."""

from __future__ import annotations

import random
import shutil
import signal
import sys
import threading
import time
from datetime import timedelta

import pytest

from tests.runtime.rig import ENVIRONMENT, ROOT, Rig, start_program
from tests.support.eventually import eventually
from tests.support.processes import Processes
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import Reason, RunState
from workhorse.runtime.base import exits
from workhorse.store.lifecycle.sweeping import recover


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_case_4_a_handler_that_ends_by_itself_is_waited_for(
    fleet: Rig, processes: Processes, sqlite_url: str, number: signal.Signals
) -> None:
    run_id = fleet.enqueue("plain.ends")
    process = start_program(processes, sqlite_url)
    process.wait_for(f"started {run_id}")

    process.send(number)
    process.wait_for(f"stopping {run_id}")

    assert process.wait() == exits.STOPPED
    assert fleet.state(run_id) is RunState.SUCCEEDED


@pytest.mark.parametrize("task", ["plain.listens", "async.waits"])
def test_case_4_at_the_end_of_the_drain_handlers_are_told_and_handed_back(
    fleet: Rig, processes: Processes, sqlite_url: str, task: str
) -> None:
    run_id = fleet.enqueue(task)
    process = start_program(processes, sqlite_url, drain_ms=200)
    process.wait_for(f"started {run_id}")

    process.send(signal.SIGTERM)
    process.wait_for(f"cancelled {run_id}")

    assert process.wait() == exits.HANDED_BACK
    process.wait_for(f"published {run_id}")
    view = fleet.view(run_id)
    assert (view.state, view.attempt) == (RunState.READY, 1)


@pytest.mark.parametrize("task", ["plain.deaf", "async.deaf", "async.blocks"])
def test_case_4_a_handler_that_does_not_stop_does_not_keep_the_process(
    fleet: Rig, processes: Processes, sqlite_url: str, task: str
) -> None:
    run_id = fleet.enqueue(task)
    process = start_program(processes, sqlite_url, drain_ms=100)
    process.wait_for(f"started {run_id}")
    began = time.monotonic()

    process.send(signal.SIGTERM)

    assert process.wait() == exits.HANDED_BACK
    assert time.monotonic() - began < 25
    view = fleet.view(run_id)
    assert (view.state, view.attempt) == (RunState.READY, 1)


def test_case_4_the_backstop_ends_a_process_that_hangs_at_its_exit(
    fleet: Rig, processes: Processes, sqlite_url: str
) -> None:
    """A thread that Python itself would wait for; the run is handed back before."""
    run_id = fleet.enqueue("async.thread")
    process = start_program(processes, sqlite_url, drain_ms=100)
    process.wait_for(f"started {run_id}")

    process.send(signal.SIGTERM)

    assert process.wait() == exits.BACKSTOP
    process.wait_for(f"^exit {exits.HANDED_BACK}")
    assert fleet.state(run_id) is RunState.READY


def test_case_4_a_second_signal_ends_the_process_at_once(
    fleet: Rig, processes: Processes, sqlite_url: str
) -> None:
    run_id = fleet.enqueue("plain.deaf")
    process = start_program(processes, sqlite_url)
    process.wait_for(f"started {run_id}")
    process.send(signal.SIGTERM)
    process.wait_for("it stops")
    process.send(signal.SIGTERM)  # an echo of the first: it changes nothing
    began = time.monotonic()

    while process.exit_code is None and time.monotonic() - began < 18:
        process.send(signal.SIGINT)
        _short_rest()

    assert process.wait() == exits.FORCED
    assert fleet.state(run_id) is RunState.RUNNING
    assert 0.5 < time.monotonic() - began < 18  # the drain is 20 s


def _short_rest() -> None:
    threading.Event().wait(0.05)


def test_case_4_nothing_is_claimed_after_the_first_signal(
    fleet: Rig, processes: Processes, sqlite_url: str
) -> None:
    run_id = fleet.enqueue("plain.listens")
    process = start_program(processes, sqlite_url, drain_ms=1_500)
    process.wait_for(f"started {run_id}")
    process.send(signal.SIGTERM)
    process.wait_for("it stops")

    late = fleet.enqueue("light")

    assert process.wait() == exits.HANDED_BACK
    assert fleet.state(late) is RunState.READY


def test_case_4_under_a_shell_that_waits_for_it(
    fleet: Rig, processes: Processes, sqlite_url: str
) -> None:
    """The group gets the signal, as from a terminal or `docker stop` with an init."""
    run_id = fleet.enqueue("plain.ends")
    line = f'"{sys.executable}" -m tests.runtime.program "{sqlite_url}" 20000; echo "code $?"'
    process = processes.start("sh", "-c", f"trap : TERM; {line}", env=ENVIRONMENT, cwd=ROOT)
    process.wait_for(f"started {run_id}")

    process.send_group(signal.SIGTERM)

    process.wait_for("^code 0$")
    assert fleet.state(run_id) is RunState.SUCCEEDED


def test_case_4_as_process_1(fleet: Rig, processes: Processes, sqlite_url: str) -> None:
    """Where no handler is set, process 1 of a container gets no SIGTERM at all."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("the program unshare is not installed; install util-linux")
    probe = processes.start(unshare, "--user", "--map-root-user", "--pid", "--fork", "true")
    if probe.wait() != 0:
        pytest.skip("this system gives no namespaces; run as root, or allow user namespaces")
    run_id = fleet.enqueue("plain.ends")
    process = processes.start(
        unshare, "--user", "--map-root-user", "--pid", "--fork",
        sys.executable, "-c", _AS_PROCESS_1, sqlite_url, "20000",
        env=ENVIRONMENT, cwd=ROOT,
    )  # fmt: skip
    process.wait_for("^pid 1$")
    process.wait_for(f"started {run_id}")

    process.send_group(signal.SIGTERM)

    process.wait_for(f"^exit {exits.STOPPED}")
    assert fleet.state(run_id) is RunState.SUCCEEDED


_AS_PROCESS_1 = """
import os, sys
from tests.runtime.program import main
print("pid", os.getpid(), flush=True)
sys.exit(main(*sys.argv[1:]))
"""


def test_case_6_a_run_that_kills_its_process_ends_after_its_attempts(
    fleet: Rig, processes: Processes, sqlite_url: str
) -> None:
    """Each lost lease spends an attempt; the runs behind it go on."""
    at_once = timedelta(0)
    policy = RetryPolicy(max_attempts=3, first=at_once)
    deadly = fleet.enqueue("kills", retry=policy, priority=100)
    behind = fleet.enqueue_many("light", 5, retry=RetryPolicy(first=at_once))
    for attempt in (1, 2, 3):
        process = start_program(processes, sqlite_url, lease_ms=1_000)
        process.wait_for(f"started {deadly} {attempt}")
        assert process.wait() == -signal.SIGKILL

        def recovered(attempt: int = attempt) -> bool:
            fleet.store.run(recover, reach=fleet.lane.reach_ms, draw=random.Random(1))
            view = fleet.view(deadly)
            return view.state.finished or view.attempt > attempt

        eventually(recovered)

    start_program(processes, sqlite_url, lease_ms=1_000)

    def all_done() -> bool:
        # A light run may have been claimed after the deadly one: its lease then ends later.
        fleet.store.run(recover, reach=fleet.lane.reach_ms, draw=random.Random(1))
        return all(fleet.state(run_id) is RunState.SUCCEEDED for run_id in behind)

    eventually(all_done)
    view = fleet.view(deadly)
    assert (view.state, view.reason, view.attempt) == (RunState.FAILED, Reason.LOST, 3)


def test_case_4_a_signal_may_come_at_any_moment(processes: Processes) -> None:
    """Also while the main thread holds a lock of what it waits with."""
    program = """
import os, signal, threading
from workhorse.runtime.base.options import Shutdown
from workhorse.runtime.process.signals import Signals

threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
wait = threading.Condition.wait

def wait_and_get_a_signal(self, timeout=None):
    if threading.current_thread() is threading.main_thread():
        threading.Condition.wait = wait
        os.kill(os.getpid(), signal.SIGTERM)
    return wait(self, timeout)

with Signals(Shutdown()) as signals:
    threading.Condition.wait = wait_and_get_a_signal
    signals.wait()
signals.disarm()
"""
    assert processes.python("-c", program, env=ENVIRONMENT).wait(within=20) == 0


def test_case_4_a_signal_that_interrupts_nothing_is_noticed_all_the_same(
    processes: Processes,
) -> None:
    """It reached another thread, or came just before the wait: the main thread sleeps on."""
    process = processes.python(
        "-c",
        "import signal, threading\n"
        "from workhorse.runtime.base.options import Shutdown\n"
        "from workhorse.runtime.process.signals import Signals\n"
        "with Signals(Shutdown()) as signals:\n"
        "    def send():\n"
        "        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)\n"
        "    threading.Timer(0.3, send).start()\n"
        "    signals.wait()\n"
        "    print('noticed', signals.received.name, flush=True)\n"
        "    signals.disarm()\n",
    )

    process.wait_for("^noticed SIGTERM", within=15)
    assert process.wait() == 0
