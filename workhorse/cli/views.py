"""Runs as tables, fields and JSON documents."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from workhorse.cli.rendering import Block, Fields, Table, View
from workhorse.cli.texts import shown

if TYPE_CHECKING:
    from workhorse.domain.runs import RunView
    from workhorse.store.operators.history import Act, Attempt
    from workhorse.store.operators.inspecting import CheckpointView, WaitView
    from workhorse.store.operators.timelines import TimelineEntry

LIST_COLUMNS: Final = ("id", "task", "queue", "state", "attempt", "created", "finished")
_VALUES: Final = ("payload", "result", "progress", "error_message", "error_traceback")


def runs_table(runs: Sequence[RunView]) -> Table:
    """Return runs as a table, without payloads and results."""
    rows = [(r.id, r.task, r.queue, r.state, r.attempt, r.created_at, r.finished_at) for r in runs]
    return Table(LIST_COLUMNS, rows, empty="no runs")


def run_summary(run: RunView) -> dict[str, Any]:
    """Return a run for a list: all but its values, which may be large and are nobody's business."""
    return {name: getattr(run, name) for name in _names(run) if name not in _VALUES}


@dataclass(frozen=True, slots=True)
class RunParts:
    """What is kept of a run besides its own row: the first of each."""

    attempts: Sequence[Attempt] = ()
    acts: Sequence[Act] = ()
    checkpoints: Sequence[CheckpointView] = ()
    waits: Sequence[WaitView] = ()


def run_document(run: RunView, parts: RunParts) -> dict[str, Any]:
    """Return a run whole; its values as the JSON that they are."""
    whole = {name: getattr(run, name) for name in _names(run)}
    return {
        **whole,
        "payload": value_of(run.payload),
        "result": value_of(run.result),
        "progress": value_of(run.progress),
        "attempts": list(parts.attempts),
        "checkpoints": [
            {**_fields(each), "value": value_of(each.value)} for each in parts.checkpoints
        ],
        "waits": [wait_document(each) for each in parts.waits],
        "acts": list(parts.acts),
    }


def wait_document(wait: WaitView) -> dict[str, Any]:
    """Return an open wait; its context as the JSON that it is."""
    return {**_fields(wait), "context": value_of(wait.context)}


def entry_document(entry: TimelineEntry) -> dict[str, Any]:
    """Return an entry of a timeline: what it has, and not where it stands in a list."""
    found = _fields(entry)
    del found["cursor"]
    return {name: value for name, value in found.items() if value is not None}


def waits_table(waits: Sequence[WaitView], *, of_one_run: bool = False) -> Table:
    """Return open waits as a table."""
    if of_one_run:
        rows: list[tuple[object, ...]] = [
            (w.kind, w.name, w.since, w.due_at, w.context or w.child) for w in waits
        ]
        return Table(("kind", "name", "since", "due", "context"), rows, title="open waits")
    rows = [
        (w.run_id, w.kind, w.name, w.task, w.queue, w.since, w.due_at, w.context or w.child)
        for w in waits
    ]
    columns = ("id", "kind", "name", "task", "queue", "since", "due", "context")
    return Table(columns, rows, empty="no open waits")


def timeline_table(entries: Sequence[TimelineEntry]) -> Table:
    """Return what happened to a run as a table."""
    rows = [(e.at, e.what, e.name, _told(e)) for e in entries]
    return Table(("at", "what", "name", "how"), rows, empty="nothing more")


def _told(entry: TimelineEntry) -> str:
    """Return all that an entry says beside its name, in a few words."""
    e = entry
    parts = [
        e.kind,
        e.state,
        None if e.number is None or e.kind is not None else f"attempt {e.number}",
        e.reason,
        e.error_type,
        None if e.due_at is None else f"due {shown(e.due_at)}",
        None if not e.size_bytes else f"{e.size_bytes:,} bytes",
        "taken over" if e.kind is not None and e.fence == 0 else None,
        None if e.by is None else f"by {e.by}",
        e.answer,
        e.why or None,
    ]
    return ", ".join(part for part in parts if part is not None)


def run_views(run: RunView, parts: RunParts) -> list[View]:
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
                ("child of", run.parent_id),
                ("error", run.error_type),
                ("message", run.error_message),
            ]
        ),
        Block("payload", run.payload),
    ]
    if run.result is not None:
        views.append(Block("result", run.result))
    if run.progress is not None:
        views.append(Block("progress", run.progress))
    if parts.checkpoints:
        stored = [(c.name, c.size_bytes, c.fence, c.created_at) for c in parts.checkpoints]
        views.append(Table(("name", "bytes", "fence", "stored"), stored, title="checkpoints"))
    if parts.waits:
        views.append(waits_table(parts.waits, of_one_run=True))
    if parts.attempts:
        rows = [(a.attempt, a.fence, a.reason, a.error_type, a.ended_at) for a in parts.attempts]
        columns = ("attempt", "fence", "reason", "error", "ended")
        views.append(Table(columns, rows, title="failed attempts"))
    if run.error_traceback is not None:
        views.append(Block("traceback", run.error_traceback))
    if parts.acts:
        acted = [(act.at, act.act, act.by, act.why) for act in parts.acts]
        views.append(Table(("at", "act", "by", "why"), acted, title="operators' acts"))
    return views


def value_of(text: str | None) -> Any:
    """Return the value of stored JSON; None where there is none."""
    return None if text is None else json.loads(text)


def _names(run: RunView) -> list[str]:
    return [field.name for field in fields(run)]


def _fields(view: CheckpointView | WaitView | TimelineEntry) -> dict[str, Any]:
    return {field.name: getattr(view, field.name) for field in fields(view)}
