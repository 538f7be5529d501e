"""`workhorse queues list`, `pause` and `resume`."""

from __future__ import annotations

from typing import Annotated

import typer

from workhorse.cli import exits
from workhorse.cli.inputs import os_user
from workhorse.cli.invocation import Invocation
from workhorse.cli.options import command
from workhorse.cli.rendering import Table
from workhorse.cli.run_acts import ByOption, WhyOption

QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="Look at queues, pause and resume them.", rich_markup_mode=None)
    command(group, "list", list_queues)
    command(group, "pause", pause)
    command(group, "resume", resume)
    app.add_typer(group, name="queues")


def list_queues(invocation: Invocation) -> int:
    """List the queues that hold unfinished runs, or were paused once."""
    found = invocation.open().admin.list_queues()
    rows = [
        (
            queue.name,
            "open" if queue.paused_at is None else "paused",
            queue.ready,
            queue.scheduled,
            queue.running,
            queue.waiting,
            queue.paused_by,
            queue.paused_why,
        )
        for queue in found
    ]
    columns = ("queue", "state", "ready", "scheduled", "running", "waiting", "by", "why")
    invocation.renderer.document(
        {"queues": found}, Table(columns, rows, empty="no queue holds unfinished runs")
    )
    return exits.OK


def pause(
    invocation: Invocation, queue: QueueArgument, by: ByOption = None, why: WhyOption = ""
) -> int:
    """Stop claims from a queue; what is running goes on."""
    changed = invocation.open().admin.pause_queue(queue, by=by or os_user(), why=why)
    told = "is paused" if changed else "was paused already"
    invocation.renderer.document(
        {"queue": queue, "paused": True, "changed": changed}, f"queue {queue} {told}"
    )
    return exits.OK


def resume(
    invocation: Invocation, queue: QueueArgument, by: ByOption = None, why: WhyOption = ""
) -> int:
    """Open a queue again, and wake workers for it."""
    changed = invocation.open().admin.resume_queue(queue, by=by or os_user(), why=why)
    told = "is open again" if changed else "was open already"
    invocation.renderer.document(
        {"queue": queue, "paused": False, "changed": changed}, f"queue {queue} {told}"
    )
    return exits.OK
