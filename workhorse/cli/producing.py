"""`workhorse enqueue`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workhorse.cli import exits
from workhorse.cli.inputs import parse_duration, parse_instant, read_lines, read_text
from workhorse.cli.invocation import Invocation
from workhorse.cli.options import command
from workhorse.cli.rendering import Block, Fields, View
from workhorse.errors import (
    ConfigurationError,
    ResultTimeoutError,
    RunCancelledError,
    RunFailedError,
    UnstorableValueError,
)

if TYPE_CHECKING:
    from workhorse.app import Workhorse
    from workhorse.handlers.producing import Request, RunHandle
    from workhorse.handlers.tasks import Task


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "enqueue", enqueue)


def enqueue(
    invocation: Invocation,
    task: Annotated[str, typer.Argument(metavar="TASK", help="The task's name.")],
    payload: Annotated[
        str | None,
        typer.Argument(
            metavar="[JSON]",
            help="The payload; `-` reads it from standard input, `@path` from a file. "
            "Left out, it is the handler's default, else null.",
        ),
    ] = None,
    lines: Annotated[
        bool,
        typer.Option(
            "--lines", help="The input holds a payload a line, each for a run of its own."
        ),
    ] = False,
    queue: Annotated[
        str | None, typer.Option(metavar="NAME", help="Instead of the task's.")
    ] = None,
    priority: Annotated[
        int | None, typer.Option(metavar="0-100", help="Higher is claimed first.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Idempotency key: the same one, one run.")
    ] = None,
    session: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Runs of one session take turns.")
    ] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Due later, e.g. 90, 5m or 1h30m.")
    ] = None,
    run_at: Annotated[
        str | None, typer.Option(metavar="INSTANT", help="Due then, e.g. 2026-01-31T08:00:00Z.")
    ] = None,
    after: Annotated[
        list[str] | None,
        typer.Option(metavar="RUN_ID", help="Once this run has ended; may be repeated."),
    ] = None,
    on_failure: Annotated[
        str | None,
        typer.Option(metavar="WHAT", help="When one of those fails: fail too, cancel, or run."),
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="To find it by; may be repeated.")
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long the whole run may take.")
    ] = None,
    timeout: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long an attempt may be active.")
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option(metavar="N", help="Instead of the task's retry policy.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the end and print the result.")
    ] = False,
    wait_for: Annotated[
        str | None, typer.Option(metavar="DURATION", help="As --wait, no longer than this.")
    ] = None,
) -> int:
    """Store a run of a task and wake a worker for it."""
    app = invocation.open(tasks=True)
    one = _registry(app).require(task)
    options: dict[str, Any] = {
        "queue": queue,
        "priority": priority,
        "key": key,
        "session": session,
        "tags": tag or (),
        "delay": _duration("delay", delay),
        "run_at": None if run_at is None else parse_instant("run_at", run_at),
        "deadline": _duration("deadline", deadline),
        "timeout": _duration("timeout", timeout),
        "after": after,
        "on_failure": on_failure,
    }
    if max_attempts is not None:
        from dataclasses import replace

        options["retry"] = replace(one.retry, max_attempts=max_attempts)
    limit = _duration("wait-for", wait_for)
    if lines:
        if key is not None or wait or limit is not None:
            raise ConfigurationError("--lines makes many runs; --key and --wait are for one")
        return _enqueue_lines(invocation, app, one, payload or "-", options)
    if payload is None:
        run = one.enqueue(**options)
    else:
        run = one.enqueue(one.parse_payload(read_text(payload)), **options)
    if wait or limit is not None:
        return _wait(invocation, run, limit)
    what = "is" if run.created else "was there already by its key:"
    invocation.renderer.document(
        {"id": run.id, "queue": run.queue, "created": run.created},
        f"run {run.id} {what} in queue {run.queue}",
    )
    return exits.OK


def _registry(app: Workhorse) -> Any:
    return app.registry


def _duration(what: str, text: str | None) -> Any:
    return None if text is None else parse_duration(what, text)


def _enqueue_lines(
    invocation: Invocation,
    app: Workhorse,
    task: Task[Any, Any],
    source: str,
    options: dict[str, Any],
) -> int:
    """Enqueue a run for each line; each thousand is a transaction, so the input may be endless."""

    def requests() -> Iterator[Request[Any]]:
        for number, line in enumerate(read_lines(source), start=1):
            if line.strip():
                try:
                    yield task.prepare(task.parse_payload(line), **options)
                except UnstorableValueError as error:
                    error.add_note(f"line {number}")
                    raise ConfigurationError(f"line {number}: {error}") from None

    try:
        with invocation.renderer.progress("enqueuing") as told:
            runs = app.enqueue_many(requests(), progress=lambda count: told(f"{count:,} runs"))
    except ConfigurationError as error:
        if not hasattr(error, "__notes__"):  # else they say how far it came
            error.add_note("nothing was enqueued")
        raise
    invocation.renderer.document(
        {"count": len(runs), "ids": [run.id for run in runs]}, f"{len(runs):,} runs are enqueued"
    )
    return exits.OK


def _wait(invocation: Invocation, run: RunHandle[Any], limit: Any) -> int:
    error: RunFailedError | RunCancelledError | None = None
    try:
        with invocation.renderer.progress(f"waiting for run {run.id}"):
            run.result(limit)
    except (RunFailedError, RunCancelledError) as ended:
        error = ended
    except ResultTimeoutError as late:
        invocation.renderer.document(
            {"id": run.id, "created": run.created, "state": None}, str(late)
        )
        return exits.BAD_NEWS
    from workhorse.cli.views import value_of

    view = run.view()
    result = value_of(view.result)
    told: list[View] = [
        Fields(
            [
                ("run", run.id),
                ("state", view.state),
                ("attempt", view.attempt),
                ("reason", view.reason),
                ("error", None if error is None else view.error_type),
                ("message", view.error_message),
            ]
        )
    ]
    if view.result is not None:
        told.append(Block("result", view.result))
    invocation.renderer.document(
        {
            "id": run.id,
            "created": run.created,
            "state": view.state,
            "attempt": view.attempt,
            "reason": view.reason,
            "error_type": view.error_type,
            "error_message": view.error_message,
            "result": result,
        },
        *told,
    )
    return exits.OK if error is None else exits.BAD_NEWS
