"""The step from a claimed run to its settle, for plain and async handlers, on both databases."""

from __future__ import annotations

import asyncio
import contextvars
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.runtime.rig import Rig
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import Reason, RunState
from workhorse.errors import (
    LeaseRequiredError,
    NonRetryableError,
    UnknownTaskError,
    WorkhorseError,
)
from workhorse.handlers.context import AsyncContext, Context
from workhorse.store.base.database import ManualClock
from workhorse.store.lifecycle.claiming import claimed_under
from workhorse.store.lifecycle.sweeping import recover
from workhorse.telemetry import Metric

ONCE = RetryPolicy(max_attempts=1)


def handler_of(kind: str, body: Callable[[], Any]) -> Callable[[], Any]:
    """Return a handler that does `body`, plain or async."""

    def plain() -> Any:
        return body()

    async def waits() -> Any:
        await asyncio.sleep(0)
        return body()

    return plain if kind == "plain" else waits


def raising(error: BaseException) -> Callable[[], Any]:
    def body() -> Any:
        raise error

    return body


def test_a_run_succeeds_with_what_its_handler_returns(rig: Rig, kind: str) -> None:
    rig.task("t")(handler_of(kind, lambda: {"n": 2**70, "parts": [1, 1.5, None, True, "ü"]}))
    claimed = rig.claimed("t")

    assert rig.worker().process_run(claimed) is RunState.SUCCEEDED

    view = rig.view(claimed.id)
    assert view.state is RunState.SUCCEEDED
    assert view.result == '{"n":1180591620717411303424,"parts":[1,1.5,null,true,"ü"]}'
    assert rig.count(Metric.RUNS_SETTLED, "succeeded") == 1


@pytest.mark.parametrize(
    ("policy", "what_next"),
    [(ONCE, "the run has failed"), (RetryPolicy(first=timedelta(0)), "tried again in 0.0 s")],
)
def test_a_failed_attempt_is_logged_by_its_type_and_not_by_its_text(
    rig: Rig, kind: str, policy: RetryPolicy, what_next: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig.task("t")(handler_of(kind, raising(ValueError("card 4111"))))
    claimed = rig.claimed("t", retry=policy)

    with caplog.at_level("WARNING", "workhorse"):
        rig.worker().process_run(claimed)

    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"run {claimed.id}: attempt 1 of task 't' has failed")
    assert "builtins.ValueError" in line
    assert what_next in line
    assert "card" not in caplog.text


def test_a_run_without_a_lease_is_refused_before_anything_else(rig: Rig) -> None:
    rig.task("t")(lambda: None)
    claimed = replace(rig.claimed("t"), lease=None, task="nobody knows")

    with pytest.raises(LeaseRequiredError):
        rig.worker().process_run(claimed)

    assert rig.state(claimed.id) is RunState.RUNNING


def test_a_run_of_an_unknown_task_is_not_touched(rig: Rig) -> None:
    rig.task("t")(lambda: None)
    claimed = replace(rig.claimed("t"), task="nobody knows")

    with pytest.raises(UnknownTaskError):
        rig.worker().process_run(claimed)

    assert rig.state(claimed.id) is RunState.RUNNING


def test_handlers_get_payload_and_context(rig: Rig) -> None:
    seen: list[tuple[Any, ...]] = []

    @rig.task("plain")
    def plain(ctx: Context, payload: dict[str, int]) -> None:
        seen.append((ctx.run.id, ctx.attempt, ctx.is_final_attempt, ctx.lease.fence, payload))
        assert not ctx.cancelled
        assert not ctx.stopping

    @rig.task("async")
    async def waits(ctx: AsyncContext, payload: dict[str, int]) -> None:
        seen.append((ctx.run.id, ctx.attempt, ctx.is_final_attempt, ctx.lease.fence, payload))

    worker = rig.worker()
    for task in ("plain", "async"):
        claimed = rig.claimed(task, '{"n":1}', retry=ONCE)
        assert worker.process_run(claimed) is RunState.SUCCEEDED
        assert seen.pop() == (claimed.id, 1, True, 1, {"n": 1})


def test_an_error_spends_an_attempt_and_is_kept(rig: Rig, kind: str) -> None:
    rig.task("t")(handler_of(kind, raising(ValueError("no such order"))))
    claimed = rig.claimed("t", retry=RetryPolicy(max_attempts=2, jitter=False))

    assert rig.worker().process_run(claimed) is RunState.SCHEDULED

    view = rig.view(claimed.id)
    assert (view.state, view.attempt) == (RunState.SCHEDULED, 2)
    assert rig.count(Metric.RUNS_SETTLED, "retry") == 1


def test_the_last_attempt_ends_the_run(rig: Rig, kind: str) -> None:
    rig.task("t")(handler_of(kind, raising(ValueError("no such order"))))
    claimed = rig.claimed("t", retry=ONCE)

    assert rig.worker().process_run(claimed) is RunState.FAILED

    view = rig.view(claimed.id)
    assert (view.reason, view.error_type) == (Reason.ERROR, "builtins.ValueError")
    assert view.error_message == "no such order"
    assert "test_process_run" in (view.error_traceback or "")


@pytest.mark.parametrize("error", [NonRetryableError("never"), KeyError("named by the task")])
def test_an_error_that_is_not_retryable_ends_the_run_at_once(
    rig: Rig, kind: str, error: BaseException
) -> None:
    rig.task("t", not_retryable=[KeyError])(handler_of(kind, raising(error)))
    claimed = rig.claimed("t")

    assert rig.worker().process_run(claimed) is RunState.FAILED
    assert rig.view(claimed.id).reason is Reason.NOT_RETRYABLE


ENDS_PROGRAMS: list[BaseException] = [
    StopIteration(1),
    StopAsyncIteration(),
    SystemExit(3),
    KeyboardInterrupt(),
    GeneratorExit(),
    asyncio.CancelledError(),
    BaseExceptionGroup("group", [KeyboardInterrupt(), ValueError("x")]),
]


def test_what_ends_programs_is_that_attempts_failure_alone(rig: Rig, kind: str) -> None:
    """The worker goes on: the run after each succeeds in the same worker."""
    errors = iter(ENDS_PROGRAMS)
    rig.task("t")(handler_of(kind, lambda: raising(next(errors))()))
    rig.task("after")(handler_of(kind, lambda: "fine"))
    worker = rig.worker()

    for error in ENDS_PROGRAMS:
        claimed = rig.claimed("t", retry=ONCE)
        assert worker.process_run(claimed) is RunState.FAILED
        expected = "RuntimeError" if _becomes_a_runtime_error(error, kind) else type(error).__name__
        assert expected in (rig.view(claimed.id).error_type or "")
        assert worker.process_run(rig.claimed("after")) is RunState.SUCCEEDED


def _becomes_a_runtime_error(error: BaseException, kind: str) -> bool:
    # Python's own rule for coroutines (PEP 479).
    return kind == "async" and isinstance(error, StopIteration)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_a_handlers_own_task_cannot_take_the_loop_down(rig: Rig, error: BaseException) -> None:
    @rig.task("t")
    async def starts_one() -> None:
        async def ends_programs() -> None:
            raise error

        await asyncio.create_task(ends_programs())

    rig.task("after")(handler_of("async", lambda: "fine"))
    worker = rig.worker()

    assert worker.process_run(rig.claimed("t", retry=ONCE)) is RunState.FAILED
    assert worker.process_run(rig.claimed("after")) is RunState.SUCCEEDED


def test_case_7_a_result_over_the_cap_ends_the_run_on_the_first_try(rig: Rig, kind: str) -> None:
    rig.task("t")(handler_of(kind, lambda: "x" * (1024 * 1024)))
    claimed = rig.claimed("t", retry=RetryPolicy(max_attempts=5))

    assert rig.worker().process_run(claimed) is RunState.FAILED

    view = rig.view(claimed.id)
    assert (view.reason, view.attempt) == (Reason.NOT_RETRYABLE, 1)
    assert "result of task 't'" in (view.error_message or "")
    assert "1,048,576" in (view.error_message or "")


def test_case_8_a_result_that_cannot_be_stored_ends_the_run_on_the_first_try(
    rig: Rig, kind: str
) -> None:
    values = [float("nan"), float("inf"), (1, 2), {1}, b"x", 1j, object(), "\0", "\ud800"]
    left = iter(values)
    rig.task("t")(handler_of(kind, lambda: {"part": next(left)}))
    worker = rig.worker()

    for _ in values:
        claimed = rig.claimed("t", retry=RetryPolicy(max_attempts=5))
        assert worker.process_run(claimed) is RunState.FAILED
        view = rig.view(claimed.id)
        assert (view.reason, view.attempt) == (Reason.NOT_RETRYABLE, 1)
        assert "$.part" in (view.error_message or "")


def test_a_payload_that_no_longer_fits_ends_the_run_without_a_call(rig: Rig) -> None:
    called = []

    @rig.task("t")
    def takes_a_number(payload: int) -> None:
        called.append(payload)

    claimed = rig.claimed("t", '"text"', retry=RetryPolicy(max_attempts=5))

    assert rig.worker().process_run(claimed) is RunState.FAILED
    assert rig.view(claimed.id).reason is Reason.NOT_RETRYABLE
    assert not called


class NeedsTwoError(Exception):
    def __init__(self, first: object, second: object) -> None:
        super().__init__(first)


class CannotBeShownError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")

    __repr__ = __str__


def _holding(attribute: object) -> Exception:
    error = ValueError("holds something")
    error.held = attribute  # type: ignore[attr-defined]
    return error


def _deep_causes() -> Exception:
    error = ValueError("the first")
    for n in range(3_000):
        following = ValueError(f"caused {n}")
        following.__cause__ = error
        error = following
    return error


def _in_a_circle() -> Exception:
    one, two = ValueError("one"), ValueError("two")
    one.__context__, two.__context__ = two, one
    return one


CASE_17: dict[str, Callable[[], BaseException]] = {
    "second argument": lambda: NeedsTwoError(1, 2),
    "lambda": lambda: _holding(lambda: None),
    "lock": lambda: _holding(threading.Lock()),
    "str raises": CannotBeShownError,
    "3,000 causes": _deep_causes,
    "circle": _in_a_circle,
    "group": lambda: ExceptionGroup("several", [ValueError("a"), CannotBeShownError()]),
}


def test_case_17_an_error_that_cannot_be_pickled_is_stored_as_text(rig: Rig, kind: str) -> None:
    errors = {what: make() for what, make in CASE_17.items()}
    left = iter(errors.values())
    rig.task("t")(handler_of(kind, lambda: raising(next(left))()))
    rig.task("after")(handler_of(kind, lambda: "fine"))
    worker = rig.worker()

    for what, error in errors.items():
        claimed = rig.claimed("t", retry=ONCE)
        assert worker.process_run(claimed) is RunState.FAILED, what
        assert worker.process_run(rig.claimed("after")) is RunState.SUCCEEDED, what
        view = rig.view(claimed.id)
        assert type(error).__qualname__ in (view.error_type or "")
        assert len((view.error_traceback or "").encode()) <= 64 * 1024


def test_case_17_a_retry_policy_matches_the_type_of_such_an_error(rig: Rig, kind: str) -> None:
    rig.task("t", not_retryable=[NeedsTwoError])(handler_of(kind, raising(NeedsTwoError(1, 2))))

    assert rig.worker().process_run(rig.claimed("t")) is RunState.FAILED


WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


def test_case_18_context_variables_reach_the_handler_and_do_not_leak(rig: Rig, kind: str) -> None:
    seen: list[str] = []

    def body() -> None:
        seen.append(WHO.get())
        WHO.set("the handler")

    rig.task("t")(handler_of(kind, body))
    worker = rig.worker()
    WHO.set("the caller")
    try:
        worker.process_run(rig.claimed("t"))
        worker.process_run(rig.claimed("t"))
        assert WHO.get() == "the caller"
    finally:
        WHO.set("nobody")

    assert seen == ["the caller", "the caller"]


def test_case_18_context_variables_of_a_started_worker_are_those_of_start(
    rig: Rig, kind: str
) -> None:
    seen: list[str] = []
    done = threading.Event()

    def body() -> None:
        seen.append(WHO.get())
        WHO.set("the handler")
        if len(seen) == 3:
            done.set()

    rig.task("t")(handler_of(kind, body))
    rig.enqueue_many("t", 3)
    worker = rig.worker(concurrency=1)
    WHO.set("the starter")
    try:
        worker.start()
    finally:
        WHO.set("nobody")
    assert done.wait(10)

    assert seen == ["the starter"] * 3


def test_case_18_context_variables_follow_into_threads_of_an_async_handler(rig: Rig) -> None:
    seen: list[str] = []

    @rig.task("t")
    async def hands_on() -> None:
        WHO.set("the handler")
        await asyncio.to_thread(lambda: seen.append(WHO.get()))
        await asyncio.create_task(_note(seen))

    rig.worker().process_run(rig.claimed("t"))

    assert seen == ["the handler", "the handler"]


async def _note(seen: list[str]) -> None:
    seen.append(WHO.get())


def test_case_18_an_awaitable_from_a_plain_function_is_refused(rig: Rig) -> None:
    async def work() -> None:
        raise AssertionError("nobody awaits this")

    rig.task("t")(lambda: work())
    claimed = rig.claimed("t")

    assert rig.worker().process_run(claimed) is RunState.FAILED
    assert "coroutine" in (rig.view(claimed.id).error_message or "")


def test_a_taken_lease_stores_nothing(rig: Rig, clock: ManualClock, kind: str) -> None:
    """A worker that slept through its lease cannot write over its successor's run."""
    rig.task("t")(handler_of(kind, lambda: "late"))
    stale = rig.claimed("t", retry=RetryPolicy(max_attempts=3, first=timedelta(0)))
    clock.advance(30_001)
    rig.store.run(recover, reach=rig.lane.reach_ms, draw=random.Random(1))
    current = rig.claim()
    assert current.id == stale.id

    assert rig.worker().process_run(stale) is None

    assert rig.state(stale.id) is RunState.RUNNING
    assert rig.store.run(claimed_under, current.lease.token)
    assert rig.count(Metric.LEASES_LOST) == 1
    assert rig.worker().process_run(current) is RunState.SUCCEEDED


def test_a_worker_that_has_ended_executes_nothing(rig: Rig) -> None:
    rig.task("t")(lambda: None)
    worker = rig.worker()
    worker.stop()
    claimed = rig.claimed("t")

    with pytest.raises(WorkhorseError):
        worker.process_run(claimed)

    assert rig.state(claimed.id) is RunState.RUNNING


@pytest.mark.parametrize("first", ["the run", "the end"])
def test_a_worker_that_ends_just_then_keeps_nobody_waiting(
    rig: Rig, kind: str, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is handed back where the worker knew of it, else its lease runs out."""
    rig.task("t")(handler_of(kind, lambda: None))
    claimed = rig.claimed("t")
    worker = rig.worker()
    hold = worker._parts.engine.hold

    def end_meanwhile(*given: Any, **more: Any) -> Any:
        if first == "the end":
            worker.stop(0)
        held = hold(*given, **more)
        worker.stop(0)
        return held

    monkeypatch.setattr(worker._parts.engine, "hold", end_meanwhile)
    answers: list[RunState | None] = []
    thread = threading.Thread(
        target=lambda: answers.append(worker.process_run(claimed)), daemon=True
    )
    thread.start()
    thread.join(20)

    assert answers == [RunState.READY if first == "the run" else None]


def test_runs_are_processed_side_by_side(rig: Rig, kind: str) -> None:
    """Each waits for the other, so that one after the other would never end."""
    barrier = threading.Barrier(2)

    def plain() -> None:
        barrier.wait(10)

    async def waits() -> None:
        await asyncio.to_thread(barrier.wait, 10)

    rig.task("t")(plain if kind == "plain" else waits)
    worker = rig.worker(concurrency=1)
    rig.enqueue_many("t", 2)
    runs = rig.claim(free=2)
    states: list[RunState | None] = []
    threads = [
        threading.Thread(target=lambda run=run: states.append(worker.process_run(run)))
        for run in runs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    assert states == [RunState.SUCCEEDED] * 2
    assert not worker.busy()
