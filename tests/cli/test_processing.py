"""`workhorse migrate`, `worker` and `maintain`, the latter two as real processes."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine
from tests.support.eventually import eventually
from tests.support.processes import Processes
from workhorse.maintenance import Maintenance, Pass
from workhorse.runtime.base import exits
from workhorse.store.base.schema import VERSION

APP = ("--app", "shop:app")
CLI = ("-m", "workhorse.cli", *APP)
STEPS = [
    "recover", "deadlines", "promote", "cancellations", "tokens", "arm", "free", "far_timers",
    "top_up", "processes",
]  # fmt: skip


# -- migrate -------------------------------------------------------------------------------------


def test_migrate_makes_the_tables_and_does_no_harm_again(
    make_cli: Callable[[str], CommandLine], empty_database_url: str
) -> None:
    cli = make_cli(empty_database_url)

    people = cli.ok("migrate")
    programs = cli.ok("migrate", "--json").json

    assert people.out.endswith(f" has schema version {VERSION}\n")
    assert programs["version"] == VERSION
    assert people.out.startswith(programs["store"])
    assert cli.ok("runs", "list").out == "no runs\n"


def test_an_environment_has_tables_of_its_own(
    make_cli: Callable[[str], CommandLine], empty_sqlite_url: str
) -> None:
    cli = make_cli(empty_sqlite_url)
    cli.ok("migrate", "--environment", "staging")

    assert cli.ok("runs", "list", "--environment", "staging").out == "no runs\n"
    told = cli("runs", "list")
    assert told.code == 2
    assert "belongs to the environment 'staging'" in told.err


# -- worker --------------------------------------------------------------------------------------


def test_a_worker_runs_until_a_signal_and_tells_what_it_did(
    cli: CommandLine, processes: Processes
) -> None:
    worker = processes.python(*CLI, "worker", "--json", "--concurrency", "2", cwd=cli.folder)
    worker.wait_for("lane polling, queues default, 1 worker, 2 slots")
    run_id = cli.ok("--app", "shop:app", "enqueue", "orders.charge", "{}", "--json").json["id"]
    eventually(lambda: _state(cli, run_id) == "succeeded")

    worker.send(signal.SIGTERM)

    assert worker.wait() == exits.STOPPED
    told = json.loads(worker.output().splitlines()[-1])
    assert told["exit_code"] == exits.STOPPED
    assert told["worker"].startswith("w-")
    assert told["counters"]["runs_settled[succeeded]"] == 1


def test_a_worker_serves_the_queues_it_is_told(cli: CommandLine, processes: Processes) -> None:
    worker = processes.python(*CLI, "worker", "-q", "a", "--queue", "b,c", cwd=cli.folder)

    worker.wait_for("queues a, b, c")
    worker.send(signal.SIGINT)

    assert worker.wait() == exits.STOPPED
    assert "scan_pages" in worker.output()


def test_a_worker_whose_runs_were_cut_short_says_so(cli: CommandLine, processes: Processes) -> None:
    (cli.folder / "slow.py").write_text(
        "import threading\n"
        "from workhorse import Workhorse\n"
        "app = Workhorse(drain_seconds=0.1)\n"
        "@app.task()\n"
        "def slow():\n"
        "    print('under way', flush=True)\n"
        "    threading.Event().wait(60)\n"
    )
    cli.ok("--app", "slow:app", "enqueue", "slow")
    worker = processes.python(
        "-m", "workhorse.cli", "--app", "slow:app", "worker", "--json", cwd=cli.folder
    )
    worker.wait_for("under way")

    worker.send(signal.SIGTERM)

    assert worker.wait() == exits.HANDED_BACK
    assert '"exit_code": 3' in worker.output()


def test_a_worker_can_maintain_too(cli: CommandLine, processes: Processes) -> None:
    worker = processes.python(*CLI, "worker", "--with-maintenance", cwd=cli.folder)

    eventually(lambda: _maintained(cli), within=30)
    worker.send(signal.SIGTERM)

    assert worker.wait() == exits.STOPPED


def test_a_worker_drains_and_ends(cli: CommandLine) -> None:
    run_id = cli.ok(*APP, "--json", "enqueue", "orders.charge", "{}").json["id"]

    told = cli.ok(*APP, "--json", "worker", "--drain")

    assert told.json["executed"] == 1
    assert _state(cli, run_id) == "succeeded"


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_hands_back_what_a_draining_worker_has_under_way(
    cli: CommandLine, processes: Processes, sent: signal.Signals
) -> None:
    """It leaves no lease behind, whose loss would cost the run an attempt."""
    (cli.folder / "slow.py").write_text(
        "import threading\n"
        "from workhorse import Workhorse\n"
        "app = Workhorse(drain_seconds=0.1)\n"
        "@app.task()\n"
        "def slow():\n"
        "    print('under way', flush=True)\n"
        "    threading.Event().wait(60)\n"
    )
    run_id = cli.ok("--app", "slow:app", "enqueue", "slow", "--json").json["id"]
    worker = processes.python(
        *CLI[:2], "--app", "slow:app", "worker", "--drain", "--json", cwd=cli.folder
    )
    worker.wait_for("under way")

    worker.send(sent)

    assert worker.wait() == exits.HANDED_BACK
    assert json.loads(worker.output().splitlines()[-1])["exit_code"] == exits.HANDED_BACK
    assert _state(cli, run_id) == "ready"


def test_a_worker_that_drains_does_not_maintain(cli: CommandLine) -> None:
    told = cli(*APP, "worker", "--drain", "--with-maintenance")

    assert told.code == 2
    assert "--drain ends by itself" in told.err


def test_a_worker_without_a_schema_ends_with_one_line(
    make_cli: Callable[[str], CommandLine], empty_sqlite_url: str
) -> None:
    told = make_cli(empty_sqlite_url)("--app", "shop:app", "worker")

    assert told.code == 2
    assert told.err.count("\n") == 1
    assert told.err.endswith("run `workhorse migrate`\n")


def test_the_log_can_be_json(cli: CommandLine, processes: Processes) -> None:
    worker = processes.python(*CLI, "worker", "--log-format", "json", cwd=cli.folder)
    worker.wait_for("1 worker, 10 slots")

    line = json.loads(worker.output().splitlines()[0])

    assert (line["level"], line["logger"]) == ("INFO", "workhorse.worker")
    assert line["at"].endswith("Z")


# -- maintain ------------------------------------------------------------------------------------


def test_one_pass_does_each_step_and_tells_the_counts(cli_on_both: CommandLine) -> None:
    people = cli_on_both.ok("maintain", "--once")
    programs = cli_on_both.ok("maintain", "--once", "--json").json

    assert people.lines[0].split() == ["step", "rows", "state"]
    assert [line.split() for line in people.lines[1:]] == [[step, "0", "ok"] for step in STEPS]
    assert programs == {"counts": dict.fromkeys(STEPS, 0), "failed": {}}


def test_a_step_that_fails_is_bad_news(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_once(*_args: object, **_kwargs: object) -> Pass:
        return Pass({"recover": 3}, {"promote": "StoreUnavailableError"})

    monkeypatch.setattr(Maintenance, "run_once", run_once)

    people = cli("maintain", "--once")
    programs = cli("maintain", "--once", "--json")

    assert people.code == programs.code == 1
    assert people.lines[1].split() == ["recover", "3", "ok"]
    assert people.lines[2].split() == ["promote", "0", "failed:", "StoreUnavailableError"]
    assert programs.json["failed"] == {"promote": "StoreUnavailableError"}


def test_maintenance_goes_on_until_a_signal_and_tells_what_it_changed(
    cli: CommandLine, processes: Processes
) -> None:
    maintain = processes.python("-m", "workhorse.cli", "maintain", "--json", cwd=cli.folder)
    cli.ok("--app", "shop:app", "enqueue", "orders.charge", "{}", "--delay", "100ms")

    maintain.wait_for("INFO maintenance: begins: store SQLite at .*, lane polling")
    maintain.wait_for('"promote": 1')
    maintain.send(signal.SIGTERM)

    assert maintain.wait() == 0
    (line,) = (json.loads(line) for line in maintain.output().splitlines() if "promote" in line)
    assert line["counts"] == {"promote": 1}
    assert line["failed"] == {}


@pytest.mark.parametrize("command", ["worker", "maintain"])
def test_what_starts_during_an_outage_waits_for_its_end(
    make_cli: Callable[[str], CommandLine], tmp_path: Path, processes: Processes, command: str
) -> None:
    there, away = tmp_path / "there", tmp_path / "away"
    there.mkdir()
    cli = make_cli(f"sqlite:///{there}/shop.sqlite3")
    cli.ok("migrate")
    there.rename(away)
    process = processes.python(*CLI, command, cwd=cli.folder)
    process.wait_for("the store is away")

    away.rename(there)

    process.wait_for("lane polling")
    process.send(signal.SIGTERM)
    assert process.wait() == exits.STOPPED


def test_maintenance_tells_people_in_one_line_a_pass(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_self: Maintenance, *, on_pass: Callable[[Pass], None]) -> None:
        on_pass(Pass({"recover": 0}, {}))
        on_pass(Pass({"recover": 2, "promote": 1_000}, {"top_up": "OSError"}))

    monkeypatch.setattr(Maintenance, "run", run)

    (line,) = cli.ok("maintain").lines

    assert line.endswith("Z recover 2, promote 1,000, top_up failed: OSError")


def _state(cli: CommandLine, run_id: str) -> str:
    return str(cli.ok("runs", "show", run_id, "--json").json["state"])


def _maintained(cli: CommandLine) -> bool:
    findings = cli("doctor", "--json").json["findings"]
    return "maintenance_ok" in {each["code"] for each in findings}
