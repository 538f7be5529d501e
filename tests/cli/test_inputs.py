"""What people type: durations, instants, files, and who they are."""

from __future__ import annotations

import contextlib
import pwd
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workhorse.cli.inputs import os_user, parse_duration, parse_instant, read_lines, read_text
from workhorse.errors import ConfigurationError, InvalidInstantError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("0", 0),
        (" 1.5 ", 1.5),
        ("1.5s", 1.5),
        ("250ms", 0.25),
        ("5m", 300),
        ("1h30m", 5400),
        ("1D", 86_400),
        ("1d2h3m4s5ms", 93_784.005),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration("delay", text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", "soon", "-1", "1 h", "1h 30m", "1x", "h", "1..5s", "1e3", "nan", "inf", "٣"]
)
def test_what_is_no_duration_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidInstantError, match="^delay '"):
        parse_duration("delay", text)


@given(st.text(max_size=30))
def test_no_text_makes_another_error(text: str) -> None:
    with contextlib.suppress(InvalidInstantError):
        assert parse_duration("delay", text) >= timedelta(0)


def test_instants_are_iso_8601() -> None:
    assert parse_instant("run_at", "2026-01-31T08:00:00Z") == datetime(2026, 1, 31, 8, tzinfo=UTC)
    with pytest.raises(InvalidInstantError, match="run_at 'noon' is not an instant"):
        parse_instant("run_at", "noon")


def test_text_comes_as_it_is_or_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "payload"
    path.write_text("from a file")

    assert read_text("{}") == "{}"
    assert read_text(f"@{path}") == "from a file"
    assert list(read_lines("a\nb")) == ["a", "b"]


@pytest.mark.parametrize("read", [read_text, lambda argument: list(read_lines(argument))])
def test_a_file_that_is_no_text_or_not_there_is_named(tmp_path: Path, read: object) -> None:
    assert callable(read)
    path = tmp_path / "payload"
    path.write_bytes(b"\n\xff")

    with pytest.raises(ConfigurationError, match=f"^{path} is no UTF-8"):
        read(f"@{path}")
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        read(f"@{tmp_path}/nothing")


@pytest.mark.parametrize("read", [read_text, lambda argument: list(read_lines(argument))])
def test_a_standard_input_that_is_closed_cannot_be_read(
    read: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python has none at all then."""
    monkeypatch.setattr(sys, "stdin", None)

    with pytest.raises(ConfigurationError, match="standard input cannot be read: it is closed"):
        read("-")


def test_a_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    assert os_user()
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert os_user().startswith("uid ")
