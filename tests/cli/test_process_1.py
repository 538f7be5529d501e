"""The commands as process 1 of a container, and under a shell: signals reach them and work."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine
from tests.support.eventually import eventually
from tests.support.ports import free_port
from tests.support.processes import Processes, RunningProcess
from workhorse import probe
from workhorse.domain.runs import RunState
from workhorse.runtime.base import exits

SLOW = """
import os, threading
from datetime import timedelta
from workhorse import Context, Workhorse

app = Workhorse()

@app.task()
def ends(ctx: Context) -> str:
    print(f"under way in process {os.getpid()}\\n", end="", flush=True)
    assert ctx.stopping.wait(60)
    return "by itself"

@app.task()
def deaf() -> None:
    print(f"under way in process {os.getpid()}\\n", end="", flush=True)
    threading.Event().wait(60)
"""

LONG_IMPORT = """
import threading
print("importing", flush=True)
threading.Event().wait(60)
"""


class Container:
    """Starts commands as process 1, and sends signals as a container's runtime does."""

    def __init__(self, processes: Processes, folder: Path, unshare: str) -> None:
        self._processes = processes
        self._folder = folder
        self._unshare = unshare

    def start(self, *words: str, env: dict[str, str | None] | None = None) -> RunningProcess:
        return self._processes.start(
            self._unshare, "--user", "--map-root-user", "--pid", "--fork", "--mount-proc",
            "--kill-child", *words, cwd=self._folder, env=env,
        )  # fmt: skip

    def workhorse(self, *words: str) -> RunningProcess:
        return self.start(sys.executable, "-m", "workhorse.cli", *words)

    def send(self, process: RunningProcess, number: signal.Signals) -> None:
        """Send a signal to process 1, from outside of its namespace."""
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert len(children) == 1, children
        os.kill(int(children[0]), number)


@pytest.fixture
def container(cli: CommandLine, processes: Processes) -> Container:
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("the program unshare is not installed; install util-linux")
    container = Container(processes, cli.folder, unshare)
    if container.start("true").wait() != 0:
        pytest.skip("this system gives no namespaces; run as root, or allow user namespaces")
    (cli.folder / "slow.py").write_text(SLOW)
    (cli.folder / "long.py").write_text(LONG_IMPORT)
    return container


def _state(cli: CommandLine, run_id: str) -> str:
    state: str = cli.ok("runs", "show", run_id, "--json").json["state"]
    return state


def _enqueue(cli: CommandLine, task: str) -> str:
    run_id: str = cli.ok("--app", "slow:app", "enqueue", task, "--json").json["id"]
    return run_id


def test_a_worker_as_process_1_ends_its_runs_and_stops(
    cli: CommandLine, container: Container
) -> None:
    run_id = _enqueue(cli, "ends")
    worker = container.workhorse("--app", "slow:app", "worker")
    worker.wait_for("^under way in process 1$")

    container.send(worker, signal.SIGTERM)

    assert worker.wait() == exits.STOPPED
    assert _state(cli, run_id) == RunState.SUCCEEDED


def test_a_worker_as_process_1_hands_back_what_does_not_end(
    cli: CommandLine, container: Container
) -> None:
    run_id = _enqueue(cli, "deaf")
    worker = container.workhorse("--app", "slow:app", "worker", "--drain-seconds", "0.1")
    worker.wait_for("^under way")

    container.send(worker, signal.SIGTERM)

    assert worker.wait() == exits.HANDED_BACK
    assert _state(cli, run_id) == RunState.READY


def test_a_second_signal_ends_process_1_at_once(cli: CommandLine, container: Container) -> None:
    _enqueue(cli, "deaf")
    worker = container.workhorse("--app", "slow:app", "worker")
    worker.wait_for("^under way")
    container.send(worker, signal.SIGTERM)
    worker.wait_for("it stops")

    def forced() -> bool:
        if worker.exit_code is None:
            container.send(worker, signal.SIGTERM)
        return worker.exit_code == exits.FORCED

    eventually(forced, within=20, every=0.2)


@pytest.mark.parametrize("command", ["worker", "maintain"])
def test_a_signal_while_modules_are_imported_is_not_lost_to_process_1(
    container: Container, command: str
) -> None:
    process = container.workhorse("--app", "long:app", command)
    process.wait_for("^importing")

    container.send(process, signal.SIGTERM)

    assert process.wait(within=15) == 128 + signal.SIGTERM


def test_maintenance_as_process_1_answers_and_stops(container: Container, cli: CommandLine) -> None:
    port = free_port()
    process = container.workhorse("maintain", "--health-port", str(port))
    eventually(lambda: probe.main(["--ready", "--port", str(port)], {}) == 0, within=30, every=0.1)

    container.send(process, signal.SIGTERM)

    assert process.wait(within=15) == 0


def test_case_4_under_a_shell_that_gives_its_place_to_the_worker(
    cli: CommandLine, container: Container
) -> None:
    """As an image's command in shell form should; a shell that stays keeps the signal to itself."""
    run_id = _enqueue(cli, "ends")
    command = f'exec "{sys.executable}" -m workhorse.cli --app slow:app worker'
    worker = container.start("sh", "-c", command)
    worker.wait_for("^under way in process 1$")

    container.send(worker, signal.SIGTERM)

    assert worker.wait() == exits.STOPPED
    assert _state(cli, run_id) == RunState.SUCCEEDED


def test_the_worker_s_processes_go_with_process_1(cli: CommandLine, container: Container) -> None:
    """Children do not outlive the parent: the kernel ends what is left in the namespace."""
    (cli.folder / "apart.py").write_text(
        "import os, time\n"
        "from workhorse import Workhorse\n"
        "app = Workhorse(drain_seconds=0.1)\n"
        "@app.task(executor='process')\n"
        "def apart():\n"
        "    print(f'in process {os.getpid()}\\n', end='', flush=True)\n"
        "    time.sleep(60)\n"
    )
    run_id = cli.ok("--app", "apart:app", "enqueue", "apart", "--json").json["id"]
    worker = container.workhorse("--app", "apart:app", "worker")
    worker.wait_for("^in process")
    container.send(worker, signal.SIGTERM)

    assert worker.wait() == exits.HANDED_BACK
    assert _state(cli, run_id) == RunState.READY
