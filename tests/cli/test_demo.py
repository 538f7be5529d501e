"""The demo as a real process: what it proves, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.eventually import eventually
from tests.support.processes import Processes, RunningProcess
from workhorse.cli import exits
from workhorse.cli.demo import shop, story
from workhorse.cli.demo.reckoning import Reckoning
from workhorse.cli.demo.running import run_demo
from workhorse.cli.rendering import Renderer

LAST = re.compile(
    r"demo: (\d+) runs, (\d+) succeeded, (\d+) recovered, (\d+) retried, "
    r"(\d+) stale wakeups ignored"
)
# Nothing of this may reach the demo: it has parts of its own.
SURROUNDINGS = {
    "WORKHORSE_DATABASE_URL": "postgresql://nobody@203.0.113.1/none",
    "WORKHORSE_ENVIRONMENT": "production",
    "WORKHORSE_LANE": "pigeon",
    "WORKHORSE_CONCURRENCY": "many",
    "AWS_ENDPOINT_URL": "http://203.0.113.1",
    "HTTP_PROXY": "http://203.0.113.1:3128",
    "http_proxy": "http://203.0.113.1:3128",
}


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """The folder that the demo takes for temporary files, watched for what is left in it."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    return folder


def start(processes: Processes, temporary: Path, *arguments: str) -> RunningProcess:
    return processes.python(
        "-m", "workhorse.cli", "demo", *arguments, env={**SURROUNDINGS, "TMPDIR": str(temporary)}
    )


def left_behind(temporary: Path) -> list[str]:
    """Return the processes that work in the folder, and the files in it."""
    told = subprocess.run(["ps", "-eo", "pid="], capture_output=True, text=True, check=True)
    found = [str(path) for path in temporary.iterdir()]
    for pid in told.stdout.split():
        try:
            if os.readlink(f"/proc/{pid}/cwd").startswith(str(temporary)):
                found.append(f"process {pid}")
        except OSError:
            continue
    return found


def test_a_demo_adds_up_and_leaves_nothing_behind(processes: Processes, temporary: Path) -> None:
    demo = start(processes, temporary)

    assert demo.wait(within=150) == 0, demo.output()

    lines = demo.output().splitlines()
    (last,) = (LAST.fullmatch(line) for line in lines if line.startswith("demo: "))
    assert last is not None
    assert last[0] == lines[-1]
    check_figures(*map(int, last.groups()))
    assert "SIGKILL while it holds" in demo.output()
    assert "SIGKILL for all 3 workers" in demo.output()
    assert "a message that names no run is sent" in demo.output()
    assert "Ada approves order 16" in demo.output()
    assert re.search(r"order \d+ is delivered: delivered; told again: duplicate", demo.output())
    assert re.search(r"delivery  review +human, value, .*by Ada", demo.output())
    assert re.search(r"^books: \d+ effects, each with its checkpoint", demo.output(), re.MULTILINE)
    assert "\x1b" not in demo.output()
    assert left_behind(temporary) == []


def test_a_demo_needs_no_broker_and_prints_for_programs_too(
    processes: Processes, temporary: Path
) -> None:
    demo = start(processes, temporary, "--lane", "polling", "--json")

    assert demo.wait(within=150) == 0, demo.output()

    *told, summary = (json.loads(line) for line in demo.output().splitlines())
    assert {line["event"] for line in told} == {"said", "timeline", "books"}
    (timeline,) = (line["entries"] for line in told if line["event"] == "timeline")
    assert [timeline[0]["what"], timeline[-1]["state"]] == ["created", "succeeded"]
    assert summary.pop("event") == "summary"
    assert summary.pop("problems") == []
    # Of 16 parcels one is refused and refunded; a parcel has six effects, and what is collected
    # has three and an item of the shelf.
    assert summary.pop("effects") == 15 * 6 + 2 + 8 * 3
    assert summary.pop("taken") == 8
    assert summary.pop("repeated") <= summary["recovered"]
    assert summary.pop("pauses") >= 15 * 6 + 2 + 8 * 3
    check_figures(**summary)
    assert left_behind(temporary) == []


def check_figures(runs: int, succeeded: int, recovered: int, retried: int, stale: int) -> None:
    assert runs == succeeded == 24
    assert recovered >= 2  # what the killed worker held
    # Six handlers fail at first; one that was killed before it could is recovered instead.
    assert 2 <= retried <= 6
    assert stale >= 10


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_processes_and_removes_the_folder(
    processes: Processes, temporary: Path, number: signal.Signals
) -> None:
    demo = start(processes, temporary, "--lane", "polling")
    demo.wait_for("orders come in")
    assert len(left_behind(temporary)) > 4

    demo.send_group(number)  # as a terminal would

    assert demo.wait(within=30) == 128 + number
    assert f"{number.name}: ending all processes" in demo.output()
    assert left_behind(temporary) == []


def test_a_demo_that_is_killed_leaves_nothing_behind_either(
    processes: Processes, temporary: Path
) -> None:
    demo = start(processes, temporary, "--lane", "sqs")
    demo.wait_for("orders come in")

    demo.send(signal.SIGKILL)
    demo.wait()

    eventually(lambda: left_behind(temporary) == [], within=20)


def test_a_worker_that_cannot_start_is_told_and_ends_the_demo(
    processes: Processes, temporary: Path, tmp_path: Path
) -> None:
    # A module that stands before the real one on the children's path.
    (tmp_path / "psycopg.py").write_text("raise RuntimeError('no driver')\n")
    demo = processes.python(
        "-m",
        "workhorse.cli",
        "demo",
        "--lane",
        "polling",
        env={**SURROUNDINGS, "TMPDIR": str(temporary), "PYTHONPATH": str(tmp_path)},
    )

    assert demo.wait(within=60) != 0
    assert "no driver" in demo.output()
    assert left_behind(temporary) == []


def test_the_story_knows_the_shop() -> None:
    with shop.app:
        tasks = list(shop.app.registry)

    assert tuple(task.name for task in tasks) == story.TASKS
    assert {task.queue for task in tasks} == set(story.QUEUES)
    assert {task.is_async for task in tasks} == {True, False}


def test_a_demo_whose_books_disagree_ends_with_bad_news(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sums = Reckoning(24, 24, 3, 6, 10, problems=["run x: `charge` was asked for again"])
    monkeypatch.setattr(story.Story, "play", lambda _story: sums)

    code = run_demo(Renderer(json=False), "polling")

    assert code == exits.BAD_NEWS
    assert "problem       run x: `charge` was asked for again" in capsys.readouterr().out
