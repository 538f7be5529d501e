"""Races of real activations with what comes from outside, in both orders.

On PostgreSQL the second has begun, and waits for a lock, when the first commits; SQLite has one
writer at a time, so there they follow each other. The first commit's outcome stands, the loser is
told, and the next activation of the handler gets what stands.

The same races of single statements are in tests/store: test_delivering.py (a value and a time-out,
two deliveries, a cancel, the end, the settle of its wait), test_tokens.py (a value and the token's
time, a run that comes to wait, two passes) and test_freeing.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from tests.durable.calling import Called, a_run_at, call, finish
from tests.handlers.durable import FakeRun
from tests.store.acting import promoted, put, reach, recovered, seen, state_of
from tests.store.rivals import Rival
from tests.store.waiting import complete, delivered, freed, send
from workhorse import waits
from workhorse.domain.boundaries import BoundaryKind, DeliveryResult
from workhorse.domain.ids import RunId
from workhorse.domain.recording import Record
from workhorse.domain.runs import RunState
from workhorse.errors import WaitConflictError, WaitTimeoutError
from workhorse.handlers.asynchronous import AsyncContext
from workhorse.handlers.plain import Context
from workhorse.store.base.database import ManualClock, Store, Tx
from workhorse.store.durable.delivering import deliver
from workhorse.store.durable.tokens import complete_token, create_token
from workhorse.store.lifecycle.settling import settle
from workhorse.store.lifecycle.sweeping import promote
from workhorse.store.operators.operating import CancelResult, cancel

SIGNAL = BoundaryKind.SIGNAL
MINUTE = timedelta(minutes=1)
both_orders = pytest.mark.parametrize("order", ["one first", "other first"])

Op = Callable[[Tx], Any]


def race(store: Store, order: str, one: Op, other: Op, *, blocks: bool = True) -> tuple[Any, Any]:
    """Let both happen at once, committed in the given order; answer what each said.

    `blocks`: whether the second waits for the first; a page of maintenance passes it by.
    """
    first, second = (one, other) if order == "one first" else (other, one)
    if store.kind == "sqlite":
        answers = store.run(first), store.run(second)
    else:
        with Rival(store) as early, Rival(store) as late:
            before = early.call(first)
            under_way = late.start(second)
            if blocks:
                late.wait_until_blocked()
                early.commit()
                answers = before, under_way.result(30)
            else:
                answers = before, under_way.result(30)
                early.commit()
            late.commit()
    return answers if order == "one first" else answers[::-1]


def sending(run_id: RunId, value: str = '"go"', *, name: str = "word") -> Op:
    return partial(lambda tx, **how: deliver(tx, run_id, SIGNAL, name, value, **how)[0], key=None)


def settling(called: Called) -> Op:
    return lambda tx: settle(tx, [called.entry], reach=reach).written.get(called.claimed.id)


def wait_for_word(ctx: Context) -> Any:
    return ctx.wait_for_signal("word", MINUTE)


def word_or_late(ctx: Context) -> Any:
    try:
        return ctx.wait_for_signal("word", MINUTE)
    except WaitTimeoutError:
        return "late"


# -- what the issue names ------------------------------------------------------------------------


@both_orders
def test_a_signal_against_the_wait(store: Store, order: str) -> None:
    """It finds the run waiting, or the run finds it: it is never lost between the two."""
    run_id = put(store)
    reaching = call(store, run_id, wait_for_word)

    sent, state = race(store, order, sending(run_id), settling(reaching))

    if order == "one first":
        assert (sent, state) == (DeliveryResult.KEPT, RunState.READY)
    else:
        assert (sent, state) == (DeliveryResult.DELIVERED, RunState.WAITING)
    assert state_of(store, run_id) is RunState.READY
    assert call(store, run_id, wait_for_word).value == '"go"'


@both_orders
def test_a_signal_against_the_time_out(store: Store, clock: ManualClock, order: str) -> None:
    """Both find the time over; the handler gets what was written first, in each activation."""
    run_id = a_run_at(store, word_or_late)
    clock.advance(MINUTE)

    # Maintenance passes by a run that somebody holds; who sends waits for maintenance.
    sent, _ = race(
        store, order, sending(run_id), lambda tx: promote(tx), blocks=order == "other first"
    )
    promoted(store)

    won = order == "one first"
    assert sent is (DeliveryResult.DELIVERED if won else DeliveryResult.ALREADY_SETTLED)
    expected = '"go"' if won else '"late"'
    again = call(store, run_id, word_or_late)
    assert again.value == expected
    assert delivered(store, run_id) == [
        ("word", "value", '"go"') if won else ("word", "timed_out", None)
    ]


@both_orders
def test_a_cancel_against_a_delivery(store: Store, order: str) -> None:
    """Cancelled it is in any case; a delivery that came behind is told."""
    run_id = a_run_at(store, wait_for_word)

    def cancelling(tx: Tx) -> CancelResult:
        return cancel(tx, run_id, by="op", why="", request_id="r1")[0]

    cancelled, sent = race(store, order, cancelling, sending(run_id))

    assert cancelled is CancelResult.CANCELLED
    won = order == "other first"
    assert sent is (DeliveryResult.DELIVERED if won else DeliveryResult.RUN_FINISHED)
    assert state_of(store, run_id) is RunState.CANCELLED
    assert len(delivered(store, run_id)) == won


@both_orders
def test_two_deliveries(store: Store, order: str) -> None:
    run_id = a_run_at(store, wait_for_word)

    one, other = race(store, order, sending(run_id, '"one"'), sending(run_id, '"other"'))

    won = order == "one first"
    assert one is (DeliveryResult.DELIVERED if won else DeliveryResult.ALREADY_SETTLED)
    assert other is (DeliveryResult.ALREADY_SETTLED if won else DeliveryResult.DELIVERED)
    assert call(store, run_id, wait_for_word).value == ('"one"' if won else '"other"')


@both_orders
def test_a_delivery_against_the_last_settle(store: Store, order: str) -> None:
    """A value that nobody asked for changes no end; one that comes behind the end is told."""
    run_id = put(store)
    ending = call(store, run_id, lambda ctx: "done")

    sent, state = race(store, order, sending(run_id), settling(ending))

    assert state is RunState.SUCCEEDED
    won = order == "one first"
    assert sent is (DeliveryResult.KEPT if won else DeliveryResult.RUN_FINISHED)
    assert seen(store, run_id).result == '"done"'


@both_orders
def test_a_delivery_against_a_retry(store: Store, order: str) -> None:
    """The attempt is spent all the same, and the value is there for the next."""
    run_id = put(store)

    def fails_first(ctx: Context) -> Any:
        if ctx.attempt == 1:
            raise ValueError("not yet")
        return wait_for_word(ctx)

    failing = call(store, run_id, fails_first)

    sent, state = race(store, order, sending(run_id), settling(failing))

    assert (sent, state) == (DeliveryResult.KEPT, RunState.SCHEDULED)
    assert store.manual_clock is not None
    store.manual_clock.advance(MINUTE)
    promoted(store)
    again = call(store, run_id, fails_first)
    assert (again.claimed.attempt, again.value) == (2, '"go"')


@both_orders
def test_the_completion_of_a_token_against_a_link_to_it(store: Store, order: str) -> None:
    """Who links to a settled token goes on at once; who has linked is resumed by the pass."""
    store.run(create_token, "ref", timeout_ms=None)
    run_id = put(store)

    def wait_for_token(ctx: Context) -> Any:
        return ctx.wait_for_token("paid", "ref")

    reaching = call(store, run_id, wait_for_token)

    result, state = race(
        store, order, lambda tx: complete_token(tx, "ref", '"yes"', key=None), settling(reaching)
    )

    assert result is DeliveryResult.DELIVERED
    assert state is (RunState.READY if order == "one first" else RunState.WAITING)
    freed(store)
    assert state_of(store, run_id) is RunState.READY
    assert call(store, run_id, wait_for_token).value == '"yes"'
    assert complete(store, "ref", '"no"') is DeliveryResult.ALREADY_SETTLED


# -- choices -------------------------------------------------------------------------------------


def first_of_two(ctx: Context) -> Any:
    """Wait for one of two, and then for the one that came second."""
    first = ctx.wait_any({"left": waits.signal(), "right": waits.signal()})
    other = "right" if first.name == "left" else "left"
    try:
        second = ctx.wait_for_signal(other)
    except WaitConflictError:
        second = "closed"
    return [first.name, first.value, second]


@both_orders
def test_a_signal_against_the_choice_that_closes_it(store: Store, order: str) -> None:
    """It is stored or closed, and each activation says the same of it, the one that chose too."""
    run_id = a_run_at(store, first_of_two)
    send(store, run_id, '"l"', name="left")
    answers: list[DeliveryResult] = []

    def meanwhile(asked: Record) -> None:
        if asked.closes and order == "one first":
            answers.append(send(store, run_id, '"r"', name="right")[0])

    choosing = call(store, run_id, first_of_two, before=meanwhile)
    if order == "other first":
        answers.append(send(store, run_id, '"r"', name="right")[0])

    won = order == "one first"
    assert answers == [DeliveryResult.KEPT if won else DeliveryResult.ALREADY_SETTLED]
    expected = '["left","l","r"]' if won else '["left","l","closed"]'
    if not won:
        assert choosing.value == expected
    assert store.manual_clock is not None
    store.manual_clock.advance(30_001)  # its worker died

    recovered(store)
    store.manual_clock.advance(MINUTE)
    promoted(store)
    assert call(store, run_id, first_of_two).value == expected
    assert choosing.value == expected


def test_a_timer_that_was_chosen_stays_so_when_the_clock_is_set_back(
    store: Store, clock: ManualClock
) -> None:
    """The choice is stored; what the clock says afterwards decides nothing."""

    def word_or_minute(ctx: Context) -> Any:
        first = ctx.wait_any({"word": waits.signal(), "minute": waits.timer(MINUTE)})
        ctx.wait_for_signal("more")
        return first.name

    run_id = a_run_at(store, word_or_minute)
    clock.advance(MINUTE)
    promoted(store)
    assert finish(store, call(store, run_id, word_or_minute)) is RunState.WAITING

    clock.advance(-MINUTE)
    send(store, run_id, name="more")

    assert call(store, run_id, word_or_minute).value == '"minute"'


def test_who_joins_a_choice_knows_its_losers_as_soon_as_the_winner() -> None:
    """A task that would wait for a closed one would wait for ever: nothing wakes it."""
    run = FakeRun()
    run.deliver(SIGNAL, "left", "l")
    core = run.activate()
    ctx = AsyncContext(core)
    run.hold = True

    async def choose() -> waits.First:
        return await ctx.wait_any({"left": waits.signal(), "right": waits.signal()})

    async def join() -> str:
        await choose()
        with pytest.raises(WaitConflictError):
            await ctx.wait_for_signal("right")
        return "closed"

    async def handler() -> str:
        tasks = asyncio.create_task(choose()), asyncio.create_task(join())
        for _ in range(10):
            await asyncio.sleep(0)
            while run.held:
                run.held.pop(0)()
        first, told = await tasks[0], await tasks[1]
        assert first == ("left", "l")
        return told

    assert asyncio.run(handler()) == "closed"
    assert core.suspension == ()
