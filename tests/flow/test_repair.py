"""What an operator mends: a purged queue and dead-letter queues; maintenance is off throughout."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from lanes import wire
from lanes.sqs.clients import Timing
from tests.support.eventually import eventually
from tests.support.sqs import REGION, SqsEndpoint, SqsQueue
from workhorse.app import Workhorse
from workhorse.client.admin import Rehinted
from workhorse.client.dead_letters import DeadLetterQueue, Drained, Ended
from workhorse.domain.ids import new_run_id
from workhorse.domain.runs import RunState
from workhorse.errors import ConfigurationError, StoreUnavailableError
from workhorse.handlers.context import Context
from workhorse.handlers.tasks import Task
from workhorse.ports import LaneError, Message, SendReport, Wakeup
from workhorse.runtime.process.worker import Worker
from workhorse.store.operators import operating
from workhorse.telemetry import Metric

FAR_MS = 86_400_000
PATIENT = Timing(connect_s=60.0, read_s=60.0, send_s=60.0, look_s=60.0)
"""A busy machine is no broker that is away."""


@dataclass
class Yard:
    """An app over the lane sqs, its queue `q` and where that one's dead letters go."""

    app: Workhorse
    work: Task[int, int]
    queue: SqsQueue
    dead: SqsQueue

    def worker(self) -> Worker:
        """Return a worker that finds runs by wakeups alone, but for the scan at its start."""
        options = replace(self.app._worker_options(), scan_ms=FAR_MS)
        return self.app.worker(["q"], options=options)

    def count(self, state: RunState) -> int:
        return self.app.admin.count_runs()[state]

    def kill(self) -> int:
        """Receive each message once more than it may be; return how many lie dead in the end."""
        at_first = self.queue.counts().total

        def all_are_dead() -> bool:
            self.queue._client.receive_message(
                QueueUrl=self.queue.url, MaxNumberOfMessages=10, VisibilityTimeout=0
            )
            return self.queue.counts().total == 0

        eventually(all_are_dead, within=60)
        assert self.dead.counts().total == at_first
        return at_first

    def bury(self, *bodies: str) -> None:
        """Put messages into the dead-letter queue."""
        for body in bodies:
            self.dead.put(body)


@pytest.fixture
def yard(
    database_url: str, endpoint: SqsEndpoint, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Yard]:
    monkeypatch.setattr("lanes.sqs.lane.Timing", lambda: PATIENT)
    prefix = f"r{uuid.uuid4().hex[:8]}-"
    queue = endpoint.create_queue(f"{prefix}q", dead_letters_after=1)
    app = Workhorse(
        database_url=database_url,
        lane="sqs",
        aws_endpoint_url=endpoint.url,
        aws_region=REGION,
        sqs_queue_prefix=prefix,
        sqs_client="boto3",
        queues=["q"],
    )

    @app.task("work", queue="q")
    def work(ctx: Context, number: int) -> int:
        return number

    with app:
        yield Yard(app, work, queue, endpoint.queue(f"dead-{queue.name}"))


# -- a purged queue ------------------------------------------------------------------------------


def test_rehint_rebuilds_a_purged_queue(yard: Yard, endpoint: SqsEndpoint) -> None:
    """500 ready runs and no message; no net finds them, and all of them end."""
    app = yard.app
    app.admin.pause_queue("q", by="test")  # so that the worker's scan at its start finds none
    app.enqueue_many([yard.work.prepare(n) for n in range(500)])
    eventually(lambda: yard.queue.counts().visible == 50)
    endpoint.client.purge_queue(QueueUrl=yard.queue.url)
    eventually(lambda: yard.queue.counts().total == 0)
    worker = yard.worker()
    with worker:
        # The first receive waits for messages: the scan is over, and the next one far.
        eventually(lambda: app.counters.get(Metric.SCAN_PAGES) >= 1)
        app.store.run(operating.resume_queue, "q", by="test", why="")  # it wakes nobody by itself
        assert yard.count(RunState.READY) == 500

        done = app.admin.rehint()

        assert done == [Rehinted("q", 500, 50, 0)]
        eventually(lambda: yard.count(RunState.SUCCEEDED) == 500, within=60)
    assert yard.count(RunState.READY) == 0


# -- dead letters --------------------------------------------------------------------------------


def test_case_5_all_runs_of_dead_lettered_wakeups_are_executed(yard: Yard) -> None:
    """A maxReceiveCount of 1 and receipts that came to nothing: no attempt is spent by them."""
    runs = [yard.work.enqueue(n) for n in range(12)]
    assert yard.kill() == 12
    assert yard.app.admin.dead_letters() == [DeadLetterQueue("q", yard.dead.name, 12)]
    with yard.worker():
        eventually(lambda: yard.app.counters.get(Metric.SCAN_PAGES) >= 1)
        (done,) = yard.app.admin.drain_dead_letters()
        results = [run.result(timeout=timedelta(seconds=60)) for run in runs]

    assert results == list(range(12))
    assert {yard.app.admin.show(run.id).attempt for run in runs} == {1}
    assert (done.ended, done.looked_at, done.deleted) == (Ended.EMPTY, 12, 12)
    assert yard.dead.counts().total == 0


def test_case_5_a_pass_of_maintenance_is_enough(yard: Yard) -> None:
    """Nobody has to look into the dead-letter queue; what lies there does no harm."""
    yard.app.admin.pause_queue("q", by="test")
    runs = [yard.work.enqueue(n) for n in range(12)]
    yard.kill()
    with yard.worker():
        eventually(lambda: yard.app.counters.get(Metric.SCAN_PAGES) >= 1)
        yard.app.store.run(operating.resume_queue, "q", by="test", why="")
        yard.app.maintenance().run_once()
        assert [run.result(timeout=timedelta(seconds=60)) for run in runs] == list(range(12))
    assert {yard.app.admin.show(run.id).attempt for run in runs} == {1}
    assert yard.dead.counts().total == 12


def test_without_a_scan_the_drain_alone_wakes_them(yard: Yard) -> None:
    """The worker's own scan finds a paused queue."""
    yard.app.admin.pause_queue("q", by="test")
    runs = [yard.work.enqueue(n) for n in range(12)]
    yard.kill()
    with yard.worker():
        eventually(lambda: yard.app.counters.get(Metric.SCAN_PAGES) >= 1)
        yard.app.store.run(operating.resume_queue, "q", by="test", why="")
        (done,) = yard.app.admin.drain_dead_letters()
        assert [run.result(timeout=timedelta(seconds=60)) for run in runs] == list(range(12))
    # Whoever was woken takes others along, which have ended before their message is looked at.
    assert done.looked_at == done.deleted == 12
    assert done.sent == done.outcomes["ready"] >= 1


def test_each_message_is_held_against_the_store(yard: Yard) -> None:
    app = yard.app
    ready = yard.work.enqueue(1)
    scheduled = yard.work.enqueue(2, delay=timedelta(hours=1))
    finished = yard.work.enqueue(3)
    finished.cancel(by="test")
    yard.work.enqueue(4, queue="shut")
    app.admin.pause_queue("shut", by="test")
    (paused,) = app.admin.list_runs(queue="shut")
    eventually(lambda: yard.queue.counts().total == 2)
    before = yard.queue.counts().total
    yard.bury(
        *(
            wire.encode(Wakeup(run_id, "q"))
            for run_id in (
                ready.id,
                ready.id,
                scheduled.id,
                finished.id,
                paused.id,
                new_run_id(),
            )
        ),
        "a secret that is no wakeup",
        json.dumps({"workhorse": 2, "run_id": ready.id, "queue": "q"}),
    )

    (done,) = app.admin.drain_dead_letters("q")

    assert done == Drained(
        "q",
        yard.dead.name,
        Ended.EMPTY,
        looked_at=8,
        sent=1,
        deleted=7,
        outcomes={
            "ready": 2,
            "paused": 1,
            "scheduled": 1,
            "finished": 1,
            "unknown": 1,
            "unreadable": 1,
            "newer_format": 1,
        },
    )
    assert yard.queue.counts().total == before + 1
    (left,) = yard.dead.take(wait_s=1)
    assert json.loads(left["Body"])["workhorse"] == 2


def test_a_message_that_comes_twice_is_one(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQS delivers at least once, and may do so within one receive."""
    yard.bury("no wakeup")
    lane: Any = yard.app.lane
    find = lane.dead_letters

    def doubling(queue: str) -> Any:
        box = find(queue)
        receive = box.receive
        box.receive = lambda limit: [each for each in receive(limit) for _ in range(2)]
        return box

    monkeypatch.setattr(lane, "dead_letters", doubling)

    (done,) = yard.app.admin.drain_dead_letters("q")

    assert (done.ended, done.looked_at, done.deleted) == (Ended.EMPTY, 1, 1)
    assert done.outcomes == {"unreadable": 1}
    assert yard.dead.counts().total == 0


def test_a_dry_run_changes_nothing(yard: Yard) -> None:
    for number in range(12):
        yard.work.enqueue(number)
    yard.kill()

    (done,) = yard.app.admin.drain_dead_letters(dry_run=True)

    assert (done.ended, done.looked_at, done.sent, done.deleted) == (Ended.EMPTY, 12, 0, 0)
    assert done.outcomes == {"ready": 12}
    assert yard.dead.counts().visible == 12  # put back at once, not after their time
    assert yard.queue.counts().total == 0


def test_it_looks_at_no_more_than_it_was_told(yard: Yard) -> None:
    yard.bury(*("no wakeup" for _ in range(15)))
    (done,) = yard.app.admin.drain_dead_letters(most=12)
    assert (done.ended, done.looked_at, done.deleted) == (Ended.MOST, 12, 12)
    assert yard.dead.counts().total == 3


def test_a_store_that_is_away_costs_no_message(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    yard.work.enqueue(1)
    yard.kill()
    store = yard.app.store

    def refuse(*_: Any, **__: Any) -> None:
        raise StoreUnavailableError("it is away")

    monkeypatch.setattr(store, "read", refuse)
    with pytest.raises(StoreUnavailableError):
        yard.app.admin.drain_dead_letters("q")
    assert yard.dead.counts().visible == 1


def test_wakeups_that_cannot_be_sent_keep_their_messages(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What needs none is deleted all the same, and the drain ends."""
    yard.work.enqueue(1)
    yard.kill()
    yard.bury("no wakeup")
    lane = yard.app.lane
    monkeypatch.setattr(lane, "send", lambda out: SendReport(failed=len(out), error="throttled"))

    (done,) = yard.app.admin.drain_dead_letters("q")

    assert (done.ended, done.deleted, done.sent) == (Ended.NOT_SENT, 1, 0)
    (left,) = yard.dead.take(wait_s=1)
    assert "run_id" in left["Body"]


Interrupt = Callable[[Any, Yard], None]


def _before_deleting(box: Any, yard: Yard) -> None:
    def delete(messages: Sequence[Message]) -> Sequence[Message]:
        assert yard.queue.counts().total == len(messages)  # their wakeups are on their way
        raise KeyboardInterrupt

    box.delete = delete


def _before_sending(_box: Any, yard: Yard) -> None:
    def send(_outgoing: Any) -> SendReport:
        raise KeyboardInterrupt

    lane: Any = yard.app.lane
    lane.send = send


@pytest.mark.parametrize("interrupt", [_before_deleting, _before_sending])
def test_an_interrupted_drain_loses_nothing(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, interrupt: Interrupt
) -> None:
    runs = [yard.work.enqueue(n) for n in range(5)]
    yard.kill()
    lane: Any = yard.app.lane
    found = lane.dead_letters

    def boxed(queue: str) -> Any:
        box = found(queue)
        interrupt(box, yard)
        return box

    with monkeypatch.context() as patched:
        patched.setattr(lane, "dead_letters", boxed)
        send = lane.send
        with pytest.raises(KeyboardInterrupt):
            yard.app.admin.drain_dead_letters("q")
        lane.send = send
    assert yard.dead.counts().visible == 5

    (done,) = yard.app.admin.drain_dead_letters("q")
    assert done.outcomes == {"ready": 5}
    with yard.worker():
        assert [r.result(timeout=timedelta(seconds=60)) for r in runs] == list(range(5))


def test_messages_that_cannot_be_deleted_end_the_drain(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would get the same ones for ever."""
    yard.bury(*("no wakeup" for _ in range(15)))
    monkeypatch.setattr("lanes.sqs.dead_letters.SqsDeadLetters.delete", lambda *_: [])
    (done,) = yard.app.admin.drain_dead_letters("q")
    assert (done.ended, done.deleted) == (Ended.NOT_DELETED, 0)
    assert yard.dead.counts().visible == 15


def test_a_queue_without_dead_letters_and_one_that_is_not_there(
    yard: Yard, endpoint: SqsEndpoint
) -> None:
    prefix = yard.queue.name.removesuffix("q")
    endpoint.create_queue(f"{prefix}plain")
    assert yard.app.admin.dead_letters("plain") == [DeadLetterQueue("plain", None)]
    (done,) = yard.app.admin.drain_dead_letters("plain")
    assert done.ended is Ended.NO_QUEUE

    (missing,) = yard.app.admin.dead_letters("missing")
    assert "SQS has no queue" in str(missing.trouble)
    with pytest.raises(LaneError, match="SQS has no queue"):
        yard.app.admin.drain_dead_letters("missing")


def test_a_lane_without_dead_letters_says_so(database_url: str) -> None:
    with (
        Workhorse(database_url=database_url, lane="polling") as app,
        pytest.raises(ConfigurationError, match="no dead-letter queues"),
    ):
        app.admin.dead_letters()
