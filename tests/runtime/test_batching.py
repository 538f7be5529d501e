"""Which of what waits for the writer goes into one transaction."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from workhorse.domain.boundaries import BoundaryKind, NewBoundary
from workhorse.domain.ids import RunId, new_run_id
from workhorse.domain.outcomes import Finish
from workhorse.domain.recording import ReadValue, Record
from workhorse.domain.runs import Lease, RunState
from workhorse.runtime.activations.requests import Item, ToProgress, ToRead, ToRecord, ToSettle
from workhorse.runtime.writing.batching import Batch, gather

_names = itertools.count(1)


class FakeRecorder:
    def __init__(self, lease: Lease) -> None:
        self.lease = lease


class FakeActivation:
    def __init__(self, lease: Lease, result: str = "null") -> None:
        self.lease = lease
        self.settlement = Finish(RunState.SUCCEEDED, result=result)
        self.settled = False


def lease(run_id: RunId | None = None, token: int = 1) -> Lease:
    return Lease(run_id or new_run_id(), 1, token)


def to_record(held: Lease, value: str = "1") -> ToRecord:
    new = NewBoundary(
        name=f"stage {next(_names)}", kind=BoundaryKind.CHECKPOINT, seq=1, value=value
    )
    return ToRecord(cast("Any", FakeRecorder(held)), Record(lease=held, boundary=new))


def to_read(held: Lease) -> ToRead:
    return ToRead(cast("Any", FakeRecorder(held)), ReadValue(held.run_id, "stage"))


def to_progress(held: Lease) -> ToProgress:
    return ToProgress(cast("Any", FakeRecorder(held)))


def to_settle(held: Lease, result: str = "null") -> ToSettle:
    return ToSettle(cast("Any", FakeActivation(held, result)))


def gathered(items: list[Item]) -> list[list[Item]]:
    """Return all batches that come of it."""
    waiting = deque(items)
    batches = []
    while waiting:
        batches.append(gather(waiting, lambda item: True))
    return batches


def test_all_that_waits_goes_together() -> None:
    a, b, c, d = (lease() for _ in range(4))
    items: list[Item] = [to_record(a), to_settle(b), to_read(c), to_record(a), to_progress(d)]

    assert gathered(items) == [items]


def test_a_settle_comes_after_the_commit_of_its_runs_records() -> None:
    """How it is settled depends on them; others behind it do not overtake."""
    a, b = lease(), lease()
    items: list[Item] = [to_record(a), to_settle(a), to_settle(b)]

    assert gathered(items) == [items[:1], items[1:]]


def test_progress_and_settle_of_a_run_go_together() -> None:
    a = lease()
    items: list[Item] = [to_progress(a), to_settle(a)]

    assert gathered(items) == [items]


def test_two_leases_of_a_run_never_share_a_batch() -> None:
    run_id = new_run_id()
    old, new = lease(run_id, token=1), lease(run_id, token=2)
    kinds: list[Callable[[Lease], Item]] = [to_record, to_settle, to_progress]
    for first, second in itertools.product(kinds, repeat=2):
        items: list[Item] = [first(old), second(new)]
        assert gathered(items) == [items[:1], items[1:]]


def test_a_batch_stays_within_its_bounds() -> None:
    settles: list[Item] = [to_settle(lease()) for _ in range(450)]
    records: list[Item] = [to_record(lease()) for _ in range(900)]
    reads: list[Item] = [to_read(lease()) for _ in range(70)]
    large: list[Item] = [to_record(lease(), "x" * 1024 * 1024) for _ in range(20)]

    assert [len(batch) for batch in gathered(settles)] == [200, 200, 50]
    assert [len(batch) for batch in gathered(records)] == [400, 400, 100]
    assert [len(batch) for batch in gathered(reads)] == [32, 32, 6]
    assert [len(batch) for batch in gathered(large)] == [8, 8, 4]


def test_what_is_not_ready_is_dropped() -> None:
    items: list[Item] = [to_record(lease()) for _ in range(3)]

    assert gather(deque(items), lambda item: item is items[1]) == [items[1]]


def test_what_nobody_waits_for_is_left_out_when_a_batch_is_repeated() -> None:
    items = [to_record(lease()) for _ in range(3)]
    items[0].pending.fail(RuntimeError())
    items[1].taken = True

    assert Batch.of(items).records == [items[2]]
    assert not Batch.of(items[:2])
