"""The one place that prints, on terminals, pipes and for programs."""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workhorse.cli.rendering import Block, Fields, Renderer, Table
from workhorse.cli.texts import plain, shown, visible
from workhorse.domain.runs import RunState

AT = datetime(2026, 1, 31, 9, 0, 0, 5, tzinfo=timezone(timedelta(hours=1)))
TABLE = Table(("id", "state", "count"), [("a" * 60, RunState.FAILED, 1_000), ("b", None, 2)])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


def people(*, terminal: bool = False) -> tuple[Renderer, io.StringIO, io.StringIO]:
    out, err = (Terminal(), Terminal()) if terminal else (io.StringIO(), io.StringIO())
    return Renderer(json=False, out=out, err=err), out, err


def test_a_pipe_gets_columns_that_are_never_cut() -> None:
    renderer, out, _ = people()

    renderer.document({}, TABLE)

    assert out.getvalue().splitlines() == [
        f"{'id':<60}  state   count",
        f"{'a' * 60}  failed  1,000",
        f"{'b':<60}  -           2",
    ]


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
def test_a_narrow_terminal_loses_no_column_and_breaks_no_word_that_fits(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    """At the usual 80 columns, a list of runs was a few letters a line; at 40, ids alone."""
    monkeypatch.setenv("COLUMNS", str(columns))
    renderer, out, _ = people(terminal=True)
    run_id = "01a229f0-d214-713c-9686-0a73595a3fa6"

    renderer.document(
        {},
        Table(
            ("id", "task", "state", "created", "finished"),
            [(run_id, "orders.ship", RunState.SUCCEEDED, AT, AT)],
            title="runs",
        ),
    )

    said = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    assert max(map(len, said.splitlines())) <= columns
    assert run_id in "".join(said.split())
    assert (run_id in said) == (columns >= 80)
    for word in ("task", "state", "created", "finished", "2026-01-31"):
        assert word in said
    for word in ("orders.ship", "succeeded"):
        assert word in said or columns == 20


def test_colour_that_is_forced_does_not_reach_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    renderer, out, _ = people()

    renderer.document({}, TABLE, Fields([("state", "failed")]), "text")

    assert "\x1b" not in out.getvalue()


def test_a_terminal_gets_colour_unless_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    renderer, out, _ = people(terminal=True)
    renderer.document({}, TABLE)
    assert "\x1b[31mfailed" in out.getvalue()

    monkeypatch.setenv("NO_COLOR", "1")
    renderer, out, _ = people(terminal=True)
    renderer.document({}, TABLE)
    assert "\x1b[31m" not in out.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_text_from_outside_is_neither_markup_nor_control(terminal: bool) -> None:
    evil = "[bold]x[/bold] :smile: \x1b[2J\r\n\x07 \u202egnp.exe"
    renderer, out, err = people(terminal=terminal)

    renderer.document({}, Table(("a",), [(evil,)]), Fields([("a", evil)]), evil)
    renderer.note(evil)
    renderer.error(evil)

    for said in (out.getvalue(), err.getvalue()):
        assert "[bold]x[/bold] :smile:" in said
        assert r"\x1b[2J\r\n\x07" in said
        assert not {"\x07", "\r", "\u202e"} & set(said)
        assert "\x1b[2J" not in said


def test_blocks_keep_their_lines_and_nothing_else() -> None:
    renderer, out, _ = people()

    renderer.document({}, Block("traceback", "one\n\ttwo\x1b[2J\n"))

    assert out.getvalue() == "traceback:\n  one\n        two\\x1b[2J\n"


def test_an_empty_table_says_what_there_is_none_of() -> None:
    renderer, out, _ = people()

    renderer.document({}, Table(("a",), [], empty="no runs"))

    assert out.getvalue() == "no runs\n"


def test_fields_leave_out_what_is_none() -> None:
    renderer, out, _ = people()

    renderer.document({}, Fields([("a", 1), ("b", None), ("name", "x")]))

    assert out.getvalue() == "a     1\nname  x\n"


@dataclass
class Thing:
    at: datetime
    state: RunState
    parts: tuple[str, ...]


def test_a_document_for_programs_is_one_and_in_utc() -> None:
    out = io.StringIO()

    Renderer(json=True, out=out).document({"thing": Thing(AT, RunState.READY, ("ü",))}, TABLE)

    assert json.loads(out.getvalue()) == {
        "thing": {"at": "2026-01-31T08:00:00.000005Z", "state": "ready", "parts": ["ü"]}
    }
    assert out.getvalue().isascii()


def test_a_stream_for_programs_is_a_line_each() -> None:
    out = io.StringIO()
    renderer = Renderer(json=True, out=out)

    renderer.event({"n": 1}, "for people")
    renderer.document({"n": 2}, on_one_line=True)
    renderer.note("for people")

    assert [json.loads(line) for line in out.getvalue().splitlines()] == [{"n": 1}, {"n": 2}]


def test_what_json_cannot_carry_is_a_mistake_of_ours() -> None:
    with pytest.raises(TypeError, match="no JSON for a object"):
        plain(object())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        ("", "-"),
        (True, "yes"),
        (False, "no"),
        (1234567, "1,234,567"),
        (RunState.READY, "ready"),
        (AT, "2026-01-31 08:00:00Z"),
        (("a", "b"), "a, b"),
        ([], "-"),
        ("a\nb", r"a\nb"),
    ],
)
def test_values_as_people_read_them(value: Any, text: str) -> None:
    assert shown(value) == text


@given(st.text())
def test_what_is_visible_is_printable_or_plain_space(text: str) -> None:
    assert not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in visible(text))
    assert set(visible(text, lines=True)) & set(map(chr, range(32))) <= {"\n", "\t"}


def test_progress_is_seen_on_a_terminal_only() -> None:
    renderer, _, err = people(terminal=True)
    with renderer.progress("waiting") as told:
        told("half")
    assert "waiting" in err.getvalue()

    renderer, _, err = people()
    with renderer.progress("waiting") as told:
        told("half")
    assert err.getvalue() == ""


def test_a_live_table_is_drawn_on_a_terminal_and_gone_afterwards() -> None:
    renderer, out, _ = people(terminal=True)
    with renderer.live() as draw:
        draw(Table(("process",), [("worker",)]))
        renderer.event({}, "a line above it")
    assert renderer.is_live
    assert "worker" in out.getvalue()
    assert "a line above it" in out.getvalue()
    assert "\x1b[?25h" in out.getvalue()  # the cursor is back

    renderer, out, _ = people()
    with renderer.live() as draw:
        draw(Table(("process",), [("worker",)]))
    assert not renderer.is_live
    assert out.getvalue() == ""


def test_instants_of_any_zone_are_told_in_utc() -> None:
    assert plain(AT.astimezone(UTC)) == plain(AT)
