"""Any number of runs, inserted in statements of a size that a database likes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from workhorse.domain.runs import Enqueued, NewRun
from workhorse.store.database import Tx
from workhorse.store.enqueueing import enqueue

STATEMENT_RUNS: Final = 1_000
STATEMENT_CHARS: Final = 4 * 1024 * 1024
"""What one statement inserts at most: runs, and characters of their payloads."""


def insert_runs(tx: Tx, runs: Sequence[NewRun], reach: Callable[[str], int]) -> list[Enqueued]:
    """Insert runs; answer for each, in order, what became of it; see `store.enqueueing`."""
    done: list[Enqueued] = []
    for batch in _batches(runs):
        done += enqueue(tx, batch, reach=reach)
    return done


def _batches(runs: Sequence[NewRun]) -> Iterator[list[NewRun]]:
    batch: list[NewRun] = []
    chars = 0
    for run in runs:
        size = len(run.payload)
        if batch and (len(batch) == STATEMENT_RUNS or chars + size > STATEMENT_CHARS):
            yield batch
            batch, chars = [], 0
        batch.append(run)
        chars += size
    if batch:
        yield batch
