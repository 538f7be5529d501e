"""`workhorse processes` and `measures`: who is alive, and how much there is to do."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from workhorse.cli import exits
from workhorse.cli.invocation import Invocation
from workhorse.cli.options import command
from workhorse.cli.rendering import Table

if TYPE_CHECKING:
    from workhorse.domain.measures import Measures


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "processes", processes)
    command(app, "measures", measures)


def processes(invocation: Invocation) -> int:
    """List workers and maintenance, for an hour after their last beat."""
    found = invocation.open().admin.list_processes()
    rows = [
        (
            each.kind,
            each.id,
            each.state,
            each.host,
            each.pid,
            each.build,
            each.version,
            each.lane,
            each.queues,
            each.slots or None,
            each.started_at,
            each.beat_at,
        )
        for each in found
    ]
    columns = (
        "kind", "id", "state", "host", "pid", "build", "version", "lane", "queues", "slots",
        "started", "last beat",
    )  # fmt: skip
    invocation.renderer.document(
        {"processes": found}, Table(columns, rows, empty="no process has beaten within an hour")
    )
    return exits.OK


def measures(invocation: Invocation) -> int:
    """Measure each queue: what waits, for how long, and who works on it."""
    found = invocation.open().admin.measures()
    columns = (
        "queue", "state", "oldest runnable", "runnable", "running", "waiting", "scheduled",
        "workers", "per worker", "failed",
    )  # fmt: skip
    invocation.renderer.document(
        {"measures": [_document(each) for each in found]},
        Table(columns, _rows(found), empty="there is no queue to measure"),
    )
    return exits.OK


def _document(measures: Measures) -> dict[str, Any]:
    found = dataclasses.asdict(measures)
    return {**found, "backlog_per_worker": measures.backlog_per_worker}


def _rows(found: Sequence[Measures]) -> list[tuple[object, ...]]:
    return [
        (
            each.queue,
            "paused" if each.paused else "open",
            f"{each.oldest_runnable_ms / 1000:,.1f} s",
            each.runnable,
            each.running,
            each.waiting,
            each.scheduled,
            each.workers,
            f"{each.backlog_per_worker:,.1f}",
            each.failed,
        )
        for each in found
    ]
