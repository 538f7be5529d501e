"""How handlers are called, and what cannot be one; annotations here are text (PEP 563)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import types
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterator,
)
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import pytest

from workhorse.domain.values import Value
from workhorse.errors import ConfigurationError
from workhorse.handlers import context as contexts
from workhorse.handlers.context import AsyncContext, Context
from workhorse.handlers.signatures import Signature

if TYPE_CHECKING:
    from collections.abc import Awaitable as Promise

    from workhorse.handlers.context import AsyncContext as Hidden
    from workhorse.handlers.context import Context as AlsoHidden


@dataclass
class Order:
    id: int


def shape(handler: Callable[..., Any]) -> tuple[bool, bool, bool]:
    signature = Signature(handler)
    return signature.takes_context, signature.takes_payload, signature.is_async


def refusal(handler: Any) -> str:
    with pytest.raises(ConfigurationError) as raised:
        Signature(handler)
    return str(raised.value)


# -- shapes --------------------------------------------------------------------------------------


def takes_nothing() -> None: ...
def takes_payload(order: Order) -> Order: ...  # type: ignore[empty-body]
def takes_context(ctx: Context) -> None: ...
def takes_both(context: Context, order: Order) -> None: ...
def takes_both_by_name(ctx, order): ...  # type: ignore[no-untyped-def]
def takes_anything(payload): ...  # type: ignore[no-untyped-def]
async def async_takes_both(c: contexts.AsyncContext, order: Order) -> None: ...
async def async_takes_nothing() -> None: ...
def takes_either(c: Context | AsyncContext) -> None: ...
def takes_described(c: Annotated[Context, "mine"]) -> None: ...
def positional_only(order: Order, /) -> None: ...
def has_options(order: Order, *, dry: bool = False) -> None: ...


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (takes_nothing, (False, False, False)),
        (takes_payload, (False, True, False)),
        (takes_context, (True, False, False)),
        (takes_both, (True, True, False)),
        (takes_both_by_name, (True, True, False)),
        (takes_anything, (False, True, False)),
        (async_takes_both, (True, True, True)),
        (async_takes_nothing, (False, False, True)),
        (takes_either, (True, False, False)),
        (takes_described, (True, False, False)),
        (positional_only, (False, True, False)),
        (has_options, (False, True, False)),
        (lambda: None, (False, False, False)),
        (lambda ctx, payload: None, (True, True, False)),
    ],
)
def test_the_four_shapes_are_recognised(
    handler: Callable[..., Any], expected: tuple[bool, bool, bool]
) -> None:
    assert shape(handler) == expected


def test_a_context_may_be_imported_for_the_type_checker_alone() -> None:
    def plain(c: Context, order: Order) -> None: ...

    plain.__annotations__["c"] = "somewhere.Context"
    assert shape(plain) == (True, True, False)

    async def hidden(c: AsyncContext) -> None: ...

    hidden.__annotations__["c"] = "gone.AsyncContext"
    assert shape(hidden) == (True, False, True)


def test_a_class_of_the_users_that_is_called_context_too_is_a_payload() -> None:
    class Context:
        pass

    def handler(c: Context) -> None: ...

    assert shape(handler) == (False, True, False)


@pytest.mark.parametrize(
    "handler",
    [
        lambda a, b: None,
        lambda payload, ctx: None,
        lambda ctx, payload, more: None,
        lambda ctx, *, needed: None,
        lambda *arguments: None,
        lambda ctx, **options: None,
    ],
)
def test_case_18_any_other_shape_is_refused_with_handler_file_and_line(
    handler: Callable[..., Any],
) -> None:
    message = refusal(handler)
    assert "<lambda>" in message
    assert f"{__file__}:{handler.__code__.co_firstlineno}" in message
    assert "(ctx, payload)" in message


def test_case_18_two_contexts_are_no_context_and_payload() -> None:
    def handler(ctx: Context, other: Context) -> None: ...

    assert "(ctx, other)" in refusal(handler)


def test_a_decorator_that_hides_the_shape_is_told_of_wraps() -> None:
    def bare(function: Callable[..., Any]) -> Callable[..., Any]:
        def inner(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return inner

    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        return functools.wraps(function)(bare(function))

    assert "functools.wraps" in refusal(bare(takes_both))
    assert shape(wrapped(takes_both)) == (True, True, False)
    assert Signature(wrapped(takes_payload)).payload_type() is Order


# -- worlds --------------------------------------------------------------------------------------


def test_a_plain_function_must_not_take_the_async_context() -> None:
    def handler(ctx: AsyncContext) -> None: ...

    assert "plain function and takes a AsyncContext" in refusal(handler)


def test_an_async_function_must_not_take_the_plain_context() -> None:
    async def handler(ctx: Context, order: Order) -> None: ...

    assert "async function and takes a Context" in refusal(handler)


def test_a_wrong_context_is_refused_when_it_is_hidden_from_the_run_time_too() -> None:
    def handler(ctx: Context) -> None: ...

    handler.__annotations__["ctx"] = "gone.AsyncContext"
    assert "takes a AsyncContext" in refusal(handler)


# -- kinds of callables --------------------------------------------------------------------------


class Shipper:
    def method(self, order: Order) -> Order:
        return order

    async def async_method(self, ctx: AsyncContext, order: Order) -> Order:
        return order

    @classmethod
    def of_class(cls, order: Order) -> Order:
        return order

    @staticmethod
    def static(ctx: Context, order: Order) -> Order:
        return order

    def __call__(self, ctx: Context, order: Order) -> Order:
        return order


class AsyncShipper:
    async def __call__(self, order: Order) -> Order:
        return order


class StaticShipper:
    @staticmethod
    def __call__(order: Order) -> Order:
        return order


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (Shipper().method, (False, True, False)),
        (Shipper().async_method, (True, True, True)),
        (Shipper.of_class, (False, True, False)),
        (Shipper.static, (True, True, False)),
        (Shipper.__dict__["static"], (True, True, False)),
        (Shipper(), (True, True, False)),
        (AsyncShipper(), (False, True, True)),
        (StaticShipper(), (False, True, False)),
        (functools.partial(takes_both), (True, True, False)),
        (functools.partial(Shipper().async_method), (True, True, True)),
        (functools.partial(functools.partial(AsyncShipper())), (False, True, True)),
        (functools.partial(has_options, dry=True), (False, True, False)),
        (functools.lru_cache(takes_payload), (False, True, False)),
    ],
)
def test_case_18_methods_partials_and_callable_objects_are_handlers(
    handler: Callable[..., Any], expected: tuple[bool, bool, bool]
) -> None:
    signature = Signature(handler)
    assert shape(handler) == expected
    assert signature.payload_type() is Order


def test_case_18_a_partial_that_fixes_the_first_argument_leaves_the_second() -> None:
    def scaled(factor: int, order: Order) -> None: ...

    assert shape(functools.partial(scaled, 2)) == (False, True, False)


def test_case_18_a_class_method_that_no_class_holds_yet_is_refused() -> None:
    assert "behind the class" in refusal(Shipper.__dict__["of_class"])


@pytest.mark.parametrize("handler", [Shipper.method, lambda self: None, lambda cls, payload: None])
def test_case_18_a_method_without_its_object_is_refused(handler: Callable[..., Any]) -> None:
    assert "belongs to no object yet" in refusal(handler)


def test_case_18_a_class_is_refused() -> None:
    assert "is a class" in refusal(Order)


@pytest.mark.parametrize("handler", [None, 5, "orders.ship"])
def test_case_18_what_cannot_be_called_is_refused(handler: object) -> None:
    assert "cannot be called" in refusal(handler)


def test_case_18_a_callable_without_a_signature_is_refused() -> None:
    def handler() -> None: ...

    handler.__signature__ = 5  # type: ignore[attr-defined]
    assert "no signature" in refusal(handler)


# -- generators and awaitables -------------------------------------------------------------------


def generator(order: Order) -> Generator[int]:
    yield 1


async def async_generator(order: Order) -> AsyncIterator[int]:
    yield 1


class CallableGenerator:
    def __call__(self, order: Order) -> Iterator[int]:
        yield 1

    def method(self) -> Iterator[int]:
        yield 1


@types.coroutine
def old_coroutine() -> Generator[None]:
    yield


@pytest.mark.parametrize(
    "handler",
    [
        generator,
        async_generator,
        CallableGenerator(),
        CallableGenerator().method,
        functools.partial(generator),
        functools.partial(functools.partial(async_generator)),
        old_coroutine,
        staticmethod(generator),
    ],
)
def test_case_18_generator_functions_are_refused(handler: Callable[..., Any]) -> None:
    assert "generator function" in refusal(handler)


def test_case_18_a_decorator_that_consumes_the_generator_makes_a_handler() -> None:
    @functools.wraps(generator)
    def collected(order: Order) -> list[int]:
        return list(generator(order))

    collected.__annotations__["return"] = list[int]
    assert shape(collected) == (False, True, False)


def test_case_18_a_function_that_says_it_returns_an_iterator_is_refused() -> None:
    def handler(order: Order) -> Iterator[int]:
        return generator(order)

    async def streams() -> AsyncIterator[int]:
        return async_generator(Order(1))

    assert "returns a generator" in refusal(handler)
    assert shape(streams)[2] is True  # its result is refused when it comes

    @contextlib.contextmanager
    def manages(order: Order) -> Iterator[int]:
        yield 1

    assert "returns a generator" in refusal(manages)


def returns_coroutine(order: Order) -> Coroutine[Any, Any, Order]:
    raise NotImplementedError


def returns_awaitable(order: Order) -> Awaitable[list[int]]:
    raise NotImplementedError


def returns_future(order: Order) -> asyncio.Future[str]:
    raise NotImplementedError


def returns_bare(order: Order) -> Awaitable:  # type: ignore[type-arg]
    raise NotImplementedError


@pytest.mark.parametrize(
    ("handler", "result"),
    [
        (returns_coroutine, Order),
        (returns_awaitable, list[int]),
        (returns_future, str),
        (returns_bare, Any),
    ],
)
def test_case_18_a_plain_function_annotated_as_awaitable_is_an_async_handler(
    handler: Callable[..., Any], result: object
) -> None:
    signature = Signature(handler)
    assert signature.is_async is True
    assert signature.result_type() == result


def test_case_18_awaitables_imported_for_the_type_checker_alone_are_seen() -> None:
    def handler(order: Order) -> Awaitable[Later]: ...  # type: ignore[empty-body]

    assert Signature(handler).is_async is True


def test_case_18_a_plain_wrapper_round_an_async_function_is_async_if_its_context_is() -> None:
    def traced(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def inner(*args: Any) -> Any:
            return function(*args)

        return inner

    assert shape(traced(async_takes_both)) == (True, True, True)
    assert shape(traced(async_takes_nothing)) == (False, False, False)  # may run it itself


# -- annotations ---------------------------------------------------------------------------------


def uses_later(order: Later) -> list[Later]: ...  # type: ignore[empty-body]


LATER = Signature(uses_later)  # before the class below exists


class Later:
    pass


def test_case_18_a_class_that_is_defined_later_is_resolved_at_first_use() -> None:
    assert LATER.payload_type() is Later
    assert LATER.result_type() == list[Later]


def test_a_class_that_never_comes_is_named_at_first_use() -> None:
    def handler(order: Never1) -> Never2: ...  # type: ignore[name-defined]  # noqa: F821

    signature = Signature(handler)

    with pytest.raises(ConfigurationError, match=r"payload as 'Never1'.*NameError.*TYPE_CHECKING"):
        signature.payload_type()
    with pytest.raises(ConfigurationError, match=r"result as 'Never2'") as raised:
        signature.result_type()
    assert f"{__file__}:" in str(raised.value)


def test_classes_of_the_function_that_defines_the_handler_are_found() -> None:
    class Local:
        pass

    class Inner:
        pass

    def define() -> Signature:
        def handler(order: Local) -> list[Inner]: ...  # type: ignore[empty-body]

        return Signature(handler)

    signature = define()

    assert signature.payload_type() is Local
    assert signature.result_type() == list[Inner]


def test_classes_in_a_closure_are_found_also_when_they_come_later() -> None:
    def define() -> Signature:
        def handler(order: Local) -> None:
            Local()

        signature = Signature(handler)

        class Local:
            pass

        assert signature.payload_type() is Local
        return signature

    assert define().takes_payload


def test_a_context_that_shows_only_later_is_told_to_be_called_ctx() -> None:
    def handler(c: Hidden, order: Order) -> None: ...

    assert "the first is not known as a context" in refusal(handler)

    def single(c: AlsoHidden) -> None: ...

    signature = Signature(single)
    globals()["AlsoHidden"] = Context
    try:
        with pytest.raises(ConfigurationError, match="call the parameter ctx"):
            signature.payload_type()
    finally:
        del globals()["AlsoHidden"]


def test_no_annotation_means_any_json_and_no_payload_means_null() -> None:
    assert Signature(takes_anything).payload_type() is Any
    assert Signature(takes_anything).result_type() is Any
    assert Signature(takes_nothing).payload_type() is None
    assert Signature(takes_nothing).result_type() is type(None)


def test_the_alias_of_all_json_values_is_known() -> None:
    def handler(payload: Value) -> Value: ...

    signature = Signature(handler)
    assert signature.payload_type() is not None
    handler.__annotations__["payload"] = Value
    assert Signature(handler).payload_type() is Any


def test_annotated_keeps_what_it_says() -> None:
    def handler(payload: Annotated[int, "positive"]) -> None: ...

    assert Signature(handler).payload_type() == Annotated[int, "positive"]


def test_an_annotation_of_a_promise_under_another_name_cannot_be_seen() -> None:
    def handler(order: Order) -> Promise[int]: ...  # type: ignore[empty-body]

    assert Signature(handler).is_async is False  # its result is refused when it comes


# -- names and places ----------------------------------------------------------------------------


def test_the_default_name_is_the_functions_own() -> None:
    assert Signature(takes_both).default_name() == "takes_both"
    assert Signature(Shipper().method).default_name() == "method"


@pytest.mark.parametrize("handler", [lambda: None, functools.partial(takes_both), Shipper()])
def test_what_has_no_name_of_its_own_needs_one(handler: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError, match="no name of its own"):
        Signature(handler).default_name()


def test_errors_name_module_function_file_and_line() -> None:
    where = Signature(takes_both).where
    line = takes_both.__code__.co_firstlineno
    assert where == f"{__name__}.takes_both ({__file__}:{line})"
    assert ".Shipper.__call__ (" in Signature(Shipper()).where


def test_wrappers_that_go_round_in_a_circle_do_not_hang() -> None:
    def handler(order: Order) -> None: ...

    handler.__wrapped__ = handler  # type: ignore[attr-defined]
    assert "no signature" in refusal(handler)


def test_the_default_of_a_payload_is_kept() -> None:
    def handler(order: int = 5) -> None: ...

    assert Signature(handler).default == 5
    assert Signature(takes_payload).default is None
