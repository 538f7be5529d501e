"""`workhorse demo`."""

from __future__ import annotations

from typing import Annotated

import typer

from workhorse.cli.invocation import Invocation
from workhorse.cli.options import command


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "demo", demo, taken=("json",))


def demo(
    invocation: Invocation,
    lane: Annotated[
        str, typer.Option(metavar="LANE", help="sqs (an emulator is started), or polling.")
    ] = "sqs",
) -> int:
    """Watch a small fleet at work on parts of its own: kills, retries, stale messages."""
    from workhorse.cli.demo.running import run_demo

    return run_demo(invocation.renderer, lane)
