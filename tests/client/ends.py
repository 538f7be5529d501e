"""Claims and settlements without a worker, for tests of what a client sees of them."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from workhorse.domain.boundaries import NewBoundary
from workhorse.domain.hints import no_reach
from workhorse.domain.ids import RunId
from workhorse.domain.outcomes import Settlement
from workhorse.domain.recording import Record, Recorded
from workhorse.domain.runs import Lease
from workhorse.store.base.database import Store
from workhorse.store.durable.boundaries import record
from workhorse.store.lifecycle.claiming import claim
from workhorse.store.lifecycle.settling import Entry, settle
from workhorse.store.operators.viewing import show


def lease_run(store: Store, run_id: RunId) -> Lease:
    """Claim a run by its id."""
    view = store.run(show, run_id)
    claimed = store.run(
        claim,
        queue=view.queue,
        ids=[run_id],
        tasks=[view.task],
        free=1,
        token=secrets.randbits(63),
        lease_ms=30_000,
        scan=False,
    ).runs
    assert [run.id for run in claimed] == [run_id]
    lease = claimed[0].lease
    assert lease is not None
    return lease


def end_run(
    store: Store,
    run_id: RunId,
    settlement: Settlement,
    *,
    before: Callable[[], object] = lambda: None,
) -> None:
    """Claim a run and settle it; `before` happens in between."""
    lease = lease_run(store, run_id)
    before()
    settled = store.run(settle, [Entry(lease, settlement)], reach=no_reach)
    assert run_id in settled.written


def pass_boundaries(store: Store, lease: Lease, *boundaries: NewBoundary) -> None:
    """Write what a handler passes under a lease."""
    for boundary in boundaries:
        done = store.run(record, [Record(lease=lease, boundary=boundary)], reach=no_reach)
        assert [each.result for each in done.answers] == [Recorded.STORED]
