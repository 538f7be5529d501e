"""`make local-up`, the README's first program against it as written, `make local-down`."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.docs.test_code_blocks import ROOT, blocks
from tests.support.emulators import chosen, need
from tests.support.eventually import eventually
from tests.support.processes import Processes
from tools.local import MARK, Local, marked, started_at

QUICKSTART = [block for block in blocks(ROOT / "README.md") if block.kind == "sh"]
PROGRAMS = [block for block in blocks(ROOT / "README.md") if block.name]


class Place:
    """A local environment of the test's own, and the commands that a person types."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "local"
        self.work = folder / "work"
        self.work.mkdir()
        # As a person's shell, who may well have other settings of AWS in it.
        ours = re.compile(r"AWS_|WORKHORSE_|PYTEST|MAKE|MFLAGS|COV")
        kept = {name: text for name, text in os.environ.items() if not ours.match(name)}
        self.environment = kept | {"AWS_PROFILE": "elsewhere", "LC_ALL": "C.UTF-8"}

    def make(self, target: str, **variables: str) -> str:
        given = [f"{name}={text}" for name, text in variables.items()]
        return self.run("make", "--no-print-directory", target, f"LOCAL={self.folder}", *given)

    def sh(self, script: str) -> str:
        """Run a script in a shell that has read the settings."""
        script = f". {self.folder / 'env'}\n{script}"
        return self.run("bash", "-euo", "pipefail", "-c", script, cwd=self.work)

    def run(self, *command: str, cwd: Path = ROOT) -> str:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    Local(made.folder).down()


def _listens(url: str) -> bool:
    parts = urlsplit(url)
    with socket.socket() as probe:
        return probe.connect_ex((parts.hostname or "", parts.port or 0)) == 0


@pytest.mark.parametrize("emulator", chosen())
def test_the_readme_s_program_runs_against_it_as_written(place: Place, emulator: str) -> None:
    need(emulator)
    place.make("local-up", EMULATOR=emulator, QUEUES="mails,orders")
    state = json.loads((place.folder / "state.json").read_text())
    assert len(marked(state["mark"])) >= 2

    for program in PROGRAMS:
        assert program.name
        (place.work / program.name).write_text(program.text)
    told = "".join(place.sh(block.text) for block in QUICKSTART)
    assert "card service: order 42 is charged" in told
    # Its wakeups went through the queue, and the store is the server that was started.
    told = place.sh('python orders.py; echo "$WORKHORSE_LANE $WORKHORSE_DATABASE_URL"')
    assert told.endswith(f"sqs {state['database_url']}\n")

    def is_well() -> bool:
        told = place.sh("WORKHORSE_QUEUES=default,mails,orders workhorse --json doctor || true")
        codes = {each["code"] for each in json.loads(told)["findings"]}
        assert {"store_ok", "queues_ok"} <= codes
        return True

    eventually(is_well, within=60)  # a look may take 10 s, which a busy machine can exceed

    assert "up already" in place.make("local-up")
    assert json.loads((place.folder / "state.json").read_text()) == state
    assert _listens(state["url"])

    place.make("local-down")
    assert marked(state["mark"]) == []
    assert [started_at(process["pid"]) for process in state["processes"]] == [None, None]
    assert not _listens(state["url"])
    assert not place.folder.exists()
    assert [folder for folder in state["folders"] if Path(folder).exists()] == []
    assert "nothing is up" in place.make("local-down")


def test_what_has_ended_meanwhile_is_started_anew(place: Place) -> None:
    need("moto")
    place.make("local-up", EMULATOR="moto")
    first = json.loads((place.folder / "state.json").read_text())
    os.kill(first["processes"][0]["pid"], signal.SIGKILL)
    eventually(lambda: started_at(first["processes"][0]["pid"]) is None)

    assert "started anew" in place.make("local-up", EMULATOR="moto")

    second = json.loads((place.folder / "state.json").read_text())
    assert marked(first["mark"]) == []
    assert all(started_at(process["pid"]) == process["since"] for process in second["processes"])


def test_a_process_that_has_taken_an_id_over_is_left_alone(
    place: Place, processes: Processes
) -> None:
    """The ids that were written down may be somebody else's by now."""
    other = processes.start("sleep", "300")
    place.folder.mkdir()
    process = {"what": "x", "pid": other.pid, "since": 1, "ends_by": int(signal.SIGKILL)}
    state = {"mark": "m", "emulator": "moto", "processes": [process]}
    (place.folder / "state.json").write_text(json.dumps(state))

    place.make("local-down")

    assert other.exit_code is None
    assert not place.folder.exists()


@pytest.mark.parametrize("running", [1, 3], ids=["early", "late"])
@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM", "SIGINT"])
def test_nothing_is_left_of_a_start_that_was_broken_off(
    place: Place, processes: Processes, how: str, running: int
) -> None:
    """Early the emulator alone has been started, late the guardian and PostgreSQL too."""
    need("moto")
    starting = processes.python(
        "-m", "tools.local", "up", env={"LOCAL": str(place.folder), "EMULATOR": "moto"}
    )

    def mark() -> str:
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if Path(os.readlink(entry / "cwd")).is_relative_to(place.folder):
                    found = re.search(rf"{MARK}=(\w+)", (entry / "environ").read_text())
                    return found[1] if found else ""
            except OSError:
                continue
        return ""

    made = eventually(mark, within=60)
    eventually(lambda: len(marked(made)) >= running, within=60)
    starting.send(signal.Signals[how])
    starting.wait(within=60)
    eventually(lambda: marked(made) == [], within=60)
    assert not (place.folder / "state.json").exists()
    assert not (place.folder / "env").exists()


def test_ctrl_c_while_modules_are_imported_shows_no_traceback(
    place: Place, processes: Processes, tmp_path: Path
) -> None:
    """It takes half a second in which nothing is started; who changes his mind then, may."""
    long = "import threading\nprint('importing', flush=True)\nthreading.Event().wait(60)\n"
    (tmp_path / "secrets.py").write_text(long)  # in the place of the library's
    starting = processes.python(
        "-m",
        "tools.local",
        "up",
        env={"LOCAL": str(place.folder), "EMULATOR": "moto", "PYTHONPATH": str(tmp_path)},
    )
    starting.wait_for("^importing")

    starting.send(signal.SIGINT)

    assert starting.wait(within=60) == -signal.SIGINT
    assert starting.output().splitlines() == ["importing"]


def test_an_emulator_that_is_none_is_named(place: Place) -> None:
    with pytest.raises(AssertionError, match="EMULATOR=localstak: there are localstack, ministack"):
        place.make("local-up", EMULATOR="localstak")
    assert not (place.folder / "state.json").exists()


def test_a_queue_that_no_run_can_name_is_refused(place: Place) -> None:
    with pytest.raises(AssertionError, match="queue 'Mails' is not a name of 1 to 60 characters"):
        place.make("local-up", QUEUES="orders,Mails")
    assert not (place.folder / "state.json").exists()


@pytest.mark.parametrize("text", ["", "[]", '{"processes": [{}]}', '{"processes": []}'])
@pytest.mark.parametrize("target", ["local-up", "local-down"])
def test_a_state_that_cannot_be_read_is_told(place: Place, target: str, text: str) -> None:
    """After a power cut, or a change of versions; nothing is started beside what may run."""
    place.folder.mkdir()
    (place.folder / "state.json").write_text(text)
    with pytest.raises(AssertionError, match=r"state\.json is not what `make local-up` writes"):
        place.make(target)
    (place.folder / "state.json").unlink()


def test_what_a_person_has_installed_is_what_is_used(place: Place) -> None:
    """Reading the settings puts `workhorse` on the PATH, but not before one's own."""
    need("moto")
    told = place.make("local-up", EMULATOR="moto")
    assert f"make local-down LOCAL={place.folder}" in told
    mine = place.work / "mine" / "bin"
    mine.mkdir(parents=True)
    (mine / "workhorse").write_text("#!/bin/sh\n")
    (mine / "workhorse").chmod(0o755)

    which = "command -v workhorse"
    assert place.sh(which) == f"{Path(sys.executable).parent / 'workhorse'}\n"
    place.environment |= {"VIRTUAL_ENV": str(mine.parent), "PATH": f"{mine}:{os.environ['PATH']}"}
    assert place.sh(which) == f"{mine / 'workhorse'}\n"
