"""What a fleet costs in calls to SQS and in statements, counted on simulated time.

Real workers, a real producer and real maintenance over the real lane; the broker is in memory and
owns the clock. The bounds are those that docs/cost.md works with.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.lanes.simulation import Fleet
from tests.support import costs
from workhorse.store.base.database import ManualClock

MINUTE_MS = 60_000
ASKS = ("get_queue_url", "delete_message_batch", "change_message_visibility_batch")
"""What a worker asks once at its start: where a queue is, and whether it may settle messages."""

Deploy = Callable[..., Fleet]


@pytest.fixture
def deploy(clock: ManualClock) -> Iterator[Deploy]:
    """Makes fleets, and ends them with the test."""
    fleets: list[Fleet] = []

    def deployed(url: str, **options: Any) -> Fleet:
        fleet = Fleet(url, clock, **options)
        fleets.append(fleet)
        return fleet

    yield deployed
    for fleet in fleets:
        fleet.close()


def feed(
    fleet: Fleet,
    runs: int,
    *,
    at_once: int,
    each_ms: int,
    work_ms: tuple[int, int] = (100, 2_000),
) -> float:
    """Enqueue runs so many at a time, until all are done and no message is left: calls a run."""
    draw = random.Random(1)
    before = fleet.broker.calls
    for _ in range(runs // at_once):
        fleet.enqueue([draw.randint(*work_ms) // 50 * 50 for _ in range(at_once)])
        fleet.run(each_ms)
    for _ in range(10 * MINUTE_MS // 1_000):
        if fleet.finished == runs and not fleet.broker.messages:
            break
        fleet.run(1_000)
    assert (fleet.finished, fleet.broker.messages) == (runs, 0)
    return (fleet.broker.calls - before) / runs


# -- waiting -------------------------------------------------------------------------------------


def test_case_20_an_idle_worker_makes_three_receives_a_minute(
    deploy: Deploy, database_url: str
) -> None:
    """Case 20. Ten minutes, one queue; nothing is found, and no poll is cut short by a scan."""
    fleet = deploy(database_url)
    fleet.start(1)
    fleet.run(10 * MINUTE_MS)

    counts = fleet.broker.counts
    assert counts == dict.fromkeys(ASKS, 1) | {"receive_message": counts["receive_message"]}
    assert 30 <= counts["receive_message"] <= 35
    statements = Counter(fleet.members[0].statements)
    statements.pop("beat", None)  # each ten seconds, of its own thread's time
    assert 15 <= statements["claim"] <= 31  # scans: each 20 or 40 s
    assert statements.total() - statements["claim"] <= 1


def test_case_20_an_idle_fleet_costs_its_workers_times_its_queues(
    deploy: Deploy, sqlite_url: str
) -> None:
    fleet = deploy(sqlite_url)
    fleet.start(10, queues=("a", "b", "c"))
    fleet.run(10 * MINUTE_MS)

    assert set(fleet.broker.counts) == {*ASKS, "receive_message"}
    for member in fleet.members:
        made = fleet.broker.by[member.who]
        assert 3 * 30 <= made["receive_message"] <= 3 * 35
        assert [made[name] for name in ASKS] == [3, 3, 3]


def test_case_20_a_queue_that_fails_costs_less_and_the_other_four_no_more(
    deploy: Deploy, sqlite_url: str
) -> None:
    """Ten minutes, in which one of five queues answers with errors, as one that was deleted."""
    queues = ("a", "b", "c", "d", "e")
    fleet = deploy(sqlite_url)
    fleet.broker.broken.add("workhorse-c")
    fleet.start(1, queues=queues)
    fleet.run(10 * MINUTE_MS)

    made = fleet.broker.receives
    assert all(30 <= made[f"workhorse-{name}"] <= 35 for name in queues if name != "c")
    assert 15 <= made["workhorse-c"] <= 45  # 0.5 s, 1 s, 2 s ... 30 s, with jitter


# -- runs ----------------------------------------------------------------------------------------


def test_case_20_a_run_alone_costs_three_calls(deploy: Deploy, database_url: str) -> None:
    fleet = deploy(database_url)
    fleet.start(2)
    calls = feed(fleet, 20, at_once=1, each_ms=5_000)
    polls = fleet.broker.empty / 20
    assert calls - polls == pytest.approx(costs.ALONE, abs=0.2)


@pytest.mark.parametrize(
    ("workers", "slots", "at_once", "each_ms"),
    [(1, 10, 10, 500), (3, 10, 10, 200), (2, 1, 10, 500), (2, 50, 20, 100), (2, 5, 25, 500)],
    ids=lambda value: str(value),
)
def test_case_20_a_busy_fleet_shares_calls_among_ten_runs(
    deploy: Deploy, sqlite_url: str, workers: int, slots: int, at_once: int, each_ms: int
) -> None:
    """More comes in than it can do: slots fall free one by one, and are filled by scans."""
    fleet = deploy(sqlite_url)
    fleet.start(workers, slots=slots)
    runs = 200 if slots == 1 else 600
    assert feed(fleet, runs, at_once=at_once, each_ms=each_ms) <= costs.TEN_AT_ONCE


def test_a_busy_fleet_on_postgresql(deploy: Deploy, postgresql_url: str) -> None:
    fleet = deploy(postgresql_url)
    fleet.start(2)
    assert feed(fleet, 400, at_once=10, each_ms=200) <= costs.TEN_AT_ONCE


def test_a_backlog_costs_no_more(deploy: Deploy, sqlite_url: str) -> None:
    fleet = deploy(sqlite_url)
    fleet.start(3)
    assert feed(fleet, 600, at_once=600, each_ms=1_000) <= costs.TEN_AT_ONCE


def test_a_quick_worker_that_is_fed_now_and_then(deploy: Deploy, sqlite_url: str) -> None:
    """Ten at a time, for one whose slots fall free one after the other, 50 ms at the most.

    A poll that began with the first of them would ask for as many messages, for twenty seconds.
    """
    fleet = deploy(sqlite_url)
    fleet.start(1)
    assert feed(fleet, 300, at_once=10, each_ms=1_000, work_ms=(0, 99)) <= costs.TEN_AT_ONCE


def test_a_queue_that_keeps_no_order_costs_little_more(deploy: Deploy, sqlite_url: str) -> None:
    """Standard queues do their best. Here they do not: any message may come first."""
    fleet = deploy(sqlite_url, disorder=random.Random(3))
    fleet.start(3)
    assert feed(fleet, 600, at_once=10, each_ms=200) <= 0.45


@pytest.mark.parametrize("slots", [5, 20, 100])
def test_bulk_at_the_default_stride(deploy: Deploy, sqlite_url: str, slots: int) -> None:
    fleet = deploy(sqlite_url, hint_stride=10)
    fleet.start(2, slots=slots)
    calls = feed(fleet, 2_000, at_once=2_000, each_ms=1_000, work_ms=(10, 300))
    assert calls <= costs.BULK


def test_between_idle_and_busy(deploy: Deploy, sqlite_url: str) -> None:
    """The dearest: slots enough that polls wait, and too few for what comes at once."""
    fleet = deploy(sqlite_url)
    fleet.start(3)
    assert feed(fleet, 600, at_once=10, each_ms=390) <= costs.NEARLY_BUSY


# -- waits, and maintenance ----------------------------------------------------------------------


def test_a_sleep_costs_as_much_as_a_run(deploy: Deploy, database_url: str) -> None:
    """One delayed wakeup: sent, received when it is due, deleted; nothing meanwhile."""
    fleet = deploy(database_url)
    fleet.start(1)
    fleet.nap.enqueue(0)
    fleet.run(MINUTE_MS)
    before = Counter(fleet.broker.counts)
    fleet.nap.enqueue(5 * MINUTE_MS)
    fleet.run(6 * MINUTE_MS)

    made = fleet.broker.counts - before
    assert fleet.finished == 2
    assert made["send_message_batch"] == made["delete_message_batch"] == 2
    polls = costs.IDLE_A_MINUTE * 6
    assert polls + 1 <= made["receive_message"] <= polls + 4  # a message cuts a poll short
    assert len(made) == 3


def test_maintenance_asks_for_a_queues_length_twice_a_minute(
    deploy: Deploy, database_url: str
) -> None:
    """However many maintenance processes there are, and nothing else while nothing is to do."""
    fleet = deploy(database_url)
    fleet.app.enqueue_many([fleet.work.prepare(0) for _ in range(5)])  # the queue is known now
    before = Counter(fleet.broker.counts)
    several = [fleet.maintenance() for _ in range(2)]
    for _ in range(4 * 60):
        fleet.time.move(fleet.time.now_ms + 1_000)
        for each in several:
            each.run_due()

    made = fleet.broker.counts - before
    assert made["get_queue_attributes"] == pytest.approx(costs.MAINTENANCE_A_MINUTE * 4, abs=1)
    # What is missing in the queue is sent, since nobody works here.
    assert made.total() - made["get_queue_attributes"] - made["send_message_batch"] <= len(several)
