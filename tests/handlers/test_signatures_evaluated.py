"""Handlers whose annotations are values and not text: a module without the future import."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from workhorse.domain.values import Value
from workhorse.errors import ConfigurationError
from workhorse.handlers.context import AsyncContext, Context
from workhorse.handlers.registry import TaskRegistry
from workhorse.handlers.signatures import Signature


class Order:
    pass


def plain(c: Context, order: Order) -> list[Order]:
    raise NotImplementedError


async def coroutine(c: AsyncContext, order: "Order") -> "list[Order]":
    raise NotImplementedError


def promise(order: Order) -> Awaitable["list[Order]"]:
    raise NotImplementedError


@pytest.mark.parametrize(
    ("handler", "takes_context", "is_async"),
    [(plain, True, False), (coroutine, True, True), (promise, False, True)],
)
def test_evaluated_annotations_say_the_same_as_texts(
    handler: Callable[..., Any], takes_context: bool, is_async: bool
) -> None:
    signature = Signature(handler)

    assert (signature.takes_context, signature.is_async) == (takes_context, is_async)
    assert signature.payload_type() is Order
    assert signature.result_type() == list[Order]


def test_a_local_handler_with_evaluated_annotations_is_read() -> None:
    class Local:
        pass

    def handler(local: Local) -> "list[Local]":
        raise NotImplementedError

    signature = Signature(handler)
    assert signature.payload_type() is Local
    assert signature.result_type() == list[Local]


def test_the_alias_of_all_json_values_is_any_json() -> None:
    def handler(payload: Value) -> Value:
        raise NotImplementedError

    signature = Signature(handler)
    assert signature.payload_type() is Any
    assert signature.result_type() is Any


def test_an_annotation_that_is_no_type_is_named_at_first_use() -> None:
    def handler(payload: 5) -> "5 +":  # type: ignore[valid-type]  # noqa: F722
        raise NotImplementedError

    task = TaskRegistry().register(handler, "wrong")
    with pytest.raises(ConfigurationError, match=r"the payload of .*no JSON can be made of"):
        task.prepare(1)
    with pytest.raises(ConfigurationError, match=r"result as '5 \+'.*SyntaxError"):
        task.encode_result(1)


def test_a_wrong_context_is_refused() -> None:
    def handler(c: AsyncContext) -> None:
        raise NotImplementedError

    with pytest.raises(ConfigurationError, match="plain function and takes a AsyncContext"):
        Signature(handler)
