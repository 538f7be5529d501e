"""What an error means to somebody at a terminal: an exit code and one line.

Lines never hold payloads, values or credentials. A driver's message can: of it, only the first line
is shown, and its details and parameters never are.
"""

from __future__ import annotations

from typing import Final

import typer

from workhorse.cli import exits
from workhorse.errors import (
    ResultTimeoutError,
    RunCancelledError,
    RunFailedError,
    StoreUnavailableError,
    WorkhorseError,
)
from workhorse.ports import LaneError

_BAD_NEWS: Final = (RunFailedError, RunCancelledError, ResultTimeoutError)
_LONGEST: Final = 2_000
_DRIVERS: Final = ("sqlalchemy", "sqlite3", "psycopg")
# typer brings its own copy of click, or click itself, by its version; both have this class.
_CommandLineError: Final = typer.BadParameter.__mro__[2]


def explain(error: BaseException) -> tuple[int, str | None]:
    """Return an exit code and the line that says what happened; None where none is due."""
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return exits.INTERRUPTED, None
    if isinstance(error, SystemExit):
        return (error.code if isinstance(error.code, int) else exits.BUG), None
    if isinstance(error, _CommandLineError):
        return exits.BAD_INPUT, _usage(error)
    if isinstance(error, StoreUnavailableError):
        return exits.STORE_UNAVAILABLE, one_line(error)
    if isinstance(error, _BAD_NEWS):
        return exits.BAD_NEWS, one_line(error)
    if isinstance(error, LaneError):
        return exits.BAD_NEWS, one_line(error)
    if isinstance(error, WorkhorseError):
        return exits.BAD_INPUT, one_line(error)
    if _of_a_driver(error):
        return exits.STORE_UNAVAILABLE, f"the database refused: {_driver_line(error)}"
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        return exits.IO_ERROR, f"the operating system refused: {error.strerror}{where}"
    return exits.BUG, f"unexpected error, please report it: {type(error).__name__}"


def cut(line: str) -> str:
    """Return a line that a terminal can show: what it names may be as long as an argument is."""
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."


def one_line(error: BaseException) -> str:
    """Return an error's message and notes on one line."""
    parts = [str(error), *getattr(error, "__notes__", ())]
    return " ".join("; ".join(parts).split())


def _usage(error: BaseException) -> str:
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    text = " ".join(message.split()).rstrip(".")
    text = text[:1].lower() + text[1:] if text[:2].istitle() or text[1:2] == " " else text
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "workhorse"
    return f"{text}; see `{path} --help`"


def _of_a_driver(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] in _DRIVERS


def _driver_line(error: BaseException) -> str:
    cause = getattr(error, "orig", None) or error
    state = getattr(cause, "sqlstate", None)
    said = str(cause).strip().partition("\n")[0]
    return f"{type(cause).__name__}{f' {state}' if state else ''}: {said[:200]}"
