"""What the workloads do to a store, through the functions that workers and maintenance call."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from tests.support.crowd import QUEUE, TASK
from workhorse.domain.ids import RunId, new_run_id
from workhorse.domain.outcomes import Finish
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import ClaimedRun, Lease, NewRun, RunState
from workhorse.store.base.database import Store
from workhorse.store.lifecycle.claiming import Claim, claim
from workhorse.store.lifecycle.cursors import Cursor, Head
from workhorse.store.lifecycle.settling import Entry, settle
from workhorse.store.producing.enqueueing import enqueue

T = TypeVar("T")

LEASE_MS = 600_000
_DRAW = random.Random(7)
_DONE = Finish(RunState.SUCCEEDED, result="null")
_ONCE = RetryPolicy(max_attempts=1)  # a lost lease ends it, so that nothing is left of a round


def reach(queue: str) -> int:
    """A broker that delays no message."""
    return 0


def put(store: Store, count: int, *, delay_ms: int = 0) -> list[RunId]:
    """Enqueue some runs in one transaction."""
    new = [
        NewRun(
            id=new_run_id(), task=TASK, queue=QUEUE, payload="null", delay_ms=delay_ms, retry=_ONCE
        )
        for _ in range(count)
    ]
    return [done.run_id for done in store.run(enqueue, new, reach=reach)]


def take(
    store: Store,
    *ids: RunId,
    free: int,
    scan: bool = False,
    cursor: Cursor | Head | None = None,
    lease_ms: int = LEASE_MS,
) -> Claim:
    """Claim by ids, or by scan."""
    return store.run(
        claim,
        queue=QUEUE,
        ids=ids,
        tasks=[TASK],
        free=free,
        token=_DRAW.getrandbits(62) + 1,
        lease_ms=lease_ms,
        scan=scan,
        cursor=cursor,
    )


def end(store: Store, claimed: Sequence[ClaimedRun]) -> None:
    """Settle runs as succeeded."""
    entries = [Entry(lease_of(run), _DONE, queue=QUEUE) for run in claimed]
    written = store.run(settle, entries, reach=reach).written
    if len(written) != len(entries):
        raise RuntimeError(f"{len(written)} of {len(entries)} runs were settled")


def lease_of(run: ClaimedRun) -> Lease:
    """Return the lease that a claimed run carries."""
    if run.lease is None:
        raise RuntimeError(f"run {run.id} came without a lease")
    return run.lease


@dataclass
class Timings:
    """How long calls took, in ms, by what they did."""

    by_name: dict[str, list[float]] = field(default_factory=dict)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Measure a call."""
        started = time.perf_counter()
        yield
        self.by_name.setdefault(name, []).append((time.perf_counter() - started) * 1_000)

    def measure(self, name: str, call: Callable[[], T]) -> T:
        """Measure a call and return what it answers."""
        with self.timed(name):
            return call()
