"""The rules of docs/design.md, section 7, as a real worker keeps them: how a breach ends a run.

What each call does, says and refuses is tested for both contexts in tests/handlers, on a store in
memory: test_checkpoints.py, test_waiting.py, test_wait_any.py, test_children.py, test_flights.py
and test_replay_stops.py (limits, stops, `patched`). What deliveries answer is tested in
tests/client/test_delivering.py and tests/store/test_delivering.py, transactions in
tests/runtime/test_transactions.py, suspensions in tests/runtime/test_suspending.py. Here are the
ends, in the store, of handlers that break a rule: which error, after how many attempts.
"""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.durable.handlers import handler, its
from tests.runtime.rig import Rig
from tests.store.acting import do, history_of, rows
from tests.store.invariants import check_invariants
from tests.store.waiting import send
from workhorse import errors, waits
from workhorse.domain.boundaries import MAX_BOUNDARIES, MAX_BOUNDARY_BYTES, DeliveryResult
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import Reason, RunState
from workhorse.store.base.database import ManualClock
from workhorse.store.durable.freeing import free_noted
from workhorse.store.lifecycle.sweeping import promote
from workhorse.waits import WaitFor

PAST = datetime(2025, 6, 1, tzinfo=UTC)
AGAIN = RetryPolicy(max_attempts=5, first=timedelta(0))
NONE = timedelta(0)

# -- what ends a run at once ---------------------------------------------------------------------


async def another_input(ctx: Any) -> None:
    await its(ctx.checkpoint("a", lambda: 1, input={"amount": 1}))
    await its(ctx.checkpoint("a", lambda: 1, input={"amount": 2}))


async def a_sleep_named_like_a_checkpoint(ctx: Any) -> None:
    await its(ctx.checkpoint("a", lambda: 1))
    await its(ctx.sleep("a", NONE))


async def a_checkpoint_named_like_a_sleep(ctx: Any) -> None:
    await its(ctx.sleep("a", NONE))
    await its(ctx.checkpoint("a", lambda: 1))


async def a_signal_named_like_a_token(ctx: Any) -> None:
    await its(ctx.token("a"))
    await its(ctx.wait_for_signal("a"))


async def another_instant(ctx: Any) -> None:
    await its(ctx.sleep_until("a", PAST))
    await its(ctx.sleep_until("a", PAST + timedelta(microseconds=1)))


async def an_instant_for_a_duration(ctx: Any) -> None:
    await its(ctx.sleep("a", NONE))
    await its(ctx.sleep_until("a", PAST))


async def a_wait_that_a_choice_has_closed(ctx: Any) -> None:
    await its(ctx.wait_any({"now": waits.timer(NONE), "word": waits.signal()}))
    await its(ctx.wait_for_signal("word"))


async def another_choice(ctx: Any) -> None:
    await its(ctx.wait_any({"now": waits.timer(NONE), "word": waits.signal()}))
    await its(ctx.wait_any({"now": waits.timer(NONE)}, name="any:now"))


async def too_many_open_waits(ctx: Any) -> None:
    many: dict[str, WaitFor] = {f"word {n}": waits.signal() for n in range(1_001)}
    await its(ctx.wait_any(many))


async def a_checkpoint_too_large(ctx: Any) -> None:
    await its(ctx.checkpoint("a", lambda: "x" * 1024 * 1024))


async def a_checkpoint_that_is_not_a_number(ctx: Any) -> None:
    await its(ctx.checkpoint("a", lambda: {"loss": float("nan")}))


async def a_progress_too_large(ctx: Any) -> None:
    await its(ctx.progress("x" * 64 * 1024))


async def a_progress_of_bytes(ctx: Any) -> None:
    await its(ctx.progress({"part": b"1"}))


async def a_context_too_large(ctx: Any) -> None:
    await its(ctx.wait_for_human("a", "x" * 64 * 1024))


async def a_context_of_a_set(ctx: Any) -> None:
    await its(ctx.wait_for_human("a", {"who": {1}}))


@pytest.mark.parametrize(
    ("steps", "error"),
    [
        (another_input, errors.CheckpointConflictError),
        (a_checkpoint_named_like_a_sleep, errors.CheckpointConflictError),
        (a_sleep_named_like_a_checkpoint, errors.WaitConflictError),
        (a_signal_named_like_a_token, errors.WaitConflictError),
        (another_instant, errors.WaitConflictError),
        (an_instant_for_a_duration, errors.WaitConflictError),
        (a_wait_that_a_choice_has_closed, errors.WaitConflictError),
        (another_choice, errors.WaitConflictError),
        (too_many_open_waits, errors.WaitLimitExceededError),
        (a_checkpoint_too_large, errors.ValueTooLargeError),
        (a_progress_too_large, errors.ValueTooLargeError),
        (a_context_too_large, errors.ValueTooLargeError),
        (a_checkpoint_that_is_not_a_number, errors.UnstorableValueError),
        (a_progress_of_bytes, errors.UnstorableValueError),
        (a_context_of_a_set, errors.UnstorableValueError),
    ],
    ids=lambda each: each.__name__.replace("_", " "),
)
def test_a_rule_that_is_broken_ends_the_run_at_once(
    rig: Rig, kind: str, steps: Any, error: type[Exception]
) -> None:
    """Whatever attempts are left: it would be the same each time."""
    rig.task("t")(handler(kind, steps))
    claimed = rig.claimed("t", retry=AGAIN)

    assert rig.worker().process_run(claimed) is RunState.FAILED

    view = rig.view(claimed.id)
    assert (view.reason, view.attempt, view.error_type) == (
        Reason.NOT_RETRYABLE,
        1,
        f"{error.__module__}.{error.__qualname__}",
    )


@pytest.mark.parametrize("call", ["checkpoint", "sleep", "wait_for_signal"])
def test_what_stood_before_the_breach_still_stands(rig: Rig, kind: str, call: str) -> None:
    async def steps(ctx: Any) -> None:
        await its(ctx.checkpoint("a", lambda: 1))
        await its(ctx.sleep("b", NONE))
        arguments: dict[str, tuple[Any, ...]] = {"checkpoint": (lambda: 2,), "sleep": (NONE,)}
        name = "b" if call == "checkpoint" else "a"
        await its(getattr(ctx, call)(name, *arguments.get(call, ())))

    rig.task("t")(handler(kind, steps))
    claimed = rig.claimed("t")

    assert rig.worker().process_run(claimed) is RunState.FAILED
    passed = [(each.name, each.kind) for each in history_of(rig.store, claimed.id).boundaries]
    assert passed == [("a", "checkpoint"), ("b", "timer")]


def test_a_token_that_is_not_there_ends_the_run(rig: Rig, kind: str) -> None:
    """Nobody could ever complete it; its reference is as good as a password, and is not shown."""

    async def steps(ctx: Any) -> Any:
        return await its(ctx.wait_for_token("paid", "nobody-has-made-this"))

    rig.task("t")(handler(kind, steps))
    claimed = rig.claimed("t", retry=AGAIN)
    worker = rig.worker()
    assert worker.process_run(claimed) is RunState.READY
    assert worker.process_run(rig.claim()) is RunState.FAILED

    view = rig.view(claimed.id)
    assert (view.reason, view.attempt) == (Reason.NOT_RETRYABLE, 1)
    assert view.error_type == "workhorse.errors.TokenNotFoundError"
    assert "nobody-has-made-this" not in (view.error_message or "")


# -- what a wait brought is the same in each attempt ---------------------------------------------


def test_a_time_out_that_nobody_handles_ends_the_run(
    rig: Rig, clock: ManualClock, kind: str
) -> None:
    async def steps(ctx: Any) -> Any:
        return await its(ctx.wait_for_signal("word", timedelta(minutes=1)))

    rig.task("t")(handler(kind, steps))
    claimed = rig.claimed("t", retry=AGAIN)
    worker = rig.worker()
    assert worker.process_run(claimed) is RunState.WAITING
    clock.advance(60_000)
    rig.store.run(promote)

    assert worker.process_run(rig.claim()) is RunState.FAILED

    view = rig.view(claimed.id)
    assert (view.reason, view.attempt) == (Reason.NOT_RETRYABLE, 1)
    assert view.error_type == "workhorse.errors.WaitTimeoutError"
    assert issubclass(errors.WaitTimeoutError, TimeoutError)


def test_a_time_out_that_is_handled_is_met_again_by_a_further_attempt(
    rig: Rig, clock: ManualClock, kind: str
) -> None:
    """Also when its value came meanwhile: it was told that it is too late."""

    async def steps(ctx: Any) -> str:
        try:
            await its(ctx.wait_for_signal("word", timedelta(minutes=1)))
        except TimeoutError:
            if ctx.attempt == 1:
                raise ValueError("once more") from None
            return "late"
        return "in time"

    rig.task("t")(handler(kind, steps))
    claimed = rig.claimed("t", retry=AGAIN)
    worker = rig.worker()
    worker.process_run(claimed)
    clock.advance(60_000)
    rig.store.run(promote)
    assert worker.process_run(rig.claim()) is RunState.READY

    assert send(rig.store, claimed.id)[0] is DeliveryResult.ALREADY_SETTLED
    assert worker.process_run(rig.claim()) is RunState.SUCCEEDED
    assert rig.view(claimed.id).result == '"late"'


def test_a_child_that_failed_is_an_error_that_a_handler_may_take(rig: Rig, kind: str) -> None:
    part = rig.task("part", retry=RetryPolicy(max_attempts=1))(_fails)

    async def steps(ctx: Any) -> Any:
        try:
            return await its(ctx.child("part", part))
        except errors.ChildFailedError as error:
            return [error.reason, error.error_type]

    rig.task("t")(handler(kind, steps))
    run_id = rig.enqueue("t")

    _drain(rig)

    assert json.loads(rig.view(run_id).result or "") == ["error", "builtins.ValueError"]


def _fails() -> None:
    raise ValueError("it broke")


def _drain(rig: Rig) -> None:
    """Work and maintain until nothing moves any more."""
    while rig.worker().drain() + rig.store.run(free_noted).count:
        pass


# -- a run that waits costs nothing --------------------------------------------------------------


def test_five_sleeps_use_one_attempt_and_each_stage_happens_once(
    rig: Rig, clock: ManualClock, kind: str
) -> None:
    done: list[str] = []

    async def steps(ctx: Any) -> int:
        for n in range(5):
            await its(ctx.checkpoint(f"stage {n}", lambda n=n: done.append(f"stage {n}")))
            await its(ctx.sleep(f"nap {n}", timedelta(hours=1)))
        return len(done)

    rig.task("t")(handler(kind, steps))
    claimed = rig.claimed("t", retry=RetryPolicy(max_attempts=1))
    worker = rig.worker()
    assert worker.process_run(claimed) is RunState.SCHEDULED
    for _ in range(5):
        clock.advance(3_600_000)
        rig.store.run(promote)
        worker.process_run(rig.claim())

    view = rig.view(claimed.id)
    assert (view.state, view.attempt, view.fence) == (RunState.SUCCEEDED, 1, 6)
    assert done == [f"stage {n}" for n in range(5)]
    assert rows(rig.store, "select 1 from {s}attempts") == []
    check_invariants(rig.store)


# -- limits are the run's, over all its activations ----------------------------------------------


@pytest.mark.parametrize(
    ("count", "size", "stored"),
    [
        (MAX_BOUNDARIES, 1, False),
        (MAX_BOUNDARIES - 1, 1, True),
        (64, MAX_BOUNDARY_BYTES // 64, False),
        (64, MAX_BOUNDARY_BYTES // 64 - 1, True),
    ],
    ids=["10,000 boundaries", "one less", "64 MiB", "64 bytes less"],
)
def test_the_limit_of_boundaries_counts_what_earlier_activations_stored(
    rig: Rig, kind: str, count: int, size: int, stored: bool
) -> None:
    """Also those that did not come with the claim. Nothing is called for one without room."""
    calls: list[int] = []

    async def steps(ctx: Any) -> None:
        if ctx.attempt == 1:
            raise ValueError("once more")
        await its(ctx.checkpoint("one more", lambda: calls.append(1)))

    rig.task("t")(handler(kind, steps))
    claimed = rig.claimed("t", retry=AGAIN)
    worker = rig.worker()
    worker.process_run(claimed)
    _give_boundaries(rig, claimed.id, count, size)

    state = worker.process_run(rig.claim())

    view = rig.view(claimed.id)
    if stored:
        assert (state, calls) == (RunState.SUCCEEDED, [1])
        return
    assert (state, view.reason) == (RunState.FAILED, Reason.NOT_RETRYABLE)
    assert view.error_type == "workhorse.errors.BoundaryLimitExceededError"
    assert "'one more'" in (view.error_message or "")
    assert len(calls) == (size > 1)  # how large a value is can be said behind its operation alone


def _give_boundaries(rig: Rig, run_id: str, count: int, size: int) -> None:
    """As if earlier activations had stored so many, of that size each."""
    clock = rig.store.manual_clock
    assert clock is not None
    do(
        rig.store,
        "with recursive n(i) as (select 1 union all select i + 1 from n where i < :count)"
        " insert into {s}boundaries"
        " (run_id, name, kind, seq, value, bytes, absolute, fence, created_at)"
        " select :id, 'b' || i, 'checkpoint', i, 'null', :size, :no, 1, :at from n",
        id=uuid.UUID(run_id) if rig.store.kind == "postgresql" else run_id,
        count=count,
        size=size,
        no=False,
        at=rig.store.dialect.write_instant(clock.now),
    )
