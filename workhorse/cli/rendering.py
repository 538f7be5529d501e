"""The one place that prints: for people, or with `--json` for programs.

For people: rich tables on a terminal; the same columns without colour, lines or escape codes, and
never cut short, where standard output is none. For programs: one JSON document a command, or one a
line where a command streams. Text that came from outside is shown with its control characters
escaped, so that a run's error message cannot act on an operator's terminal.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TextIO, TypeAlias

from workhorse.cli.texts import plain, shown, visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_STYLES: Final = {
    "succeeded": "green",
    "ok": "green",
    "failed": "red",
    "error": "red",
    "cancelled": "yellow",
    "warning": "yellow",
    "paused": "yellow",
    "running": "cyan",
}


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings; `empty` stands in its place where there are none."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    empty: str = "nothing"
    title: str | None = None


@dataclass(frozen=True, slots=True)
class Fields:
    """Names and values, one a line; what is None is left out."""

    pairs: Sequence[tuple[str, object]]


@dataclass(frozen=True, slots=True)
class Block:
    """Text of several lines under a heading."""

    title: str
    text: str


View: TypeAlias = "str | Table | Fields | Block"


class Renderer:
    """Prints what a command has to say.

    Args:
        json: For programs instead of for people.
        out: Where answers go; standard output.
        err: Where errors, notes and progress go; standard error.
    """

    def __init__(self, *, json: bool, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.json = json
        self._out = out or sys.stdout or io.StringIO()
        self._err = err or sys.stderr or io.StringIO()
        self._consoles: dict[int, Console] = {}

    # -- answers ---------------------------------------------------------------------------------

    def document(self, value: object, *views: View, on_one_line: bool = False) -> None:
        """Print a command's answer: `value` as one JSON document, or `views` for people.

        On one line, it can be told from what handlers printed before it.
        """
        if self.json:
            self._write(json.dumps(plain(value), indent=None if on_one_line else 2))
        else:
            for view in views:
                self._show(view)

    def json_document(self, value: object) -> None:
        """Print what is JSON for people too."""
        self._write(json.dumps(plain(value), indent=2))

    def event(self, value: Mapping[str, object], line: str | None) -> None:
        """Print one part of a stream: a JSON line, or a line for people (None is nothing)."""
        if self.json:
            self._write(json.dumps(plain(value)))
        elif line is not None:
            self._show(line)

    def note(self, text: str) -> None:
        """Tell people something beside the answer; programs are not told."""
        if not self.json:
            self._err.write(f"{visible(text)}\n")

    def error(self, text: str) -> None:
        """Tell what went wrong, on one line of standard error."""
        self._err.write(f"workhorse: {visible(text)}\n")
        self._err.flush()

    # -- what moves ------------------------------------------------------------------------------

    @property
    def is_live(self) -> bool:
        """Whether people are looking at a terminal that can redraw its lines."""
        return not self.json and self._out.isatty() and self._console(self._out).is_terminal

    @contextmanager
    def progress(self, what: str) -> Iterator[Callable[[str], None]]:
        """Show that long work goes on; the function that it yields tells how far it has come.

        Only on a terminal; elsewhere, the answer alone is printed.
        """
        if self.json or not self._err.isatty():
            yield lambda _text: None
            return
        console = self._console(self._err)
        with console.status(_text(f"{what} ...")) as status:
            yield lambda text: status.update(_text(f"{what}: {text}"))

    @contextmanager
    def live(self) -> Iterator[Callable[[Table], None]]:
        """Keep a table at the foot of the terminal; the function that it yields redraws it.

        Lines that are printed meanwhile scroll above it. Where output is no terminal, nothing is
        drawn, and the lines alone tell.
        """
        if not self.is_live:
            yield lambda _table: None
            return
        from rich.live import Live

        console = self._console(self._out)
        with Live(console=console, auto_refresh=False, transient=True) as live:
            yield lambda table: live.update(_rich_table(table), refresh=True)

    # -- how -------------------------------------------------------------------------------------

    def _show(self, view: View) -> None:
        match view:
            case str():
                self._print(_text(view))
            case Table() if not view.rows:
                self._print(_text(view.empty))
            case Table():
                table = _rich_table(view, framed=self._out.isatty())
                if self._fits(table):
                    self._print(table)
                else:
                    self._print_records(view)
            case Fields():
                self._print(_rich_fields(view))
            case Block():
                self._print(_text(f"{view.title}:"))
                indented = "\n".join(f"  {line}" for line in view.text.splitlines())
                self._print(_text(indented, lines=True))

    def _fits(self, table: RenderableType) -> bool:
        """Whether its columns, each as wide as its longest word, stand side by side."""
        from rich.measure import Measurement

        console = self._console(self._out)
        unbounded = console.options.update(width=_NO_WIDTH)
        return Measurement.get(console, unbounded, table).minimum <= console.width

    def _print_records(self, view: Table) -> None:
        """Print each row as fields, where the terminal is too narrow for columns."""
        if view.title is not None:
            self._print(_text(f"{view.title}:"))
        for row in view.rows:
            self._print(_rich_fields(Fields(list(zip(view.columns, row, strict=True)))))
            self._print("")

    def _print(self, what: RenderableType) -> None:
        console = self._console(self._out)
        if self._out.isatty():
            console.print(what)
            return
        with console.capture() as captured:
            console.print(what)
        # rich fills cells up to their column's width, the last one too.
        for line in captured.get().splitlines():
            self._out.write(f"{line.rstrip()}\n")
        self._out.flush()

    def _write(self, text: str) -> None:
        self._out.write(f"{text}\n")
        self._out.flush()

    def _console(self, stream: TextIO) -> Console:
        console = self._consoles.get(id(stream))
        if console is None:
            from rich.console import Console

            terminal = stream.isatty()
            console = Console(
                file=stream,
                # Said, not found out: FORCE_COLOR and the like must not put escapes into a pipe.
                force_terminal=terminal,
                no_color=None if terminal else True,
                color_system="auto" if terminal else None,
                width=None if terminal else _NO_WIDTH,
                highlight=False,
                markup=False,
                emoji=False,
            )
            self._consoles[id(stream)] = console
        return console


_NO_WIDTH: Final = 100_000
"""A pipe has no edge at which anything had to be cut or folded."""


def _text(content: str, *, lines: bool = False) -> RenderableType:
    from rich.text import Text

    return Text(visible(content, lines=lines), style=_style(content))


def _style(content: str) -> str:
    return _STYLES.get(content, "")


def _rich_table(view: Table, *, framed: bool = True) -> RenderableType:
    from rich import box
    from rich.table import Table as RichTable

    table = RichTable(
        title=view.title,
        title_justify="left",
        box=box.SIMPLE_HEAD if framed else None,
        pad_edge=False,
        header_style="bold",
    )
    numbers = [
        all(isinstance(row[at], int) for row in view.rows) for at in range(len(view.columns))
    ]
    for name, right in zip(view.columns, numbers, strict=True):
        # An id that is cut in two cannot be copied.
        table.add_column(
            name,
            justify="right" if right else "left",
            no_wrap=name == "id",
            overflow="fold",
        )
    for row in view.rows:
        table.add_row(*(_cell(value) for value in row))
    return table


def _rich_fields(view: Fields) -> RenderableType:
    from rich.table import Table as RichTable

    grid = RichTable.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column(overflow="fold")
    for name, value in view.pairs:
        if value is not None:
            grid.add_row(name, _cell(value))
    return grid


def _cell(value: object) -> RenderableType:
    from rich.text import Text

    text = shown(value)
    return Text(text, style=_style(text))
