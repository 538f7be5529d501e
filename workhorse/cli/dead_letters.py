"""`workhorse dlq list` and `drain`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from workhorse.cli import exits
from workhorse.cli.invocation import Invocation
from workhorse.cli.options import command
from workhorse.cli.rendering import Table

if TYPE_CHECKING:
    from workhorse.client.dead_letters import Drained

QueueOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Only that of this queue; else of all.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        help="Look at dead-letter queues, whose messages do no harm, and empty them.",
        rich_markup_mode=None,
    )
    command(group, "list", list_queues)
    command(group, "drain", drain)
    app.add_typer(group, name="dlq")


def list_queues(invocation: Invocation, queue: QueueOption = None) -> int:
    """List the dead-letter queues, with about how many messages they hold."""
    found = invocation.open().admin.dead_letters(queue)
    rows = [
        (each.queue, each.name, each.messages, each.trouble or ("" if each.name else "has none"))
        for each in found
    ]
    invocation.renderer.document(
        {"queues": found}, Table(("queue", "dead-letter queue", "messages", ""), rows)
    )
    return exits.BAD_NEWS if any(each.trouble for each in found) else exits.OK


def drain(
    invocation: Invocation,
    queue: QueueOption = None,
    most: Annotated[
        int | None, typer.Option("--max", metavar="N", min=1, help="Look at no more messages.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="Begin nothing new after this time.")
    ] = 300,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only look: send and delete nothing.")
    ] = False,
) -> int:
    """Hold each dead-lettered message against the store, wake its run if it is ready, delete it."""
    admin = invocation.open().admin
    with invocation.renderer.progress("looking" if dry_run else "draining") as told:
        done = admin.drain_dead_letters(
            queue,
            most=most,
            seconds=seconds,
            dry_run=dry_run,
            progress=lambda so_far: told(f"{so_far.queue}: {so_far.looked_at:,} messages"),
        )
    rows = [
        (
            each.queue,
            each.name,
            each.looked_at,
            ", ".join(f"{count:,} {name}" for name, count in each.outcomes.items()),
            each.sent,
            each.deleted,
            _ENDS.get(each.ended or "", "-"),
        )
        for each in done
    ]
    columns = ("queue", "dead-letter queue", "looked at", "runs", "sent", "deleted", "end")
    invocation.renderer.document({"queues": done}, Table(columns, rows))
    return exits.BAD_NEWS if _is_bad(done) else exits.OK


_ENDS: Final = {
    "no_queue": "has none",
    "empty": "empty",
    "most": "as many as asked for",
    "time": "time is up",
    "not_sent": "wakeups could not be sent; their messages were left",
    "not_deleted": "messages could not be deleted",
}


def _is_bad(done: list[Drained]) -> bool:
    return any(each.ended is not None and each.ended.bad for each in done)
