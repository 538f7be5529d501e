"""From the arguments to an exit code: what a command raises becomes one line and a number."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from workhorse.cli import (
    dead_letters,
    demo_command,
    examining,
    exits,
    failures,
    fleet,
    processing,
    producing,
    queues,
    runs,
    waits,
)
from workhorse.cli.invocation import Invocation
from workhorse.cli.options import GLOBAL_OPTIONS, accept_globals

PROGRAM = "workhorse"
DISTRIBUTION = "workhorse-lanes"


def run(arguments: Sequence[str]) -> int:
    """Run one command line; return the exit code. Errors are told on standard error."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal or a pipe that cannot show a character gets its escape instead of a traceback.
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    invocation = Invocation()
    try:
        with invocation:
            code = _dispatch(arguments, invocation)
            _flush()
    except BaseException as error:  # noqa: BLE001 - the last frame: whatever it is becomes a code
        code = _told(error, invocation)
        try:
            _flush()
        except OSError:
            code = exits.BROKEN_PIPE
            _give_up_output()
    return code


def build() -> typer.Typer:
    """Return the command with all its parts."""
    app = typer.Typer(
        name=PROGRAM,
        help="Durable background runs: the truth in PostgreSQL or SQLite, wakeups over SQS.",
        epilog="Each setting can also be given as WORKHORSE_<NAME>, e.g. WORKHORSE_DATABASE_URL. "
        "Options of this page may stand before or behind the command.",
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(accept_globals(_root, own=_ROOT_OPTIONS, shown=set(GLOBAL_OPTIONS)))
    processing.register(app)
    producing.register(app)
    runs.register(app)
    waits.register(app)
    queues.register(app)
    fleet.register(app)
    examining.register(app)
    dead_letters.register(app)
    demo_command.register(app)
    return app


def version() -> str:
    """Return the installed version."""
    from importlib import metadata  # costs as much as all the rest of the help

    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "not installed"


def _root(_invocation: Invocation) -> None:
    """Take the options that stand before the command."""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"{PROGRAM} {version()}")
        raise typer.Exit


_ROOT_OPTIONS: dict[str, Any] = {
    "version": Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ]
}


def _dispatch(arguments: Sequence[str], invocation: Invocation) -> int:
    command = typer.main.get_command(build())
    answer = command.main(
        args=list(arguments), prog_name=PROGRAM, standalone_mode=False, obj=invocation
    )
    return answer if isinstance(answer, int) else exits.OK


def _told(error: BaseException, invocation: Invocation) -> int:
    """Tell an error on standard error and return its code."""
    # typer turns a pipe whose reader has gone into an exit of its own.
    if isinstance(error, BrokenPipeError) or isinstance(error.__context__, BrokenPipeError):
        _give_up_output()
        return exits.BROKEN_PIPE
    code, line = failures.explain(error)
    if line is None:
        return code
    with contextlib.suppress(OSError):
        invocation.renderer.error(failures.cut(line))
        if invocation.wants_traceback or code == exits.BUG:
            traceback.print_exception(error, file=sys.stderr)
    return code


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _give_up_output() -> None:
    """Keep the interpreter's own last flush from complaining about a reader that has gone."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
