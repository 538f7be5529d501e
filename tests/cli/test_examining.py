"""`workhorse doctor` and `rehint`: what is well, what is not, and the exit code."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from lanes.polling import PollingLane
from tests.cli.conftest import CommandLine, Told
from workhorse.client.admin import Admin, Rehinted
from workhorse.domain.findings import Code, Finding, Severity


def test_a_system_that_is_well_is_said_to_be(cli_on_both: CommandLine) -> None:
    cli_on_both.ok("maintain", "--once")

    people = cli_on_both.ok("--app", "shop:app", "doctor")
    programs = cli_on_both.ok("--app", "shop:app", "doctor", "--json").json

    assert people.lines[0].split()[:3] == ["state", "code", "finding"]
    assert {line.split()[0] for line in people.lines[1:]} == {"ok"}
    assert programs["ok"] is programs["tasks_examined"] is True
    assert {each["code"] for each in programs["findings"]} >= {
        "maintenance_ok",
        "processes_ok",
        "queues_ok",
        "schema_ok",
        "store_ok",
        "tasks_ok",
    }


def test_findings_are_bad_news_and_say_what_to_do(cli: CommandLine) -> None:
    people = cli("doctor")
    programs = cli("doctor", "--json")

    assert people.code == programs.code == 1
    assert "maintenance has never run" in people.out
    assert "run `workhorse maintain`" in people.out
    assert programs.json["ok"] is False


def test_unknown_tasks_are_told_only_where_tasks_are_known(cli: CommandLine) -> None:
    cli.ok("maintain", "--once")
    cli.ok("--app", "shop:app", "enqueue", "orders.charge", "{}")
    (cli.folder / "other.py").write_text("from workhorse import Workhorse\napp = Workhorse()\n")

    without = cli("doctor")
    knowing = cli("--app", "shop:app", "doctor")
    strange = cli("--app", "other:app", "doctor")

    assert (without.code, knowing.code, strange.code) == (0, 0, 1)
    assert "tasks were not examined: name the app with --app" in without.err
    assert "orders.charge" not in without.out
    assert "1 ready run of the task 'orders.charge'" in strange.out


def test_a_paused_queue_is_a_finding(cli: CommandLine) -> None:
    cli.ok("maintain", "--once")
    cli.ok("queues", "pause", "mail", "--by", "ada")

    told = cli("doctor")

    assert told.code == 1
    assert "queue mail is paused since" in told.out
    assert "`workhorse queues resume mail`" in told.out


def test_a_missing_schema_or_store_is_a_finding_not_an_error(
    make_cli: Callable[[str], CommandLine], empty_sqlite_url: str, tmp_path: Path
) -> None:
    cli = make_cli(empty_sqlite_url)

    empty = cli("doctor", "--json")
    nowhere = cli("doctor", "--json", "--database-url", f"sqlite:///{tmp_path}/no/such/db")

    assert empty.code == nowhere.code == 1
    assert "run `workhorse migrate`" in {each["advice"] for each in empty.json["findings"]}
    assert {"store_unreachable"} == {
        each["code"] for each in nowhere.json["findings"] if each["severity"] == "error"
    }


def test_what_is_only_worth_knowing_is_no_bad_news(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.ok("maintain", "--once")
    about = partial(Finding, queue="default")
    said = [about(Code.NO_DEAD_LETTER_QUEUE, Severity.NOTE, "none is needed")]
    monkeypatch.setattr(PollingLane, "check", lambda _self, _queue: said)
    note = cli("doctor", "--json")
    said += [about(Code.QUEUE_DELAYS, Severity.WARNING, "it delays", "set it to 0")]
    trouble = cli("doctor", "--json")

    def queues(told: Told) -> list[dict[str, object]]:
        return [each for each in told.json["findings"] if each["queue"] == "default"]

    first = {
        "code": "no_dead_letter_queue",
        "severity": "note",
        "message": "none is needed",
        "advice": "",
        "queue": "default",
        "action": None,
    }
    second = first | {
        "code": "queue_delays",
        "severity": "warning",
        "message": "it delays",
        "advice": "set it to 0",
    }
    assert (note.code, queues(note)) == (0, [first])
    assert (trouble.code, queues(trouble)) == (1, [first, second])
    assert "queues_ok" in {each["code"] for each in note.json["findings"]}
    assert "queues_ok" not in {each["code"] for each in trouble.json["findings"]}


def test_rehint_tells_the_ready_runs_and_the_wakeups(cli_on_both: CommandLine) -> None:
    cli = cli_on_both
    assert cli.ok("rehint").out == "no open queue has ready runs\n"
    (cli.folder / "orders").write_text("{}\n" * 25)
    cli.ok("--app", "shop:app", "enqueue", "orders.charge", "@orders", "--lines")

    people = cli.ok("rehint")
    one = cli.ok("rehint", "--queue", "default", "--hint-stride", "1", "--json").json
    none = cli.ok("rehint", "--queue", "mail", "--json").json

    assert people.lines[1].split() == ["default", "25", "3", "0"]
    assert one == {"queues": [{"queue": "default", "ready": 25, "sent": 25, "not_sent": 0}]}
    assert none == {"queues": []}


def test_wakeups_that_cannot_be_sent_are_bad_news(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rehint(*_args: object, **_kwargs: object) -> list[Rehinted]:
        return [Rehinted("default", 10, 0, 1)]

    monkeypatch.setattr(Admin, "rehint", rehint)

    assert cli("rehint").code == 1
