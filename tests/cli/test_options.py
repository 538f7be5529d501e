"""Each setting is an option, an environment variable and a row of the documentation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from workhorse.app import SettingsArguments
from workhorse.cli.invocation import Invocation
from workhorse.cli.options import SETTINGS, _flag
from workhorse.errors import ConfigurationError
from workhorse.settings import Settings, load_settings, overriding

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"
ROW = re.compile(r"^\| `(--[^`]+)` \| `(WORKHORSE_[A-Z_]+)` \| (.*?) \| (.+) \|$", re.MULTILINE)


def fields() -> dict[str, Any]:
    """Return the settings as users call them, with their defaults."""
    names = {name: field.default for name, field in Settings.model_fields.items()}
    names["schema"] = names.pop("schema_name")
    names.pop("app")  # `--app` names it, and it means nothing as an argument of an app
    names.pop("ecs_agent_uri")  # not people's to say: ECS sets its own variable
    names["sqs_queue_urls"] = {}
    return names


def test_each_setting_is_an_option_and_an_argument() -> None:
    assert {option.name for option in SETTINGS} == set(fields())
    # A lane of one's own can be given too, so `lane` has a parameter of its own.
    arguments = set(SettingsArguments.__annotations__) - {"ecs_agent_uri"}
    assert arguments | {"lane"} == set(fields())


def test_an_option_without_a_value_is_a_setting_that_is_true_or_false() -> None:
    assert {option.name for option in SETTINGS if not option.metavar} == {
        name for name, default in fields().items() if isinstance(default, bool)
    }


def test_the_documentation_has_a_row_for_each_setting_with_its_default() -> None:
    rows = {match[1]: (match[2], match[3]) for match in ROW.finditer(DOCS.read_text())}
    app = rows.pop("--app")

    expected = {
        _flag(option): (f"WORKHORSE_{option.name.upper()}", _shown(fields()[option.name]))
        for option in SETTINGS
    }
    assert rows == expected
    assert app == ("WORKHORSE_APP", "none")


def _shown(default: object) -> str:
    if isinstance(default, SecretStr):
        default = default.get_secret_value()
    if default is None or default in ("", {}):
        return "none"
    if isinstance(default, bool):
        return "yes" if default else "no"
    if isinstance(default, tuple):
        default = ",".join(default)
    if isinstance(default, float):
        default = f"{default:g}"
    return f"`{default}`"


def test_what_is_given_later_comes_first_and_none_says_nothing() -> None:
    invocation = Invocation()

    invocation.take({"app": "a:b", "json": True, "concurrency": "1", "schema": None})
    invocation.take({"app": None, "json": False, "concurrency": "2", "sqs_queue_urls": '{"a":"b"}'})

    assert (invocation.app_named, invocation.json) == ("a:b", True)
    assert invocation.settings == {"concurrency": "2", "sqs_queue_urls": {"a": "b"}}


def test_options_stand_above_arguments_while_the_command_runs() -> None:
    with overriding({"concurrency": "7", "schema": "jobs", "lane": "memory"}):
        within = load_settings(concurrency=3, schema="other", lane="sqs")
    after = load_settings(concurrency=3)

    assert (within.concurrency, within.schema_name, within.lane) == (7, "jobs", "memory")
    assert after.concurrency == 3


def test_overrides_end_with_an_error_too() -> None:
    with pytest.raises(ConfigurationError), overriding({"concurrency": "none"}):
        load_settings()

    assert load_settings().concurrency == 10
