"""`workhorse runs`: list, show, timeline, export, replay, signal, cancel, rerun."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Final

import typer

from workhorse.cli import exits
from workhorse.cli.invocation import Invocation
from workhorse.cli.options import command
from workhorse.cli.replaying import replay
from workhorse.cli.run_acts import cancel, rerun
from workhorse.cli.waits import RunIdArgument, signal

SHOWN: Final = 1_000
"""Checkpoints and waits that are shown with their run, the first ones."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        help="Look at runs, send them signals, cancel them, run them again.", rich_markup_mode=None
    )
    command(group, "list", list_runs)
    command(group, "show", show)
    command(group, "timeline", timeline)
    command(group, "signal", signal)
    command(group, "cancel", cancel)
    command(group, "rerun", rerun)
    command(group, "export", export)
    command(group, "replay", replay)
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
    """Show a run whole: payload, result, attempts, checkpoints, waits, operators' acts."""
    from workhorse.cli.views import RunParts, run_document, run_views
    from workhorse.store.operators import history

    app = invocation.open()
    run = app.admin.show(run_id)
    parts = RunParts(
        app.store.run(history.attempts_of, run.id),
        app.store.run(history.acts_on, run.id),
        app.admin.list_checkpoints(run.id, limit=SHOWN),
        app.admin.list_waits(run.id, limit=SHOWN),
    )
    invocation.renderer.document(run_document(run, parts), *run_views(run, parts))
    if SHOWN in (len(parts.checkpoints), len(parts.waits)):
        invocation.renderer.note(f"the first {SHOWN:,}; `runs export` has all")
    return exits.OK


def timeline(
    invocation: Invocation,
    run_id: RunIdArgument,
    limit: Annotated[int, typer.Option(metavar="N", help="How many, up to 1,000.")] = 1_000,
    after: Annotated[
        str | None, typer.Option(metavar="PLACE", help="Go on behind the last one of a page.")
    ] = None,
) -> int:
    """Tell what happened to a run, in order, without values."""
    from workhorse.cli.views import entry_document, timeline_table

    found = invocation.open().admin.timeline(run_id, limit=limit, after=after)
    more = found[-1].cursor if len(found) == limit else None
    invocation.renderer.document(
        {"id": run_id, "entries": [entry_document(each) for each in found], "after": more},
        timeline_table(found),
    )
    if more is not None:
        invocation.renderer.note(f"later ones: --after {more!r}")
    return exits.OK


def export(
    invocation: Invocation,
    run_id: RunIdArgument,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write it; standard output.")
    ] = None,
) -> int:
    """Export a run with all its values as JSON, for a replay check of its handler."""
    document = invocation.open().admin.export(run_id)
    if output is None:
        invocation.renderer.json_document(document)
        return exits.OK
    output.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    count = len(document["boundaries"])
    invocation.renderer.document(
        {"id": run_id, "output": str(output), "boundaries": count},
        f"run {run_id} is exported to {output}, with {count:,} boundaries",
    )
    return exits.OK
