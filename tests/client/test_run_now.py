"""Run now: stored, claimed and executed here, by the rules of a worker."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from tests.client.ends import lease_run
from tests.client.lanes import RecordingLane
from tests.store.acting import a_run
from tests.store.rivals import Rival, blocked_sessions
from tests.support.eventually import eventually
from tests.support.left_out import skip_where_not_meant
from workhorse.app import Workhorse
from workhorse.client import executing
from workhorse.domain.hints import no_reach
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import RunState
from workhorse.errors import NonRetryableError, RunFailedError, StoreUnavailableError
from workhorse.handlers.context import AsyncContext, Context
from workhorse.handlers.tasks import Task
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.lifecycle.claiming import claim
from workhorse.store.producing.enqueueing import enqueue


def test_a_plain_handler_runs_here(
    app: Workhorse, double: Task[int, int], lane: RecordingLane
) -> None:
    """Its result is in the store, and nobody else was told of it."""
    run = double.run_now(21)

    view = run.view()
    assert (run.result(timeout=0), run.created) == (42, True)
    assert (view.state, view.fence, view.attempt) == (RunState.SUCCEEDED, 1, 1)
    assert lane.sent == []


def test_an_async_handler_runs_here_from_sync_and_async_callers(app: Workhorse) -> None:
    """It has an event loop of its own, whoever calls."""
    seen: list[tuple[int, str]] = []

    @app.task()
    async def work(ctx: AsyncContext, number: int) -> str:
        await asyncio.sleep(0)
        seen.append((ctx.attempt, ctx.run.id))
        return f"done {number}"

    async def main() -> str:
        run = await work.run_now_async(2)
        return await run.result_async(timeout=0)

    first = work.run_now(1)
    assert first.result(timeout=0) == "done 1"
    assert asyncio.run(main()) == "done 2"
    assert seen[0] == (1, first.id)
    assert len(seen) == 2


def test_a_failure_without_budget_is_raised(app: Workhorse) -> None:
    """As its result would raise it."""

    @app.task(retry=RetryPolicy(max_attempts=1))
    def work() -> None:
        raise ValueError("out of paper")

    @app.task()
    def never_again() -> None:
        raise NonRetryableError("no such printer")

    with pytest.raises(RunFailedError, match=r"ValueError: out of paper") as raised:
        work.run_now()
    assert raised.value.reason == "error"
    with pytest.raises(RunFailedError) as raised:
        never_again.run_now()
    assert raised.value.reason == "not_retryable"


def test_a_failure_with_budget_is_left_to_a_worker(app: Workhorse) -> None:
    """The run rests by its policy; the next attempt is anybody's."""

    @app.task(retry=RetryPolicy(max_attempts=2, first=timedelta(seconds=60), jitter=False))
    def work() -> None:
        raise ValueError("out of paper")

    view = work.run_now().view()

    assert (view.state, view.attempt) == (RunState.SCHEDULED, 2)


def test_what_cannot_be_claimed_is_left_to_a_worker(
    app: Workhorse, double: Task[int, int], lane: RecordingLane, store: Store
) -> None:
    """A paused queue, and a session where another run has the turn; a wakeup goes out then."""
    app.admin.pause_queue("shut", by="ann")
    shut = double.run_now(1, queue="shut")
    earlier = double.enqueue(2, session="s")
    later = double.run_now(3, session="s")

    assert lane.ids == [shut.id, earlier.id, later.id]
    assert {run.view().state for run in (shut, earlier, later)} == {RunState.READY}

    lease_run(store, earlier.id)
    assert double.run_now(2, key="k").result(timeout=0) == 4


def test_a_claim_whose_answer_was_lost_is_found_again(
    app: Workhorse, double: Task[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its token: the run is executed here, under that very lease."""
    store = app.store
    monkeypatch.setattr(store.dialect, "is_lost", lambda _error: True)
    commits: list[int] = []

    def lose_the_second(connection: Any) -> None:
        commits.append(1)
        if len(commits) == 2:
            connection.connection.driver_connection.commit()
            raise OperationalError("commit", None, ConnectionError("gone"))

    event.listen(store.engine, "commit", lose_the_second)
    run = double.run_now(21)

    assert len(commits) >= 3
    assert run.result(timeout=0) == 42
    assert run.view().fence == 1


def test_a_key_that_was_used_runs_nothing_twice(app: Workhorse, lane: RecordingLane) -> None:
    """The finished owner answers."""
    calls: list[int] = []

    @app.task()
    def work(number: int) -> int:
        calls.append(number)
        return number

    first = work.run_now(1, key="k")
    again = work.run_now(1, key="k")

    assert (again.id, again.created, again.result(timeout=0)) == (first.id, False, 1)
    assert calls == [1]
    assert lane.sent == []


def test_several_threads_run_at_once(app: Workhorse) -> None:
    """Each executes its own."""
    together = threading.Barrier(3, timeout=10)

    @app.task()
    def work(ctx: Context, number: int) -> int:
        together.wait()
        return number

    results: list[int] = []
    threads = [
        threading.Thread(target=lambda n=number: results.append(work.run_now(n).result(timeout=0)))
        for number in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    assert sorted(results) == [0, 1, 2]


def test_a_turn_that_somebody_else_just_took_is_left_to_a_worker(
    app: Workhorse, double: Task[int, int], lane: RecordingLane, store: Store, clock: ManualClock
) -> None:
    """Both saw it free, and the index let the other one pass."""
    if store.kind == "sqlite":
        skip_where_not_meant("one writer at a time: nobody sees a turn free that is taken")
    app.lane  # noqa: B018 - opened and checked before the rival holds its locks
    with Rival(store) as rival, ThreadPoolExecutor(1) as thread:
        (earlier,) = rival.call(enqueue, [a_run(task="double", session="s")], reach=no_reach)
        rival.call(
            claim, queue="default", ids=[earlier.run_id], tasks=["double"], free=1, token=1,
            lease_ms=30_000, scan=False,
        )  # fmt: skip
        clock.advance(1)
        answer = thread.submit(double.run_now, 2, session="s")
        eventually(lambda: blocked_sessions(store) == 1)
        rival.commit()
        run = answer.result(20)

    assert run.view().state is RunState.READY
    assert lane.ids == [run.id]


def test_a_run_whose_claim_fails_is_stored_and_told_of(
    app: Workhorse,
    double: Task[int, int],
    lane: RecordingLane,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was accepted, though its caller gets an error: a worker executes it."""

    def fail(*_args: Any, **_more: Any) -> None:
        raise StoreUnavailableError("it did not answer")

    monkeypatch.setattr(executing, "claim", fail)
    with pytest.raises(StoreUnavailableError):
        double.run_now(2)

    (left,) = app.admin.list_runs()
    assert (left.state, lane.ids) == (RunState.READY, [left.id])
