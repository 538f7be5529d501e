"""What becomes of a message, row by row of the receiving table of docs/design.md.

A real worker on the `sqs` lane receives from an HTTP endpoint; the fate of the message is read from
the queue itself: visible, in flight, gone.
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from lanes import wire
from tests.store.acting import WAIT, waiting_at_most
from tests.support.eventually import eventually
from tests.support.postgres import PostgresServer
from tests.support.sqs import SqsEndpoint, SqsQueue
from workhorse.app import Workhorse
from workhorse.domain.hints import no_reach
from workhorse.domain.ids import RunId, new_run_id
from workhorse.domain.outcomes import Suspend
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import ClaimedRun, NewRun, RunState
from workhorse.ports import Wakeup
from workhorse.runtime.process.worker import Worker
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.lifecycle.claiming import claim
from workhorse.store.lifecycle.settling import Entry, settle
from workhorse.store.operators.operating import pause_queue
from workhorse.store.operators.viewing import show
from workhorse.store.producing.enqueueing import enqueue
from workhorse.telemetry import Metric

QUEUE = "table"
AT_ONCE = RetryPolicy(first=timedelta(0))


class Bench:
    """A store, a queue at the broker and a worker that is started when its test says so."""

    def __init__(
        self,
        url: str,
        clock: ManualClock | None,
        endpoint: SqsEndpoint,
        *,
        visibility_s: int = 120,
    ) -> None:
        prefix = f"wh-{uuid.uuid4().hex[:8]}-"
        self.queue: SqsQueue = endpoint.create_queue(f"{prefix}{QUEUE}", visibility_s=visibility_s)
        self.app = Workhorse(
            database_url=url,
            lane="sqs",
            clock=clock,
            queues=[QUEUE],
            aws_endpoint_url=endpoint.url,
            aws_region="us-east-1",
            sqs_queue_prefix=prefix,
        )
        self.store: Store = self.app.store
        self.calls: list[str] = []
        self.release = threading.Event()

        @self.app.task("known", queue=QUEUE, retry=AT_ONCE)
        def known(name: str) -> None:
            self.calls.append(name)

        @self.app.task("slow", queue=QUEUE)
        def slow(name: str) -> None:
            self.calls.append(name)
            self.release.wait(60)

        self._worker: Worker | None = None

    def start(self, concurrency: int = 2) -> None:
        self._worker = self.app.worker(concurrency=concurrency)
        self._worker.start()

    def new(self, name: str, **options: Any) -> RunId:
        """Insert a run without any wakeup."""
        given: dict[str, Any] = {
            "task": "known",
            "queue": QUEUE,
            "payload": json.dumps(name),
            "retry": AT_ONCE,
        }
        run = NewRun(id=new_run_id(), **(given | options))
        self.store.run(enqueue, [run], reach=no_reach)
        return run.id

    def claimed(self, run_id: RunId, *, queue: str = QUEUE, lease_ms: int = 30_000) -> ClaimedRun:
        """Claim a run as another worker would."""
        taken = self.store.run(
            claim, queue=queue, ids=[run_id], tasks=["known", "unknown"], free=1, token=4711,
            lease_ms=lease_ms, scan=False,
        )  # fmt: skip
        return taken.runs[0]

    def parked(self, run_id: RunId, suspend: Suspend) -> RunId:
        """Have a run wait."""
        claimed = self.claimed(run_id)
        assert claimed.lease is not None
        self.store.run(settle, [Entry(claimed.lease, suspend, QUEUE)], reach=no_reach)
        return run_id

    def put(self, run_id: str, queue: str = QUEUE) -> None:
        self.queue.put(wire.encode(Wakeup(RunId(run_id), queue)))

    def counted(self, note: str) -> int:
        return self.app.counters.get(Metric.MESSAGES, label=note)

    def state(self, run_id: RunId) -> RunState:
        return self.store.run(show, run_id).state

    def ends(self, run_id: RunId, *, within: float = 15.0) -> None:
        eventually(
            lambda: self.state(run_id) is RunState.SUCCEEDED, within=within, what="the run ends"
        )

    def close(self) -> None:
        self.release.set()
        if self._worker is not None:
            self._worker.stop(timedelta(seconds=5))
        self.app.close()
        self.queue.delete()


@pytest.fixture
def bench(database_url: str, clock: ManualClock, endpoint: SqsEndpoint) -> Iterator[Bench]:
    made = Bench(database_url, clock, endpoint)
    yield made
    made.close()


def test_claimed_now_deleted(bench: Bench) -> None:
    run_id = bench.new("one")
    bench.put(run_id)
    bench.start()
    bench.queue.becomes("gone")
    bench.ends(run_id)
    assert bench.calls == ["one"]


def _leased(bench: Bench) -> RunId:
    return bench.claimed(bench.new("x")).id


def _finished(bench: Bench) -> RunId:
    run_id = bench.new("x")
    bench.app.cancel(run_id)
    return run_id


def _waiting(bench: Bench) -> RunId:
    return bench.parked(bench.new("x"), WAIT)


def _far_off(bench: Bench) -> RunId:
    return bench.new("x", delay_ms=61_000)


def _paused(bench: Bench) -> RunId:
    run_id = bench.new("x")
    bench.store.run(pause_queue, QUEUE, by="test", why="test")
    return run_id


def _behind_another(bench: Bench) -> RunId:
    bench.claimed(bench.new("first", session="s"))
    return bench.new("x", session="s")


@pytest.mark.parametrize(
    "arrange", [_leased, _finished, _waiting, _far_off, _paused, _behind_another]
)
def test_not_claimable_deleted(bench: Bench, arrange: Callable[[Bench], RunId]) -> None:
    run_id = arrange(bench)
    before = bench.state(run_id)
    bench.put(run_id)
    bench.start()
    bench.queue.becomes("gone")
    assert eventually(lambda: bench.counted("stale")) == 1
    assert bench.state(run_id) is before
    assert bench.calls == []


def test_a_task_that_is_not_ours_deleted_and_counted(bench: Bench) -> None:
    run_id = bench.new("x", task="unknown")
    bench.put(run_id)
    bench.start()
    bench.queue.becomes("gone")
    assert eventually(lambda: bench.counted("unknown_task")) == 1
    assert bench.store.run(show, run_id).attempt == 1
    assert bench.state(run_id) is RunState.READY


def test_a_queue_that_is_not_ours_deleted_and_counted(bench: Bench) -> None:
    run_id = bench.new("x", queue="elsewhere")
    bench.put(run_id)
    bench.start()
    bench.queue.becomes("gone")
    assert eventually(lambda: bench.counted("other_queue")) == 1
    assert bench.state(run_id) is RunState.READY


@pytest.mark.parametrize("kind", ["scheduled", "waiting"])
def test_due_within_a_minute_visible_at_the_due_time(
    bench: Bench, clock: ManualClock, kind: str
) -> None:
    if kind == "scheduled":
        run_id = bench.new("x", delay_ms=2_000)
    else:
        run_id = bench.parked(bench.new("x"), waiting_at_most(2_000))
    bench.put(run_id)
    bench.start()
    assert eventually(lambda: bench.counted("early")) == 1
    assert bench.queue.fate() == "in flight"
    clock.advance(2_000)
    bench.ends(run_id)  # by the same message: no other was sent
    bench.queue.becomes("gone")


def test_lease_expired_recovered_in_place(bench: Bench, clock: ManualClock) -> None:
    run_id = bench.new("x")
    bench.claimed(run_id, lease_ms=1_000)
    clock.advance(1_001)
    bench.put(run_id)
    bench.start()
    bench.ends(run_id)
    bench.queue.becomes("gone")
    assert bench.store.run(show, run_id).attempt == 2


def test_lease_expired_and_due_again_later_visible_then(bench: Bench, clock: ManualClock) -> None:
    rest = RetryPolicy(first=timedelta(seconds=2), jitter=False)
    run_id = bench.new("x", retry=rest)
    bench.claimed(run_id, lease_ms=1_000)
    clock.advance(1_001)
    bench.put(run_id)
    bench.start()
    assert eventually(lambda: bench.counted("early")) == 1
    assert bench.state(run_id) is RunState.SCHEDULED
    clock.advance(2_000)
    bench.ends(run_id)


def test_past_its_due_time_promoted_in_place(bench: Bench, clock: ManualClock) -> None:
    run_id = bench.new("x", delay_ms=90_000)
    clock.advance(90_000)
    bench.put(run_id)
    bench.start()
    bench.ends(run_id)
    bench.queue.becomes("gone")


def test_past_its_time_out_timed_out_in_place(bench: Bench, clock: ManualClock) -> None:
    run_id = bench.parked(bench.new("x"), waiting_at_most(90_000))
    clock.advance(90_000)
    bench.put(run_id)
    bench.start()
    bench.ends(run_id)
    bench.queue.becomes("gone")


def test_row_locked_visible_again_in_a_second(
    postgresql_url: str, clock: ManualClock, endpoint: SqsEndpoint
) -> None:
    """On PostgreSQL alone: SQLite has no lock on a row."""
    bench = Bench(postgresql_url, clock, endpoint)
    elsewhere = bench.store.sibling(connections=1)
    try:
        run_id = bench.new("x")
        with elsewhere.engine.begin() as holder:
            holder.exec_driver_sql(
                "select from workhorse.live where id = %(id)s for update", {"id": run_id}
            )
            bench.put(run_id)
            bench.start()
            assert eventually(lambda: bench.counted("locked")) >= 1
            assert bench.queue.counts().total == 1
            assert bench.calls == []
        bench.ends(run_id)
        bench.queue.becomes("gone")
    finally:
        elsewhere.close()
        bench.close()


def test_no_slot_left_nothing_is_received(bench: Bench) -> None:
    first = bench.new("first", task="slow")
    bench.start(concurrency=1)
    eventually(lambda: bench.calls == ["first"], what="the only slot is taken")
    second = bench.new("second")
    bench.put(second)
    assert bench.queue.fate() == "visible"
    assert bench.state(second) is RunState.READY
    bench.release.set()
    bench.ends(first)
    bench.ends(second)
    bench.queue.becomes("gone")


def test_not_there_visible_once_more_then_deleted_and_counted(bench: Bench) -> None:
    bench.put(new_run_id())
    bench.start()
    assert eventually(lambda: bench.counted("unseen")) == 1
    assert bench.queue.fate() == "in flight"
    bench.queue.becomes("gone", within=20)
    assert eventually(lambda: bench.counted("missing")) == 1


def test_case_2_a_wakeup_that_comes_before_the_commit_finds_its_run_at_the_second_look(
    bench: Bench,
) -> None:
    run = NewRun(id=new_run_id(), task="known", queue=QUEUE, payload='"late"')
    bench.put(run.id)
    bench.start()
    assert eventually(lambda: bench.counted("unseen")) == 1
    bench.store.run(enqueue, [run], reach=no_reach)  # the commit comes now
    bench.ends(run.id, within=20)
    bench.queue.becomes("gone")
    assert bench.counted("missing") == 0


def test_unreadable_deleted_counted_and_named_without_its_body(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "workhorse"):
        bench.queue.put("secret-body {")
        bench.start()
        bench.queue.becomes("gone")
    assert eventually(lambda: bench.counted("malformed")) == 1
    assert "cannot be read" in caplog.text
    assert "secret-body" not in caplog.text


def test_newer_major_version_stays_for_newer_workers(bench: Bench) -> None:
    bench.queue.put(json.dumps({"workhorse": 2, "run_id": new_run_id(), "queue": QUEUE}))
    bench.start()
    assert eventually(lambda: bench.counted("newer_format")) == 1
    bench.queue.becomes("in flight")


def test_store_out_of_reach_kept_until_it_answers(
    own_postgres: PostgresServer, endpoint: SqsEndpoint
) -> None:
    url = own_postgres.databases.url(own_postgres.databases.create())
    app = Workhorse(database_url=url)
    app.migrate()
    app.close()
    # What was received while the store was away comes back by the queue's visibility time-out.
    bench = Bench(url, None, endpoint, visibility_s=3)
    try:
        run_id = bench.new("x", retry=AT_ONCE)
        bench.start()
        bench.ends(run_id)  # by the scan at the start; the worker is up
        later = bench.new("later", delay_ms=300)
        own_postgres.stop()
        bench.put(later)
        eventually(
            lambda: bench.app.counters.get(Metric.STORE_ERRORS), within=30, what="it notices"
        )
        assert bench.queue.counts().total == 1
        own_postgres.start()
        bench.ends(later, within=60)
        bench.queue.becomes("gone", within=30)
    finally:
        bench.close()
