"""`wait_any`: one of several comes first, once and for all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from tests.handlers.durable import START, Calls, World
from workhorse import waits
from workhorse.domain.boundaries import BoundaryKind, DeliveryState
from workhorse.errors import (
    ChildFailedError,
    ConfigurationError,
    InvalidNameError,
    WaitConflictError,
    WaitTimeoutError,
)
from workhorse.handlers.registry import TaskRegistry

SIGNAL, CHILD = BoundaryKind.SIGNAL, BoundaryKind.CHILD
DAY = timedelta(days=1)
REGISTRY = TaskRegistry()
PAY = REGISTRY.register(lambda: 1, "pay")


def either() -> dict[str, waits.WaitFor]:
    return {"paid": waits.signal(), "reminder": waits.timer(DAY)}


def parked(world: World, choice: Mapping[str, waits.WaitFor], **options: Any) -> None:
    ctx = world.activate()
    world.suspends(ctx, lambda: ctx.wait_any(choice, **options))


def test_it_suspends_at_all_of_its_waits(world: World) -> None:
    ctx = world.activate()
    world.suspends(ctx, lambda: ctx.wait_any(either()))

    assert [(wait.kind, wait.name) for wait in ctx.core.suspension] == [
        (SIGNAL, "paid"),
        (BoundaryKind.TIMER, "reminder"),
    ]
    assert world.run.suspended == 1
    assert world.run.records == []


def test_the_signal_that_comes_wins_and_its_value_replays(world: World) -> None:
    parked(world, either())
    world.run.deliver(SIGNAL, "paid", {"cents": 5})

    first = world.activate().wait_any(either())
    world.run.now += 2 * DAY
    later = world.activate().wait_any(either())

    assert first == later == ("paid", {"cents": 5})
    assert (first.name, first.value) == first
    [record] = world.run.records
    assert (record.boundary.name, record.boundary.kind) == ("any:paid", BoundaryKind.ANY)
    assert json.loads(record.boundary.value or "") == {"winner": "paid"}
    assert json.loads(record.boundary.detail or "") == ["paid", "reminder"]
    assert record.closes == (), "nothing is delivered for a timer"


def test_the_timer_that_passes_wins_and_closes_the_signal(world: World) -> None:
    parked(world, either())
    world.run.now += DAY

    assert world.activate().wait_any(either()) == ("reminder", None)

    [record] = world.run.records
    assert record.closes == ((SIGNAL, "paid"),)
    world.run.deliver(SIGNAL, "paid", "too late")
    assert world.activate().wait_any(either()) == ("reminder", None)


def test_a_closed_wait_takes_no_value_any_more_also_in_the_same_activation(world: World) -> None:
    parked(world, either())
    world.run.now += DAY
    ctx = world.activate()
    ctx.wait_any(either())

    for each in (ctx, world.activate()):
        with pytest.raises(WaitConflictError, match="signal 'paid' was closed"):
            each.wait_for_signal("paid")


@pytest.mark.parametrize("again", [True, False])
def test_a_closed_wait_is_not_before_what_came(world: World, *, again: bool) -> None:
    """Whether it was closed in this activation or in an earlier one, from which it has a number."""
    world.run.deliver(SIGNAL, "a", 1)
    world.run.deliver(SIGNAL, "c", 2)
    ctx = world.activate()
    assert ctx.wait_any({"a": waits.signal(), "b": waits.signal()}, name="one") == ("a", 1)
    if again:
        closed = world.run.deliveries[SIGNAL, "b"]
        world.run.deliveries[SIGNAL, "b"] = replace(closed, inbox=2)
        ctx = world.activate()

    assert ctx.wait_any({"b": waits.signal(), "c": waits.signal()}, name="two") == ("c", 2)


def test_of_two_that_came_the_first_wins_in_each_activation(world: World) -> None:
    choice = {"b": waits.signal(), "a": waits.signal()}
    parked(world, choice)
    world.run.deliver(SIGNAL, "b", 1)
    world.run.deliver(SIGNAL, "a", 2)

    assert world.activate().wait_any(choice) == ("b", 1)
    assert world.activate().wait_any(dict(reversed(choice.items()))) == ("b", 1)
    assert world.run.records[0].closes == ()


def test_the_order_of_their_names_decides_nothing(world: World) -> None:
    choice = {"a": waits.signal(), "b": waits.signal()}
    parked(world, choice)
    world.run.deliver(SIGNAL, "b", 1)
    world.run.deliver(SIGNAL, "a", 2)
    assert world.activate().wait_any(choice) == ("b", 1)


def test_a_value_that_came_after_the_timers_time_still_counts(world: World) -> None:
    parked(world, either())
    world.run.now += 2 * DAY
    world.run.deliver(SIGNAL, "paid", 1)
    assert world.activate().wait_any(either()) == ("paid", 1)


def test_the_earlier_of_two_timers_wins(world: World) -> None:
    choice = {"long": waits.timer(2 * DAY), "short": waits.timer(DAY)}
    parked(world, choice)
    world.run.now += 3 * DAY
    assert world.activate().wait_any(choice) == ("short", None)


@pytest.mark.parametrize(("days", "winner"), [(1, "paid"), (3, "reminder")])
def test_between_a_time_out_and_a_timer_their_times_decide(
    world: World, days: int, winner: str
) -> None:
    """Also where nobody looked until both had come."""
    choice = {
        "paid": waits.signal(timeout=days * DAY, default="none"),
        "reminder": waits.timer(2 * DAY),
    }
    parked(world, choice)
    world.run.now += 4 * DAY
    world.run.deliver(SIGNAL, "paid", state=DeliveryState.TIMED_OUT)

    assert world.activate().wait_any(choice).name == winner


def test_a_timer_that_lost_is_no_open_wait_any_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor in the activation in which it has lost."""
    monkeypatch.setattr("workhorse.handlers.replay.limits.MAX_OPEN_WAITS", 2)

    def choose(ctx: Calls, at: int) -> object:
        choice = {f"paid {at}": waits.signal(), f"reminder {at}": waits.timer(DAY)}
        return ctx.wait_any(choice)

    for at in range(10):
        ctx = world.activate()
        for before in range(at):
            choose(ctx, before)
        world.suspends(ctx, partial(choose, ctx, at))
        world.run.deliver(SIGNAL, f"paid {at}")

    assert choose(world.activate(), 9) == ("paid 9", None)


def test_what_was_sent_before_wins_at_once_and_is_read(world: World) -> None:
    world.run.deliver(SIGNAL, "paid", 1)
    ctx = world.activate()
    assert ctx.wait_any({"paid": waits.signal(), "pay": waits.child(PAY)}) == ("paid", 1)
    assert [record.boundary.name for record in world.run.records] == ["paid", "any:paid"]
    assert all(record.child is None for record in world.run.records), "no child was started"
    assert ctx.core.suspension == ()


def test_a_timer_that_is_past_already_wins_at_once(world: World) -> None:
    for choice in (
        {"paid": waits.signal(), "now": waits.timer(timedelta(0))},
        {"due": waits.signal(), "then": waits.until(START)},
    ):
        ctx = world.activate()
        assert ctx.wait_any(choice).value is None
        assert ctx.core.suspension == ()


def test_two_timers_of_zero_do_not_stand_in_each_others_way(world: World) -> None:
    zero = timedelta(0)
    ctx = world.activate()
    ctx.sleep("a", zero)
    ctx.sleep("b", zero)
    choice = {"b": waits.timer(zero), "a": waits.timer(zero)}
    assert ctx.wait_any(choice) == world.activate().wait_any(choice) == ("a", None)


def test_a_child_can_be_one_of_them(world: World) -> None:
    choice = {"pay": waits.child(PAY), "stop": waits.signal()}
    parked(world, choice)
    [record] = world.run.records
    assert record.child is not None
    parked(world, choice)
    assert len(world.run.records) == 1

    world.run.deliver(CHILD, "pay", 7)
    assert world.activate().wait_any(choice) == ("pay", 7)
    assert world.run.records[-1].closes == ((SIGNAL, "stop"),)


def test_a_child_that_failed_first_raises_in_each_activation(world: World) -> None:
    choice = {"pay": waits.child(PAY), "stop": waits.signal()}
    parked(world, choice)
    world.run.deliver(CHILD, "pay", {"reason": "error"}, DeliveryState.FAILED)
    for _ in range(2):
        with pytest.raises(ChildFailedError):
            world.activate().wait_any(choice)
    assert json.loads(world.run.boundaries["any:pay"].value or "") == {"winner": "pay"}


def test_a_time_out_that_came_first_is_what_the_wait_alone_would_give(world: World) -> None:
    for spec, name in ((waits.signal(timeout=DAY), "a"), (waits.human(timeout=DAY), "b")):
        choice = {name: spec, f"{name} other": waits.signal()}
        parked(world, choice)
        world.run.time_out(spec.kind, name)
        for _ in range(2):
            with pytest.raises(WaitTimeoutError, match=f"'{name}'"):
                world.activate().wait_any(choice)

    other = {"c": waits.signal(timeout=DAY, default=0), "d": waits.token("r" * 43)}
    parked(world, other)
    world.run.time_out(SIGNAL, "c")
    assert world.activate().wait_any(other) == ("c", 0)


def test_a_decision_among_other_waits_conflicts(world: World) -> None:
    world.run.deliver(SIGNAL, "paid", 1)
    world.activate().wait_any(either(), name="first")
    with pytest.raises(WaitConflictError, match="'first' was decided among other waits"):
        world.activate().wait_any({"paid": waits.signal(), "no": waits.signal()}, name="first")
    with pytest.raises(WaitConflictError, match="'paid' is a signal"):
        world.activate().wait_any(
            {"paid": waits.human(), "reminder": waits.timer(DAY)}, name="first"
        )


def test_its_name_is_a_boundary_of_its_own(world: World) -> None:
    world.activate().checkpoint("any:paid", lambda: 1)
    with pytest.raises(WaitConflictError, match="'any:paid' is a checkpoint"):
        world.activate().wait_any(either())
    with pytest.raises(WaitConflictError, match="one of its own waits"):
        world.activate().wait_any(either(), name="paid")
    with pytest.raises(InvalidNameError, match="pass name="):
        world.activate().wait_any({"x" * 200: waits.signal()})


@pytest.mark.parametrize("choice", [{}, None, ["paid"], {"paid": 5}, {"paid": timedelta(1)}])
def test_what_is_no_choice_is_refused(world: World, choice: Any) -> None:
    with pytest.raises(ConfigurationError, match="wait"):
        world.activate().wait_any(choice)
    assert world.run.records == []


def test_the_names_of_its_waits_are_checked(world: World) -> None:
    with pytest.raises(InvalidNameError):
        world.activate().wait_any({"": waits.signal(), "a": waits.signal()})


def test_a_secret_or_a_payload_is_in_no_repr() -> None:
    shown = repr([waits.token("s3cret"), waits.human("s3cret"), waits.child(PAY, "s3cret")])
    assert "s3cret" not in shown
