"""`workhorse processes` and `measures`, and what `maintain` writes for CloudWatch."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import CommandLine
from workhorse import Workhorse
from workhorse.domain.presence import Process, ProcessKind
from workhorse.store.fleet.presence import beat


def test_nobody_is_there_at_first(cli_on_both: CommandLine) -> None:
    assert cli_on_both.ok("processes").out == "no process has beaten within an hour\n"
    assert cli_on_both.ok("processes", "--json").json == {"processes": []}
    assert cli_on_both.ok("measures").out == "there is no queue to measure\n"
    assert cli_on_both.ok("measures", "--json").json == {"measures": []}


def test_processes_are_listed_with_what_they_are(cli_on_both: CommandLine) -> None:
    cli = cli_on_both
    with Workhorse() as app:
        app.store.run(
            beat,
            Process(
                key="k", id="w-1", kind=ProcessKind.WORKER, host="ip-10-0-0-1", pid=7,
                version="0.1", build="42", lane="sqs", queues=("default", "mail"), slots=10,
            ),
            up_ms=0,
        )  # fmt: skip
    cli.ok("maintain", "--once", "--build", "43")

    people = cli.ok("processes").lines
    pass_of_maintenance, worker = cli.ok("processes", "--json").json["processes"]

    assert people[0].split()[:6] == ["kind", "id", "state", "host", "pid", "build"]
    assert people[1].split()[:3] == ["maintenance", "maintain-once", "live"]
    assert people[2].split()[:6] == ["worker", "w-1", "live", "ip-10-0-0-1", "7", "42"]
    assert "default, mail" in people[2]
    assert (worker["queues"], worker["state"]) == (["default", "mail"], "live")
    assert (pass_of_maintenance["every_ms"], pass_of_maintenance["build"]) == (60_000, "43")


def test_queues_are_measured(cli_on_both: CommandLine) -> None:
    cli = cli_on_both
    cli.ok("--app", "shop:app", "enqueue", "orders.charge", "{}")
    cli.ok("--app", "shop:app", "enqueue", "orders.charge", "{}", "--delay", "1h")
    cli.ok("--app", "shop:app", "enqueue", "orders.fail")
    cli.ok("queues", "pause", "mail")

    people = cli.ok("measures").lines
    default, mail = cli.ok("measures", "--json").json["measures"]

    assert people[0].split()[:3] == ["queue", "state", "oldest"]
    assert people[1].split()[:2] == ["default", "open"]
    assert people[2].split()[:2] == ["mail", "paused"]
    assert (default["queue"], default["runnable"], default["scheduled"]) == ("default", 1, 1)
    assert (default["backlog_per_worker"], default["oldest_runnable_ms"] > 0) == (1, True)
    assert (mail["paused"], mail["runnable"]) == (True, 0)


# -- what maintenance writes ---------------------------------------------------------------------


def test_measures_are_lines_of_their_own_before_the_answer(cli_on_both: CommandLine) -> None:
    cli = cli_on_both
    cli.ok("--app", "shop:app", "enqueue", "orders.charge", "{}")

    told = cli.ok("maintain", "--once", "--metrics", "emf", "--metrics-namespace", "Shop")

    fleet, queue = map(json.loads, told.lines[:2])
    assert fleet["_aws"]["CloudWatchMetrics"][0]["Namespace"] == "Shop"
    assert (fleet["Environment"], fleet["MaintenancePasses"]) == ("default", 1)
    assert (queue["Queue"], queue["RunnableRuns"]) == ("default", 1)
    assert told.lines[2].split() == ["step", "rows", "state"]
    assert ["measure", "0", "ok"] in [line.split() for line in told.lines[3:]]


def test_the_document_of_a_pass_stays_one_document(cli_on_both: CommandLine) -> None:
    told = cli_on_both.ok("maintain", "--once", "--metrics", "emf", "--json")

    assert told.json["failed"] == {}
    assert told.json["counts"]["measure"] == 0
    assert json.loads(told.err.splitlines()[0])["MaintenancePasses"] == 1


def test_nothing_is_measured_where_nobody_asked(cli_on_both: CommandLine) -> None:
    told = cli_on_both.ok("maintain", "--once")

    assert "_aws" not in told.out + told.err
    assert "measure" not in told.out


def test_maintenance_that_goes_on_writes_lines(
    cli: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.ok("--app", "shop:app", "enqueue", "orders.charge", "{}")
    with Workhorse(metrics="emf", environment="") as app:
        maintenance = app.maintenance()
        maintenance.run(on_pass=lambda done: maintenance.stop())

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert [line.get("Queue") for line in lines] == [None, "default"]
