"""Settlements of many runs in one write: mixed, doubled, and the wakeups that follow."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from tests.store.acting import (
    BROKEN,
    EACH_SETTLEMENT,
    FAIL,
    HAND_BACK,
    LEASE_MS,
    REACH_MS,
    RETRY,
    RETRY_NOW,
    SLEEP,
    SUCCEED,
    WAIT,
    WAIT_AN_HOUR,
    a_claimed,
    an_entry,
    do,
    end,
    lease_of,
    live_row,
    promoted,
    put_many,
    reach,
    recovered,
    rows,
    seen,
    sleeping,
    take,
    take_one,
    waiting_at_most,
)
from tests.store.rivals import Rival
from tests.support.eventually import eventually
from workhorse.domain.hints import Hint, no_reach
from workhorse.domain.outcomes import Finish, Retry, Settlement
from workhorse.domain.runs import Failure, Lease, Reason, RunState
from workhorse.store.base.database import ManualClock, Store, Tx
from workhorse.store.lifecycle import settling
from workhorse.store.lifecycle.settling import Entry, settle, settled_before
from workhorse.store.live import ending
from workhorse.store.live.ending import EndedRuns, Ending

_STATES = {
    "succeed": "succeeded",
    "fail": "failed",
    "retry": "scheduled",
    "retry at once": "ready",
    "sleep": "scheduled",
    "wait": "waiting",
    "wait with a time-out": "waiting",
    "hand back": "ready",
}


def test_nothing_to_settle_asks_nothing(store: Store) -> None:
    settled = store.run(settle, [], reach=reach)

    assert (settled.written, settled.hints) == ({}, [])


def test_a_batch_of_all_kinds_is_written_in_one_transaction(store: Store) -> None:
    claimed = {kind: a_claimed(store) for kind in EACH_SETTLEMENT}
    entries = [an_entry(claimed[kind], how) for kind, how in EACH_SETTLEMENT.items()]

    settled = store.run(settle, entries, reach=reach)

    assert settled.written == {claimed[kind].id: _STATES[kind] for kind in claimed}
    assert {kind: seen(store, run.id).state for kind, run in claimed.items()} == _STATES


def test_200_runs_are_settled_at_once(store: Store) -> None:
    claimed = take(store, *put_many(store, 200)).runs

    settled = store.run(settle, [an_entry(run, SUCCEED) for run in claimed], reach=reach)

    assert set(settled.written.values()) == {RunState.SUCCEEDED}
    assert len(settled.written) == 200


def test_successes_alone_take_a_short_way(
    postgresql_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are nearly all that is settled, and it costs half; of no other end it knows enough."""
    long_ways: list[int] = []

    def end_runs(tx: Tx, endings: Sequence[Ending], *, under_lease: bool) -> EndedRuns:
        long_ways.append(len(endings))
        return ending.end_runs(tx, endings, under_lease=under_lease)

    monkeypatch.setattr(settling, "end_runs", end_runs)
    first, second, *both = take(postgresql_store, *put_many(postgresql_store, 4)).runs

    for run, how in zip((first, second), (SUCCEED, FAIL), strict=True):
        assert end(postgresql_store, run, how).written
    mixed = [an_entry(run, how) for run, how in zip(both, (SUCCEED, FAIL), strict=True)]
    assert len(postgresql_store.run(settle, mixed, reach=reach).written) == 2
    assert long_ways == [1, 2]


def test_an_activation_that_is_offered_twice_is_written_once(store: Store) -> None:
    claimed = a_claimed(store)
    entry = an_entry(claimed, SUCCEED)

    settled = store.run(settle, [entry, entry, an_entry(claimed, FAIL)], reach=reach)

    assert settled.written == {claimed.id: RunState.SUCCEEDED}
    assert seen(store, claimed.id).state is RunState.SUCCEEDED


def test_two_leases_of_a_run_in_one_batch_are_judged_apart(
    store: Store, clock: ManualClock
) -> None:
    """A worker that lost a lease and claimed the run again offers both: only one is held."""
    stale = a_claimed(store)
    clock.advance(LEASE_MS)
    recovered(store)
    clock.advance(timedelta(minutes=5))
    current = take_one(store, stale.id)

    entries = [an_entry(stale, FAIL), an_entry(current, RETRY_NOW)]
    assert store.run(settle, entries, reach=reach).written == {stale.id: RunState.READY}
    entries = [an_entry(take_one(store, stale.id), SLEEP), an_entry(stale, FAIL)]
    assert store.run(settle, entries, reach=reach).written == {stale.id: RunState.SCHEDULED}


def test_what_a_batch_wrote_is_gone_when_its_transaction_fails(store: Store) -> None:
    claimed = a_claimed(store)

    def breaks(tx: object) -> None:
        settle(tx, [an_entry(claimed, SUCCEED)], reach=reach)  # type: ignore[arg-type]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.run(breaks)

    assert end(store, claimed, FAIL).written == {claimed.id: RunState.FAILED}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        '"it\'s 100% of %s and %(batch)s, :batch and ::text, $1 and ?"',
        '{"a":"back\\\\slash \\"quoted\\" \\u0000 \\n"}',
        '"\u00e9\u4e2d\U0001f40e\u200f\ufffd"',
        '[1e400,9007199254740993,-0.0,"{}"]',
        "[" * 64 + "]" * 64,
        '"' + "x" * 1_000_000 + '"',
    ],
    ids=["empty", "null", "marks", "escapes", "unicode", "numbers", "deep", "large"],
)
def test_a_result_makes_the_trip_unchanged(store: Store, text: str) -> None:
    claimed = a_claimed(store, payload=text)
    assert claimed.payload == text

    end(store, claimed, Finish(RunState.SUCCEEDED, result=text))

    assert seen(store, claimed.id).result == text
    assert seen(store, claimed.id).payload == text


def test_an_error_makes_the_trip_unchanged(store: Store) -> None:
    failure = Failure("my.Error<'x'>", '50% of :it\n"failed" \U0001f40e', "line\\1\n\tline 2\r\n")
    ended, retried = a_claimed(store), a_claimed(store)

    end(store, ended, Finish(RunState.FAILED, Reason.NOT_RETRYABLE, failure=failure))
    end(store, retried, Retry(0, Reason.TIMEOUT, failure))

    run = seen(store, ended.id)
    assert Failure(run.error_type or "", run.error_message or "", run.error_traceback) == failure
    assert run.reason is Reason.NOT_RETRYABLE
    kept = rows(store, "select * from {s}attempts order by run_id")
    assert [(row.error_type, row.error_message, row.error_traceback) for row in kept] == [
        (failure.error_type, failure.message, failure.traceback)
    ] * 2
    assert {row.reason for row in kept} == {"not_retryable", "timeout"}


def test_an_error_without_a_traceback_is_kept(store: Store) -> None:
    claimed = a_claimed(store)

    end(store, claimed, Finish(RunState.FAILED, Reason.ERROR, failure=Failure("E", "")))

    run = seen(store, claimed.id)
    assert (run.error_type, run.error_message, run.error_traceback) == ("E", "", None)


def test_hand_backs_count_anew_from_a_boundary(store: Store) -> None:
    """And from an attempt that was spent; else they would end a run that comes forward."""
    claimed = a_claimed(store)
    counted = []
    for progressed, how in (
        (False, HAND_BACK),
        (False, HAND_BACK),
        (True, HAND_BACK),
        (False, HAND_BACK),
        (False, RETRY_NOW),
        (False, HAND_BACK),
    ):
        entry = an_entry(claimed, how)
        entry.progressed = progressed
        store.run(settle, [entry], reach=reach)
        claimed = take_one(store, claimed.id)
        counted.append(claimed.hand_backs)

    assert counted == [1, 2, 1, 2, 0, 1]


# -- an answer that was lost ---------------------------------------------------------------------


def test_a_settle_whose_answer_was_lost_is_known_again(store: Store) -> None:
    """Repeated, it finds nothing to write; the outcomes tell which were its own."""
    ended, failed, parked = (a_claimed(store) for _ in range(3))
    entries = [an_entry(ended, SUCCEED), an_entry(failed, FAIL), an_entry(parked, SLEEP)]
    store.run(settle, entries, reach=reach)

    again = store.run(settle, entries, reach=reach)

    leases = [entry.lease for entry in entries]
    assert (again.written, again.hints) == ({}, [])
    assert set(store.run(settled_before, leases).written) == {ended.id, failed.id}


def test_a_token_of_another_run_is_not_known_again(store: Store) -> None:
    one, other = take(store, *put_many(store, 2)).runs
    end(store, one, SUCCEED)

    assert store.run(settled_before, [lease_of(other)]).written == {}
    crossed = Lease(other.id, 1, lease_of(one).token)
    assert store.run(settled_before, [crossed]).written == {}


# -- wakeups -------------------------------------------------------------------------------------


def _wake(store: Store, settlement: Settlement, to: object = reach) -> tuple[list[Hint], bool]:
    claimed = a_claimed(store, queue="slow")
    entry = an_entry(claimed, settlement)
    hints = store.run(settle, [entry], reach=to).hints  # type: ignore[arg-type]
    assert {hint.run_id for hint in hints} <= {claimed.id}
    assert {hint.queue for hint in hints} <= {"slow"}
    row = live_row(store, claimed.id)
    return hints, bool(row.wake_sent) if row else False


@pytest.mark.parametrize("settlement", [SUCCEED, FAIL, WAIT])
def test_what_nobody_waits_for_is_not_woken(store: Store, settlement: Settlement) -> None:
    assert _wake(store, settlement) == ([], False)


@pytest.mark.parametrize("settlement", [HAND_BACK, RETRY_NOW])
def test_what_is_ready_is_woken_at_once(store: Store, settlement: Settlement) -> None:
    hints, sent = _wake(store, settlement)

    assert [hint.delay_ms for hint in hints] == [0]
    assert not sent


@pytest.mark.parametrize(
    ("settlement", "delay_ms"),
    [
        (Retry(1, Reason.ERROR, BROKEN), 1),
        (RETRY, 5_000),
        (SLEEP, 60_000),
        (waiting_at_most(60_000), 60_000),
    ],
)
def test_what_is_due_within_reach_is_woken_by_a_delayed_message(
    store: Store, settlement: Settlement, delay_ms: int
) -> None:
    hints, sent = _wake(store, settlement)

    assert [hint.delay_ms for hint in hints] == [delay_ms]
    assert sent


@pytest.mark.parametrize(
    ("delay_ms", "near"), [(REACH_MS - 1, True), (REACH_MS, True), (REACH_MS + 1, False)]
)
def test_the_reach_of_the_queue_decides(store: Store, delay_ms: int, near: bool) -> None:
    for settlement in (
        sleeping(delay_ms),
        waiting_at_most(delay_ms),
        Retry(delay_ms, Reason.ERROR, BROKEN),
    ):
        hints, sent = _wake(store, settlement)
        assert (len(hints), sent) == (int(near), near)


def test_each_queue_has_its_own_reach(store: Store) -> None:
    assert len(_wake(store, SLEEP, lambda queue: REACH_MS if queue == "slow" else 0)[0]) == 1
    assert _wake(store, SLEEP, lambda queue: 0 if queue == "slow" else REACH_MS) == ([], False)
    assert _wake(store, SLEEP, no_reach) == ([], False)


def test_a_timer_out_of_reach_is_woken_when_it_is_promoted(
    store: Store, clock: ManualClock
) -> None:
    """And one within reach is not: its own message is under way."""
    far, near = a_claimed(store), a_claimed(store)
    end(store, far, WAIT_AN_HOUR)
    end(store, near, sleeping(60_000))
    clock.advance(timedelta(hours=1))

    swept = promoted(store)

    assert (swept.count, [hint.run_id for hint in swept.hints]) == (2, [far.id])


def test_a_claim_forgets_the_message_of_the_timer_before(store: Store, clock: ManualClock) -> None:
    claimed = a_claimed(store)
    end(store, claimed, SLEEP)
    clock.advance(60_000)
    claimed = take_one(store, claimed.id)

    end(store, claimed, WAIT_AN_HOUR)

    assert not live_row(store, claimed.id).wake_sent


# -- locks ---------------------------------------------------------------------------------------


def test_times_are_read_after_the_lock(postgresql_url: str) -> None:
    """A rest is counted from when the settle gets its row, not from when it was asked for."""
    store = Store.open(postgresql_url)
    claimed = a_claimed(store)
    with Rival(store) as holder, Rival(store) as writer:
        holder.lock(claimed.id)
        answer = writer.start(settle, [an_entry(claimed, SLEEP)], reach=reach)
        writer.wait_until_blocked()
        (before,) = rows(store, "select clock_timestamp()")[0]
        eventually(
            lambda: (
                rows(store, "select clock_timestamp()")[0][0] > before
                and rows(store, "select clock_timestamp()")[0][0] - before
                > timedelta(milliseconds=50)
            )
        )
        (released,) = rows(store, "select clock_timestamp()")[0]
        holder.rollback()
        answer.result(10)
        writer.commit()

    due_at = seen(store, claimed.id).due_at
    assert due_at is not None
    assert due_at >= released + timedelta(seconds=60)
    store.close()


def test_batches_that_share_runs_in_opposite_orders_do_not_deadlock(
    postgresql_store: Store,
) -> None:
    store = postgresql_store
    claimed = take(store, *put_many(store, 40)).runs
    entries = [an_entry(run, HAND_BACK) for run in claimed]
    with Rival(store) as holder, Rival(store) as one, Rival(store) as two:
        for worker in (one, two):  # on a large table the rows would be met in the batch's order
            for way in ("hashjoin", "mergejoin", "seqscan"):
                worker.execute(f"set local enable_{way} = off")
        holder.lock(claimed[20].id)
        first = one.start(settle, entries, reach=reach)
        one.wait_until_blocked()
        second = two.start(settle, entries[::-1], reach=reach)
        two.wait_until_blocked()
        holder.rollback()

        assert len(first.result(10).written) == 40
        one.commit()
        assert second.result(10).written == {}
        two.commit()


def test_a_delivery_that_holds_the_row_is_counted_by_the_wait(postgresql_store: Store) -> None:
    """The settle of a wait gets the row after the delivery, and so sees that it came."""
    store = postgresql_store
    claimed = a_claimed(store)
    with Rival(store) as delivery, Rival(store) as worker:
        delivery.execute("update {s}live set inbox = inbox + 1 where id = :id", id=claimed.id)
        answer = worker.start(settle, [an_entry(claimed, WAIT)], reach=reach)
        worker.wait_until_blocked()
        delivery.commit()

        assert answer.result(10).written == {claimed.id: RunState.READY}
        worker.commit()


def test_an_entry_of_a_run_that_does_not_exist_is_left_out(store: Store) -> None:
    claimed = a_claimed(store)
    do(store, "update {s}live set token = token - 1 where id = :id", id=claimed.id)

    assert store.run(settle, [Entry(lease_of(claimed), SUCCEED)], reach=reach).written == {}
