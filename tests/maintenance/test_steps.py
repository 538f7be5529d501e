"""What each step of maintenance does, and the wakeups that it sends."""

from __future__ import annotations

import random
import re
from datetime import timedelta

import pytest

from tests.maintenance.lanes import REACH_MS, Outbox, TalkingLane
from tests.store.acting import (
    LEASE_MS,
    a_claimed,
    a_run,
    an_entry,
    do,
    end,
    put,
    put_many,
    reach,
    state_of,
    take,
    take_one,
)
from tests.store.waiting import (
    CHILD,
    a_child,
    a_ref,
    complete,
    delivered,
    notes,
    put_after,
    wait_again,
    waiting_for,
)
from workhorse.domain.findings import Code, Finding, Severity
from workhorse.domain.hints import Hint, no_reach
from workhorse.domain.retry import RetryPolicy
from workhorse.maintenance import Maintenance
from workhorse.maintenance.steps import MOST_TOP_UPS, STEPS
from workhorse.ports import LaneError
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.lifecycle.settling import settle
from workhorse.store.operators.operating import cancel, pause_queue
from workhorse.store.producing.enqueueing import enqueue
from workhorse.telemetry import Counters, Metric

_AT_ONCE = RetryPolicy(first=timedelta(0))
_NAMES = [
    "recover", "deadlines", "promote", "cancellations", "tokens", "arm", "free", "far_timers",
    "top_up", "processes",
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
    assert [step.interval_ms for step in STEPS] == [1_000] * 7 + [30_000] * 2 + [60_000]


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


def test_what_the_broker_refuses_for_many_queues_is_said_once_with_its_code(
    store: Store, outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"q{number}" for number in range(8)]
    for name in names:
        put(store, queue=name)
    refused = {
        name: LaneError(Finding(Code.ACCESS_DENIED, Severity.WARNING, f"queue {name}: no", "allow"))
        for name in names
    }

    done = _only("top_up", store, TalkingLane(**refused), outbox).run_once()

    assert list(done.failed) == ["top_up"]
    (record,) = caplog.records
    said = record.getMessage()
    assert (record.levelname, record.exc_info) == ("WARNING", None)
    assert re.search(r"queue q\d: no \(access_denied\); so it is with 7 more queues, or al", said)
    assert said.endswith("; allow")


def test_a_broker_that_does_not_answer_takes_little_of_a_pass(
    store: Store, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look takes ten seconds then, and a pass of all steps has fifty."""
    names = [f"q{number}" for number in range(12)]
    for name in names:
        put(store, queue=name)
    lane = TalkingLane(**dict.fromkeys(names, TimeoutError()))
    clock, look = [0.0], lane.backlog

    def slow(queue: str) -> int | None:
        clock[0] += 10
        return look(queue)

    monkeypatch.setattr(lane, "backlog", slow)
    monkeypatch.setattr("workhorse.maintenance.steps.monotonic", lambda: clock[0])

    maintenance = _only("top_up", store, lane, outbox)
    for _ in range(30):
        asked = len(lane.asked)
        done = maintenance.run_once()
        assert done.failed == {"top_up": "TimeoutError"}
        assert len(lane.asked) - asked == 2
    assert len(set(lane.asked)) > 6  # others each time: one that is slow hides none for ever


def test_a_top_up_writes_nothing_and_may_be_repeated(
    maintenance: Maintenance, store: Store, outbox: Outbox, counters: Counters
) -> None:
    run_id = put(store)

    maintenance.run_once()
    maintenance.run_once()

    assert outbox.hints == [Hint(run_id, "default")] * 2
    assert counters.get(Metric.TOP_UPS) == 2
    assert store.run(enqueue, [], reach=reach) == []


# -- who was freed -------------------------------------------------------------------------------


def test_a_token_that_times_out_is_handed_on_in_the_same_pass(
    maintenance: Maintenance, store: Store, clock: ManualClock, outbox: Outbox
) -> None:
    ref = a_ref(store, 1_000)
    claimed = [a_claimed(store) for _ in range(3)]
    for each in claimed:
        end(store, each, waiting_for(ref))
    # They came to it without a time of their own, so nothing but the token makes them due.
    do(store, "update {s}live set due_at = null, wake_sent = :no", no=False)
    clock.advance(1_000)

    done = maintenance.run_once()

    assert (done.counts["promote"], done.counts["tokens"], done.counts["free"]) == (0, 1, 3)
    assert sorted(hint.run_id for hint in outbox.hints[:3]) == sorted(each.id for each in claimed)
    assert delivered(store, claimed[0].id) == [(f"t {ref}", "timed_out", None)]
    assert notes(store) == []


def test_what_whoever_completed_a_token_left_is_done(
    maintenance: Maintenance, store: Store, outbox: Outbox
) -> None:
    """He died behind the commit of the fact; page after page, each run goes on once."""
    ref = a_ref(store)
    ids = put_many(store, 230)
    for start in range(0, 230, 100):
        batch = take(store, *ids[start : start + 100]).runs
        store.run(settle, [an_entry(each, waiting_for(ref)) for each in batch], reach=reach)
    complete(store, ref)

    done = maintenance.run_once()

    assert done.counts["free"] == 230
    assert [len(page) for page in outbox.pages if page][:3] == [100, 100, 30]
    assert sorted(hint.run_id for page in outbox.pages[:10] for hint in page)[:230] == sorted(ids)
    assert notes(store) == []
    assert maintenance.run_once().counts["free"] == 0


def test_runs_that_come_after_others_go_on_though_nobody_armed_them(
    maintenance: Maintenance, store: Store, outbox: Outbox
) -> None:
    """Whoever enqueued them died behind the commit."""
    ended, unfinished = a_claimed(store), put(store)
    end(store, ended)
    free, bound = put_after(store, ended.id, armed=False), put_after(store, unfinished, armed=False)

    done = maintenance.run_once()

    assert done.counts["arm"] == 2
    assert (state_of(store, free), state_of(store, bound)) == ("ready", "waiting")
    assert Hint(free, "default") in outbox.hints
    end(store, take_one(store, unfinished))
    assert maintenance.run_once().counts["free"] == 1
    assert state_of(store, bound) == "ready"


def test_a_tree_is_cancelled_from_the_top_in_one_pass(
    maintenance: Maintenance, store: Store
) -> None:
    parent = a_claimed(store)
    child = take_one(store, a_child(store, parent))
    grandchildren = [a_child(store, child, f"g{n}") for n in range(3)]
    wait_again(store, child, "g0", kind=CHILD, new=False)
    end(store, parent)

    maintenance.run_once()

    assert {state_of(store, each) for each in (child.id, *grandchildren)} == {"cancelled"}
    assert (state_of(store, parent.id), notes(store)) == ("succeeded", [])
