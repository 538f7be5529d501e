"""Runs as tables, fields and JSON documents."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from workhorse.cli.rendering import Block, Fields, Table, View

if TYPE_CHECKING:
    from workhorse.domain.runs import RunView
    from workhorse.store.history import Act, Attempt

LIST_COLUMNS: Final = ("id", "task", "queue", "state", "attempt", "created", "finished")
_VALUES: Final = ("payload", "result", "error_message", "error_traceback")


def runs_table(runs: Sequence[RunView]) -> Table:
    """Return runs as a table, without payloads and results."""
    rows = [(r.id, r.task, r.queue, r.state, r.attempt, r.created_at, r.finished_at) for r in runs]
    return Table(LIST_COLUMNS, rows, empty="no runs")


def run_summary(run: RunView) -> dict[str, Any]:
    """Return a run for a list: all but its values, which may be large and are nobody's business."""
    return {name: getattr(run, name) for name in _names(run) if name not in _VALUES}


def run_document(run: RunView, attempts: Sequence[Attempt], acts: Sequence[Act]) -> dict[str, Any]:
    """Return a run whole; its payload and result as the JSON that they are."""
    whole = {name: getattr(run, name) for name in _names(run)}
    return {
        **whole,
        "payload": value_of(run.payload),
        "result": value_of(run.result),
        "attempts": list(attempts),
        "acts": list(acts),
    }


def run_views(run: RunView, attempts: Sequence[Attempt], acts: Sequence[Act]) -> list[View]:
    """Return what people see of a run whole."""
    views: list[View] = [
        Fields(
            [
                ("run", run.id),
                ("task", run.task),
                ("queue", run.queue),
                ("state", run.state),
                ("reason", run.reason),
                ("attempt", run.attempt),
                ("fence", run.fence),
                ("priority", run.priority),
                ("session", run.session),
                ("key", run.key),
                ("tags", run.tags or None),
                ("created", run.created_at),
                ("started", run.started_at),
                ("due", run.due_at),
                ("deadline", run.deadline_at),
                ("lease until", run.lease_expires_at),
                ("cancel asked", run.cancel_asked_at),
                ("finished", run.finished_at),
                ("rerun of", run.rerun_of),
                ("error", run.error_type),
                ("message", run.error_message),
            ]
        ),
        Block("payload", run.payload),
    ]
    if run.result is not None:
        views.append(Block("result", run.result))
    if attempts:
        rows = [(a.attempt, a.fence, a.reason, a.error_type, a.ended_at) for a in attempts]
        columns = ("attempt", "fence", "reason", "error", "ended")
        views.append(Table(columns, rows, title="failed attempts"))
    if run.error_traceback is not None:
        views.append(Block("traceback", run.error_traceback))
    if acts:
        acted = [(act.at, act.act, act.by, act.why) for act in acts]
        views.append(Table(("at", "act", "by", "why"), acted, title="operators' acts"))
    return views


def value_of(text: str | None) -> Any:
    """Return the value of stored JSON; None where there is none."""
    return None if text is None else json.loads(text)


def _names(run: RunView) -> list[str]:
    return [field.name for field in fields(run)]
