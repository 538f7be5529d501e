"""What a run has passed is written once, under its lease, and comes back with its next claim."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from sqlalchemy import event

from tests.store.acting import (
    HAND_BACK,
    LEASE_MS,
    RETRY_NOW,
    SUCCEED,
    a_checkpoint,
    a_claimed,
    end,
    history_of,
    lease_of,
    names_passed,
    promoted,
    put,
    put_many,
    reach,
    recovered,
    rows,
    seen,
    take,
    take_one,
    waiting,
    write,
)
from tests.store.invariants import check_invariants
from tests.store.rivals import Rival
from tests.support.left_out import skip_where_not_meant
from workhorse.domain.boundaries import LOADED_BYTES, BoundaryKind, NewBoundary
from workhorse.domain.ids import RunId
from workhorse.domain.recording import NewProgress, NewToken, ReadValue, Record, Recorded
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import ClaimedRun
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.durable.boundaries import read_values, record, write_progress
from workhorse.store.durable.delivering import deliver
from workhorse.store.lifecycle.claiming import claimed_under

STORED, EXISTS, LOST = Recorded.STORED, Recorded.EXISTS, Recorded.LOST


def _again(store: Store, claimed: ClaimedRun) -> ClaimedRun:
    """Return the run as its next activation gets it."""
    end(store, claimed, HAND_BACK)
    return take_one(store, claimed.id)


def _taken_over(store: Store, clock: ManualClock, claimed: ClaimedRun) -> ClaimedRun:
    clock.advance(LEASE_MS)
    recovered(store)
    clock.advance(1_000)
    return take_one(store, claimed.id)


def _statements(store: Store, claimable: RunId) -> int:
    seen_ones: list[str] = []
    event.listen(
        store.engine,
        "before_cursor_execute",
        lambda conn, cursor, sql, *rest: seen_ones.append(sql),
    )
    take_one(store, claimable)
    return len(seen_ones)


# -- written under the lease ---------------------------------------------------------------------


def test_a_boundary_comes_back_with_the_next_claim(store: Store) -> None:
    claimed = a_claimed(store)

    (answer,) = write(store, claimed, a_checkpoint("charge", '{"id":"ch_1"}'))

    assert answer.result is STORED
    history = _again(store, claimed).history
    (boundary,) = history.boundaries
    assert (boundary.name, boundary.kind, boundary.value, boundary.left_out) == (
        "charge",
        BoundaryKind.CHECKPOINT,
        '{"id":"ch_1"}',
        False,
    )
    assert (history.count, history.bytes, history.last_seq) == (1, 13, 1)
    check_invariants(store)


def test_boundaries_come_in_the_order_in_which_the_run_got_to_them(store: Store) -> None:
    claimed = a_claimed(store)
    write(store, claimed, a_checkpoint("z", seq=1), a_checkpoint("a", seq=2))
    write(store, claimed, a_checkpoint("m", seq=3))

    history = _again(store, claimed).history

    assert [boundary.name for boundary in history.boundaries] == ["z", "a", "m"]
    assert history.last_seq == 3


def test_a_batch_writes_for_many_runs(store: Store) -> None:
    claimed = [a_claimed(store) for _ in range(5)]
    records = [
        Record(lease=lease_of(run), boundary=a_checkpoint(f"of {run.id}")) for run in claimed
    ]

    answers = store.run(record, records, reach=reach).answers

    assert [answer.result for answer in answers] == [STORED] * 5
    assert [names_passed(store, run.id) for run in claimed] == [[f"of {run.id}"] for run in claimed]


def test_a_stale_lease_records_nothing(store: Store, clock: ManualClock) -> None:
    stale = a_claimed(store)
    current = _taken_over(store, clock, stale)

    (late,) = write(store, stale, a_checkpoint("stage", '"stale"'))
    assert (late.result, late.boundary) == (LOST, None)
    assert names_passed(store, stale.id) == []

    write(store, current, a_checkpoint("stage", '"current"'))
    (later,) = write(store, stale, a_checkpoint("stage", '"stale"'))
    assert (later.result, later.boundary) == (LOST, None)
    assert history_of(store, stale.id).boundaries[0].value == '"current"'


def test_a_stale_lease_in_a_batch_harms_nobody_else(store: Store, clock: ManualClock) -> None:
    stale = a_claimed(store)
    current = _taken_over(store, clock, stale)
    other = a_claimed(store)
    records = [
        Record(lease=lease_of(run), boundary=a_checkpoint(name))
        for run, name in ((stale, "stale"), (other, "other"), (current, "current"))
    ]

    answers = store.run(record, records, reach=reach).answers

    assert [answer.result for answer in answers] == [LOST, STORED, STORED]
    assert names_passed(store, stale.id) == ["current"]


def test_a_lease_of_the_same_claim_is_another_runs(store: Store) -> None:
    """Runs that one claim has taken share its token; each is held by its own row."""
    stale, other = take(store, *put_many(store, 2)).runs
    end(store, stale, HAND_BACK)
    records = [Record(lease=lease_of(run), boundary=a_checkpoint()) for run in (stale, other)]

    answers = store.run(record, records, reach=reach).answers

    assert [answer.result for answer in answers] == [LOST, STORED]
    assert (names_passed(store, stale.id), names_passed(store, other.id)) == ([], ["stage"])


def test_each_boundary_bears_the_fence_of_its_own_run(store: Store) -> None:
    again = a_claimed(store)
    end(store, again, HAND_BACK)
    runs = take(store, again.id, put(store)).runs
    records = [Record(lease=lease_of(run), boundary=a_checkpoint()) for run in runs]

    store.run(record, records, reach=reach)

    found = rows(store, "select run_id, fence from {s}boundaries")
    assert {str(row.run_id): row.fence for row in found} == {
        run.id: 2 if run.id == again.id else 1 for run in runs
    }


def test_a_token_is_made_with_its_boundary(store: Store) -> None:
    claimed = a_claimed(store)
    new = NewBoundary(name="hook", kind=BoundaryKind.REFERENCE, seq=1, value='"wht_1"')
    token = NewToken(ref="wht_1", timeout_ms=1_000)

    store.run(record, [Record(lease=lease_of(claimed), boundary=new, token=token)], reach=reach)

    assert rows(store, "select ref, state from {s}tokens") == [("wht_1", "open")]


def test_a_finished_run_records_nothing(store: Store) -> None:
    claimed = a_claimed(store)
    end(store, claimed, SUCCEED)

    assert write(store, claimed, a_checkpoint())[0].result is LOST
    assert names_passed(store, claimed.id) == []


def test_an_expired_lease_that_nobody_took_still_records(store: Store, clock: ManualClock) -> None:
    """The token decides: the first commit wins."""
    claimed = a_claimed(store)
    clock.advance(LEASE_MS + 1)

    assert write(store, claimed, a_checkpoint())[0].result is STORED


def test_a_record_and_a_recovery_of_the_same_run_come_one_after_the_other(
    store: Store, clock: ManualClock
) -> None:
    """The lock that the insert takes is one that a takeover waits for."""
    if store.kind == "sqlite":
        skip_where_not_meant("SQLite has one writer at a time: there is no order to force")
    claimed = a_claimed(store, retry=RetryPolicy(jitter=False))
    clock.advance(LEASE_MS)
    with Rival(store) as rival:
        rival.call(record, [Record(lease=lease_of(claimed), boundary=a_checkpoint())], reach=reach)

        assert recovered(store).count == 0  # it passes a row that is held by

        rival.commit()
    assert recovered(store).count == 1
    clock.advance(1_000)
    assert [each.name for each in take_one(store, claimed.id).history.boundaries] == ["stage"]


# -- the first value stands ----------------------------------------------------------------------


def test_the_same_write_again_is_stored(store: Store) -> None:
    """An answer was lost, and the batch is repeated."""
    claimed = a_claimed(store)
    write(store, claimed, a_checkpoint("stage", "1"))

    assert write(store, claimed, a_checkpoint("stage", "1"))[0].result is STORED
    assert names_passed(store, claimed.id) == ["stage"]


@pytest.mark.parametrize(
    "other",
    [
        NewBoundary(name="stage", kind=BoundaryKind.CHECKPOINT, seq=1, value="2"),
        NewBoundary(
            name="stage", kind=BoundaryKind.CHECKPOINT, seq=1, value="1", fingerprint="other"
        ),
        NewBoundary(name="stage", kind=BoundaryKind.TIMER, seq=1, delay_ms=1),
        NewBoundary(name="stage", kind=BoundaryKind.CHECKPOINT, seq=1, value="1", detail="{}"),
    ],
    ids=["value", "fingerprint", "kind", "detail"],
)
def test_another_write_is_told_what_stands(store: Store, other: NewBoundary) -> None:
    claimed = a_claimed(store)
    write(store, claimed, a_checkpoint("stage", "1"))

    (answer,) = write(store, claimed, other)

    assert answer.result is EXISTS
    assert answer.boundary is not None
    assert (answer.boundary.kind, answer.boundary.value) == (BoundaryKind.CHECKPOINT, "1")
    assert history_of(store, claimed.id).boundaries[0].value == "1"


def test_two_of_one_name_in_a_batch_are_one(store: Store) -> None:
    claimed = a_claimed(store)

    first, second = write(
        store, claimed, a_checkpoint("stage", "1"), a_checkpoint("stage", "2", seq=2)
    )

    assert (first.result, second.result) == (STORED, EXISTS)
    assert second.boundary is not None
    assert second.boundary.value == "1"


# -- with the claim ------------------------------------------------------------------------------


def test_a_choice_is_told_what_had_come_for_the_waits_that_it_closes(store: Store) -> None:
    """By run, kind and name; also where its answer was lost, and it is written again."""
    runs = [a_claimed(store), a_claimed(store)]
    for value, each in enumerate(runs):
        for name in ("a", "b", "d"):
            store.run(deliver, each.id, BoundaryKind.SIGNAL, name, f"{value}", key=None)

    def choices(winner: str) -> list[Record]:
        kinds = ("a", BoundaryKind.SIGNAL), ("b", BoundaryKind.HUMAN), ("c", BoundaryKind.SIGNAL)
        closes = tuple((kind, name) for name, kind in kinds)
        choice = NewBoundary(name="any:a", kind=BoundaryKind.ANY, seq=1, value=winner)
        return [Record(lease=lease_of(each), boundary=choice, closes=closes) for each in runs]

    for _ in range(2):
        first, second = store.run(record, choices("null"), reach=reach).answers
        assert (first.result, second.result) == (STORED, STORED)
        assert [(each.name, each.value) for each in first.kept] == [("a", "0")]
        assert [(each.name, each.value) for each in second.kept] == [("a", "1")]

    others = store.run(record, choices("1"), reach=reach).answers
    assert [(each.result, each.kept) for each in others] == [(EXISTS, ()), (EXISTS, ())]


def test_a_first_claim_costs_no_read(store: Store) -> None:
    fresh = put(store)
    before = _statements(store, fresh)
    claimed = a_claimed(store)
    write(store, claimed, a_checkpoint())
    end(store, claimed, HAND_BACK)

    assert _statements(store, claimed.id) == before + 1


def test_one_statement_reads_the_histories_of_a_batch(store: Store) -> None:
    claimed = [a_claimed(store) for _ in range(3)]
    for run in claimed:
        write(store, run, a_checkpoint(f"of {run.id}"))
        end(store, run, HAND_BACK)
    seen_ones: list[str] = []
    event.listen(
        store.engine,
        "before_cursor_execute",
        lambda conn, cursor, sql, *rest: seen_ones.append(sql),
    )

    again = take(store, *(run.id for run in claimed), put(store)).runs

    assert sum("boundaries" in sql for sql in seen_ones) == 1
    passed = {run.id: [each.name for each in run.history.boundaries] for run in again}
    assert {run.id: passed[run.id] for run in claimed} == {
        run.id: [f"of {run.id}"] for run in claimed
    }
    assert len(again) == 4


def test_a_claim_that_is_looked_up_by_its_token_has_its_history(store: Store) -> None:
    claimed = a_claimed(store)
    write(store, claimed, a_checkpoint())
    again = _again(store, claimed)

    (found,) = store.run(claimed_under, lease_of(again).token)

    assert found.history == again.history
    assert found.history.count == 1


def test_a_failed_attempt_keeps_its_boundaries(store: Store) -> None:
    claimed = a_claimed(store)
    write(store, claimed, a_checkpoint())
    end(store, claimed, RETRY_NOW)

    assert take_one(store, claimed.id).history.count == 1


def test_what_is_large_is_left_out_and_read_by_name(store: Store) -> None:
    claimed = a_claimed(store)
    large = json.dumps("x" * (LOADED_BYTES // 4))
    write(store, claimed, a_checkpoint("large", large), a_checkpoint("small", "1", seq=2))

    history = _again(store, claimed).history

    assert [(each.name, each.value, each.left_out) for each in history.boundaries] == [
        ("large", None, True),
        ("small", "1", False),
    ]
    assert history.bytes == len(large) + 1
    requests = [
        ReadValue(claimed.id, "small"),
        ReadValue(claimed.id, "none of that name"),
        ReadValue(claimed.id, "large"),
        ReadValue(claimed.id, "large", BoundaryKind.SIGNAL),
    ]
    assert store.run(read_values, requests) == ["1", None, large, None]


def test_values_of_one_name_are_told_apart_by_run_and_kind(store: Store) -> None:
    """All of a batch are read at once; none of them may get another's."""
    one, other = a_claimed(store), a_claimed(store)
    for value, claimed in (("1", one), ("2", other)):
        write(store, claimed, a_checkpoint("word", value))
        for sent in (BoundaryKind.SIGNAL, BoundaryKind.HUMAN):
            store.run(deliver, claimed.id, sent, "word", f'"{sent} {value}"', key=None)

    requests = [
        ReadValue(claimed.id, "word", kind)
        for claimed in (one, other)
        for kind in (None, BoundaryKind.SIGNAL, BoundaryKind.HUMAN)
    ]
    assert store.run(read_values, requests) == [
        "1", '"signal 1"', '"human 1"', "2", '"signal 2"', '"human 2"',
    ]  # fmt: skip
    for request, value in zip(requests, ["1", '"signal 1"', '"human 1"'], strict=False):
        assert store.run(read_values, [request]) == [value]


def test_as_many_bytes_as_come_with_a_claim_and_no_more(store: Store) -> None:
    claimed = a_claimed(store)
    part = json.dumps("x" * (LOADED_BYTES // 8 - 2))
    write(store, claimed, *(a_checkpoint(f"{at}", part, seq=at) for at in range(1, 11)))

    boundaries = _again(store, claimed).history.boundaries

    assert [each.left_out for each in boundaries] == [False] * 8 + [True] * 2
    assert all((each.value is None) == each.left_out for each in boundaries)


def test_what_has_no_value_is_not_left_out(store: Store, clock: ManualClock) -> None:
    """Who looked for its value would find none, and take his lease for lost."""
    claimed = a_claimed(store)
    part = json.dumps("x" * (LOADED_BYTES // 8 - 2))
    write(store, claimed, *(a_checkpoint(f"{at}", part, seq=at) for at in range(1, 10)))
    write(store, claimed, NewBoundary(name="nap", kind=BoundaryKind.TIMER, seq=10, delay_ms=0))
    end(store, claimed, waiting(BoundaryKind.SIGNAL, 1_000, "word"))
    clock.advance(1_000)
    promoted(store)

    history = take_one(store, claimed.id).history

    left_out = {each.name: each.left_out for each in history.boundaries}
    assert [left_out[name] for name in ("9", "nap", "word")] == [True, False, False]
    assert [(each.value, each.left_out) for each in history.deliveries] == [(None, False)]


def test_bytes_are_counted_as_utf_8(store: Store) -> None:
    claimed = a_claimed(store)
    write(store, claimed, a_checkpoint("stage", '"ä€😀"'))

    history = _again(store, claimed).history

    assert (history.bytes, history.boundaries[0].value) == (2 + 2 + 3 + 4, '"ä€😀"')


def test_an_instant_is_due_by_the_databases_clock(store: Store, clock: ManualClock) -> None:
    claimed = a_claimed(store)
    new = [
        NewBoundary(name="soon", kind=BoundaryKind.TIMER, seq=1, delay_ms=1_000),
        NewBoundary(name="past", kind=BoundaryKind.TIMER, seq=2, wake_at=clock.now),
    ]
    write(store, claimed, *new)
    started = clock.now

    soon, past = _again(store, claimed).history.boundaries
    assert (soon.due, soon.absolute) == (False, False)
    assert (past.due, past.absolute, past.wake_at) == (True, True, started)

    clock.advance(1_000)
    (soon, _) = history_of(store, claimed.id).boundaries
    assert (soon.due, soon.wake_at) == (True, clock.now)


def test_the_answer_to_a_timer_says_whether_it_is_due_by_the_databases_clock(
    store: Store, clock: ManualClock
) -> None:
    """So a sleep until an instant that has passed keeps its lease."""
    claimed = a_claimed(store)
    past = NewBoundary(name="past", kind=BoundaryKind.TIMER, seq=1, wake_at=clock.now)
    zero = NewBoundary(name="zero", kind=BoundaryKind.TIMER, seq=2, delay_ms=0)
    later = NewBoundary(name="later", kind=BoundaryKind.TIMER, seq=3, delay_ms=1)

    stored = [answer.boundary for answer in write(store, claimed, past, zero, later)]

    assert [each.due for each in stored if each] == [True, True, False]
    assert [each.absolute for each in stored if each] == [True, False, False]
    assert [each.wake_at for each in stored if each] == [
        clock.now,
        clock.now,
        clock.now + timedelta(milliseconds=1),
    ]


# -- progress ------------------------------------------------------------------------------------


def _progress(claimed: ClaimedRun, value: str) -> NewProgress:
    return NewProgress(lease=lease_of(claimed), value=value)


def test_progress_is_the_latest_value_and_survives_the_end(store: Store) -> None:
    claimed = a_claimed(store)
    store.run(write_progress, [_progress(claimed, "1"), _progress(claimed, "2")])
    assert seen(store, claimed.id).progress == "2"
    store.run(write_progress, [_progress(claimed, "3")])
    end(store, claimed)

    assert seen(store, claimed.id).progress == "3"
    store.run(write_progress, [_progress(claimed, "4")])
    assert seen(store, claimed.id).progress == "3"


def test_progress_of_a_stale_lease_is_not_written(store: Store, clock: ManualClock) -> None:
    stale = a_claimed(store)
    current = _taken_over(store, clock, stale)
    store.run(write_progress, [_progress(current, "1")])

    store.run(write_progress, [_progress(stale, "2")])

    assert seen(store, stale.id).progress == "1"
    assert len(rows(store, "select * from {s}progress")) == 1
