"""What operators look at in durable runs: checkpoints, open waits, timelines, exports.

Source: docs/design.md, section 7
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workhorse.client.checks import check_page
from workhorse.client.exporting import document_of
from workhorse.domain.boundaries import WAITS, BoundaryKind
from workhorse.domain.ids import RunId, parse_run_id
from workhorse.domain.names import check_boundary, check_queue
from workhorse.domain.showing import member, shown
from workhorse.errors import ConfigurationError
from workhorse.store.base.database import Store, Tx
from workhorse.store.operators import inspecting, timelines
from workhorse.store.operators.inspecting import CheckpointView, WaitView
from workhorse.store.operators.timelines import TimelineEntry
from workhorse.store.operators.viewing import show


class InspectionCalls:
    """The calls of `app.admin` that look into durable runs; all that they list is paged."""

    _store: Callable[[], Store]

    def list_checkpoints(
        self, run_id: str, *, limit: int = 100, after: str | None = None
    ) -> list[CheckpointView]:
        """Return a run's checkpoints with their values, in the order in which it came to them.

        Args:
            run_id: The run.
            limit: How many at most, 1 to 1,000.
            after: The last name of the page before this one.

        Raises:
            RunNotFoundError: No such run.
            BoundaryNotFoundError: The run has nothing of the name that `after` says.
            ConfigurationError: The limit is out of range.
        """
        return self._store().read(
            inspecting.list_checkpoints,
            parse_run_id(run_id),
            limit=check_page(limit),
            after="" if after is None else check_boundary(after),
        )

    def list_waits(
        self,
        run_id: str | None = None,
        *,
        queue: str | None = None,
        kind: BoundaryKind | str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> list[WaitView]:
        """Return the waits of unfinished runs that nothing has settled, the oldest run first.

        Args:
            run_id: Only of this run.
            queue: Only of this queue's runs.
            kind: Only of this kind: `signal`, `human`, `token`, `child` or `timer`.
            limit: How many at most, 1 to 1,000.
            after: The cursor of the last wait of the page before this one.

        Raises:
            RunNotFoundError: No such run.
            ConfigurationError: The kind is none, the cursor is none, or the limit is out of range.
            InvalidNameError: An id or a queue is not of the allowed form.
        """
        return self._store().read(
            inspecting.list_waits,
            run_id=None if run_id is None else parse_run_id(run_id),
            queue=None if queue is None else check_queue(queue),
            kind=None if kind is None else _kind(kind),
            limit=check_page(limit),
            after=None if after is None else _place(after),
        )

    def timeline(
        self, run_id: str, *, limit: int = 100, after: str | None = None
    ) -> list[TimelineEntry]:
        """Return what happened to a run, the first first: no values, but all else.

        That it was created and started; failed attempts; boundaries that it passed and waits that
        it reached; what came for these; operators' acts; its end.

        Args:
            run_id: The run.
            limit: How many entries at most, 1 to 1,000.
            after: The cursor of the last entry of the page before this one.

        Raises:
            RunNotFoundError: No such run.
            ConfigurationError: The cursor is none, or the limit is out of range.
        """
        return self._store().read(
            timelines.timeline, parse_run_id(run_id), limit=check_page(limit), after=after
        )

    def export(self, run_id: str) -> dict[str, Any]:
        """Return a run whole as a value that JSON can carry: payload, boundaries, deliveries.

        It holds all values, up to 64 MiB of them: what a replay of the run needs.

        Raises:
            RunNotFoundError: No such run.
        """
        return self._store().read(_export, parse_run_id(run_id))


def _export(tx: Tx, run_id: RunId) -> dict[str, Any]:
    # Deliveries second: what settled a wait that is exported came before or after it.
    view = show(tx, run_id)
    passed = inspecting.read_boundaries(tx, run_id)
    return document_of(view, passed, inspecting.read_deliveries(tx, run_id))


def _kind(kind: BoundaryKind | str) -> BoundaryKind:
    meant = member(BoundaryKind, kind)
    if meant in WAITS:
        return meant
    known = ", ".join(sorted(WAITS))
    raise ConfigurationError(f"kind {shown(kind)} is no kind of wait; these are: {known}")


def _place(cursor: object) -> tuple[RunId, str]:
    run_id, colon, name = cursor.partition(":") if isinstance(cursor, str) else ("", "", "")
    if not colon:
        raise ConfigurationError(
            "after is no place in a list of waits; pass the cursor of the last wait of a page"
        )
    return parse_run_id(run_id), check_boundary(name)
