"""The log of a command: one line a record, for people or as JSON."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from workhorse.cli.logs import JsonFormatter, TextFormatter, set_up_logging
from workhorse.settings import load_settings


@contextmanager
def nothing_set_up() -> Iterator[None]:
    """Take away what pytest has set up, inside of the test: it does so after the fixtures."""
    root, log, chatty = (logging.getLogger(name) for name in (None, "workhorse", "botocore"))
    before = root.level, list(root.handlers), log.level, chatty.level
    root.handlers[:] = []
    try:
        yield
    finally:
        root.level, root.handlers[:], log.level, chatty.level = before


def record(message: str, *, error: BaseException | None = None) -> logging.LogRecord:
    trace = (type(error), error, error.__traceback__) if error else None
    made = logging.LogRecord("workhorse.worker", logging.INFO, "", 0, message, (), trace)
    made.created, made.msecs = 1_769_846_400.25, 250
    return made


def an_error() -> ValueError:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        return error


def test_a_line_for_people() -> None:
    line = TextFormatter().format(record("a\nb \x1b[31m"))

    assert line == r"2026-01-31T08:00:00.250Z INFO worker: a\nb \x1b[31m"


def test_tracebacks_are_indented_below() -> None:
    first, *rest = TextFormatter().format(record("failed", error=an_error())).splitlines()

    assert first.endswith("worker: failed")
    assert rest[0] == "    Traceback (most recent call last):"
    assert all(line.startswith("    ") for line in rest)


def test_a_line_for_programs() -> None:
    line = JsonFormatter().format(record("a\nb", error=an_error()))

    assert "\n" not in line
    told = json.loads(line)
    assert (told["at"], told["level"]) == ("2026-01-31T08:00:00.250Z", "INFO")
    assert (told["logger"], told["message"]) == ("workhorse.worker", "a\nb")
    assert told["traceback"].endswith("ValueError: two\nlines")
    assert "traceback" not in json.loads(JsonFormatter().format(record("well")))


def test_a_short_command_tells_of_trouble_only() -> None:
    with nothing_set_up():
        set_up_logging(load_settings(), long_running=False)

        assert logging.getLogger("workhorse").level == logging.WARNING


def test_a_process_tells_what_the_setting_says(capsys: pytest.CaptureFixture[str]) -> None:
    with nothing_set_up():
        set_up_logging(load_settings(log_level="info"), long_running=True)

        logging.getLogger("workhorse.worker").info("hello")
        logging.getLogger("botocore.credentials").info("found them")

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.endswith(" INFO worker: hello\n")


def test_debug_is_debug_in_a_short_command_too() -> None:
    with nothing_set_up():
        set_up_logging(load_settings(log_level="DEBUG", log_format="json"), long_running=False)

        (handler,) = logging.getLogger().handlers
        assert logging.getLogger("workhorse").level == logging.DEBUG
        assert isinstance(handler.formatter, JsonFormatter)


def test_logging_that_the_app_has_set_up_stays() -> None:
    with nothing_set_up():
        own = logging.StreamHandler(sys.stderr)
        logging.getLogger().addHandler(own)

        set_up_logging(load_settings(), long_running=True)

        assert logging.getLogger().handlers == [own]
