"""Runs come into the store.

Source: docs/design.md, section 8; docs/cases.md, case 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from workhorse.domain.hints import Hint, Reach
from workhorse.domain.ids import RunId
from workhorse.domain.runs import Enqueued, NewRun
from workhorse.store.base.database import Tx
from workhorse.store.producing.idempotency import owned_by_others
from workhorse.store.producing.inserting import insert
from workhorse.store.producing.inserting_plain import are_alike, insert_alike
from workhorse.store.producing.predecessors import check_predecessors, name_predecessors

_MOST_CHARS: Final = 8 * 1024 * 1024
_MOST_ROWS: Final = 1_000


def enqueue(
    tx: Tx,
    new: Sequence[NewRun],
    *,
    reach: Reach,
    rerun_of: RunId | None = None,
    patient: bool = True,
) -> list[Enqueued]:
    """Insert runs; answer for each, in order, what became of it.

    A run whose idempotency key belongs to another run is not inserted: the answer names the owner.
    A key's owner that has not committed yet is waited for, unless `patient` is false: then it is
    given a moment.

    Runs that are to come after others are linked to them; `freeing.arm` must follow the commit. A
    run may come after one that stands before it in `new`.

    Raises:
        IdempotencyConflictError: A key belongs to a run with another payload; nothing is inserted.
        RunNotFoundError: A run is to come after one that is not there; nothing is inserted.
        KeysHeldError: Somebody else's transaction holds a key; only where not `patient`.
    """
    if rerun_of is None and are_alike(new):
        for part in _parts(new):
            insert_alike(tx, part)
        return [Enqueued(run.id, run.queue, created=True) for run in new]
    check_predecessors(tx, new)
    others = owned_by_others(tx, new, patient=patient)
    mine = [run for run in new if run.id not in others] if others else new
    if any(run.after for run in mine):
        mine = [name_predecessors(run, others) for run in mine]
    due: dict[str, int | None] = {}
    for part in _parts(mine):
        due |= insert(tx, part, reach, rerun_of)
    return [
        Enqueued(others[run.id], run.queue, created=False)
        if run.id in others
        else Enqueued(run.id, run.queue, created=True, due_in_ms=due.get(run.id))
        for run in new
    ]


def hints_of(
    new: Sequence[NewRun], done: Sequence[Enqueued], *, reach: Reach, stride: int = 1
) -> list[Hint]:
    """Return the wakeups that must follow the commit of an enqueue.

    Runs that were there before, by their key, have had theirs. What is due later than the lane can
    delay is left to maintenance, and who comes after other runs is woken by their end.

    Args:
        new: The runs, as they went to the store.
        done: Its answers, in the same order.
        reach: How far ahead a queue's wakeups can be sent, in milliseconds.
        stride: One wakeup for so many ready runs of a queue: who gets it scans for the others.
    """
    hints: list[Hint] = []
    ready: dict[str, int] = {}
    for run, answer in zip(new, done, strict=True):
        if not answer.created or run.after:
            continue
        if answer.due_in_ms is None:
            count = ready[answer.queue] = ready.get(answer.queue, 0) + 1
            if (count - 1) % stride == 0:
                hints.append(Hint(answer.run_id, answer.queue, 0, run.traceparent))
        elif answer.due_in_ms <= reach(answer.queue):
            delay_ms = max(0, answer.due_in_ms)
            hints.append(Hint(answer.run_id, answer.queue, delay_ms, run.traceparent))
    return hints


def _parts(new: Sequence[NewRun]) -> Iterator[Sequence[NewRun]]:
    """Cut a batch where its statement would be too large: a database takes a gigabyte at most."""
    start = size = 0
    for at, run in enumerate(new):
        if at > start and (size > _MOST_CHARS or at - start >= _MOST_ROWS):
            yield new[start:at]
            start, size = at, 0
        size += len(run.payload)
    if new:
        yield new[start:]
