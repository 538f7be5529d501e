"""The registry: names and aliases, their clashes, and what a definition may not say."""

from __future__ import annotations

import threading
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any, assert_type

import pytest

from tests.handlers.producers import FakeProducer
from workhorse.domain.retry import DEFAULT_RETRY, RetryPolicy
from workhorse.errors import (
    ConfigurationError,
    InvalidInstantError,
    InvalidNameError,
    UnknownTaskError,
)
from workhorse.handlers.context import AsyncContext, Context
from workhorse.handlers.registry import TaskRegistry
from workhorse.handlers.tasks import Task


@pytest.fixture
def registry() -> TaskRegistry:
    return TaskRegistry()


def test_a_task_has_the_defaults_of_the_docs(registry: TaskRegistry) -> None:
    @registry.task()
    def ship() -> None: ...

    assert ship.name == "ship"
    assert (ship.queue, ship.priority, ship.retry) == ("default", 50, DEFAULT_RETRY)
    assert (ship.timeout, ship.deadline) == (None, None)
    assert (ship.aliases, ship.not_retryable) == ((), ())
    assert (ship.is_async, ship.takes_context, ship.takes_payload) == (False, False, False)


def test_a_task_keeps_what_its_decorator_says(registry: TaskRegistry) -> None:
    retry = RetryPolicy(max_attempts=3)

    @registry.task(
        "orders.ship",
        queue="orders",
        retry=retry,
        timeout=timedelta(seconds=5),
        deadline=timedelta(days=1),
        priority=90,
        aliases=["ship", "old.ship", "ship"],
        not_retryable=(ValueError,),
    )
    async def ship(ctx: AsyncContext, order: int) -> None: ...

    assert ship.name == "orders.ship"
    assert (ship.queue, ship.priority, ship.retry) == ("orders", 90, retry)
    assert (ship.timeout, ship.deadline) == (timedelta(seconds=5), timedelta(days=1))
    assert (ship.aliases, ship.not_retryable) == (("ship", "old.ship"), (ValueError,))
    assert (ship.is_async, ship.takes_context, ship.takes_payload) == (True, True, True)
    assert "orders.ship" in repr(ship)
    assert f"{__file__}:" in repr(ship)


def test_case_19_a_task_is_found_by_its_name_and_by_its_aliases(registry: TaskRegistry) -> None:
    task = registry.register(lambda: None, "new", aliases=("old", "older"))

    assert registry.get("new") is registry.get("old") is registry.require("older") is task
    assert registry.names() == ("new", "old", "older")
    assert "old" in registry
    assert list(registry) == [task]
    assert len(registry) == 1


def test_case_19_an_unknown_name_is_none_or_an_error_that_shows_its_likes(
    registry: TaskRegistry,
) -> None:
    registry.register(lambda: None, "orders.ship")

    assert registry.get("orders.shipp") is None
    assert "orders.shipp" not in registry
    with pytest.raises(UnknownTaskError, match=r"'orders.shipp' .*did you mean 'orders.ship'\?"):
        registry.require("orders.shipp")
    with pytest.raises(UnknownTaskError, match="1 names are known"):
        registry.require("x" * 1_000_000)


@pytest.mark.parametrize(
    ("name", "aliases"), [("ship", ()), ("old", ()), ("new", ("ship",)), ("new", ("x", "old"))]
)
def test_a_name_that_is_taken_stays_with_its_owner(
    registry: TaskRegistry, name: str, aliases: tuple[str, ...]
) -> None:
    owner = registry.register(lambda: None, "ship", aliases=("old",))

    with pytest.raises(ConfigurationError, match="two handlers for task") as raised:
        registry.register(lambda: None, name, aliases=aliases)

    assert owner.where in str(raised.value)
    assert registry.names() == ("old", "ship")


def test_a_task_is_no_alias_of_itself(registry: TaskRegistry) -> None:
    with pytest.raises(ConfigurationError, match="names itself"):
        registry.register(lambda: None, "ship", aliases=("ship",))
    assert len(registry) == 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"name": ""}, InvalidNameError),
        ({"name": "x" * 201}, InvalidNameError),
        ({"name": "a\nb"}, InvalidNameError),
        ({"aliases": ("",)}, InvalidNameError),
        ({"aliases": "old"}, ConfigurationError),
        ({"aliases": 5}, ConfigurationError),
        ({"queue": "Orders"}, InvalidNameError),
        ({"priority": 101}, InvalidNameError),
        ({"priority": True}, InvalidNameError),
        ({"retry": 5}, ConfigurationError),
        ({"timeout": 5}, InvalidInstantError),
        ({"timeout": timedelta(0)}, InvalidInstantError),
        ({"timeout": timedelta(seconds=-1)}, InvalidInstantError),
        ({"deadline": timedelta(days=366)}, InvalidInstantError),
        ({"not_retryable": ("ValueError",)}, ConfigurationError),
        ({"not_retryable": (int,)}, ConfigurationError),
        ({"not_retryable": ValueError("x")}, ConfigurationError),
    ],
)
def test_a_definition_that_cannot_work_is_refused_and_leaves_nothing(
    registry: TaskRegistry, arguments: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        registry.register(lambda: None, **{"name": "ship", **arguments})
    assert registry.names() == ()


def test_one_error_class_may_stand_for_a_tuple_of_one(registry: TaskRegistry) -> None:
    task = registry.register(lambda: None, "ship", not_retryable=KeyError)  # type: ignore[arg-type]
    assert task.not_retryable == (KeyError,)


def test_a_decorator_without_parentheses_is_told_of_them(registry: TaskRegistry) -> None:
    with pytest.raises(ConfigurationError, match="parentheses"):

        @registry.task  # type: ignore[arg-type]
        def ship() -> None: ...


def test_a_task_is_not_registered_again(registry: TaskRegistry) -> None:
    task = registry.register(lambda: None, "ship")
    with pytest.raises(ConfigurationError, match="is a task already"):
        registry.register(task, "again")


def test_registering_from_many_threads_gives_each_name_once(registry: TaskRegistry) -> None:
    start = threading.Barrier(8)
    refused: list[ConfigurationError] = []

    def register(number: int) -> None:
        start.wait(10)
        registry.register(lambda: None, f"own.{number}")
        try:
            registry.register(lambda: None, "shared")
        except ConfigurationError as error:
            refused.append(error)

    threads = [threading.Thread(target=register, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    assert len(refused) == 7
    assert registry.names() == (*(f"own.{number}" for number in range(8)), "shared")


def test_tasks_before_and_after_are_bound_to_the_producer(registry: TaskRegistry) -> None:
    producer = FakeProducer()
    before = registry.register(lambda: None, "before")

    registry.bind(producer)
    after = registry.register(lambda: None, "after")

    before.enqueue()
    after.enqueue()
    assert [request.task for request, _ in producer.enqueued] == [before, after]


def test_check_finds_annotations_that_cannot_work(registry: TaskRegistry) -> None:
    def handler(order: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    registry.register(lambda: None, "fine")
    registry.check()
    registry.register(handler, "wrong")

    with pytest.raises(ConfigurationError, match="'Missing'"):
        registry.check()


def test_types_of_payload_and_result_reach_the_producer(registry: TaskRegistry) -> None:
    """mypy judges this test; at run time it only has to pass."""

    @registry.task()
    def plain(order: int) -> str:
        return ""

    @registry.task()
    async def coroutine(order: int) -> str:
        return ""

    @registry.task()
    def with_context(ctx: Context, order: int) -> str:
        return ""

    @registry.task()
    async def with_async_context(ctx: AsyncContext, order: int) -> str:
        return ""

    @registry.task()
    def only_context(ctx: Context) -> str:
        return ""

    @registry.task()
    async def only_async_context(ctx: AsyncContext) -> str:
        return ""

    @registry.task()
    def nothing() -> str:
        return ""

    @registry.task()
    async def nothing_async() -> str:
        return ""

    @registry.task()
    def promise(order: int) -> Awaitable[str]:
        raise NotImplementedError

    assert_type(plain, Task[int, str])
    assert_type(coroutine, Task[int, str])
    assert_type(with_context, Task[int, str])
    assert_type(with_async_context, Task[int, str])
    assert_type(only_context, Task[None, str])
    assert_type(only_async_context, Task[None, str])
    assert_type(nothing, Task[None, str])
    assert_type(nothing_async, Task[None, str])
    assert_type(promise, Task[int, str])
    assert len(registry) == 9
