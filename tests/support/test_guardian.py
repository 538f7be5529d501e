"""What the tests start ends with them, also when they are killed."""

import os
import re
import signal
import sys
import textwrap
from pathlib import Path

from tests.support.eventually import eventually
from tests.support.processes import Processes


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A process that nobody has waited for yet has ended all the same.
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def _killed_test_process(processes: Processes, program: str) -> dict[str, str]:
    """Run a program that prints name=value lines and then sleeps; kill it alone with SIGKILL."""
    process = processes.python("-c", textwrap.dedent(program) + "\nimport time; time.sleep(300)\n")
    process.wait_for("^ready$")
    told = dict(re.findall(r"^(\w+)=(.*)$", process.output(), re.MULTILINE))
    process.send(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    return told


def test_processes_of_a_killed_test_end_with_it(processes: Processes) -> None:
    told = _killed_test_process(
        processes,
        """
        import sys
        from tests.support.processes import RunningProcess
        child = RunningProcess([sys.executable, "-c", "import time; time.sleep(300)"])
        print(f"child={child.pid}\\nready")
        """,
    )

    eventually(lambda: not _alive(int(told["child"])))


def test_the_server_of_a_killed_test_ends_with_it_and_leaves_no_folder(
    processes: Processes,
) -> None:
    told = _killed_test_process(
        processes,
        """
        from tests.support.postgres import PostgresServer
        server = PostgresServer()
        print(f"folder={server.folder}")
        print(f"server={(server.data / 'postmaster.pid').read_text().split()[0]}\\nready")
        """,
    )

    eventually(lambda: not _alive(int(told["server"])))
    eventually(lambda: not Path(told["folder"]).exists())


def test_what_was_released_is_left_alone(processes: Processes, tmp_path: Path) -> None:
    kept, removed = tmp_path / "kept", tmp_path / "removed"
    kept.mkdir()
    removed.mkdir()

    _killed_test_process(
        processes,
        f"""
        from pathlib import Path
        from tests.support.guardian import guardian
        for folder in ({str(kept)!r}, {str(removed)!r}):
            guardian().watch_folder(Path(folder))
        guardian().release_folder(Path({str(kept)!r}))
        print("ready")
        """,
    )

    eventually(lambda: not removed.exists())
    assert kept.exists()


def test_a_process_is_ended_with_all_that_it_started(processes: Processes) -> None:
    parent = processes.python(
        "-c",
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([{sys.executable!r}, '-c', 'import time; time.sleep(300)'])\n"
        "print('child', child.pid)\n"
        "time.sleep(300)",
    )
    child = int(parent.wait_for(r"^child (\d+)$")[1])

    parent.kill()

    eventually(lambda: not _alive(child))
