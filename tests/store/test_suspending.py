"""An activation ends at its waits: where the run stands then, and when it is due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.store.acting import (
    LEASE_MS,
    REACH_MS,
    a_claimed,
    an_entry,
    do,
    end,
    hinted,
    history_of,
    lease_of,
    live_row,
    names_passed,
    promoted,
    reach,
    recovered,
    seen,
    state_of,
    take_one,
    waiting,
)
from tests.store.invariants import check_invariants
from workhorse.domain.boundaries import BoundaryKind, NewBoundary, Wait
from workhorse.domain.outcomes import Suspend
from workhorse.domain.runs import RunState
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.lifecycle.settling import settle
from workhorse.store.operators.operating import cancel

TIMER, SIGNAL, HUMAN = BoundaryKind.TIMER, BoundaryKind.SIGNAL, BoundaryKind.HUMAN


def _wait(
    kind: BoundaryKind, name: str, delay_ms: int | None = None, wake_at: datetime | None = None
) -> Wait:
    new = NewBoundary(name=name, kind=kind, seq=1, delay_ms=delay_ms, wake_at=wake_at)
    return Wait(kind=kind, name=name, new=new)


def _again(wait: Wait) -> Wait:
    """The same wait, as a later activation gets to it: its boundary stands."""
    return Wait(kind=wait.kind, name=wait.name)


def test_a_sleeping_run_is_scheduled_and_spends_nothing(store: Store, clock: ManualClock) -> None:
    claimed = a_claimed(store)

    settled = end(store, claimed, Suspend((_wait(TIMER, "nap", 60_000),)))

    assert settled.written == {claimed.id: RunState.SCHEDULED}
    view = seen(store, claimed.id)
    assert (view.state, view.due_at) == (RunState.SCHEDULED, clock.now + timedelta(minutes=1))
    assert (view.attempt, names_passed(store, claimed.id)) == (1, ["nap"])
    check_invariants(store)


def test_of_several_timers_the_first_counts(store: Store, clock: ManualClock) -> None:
    claimed = a_claimed(store)
    waits = (_wait(TIMER, "late", 60_000), _wait(TIMER, "soon", 5_000), _wait(TIMER, "mid", 9_000))

    end(store, claimed, Suspend(waits))

    assert seen(store, claimed.id).due_at == clock.now + timedelta(seconds=5)


def test_an_absolute_time_is_kept_to_the_microsecond(store: Store, clock: ManualClock) -> None:
    wake_at = datetime(2026, 3, 1, 12, 30, 15, 123457, UTC)
    claimed = a_claimed(store)

    end(store, claimed, Suspend((_wait(TIMER, "until", wake_at=wake_at),)))

    assert seen(store, claimed.id).due_at == wake_at
    (boundary,) = history_of(store, claimed.id).boundaries
    assert (boundary.wake_at, boundary.absolute) == (wake_at, True)


def test_a_wait_for_a_value_is_waiting_with_or_without_a_time(
    store: Store, clock: ManualClock
) -> None:
    forever, bounded = a_claimed(store), a_claimed(store)

    end(store, forever, Suspend((_wait(SIGNAL, "word"),)))
    end(store, bounded, Suspend((_wait(HUMAN, "review", 60_000),)))

    assert (state_of(store, forever.id), seen(store, forever.id).due_at) == ("waiting", None)
    assert (state_of(store, bounded.id), seen(store, bounded.id).due_at) == (
        "waiting",
        clock.now + timedelta(minutes=1),
    )


def test_a_wait_for_the_first_of_several_is_due_at_its_timer(
    store: Store, clock: ManualClock
) -> None:
    claimed = a_claimed(store)

    end(store, claimed, Suspend((_wait(SIGNAL, "word"), _wait(TIMER, "late", 60_000))))

    view = seen(store, claimed.id)
    assert (view.state, view.due_at) == (RunState.WAITING, clock.now + timedelta(minutes=1))


def test_a_repeated_wait_keeps_its_first_target(store: Store, clock: ManualClock) -> None:
    claimed = a_claimed(store)
    nap = _wait(TIMER, "nap", 60_000)
    end(store, claimed, Suspend((nap,)))
    first = seen(store, claimed.id).due_at
    clock.advance(60_000)
    promoted(store)
    claimed = take_one(store, claimed.id)
    clock.advance(5_000)

    end(store, claimed, Suspend((_wait(SIGNAL, "word", 60_000), _again(nap))))

    assert seen(store, claimed.id).due_at == first
    # Also where an activation takes it for a new one: what stands is never changed.
    promoted(store)
    claimed = take_one(store, claimed.id)
    end(store, claimed, Suspend((_wait(TIMER, "nap", 90_000),)))
    assert seen(store, claimed.id).due_at == first


def test_a_wait_whose_time_has_passed_is_due_at_once(store: Store, clock: ManualClock) -> None:
    claimed = a_claimed(store)
    past = clock.now - timedelta(days=1)

    settled = end(store, claimed, Suspend((_wait(SIGNAL, "word", wake_at=past),)))

    assert state_of(store, claimed.id) == "waiting"
    assert [hint.delay_ms for hint in settled.hints] == [0]
    assert promoted(store).count == 1


def test_a_delivery_since_the_claim_is_not_waited_for_again(store: Store) -> None:
    """It may be the very one; the next activation finds out."""
    claimed = a_claimed(store)
    do(store, "update {s}live set inbox = inbox + 1 where id = :id", id=claimed.id)

    settled = end(store, claimed, Suspend((_wait(SIGNAL, "word", 60_000),)))

    row = live_row(store, claimed.id)
    assert (row.state, row.due_at, bool(row.wake_sent)) == ("ready", None, False)
    assert hinted(settled.hints) == [claimed.id]
    assert names_passed(store, claimed.id) == ["word"]
    claimed = take_one(store, claimed.id)
    end(store, claimed, Suspend((Wait(kind=SIGNAL, name="word"),)))
    assert state_of(store, claimed.id) == "waiting"


def test_a_delivery_since_the_claim_does_not_wake_a_sleeper(store: Store) -> None:
    claimed = a_claimed(store)
    do(store, "update {s}live set inbox = inbox + 1 where id = :id", id=claimed.id)

    end(store, claimed, Suspend((_wait(TIMER, "nap", 60_000),)))

    assert state_of(store, claimed.id) == "scheduled"


@pytest.mark.parametrize("kind", [BoundaryKind.CHILD, BoundaryKind.SIGNAL, BoundaryKind.TIMER])
def test_a_wait_that_the_store_has_lost_is_not_waited_for(store: Store, kind: BoundaryKind) -> None:
    """Set back to an older copy, the store has the lease and not what was stored under it since."""
    claimed = a_claimed(store)

    settled = end(store, claimed, Suspend((Wait(kind=kind, name="lost"), _wait(SIGNAL, "word"))))

    row = live_row(store, claimed.id)
    assert (row.state, row.due_at, bool(row.wake_sent)) == ("ready", None, False)
    assert hinted(settled.hints) == [claimed.id]
    claimed = take_one(store, claimed.id)
    end(store, claimed, Suspend((_wait(kind, "lost", 60_000), Wait(kind=SIGNAL, name="word"))))
    assert state_of(store, claimed.id) == "waiting"
    check_invariants(store)


def test_a_stale_lease_suspends_nothing(store: Store, clock: ManualClock) -> None:
    stale = a_claimed(store)
    clock.advance(LEASE_MS)
    recovered(store)
    clock.advance(1_000)
    current = take_one(store, stale.id)

    settled = end(store, stale, Suspend((_wait(SIGNAL, "stale"),)))

    assert (settled.written, settled.hints) == ({}, [])
    assert names_passed(store, stale.id) == []
    assert live_row(store, stale.id).token == lease_of(current).token


def test_a_cancelled_run_ends_at_its_wait(store: Store) -> None:
    claimed = a_claimed(store)
    store.run(cancel, claimed.id, by="me", why="", request_id="1")

    settled = end(store, claimed, Suspend((_wait(SIGNAL, "word"),)))

    assert settled.written == {claimed.id: RunState.CANCELLED}


@pytest.mark.parametrize(
    ("delay_ms", "sent"), [(REACH_MS, True), (REACH_MS + 1, False), (None, False)]
)
def test_a_wakeup_is_sent_for_what_is_due_within_reach(
    store: Store, delay_ms: int | None, sent: bool
) -> None:
    claimed = a_claimed(store)

    settled = end(store, claimed, Suspend((_wait(SIGNAL, "word", delay_ms),)))

    assert [hint.delay_ms for hint in settled.hints] == ([delay_ms] if sent else [])
    assert bool(live_row(store, claimed.id).wake_sent) == sent


def test_a_batch_suspends_retries_and_ends_side_by_side(store: Store) -> None:
    sleeper, waiter, other = a_claimed(store), a_claimed(store), a_claimed(store)
    entries = [
        an_entry(sleeper, Suspend((_wait(TIMER, "nap", 60_000),)), active_ms=7),
        an_entry(other, Suspend((_wait(TIMER, "nap", 90_000),))),
        an_entry(waiter, Suspend((_wait(SIGNAL, "word"),))),
    ]

    settled = store.run(settle, entries, reach=reach)

    assert settled.written == {
        sleeper.id: RunState.SCHEDULED,
        other.id: RunState.SCHEDULED,
        waiter.id: RunState.WAITING,
    }
    assert seen(store, sleeper.id).due_at != seen(store, other.id).due_at
    assert live_row(store, sleeper.id).active_ms == 7


def test_active_time_adds_up_over_waits(store: Store, clock: ManualClock) -> None:
    claimed = a_claimed(store)
    store.run(
        settle,
        [an_entry(claimed, Suspend((_wait(TIMER, "nap", 1_000),)), active_ms=40)],
        reach=reach,
    )
    clock.advance(1_000)
    promoted(store)
    claimed = take_one(store, claimed.id)
    assert claimed.active_ms == 40
    store.run(
        settle,
        [an_entry(claimed, Suspend((_wait(TIMER, "again", 1_000),)), active_ms=2)],
        reach=reach,
    )
    assert live_row(store, claimed.id).active_ms == 42


def test_a_run_is_not_due_at_a_time_that_it_has_passed_by_another_ones_name(
    store: Store, clock: ManualClock
) -> None:
    """Two runs of one batch, of which one waits at a name that the other has passed before."""
    ahead, behind = a_claimed(store), a_claimed(store)
    end(store, ahead, waiting(BoundaryKind.TIMER, 1_000, name="first nap"))
    clock.advance(1_000)
    ahead = take_one(store, ahead.id)

    entries = [
        an_entry(ahead, waiting(BoundaryKind.TIMER, 60_000, name="second nap")),
        an_entry(behind, waiting(BoundaryKind.TIMER, 1_000, name="first nap")),
    ]
    store.run(settle, entries, reach=reach)

    assert seen(store, ahead.id).due_at == clock.now + timedelta(seconds=60)
    assert seen(store, behind.id).due_at == clock.now + timedelta(seconds=1)
