"""What each step of maintenance does, and the wakeups that it sends."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from tests.maintenance.lanes import REACH_MS, Outbox, TalkingLane
from tests.store.acting import (
    LEASE_MS,
    a_claimed,
    a_run,
    put,
    put_many,
    reach,
    state_of,
    take,
)
from workhorse.domain.hints import Hint, no_reach
from workhorse.domain.retry import RetryPolicy
from workhorse.maintenance import Maintenance
from workhorse.maintenance.steps import MOST_TOP_UPS, STEPS
from workhorse.store.database import ManualClock, Store
from workhorse.store.enqueueing import enqueue
from workhorse.store.operating import cancel, pause_queue
from workhorse.telemetry import Counters, Metric

_AT_ONCE = RetryPolicy(first=timedelta(0))
_NAMES = [
    "recover", "deadlines", "promote", "cancellations", "tokens", "arm", "free", "far_timers",
    "top_up",
]  # fmt: skip


def _only(
    name: str, store: Store, lane: TalkingLane, outbox: Outbox, *, hint_stride: int = 10
) -> Maintenance:
    return Maintenance(
        store=store,
        lane=lane,
        publish=outbox,
        counters=Counters(),
        hint_stride=hint_stride,
        draw=random.Random(1),
        steps=[step for step in STEPS if step.name == name],
    )


def test_the_steps_and_how_often_a_fleet_does_them() -> None:
    assert [step.name for step in STEPS] == _NAMES
    assert [step.interval_ms for step in STEPS] == [1_000] * 7 + [30_000] * 2


def test_a_pass_over_an_empty_store_does_nothing(maintenance: Maintenance, outbox: Outbox) -> None:
    done = maintenance.run_once()

    assert done.counts == dict.fromkeys(_NAMES, 0)
    assert (done.failed, done.total, outbox.hints) == ({}, 0, [])


def test_expired_leases_are_recovered_page_after_page(
    maintenance: Maintenance,
    store: Store,
    clock: ManualClock,
    outbox: Outbox,
    counters: Counters,
) -> None:
    ids = put_many(store, 230, retry=_AT_ONCE)
    take(store, *ids)
    take(store, *ids)
    clock.advance(LEASE_MS)

    done = maintenance.run_once()

    assert done.counts["recover"] == 230
    assert {state_of(store, run_id) for run_id in ids[::50]} == {"ready"}
    recovered = [page for page in outbox.pages if page][:3]
    assert [len(page) for page in recovered] == [100, 100, 30]
    assert counters.get(Metric.RUNS_RECOVERED) == 230


def test_overdue_runs_are_ended(maintenance: Maintenance, store: Store, clock: ManualClock) -> None:
    run_id = put(store, deadline_ms=1_000)
    clock.advance(1_000)

    assert maintenance.run_once().counts["deadlines"] == 1
    assert state_of(store, run_id) == "failed"


def test_due_runs_are_promoted_and_woken(
    store: Store, clock: ManualClock, lane: TalkingLane, outbox: Outbox
) -> None:
    (unsent,) = store.run(enqueue, [a_run(delay_ms=1_000)], reach=no_reach)
    sent = put(store, delay_ms=1_000)
    clock.advance(1_000)

    done = _only("promote", store, lane, outbox).run_once()

    assert done.counts == {"promote": 2}
    assert outbox.hints == [Hint(unsent.run_id, "default")]
    assert state_of(store, sent) == "ready"


def test_cancelled_runs_that_nobody_settled_are_ended(
    store: Store, clock: ManualClock, lane: TalkingLane, outbox: Outbox
) -> None:
    claimed = a_claimed(store)
    store.run(cancel, claimed.id, by="ann", why="", request_id="r")
    clock.advance(LEASE_MS)

    assert _only("cancellations", store, lane, outbox).run_once().counts == {"cancellations": 1}
    assert state_of(store, claimed.id) == "cancelled"


def test_timers_that_came_near_are_sent_with_their_delay(
    maintenance: Maintenance, store: Store, clock: ManualClock, outbox: Outbox
) -> None:
    run_id = put(store, delay_ms=REACH_MS + 60_000)
    clock.advance(90_000)

    assert maintenance.run_once().counts["far_timers"] == 1
    assert outbox.hints == [Hint(run_id, "default", REACH_MS - 30_000)]
    assert maintenance.run_once().counts["far_timers"] == 0


def test_wakeups_are_sent_after_the_commit(store: Store, clock: ManualClock) -> None:
    """Whoever gets one finds what it speaks of."""
    seen: list[str] = []
    maintenance = Maintenance(
        store=store,
        lane=TalkingLane(),
        publish=lambda hints: seen.extend(state_of(store, hint.run_id) for hint in hints),
        counters=Counters(),
    )
    store.run(enqueue, [a_run(delay_ms=1_000)], reach=no_reach)
    clock.advance(1_000)

    maintenance.run_once()

    assert seen == ["ready", "ready"]  # by promotion, and once more by the top-up


# -- top-up --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ready", "visible", "stride", "sent"),
    [
        (0, 0, 10, 0),
        (1, 0, 10, 1),
        (10, 0, 10, 1),
        (11, 0, 10, 2),
        (11, 1, 10, 1),
        (11, 2, 10, 0),
        (11, 50, 10, 0),
        (7, 0, 1, 7),
        (7, 5, 1, 2),
        (150, 0, 1, MOST_TOP_UPS),
        (150, 99, 1, 1),
    ],
)
def test_what_is_missing_is_sent_for_the_first_ready_runs(
    store: Store, outbox: Outbox, ready: int, visible: int, stride: int, sent: int
) -> None:
    ids = put_many(store, ready) if ready else []
    lane = TalkingLane(default=visible)

    done = _only("top_up", store, lane, outbox, hint_stride=stride).run_once()

    assert done.counts == {"top_up": sent}
    assert outbox.hints == [Hint(run_id, "default") for run_id in ids[:sent]]


def test_each_open_queue_is_topped_up(store: Store, outbox: Outbox) -> None:
    ids = {name: put(store, queue=name) for name in ("a", "b", "full", "paused", "silent")}
    put(store, queue="later", delay_ms=1_000)
    a_claimed(store, queue="busy")
    store.run(pause_queue, "paused", by="ann", why="")
    lane = TalkingLane(full=3, silent=None)

    _only("top_up", store, lane, outbox).run_once()

    assert sorted(outbox.hints, key=lambda hint: hint.queue) == [
        Hint(ids["a"], "a"),
        Hint(ids["b"], "b"),
    ]
    assert sorted(lane.asked) == ["a", "b", "full", "silent"]


def test_a_queue_that_the_broker_says_nothing_about_does_not_keep_the_others_from_theirs(
    store: Store, outbox: Outbox
) -> None:
    ids = {name: put(store, queue=name) for name in ("a", "gone", "z")}
    lane = TalkingLane(gone=ConnectionError("no such queue"))

    done = _only("top_up", store, lane, outbox).run_once()

    assert done.failed == {"top_up": "ConnectionError"}
    assert sorted(hint.run_id for hint in outbox.hints) == sorted([ids["a"], ids["z"]])


def test_a_top_up_writes_nothing_and_may_be_repeated(
    maintenance: Maintenance, store: Store, outbox: Outbox, counters: Counters
) -> None:
    run_id = put(store)

    maintenance.run_once()
    maintenance.run_once()

    assert outbox.hints == [Hint(run_id, "default")] * 2
    assert counters.get(Metric.TOP_UPS) == 2
    assert store.run(enqueue, [], reach=reach) == []
