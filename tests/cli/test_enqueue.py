"""`workhorse enqueue`: payloads from anywhere, each option, waiting, and many at once."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import CommandLine
from tests.support.processes import Processes

ENQUEUE = ("--app", "shop:app", "enqueue", "orders.charge")


def shown(cli: CommandLine, run_id: str) -> dict[str, Any]:
    view: dict[str, Any] = cli.ok("runs", "show", run_id, "--json").json
    return view


def test_a_run_is_stored_and_its_id_told(cli_on_both: CommandLine) -> None:
    told = cli_on_both.ok(*ENQUEUE, '{"a": [1, 2.0]}', "--json").json
    people = cli_on_both.ok(*ENQUEUE, "{}").out

    view = shown(cli_on_both, told["id"])
    assert told["created"] is True
    assert view["payload"] == {"a": [1, 2.0]}
    assert people.startswith("run ")
    assert people.endswith(" is in queue default\n")


def test_options_reach_the_run(cli: CommandLine) -> None:
    options = ["--queue", "mail", "--priority", "70", "--session", "s-1", "--key", "k-1"]
    options += ["--tag", "a", "--tag", "b", "--delay", "1h", "--deadline", "2h"]

    view = shown(cli, cli.ok(*ENQUEUE, "{}", *options, "--json").json["id"])

    assert (view["queue"], view["priority"], view["session"]) == ("mail", 70, "s-1")
    assert (view["key"], view["tags"], view["state"]) == ("k-1", ["a", "b"], "scheduled")
    assert view["due_at"] > view["created_at"]
    assert view["deadline_at"] > view["due_at"]


def test_an_instant_is_a_due_time_too(cli: CommandLine) -> None:
    told = cli.ok(*ENQUEUE, "{}", "--run-at", "2020-01-01T00:00:00+02:00", "--json").json

    assert shown(cli, told["id"])["state"] == "ready"


def test_the_budget_of_attempts_can_be_set(cli: CommandLine) -> None:
    command = ("--app", "shop:app", "enqueue", "orders.fail", "--max-attempts", "1", "--json")
    run_id = cli.ok(*command).json["id"]
    cli.drain()

    assert len(shown(cli, run_id)["attempts"]) == 1


def test_a_payload_left_out_is_the_handlers_default(cli: CommandLine) -> None:
    run_id = cli.ok("--app", "shop:app", "enqueue", "orders.fail", "--json").json["id"]

    assert shown(cli, run_id)["payload"] == "no money"


def test_a_payload_comes_from_standard_input_or_a_file(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO('{"ü": 1}'.encode())))
    (tmp_path / "order.json").write_text('{"from": "file"}')

    first = cli.ok(*ENQUEUE, "-", "--json").json["id"]
    second = cli.ok(*ENQUEUE, "@order.json", "--json").json["id"]

    assert shown(cli, first)["payload"] == {"ü": 1}
    assert shown(cli, second)["payload"] == {"from": "file"}


def test_the_same_key_is_the_same_run(cli_on_both: CommandLine) -> None:
    first = cli_on_both.ok(*ENQUEUE, "{}", "--key", "k", "--json").json
    again = cli_on_both.ok(*ENQUEUE, "{}", "--key", "k")
    other = cli_on_both(*ENQUEUE, '{"other": 1}', "--key", "k")

    assert again.out == f"run {first['id']} was there already by its key: in queue default\n"
    assert other.code == 2
    assert "key" in other.err


def test_each_line_is_a_run(cli_on_both: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "orders").write_text("".join(f'{{"n": {n}}}\n\n' for n in range(30)))

    told = cli_on_both.ok(*ENQUEUE, "@orders", "--lines", "--json", "--tag", "bulk").json
    people = cli_on_both.ok(*ENQUEUE, "@orders", "--lines")

    assert told["count"] == 30
    assert shown(cli_on_both, told["ids"][7])["payload"] == {"n": 7}
    assert people.out == "30 runs are enqueued\n"


def test_a_line_that_does_not_fit_is_named_and_nothing_is_stored(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{}\n{}\n{"a" 1}\n')))

    told = cli(*ENQUEUE, "--lines")

    assert told.code == 2
    assert "line 3: payload" in told.err
    assert "column 6" in told.err
    assert "nothing was enqueued" in told.err
    assert cli.ok("runs", "list").out == "no runs\n"


def test_lines_behind_the_first_thousand_fail_alone(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "orders").write_text("{}\n" * 1_001 + "[]\n")

    told = cli(*ENQUEUE, "@orders", "--lines")

    assert told.code == 2
    assert "line 1002" in told.err
    assert "the first 1,000 runs are committed" in told.err


def test_waiting_ends_with_the_run(cli: CommandLine, processes: Processes) -> None:
    worker = processes.python(
        "-m", "workhorse.cli", "--app", "shop:app", "worker", "-q", "default,mail", cwd=cli.folder
    )
    worker.wait_for("worker w-")

    good = cli.ok(*ENQUEUE, '{"n": 1}', "--wait-for", "30s", "--json").json
    people = cli.ok(*ENQUEUE, '{"n": 1}', "--wait")
    bad = cli("--app", "shop:app", "enqueue", "orders.fail", "--wait", "--json")
    bad_people = cli("--app", "shop:app", "enqueue", "orders.fail", "--wait")

    assert (good["state"], good["result"]) == ("succeeded", {"charged": {"n": 1}})
    assert '  {"charged":{"n":1}}' in people.lines
    assert bad.code == bad_people.code == 1
    assert (bad.json["state"], bad.json["reason"]) == ("failed", "error")
    assert bad.json["error_message"] == "no money"
    assert "message  no money" in bad_people.lines


def test_a_wait_that_takes_too_long_is_bad_news(cli: CommandLine) -> None:
    told = cli(*ENQUEUE, "{}", "--wait-for", "0", "--json")
    people = cli(*ENQUEUE, "{}", "--wait-for", "0")

    assert told.code == people.code == 1
    assert json.loads(told.out)["state"] is None
    assert "has not ended in time" in people.out
