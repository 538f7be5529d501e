"""`workhorse runs replay`: exported with one version of a handler, checked with another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine

BEFORE = """
from workhorse import Workhorse

app = Workhorse()


@app.task("orders.notify")
def notify(order):
    pass


@app.task("orders.charge")
def charge(ctx, order):
    ctx.checkpoint("charge", lambda: print("charging"))
    notify.enqueue(order)
    ctx.checkpoint("ship", lambda: print("shipping"))
"""


@pytest.fixture
def exported(cli: CommandLine) -> Path:
    """A run of the handler as it was, exported to `run.json`."""
    (cli.folder / "shop.py").write_text(BEFORE)
    cli.ok("--app", "shop:app", "enqueue", "orders.charge", "7")
    cli.drain()
    (run,) = cli.ok("runs", "list", "--task", "orders.charge", "--json").json["runs"]
    path = cli.folder / "run.json"
    cli.ok("runs", "export", run["id"], "--output", str(path))
    return path


def test_a_handler_that_is_as_it_was_replays(cli: CommandLine, exported: Path) -> None:
    """No operation is called, and what the handler enqueues does not reach the app's store."""
    before = cli.ok("runs", "list", "--json").json

    told = cli.ok("--app", "shop:app", "runs", "replay", str(exported))

    run_id = json.loads(exported.read_text())["run"]["id"]
    assert told.out == f"run {run_id} replays: 2 boundaries, then the handler returned\n"
    assert cli.ok("runs", "list", "--json").json == before


def test_a_database_of_the_command_line_is_kept_away_too(
    cli: CommandLine, exported: Path, sqlite_url: str
) -> None:
    before = cli.ok("runs", "list", "--json").json

    cli.ok("--app", "shop:app", "--database-url", sqlite_url, "runs", "replay", str(exported))

    assert cli.ok("runs", "list", "--json").json == before


def test_a_difference_is_bad_news_with_its_line(cli: CommandLine, exported: Path) -> None:
    changed = BEFORE.replace('checkpoint("ship"', 'checkpoint("pack"')
    (cli.folder / "shop.py").write_text(changed)
    line = changed.splitlines().index('    ctx.checkpoint("pack", lambda: print("shipping"))') + 1
    place = f"{cli.folder / 'shop.py'}:{line}"

    told = cli("--app", "shop:app", "runs", "replay", str(exported))

    assert told.code == 1
    assert told.out.startswith(f"{place}: run ")
    assert "expected checkpoint 'ship', came a new checkpoint 'pack'" in told.out.replace("\n", " ")
    as_json = cli("--app", "shop:app", "runs", "replay", str(exported), "--json")
    assert as_json.code == 1
    assert as_json.json == {
        "id": json.loads(exported.read_text())["run"]["id"],
        "task": "orders.charge",
        "replays": False,
        "boundary": "ship",
        "expected": "checkpoint 'ship'",
        "came": "a new checkpoint 'pack'",
        "place": place,
    }


def test_a_boundary_may_be_said_to_be_inside_of_another(cli: CommandLine, exported: Path) -> None:
    (cli.folder / "shop.py").write_text(BEFORE.rpartition("    ctx.checkpoint")[0])

    told = cli.ok("--app", "shop:app", "runs", "replay", str(exported), "--optional", "ship")

    assert "1 boundary," in told.out


def test_what_cannot_be_checked_is_bad_input(cli: CommandLine, exported: Path) -> None:
    assert cli("runs", "replay", str(exported)).code == 2  # whose handler?
    assert cli("--app", "shop:app", "runs", "replay", "nowhere.json").code == 2
    exported.write_text("{}")
    assert "no exported run" in cli("--app", "shop:app", "runs", "replay", str(exported)).err
    exported.write_text("{")
    assert cli("--app", "shop:app", "runs", "replay", str(exported)).code == 2
