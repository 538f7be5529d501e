"""Bad input gets one clear line on standard error and an exit code, never a traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine, Told

SHOP = ("--app", "shop:app")
CHARGE = (*SHOP, "enqueue", "orders.charge")


def refused(told: Told, code: int = 2) -> str:
    """Return the one line that a refused command line says."""
    assert told.code == code, told
    assert told.out == ""
    assert told.err.startswith("workhorse: ")
    assert told.err.count("\n") == 1
    assert "Traceback" not in told.err
    return told.err.removeprefix("workhorse: ").rstrip("\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "missing command; see `workhorse --help`"),
        (("frobnicate",), "no such command 'frobnicate'"),
        (("runs",), "missing command; see `workhorse runs --help`"),
        (("runs", "shwo"), "no such command 'shwo'"),
        (("runs", "show"), "missing argument 'RUN_ID'; see `workhorse runs show --help`"),
        (("runs", "list", "--colour"), "no such option"),
        (("runs", "list", "--limit", "many"), "invalid value for '--limit'"),
        (("runs", "list", "--limit", "0"), "limit is 0; it must be 1 to 1,000"),
        (("runs", "list", "--state", "lost"), "state 'lost' is none of: scheduled, ready"),
        (("runs", "list", "--queue", "No Such"), "queue 'No Such' is not a name"),
        (("runs", "list", "--before", "x"), "run id 'x' is not a UUID"),
        (("runs", "show", "12"), "run id '12' is not a UUID; `workhorse runs list` shows"),
        (("queues", "pause", "UPPER"), "queue 'UPPER' is not a name"),
        (("queues", "pause", "a", "--by", ""), None),
        (("queues", "pause", "a", "--by", "x" * 2_000), "by has 2,000 characters"),
        (("enqueue", "orders.charge"), "this command needs an app's tasks; name the app with"),
        (("worker",), "this command needs an app's tasks"),
        ((*SHOP, "worker", "--queue", "a,B"), "queue 'B' is not a name"),
        ((*SHOP, "enqueue", "orders.chrge"), "did you mean 'orders.charge'"),
        ((*CHARGE, '{"a" 1}'), "the text is no JSON: Expecting ':' delimiter at line 1, column 6"),
        ((*CHARGE, "[1]"), "payload of task 'orders.charge': $ is of type list"),
        ((*CHARGE, '{"a": NaN}'), "payload of task 'orders.charge'"),
        ((*CHARGE, "@nowhere.json"), "nowhere.json cannot be read: No such file or directory"),
        ((*CHARGE, "@."), ". cannot be read: Is a directory"),
        ((*CHARGE, "{}", "--delay", "soon"), "delay 'soon' is not a duration; write seconds"),
        ((*CHARGE, "{}", "--delay", "-5"), "delay '-5' is not a duration"),
        ((*CHARGE, "{}", "--delay", "366d"), "delay is longer than 365 days"),
        ((*CHARGE, "{}", "--delay", "9" * 400), "is too long"),
        ((*CHARGE, "{}", "--run-at", "noon"), "run_at 'noon' is not an instant in ISO 8601"),
        ((*CHARGE, "{}", "--run-at", "2030-01-01T00:00"), "run_at is a naive datetime"),
        ((*CHARGE, "{}", "--run-at", "2020-01-01T00:00Z", "--delay", "1"), "both given"),
        ((*CHARGE, "{}", "--priority", "101"), "priority 101 is not a whole number from 0 to"),
        ((*CHARGE, "{}", "--max-attempts", "0"), "max_attempts is 0"),
        ((*CHARGE, "{}", "--timeout", "0"), "timeout is zero"),
        ((*CHARGE, "{}", "--key", "k" * 300), "idempotency key has 300 characters"),
        ((*CHARGE, "{}", "--lines", "--key", "k"), "--lines makes many runs"),
        (("runs", "list", "--concurrency", "many"), "settings: concurrency: "),
        (("runs", "list", "--lease-seconds", "0"), "settings: lease_seconds: "),
        (("runs", "list", "--log-level", "loud"), "settings: log_level: "),
        (("runs", "list", "--sqs-queue-urls", "{"), "settings: sqs_queue_urls: the text is no"),
        (("--database-url", "nonsense", "runs", "list"), "database_url is not a URL"),
        (("runs", "list", "--database-url", "mysql://h/d"), "database_url names 'mysql'"),
        ((*CHARGE, "{}", "--lane", "pigeon"), "lane 'pigeon' is not installed; these are: memory"),
        (("demo", "--lane", "pigeon"), "the demo knows the lanes sqs and polling"),
        (("demo", "--database-url", "sqlite:///x"), "no such option"),
    ],
)
def test_bad_arguments_are_named(
    cli: CommandLine, arguments: tuple[str, ...], said: str | None
) -> None:
    told = cli(*arguments)

    if said is None:  # an empty name is no name: the OS user stands in
        assert told.code == 0
    else:
        assert said in refused(told)


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("shop", "app 'shop' is not of the form module:attribute, e.g. shop.jobs:app"),
        ("shop:", "is not of the form module:attribute"),
        ("shop.py:app.", "is not of the form module:attribute"),
        ("shpo:app", "app: there is no module 'shpo', neither in "),
        ("shop.jobs:app", "app: there is no module 'shop.jobs'"),
        ("shop:ap", "app 'shop:ap': shop has no 'ap'; did you mean 'app'?"),
        ("shop:something", "app 'shop:something' is a str, not a Workhorse"),
        ("shop:charge", "app 'shop:charge' is a Task, not a Workhorse"),
        ("holder:shop", "app 'holder:shop' is a module, not a Workhorse; that module holds app"),
        ("needs:app", "No module named 'a_lost_dependency' (needs.py, line 2)"),
        ("broken:app", "app: the module broken failed while it was imported: SyntaxError: "),
        (
            "exits:app",
            "app: the module exits failed while it was imported: SystemExit: 3 (exits.py",
        ),
        ("wrong:app", "ConfigurationError: settings: lease_seconds: "),
        ("package:app", "the module package failed while it was imported: ZeroDivisionError"),
        ("package.part:app", "the module package.part failed while it was imported: ZeroDivision"),
    ],
)
def test_an_app_that_cannot_be_loaded_says_why(cli: CommandLine, reference: str, said: str) -> None:
    modules = {
        "holder.py": "import shop\n",
        "needs.py": "import json\nimport a_lost_dependency\n",
        "broken.py": "def (:\n",
        "exits.py": "raise SystemExit(3)\n",
        "wrong.py": "from workhorse import Workhorse\napp = Workhorse(lease_seconds=-1)\n",
        "package/__init__.py": "1 / 0\n",
        "package/part.py": "",
    }
    for name, text in modules.items():
        path = cli.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    assert said in refused(cli("--app", reference, "runs", "list"))


def test_a_setting_in_the_environment_is_named_and_not_shown(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKHORSE_CONCURRENCY", "s3cret")

    line = refused(cli("runs", "list"))

    assert line.startswith("settings: concurrency: ")
    assert "s3cret" not in line


def test_a_store_out_of_reach_has_a_code_of_its_own(cli: CommandLine, tmp_path: Path) -> None:
    nowhere = f"sqlite:///{tmp_path}/no/such/folder.sqlite3"

    assert "unable to open database file" in refused(
        cli("runs", "list", "--database-url", nowhere), 7
    )
    assert "unable to open" in refused(cli("migrate", "--database-url", nowhere), 7)


def test_a_file_that_is_no_database_is_refused(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear database, " * 100)

    line = refused(cli("runs", "list", "--database-url", f"sqlite:///{tmp_path}/letter"), 7)

    assert "file is not a database" in line


def test_a_missing_schema_says_how_to_make_it(
    make_cli: Callable[[str], CommandLine], empty_database_url: str
) -> None:
    line = refused(make_cli(empty_database_url)("runs", "list"))

    assert "has no Workhorse tables" in line
    assert line.endswith("run `workhorse migrate`")


def test_the_demo_without_moto_says_what_to_install(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "moto", None)

    line = refused(cli("demo"))

    assert "pip install 'moto[server,sqs]'" in line
    assert "`workhorse demo --lane polling`" in line


def test_what_nobody_foresaw_is_a_bug_with_its_traceback(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(*_args: object, **_kwargs: object) -> None:
        raise RuntimeError("a payload: 4000")

    monkeypatch.setattr("workhorse.client.admin.Admin.list_queues", explode)

    told = cli("queues", "list")

    assert told.code == 70
    assert told.err.startswith("workhorse: unexpected error, please report it: RuntimeError\n")
    assert "Traceback" in told.err


def test_debug_shows_the_traceback_of_bad_input_too(cli: CommandLine) -> None:
    told = cli("runs", "show", "12", "--log-level", "debug")

    assert told.code == 2
    assert "InvalidNameError" in told.err
    assert "Traceback" in told.err


def test_an_interrupt_is_130_and_says_nothing(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_args: object, **_kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("workhorse.client.admin.Admin.list_queues", interrupt)

    told = cli("queues", "list")

    assert (told.code, told.out, told.err) == (130, "", "")
