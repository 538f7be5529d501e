"""Activations that end: suspended, told to stop, without a lease, or at a limit of their run."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.handlers.durable import START, Calls, World
from workhorse import waits
from workhorse.domain.boundaries import (
    MAX_BOUNDARIES,
    MAX_BOUNDARY_BYTES,
    MAX_OPEN_WAITS,
    Boundary,
    BoundaryKind,
    DeliveryState,
    History,
)
from workhorse.domain.missing import MISSING
from workhorse.domain.recording import RecordAnswer, Recorded
from workhorse.domain.runs import Reason
from workhorse.errors import (
    BoundaryLimitExceededError,
    ChildFailedError,
    LeaseLostError,
    WaitLimitExceededError,
)
from workhorse.handlers.failures import reason_for
from workhorse.handlers.recording import Pending
from workhorse.handlers.registry import TaskRegistry
from workhorse.handlers.signals import Stopped, StopReason, Suspended

HOUR = timedelta(hours=1)
TASK = TaskRegistry().register(lambda: None, "a task")


def never() -> None:
    pytest.fail("it ran")


NEW: list[tuple[str, Callable[[Calls], object]]] = [
    ("checkpoint", lambda ctx: ctx.checkpoint("new", never)),
    ("transaction", lambda ctx: ctx.transaction("new", lambda _: never())),
    ("patched", lambda ctx: ctx.patched("new")),
    ("token", lambda ctx: ctx.token("new")),
    ("child", lambda ctx: ctx.child("new", TASK)),
    ("children", lambda ctx: ctx.children("new", TASK, [None])),
    ("sleep", lambda ctx: ctx.sleep("new", HOUR)),
    ("sleep of zero", lambda ctx: ctx.sleep("new", timedelta(0))),
    ("sleep_until", lambda ctx: ctx.sleep_until("new", START + HOUR)),
    ("wait_for_signal", lambda ctx: ctx.wait_for_signal("new")),
    ("wait_for_human", lambda ctx: ctx.wait_for_human("new")),
    ("wait_for_token", lambda ctx: ctx.wait_for_token("new", "r" * 43)),
    ("wait_any", lambda ctx: ctx.wait_any({"new": waits.signal()})),
]
new = pytest.mark.parametrize("call", [call for _, call in NEW], ids=[name for name, _ in NEW])


def with_a_past(world: World) -> Calls:
    """An activation whose run has passed a checkpoint, a timer and a signal."""
    world.run.deliver(BoundaryKind.SIGNAL, "paid", 5)
    ctx = world.activate()
    ctx.checkpoint("stored", lambda: 1)
    ctx.sleep("passed", timedelta(0))
    ctx.wait_for_signal("paid")
    world.run.records.clear()
    return world.activate()


def answers_what_is_stored(ctx: Calls) -> None:
    assert ctx.checkpoint("stored", lambda: 2) == 1
    assert ctx.transaction("stored", lambda _: 2) == 1
    assert ctx.sleep("passed", HOUR) is None
    assert ctx.wait_for_signal("paid") == 5


# -- told to stop --------------------------------------------------------------------------------


@new
@pytest.mark.parametrize("signal", ["stopping", "cancelled"])
def test_once_told_to_stop_nothing_new_begins_and_what_is_stored_answers(
    world: World, call: Callable[[Calls], object], signal: str
) -> None:
    ctx = with_a_past(world)
    getattr(ctx.core, signal).set(StopReason.SHUTDOWN)

    answers_what_is_stored(ctx)
    with pytest.raises(Stopped) as raised:
        call(ctx)

    assert raised.value.reason is StopReason.SHUTDOWN
    assert (world.run.records, ctx.core.suspension, world.run.suspended) == ([], (), 0)


def test_what_an_operation_has_returned_is_stored_also_when_told_to_stop_meanwhile(
    world: World,
) -> None:
    ctx = world.activate()
    assert ctx.checkpoint("a", lambda: ctx.core.stopping.set(StopReason.SHUTDOWN)) is True
    assert world.run.boundaries["a"].value == "true"


def test_a_lost_lease_ends_every_call_also_those_that_are_stored(world: World) -> None:
    ctx = with_a_past(world)
    ctx.core.cancelled.set(StopReason.LEASE_LOST)
    for call in (
        lambda: ctx.checkpoint("stored", lambda: 2),
        lambda: ctx.checkpoint("new", lambda: 2),
        lambda: ctx.sleep("passed", HOUR),
        lambda: ctx.wait_for_signal("paid"),
        lambda: ctx.wait_for_signal("new"),
        lambda: ctx.progress(1),
        lambda: ctx.get_checkpoint("stored"),
        lambda: ctx.get_wait("paid"),
    ):
        with pytest.raises(LeaseLostError):
            call()  # type: ignore[no-untyped-call]
    assert (world.run.records, world.run.said) == ([], [])


def test_a_write_whose_lease_is_gone_raises_and_stores_nothing(world: World) -> None:
    ctx = world.activate()
    world.run.lose()
    with pytest.raises(LeaseLostError):
        ctx.checkpoint("a", lambda: 1)
    assert (ctx.core.new_boundaries, world.run.boundaries) == (0, {})


@pytest.mark.parametrize(
    "name", ["token", "patched", "sleep of zero", "sleep_until", "child", "children", "wait_any"]
)
def test_a_write_that_is_answered_as_lost_raises_too(world: World, name: str) -> None:
    world.run.deliver(BoundaryKind.SIGNAL, "new", 5)
    ctx = world.activate()
    pending: Pending[RecordAnswer] = Pending()
    pending.answer(RecordAnswer(Recorded.LOST))
    world.run.record = lambda record: pending  # type: ignore[method-assign]
    with pytest.raises(LeaseLostError, match="'new' was not stored"):
        dict(NEW)[name](ctx)
    with pytest.raises(LeaseLostError, match="'a' was not stored"):
        ctx.checkpoint("a", lambda: 1)
    assert ctx.get_checkpoint("a") is MISSING
    assert (ctx.core.new_boundaries, ctx.core.suspension) == (0, ())


# -- ended ---------------------------------------------------------------------------------------


@new
@pytest.mark.parametrize("used", [False, True], ids=["at first", "after another"])
def test_once_the_handler_has_returned_nothing_new_begins(
    world: World, call: Callable[[Calls], object], *, used: bool
) -> None:
    """A thread that it has left behind still holds the context."""
    ctx = world.activate()
    if used:
        ctx.checkpoint("a", lambda: 1)
    stored = dict(world.run.boundaries)

    ctx.core.end()

    for late in (call, lambda ctx: ctx.progress(1)):
        with pytest.raises(LeaseLostError, match="activation has ended.* the threads and tasks"):
            late(ctx)
    assert (world.run.boundaries, world.run.said, ctx.core.suspension) == (stored, [], ())
    assert not used or ctx.get_checkpoint("a") == 1


# -- suspended -----------------------------------------------------------------------------------


@new
def test_once_suspended_nothing_new_begins_and_what_is_stored_answers(
    world: World, call: Callable[[Calls], object]
) -> None:
    """A handler that swallows its suspension gets it again, and is suspended all the same."""
    ctx = with_a_past(world)
    with pytest.raises(Suspended):
        ctx.sleep("rest", HOUR)

    answers_what_is_stored(ctx)
    with pytest.raises(Suspended):
        call(ctx)

    assert world.run.records == []
    assert "rest" in [wait.name for wait in ctx.core.suspension]
    assert world.run.suspended == 1, "the worker is told once"


def test_a_suspension_passes_except_exception(world: World) -> None:
    ctx = world.activate()

    def handler() -> None:
        try:
            ctx.sleep("rest", HOUR)
        except Exception as error:  # noqa: BLE001 - what handlers do
            pytest.fail(f"swallowed {error!r}")

    with pytest.raises(Suspended):
        handler()


def test_a_wait_that_is_reached_twice_is_one(world: World) -> None:
    ctx = world.activate()
    for _ in range(2):
        with pytest.raises(Suspended):
            ctx.sleep("rest", HOUR)
    with pytest.raises(Suspended):
        ctx.wait_for_signal("paid")
    assert [(wait.name, wait.new.seq if wait.new else None) for wait in ctx.core.suspension] == [
        ("rest", 1),
        ("paid", 2),
    ]


def test_the_boundaries_that_were_asked_for_are_kept_in_order(world: World) -> None:
    ctx = with_a_past(world)
    answers_what_is_stored(ctx)
    with pytest.raises(Suspended):
        ctx.wait_for_signal("later")
    assert ctx.core.reached == ["stored", "passed", "paid", "later"]


# -- limits --------------------------------------------------------------------------------------


@new
def test_a_run_has_at_most_10000_boundaries(world: World, call: Callable[[Calls], object]) -> None:
    world.run.more = History(count=MAX_BOUNDARIES)
    ctx = world.activate()
    with pytest.raises(BoundaryLimitExceededError, match="10,000") as raised:
        call(ctx)
    assert reason_for(None, raised.value) is Reason.NOT_RETRYABLE
    assert (world.run.records, ctx.core.suspension) == ([], ())


def test_the_last_boundary_fits(world: World) -> None:
    world.run.more = History(count=MAX_BOUNDARIES - 1)
    ctx = world.activate()
    assert ctx.checkpoint("last", lambda: 1) == 1
    with pytest.raises(BoundaryLimitExceededError):
        ctx.checkpoint("one more", lambda: 1)
    assert ctx.checkpoint("last", lambda: 2) == 1


def test_the_values_of_a_run_have_at_most_64_mib(world: World) -> None:
    world.run.more = History(bytes=MAX_BOUNDARY_BYTES - 10)
    ctx = world.activate()
    assert ctx.checkpoint("fits", lambda: "x" * 8) == "x" * 8
    for call in (
        lambda: ctx.checkpoint("more", lambda: 1),
        lambda: ctx.transaction("more", lambda _: 1),
        lambda: ctx.wait_for_human("more", 1),
    ):
        with pytest.raises(BoundaryLimitExceededError, match="67,108,864.*'more'"):
            call()  # type: ignore[no-untyped-call]


def test_bytes_of_a_transaction_count_too(world: World) -> None:
    world.run.more = History(bytes=MAX_BOUNDARY_BYTES - 10)
    ctx = world.activate()
    ctx.transaction("fits", lambda _: "x" * 8)
    with pytest.raises(BoundaryLimitExceededError):
        ctx.checkpoint("more", lambda: 1)


def test_a_transaction_that_is_carried_out_again_counts_once(world: World) -> None:
    world.run.more = History(bytes=MAX_BOUNDARY_BYTES - 10)
    world.run.repeats = 3
    ctx = world.activate()

    assert ctx.transaction("fits", lambda _: "x" * 8) == "x" * 8


def open_waits(world: World, count: int) -> None:
    for number in range(count):
        name = f"open {number}"
        world.run.boundaries[name] = Boundary(name=name, kind=BoundaryKind.SIGNAL, seq=number + 1)


@pytest.mark.parametrize("name", ["sleep", "sleep_until", "wait_for_signal", "child", "wait_any"])
def test_a_run_has_at_most_1000_open_waits(world: World, name: str) -> None:
    open_waits(world, MAX_OPEN_WAITS)
    ctx = world.activate()
    with pytest.raises(WaitLimitExceededError, match="1,000 open waits") as raised:
        dict(NEW)[name](ctx)
    assert reason_for(None, raised.value) is Reason.NOT_RETRYABLE
    assert ctx.core.suspension == ()
    assert ctx.checkpoint("a", lambda: 1) == 1, "it is no wait"
    ctx.sleep("none", timedelta(0))


def test_a_settled_wait_is_not_open(world: World) -> None:
    open_waits(world, MAX_OPEN_WAITS)
    world.run.deliver(BoundaryKind.SIGNAL, "open 7", 1)
    ctx = world.activate()
    with pytest.raises(Suspended):
        ctx.wait_for_signal("one")
    with pytest.raises(WaitLimitExceededError):
        ctx.wait_for_signal("two")


def test_what_passes_in_the_activation_is_not_open(world: World) -> None:
    open_waits(world, MAX_OPEN_WAITS - 1)
    ctx = world.activate()
    for number in range(3):
        ctx.sleep_until(f"past {number}", START)
    choice = {"open 3": waits.signal(), "now": waits.timer(timedelta(0))}
    assert ctx.wait_any(choice).name == "now"
    for name in ("one", "two"):
        with pytest.raises(Suspended):
            ctx.wait_for_signal(name)
    with pytest.raises(WaitLimitExceededError):
        ctx.wait_for_signal("three")


def test_children_are_open_waits_and_a_limit_helps(world: World) -> None:
    payloads: list[Any] = [None] * (MAX_OPEN_WAITS + 1)
    task = TaskRegistry().register(lambda payload: payload, "echo")
    with pytest.raises(WaitLimitExceededError):
        world.activate().children("all", task, payloads)

    world.run.boundaries.clear()
    ctx = world.activate()
    with pytest.raises(Suspended):
        ctx.children("all", task, payloads, max_parallel=MAX_OPEN_WAITS)


# -- patched -------------------------------------------------------------------------------------


def test_a_new_run_takes_the_new_branch_and_stays_there(world: World) -> None:
    assert world.activate().patched("fraud check") is True
    world.activate().checkpoint("later", lambda: 1)
    assert world.activate().patched("fraud check") is True
    assert world.run.boundaries["fraud check"].kind is BoundaryKind.PATCH


def test_a_run_that_has_been_beyond_keeps_the_old_branch(world: World) -> None:
    ctx = with_a_past(world)
    ctx.checkpoint("stored", lambda: 2)
    assert ctx.patched("fraud check") is False
    answers_what_is_stored(ctx)

    ctx = world.activate()
    answers_what_is_stored(ctx)
    assert ctx.patched("fraud check") is False, "it is decided once"


def test_a_run_that_sleeps_before_the_patch_takes_the_new_branch(world: World) -> None:
    ctx = with_a_past(world)
    answers_what_is_stored(ctx)
    assert ctx.patched("fraud check") is True


def test_what_a_replay_never_comes_to_is_nothing_beyond(world: World) -> None:
    """A boundary inside another's operation, and a stage that was taken out of the code."""
    ctx = world.activate()
    ctx.checkpoint("outer", lambda: ctx.context.checkpoint("inner", lambda: 1))
    ctx.checkpoint("taken out", lambda: 2)
    ctx.sleep("passed", timedelta(0))

    ctx = world.activate()
    ctx.checkpoint("outer", lambda: 1)
    ctx.sleep("passed", timedelta(0))
    assert ctx.patched("new") is True


def test_the_losers_of_a_choice_and_the_members_of_a_group_count_as_reached(world: World) -> None:
    task = TaskRegistry().register(lambda payload: payload, "echo")
    choice = {"paid": waits.signal(), "rest": waits.timer(HOUR)}
    ctx = world.activate()
    world.suspends(ctx, lambda: ctx.wait_any(choice))
    world.run.deliver(BoundaryKind.SIGNAL, "paid", 1)
    ctx = world.activate()
    ctx.wait_any(choice)
    world.suspends(ctx, lambda: ctx.children("all", task, [1, 2]))
    for member in ("all[0]", "all[1]"):
        world.run.deliver(BoundaryKind.CHILD, member, 1)

    ctx = world.activate()
    ctx.wait_any(choice)
    ctx.children("all", task, [1, 2])
    assert ctx.patched("new") is True


def test_the_members_of_a_group_that_failed_count_as_reached_too(world: World) -> None:
    task = TaskRegistry().register(lambda payload: payload, "echo")
    ctx = world.activate()
    world.suspends(ctx, lambda: ctx.children("all", task, [1, 2]))
    world.run.deliver(BoundaryKind.CHILD, "all[0]", {}, DeliveryState.FAILED)

    ctx = world.activate()
    with pytest.raises(ChildFailedError):
        ctx.children("all", task, [1, 2])
    assert ctx.patched("new") is True
