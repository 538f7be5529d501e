"""Contexts: what a handler sees of its run, and how it gets at its context from deep inside."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.handlers.runs import a_claimed_run
from workhorse.domain.retry import RetryPolicy
from workhorse.errors import ConfigurationError, LeaseRequiredError
from workhorse.handlers.context import (
    ActivationCore,
    AsyncContext,
    Context,
    current,
    current_context,
)
from workhorse.handlers.signals import AsyncStopSignal, StopReason, StopSignal


@pytest.mark.parametrize("kind", [Context, AsyncContext])
def test_a_context_shows_the_run_its_lease_and_its_attempt(
    kind: type[Context] | type[AsyncContext],
) -> None:
    claimed = a_claimed_run(
        attempt=2,
        retry=RetryPolicy(max_attempts=3),
        session="customer 7",
        tags=("eu",),
        key="order 1",
    )
    ctx = kind(ActivationCore(claimed))

    assert ctx.run.id == claimed.id
    assert (ctx.run.task, ctx.run.queue) == ("orders.ship", "default")
    assert (ctx.run.session, ctx.run.tags, ctx.run.key) == ("customer 7", ("eu",), "order 1")
    assert (ctx.run.created_at, ctx.run.started_at) == (claimed.created_at, claimed.started_at)
    assert ctx.lease == claimed.lease
    assert ctx.lease.fence == 4
    assert (ctx.attempt, ctx.is_final_attempt) == (2, False)
    assert str(claimed.id) in repr(ctx)
    assert str(ctx.lease.token) not in repr(ctx)


def test_the_last_attempt_knows_that_it_is_the_last() -> None:
    claimed = a_claimed_run(attempt=3, retry=RetryPolicy(max_attempts=3))
    assert Context(ActivationCore(claimed)).is_final_attempt is True


def test_queue_ms_counts_from_creation_to_the_first_claim() -> None:
    claimed = a_claimed_run()
    core = ActivationCore(
        replace(claimed, started_at=claimed.created_at + timedelta(seconds=1, milliseconds=234))
    )
    assert Context(core).queue_ms == 1_234


def test_queue_ms_is_never_negative() -> None:
    claimed = a_claimed_run()
    core = ActivationCore(replace(claimed, started_at=claimed.created_at - timedelta(seconds=1)))
    assert AsyncContext(core).queue_ms == 0


def test_a_run_without_a_lease_makes_no_context() -> None:
    with pytest.raises(LeaseRequiredError, match="no lease"):
        ActivationCore(replace(a_claimed_run(), lease=None))


def test_both_signals_show_in_the_form_of_the_handlers_world() -> None:
    core = ActivationCore(a_claimed_run())
    plain, other = Context(core), AsyncContext(core)

    core.stopping.set(StopReason.SHUTDOWN)

    assert isinstance(plain.stopping, StopSignal)
    assert isinstance(other.stopping, AsyncStopSignal)
    assert isinstance(plain.cancelled, StopSignal)
    assert isinstance(other.cancelled, AsyncStopSignal)
    assert plain.stopping
    assert other.stopping.reason is StopReason.SHUTDOWN
    assert not plain.cancelled
    assert not other.cancelled


def test_there_is_no_current_context_outside_a_handler() -> None:
    with pytest.raises(ConfigurationError, match="no handler is running"):
        current_context()


def test_case_18_the_current_context_follows_tasks_and_to_thread() -> None:
    ctx = AsyncContext(ActivationCore(a_claimed_run()))

    async def handler() -> list[object]:
        current.set(ctx)

        async def inner() -> object:
            return current_context()

        return [await asyncio.create_task(inner()), await asyncio.to_thread(current_context)]

    assert asyncio.run(handler()) == [ctx, ctx]


def test_case_18_the_current_context_stays_in_its_own_thread() -> None:
    ctx = Context(ActivationCore(a_claimed_run()))
    seen: list[object] = []
    before = current.set(ctx)
    try:
        thread = threading.Thread(target=lambda: seen.append(current.get(None)))
        thread.start()
        thread.join()
    finally:
        current.reset(before)

    assert seen == [None]
