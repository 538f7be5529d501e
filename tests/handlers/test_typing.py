"""What a type checker knows of the durable calls: mypy reads this file, and it is run as well."""

from __future__ import annotations

import asyncio
from typing import assert_type

import pytest

from tests.handlers.durable import FakeRun
from workhorse import waits
from workhorse.errors import ChildFailedError
from workhorse.handlers.context import AsyncContext, Context
from workhorse.handlers.registry import TaskRegistry
from workhorse.handlers.signals import Suspended

REGISTRY = TaskRegistry()


@REGISTRY.task("ship")
def ship(order: int) -> str:
    return str(order)


def price() -> int:
    return 5


async def price_async() -> int:
    return 5


def test_the_calls_of_a_plain_context_are_typed() -> None:
    ctx = Context(FakeRun().activate())
    assert_type(ctx.checkpoint("a", price), int)
    assert_type(ctx.transaction("b", lambda connection: "row"), str)
    assert_type(ctx.patched("c"), bool)
    assert_type(ctx.token("d"), str)
    with pytest.raises(Suspended):
        assert_type(ctx.child("e", ship, 1), str)
    with pytest.raises(Suspended):
        assert_type(ctx.children("f", ship, [1]), list[str])
    with pytest.raises(Suspended):
        assert_type(ctx.children("g", ship, [1], on_failure="return"), list[str | ChildFailedError])
    choice = {"h": waits.signal(), "i": waits.child(ship, 1)}
    with pytest.raises(Suspended):
        assert_type(ctx.wait_any(choice), waits.First)


def test_the_calls_of_an_async_context_are_typed() -> None:
    async def handler(ctx: AsyncContext) -> None:
        assert_type(await ctx.checkpoint("a", price), int)
        assert_type(await ctx.checkpoint("b", price_async), int)
        assert_type(await ctx.checkpoint("c", lambda: price_async()), int)
        assert_type(await ctx.transaction("d", lambda connection: "row"), str)
        with pytest.raises(Suspended):
            assert_type(await ctx.child("e", ship, 1), str)
        with pytest.raises(Suspended):
            assert_type(await ctx.children("f", ship, [1]), list[str])

    asyncio.run(handler(AsyncContext(FakeRun().activate())))
