"""`workhorse doctor` and `rehint`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from workhorse.cli import exits
from workhorse.cli.invocation import Invocation
from workhorse.cli.options import command
from workhorse.cli.rendering import Table

if TYPE_CHECKING:
    from workhorse.client.admin import Rehinted


_OF_TASKS: Final = ("tasks_", "unknown_task")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "doctor", doctor, shown=("queues", "function_timeout_seconds"))
    command(app, "rehint", rehint)


def doctor(invocation: Invocation) -> int:
    """Examine store, tasks, queues, processes and lane; say what to do."""
    app = invocation.open()
    with invocation.renderer.progress("examining"):
        findings = app.admin.doctor()
    if invocation.app_named is None:
        # Without an app no task is known, so nothing can be said of those that are not.
        findings = [each for each in findings if not each.code.startswith(_OF_TASKS)]
    good = not any(finding.severity.bad for finding in findings)
    rows = [(each.severity, each.code, each.message, each.advice) for each in findings]
    invocation.renderer.document(
        {"ok": good, "tasks_examined": invocation.app_named is not None, "findings": findings},
        Table(("state", "code", "finding", "what to do"), rows),
    )
    if invocation.app_named is None:
        invocation.renderer.note("tasks were not examined: name the app with --app")
    return exits.OK if good else exits.BAD_NEWS


def rehint(
    invocation: Invocation,
    queue: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this queue; else all that are open.")
    ] = None,
) -> int:
    """Send wakeups for all runs that are ready, as after a loss of messages."""
    admin = invocation.open().admin
    with invocation.renderer.progress("sending wakeups") as told:
        done = admin.rehint(queue, progress=lambda so_far: told(_so_far(so_far)))
    rows = [(each.queue, each.ready, each.sent, each.not_sent) for each in done]
    invocation.renderer.document(
        {"queues": done},
        Table(("queue", "ready", "sent", "not sent"), rows, empty="no open queue has ready runs"),
    )
    return exits.BAD_NEWS if any(each.not_sent for each in done) else exits.OK


def _so_far(done: Rehinted) -> str:
    return f"{done.queue}: {done.sent:,} for {done.ready:,} ready runs"
