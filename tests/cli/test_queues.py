"""`workhorse queues`: pause, resume and list, on both databases."""

from __future__ import annotations

from tests.cli.conftest import CommandLine


def test_no_queue_holds_anything_at_first(cli_on_both: CommandLine) -> None:
    assert cli_on_both.ok("queues", "list").out == "no queue holds unfinished runs\n"
    assert cli_on_both.ok("queues", "list", "--json").json == {"queues": []}


def test_a_queue_shows_its_unfinished_runs(cli_on_both: CommandLine) -> None:
    cli_on_both.ok("--app", "shop:app", "enqueue", "orders.charge", "{}")
    cli_on_both.ok("--app", "shop:app", "enqueue", "orders.charge", "{}", "--delay", "1h")

    people = cli_on_both.ok("queues", "list").lines
    (queue,) = cli_on_both.ok("queues", "list", "--json").json["queues"]

    assert people[0].split()[:4] == ["queue", "state", "ready", "scheduled"]
    assert people[1].split()[:4] == ["default", "open", "1", "1"]
    assert (queue["name"], queue["ready"], queue["scheduled"]) == ("default", 1, 1)


def test_a_paused_queue_says_who_and_why_and_opens_again(cli_on_both: CommandLine) -> None:
    cli = cli_on_both
    first = cli.ok("queues", "pause", "mail", "--by", "ada", "--why", "bounces")
    second = cli.ok("queues", "pause", "mail", "--json").json
    (queue,) = cli.ok("queues", "list", "--json").json["queues"]
    people = cli.ok("queues", "list").lines
    opened = cli.ok("queues", "resume", "mail")
    again = cli.ok("queues", "resume", "mail", "--json").json

    assert first.out == "queue mail is paused\n"
    assert second == {"queue": "mail", "paused": True, "changed": False}
    assert (queue["paused_by"], queue["paused_why"]) == ("ada", "bounces")
    assert people[1].split()[:2] == ["mail", "paused"]
    assert opened.out == "queue mail is open again\n"
    assert again == {"queue": "mail", "paused": False, "changed": False}


def test_a_paused_queue_is_not_worked_on(cli: CommandLine) -> None:
    cli.ok("--app", "shop:app", "enqueue", "orders.charge", "{}")
    cli.ok("queues", "pause", "default")
    assert cli.drain() == 0

    cli.ok("queues", "resume", "default")
    assert cli.drain() == 1
