"""`workhorse runs list`, `show`, `cancel` and `rerun`."""

from __future__ import annotations

from typing import Annotated

import typer

from workhorse.cli import exits
from workhorse.cli.inputs import os_user
from workhorse.cli.invocation import Invocation
from workhorse.cli.options import command

RunIdArgument = Annotated[str, typer.Argument(metavar="RUN_ID", help="As `runs list` shows it.")]
ByOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Who asks, for the audit; the OS user.")
]
WhyOption = Annotated[str, typer.Option(metavar="TEXT", help="Why, for the audit.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="Look at runs, cancel them, run them again.", rich_markup_mode=None)
    command(group, "list", list_runs)
    command(group, "show", show)
    command(group, "cancel", cancel)
    command(group, "rerun", rerun)
    app.add_typer(group, name="runs")


def list_runs(
    invocation: Invocation,
    state: Annotated[
        str | None, typer.Option(metavar="STATE", help="Only runs in it, e.g. failed.")
    ] = None,
    task: Annotated[str | None, typer.Option(metavar="TASK", help="Only runs of it.")] = None,
    queue: Annotated[str | None, typer.Option(metavar="NAME", help="Only runs in it.")] = None,
    limit: Annotated[int, typer.Option(metavar="N", help="How many, up to 1,000.")] = 50,
    before: Annotated[
        str | None, typer.Option(metavar="RUN_ID", help="Go on behind the last one of a page.")
    ] = None,
) -> int:
    """List runs, the newest first, without payloads and results."""
    from workhorse.cli.views import run_summary, runs_table

    admin = invocation.open().admin
    found = admin.list_runs(state=state, task=task, queue=queue, limit=limit, before=before)
    more = found[-1].id if len(found) == limit else None
    invocation.renderer.document(
        {"runs": [run_summary(run) for run in found], "before": more}, runs_table(found)
    )
    if more is not None:
        invocation.renderer.note(f"older ones: --before {more}")
    return exits.OK


def show(invocation: Invocation, run_id: RunIdArgument) -> int:
    """Show a run whole: payload, result, failed attempts, and what operators did to it."""
    from workhorse.cli.views import run_document, run_views
    from workhorse.store import history

    app = invocation.open()
    run = app.admin.show(run_id)
    attempts = app.store.run(history.attempts_of, run.id)
    acts = app.store.run(history.acts_on, run.id)
    invocation.renderer.document(run_document(run, attempts, acts), *run_views(run, attempts, acts))
    return exits.OK


def cancel(
    invocation: Invocation, run_id: RunIdArgument, by: ByOption = None, why: WhyOption = ""
) -> int:
    """Cancel a run; one that is running is asked to end, and ends as cancelled."""
    from workhorse.domain.runs import RunState

    state = invocation.open().admin.cancel(run_id, by=by or os_user(), why=why)
    if state is RunState.CANCELLED:
        told = "is cancelled"
    elif state.finished:
        told = f"had ended before, as {state}"
    else:
        told = "is running; it was asked to end, and ends as cancelled"
    invocation.renderer.document({"id": run_id, "state": state}, f"run {run_id} {told}")
    return exits.OK


def rerun(
    invocation: Invocation,
    run_id: RunIdArgument,
    by: ByOption = None,
    why: WhyOption = "",
    request_id: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="The same one starts one run, however often it is sent."),
    ] = None,
) -> int:
    """Start a finished run again: a new run, linked to it, with the same payload."""
    admin = invocation.open().admin
    run = admin.rerun(run_id, by=by or os_user(), why=why, request_id=request_id)
    what = "is a new run of" if run.created else "was started by this request before; it reruns"
    invocation.renderer.document(
        {"id": run.id, "rerun_of": run_id, "created": run.created, "queue": run.queue},
        f"run {run.id} {what} {run_id}",
    )
    return exits.OK
