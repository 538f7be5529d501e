"""Waits: they end the activation until they are settled, and replay what settled them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from typing import Any

import pytest

from tests.handlers.durable import START, World
from workhorse.domain.boundaries import BoundaryKind, DeliveryState
from workhorse.domain.missing import MISSING
from workhorse.domain.runs import Reason
from workhorse.errors import (
    InvalidInstantError,
    InvalidNameError,
    TokenNotFoundError,
    UnstorableValueError,
    ValueTooLargeError,
    WaitConflictError,
    WaitTimeoutError,
)
from workhorse.handlers.failures import reason_for
from workhorse.handlers.signals import Suspended

SIGNAL, HUMAN, TOKEN, TIMER = (
    BoundaryKind.SIGNAL,
    BoundaryKind.HUMAN,
    BoundaryKind.TOKEN,
    BoundaryKind.TIMER,
)
HOUR = timedelta(hours=1)

# -- timers --------------------------------------------------------------------------------------


def test_a_sleep_suspends_until_its_time_and_then_returns(world: World) -> None:
    ctx = world.activate()
    world.suspends(ctx, lambda: ctx.sleep("rest", HOUR))
    [wait] = ctx.core.suspension
    assert (wait.kind, wait.name) == (TIMER, "rest")
    assert wait.new is not None
    assert wait.new.delay_ms == 3_600_000
    assert world.run.records == [], "the settle writes it"
    assert world.run.suspended == 1

    early = world.activate()
    world.suspends(early, lambda: early.sleep("rest", HOUR))
    assert [wait.new for wait in early.core.suspension] == [None]

    world.run.now += HOUR
    assert world.activate().sleep("rest", HOUR) is None


def test_a_relative_sleep_keeps_its_first_target(world: World) -> None:
    ctx = world.activate()
    world.suspends(ctx, lambda: ctx.sleep("rest", HOUR))
    world.run.now += HOUR

    world.activate().sleep("rest", timedelta(days=7))

    assert world.run.boundaries["rest"].wake_at == START + HOUR


def test_milliseconds_may_be_given_instead(world: World) -> None:
    ctx = world.activate()
    world.suspends(ctx, lambda: ctx.sleep("rest", duration_ms=1_500))
    assert world.run.boundaries["rest"].wake_at == START + timedelta(seconds=1.5)


def test_a_sleep_of_zero_is_stored_and_keeps_the_lease(world: World) -> None:
    ctx = world.activate()
    ctx.sleep("none", timedelta(0))
    ctx.sleep("none", timedelta(0))
    assert ctx.core.suspension == ()
    assert ctx.core.new_boundaries == 1
    assert world.run.boundaries["none"].kind is TIMER


def test_a_sleep_until_the_past_is_stored_and_keeps_the_lease(world: World) -> None:
    """The database's clock decides, not the host's: that says another year."""
    ctx = world.activate()
    ctx.sleep_until("new year", START)
    ctx.sleep_until("year one", datetime(1, 1, 1, tzinfo=UTC))
    assert ctx.core.suspension == ()
    assert set(world.run.boundaries) == {"new year", "year one"}
    world.activate().sleep_until("new year", START)


def test_a_sleep_until_the_future_suspends(world: World) -> None:
    wake_at = START + timedelta(microseconds=1)
    ctx = world.activate()
    world.suspends(ctx, lambda: ctx.sleep_until("soon", wake_at))
    assert [(wait.name, wait.new) for wait in ctx.core.suspension] == [("soon", None)]
    assert world.run.boundaries["soon"].wake_at == wake_at

    world.run.now = wake_at
    world.activate().sleep_until("soon", wake_at)


def test_an_instant_in_another_zone_is_the_same_instant(world: World) -> None:
    india = timezone(timedelta(hours=5, minutes=30))
    world.activate().sleep_until("a", START)
    world.activate().sleep_until("a", START.astimezone(india))


@pytest.mark.parametrize("moved", [timedelta(microseconds=1), -HOUR])
def test_an_absolute_target_must_not_change(world: World, moved: timedelta) -> None:
    world.activate().sleep_until("a", START)
    with pytest.raises(WaitConflictError, match="'a' waits for another time") as raised:
        world.activate().sleep_until("a", START + moved)
    assert reason_for(None, raised.value) is Reason.NOT_RETRYABLE


def test_a_relative_and_an_absolute_sleep_share_no_name(world: World) -> None:
    world.activate().sleep("relative", timedelta(0))
    with pytest.raises(WaitConflictError):
        world.activate().sleep_until("relative", START)
    world.activate().sleep_until("absolute", START)
    with pytest.raises(WaitConflictError):
        world.activate().sleep("absolute", HOUR)


YEAR = timedelta(days=365)


@pytest.mark.parametrize(
    "duration", [-HOUR, YEAR + timedelta(microseconds=1), timedelta.max, 5, float("nan"), "1h"]
)
def test_case_9_a_duration_that_is_none_is_refused_at_the_call(world: World, duration: Any) -> None:
    with pytest.raises(InvalidInstantError, match="'rest'"):
        world.activate().sleep("rest", duration)
    assert world.run.records == []


@pytest.mark.parametrize("millis", [-1, 10**12, 10**30, 1.5, float("nan"), True, "5"])
def test_case_9_milliseconds_that_are_none_are_refused_at_the_call(
    world: World, millis: Any
) -> None:
    with pytest.raises(InvalidInstantError, match="'rest'"):
        world.activate().sleep("rest", duration_ms=millis)


def test_a_sleep_takes_one_duration(world: World) -> None:
    with pytest.raises(InvalidInstantError, match="one of them"):
        world.activate().sleep("rest")
    with pytest.raises(InvalidInstantError, match="one of them"):
        world.activate().sleep("rest", HOUR, duration_ms=5)
    with pytest.raises(InvalidNameError, match="name of a boundary must be text; got timedelta"):
        world.activate().sleep(HOUR)


@pytest.mark.parametrize(
    "wake_at",
    [
        datetime(2026, 1, 1),  # noqa: DTZ001 - what is refused
        datetime.max,  # noqa: DTZ901 - what is refused
        datetime.max.replace(tzinfo=UTC),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=5))),
        START + YEAR + timedelta(microseconds=1),
        "2026-01-01T00:00:00Z",
        1.0,
        None,
    ],
)
def test_case_9_an_instant_that_is_none_is_refused_at_the_call(world: World, wake_at: Any) -> None:
    with pytest.raises(InvalidInstantError, match="wake_at of 'rest'"):
        world.activate().sleep_until("rest", wake_at)
    assert world.run.records == []


def test_a_year_ahead_is_the_farthest(world: World) -> None:
    ctx = world.activate()
    world.suspends(ctx, lambda: ctx.sleep("a", YEAR))
    ctx = world.activate()
    world.suspends(ctx, lambda: ctx.sleep_until("b", START + YEAR))


# -- signals and decisions -----------------------------------------------------------------------

CALLS = [("wait_for_signal", SIGNAL), ("wait_for_human", HUMAN)]


@pytest.mark.parametrize(("call", "kind"), CALLS)
def test_a_wait_suspends_until_its_value_comes(world: World, call: str, kind: BoundaryKind) -> None:
    ctx = world.activate()
    world.suspends(ctx, lambda: getattr(ctx, call)("paid"))
    assert [(wait.kind, wait.name) for wait in ctx.core.suspension] == [(kind, "paid")]

    world.run.deliver(kind, "paid", {"cents": 5})

    ctx = world.activate()
    first = getattr(ctx, call)("paid")
    first["cents"] = 6
    assert getattr(ctx, call)("paid") == {"cents": 5}, "a fresh object at each call"
    assert world.run.records == []


@pytest.mark.parametrize(("call", "kind"), CALLS)
def test_a_value_that_came_before_its_wait_is_there_at_once(
    world: World, call: str, kind: BoundaryKind
) -> None:
    world.run.deliver(kind, "paid", 5)
    ctx = world.activate()

    assert getattr(ctx, call)("paid") == 5
    assert getattr(ctx, call)("paid") == 5

    assert [record.boundary.kind for record in world.run.records] == [kind], "it is read now"
    assert ctx.core.suspension == ()


def test_a_null_that_was_sent_is_a_value(world: World) -> None:
    world.run.deliver(SIGNAL, "paid", None)
    assert world.activate().wait_for_signal("paid", default=7) is None


@pytest.mark.parametrize(("call", "kind"), CALLS)
def test_a_time_out_raises_or_gives_the_default_in_each_activation(
    world: World, call: str, kind: BoundaryKind
) -> None:
    ctx = world.activate()
    world.suspends(ctx, lambda: getattr(ctx, call)("paid", timeout=HOUR))
    assert world.run.boundaries["paid"].wake_at == START + HOUR
    world.run.time_out(kind, "paid")

    for _ in range(2):
        ctx = world.activate()
        with pytest.raises(WaitTimeoutError, match=f"{kind.value} 'paid' did not come") as raised:
            getattr(ctx, call)("paid", timeout=HOUR)
        assert isinstance(raised.value, TimeoutError)
        assert getattr(ctx, call)("paid", timeout=HOUR, default=None) is None
        assert getattr(ctx, call)("paid", timeout=HOUR, default=[1]) == [1]
    assert reason_for(None, raised.value) is Reason.NOT_RETRYABLE


def test_a_time_that_has_come_but_is_not_recorded_is_no_time_out(world: World) -> None:
    """What comes before the time-out is recorded wins; promotion records it."""
    ctx = world.activate()
    world.suspends(ctx, lambda: ctx.wait_for_signal("paid", timeout=HOUR))
    world.run.now += 2 * HOUR

    ctx = world.activate()
    world.suspends(ctx, lambda: ctx.wait_for_signal("paid", timeout=HOUR))
    world.run.deliver(SIGNAL, "paid", "late")

    assert world.activate().wait_for_signal("paid", timeout=HOUR) == "late"


def test_a_changed_time_out_keeps_the_first_target(world: World) -> None:
    ctx = world.activate()
    world.suspends(ctx, lambda: ctx.wait_for_signal("paid", timeout=HOUR))
    ctx = world.activate()
    world.suspends(ctx, lambda: ctx.wait_for_signal("paid", timeout=2 * HOUR))
    assert [wait.new for wait in ctx.core.suspension] == [None]


@pytest.mark.parametrize("timeout", [-HOUR, timedelta.max, 5, float("nan")])
def test_case_9_a_time_out_that_is_none_is_refused_at_the_call(world: World, timeout: Any) -> None:
    for call in ("wait_for_signal", "wait_for_human", "token"):
        with pytest.raises(InvalidInstantError, match="'paid'"):
            getattr(world.activate(), call)("paid", timeout=timeout)


def test_the_context_of_a_human_wait_is_stored_and_the_first_stands(world: World) -> None:
    ctx = world.activate()
    world.suspends(ctx, lambda: ctx.wait_for_human("review", {"order": 1}))
    assert json.loads(world.run.boundaries["review"].detail or "") == {"order": 1}

    ctx = world.activate()
    world.suspends(ctx, lambda: ctx.wait_for_human("review", {"order": 2}))
    assert [wait.new for wait in ctx.core.suspension] == [None]


def test_a_context_that_cannot_be_stored_is_refused_at_the_call(world: World) -> None:
    ctx = world.activate()
    with pytest.raises(UnstorableValueError, match="human wait 'review'"):
        ctx.wait_for_human("review", {"order": {1}})
    with pytest.raises(ValueTooLargeError, match="human wait 'review'") as raised:
        ctx.wait_for_human("review", "x" * (64 * 1024 - 1))
    assert (raised.value.size, raised.value.cap) == (64 * 1024 + 1, 64 * 1024)
    assert ctx.core.suspension == ()


@pytest.mark.parametrize("call", ["sleep", "wait_for_human", "token", "child", "wait_for_signal"])
def test_a_wait_never_takes_the_name_of_another_kind(world: World, call: str) -> None:
    world.activate().checkpoint("a", lambda: 1)
    arguments = {"sleep": [HOUR], "child": [a_task()]}.get(call, [])
    with pytest.raises(WaitConflictError, match="'a' is a checkpoint") as raised:
        getattr(world.activate(), call)("a", *arguments)
    assert reason_for(None, raised.value) is Reason.NOT_RETRYABLE


def test_two_kinds_of_wait_share_no_name_in_one_activation_either(world: World) -> None:
    ctx = world.activate()
    with pytest.raises(Suspended):
        ctx.wait_for_signal("a")
    with pytest.raises(WaitConflictError, match="'a' is a signal"):
        ctx.wait_for_human("a")


def test_a_delivery_that_was_left_out_of_the_claim_is_read_once(world: World) -> None:
    ctx = world.activate()
    world.suspends(ctx, lambda: ctx.wait_for_signal("paid"))
    world.run.deliver(SIGNAL, "paid", [1, 2])
    world.run.left_out = {"paid"}

    ctx = world.activate()
    assert ctx.wait_for_signal("paid") == [1, 2]
    assert ctx.wait_for_signal("paid") == [1, 2]
    assert [(read.name, read.kind) for read in world.run.reads] == [("paid", SIGNAL)]


# -- tokens --------------------------------------------------------------------------------------


def test_a_token_is_made_once(world: World) -> None:
    ref = world.activate().token("callback", timeout=HOUR)
    again = world.activate().token("callback", timeout=2 * HOUR)

    assert ref == again
    assert len(ref) >= 32
    with pytest.raises(InvalidInstantError, match="timeout of token 'none' is zero"):
        world.activate().token("none", timeout=timedelta(0))
    [record] = world.run.records
    assert record.token is not None
    assert (record.token.ref, record.token.timeout_ms) == (ref, 3_600_000)
    assert record.boundary.kind is BoundaryKind.REFERENCE
    assert world.activate().token("other") != ref


def test_a_wait_for_a_token_names_it_until_it_is_completed(world: World) -> None:
    ctx = world.activate()
    ref = ctx.token("callback")
    for _ in range(2):
        ctx = world.activate()
        world.suspends(ctx, partial(ctx.wait_for_token, "answer", ref))
        assert [(wait.kind, wait.token) for wait in ctx.core.suspension] == [(TOKEN, ref)]
    assert world.run.boundaries["answer"].detail == json.dumps(ref)

    world.run.deliver(TOKEN, "answer", {"ok": True})
    assert world.activate().wait_for_token("answer", ref) == {"ok": True}


def test_a_tokens_time_out_is_its_waits(world: World) -> None:
    ctx = world.activate()
    world.suspends(ctx, lambda: ctx.wait_for_token("answer", "r" * 43))
    world.run.time_out(TOKEN, "answer")
    with pytest.raises(WaitTimeoutError, match="token 'answer'"):
        world.activate().wait_for_token("answer", "r" * 43)
    assert world.activate().wait_for_token("answer", "r" * 43, default=0) == 0


def test_a_token_that_is_not_in_the_store_ends_the_run(world: World) -> None:
    """Linking finds out; nobody could ever complete it."""
    ctx = world.activate()
    world.suspends(ctx, lambda: ctx.wait_for_token("answer", "wht_nobody_made_this_one"))
    world.run.deliver(TOKEN, "answer", None, state=DeliveryState.FAILED)

    with pytest.raises(TokenNotFoundError, match="'answer' is for a token that is not") as raised:
        world.activate().wait_for_token("answer", "wht_nobody_made_this_one", default=0)
    assert "nobody_made" not in str(raised.value)
    assert reason_for(None, raised.value) is Reason.NOT_RETRYABLE


def test_a_wait_for_another_token_conflicts_and_shows_none(world: World) -> None:
    ctx = world.activate()
    world.suspends(ctx, lambda: ctx.wait_for_token("answer", "first-reference"))
    with pytest.raises(WaitConflictError, match="another token") as raised:
        world.activate().wait_for_token("answer", "second-reference")
    assert "reference" not in str(raised.value)


@pytest.mark.parametrize("ref", ["", None, 5, "x" * 257, "a\0"])
def test_a_token_that_is_none_is_refused(world: World, ref: Any) -> None:
    with pytest.raises(InvalidNameError, match="the token of 'answer'"):
        world.activate().wait_for_token("answer", ref)


# -- looking -------------------------------------------------------------------------------------


def test_looking_begins_nothing(world: World) -> None:
    ctx = world.activate()
    assert ctx.get_checkpoint("a") is MISSING
    assert ctx.get_wait("a") is MISSING
    assert world.run.records == []
    assert ctx.core.reached == []


def test_missing_is_false_and_is_not_null(world: World) -> None:
    world.activate().checkpoint("a", lambda: None)
    assert world.activate().get_checkpoint("a") is None
    assert not MISSING
    assert repr(MISSING) == "MISSING"


def test_a_checkpoint_is_seen_also_where_its_value_was_left_out(world: World) -> None:
    ctx = world.activate()
    ctx.checkpoint("a", lambda: [1])
    assert ctx.get_checkpoint("a") == [1]
    world.run.left_out = {"a"}
    assert world.activate().get_checkpoint("a") == [1]
    assert world.activate().get_wait("a") is MISSING


def test_what_came_for_a_wait_is_seen_before_it_and_after(world: World) -> None:
    world.run.deliver(SIGNAL, "paid", 5)
    world.run.deliver(HUMAN, "review", 6)
    world.run.deliver(SIGNAL, "late", state=DeliveryState.TIMED_OUT)
    ctx = world.activate()
    assert (ctx.get_wait("paid"), ctx.get_wait("review")) == (5, 6)
    assert ctx.get_wait("late") is MISSING
    ctx.wait_for_signal("paid")
    assert world.activate().get_wait("paid") == 5
    assert world.activate().get_checkpoint("paid") is MISSING


def test_a_timer_is_seen_once_it_has_passed(world: World) -> None:
    ctx = world.activate()
    world.suspends(ctx, lambda: ctx.sleep("rest", HOUR))
    assert world.activate().get_wait("rest") is MISSING
    world.run.now += HOUR
    assert world.activate().get_wait("rest") is None


# -- progress ------------------------------------------------------------------------------------


def test_progress_is_said_and_is_no_boundary(world: World) -> None:
    ctx = world.activate()
    ctx.progress({"done": 1})
    ctx.progress({"done": 2})
    assert [json.loads(said.value) for said in world.run.said] == [{"done": 1}, {"done": 2}]
    assert world.run.said[0].lease == ctx.lease
    assert (world.run.records, ctx.core.reached) == ([], [])


def test_progress_that_cannot_be_stored_is_refused_at_the_call(world: World) -> None:
    with pytest.raises(UnstorableValueError, match="progress"):
        world.activate().progress({1})
    with pytest.raises(ValueTooLargeError, match="progress"):
        world.activate().progress("x" * 64 * 1024)
    assert world.run.said == []


def a_task() -> Any:
    from workhorse.handlers.registry import TaskRegistry

    return TaskRegistry().register(lambda: None, "a task")


def test_a_name_that_is_none_is_refused_before_a_message_holds_it(world: World) -> None:
    ctx: Any = world.activate()
    forged = "x\n2026-01-31T08:00:00.000Z INFO worker: forged"

    for call in (
        partial(ctx.sleep_until, forged, "noon"),
        partial(ctx.wait_for_signal, forged, timeout=5),
        partial(ctx.token, forged, timeout=5),
    ):
        with pytest.raises(InvalidNameError, match="cannot be printed") as refused:
            call()
        assert str(refused.value).isprintable()
