"""Durable runs on the command line: looks, deliveries, exports, acts on many at once."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import CommandLine
from tests.cli.test_bad_input import refused
from tests.client.ends import end_run, lease_run, pass_boundaries
from workhorse.cli.inputs import os_user
from workhorse.domain.boundaries import BoundaryKind, NewBoundary, Wait
from workhorse.domain.hints import no_reach
from workhorse.domain.ids import RunId
from workhorse.domain.outcomes import Finish, Suspend
from workhorse.domain.recording import NewProgress
from workhorse.domain.runs import Failure, Lease, Reason, RunState
from workhorse.store.base.database import Store
from workhorse.store.durable import tokens
from workhorse.store.durable.boundaries import write_progress
from workhorse.store.lifecycle.settling import Entry, settle

FAILED = Finish(RunState.FAILED, Reason.ERROR, failure=Failure("ValueError", "no"))
CHARGE = NewBoundary(name="charge", kind=BoundaryKind.CHECKPOINT, seq=1, value='{"card":4000}')
SHIP = NewBoundary(name="ship", kind=BoundaryKind.CHECKPOINT, seq=2, value='"by air"')
APPROVE = NewBoundary(name="approve", kind=BoundaryKind.HUMAN, seq=3, detail='{"sum":7}')


@pytest.fixture
def db(database_url: str) -> Iterator[Store]:
    """The store that `cli_on_both` works with."""
    store = Store.open(database_url)
    yield store
    store.close()


def enqueue(cli: CommandLine, *options: str) -> RunId:
    told = cli.ok("--app", "shop:app", "enqueue", "orders.charge", "{}", "--json", *options)
    return RunId(told.json["id"])


def end(store: Store, lease: Lease) -> None:
    settled = store.run(settle, [Entry(lease, FAILED)], reach=no_reach)
    assert settled.written


def suspend(store: Store, lease: Lease, *waits: NewBoundary, token: str | None = None) -> None:
    suspended = Suspend(
        tuple(Wait(kind=wait.kind, name=wait.name, new=wait, token=token) for wait in waits)
    )
    assert store.run(settle, [Entry(lease, suspended)], reach=no_reach).written


def a_waiting_run(cli: CommandLine, store: Store) -> RunId:
    """A run that has stored two checkpoints and waits for a decision."""
    run_id = enqueue(cli)
    lease = lease_run(store, run_id)
    pass_boundaries(store, lease, CHARGE, SHIP)
    suspend(store, lease, APPROVE)
    return run_id


# -- looks ---------------------------------------------------------------------------------------


def test_a_timeline_tells_what_happened_and_no_values(cli_on_both: CommandLine, db: Store) -> None:
    cli = cli_on_both
    run_id = a_waiting_run(cli, db)
    cli.ok("waits", "complete", run_id, "approve", '"secret"', "--by", "ann", "--why", "fine")

    people = cli.ok("runs", "timeline", run_id)
    programs = cli.ok("runs", "timeline", run_id, "--json")

    told = [(entry["what"], entry.get("name")) for entry in programs.json["entries"]]
    assert told == [
        ("created", None),
        ("started", None),
        ("boundary", "charge"),
        ("boundary", "ship"),
        ("boundary", "approve"),
        ("delivery", "approve"),
        ("act", "decide"),
    ]
    assert programs.json["after"] is None
    assert people.lines[0].split() == ["at", "what", "name", "how"]
    assert "charge   checkpoint, 13 bytes" in people.lines[3]
    assert "by ann" in people.out
    for secret in ("card", "secret", "sum"):
        assert secret not in people.out + programs.out


def test_a_long_timeline_says_where_the_next_page_starts(
    cli_on_both: CommandLine, db: Store
) -> None:
    cli = cli_on_both
    run_id = a_waiting_run(cli, db)

    page = cli.ok("runs", "timeline", run_id, "--limit", "3", "--json").json
    people = cli.ok("runs", "timeline", run_id, "--limit", "3")
    rest = cli.ok("runs", "timeline", run_id, "--after", page["after"], "--json").json

    assert [len(part["entries"]) for part in (page, rest)] == [3, 2]
    assert f"later ones: --after {page['after']!r}" in people.err
    assert rest["after"] is None


def test_a_run_is_shown_with_checkpoints_waits_and_progress(
    cli_on_both: CommandLine, db: Store
) -> None:
    cli = cli_on_both
    run_id = enqueue(cli)
    lease = lease_run(db, run_id)
    pass_boundaries(db, lease, CHARGE, SHIP, APPROVE)
    db.run(write_progress, [NewProgress(lease, '{"done":3}')])

    people = cli.ok("runs", "show", run_id)
    shown = cli.ok("runs", "show", run_id, "--json").json

    assert [each["value"] for each in shown["checkpoints"]] == [{"card": 4000}, "by air"]
    assert [(each["name"], each["context"]) for each in shown["waits"]] == [("approve", {"sum": 7})]
    assert (shown["progress"], shown["parent_id"]) == ({"done": 3}, None)
    assert '  {"done":3}' in people.lines
    assert "checkpoints" in people.lines
    assert "open waits" in people.lines
    assert "card" not in people.out
    assert "progress" not in cli.ok("runs", "list", "--json").json["runs"][0]


def test_open_waits_are_listed(cli_on_both: CommandLine, db: Store) -> None:
    cli = cli_on_both
    assert cli.ok("waits", "list").out == "no open waits\n"
    first, second = (a_waiting_run(cli, db) for _ in range(2))

    people = cli.ok("waits", "list")
    page = cli.ok("waits", "list", "--limit", "1", "--json").json
    rest = cli.ok("waits", "list", "--after", page["after"], "--kind", "human", "--json").json

    assert [line.split()[0] for line in people.lines] == ["id", first, second]
    assert people.lines[1].endswith('{"sum":7}')
    assert [(wait["run_id"], wait["context"]) for wait in page["waits"]] == [(first, {"sum": 7})]
    assert [wait["run_id"] for wait in rest["waits"]] == [second]
    assert cli.ok("waits", "list", "--run", second, "--json").json == rest
    assert cli.ok("waits", "list", "--queue", "mail", "--json").json["waits"] == []


def test_a_run_is_enqueued_after_others(cli_on_both: CommandLine, db: Store) -> None:
    cli = cli_on_both
    first, second = enqueue(cli), enqueue(cli)
    run_id = enqueue(cli, "--after", first, "--after", second, "--on-failure", "cancel")
    assert cli.ok("runs", "show", run_id, "--json").json["state"] == "waiting"
    end_run(db, first, FAILED)

    cli.ok("maintain", "--once")

    assert cli.ok("runs", "show", run_id, "--json").json["state"] == "cancelled"


# -- deliveries ----------------------------------------------------------------------------------


def test_a_decision_wakes_the_run_and_is_audited(cli_on_both: CommandLine, db: Store) -> None:
    cli = cli_on_both
    run_id = a_waiting_run(cli, db)

    first = cli.ok("waits", "complete", run_id, "approve", "true", "--why", "fine", "--key", "k")
    again = cli.ok("waits", "complete", run_id, "approve", "true", "--key", "k", "--json")
    other = cli("waits", "complete", run_id, "approve", "false", "--json")
    shown = cli.ok("runs", "show", run_id, "--json").json

    assert first.out == f"decision 'approve' for run {run_id}: delivered\n"
    assert again.json == {"id": run_id, "name": "approve", "result": "duplicate"}
    assert (other.code, other.json["result"]) == (1, "already_settled")
    assert shown["state"] == "ready"
    assert [(act["act"], act["by"], act["why"]) for act in shown["acts"]] == [
        ("decide", os_user(), "fine")
    ]


def test_a_signal_takes_its_value_from_where_it_is_said(
    cli_on_both: CommandLine, db: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = cli_on_both
    run_id = enqueue(cli)
    (cli.folder / "value.json").write_text('{"from": "a file"}')
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'"from a pipe"')))

    kept = cli.ok("runs", "signal", run_id, "none")
    cli.ok("runs", "signal", run_id, "text", "[1.0]")
    cli.ok("runs", "signal", run_id, "file", "@value.json")
    cli.ok("runs", "signal", run_id, "pipe", "-")

    assert kept.out == f"signal 'none' for run {run_id}: kept until the run asks for it\n"
    deliveries = cli.ok("runs", "export", run_id).json["deliveries"]
    assert {each["name"]: each["value"] for each in deliveries} == {
        "none": None,
        "text": [1.0],
        "file": {"from": "a file"},
        "pipe": "from a pipe",
    }


def test_what_is_kept_while_the_run_waits_for_something_else_is_told_with_that(
    cli_on_both: CommandLine, db: Store
) -> None:
    """A mistyped name is no error: whoever sends it sees here what the run does wait for."""
    cli = cli_on_both
    run_id = enqueue(cli)
    delivered = NewBoundary(name="delivered", kind=BoundaryKind.SIGNAL, seq=4)
    suspend(db, lease_run(db, run_id), APPROVE, delivered)

    sent = cli.ok("runs", "signal", run_id, "delivred")
    decided = cli.ok("waits", "complete", run_id, "aprove", "true")
    right = cli.ok("waits", "complete", run_id, "approve", "true")

    assert sent.out.endswith(": kept until the run asks for it\n")
    told = "the run waits now for human 'approve', signal 'delivered'\n"
    assert (sent.err, decided.err, right.err) == (told, told, "")


def test_a_signal_to_a_run_that_has_ended_is_bad_news(cli_on_both: CommandLine, db: Store) -> None:
    run_id = enqueue(cli_on_both)
    end_run(db, run_id, FAILED)

    told = cli_on_both("runs", "signal", run_id, "paid")

    assert (told.code, told.err) == (1, "")
    assert told.out == f"signal 'paid' for run {run_id}: not stored: the run has ended\n"


def test_a_token_is_completed_and_never_shown(cli_on_both: CommandLine, db: Store) -> None:
    cli = cli_on_both
    db.run(tokens.create_token, "wht_secret", timeout_ms=None)
    run_id = enqueue(cli)
    hook = NewBoundary(name="hook", kind=BoundaryKind.TOKEN, seq=1, detail='"wht_secret"')
    suspend(db, lease_run(db, run_id), hook, token="wht_secret")  # noqa: S106
    waits = cli.ok("waits", "list")

    first = cli.ok("tokens", "complete", "wht_secret", '{"ok": true}')
    again = cli("tokens", "complete", "wht_secret", '{"ok": true}', "--json")
    unknown = cli("tokens", "complete", "wht_other", "1")

    assert first.out == "the token's value: delivered\n"
    assert (again.code, again.json) == (1, {"result": "already_settled"})
    assert "no token has this reference" in refused(unknown)
    assert "hook" in waits.out
    assert "wht_" not in waits.out + first.out + again.out + unknown.err
    assert cli.ok("runs", "show", run_id, "--json").json["state"] == "ready"


# -- exports -------------------------------------------------------------------------------------


def test_an_export_is_one_document_on_either_way_out(cli_on_both: CommandLine, db: Store) -> None:
    cli = cli_on_both
    run_id = a_waiting_run(cli, db)

    printed = cli.ok("runs", "export", run_id)
    as_json = cli.ok("runs", "export", run_id, "--json")
    written = cli.ok("runs", "export", run_id, "--output", "run.json")
    told = cli.ok("runs", "export", run_id, "--output", "run.json", "--json")

    document = printed.json
    assert document["workhorse_export"] == 1
    assert [each["name"] for each in document["boundaries"]] == ["charge", "ship", "approve"]
    assert as_json.json == document
    assert json.loads((cli.folder / "run.json").read_text()) == document
    assert written.out == f"run {run_id} is exported to run.json, with 3 boundaries\n"
    assert told.json == {"id": run_id, "output": "run.json", "boundaries": 3}


def test_a_file_that_cannot_be_written_is_told(cli_on_both: CommandLine, db: Store) -> None:
    run_id = enqueue(cli_on_both)

    told = cli_on_both("runs", "export", run_id, "--output", "no/such/folder.json")

    assert "the operating system refused: No such file or directory" in refused(told, 74)


# -- reruns and cancels, of one and of many ------------------------------------------------------


def a_failed_run(cli: CommandLine, store: Store, *options: str) -> RunId:
    run_id = enqueue(cli, *options)
    lease = lease_run(store, run_id)
    pass_boundaries(store, lease, CHARGE, SHIP)
    end(store, lease)
    return run_id


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ((), ["charge", "ship"]),
        (("--boundaries", "none"), []),
        (("--boundaries", "charge"), ["charge"]),
    ],
)
def test_a_rerun_takes_over_what_it_is_told_to(
    cli_on_both: CommandLine, db: Store, options: tuple[str, ...], names: list[str]
) -> None:
    cli = cli_on_both
    run_id = a_failed_run(cli, db)

    new = cli.ok("runs", "rerun", run_id, "--json", *options).json["id"]

    exported = cli.ok("runs", "export", new).json
    assert [each["name"] for each in exported["boundaries"]] == names
    if names:
        assert "checkpoint, 13 bytes, taken over" in cli.ok("runs", "timeline", new).out


def test_a_boundary_that_is_not_there_is_told_with_those_that_are(
    cli_on_both: CommandLine, db: Store
) -> None:
    run_id = a_failed_run(cli_on_both, db)

    told = cli_on_both("runs", "rerun", run_id, "--boundaries", "chrge")

    assert refused(told) == (
        f"run {run_id} has no boundary 'chrge'; it has, in this order: 'charge', 'ship'"
    )


def test_many_are_run_again(cli_on_both: CommandLine, db: Store) -> None:
    cli = cli_on_both
    failed = [a_failed_run(cli, db, "--tag", "a") for _ in range(3)]
    a_failed_run(cli, db)
    meant = ("--all-matching", "--tag", "a", "--state", "failed", "--error", "ValueError")

    dry = cli.ok("runs", "rerun", *meant, "--dry-run")
    dry_json = cli.ok("runs", "rerun", *meant, "--dry-run", "--json").json
    done = cli.ok("runs", "rerun", *meant, "--request-id", "r")
    again = cli.ok("runs", "rerun", *meant, "--request-id", "r", "--json").json

    assert dry.lines[0] == "3 runs would be run again; nothing was changed"
    assert dry.lines[-3:] == failed
    assert (dry_json["matched"], dry_json["done"], dry_json["dry_run"]) == (3, 0, True)
    assert done.out == "3 of 3 runs are run again\n"
    assert done.err == ""
    assert (again["matched"], again["done"], again["done_before"]) == (3, 0, 3)
    assert (again["request_id"], again["first"]) == ("r", failed)
    assert len(cli.ok("runs", "list", "--state", "ready", "--json").json["runs"]) == 3


def test_many_are_cancelled_and_whoever_is_cut_off_can_go_on(
    cli_on_both: CommandLine, db: Store
) -> None:
    cli = cli_on_both
    runs = [enqueue(cli) for _ in range(3)]
    elsewhere = enqueue(cli, "--queue", "mail")

    told = cli.ok("runs", "cancel", "--all-matching", "--queue", "default", "--limit", "2")

    assert told.out == "2 of 2 runs are cancelled\n"
    request = told.err.split()[-1]
    assert told.err == f"where this is cut off, go on with --request-id {request}\n"
    again = cli.ok(
        *("runs", "cancel", "--all-matching", "--queue", "default", "--limit", "2"),
        *("--request-id", request, "--json"),
    )
    assert again.json["matched"] == 0
    states = [cli.ok("runs", "show", run, "--json").json["state"] for run in [*runs, elsewhere]]
    assert states == ["cancelled", "cancelled", "ready", "ready"]


# -- bad input -----------------------------------------------------------------------------------

RUN = RunId("01890000-0000-7000-8000-000000000001")
MANY = ("--all-matching",)
CHARGED = ("--app", "shop:app", "enqueue", "orders.charge", "{}")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((*CHARGED, "--after", "12"), "run id '12' is not a UUID"),
        ((*CHARGED, "--after", RUN), f"run {RUN}, which a run of task 'orders.charge' is to"),
        ((*CHARGED, "--after", RUN, "--delay", "5"), "after is given beside delay or run_at"),
        ((*CHARGED, "--after", RUN, "--on-failure", "x"), "none of: fail, cancel, run"),
        ((*CHARGED, "--on-failure", "run"), "on_failure is given without after"),
        (("runs", "timeline", "12"), "run id '12' is not a UUID"),
        (("runs", "timeline", RUN), "is not in this store"),
        (("runs", "timeline", RUN, "--limit", "0"), "limit is 0; it must be 1 to 1,000"),
        (("runs", "timeline", RUN, "--after", "x"), "after is no place in a timeline"),
        (("runs", "signal", RUN, "paid"), "is not in this store"),
        (("runs", "signal", RUN), "missing argument 'NAME'"),
        (("runs", "signal", RUN, "paid", "{"), "signal: the text is no JSON: Expecting property"),
        (("runs", "signal", RUN, "paid", "NaN"), "holds nan"),
        (("runs", "signal", RUN, "paid", '"\\u0000"'), "NUL"),
        (("runs", "signal", RUN, "paid", "@nowhere"), "nowhere cannot be read: No such file"),
        (("runs", "signal", RUN, "p" * 201), "boundary has 201 characters"),
        (("runs", "signal", RUN, "paid", f'"{"x" * 65_536}"'), "65,538 bytes of JSON and may be"),
        (("runs", "signal", RUN, "paid", "--key", "k" * 257), "idempotency key has 257"),
        (("runs", "signal", RUN, "paid", "[" * 100_000), "nested too deep"),
        (("runs", "export", RUN), "is not in this store"),
        (("waits",), "missing command; see `workhorse waits --help`"),
        (("waits", "list", "--kind", "checkpoint"), "kind 'checkpoint' is no kind of wait; these"),
        (("waits", "list", "--run", RUN), "is not in this store"),
        (("waits", "list", "--after", "x"), "after is no place in a list of waits"),
        (("waits", "complete", RUN, "approve"), "missing argument 'JSON'"),
        (("waits", "complete", RUN, "approve", "1"), "is not in this store"),
        (("waits", "complete", RUN, "approve", "yes"), "decision: the text is no JSON"),
        (("waits", "complete", RUN, "approve", "1", "--by", "x" * 2_000), "by has 2,000"),
        (("tokens", "complete", "ref"), "missing argument 'JSON'"),
        (("tokens", "complete", "", "1"), "a token's reference is 1 to 256 printable"),
        (("tokens", "complete", "ref", "x"), "value of the token: the text is no JSON"),
        (("runs", "cancel"), "name a run by its id; or say --all-matching and which runs"),
        (("runs", "rerun", "--task", "t"), "name a run by its id; or say --all-matching"),
        (("runs", "cancel", RUN, *MANY), "a run is named, and --all-matching is said"),
        (("runs", "cancel", RUN, "--task", "t"), "--task: for --all-matching; one run is named"),
        (("runs", "rerun", RUN, "--dry-run"), "--dry-run: for --all-matching; one run is named"),
        (("runs", "cancel", *MANY), "nothing says which runs are meant; give at least one of"),
        (("runs", "cancel", *MANY, "--state", "failed"), "only unfinished ones are cancelled"),
        (("runs", "rerun", *MANY, "--state", "ready"), "only finished runs are run again"),
        (("runs", "rerun", *MANY, "--tag", ""), "tag has 0 characters"),
        (("runs", "rerun", *MANY, "--task", "t", "--limit", "0"), "limit is 0"),
        (("runs", "rerun", *MANY, "--created-after", "noon"), "created-after 'noon' is not an"),
        (("runs", "rerun", *MANY, "--created-before", "2026-01-01"), "naive datetime"),
        (("runs", "rerun", *MANY, "--task", "t", "--boundaries", ""), "boundary has 0 characters"),
    ],
)
def test_bad_arguments_are_named(cli: CommandLine, arguments: tuple[str, ...], said: str) -> None:
    assert said in refused(cli(*arguments))


def test_a_request_id_of_another_request_is_bad_input(cli: CommandLine) -> None:
    meant: Callable[..., Any] = lambda task: cli(  # noqa: E731
        "runs", "cancel", "--all-matching", "--task", task, "--request-id", "r"
    )
    assert meant("a").code == 0

    assert "the request id 'r' belongs to another cancel_many" in refused(meant("b"))


def test_files_are_written_where_they_are_said(cli: CommandLine, tmp_path: Path) -> None:
    run_id = enqueue(cli)

    cli.ok("runs", "export", run_id, "--output", str(tmp_path / "é.json"))

    assert json.loads((tmp_path / "é.json").read_bytes())["run"]["id"] == run_id
