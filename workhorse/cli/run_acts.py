"""`workhorse runs cancel` and `rerun`: one run by its id, or many by what they have in common."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workhorse.cli import exits
from workhorse.cli.inputs import os_user, parse_instant
from workhorse.cli.invocation import Invocation
from workhorse.cli.rendering import Table, View
from workhorse.errors import ConfigurationError

if TYPE_CHECKING:
    from workhorse.client.many import ManyDone

OneRun = Annotated[str | None, typer.Argument(metavar="RUN_ID", help="One run; or --all-matching.")]
ByOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Who asks, for the audit; the OS user.")
]
WhyOption = Annotated[str, typer.Option(metavar="TEXT", help="Why, for the audit.")]
RequestOption = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="The same one acts once, however often it is sent."),
]
AllOption = Annotated[
    bool, typer.Option("--all-matching", help="All runs that fit the options that follow.")
]
StateOption = Annotated[str | None, typer.Option(metavar="STATE", help="Only runs in it.")]
TaskOption = Annotated[str | None, typer.Option(metavar="TASK", help="Only runs of it.")]
QueueOption = Annotated[str | None, typer.Option(metavar="NAME", help="Only runs in it.")]
TagOption = Annotated[str | None, typer.Option(metavar="TEXT", help="Only runs that have it.")]
ErrorOption = Annotated[
    str | None, typer.Option(metavar="TYPE", help="Only runs that failed so, e.g. ValueError.")
]
AfterOption = Annotated[
    str | None, typer.Option(metavar="INSTANT", help="Only runs made then or later.")
]
BeforeOption = Annotated[str | None, typer.Option(metavar="INSTANT", help="Only runs made before.")]
LimitOption = Annotated[int | None, typer.Option(metavar="N", help="The oldest so many at most.")]
DryOption = Annotated[bool, typer.Option("--dry-run", help="Count them, and change nothing.")]


def cancel(
    invocation: Invocation,
    run_id: OneRun = None,
    by: ByOption = None,
    why: WhyOption = "",
    all_matching: AllOption = False,
    state: StateOption = None,
    task: TaskOption = None,
    queue: QueueOption = None,
    tag: TagOption = None,
    created_after: AfterOption = None,
    created_before: BeforeOption = None,
    limit: LimitOption = None,
    dry_run: DryOption = False,
    request_id: RequestOption = None,
) -> int:
    """Cancel runs; one that is running is asked to end, and ends as cancelled."""
    from workhorse.domain.runs import RunState

    said: dict[str, Any] = {
        "state": state,
        "task": task,
        "queue": queue,
        "tag": tag,
        "created_after": _instant("created-after", created_after),
        "created_before": _instant("created-before", created_before),
        "limit": limit,
        "dry_run": dry_run or None,
        "request_id": request_id,
    }
    _check_which(run_id, all_matching, said)
    admin, who = invocation.open().admin, by or os_user()
    if run_id is None:
        return _many(invocation, admin.cancel_many, "cancelled", by=who, why=why, **said)
    found = admin.cancel(run_id, by=who, why=why)
    if found is RunState.CANCELLED:
        told = "is cancelled"
    elif found.finished:
        told = f"had ended before, as {found}"
    else:
        told = "is running; it was asked to end, and ends as cancelled"
    invocation.renderer.document({"id": run_id, "state": found}, f"run {run_id} {told}")
    return exits.OK


def rerun(
    invocation: Invocation,
    run_id: OneRun = None,
    by: ByOption = None,
    why: WhyOption = "",
    boundaries: Annotated[
        str,
        typer.Option(
            metavar="all|none|NAME",
            help="What it takes over: all boundaries, none, or those up to the one of that name.",
        ),
    ] = "all",
    all_matching: AllOption = False,
    state: StateOption = None,
    task: TaskOption = None,
    queue: QueueOption = None,
    tag: TagOption = None,
    error: ErrorOption = None,
    created_after: AfterOption = None,
    created_before: BeforeOption = None,
    limit: LimitOption = None,
    dry_run: DryOption = False,
    request_id: RequestOption = None,
) -> int:
    """Start finished runs again: new runs, linked to them, with the same payload."""
    said: dict[str, Any] = {
        "state": state,
        "task": task,
        "queue": queue,
        "tag": tag,
        "error_type": error,
        "created_after": _instant("created-after", created_after),
        "created_before": _instant("created-before", created_before),
        "limit": limit,
        "dry_run": dry_run or None,
    }
    _check_which(run_id, all_matching, said)
    admin, who = invocation.open().admin, by or os_user()
    how: dict[str, Any] = {"by": who, "why": why, "boundaries": boundaries}
    if run_id is None:
        said["request_id"] = request_id
        return _many(invocation, admin.rerun_many, "run again", **how, **said)
    run = admin.rerun(run_id, request_id=request_id, **how)
    what = "is a new run of" if run.created else "was started by this request before; it reruns"
    invocation.renderer.document(
        {"id": run.id, "rerun_of": run_id, "created": run.created, "queue": run.queue},
        f"run {run.id} {what} {run_id}",
    )
    return exits.OK


def _check_which(run_id: str | None, all_matching: bool, said: dict[str, Any]) -> None:
    """Make sure that one run is named, or that many are asked for in so many words."""
    given = [f"--{name.replace('_', '-')}" for name, value in said.items() if value is not None]
    if run_id is None and not all_matching:
        raise ConfigurationError(
            "name a run by its id; or say --all-matching and which runs, e.g. --task NAME"
        )
    if run_id is not None and all_matching:
        raise ConfigurationError("a run is named, and --all-matching is said; give one of them")
    if run_id is not None and given:
        raise ConfigurationError(f"{', '.join(given)}: for --all-matching; one run is named")


def _instant(what: str, text: str | None) -> datetime | None:
    return None if text is None else parse_instant(what, text)


def _many(
    invocation: Invocation,
    act: Callable[..., ManyDone],
    done_so: str,
    *,
    request_id: str | None,
    dry_run: bool | None,
    **said: Any,
) -> int:
    from workhorse.client.checks import new_request_id

    request = request_id or new_request_id()
    with invocation.renderer.progress("working through runs") as told:

        def tell(so_far: ManyDone) -> None:
            if so_far.pages == 1 and request_id is None and not dry_run:
                note = f"where this is cut off, go on with --request-id {request}"
                invocation.renderer.note(note)
            told(f"{so_far.matched:,} runs")

        done = act(**said, request_id=request, dry_run=bool(dry_run), progress=tell)
    invocation.renderer.document(done, *_told(done, done_so))
    return exits.OK


def _told(done: ManyDone, done_so: str) -> list[View]:
    if done.dry_run:
        first = Table(("id",), [(run_id,) for run_id in done.first], title="the first of them")
        counted = f"{done.matched:,} runs would be {done_so}; nothing was changed"
        return [counted, first] if done.first else [counted]
    told = f"{done.done:,} of {done.matched:,} runs are {done_so}"
    if done.done_before:
        told += f", {done.done_before:,} were by this request before"
    if done.skipped:
        told += f"; {done.skipped:,} were skipped"
    return [told]
