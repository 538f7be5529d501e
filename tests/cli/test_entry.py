"""The command as a process: what its help costs, pipes that close, where its options may stand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine
from workhorse.cli.entry import version

HEAVY = {"alembic", "boto3", "botocore", "psycopg", "rich", "sqlalchemy"}
# typer checks the options before a command with pydantic, which the settings need anyway.
HEAVY_AT_THE_ROOT = {*HEAVY, "asyncio", "pydantic"}
COMMANDS = (
    (),
    ("migrate",),
    ("worker",),
    ("maintain",),
    ("enqueue",),
    ("runs",),
    ("runs", "list"),
    ("runs", "show"),
    ("runs", "timeline"),
    ("runs", "signal"),
    ("runs", "cancel"),
    ("runs", "rerun"),
    ("runs", "export"),
    ("runs", "replay"),
    ("waits",),
    ("waits", "list"),
    ("waits", "complete"),
    ("tokens",),
    ("tokens", "complete"),
    ("queues",),
    ("queues", "list"),
    ("queues", "pause"),
    ("queues", "resume"),
    ("doctor",),
    ("rehint",),
    ("dlq",),
    ("dlq", "list"),
    ("dlq", "drain"),
    ("demo",),
)
PROGRAM = """
import json, sys
from workhorse.cli import main
try:
    main()
finally:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("arguments", "heavy", "most"),
    [
        (("--help",), HEAVY_AT_THE_ROOT, 260),
        (("--version",), HEAVY_AT_THE_ROOT, 260),
        (("worker", "--help"), HEAVY, 400),
        (("runs", "show", "--help"), HEAVY, 400),
    ],
)
def test_the_help_imports_little(arguments: tuple[str, ...], heavy: set[str], most: int) -> None:
    """Half a second is the promise; imports are what it would be spent on."""
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=False
    )

    modules = json.loads(told.stderr.splitlines()[-1])
    assert told.returncode == 0
    assert not heavy & {name.partition(".")[0] for name in modules}
    assert len(modules) < most


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help_without_escape_codes(
    cli: CommandLine, command: tuple[str, ...]
) -> None:
    told = cli.ok(*command, "--help")

    assert told.out.startswith(f"Usage: {' '.join(('workhorse', *command))} ")
    assert "\x1b" not in told.out
    assert told.err == ""


def test_the_help_lists_all_commands(cli: CommandLine) -> None:
    out = cli.ok("--help").out

    for name in {command[0] for command in COMMANDS if command}:
        assert f"\n  {name} " in out


def test_the_version_is_the_installed_one(cli: CommandLine) -> None:
    assert cli.ok("--version").out == f"workhorse {version()}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--json", "--app", "shop:app", "runs", "list"),
        ("runs", "list", "--json", "--app", "shop:app"),
        ("--app", "nowhere:app", "runs", "list", "--app", "shop:app", "--json"),
    ],
)
def test_options_stand_before_or_behind_the_command(
    cli: CommandLine, arguments: tuple[str, ...]
) -> None:
    assert cli.ok(*arguments).json == {"runs": [], "before": None}


def test_a_setting_on_the_command_line_stands_above_the_apps_own(
    cli: CommandLine, empty_sqlite_url: str
) -> None:
    (cli.folder / "fixed.py").write_text(
        "from workhorse import Workhorse\napp = Workhorse(database_url='sqlite:///gone/x.sqlite3')\n"
    )

    assert cli("--app", "fixed:app", "runs", "list").code == 7
    cli.ok("--app", "fixed:app", "migrate", "--database-url", empty_sqlite_url)


def test_the_app_is_named_by_the_environment_too(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKHORSE_APP", "shop:app")

    assert cli.ok("enqueue", "orders.charge", "{}").out.startswith("run ")


@pytest.mark.parametrize("arguments", ["--help", "runs list --json --limit 1000"])
def test_a_reader_that_goes_away_is_no_error(cli: CommandLine, arguments: str) -> None:
    command = f"{sys.executable} -m workhorse.cli {arguments} | true; echo ${{PIPESTATUS[0]}}"

    told = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=True, cwd=cli.folder
    )

    # Whether the reader was gone in time is a race; that nobody complains is not.
    assert told.stdout.strip() in ("0", "141")
    assert told.stderr == ""


def test_a_full_device_is_said_so(cli: CommandLine) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    command = f"{sys.executable} -m workhorse.cli runs list > /dev/full"

    told = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=False, cwd=cli.folder
    )

    assert told.returncode not in (0, 1)
    assert "No space left" in told.stderr
    assert "Traceback" not in told.stderr


def test_standard_output_may_be_closed(cli: CommandLine) -> None:
    command = f"{sys.executable} -m workhorse.cli runs list >&-"

    told = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=False, cwd=cli.folder
    )

    assert (told.returncode, told.stderr) == (0, "")


def test_what_a_pipe_cannot_encode_is_escaped(cli: CommandLine) -> None:
    cli.ok("queues", "pause", "mail", "--why", "Übergröße ✓")

    told = subprocess.run(
        [sys.executable, "-m", "workhorse.cli", "queues", "list"],
        capture_output=True,
        check=True,
        cwd=cli.folder,
        env={**_environment(), "PYTHONIOENCODING": "ascii"},
    )

    assert rb"\xdcbergr\xf6\xdfe \u2713" in told.stdout


def _environment() -> dict[str, str]:
    import os

    return dict(os.environ)
