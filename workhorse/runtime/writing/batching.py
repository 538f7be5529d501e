"""A writer's batch: which of what waits goes into one transaction, and that transaction.

Source: docs/design.md, sections 3 and 6.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from workhorse.domain.hints import Reach
from workhorse.domain.ids import RunId
from workhorse.domain.runs import RunState
from workhorse.runtime.activations.requests import Item, ToProgress, ToRead, ToRecord, ToSettle
from workhorse.runtime.base.options import LARGEST_CLAIM
from workhorse.store.base.database import writes_once
from workhorse.store.durable.boundaries import (
    Written,
    lock_leases,
    read_values,
    record,
    write_progress,
)
from workhorse.store.lifecycle.settling import (
    Entry,
    Settled,
    settle,
    settle_successes,
    settled_before,
    successes_of,
)

if TYPE_CHECKING:
    from workhorse.store.base.database import Tx
    from workhorse.store.live.ending import Successes

_MOST_RECORDS: Final = 400
_MOST_READS: Final = 32
"""What is read is up to 1 MiB each, and comes all at once."""
_LARGEST_BATCH_CHARS: Final = 8 * 1024 * 1024


def gather(waiting: deque[Item], ready: Callable[[Item], bool]) -> list[Item]:
    """Take the next batch from the front of what waits; nothing overtakes.

    Args:
        ready: Asked for each before it is taken in; False drops it.
    """
    batch: list[Item] = []
    # Most batches hold nothing but ends: for them no more is looked at than has to be.
    ended: dict[RunId, int] = {}
    chars = 0
    while waiting and type(first := waiting[0]) is ToSettle and len(ended) < LARGEST_CLAIM:
        lease = first.lease
        if lease.run_id in ended or chars >= _LARGEST_BATCH_CHARS:
            return batch
        waiting.popleft()
        if ready(first):
            ended[lease.run_id] = lease.token
            chars += first.size
            batch.append(first)
    room = _Room(ended, chars)
    while waiting and room.has_place_for(waiting[0]):
        item = waiting.popleft()
        if ready(item):
            room.give_place(item)
            batch.append(item)
    return batch


class _Room:
    """What a batch has taken in, and whether the next one fits.

    Args:
        ended: The runs whose ends it has, with the tokens of their leases.
        chars: How large these are.
    """

    def __init__(self, ended: dict[RunId, int], chars: int) -> None:
        self._chars = chars
        self._records = 0
        self._reads = 0
        self._tokens = ended
        self._recorded: set[RunId] = set()
        self._settled = set(ended)

    def has_place_for(self, item: Item) -> bool:
        lease = item.lease
        run_id, token = lease.run_id, lease.token
        # Answers and outcomes are told apart by the run's id, and an older lease of this worker
        # may be here still.
        if self._tokens.get(run_id, token) != token:
            return False
        if run_id in self._settled or self._chars >= _LARGEST_BATCH_CHARS:
            return False
        if type(item) is ToSettle:
            # How it is settled depends on whether its last record was stored.
            return run_id not in self._recorded and len(self._settled) < LARGEST_CLAIM
        match item:
            case ToRecord():
                return self._records < _MOST_RECORDS
            case ToRead():
                return self._reads < _MOST_READS
        return True

    def give_place(self, item: Item) -> None:
        lease = item.lease
        run_id = lease.run_id
        self._tokens[run_id] = lease.token
        if type(item) is ToSettle:
            self._settled.add(run_id)
            self._chars += item.size
            return
        match item:
            case ToRecord():
                self._recorded.add(run_id)
                self._records += 1
                self._chars += item.size
            case ToRead():
                self._reads += 1


@dataclass(slots=True)
class Batch:
    """What goes into one transaction, by kind."""

    records: list[ToRecord] = field(default_factory=list)
    reads: list[ToRead] = field(default_factory=list)
    progress: list[ToProgress] = field(default_factory=list)
    settles: list[ToSettle] = field(default_factory=list)

    @classmethod
    def of(cls, items: Iterable[Item]) -> Batch:
        """Return those that somebody still waits for."""
        batch = cls()
        for item in items:
            if type(item) is ToSettle:
                if not item.activation.settled:
                    batch.settles.append(item)
                continue
            if item.done:
                continue
            match item:
                case ToRecord():
                    batch.records.append(item)
                case ToRead():
                    batch.reads.append(item)
                case ToProgress():
                    batch.progress.append(item)
        return batch

    def __bool__(self) -> bool:
        return bool(self.records or self.reads or self.progress or self.settles)

    def successes(self) -> Successes | None:
        """Return what `write_successes` takes; None where there is anything else to write."""
        if self.records or self.reads or self.progress:
            return None
        ends = [
            (each.lease, each.activation.settlement)
            for each in self.settles
            if each.progress is None
        ]
        return successes_of(ends) if len(ends) == len(self.settles) else None


@dataclass(slots=True)
class Committed:
    """What a batch's transaction did; all in the order of the batch.

    `mine` is what an earlier try had settled, whose answer was lost.
    """

    recorded: Written
    values: Sequence[str | None]
    settled: Settled
    mine: Settled

    @property
    def states(self) -> Mapping[RunId, RunState]:
        """The states that were written for runs; nothing was for those that are not in it."""
        if not self.mine.written:
            return self.settled.written
        return {**self.mine.written, **self.settled.written}


def write_batch(tx: Tx, batch: Batch, entries: Sequence[Entry], *, reach: Reach) -> Committed:
    """Write a batch in one transaction: boundaries, progress, then settles.

    Args:
        entries: How the activations of `batch.settles` are settled.
        reach: How far ahead a delayed wakeup can be sent for a queue.
    """
    progress = [each.value for each in batch.progress if each.value is not None]
    progress += [each.progress for each in batch.settles if each.progress is not None]
    if bool(batch.records) + bool(progress) + bool(entries) > 1:
        # Each of them locks in one order for itself; together they would not.
        leases = [*(each.lease for each in batch.records), *(each.lease for each in progress)]
        leases += [entry.lease for entry in entries]
        lock_leases(tx, list(dict.fromkeys(leases)))
    recorded, values = Written(), list[str | None]()
    if batch.records:
        recorded = record(tx, [each.record for each in batch.records], reach=reach)
    if batch.reads:
        values = list(read_values(tx, [each.request for each in batch.reads]))
    if progress:
        write_progress(tx, progress)
    settled = settle(tx, entries, reach=reach)
    return Committed(recorded, values, settled, _mine(tx, batch, settled))


@writes_once
def write_successes(tx: Tx, batch: Batch, successes: Successes) -> Committed:
    """As `write_batch`, for a batch that holds nothing but successes. PostgreSQL alone.

    Nearly all batches are such: their one statement is a transaction by itself. A round trip costs
    a thread not only its time, but a turn of the interpreter that it has to wait for.
    """
    settled = settle_successes(tx, successes)
    return Committed(Written(), (), settled, _mine(tx, batch, settled))


def _mine(tx: Tx, batch: Batch, settled: Settled) -> Settled:
    if len(settled.written) == len(batch.settles):
        return Settled()
    gone = [each.lease for each in batch.settles if each.lease.run_id not in settled.written]
    return settled_before(tx, gone)
