"""What becomes of messages, when queues are scanned, and what an idle worker costs."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest

from lanes.memory import MemoryLane
from lanes.polling import PollingLane
from tests.runtime.faults import FaultyStore
from tests.runtime.rig import Gate, Rig
from tests.support.eventually import eventually
from workhorse.domain.ids import RunId, new_run_id
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import ClaimedRun, NewRun, RunState
from workhorse.handlers.context import AsyncContext
from workhorse.ports import Message
from workhorse.runtime.base.pace import SystemPace
from workhorse.store.base.database import ManualClock
from workhorse.store.operators.operating import pause_queue
from workhorse.store.producing.enqueueing import enqueue
from workhorse.telemetry import Metric


class Ticks:
    """The lane's clock: it stands still."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Mail:
    """A lane, and where its messages are."""

    def __init__(self) -> None:
        self.ticks = Ticks()
        self.lane = MemoryLane(clock=self.ticks, visibility_ms=30_000)

    @property
    def visible(self) -> int:
        return self.lane.backlog("default") or 0

    @property
    def hidden_ms(self) -> list[float]:
        """How long each hidden message stays so."""
        with self.lane._lock:
            return [
                due - self.ticks.now
                for due, _, receipt, stored in self.lane._queue("default").hidden
                if receipt == stored.receipt
            ]

    @property
    def gone(self) -> bool:
        return not self.visible and not self.hidden_ms


@pytest.fixture
def mail(rig: Rig) -> Iterator[Mail]:
    mail = Mail()
    rig.lane = mail.lane
    rig.task("t")(lambda: None)
    yield mail
    rig.close()


def noted(rig: Rig, note: str) -> Any:
    return lambda: rig.count(Metric.MESSAGES, note)


# -- the table of fates --------------------------------------------------------------------------


def test_the_message_of_a_claimed_run_is_deleted(rig: Rig, mail: Mail) -> None:
    """A doubled one too."""
    worker = rig.worker()
    worker.start()
    run_id = rig.enqueue("t")
    rig.wake(run_id, run_id)

    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)
    eventually(lambda: mail.gone)
    taken = rig.count(Metric.MESSAGES, "claimed") + rig.count(Metric.MESSAGES, "stale")
    assert taken == 2


def test_messages_of_runs_that_need_nobody_are_deleted(
    rig: Rig, mail: Mail, clock: ManualClock
) -> None:
    """Finished, under a live lease, due much later, another's turn."""
    rig.task("s")(lambda: None)
    finished = rig.enqueue("t")
    assert rig.worker().drain() == 1
    leased: ClaimedRun = rig.claimed("s", session="one")
    turn = rig.enqueue("t", session="one")
    later = rig.enqueue("t", delay_ms=61_000)
    worker = rig.worker()
    worker.start()

    rig.wake(finished, leased.id, turn, later)

    eventually(lambda: rig.count(Metric.MESSAGES, "stale") == 4)
    eventually(lambda: mail.gone)
    assert rig.state(turn) is RunState.READY


def test_messages_of_a_paused_queue_are_deleted(rig: Rig, mail: Mail) -> None:
    rig.store.run(pause_queue, "default", by="test", why="")
    run_id = rig.enqueue("t", wake=True)
    worker = rig.worker()
    worker.start()

    eventually(lambda: rig.count(Metric.MESSAGES, "stale") == 1)
    eventually(lambda: mail.gone)
    assert rig.state(run_id) is RunState.READY


def test_case_19_a_run_of_an_unknown_task_is_left_and_others_go_on(rig: Rig, mail: Mail) -> None:
    """The message goes, and is counted; the run keeps its attempt for a worker that knows it."""
    unknown = rig.enqueue("t.v2", wake=True)
    worker = rig.worker(concurrency=1)
    worker.start()
    eventually(lambda: rig.count(Metric.MESSAGES, "unknown_task") == 1)
    known = rig.enqueue("t", wake=True)
    eventually(lambda: rig.state(known) is RunState.SUCCEEDED)
    eventually(lambda: mail.gone)
    assert (rig.state(unknown), rig.view(unknown).fence) == (RunState.READY, 0)
    worker.stop()

    rig.task("renamed", aliases=["t.v2"])(lambda: "by its alias")
    assert rig.worker().drain() == 1
    view = rig.view(unknown)
    assert (view.state, view.attempt, view.result) == (RunState.SUCCEEDED, 1, '"by its alias"')


def test_a_message_in_the_wrong_queue_is_deleted(rig: Rig, mail: Mail) -> None:
    elsewhere = rig.enqueue("t", queue="other")
    rig.wake(elsewhere, queue="default")
    worker = rig.worker()
    worker.start()

    eventually(noted(rig, "other_queue"))
    eventually(lambda: mail.gone)
    assert rig.state(elsewhere) is RunState.READY


def test_a_message_that_is_early_is_shown_again_when_its_run_is_due(
    rig: Rig, mail: Mail, clock: ManualClock
) -> None:
    run_id = rig.enqueue("t", delay_ms=20_000, wake=True)
    worker = rig.worker()
    worker.start()
    eventually(noted(rig, "early"))
    assert mail.hidden_ms == [20_000]

    clock.advance(20_000)
    mail.ticks.now += 20_000

    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)
    eventually(lambda: mail.gone)


def test_an_expired_lease_is_recovered_in_place(rig: Rig, mail: Mail, clock: ManualClock) -> None:
    """And run at once where its policy has no rest."""
    dead: ClaimedRun = rig.claimed("t", retry=RetryPolicy(first=timedelta(0)))
    clock.advance(30_001)
    worker = rig.worker()
    worker.start()

    rig.wake(dead.id)

    eventually(lambda: rig.state(dead.id) is RunState.SUCCEEDED)
    assert (rig.view(dead.id).attempt, rig.count(Metric.RUNS_RECOVERED)) == (2, 1)
    eventually(lambda: mail.gone)


def test_whom_a_recovery_in_place_frees_is_woken(rig: Rig, mail: Mail, clock: ManualClock) -> None:
    """The next of its session, which waits in a queue that another worker serves."""
    dead: ClaimedRun = rig.claimed("t", session="s", retry=RetryPolicy(max_attempts=1))
    freed = rig.enqueue("t", queue="other", session="s")
    clock.advance(30_001)
    worker = rig.worker()
    worker.start()

    rig.wake(dead.id)

    eventually(lambda: rig.state(dead.id) is RunState.FAILED)
    eventually(lambda: [hint.run_id for hint in rig.published] == [freed])


def test_a_recovered_run_that_rests_keeps_its_message_until_then(
    rig: Rig, mail: Mail, clock: ManualClock
) -> None:
    rest = RetryPolicy(first=timedelta(seconds=7), jitter=False)
    dead: ClaimedRun = rig.claimed("t", retry=rest)
    clock.advance(30_001)
    worker = rig.worker()
    worker.start()

    rig.wake(dead.id)

    eventually(noted(rig, "early"))
    assert rig.state(dead.id) is RunState.SCHEDULED
    # Its own, and the delayed wakeup that the recovery sent: either may come first.
    eventually(lambda: mail.hidden_ms == [7_000, 7_000])


def test_a_due_run_is_promoted_in_place(rig: Rig, mail: Mail, clock: ManualClock) -> None:
    run_id = rig.enqueue("t", delay_ms=5_000)
    clock.advance(5_000)
    worker = rig.worker()
    worker.start()

    rig.wake(run_id)

    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)
    assert rig.view(run_id).attempt == 1


def test_a_locked_run_keeps_its_message_for_a_second(
    postgresql_rig: Rig, postgresql_url: str
) -> None:
    rig, mail = postgresql_rig, Mail()
    rig.lane = mail.lane
    rig.task("t")(lambda: None)
    run_id = rig.enqueue("t")
    with psycopg.connect(postgresql_url) as other:
        other.execute("select 1 from workhorse.live where id = %s for update", [run_id])
        worker = rig.worker()
        worker.start()
        rig.wake(run_id)
        eventually(noted(rig, "locked"))
        assert mail.hidden_ms == [1_000]
        other.rollback()

    mail.ticks.now += 1_000
    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)


def test_case_2_a_run_that_is_not_there_is_looked_for_once_more(rig: Rig, mail: Mail) -> None:
    """Its transaction may still commit; after that it is no error, and goes."""
    run_id = new_run_id()
    worker = rig.worker()
    worker.start()
    rig.wake(run_id)
    eventually(noted(rig, "unseen"))
    assert mail.hidden_ms == [5_000]

    mail.ticks.now += 5_000

    eventually(noted(rig, "missing"))
    eventually(lambda: mail.gone)


def test_case_2_a_run_that_commits_meanwhile_is_executed(rig: Rig, mail: Mail) -> None:
    run_id = new_run_id()
    worker = rig.worker()
    worker.start()
    rig.wake(run_id)
    eventually(noted(rig, "unseen"))
    new = NewRun(id=run_id, task="t", queue="default", payload="null")
    rig.store.run(enqueue, [new], reach=rig.lane.reach_ms)

    mail.ticks.now += 5_000

    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)
    eventually(lambda: mail.gone)


def test_an_unreadable_message_is_deleted_and_its_id_logged(
    rig: Rig, mail: Mail, caplog: pytest.LogCaptureFixture
) -> None:
    mail.lane.put_body("default", "secret words")
    worker = rig.worker()
    worker.start()

    eventually(noted(rig, "malformed"))
    eventually(lambda: mail.gone)
    assert "message m-1 cannot be read" in caplog.text
    assert "secret" not in caplog.text


def test_a_message_of_a_newer_format_is_shown_again_in_a_minute(rig: Rig, mail: Mail) -> None:
    mail.lane.put_body("default", '{"workhorse": 2, "run": "another shape"}')
    worker = rig.worker()
    worker.start()

    eventually(noted(rig, "newer_format"))
    eventually(lambda: mail.hidden_ms == [60_000])


def test_nothing_is_received_while_no_slot_is_free(rig: Rig, mail: Mail) -> None:
    gate = Gate()
    rig.task("slow")(gate.come)
    rig.enqueue("slow", wake=True)
    worker = rig.worker(concurrency=1)
    worker.start()
    gate.wait()
    eventually(lambda: mail.gone)

    waiting = rig.enqueue("t", wake=True)
    taken = rig.count(Metric.RUNS_CLAIMED)
    assert mail.visible == 1

    gate.open()
    eventually(lambda: rig.state(waiting) is RunState.SUCCEEDED)
    assert taken == 1
    eventually(lambda: mail.gone)


def test_never_more_messages_are_received_than_slots_are_free(rig: Rig, mail: Mail) -> None:
    """What is claimed starts at once: nothing is buffered under a lease."""
    gate = Gate()
    rig.task("slow")(gate.come)
    rig.enqueue_many("slow", 10, wake=True)
    worker = rig.worker(concurrency=3)
    worker.start()

    eventually(lambda: rig.count(Metric.RUNS_CLAIMED) == 3)
    eventually(lambda: len(mail.hidden_ms) == 0)
    assert mail.visible >= 7
    gate.open()
    eventually(lambda: rig.count(Metric.RUNS_SETTLED, "succeeded") == 10)


def test_a_stop_shows_what_was_received_again(rig: Rig, mail: Mail) -> None:
    store = FaultyStore(rig.store)
    received = threading.Event()
    original = mail.lane._take

    def take(queue: Any, limit: int) -> list[Message]:
        messages = original(queue, limit)
        if messages:
            received.set()
        return messages

    mail.lane._take = take  # type: ignore[method-assign]
    worker = rig.worker(store=store)
    worker.start()
    eventually(lambda: rig.count(Metric.SCAN_PAGES))
    worker._parts.ended.set()
    rig.wake(new_run_id())

    assert received.wait(10)
    worker.stop()
    assert mail.visible == 1
    store.close()


def test_while_scans_find_the_runs_few_messages_are_received_beside_them(
    rig: Rig, mail: Mail
) -> None:
    """Free slots do not wait for a broker whose messages name what the scan takes anyway."""
    asked: list[tuple[int, int]] = []
    opened = mail.lane.receiver

    def receiver(queue: str) -> Any:
        made = opened(queue)
        original = made.receive

        def receive(limit: int, wait_ms: int) -> Sequence[Message]:
            asked.append((limit, wait_ms))
            return original(limit, wait_ms)

        made.receive = receive  # type: ignore[method-assign]
        return made

    mail.lane.receiver = receiver  # type: ignore[method-assign]
    rig.enqueue_many("t", 120, wake=True)
    rig.worker(concurrency=20).start()

    eventually(lambda: rig.count(Metric.RUNS_SETTLED, "succeeded") == 120)
    eventually(lambda: mail.gone)
    beside = [limit for limit, wait_ms in asked if wait_ms == 0]
    assert beside
    assert max(beside) <= 10


def test_an_idle_worker_asks_for_one_calls_messages_however_many_slots_it_has(
    rig: Rig, mail: Mail
) -> None:
    """The claim that follows fills the other slots by its scan, for no call at all."""
    asked: list[int] = []
    opened = mail.lane.receiver

    def receiver(queue: str) -> Any:
        made = opened(queue)
        original = made.receive

        def receive(limit: int, wait_ms: int) -> Sequence[Message]:
            asked.append(limit)
            return original(limit, wait_ms)

        made.receive = receive  # type: ignore[method-assign]
        return made

    mail.lane.receiver = receiver  # type: ignore[method-assign]
    rig.worker(concurrency=150).start()

    eventually(lambda: len(asked) == 2)  # the first beside the scan at start
    assert asked == [10, 10]


# -- scans ---------------------------------------------------------------------------------------


def test_a_run_whose_wakeup_was_lost_is_found_by_the_scan_at_start(rig: Rig, mail: Mail) -> None:
    run_id = rig.enqueue("t")
    rig.worker().start()

    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)


def test_one_message_brings_in_what_is_ready_beside_it(rig: Rig, mail: Mail) -> None:
    """The claim fills up by scan in the same statement: throughput is the store's."""
    worker = rig.worker(concurrency=10)
    worker.start()
    eventually(lambda: rig.count(Metric.SCAN_PAGES))
    run_ids = rig.enqueue_many("t", 30)

    rig.wake(run_ids[17])

    eventually(lambda: all(rig.state(each) is RunState.SUCCEEDED for each in run_ids))


def test_a_lost_wakeup_is_found_by_the_net(rig: Rig, mail: Mail) -> None:
    worker = rig.worker(scan_ms=150, scan_jitter_ms=20)
    worker.start()
    eventually(lambda: rig.count(Metric.SCAN_PAGES))

    run_id = rig.enqueue("t")

    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)


class PacedLane(PollingLane):
    """Has a receiver whose waits are noted and take no time."""

    def __init__(self, pace: FakePace) -> None:
        super().__init__()
        self.pace = pace

    def receiver(self, queue: str):  # type: ignore[no-untyped-def]
        receiver = super().receiver(queue)

        def receive(limit: int, wait_ms: int) -> Sequence[Message]:
            self.pace.rest("idle", wait_ms)
            return []

        receiver.receive = receive  # type: ignore[method-assign]
        return receiver


class FakePace(SystemPace):
    """A clock that the intake's own pauses move; other threads wait in real time."""

    def __init__(self) -> None:
        self.shift = 0.0
        self.frozen = super().now_ms()
        self.rests: list[tuple[str, float]] = []
        self.enough = threading.Event()

    def now_ms(self) -> float:
        if threading.current_thread().name.startswith("workhorse-intake"):
            return self.frozen + self.shift
        return super().now_ms()

    def pause(self, until: threading.Event, ms: float) -> bool:
        if threading.current_thread().name.startswith("workhorse-intake"):
            self.rest("pause", ms)
            return until.is_set()
        return super().pause(until, ms)

    def rest(self, what: str, ms: float) -> None:
        self.rests.append((what, ms))
        self.shift += ms
        if len(self.rests) > 12:
            self.enough.set()
            threading.Event().wait(0.01)


def test_a_long_running_worker_pauses_between_two_incomplete_pages(rig: Rig) -> None:
    """300 runs at the head wait for their session's turn; each page of them is incomplete."""
    pace = FakePace()
    rig.lane = PacedLane(pace)
    rig.task("t")(lambda: None)
    rig.task("elsewhere")(lambda: None)
    rig.claimed("elsewhere", session="busy")
    rig.enqueue_many("t", 300, session="busy")
    behind = rig.enqueue_many("t", 10)
    worker = rig.worker(concurrency=20, poll_ms=70, pace=pace, idle_ms=1_000)
    worker.start()
    assert pace.enough.wait(20)
    worker.stop()

    # The first page is full and has nothing; what is behind it comes after a pause of poll_ms.
    assert pace.rests[:1] == [("pause", 70)]
    assert {ms for what, ms in pace.rests if what == "pause"} == {70}
    assert {rig.state(run_id) for run_id in behind} == {RunState.SUCCEEDED}


def test_pauses_of_an_idle_queue_grow_to_a_second(rig: Rig) -> None:
    pace = FakePace()
    rig.lane = PacedLane(pace)
    rig.task("t")(lambda: None)
    worker = rig.worker(poll_ms=50, pace=pace, idle_ms=1_000)
    worker.start()
    assert pace.enough.wait(20)
    worker.stop()

    idle = [ms for what, ms in pace.rests if what == "idle"]
    assert idle[:6] == [100, 200, 400, 800, 1_000, 1_000]


def _is_in(rig: Rig, run_id: RunId, state: RunState) -> bool:
    return rig.state(run_id) is state


def test_a_worker_without_messages_looks_for_what_is_due(rig: Rig, clock: ManualClock) -> None:
    """On a laptop, with neither a broker nor maintenance, a sleep ends all the same."""

    @rig.task("nap")
    async def nap(ctx: AsyncContext) -> None:
        await ctx.sleep("nap", timedelta(hours=1))
        await ctx.wait_for_signal("never", timeout=timedelta(hours=1), default=None)

    run_id = rig.enqueue("nap")
    worker = rig.worker(idle_ms=20, poll_ms=10, head_ms=20)
    worker.start()
    for state in (RunState.SCHEDULED, RunState.WAITING):
        eventually(partial(_is_in, rig, run_id, state))
        clock.advance(timedelta(hours=1))

    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)


def test_what_this_process_enqueues_ends_an_idle_pause(rig: Rig) -> None:
    rig.task("t")(lambda: None)
    worker = rig.worker(idle_ms=60_000, poll_ms=60_000)
    worker.start()
    eventually(lambda: rig.count(Metric.SCAN_PAGES))

    run_id = rig.enqueue("t", wake=True)

    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)


def test_a_queue_that_is_full_does_not_starve_the_others(rig: Rig) -> None:
    order: list[str] = []

    @rig.task("note")
    def note(payload: str) -> None:
        order.append(payload)

    rig.enqueue_many("note", 60, payload='"full"', queue="full")
    rig.enqueue_many("note", 2, payload='"other"', queue="other")
    worker = rig.worker(["full", "other"], concurrency=1)
    worker.start()

    eventually(lambda: order.count("other") == 2)
    eventually(lambda: len(order) == 62)
    last = len(order) - 1 - order[::-1].index("other")
    assert last < 12


# -- the lane's failures and costs ---------------------------------------------------------------


def test_case_11_a_lane_that_fails_has_a_backoff_and_the_queue_is_scanned(
    rig: Rig, mail: Mail
) -> None:
    mail.lane.set_outage(ConnectionError("AccessDenied"))
    worker = rig.worker()
    worker.start()
    eventually(lambda: rig.count(Metric.RECEIVE_ERRORS) >= 1)

    run_id = rig.enqueue("t")

    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)
    # Half a second, then twice as long each time: no busy circle.
    assert rig.count(Metric.RECEIVE_ERRORS) <= 4
    mail.lane.set_outage(None)
    other = rig.enqueue("t", wake=True)
    eventually(lambda: rig.state(other) is RunState.SUCCEEDED)
    eventually(lambda: mail.gone)
    assert rig.count(Metric.LOOP_RESTARTS, "intake-default") == 0


def test_case_20_an_idle_worker_has_one_long_receive_per_queue(rig: Rig) -> None:
    waits: list[tuple[str, int]] = []
    under_way: dict[str, int] = {}
    most: list[int] = []

    class Lane(MemoryLane):
        def receiver(self, queue: str):  # type: ignore[no-untyped-def]
            receiver = super().receiver(queue)
            original = receiver.receive

            def receive(limit: int, wait_ms: int) -> Sequence[Message]:
                waits.append((queue, wait_ms))
                under_way[queue] = under_way.get(queue, 0) + 1
                most.append(under_way[queue])
                try:
                    return original(limit, wait_ms)
                finally:
                    under_way[queue] -= 1

            receiver.receive = receive  # type: ignore[method-assign]
            return receiver

    rig.lane = Lane()
    rig.task("t")(lambda: None)
    worker = rig.worker(["a", "b"])
    worker.start()
    eventually(lambda: rig.count(Metric.SCAN_PAGES) == 2)
    eventually(lambda: under_way == {"a": 1, "b": 1})

    # One look without waiting comes with the scan at start; then it waits its twenty seconds.
    for queue in ("a", "b"):
        mine = [ms for name, ms in waits if name == queue]
        assert mine[-1] == 20_000
        assert len(mine) <= 2
    assert max(most) == 1


def test_case_1_a_long_run_is_started_once_however_often_its_message_comes(
    rig: Rig, mail: Mail
) -> None:
    """Two workers; the broker shows the message again and again while the handler runs."""
    gate = Gate()
    starts: list[RunId] = []

    @rig.task("long")
    def long() -> None:
        starts.append(run_id)
        gate.come()

    run_id = rig.enqueue("long", wake=True)
    workers = [rig.worker(), rig.worker()]
    for worker in workers:
        worker.start()
    gate.wait()
    for n in range(1, 10):
        rig.wake(run_id)
        eventually(lambda n=n: rig.count(Metric.MESSAGES, "stale") >= n)  # type: ignore[misc]

    gate.open()

    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)
    assert len(starts) == 1
    view = rig.view(run_id)
    assert (view.attempt, view.fence) == (1, 1)
    eventually(lambda: mail.gone)
