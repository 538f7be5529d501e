"""`workhorse runs`: for people and for programs, on both databases."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import CommandLine
from workhorse.cli.inputs import os_user
from workhorse.domain.ids import new_run_id


def charge(cli: CommandLine, payload: object = None) -> str:
    text = json.dumps({"n": 1} if payload is None else payload)
    told = cli.ok("--app", "shop:app", "enqueue", "orders.charge", text, "--json")
    return str(told.json["id"])


def test_an_empty_store_lists_nothing(cli_on_both: CommandLine) -> None:
    assert cli_on_both.ok("runs", "list").out == "no runs\n"
    assert cli_on_both.ok("runs", "list", "--json").json == {"runs": [], "before": None}


def test_a_list_shows_the_newest_first_and_no_payload(cli_on_both: CommandLine) -> None:
    first, second = charge(cli_on_both, {"card": "4000"}), charge(cli_on_both)

    people = cli_on_both.ok("runs", "list")
    programs = cli_on_both.ok("runs", "list", "--json")

    assert [line.split()[0] for line in people.lines] == ["id", second, first]
    assert [run["id"] for run in programs.json["runs"]] == [second, first]
    assert programs.json["runs"][0]["state"] == "ready"
    assert "card" not in people.out + programs.out
    assert "payload" not in programs.json["runs"][0]


def test_a_list_takes_filters(cli: CommandLine) -> None:
    charged = charge(cli)
    failed = cli.ok("--app", "shop:app", "enqueue", "orders.fail", "--json").json["id"]
    cli.drain()

    def ids(*arguments: str) -> list[str]:
        return [run["id"] for run in cli.ok("runs", "list", "--json", *arguments).json["runs"]]

    assert ids("--state", "failed") == [failed]
    assert ids("--task", "orders.charge") == [charged]
    assert ids("--queue", "mail") == [failed]
    assert ids("--queue", "mail", "--state", "succeeded") == []


def test_a_full_page_says_where_the_next_one_starts(cli: CommandLine) -> None:
    first, second, third = (charge(cli) for _ in range(3))

    page = cli.ok("runs", "list", "--limit", "2", "--json").json
    people = cli.ok("runs", "list", "--limit", "2")
    rest = cli.ok("runs", "list", "--limit", "2", "--json", "--before", page["before"]).json

    assert [run["id"] for run in page["runs"]] == [third, second]
    assert f"--before {second}" in people.err
    assert [run["id"] for run in rest["runs"]] == [first]
    assert rest["before"] is None


def test_a_run_is_shown_whole(cli_on_both: CommandLine) -> None:
    run_id = charge(cli_on_both, {"n": 2**70, "x": 1.0})
    cli_on_both.drain()

    people = cli_on_both.ok("runs", "show", run_id)
    programs = cli_on_both.ok("runs", "show", run_id, "--json").json

    assert f"run       {run_id}" in people.lines
    assert "state     succeeded" in people.lines
    assert f'  {{"charged":{{"n":{2**70},"x":1.0}}}}' in people.lines
    assert programs["payload"] == {"n": 2**70, "x": 1.0}
    assert programs["result"] == {"charged": {"n": 2**70, "x": 1.0}}
    assert programs["finished_at"].endswith("Z")
    assert programs["attempts"] == programs["acts"] == []


def test_a_failed_run_shows_each_attempt_and_the_last_traceback(cli_on_both: CommandLine) -> None:
    cli = cli_on_both
    run_id = cli.ok("--app", "shop:app", "enqueue", "orders.fail", "--json").json["id"]
    cli.drain()

    people = cli.ok("runs", "show", run_id)
    programs = cli.ok("runs", "show", run_id, "--json").json

    assert "ValueError" in next(line for line in people.lines if line.startswith("error "))
    assert "message   no money" in people.lines
    assert "    raise ValueError(reason)" in people.out
    assert [row["attempt"] for row in programs["attempts"]] == [1, 2]
    assert {row["reason"] for row in programs["attempts"]} == {"error"}
    assert programs["error_message"] == "no money"


def test_what_a_handler_says_cannot_act_on_the_terminal(cli: CommandLine) -> None:
    evil = "\x1b]0;owned\x07\x9b31m\u202e"
    run_id = cli.ok("--app", "shop:app", "enqueue", "orders.fail", json.dumps(evil), "--json").json[
        "id"
    ]
    cli.drain()

    people = cli.ok("runs", "show", run_id)
    programs = cli.ok("runs", "show", run_id, "--json")

    assert not set(evil) & set("\x1b\x07\x9b\u202e") & set(people.out)
    assert r"\x1b]0;owned\x07\x9b31m\u202e" in people.out
    assert programs.json["error_message"] == evil
    assert programs.out.isascii()


def test_a_ready_run_is_cancelled_and_the_audit_says_by_whom(cli_on_both: CommandLine) -> None:
    cli = cli_on_both
    run_id = charge(cli)

    people = cli.ok("runs", "cancel", run_id, "--why", "wrong customer")
    again = cli.ok("runs", "cancel", run_id)
    programs = cli.ok("runs", "cancel", run_id, "--json").json
    shown = cli.ok("runs", "show", run_id)
    acts = cli.ok("runs", "show", run_id, "--json").json["acts"]

    assert people.out == f"run {run_id} is cancelled\n"
    assert again.code == 0
    assert programs == {"id": run_id, "state": "cancelled"}
    assert [(act["act"], act["by"], act["why"]) for act in acts] == [
        ("cancel", os_user(), "wrong customer")
    ]
    assert "wrong customer" in shown.out


def test_a_finished_run_stands_as_it_was(cli: CommandLine) -> None:
    run_id = charge(cli)
    cli.drain()

    assert cli.ok("runs", "cancel", run_id).out == f"run {run_id} had ended before, as succeeded\n"


def test_a_rerun_is_a_new_run_and_the_same_request_starts_one(cli_on_both: CommandLine) -> None:
    cli = cli_on_both
    run_id = charge(cli)
    cli.drain()

    first = cli.ok("runs", "rerun", run_id, "--by", "ada", "--request-id", "r1", "--json").json
    same = cli.ok("runs", "rerun", run_id, "--by", "ada", "--request-id", "r1", "--json").json
    other = cli.ok("runs", "rerun", run_id, "--by", "ada")
    shown = cli.ok("runs", "show", first["id"], "--json").json

    assert first["created"] is True
    assert same == {**first, "created": False}
    assert f"is a new run of {run_id}" in other.out
    assert first["id"] not in other.out
    assert (shown["rerun_of"], shown["payload"], shown["state"]) == (run_id, {"n": 1}, "ready")


@pytest.mark.parametrize("act", ["show", "cancel", "rerun"])
def test_a_run_that_is_not_there_is_said_so(cli: CommandLine, act: str) -> None:
    run_id = new_run_id()

    told = cli("runs", act, run_id)

    assert told.code == 2
    assert told.out == ""
    assert f"run {run_id} is not in this store" in told.err


def test_an_unfinished_run_is_not_run_again(cli: CommandLine) -> None:
    run_id = charge(cli)

    told = cli("runs", "rerun", run_id)

    assert (told.code, told.out) == (2, "")
    assert "only a finished run can be run again" in told.err
