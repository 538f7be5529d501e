"""Checkpoints: the first value stands, what is stored answers, and what cannot be is refused."""

from __future__ import annotations

import asyncio
import functools
import json
from decimal import Decimal
from typing import Any

import pytest

from tests.handlers.durable import Calls, FakeRun, World
from tests.handlers.runs import a_claimed_run
from workhorse.domain.boundaries import Boundary, BoundaryKind
from workhorse.domain.runs import Reason
from workhorse.domain.values import fingerprint
from workhorse.errors import (
    CheckpointConflictError,
    ConfigurationError,
    InvalidNameError,
    UnstorableValueError,
    ValueTooLargeError,
)
from workhorse.handlers.context import ActivationCore, AsyncContext, Context
from workhorse.handlers.failures import reason_for


class Counted:
    """An operation that counts its calls."""

    def __init__(self, *results: object) -> None:
        self.calls = 0
        self._results = results

    def __call__(self) -> Any:
        result = self._results[min(self.calls, len(self._results) - 1)]
        self.calls += 1
        if isinstance(result, Exception):
            raise result
        return result


def test_an_operation_runs_once_and_its_value_answers_later(world: World) -> None:
    operation = Counted({"paid": True}, {"paid": False})

    first = world.activate().checkpoint("charge", operation)
    later = world.activate().checkpoint("charge", operation)

    assert first == later == {"paid": True}
    assert operation.calls == 1
    assert [record.boundary.name for record in world.run.records] == ["charge"]
    assert world.run.records[0].boundary.seq == 1
    assert world.run.records[0].lease == world.run.claimed.lease


def test_null_is_a_value(world: World) -> None:
    operation = Counted(None)
    assert world.activate().checkpoint("nothing", operation) is None
    assert world.activate().checkpoint("nothing", operation) is None
    assert operation.calls == 1


def test_each_call_returns_a_fresh_object_also_the_first(world: World) -> None:
    mine = {"items": [1]}
    ctx = world.activate()

    first = ctx.checkpoint("cart", lambda: mine)
    first["items"].append(2)
    again = ctx.checkpoint("cart", lambda: mine)

    assert first is not mine
    assert again == {"items": [1]}
    assert world.activate().checkpoint("cart", lambda: mine) == {"items": [1]}


def test_an_operation_that_fails_stores_nothing_and_runs_again(world: World) -> None:
    operation = Counted(ValueError("card"), "paid")
    ctx = world.activate()

    with pytest.raises(ValueError, match="card"):
        ctx.checkpoint("charge", operation)
    assert world.run.records == []
    assert ctx.checkpoint("charge", operation) == "paid"
    assert ctx.core.new_boundaries == 1


def test_the_sequence_goes_on_from_what_is_stored(world: World) -> None:
    ctx = world.activate()
    ctx.checkpoint("a", lambda: 1)
    ctx.checkpoint("b", lambda: 2)
    world.activate().checkpoint("c", lambda: 3)

    assert [(each.name, each.seq) for each in world.run.boundaries.values()] == [
        ("a", 1),
        ("b", 2),
        ("c", 3),
    ]


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", 7, None])
def test_a_name_has_1_to_200_printable_characters(world: World, name: Any) -> None:
    operation = Counted(1)
    with pytest.raises(InvalidNameError):
        world.activate().checkpoint(name, operation)
    assert operation.calls == 0


def test_a_changed_input_conflicts_on_replay(world: World) -> None:
    world.activate().checkpoint("charge", lambda: 1, {"cents": 500, "to": "x"})
    assert world.run.records[0].boundary.fingerprint == fingerprint('{"to":"x","cents":500}')

    ctx = world.activate()
    assert ctx.checkpoint("charge", lambda: 2, input={"to": "x", "cents": 500}) == 1
    with pytest.raises(CheckpointConflictError, match="checkpoint 'charge'.*another input") as it:
        ctx.checkpoint("charge", lambda: 2, input={"cents": 501, "to": "x"})
    assert "cents" not in str(it.value)
    assert reason_for(None, it.value) is Reason.NOT_RETRYABLE


def test_an_input_of_null_is_an_input(world: World) -> None:
    world.activate().checkpoint("charge", lambda: 1, input=None)
    with pytest.raises(CheckpointConflictError):
        world.activate().checkpoint("charge", lambda: 1, input=0)


def test_an_input_that_is_new_in_the_code_is_not_compared(world: World) -> None:
    world.activate().checkpoint("charge", lambda: 1)
    assert world.activate().checkpoint("charge", lambda: 2, input=7) == 1
    assert world.activate().checkpoint("charge", lambda: 2) == 1


def test_the_kind_of_a_name_never_changes(world: World) -> None:
    ctx = world.activate()
    world.suspends(ctx, lambda: ctx.sleep("rest", duration_ms=1))
    operation = Counted(1)

    with pytest.raises(CheckpointConflictError, match="'rest' is a timer") as raised:
        world.activate().checkpoint("rest", operation)

    assert operation.calls == 0
    assert reason_for(None, raised.value) is Reason.NOT_RETRYABLE


def test_an_equal_value_that_stands_already_answers(world: World) -> None:
    """The row came from a write of another activation that the claim did not see."""
    ctx = world.activate()
    world.run.boundaries["a"] = Boundary(
        name="a", kind=BoundaryKind.CHECKPOINT, seq=1, value='{"b": 2, "a": 1}'
    )
    assert ctx.checkpoint("a", lambda: {"a": 1, "b": 2}) == {"a": 1, "b": 2}
    assert ctx.core.new_boundaries == 0


@pytest.mark.parametrize("standing", ["2", "1.0", "true", "[1]", '"1"'])
def test_another_value_that_stands_already_conflicts(world: World, standing: str) -> None:
    ctx = world.activate()
    world.run.boundaries["a"] = Boundary(
        name="a", kind=BoundaryKind.CHECKPOINT, seq=1, value=standing
    )
    with pytest.raises(CheckpointConflictError, match="already holds a different value"):
        ctx.checkpoint("a", lambda: 1)


def test_another_kind_that_stands_already_conflicts(world: World) -> None:
    ctx = world.activate()
    world.run.boundaries["a"] = Boundary(name="a", kind=BoundaryKind.SIGNAL, seq=1)
    with pytest.raises(CheckpointConflictError, match="'a' is a signal"):
        ctx.checkpoint("a", lambda: 1)


# -- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), Decimal(1), {1}, (1,), b"x", {1: 2}, "\0", "\ud800", object()],
)
def test_case_8_what_cannot_be_stored_is_refused_at_the_call(world: World, value: object) -> None:
    ctx = world.activate()
    with pytest.raises(UnstorableValueError, match="checkpoint 'loss'") as raised:
        ctx.checkpoint("loss", lambda: {"loss": [value]})
    assert raised.value.path.startswith("$.loss[0]")
    assert reason_for(None, raised.value) is Reason.NOT_RETRYABLE
    assert world.run.records == []
    assert ctx.checkpoint("loss", lambda: 0) == 0, "the name is still free"


def test_case_8_numbers_keep_their_value_and_type(world: World) -> None:
    for value in (2**70, 1.0, 1, True, -0.0, 1e300):
        name = f"n {value!r}"
        stored = world.activate().checkpoint(name, lambda value=value: value)
        assert (type(stored), repr(stored)) == (type(value), repr(value))


def test_case_7_a_value_over_the_cap_ends_the_run_and_names_the_step(world: World) -> None:
    at_the_cap = "x" * (1024 * 1024 - 2)
    assert world.activate().checkpoint("fits", lambda: at_the_cap) == at_the_cap

    with pytest.raises(ValueTooLargeError, match="checkpoint 'big'") as raised:
        world.activate().checkpoint("big", lambda: at_the_cap + "x")

    assert (raised.value.size, raised.value.cap) == (1024 * 1024 + 1, 1024 * 1024)
    assert reason_for(None, raised.value) is Reason.NOT_RETRYABLE
    assert "big" not in world.run.boundaries


def test_an_input_that_cannot_be_stored_is_refused_before_the_operation(world: World) -> None:
    operation = Counted(1)
    with pytest.raises(UnstorableValueError, match="input of checkpoint 'a'"):
        world.activate().checkpoint("a", operation, input={1})
    assert operation.calls == 0


def test_a_value_that_was_left_out_of_the_claim_is_read_once(world: World) -> None:
    world.activate().checkpoint("large", lambda: [1, 2])
    world.run.left_out = {"large"}
    ctx = world.activate()

    assert ctx.checkpoint("large", lambda: 0) == [1, 2]
    assert ctx.checkpoint("large", lambda: 0) == [1, 2]

    assert [(read.name, read.kind) for read in world.run.reads] == [("large", None)]


# -- operations ----------------------------------------------------------------------------------


class AsyncCall:
    async def __call__(self) -> int:
        return 1


async def fetch() -> int:
    return 1


@pytest.mark.parametrize("operation", [fetch, functools.partial(fetch), AsyncCall()])
def test_a_plain_context_refuses_a_coroutine_function_at_the_call(operation: Any) -> None:
    run = FakeRun()
    with pytest.raises(ConfigurationError, match="checkpoint 'a'.*coroutine function"):
        Context(run.activate()).checkpoint("a", operation)
    assert run.records == []


def not_awaited() -> object:
    return fetch()


def test_a_plain_context_closes_and_refuses_an_awaitable_that_was_returned() -> None:
    run = FakeRun()
    ctx = Context(run.activate())
    with pytest.raises(ConfigurationError, match="checkpoint 'a'.*returned a coroutine"):
        ctx.checkpoint("a", not_awaited)
    assert run.records == []
    assert ctx.checkpoint("a", lambda: 2) == 2


@pytest.mark.parametrize("operation", [fetch, functools.partial(fetch), AsyncCall(), lambda: 1])
def test_an_async_context_takes_plain_and_async_operations(operation: Any) -> None:
    async def handler() -> object:
        return await AsyncContext(FakeRun().activate()).checkpoint("a", operation)

    assert asyncio.run(handler()) == 1


def test_what_was_called_already_is_refused(world: World) -> None:
    """`checkpoint(name, fetch())` would run again in each activation."""
    with pytest.raises(ConfigurationError, match="pass the function itself"):
        world.activate().checkpoint("a", fetch())
    with pytest.raises(ConfigurationError, match="pass the function itself"):
        world.activate().checkpoint("a", 5)


def test_an_operation_may_use_other_boundaries(world: World) -> None:
    if world.runner is not None:

        async def outer() -> object:
            return [await ctx.context.checkpoint("inner", lambda: 1)]
    else:

        def outer() -> object:  # type: ignore[misc]
            return [ctx.checkpoint("inner", lambda: 1)]

    ctx = world.activate()
    assert ctx.checkpoint("outer", outer) == [1]
    assert list(world.run.boundaries) == ["inner", "outer"]


def test_an_operation_that_asks_for_itself_is_told_so(world: World) -> None:
    if world.runner is not None:

        async def outer() -> object:
            return await asyncio.create_task(ctx.context.checkpoint("a", lambda: 1))
    else:

        def outer() -> object:  # type: ignore[misc]
            return ctx.checkpoint("a", lambda: 1)

    ctx = world.activate()
    with pytest.raises(ConfigurationError, match="'a' asks for 'a' itself"):
        ctx.checkpoint("a", outer)


def test_a_stop_iteration_of_an_operation_does_not_end_the_call_quietly(world: World) -> None:
    with pytest.raises(RuntimeError):
        world.activate().checkpoint("a", lambda: next(iter(())))
    assert world.run.records == []


# -- transaction ---------------------------------------------------------------------------------


def test_a_transaction_hands_a_connection_over_and_stores_what_is_returned(world: World) -> None:
    seen: list[object] = []

    def book(connection: object) -> object:
        seen.append(connection)
        return {"row": 1}

    assert world.activate().transaction("book", book) == {"row": 1}
    assert world.activate().transaction("book", book) == {"row": 1}
    assert seen == ["connection"]
    assert json.loads(world.run.boundaries["book"].value or "") == {"row": 1}
    assert world.run.boundaries["book"].kind is BoundaryKind.CHECKPOINT


def test_a_transaction_whose_operation_fails_stores_nothing(world: World) -> None:
    ctx = world.activate()

    def fails(_: object) -> object:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        ctx.transaction("book", fails)
    with pytest.raises(UnstorableValueError, match="checkpoint 'book'"):
        ctx.transaction("book", lambda _: {1})
    with pytest.raises(ConfigurationError, match="returned a coroutine"):
        ctx.transaction("book", lambda _: fetch())
    assert world.run.rolled_back == 3
    assert ctx.transaction("book", lambda _: 1) == 1


def test_a_transaction_takes_no_coroutine_function(world: World) -> None:
    async def book(_: object) -> None: ...

    with pytest.raises(ConfigurationError, match="transaction 'book'.*coroutine function"):
        world.activate().transaction("book", book)
    assert world.run.records == []


def test_a_transaction_that_asks_for_itself_is_told_so() -> None:
    ctx = Context(FakeRun().activate())
    with pytest.raises(ConfigurationError, match="'book' asks for 'book' itself"):
        ctx.transaction("book", lambda _: ctx.checkpoint("book", lambda: 1))


def test_a_checkpoint_and_a_transaction_share_their_kind(world: World) -> None:
    world.activate().checkpoint("a", lambda: 1)
    assert world.activate().transaction("a", lambda _: 2) == 1


# -- without a recorder --------------------------------------------------------------------------


def test_a_context_of_no_worker_says_that_nobody_stores(world: World) -> None:
    ctx = Calls(ActivationCore(a_claimed_run()), world.runner)
    operation = Counted(1)
    for call in (
        lambda: ctx.checkpoint("a", operation),
        lambda: ctx.transaction("b", lambda _: 1),
        lambda: ctx.sleep("c", duration_ms=5),
        lambda: ctx.wait_for_signal("d"),
        lambda: ctx.token("e"),
        lambda: ctx.patched("f"),
        lambda: ctx.progress(1),
    ):
        with pytest.raises(ConfigurationError, match="nobody stores boundaries"):
            call()  # type: ignore[no-untyped-call]
    assert operation.calls == 0
    assert ctx.core.suspension == ()
