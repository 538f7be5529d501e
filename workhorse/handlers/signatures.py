"""How a handler is called: its shape, read once when it is registered.

A handler takes nothing, a payload, a context, or a context and a payload; a context is recognised
by its annotation or by the name `ctx`. What can never work is refused here, where it is written,
and not when the first run comes.

Source: docs/cases.md, case 18.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from inspect import Parameter
from typing import Any, Final, cast

from workhorse.errors import ConfigurationError
from workhorse.handlers.annotations import (
    Namespace,
    awaited_type,
    context_kinds,
    is_generator_type,
)
from workhorse.handlers.context import AsyncContext, Context

LEFT_OUT: Final = object()
"""Stands for a payload that a producer did not give."""

_POSITIONAL: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_SHAPES: Final = "a handler takes (), (payload), (ctx) or (ctx, payload)"


class Signature:
    """A handler and how it is called.

    Annotations that name classes which are defined later are resolved at first use.

    Args:
        handler: A function, lambda, bound method, `functools.partial`, static method or object
            with `__call__`, plain or async.

    Raises:
        ConfigurationError: It cannot be a handler; handler, file and line are named.
    """

    def __init__(self, handler: Callable[..., Any]) -> None:
        if isinstance(handler, staticmethod):
            handler = handler.__func__
        self.handler: Final = handler
        self._function: Final = _function_of(handler)
        self.where: Final = _where(handler, self._function)
        self._refuse_what_never_runs()
        self._namespace: Final = Namespace(self._function)

        context, payload, returns = self._parameters()
        self.takes_context: Final = context is not None
        self.takes_payload: Final = payload is not None
        self.default: Final = (
            None if payload is None or payload.default is Parameter.empty else payload.default
        )
        self._payload: Final = None if payload is None else payload.annotation
        self._returns: Final = returns
        self.is_async: Final = self._find_async(context)
        if context is not None:
            self._check_context(context)

    def default_name(self) -> str:
        """Return the function's own name.

        Raises:
            ConfigurationError: It has none that could stay the same.
        """
        name = getattr(self.handler, "__name__", None)
        if not isinstance(name, str) or name == "<lambda>":
            raise self._refusal("has no name of its own; give the task one: app.task('a.name')")
        return name

    def payload_type(self) -> object:
        """Return the payload's annotation; Any where there is none, None for no payload at all.

        Raises:
            ConfigurationError: The annotation names what is not there.
        """
        if self._payload is None:
            return None
        found = self._resolved("payload", self._payload)
        if context_kinds(found):
            raise self._refusal(
                "takes a context whose annotation could not be read when it was registered; "
                "call the parameter ctx"
            )
        return found

    def result_type(self) -> object:
        """Return the annotation of what the handler returns once awaited; Any where there is none.

        Raises:
            ConfigurationError: The annotation names what is not there.
        """
        found = self._resolved("result", self._returns)
        if self.is_async and not inspect.iscoroutinefunction(self._function):
            inner = awaited_type(found)
            return found if inner is None else inner
        return found

    # -- registration ----------------------------------------------------------------------------

    def _refuse_what_never_runs(self) -> None:
        if isinstance(self.handler, classmethod):
            raise self._refusal(
                "is a class method that its class does not hold yet; register it behind the class: "
                "app.task('a.name')(TheClass.method)"
            )
        if isinstance(self.handler, type):
            raise self._refusal("is a class; register a function, or an object with __call__")
        if not callable(self.handler):
            raise self._refusal("cannot be called")
        for candidate in (self.handler, self._function):
            if inspect.isgeneratorfunction(candidate) or inspect.isasyncgenfunction(candidate):
                raise self._refusal(
                    "is a generator function (it has a yield): calling it would run none of its "
                    "code. Return a list instead"
                )

    def _parameters(self) -> tuple[Parameter | None, Parameter | None, object]:
        # Before Python 3.13 inspect takes the first argument away from a static __call__ too.
        call = inspect.getattr_static(type(self.handler), "__call__", None)
        target = self._function if isinstance(call, staticmethod) else self.handler
        try:
            signature = inspect.signature(target)
        except (ValueError, TypeError):
            raise self._refusal(
                "has no signature that can be read; wrap it in a function"
            ) from None
        positional = []
        for parameter in signature.parameters.values():
            if parameter.kind in _POSITIONAL:
                positional.append(parameter)
            elif parameter.kind is not Parameter.KEYWORD_ONLY:
                raise self._refusal(
                    f"takes *{parameter.name}, so its shape cannot be seen; {_SHAPES}. "
                    "A decorator keeps the shape with functools.wraps"
                )
            elif parameter.default is Parameter.empty:
                raise self._refusal(f"needs the keyword argument {parameter.name}; {_SHAPES}")
        returns = signature.return_annotation
        match positional:
            case []:
                return None, None, returns
            case [first, *_] if first.name in ("self", "cls"):
                raise self._refusal(
                    f"takes {first.name}: it is a method that belongs to no object yet; register a "
                    "bound method, or make it a static method"
                )
            case [only]:
                if self._is_context(only):
                    return only, None, returns
                return None, only, returns
            case [first, second]:
                if self._is_context(first) and not self._is_context(second):
                    return first, second, returns
                raise self._refusal(
                    f"takes ({first.name}, {second.name}), and the first is not known as a context "
                    f"by the name ctx or by its annotation; {_SHAPES}"
                )
            case _:
                raise self._refusal(f"takes {len(positional)} arguments; {_SHAPES}")

    def _is_context(self, parameter: Parameter) -> bool:
        return parameter.name == "ctx" or bool(self._context_kinds(parameter))

    def _context_kinds(self, parameter: Parameter) -> frozenset[type]:
        return context_kinds(self._namespace.look(parameter.annotation), parameter.annotation)

    def _find_async(self, context: Parameter | None) -> bool:
        if inspect.iscoroutinefunction(self.handler) or inspect.iscoroutinefunction(self._function):
            return True
        returns = self._namespace.look(self._returns)
        if is_generator_type(returns):
            raise self._refusal("returns a generator or an iterator; return a list instead")
        if awaited_type(returns, self._returns) is not None:
            return True
        # A decorator's plain wrapper round an async function: the annotation of its context decides
        # whether it still is one, or runs the coroutine itself.
        return (
            context is not None
            and self._context_kinds(context) == {AsyncContext}
            and inspect.iscoroutinefunction(inspect.unwrap(self._function))
        )

    def _check_context(self, context: Parameter) -> None:
        kinds = self._context_kinds(context)
        wanted = AsyncContext if self.is_async else Context
        if kinds and wanted not in kinds:
            kind, other = ("an async", "AsyncContext") if self.is_async else ("a plain", "Context")
            wrong = next(iter(kinds)).__name__
            raise self._refusal(f"is {kind} function and takes a {wrong}; it is handed {other}")

    def _resolved(self, what: str, annotation: object) -> object:
        try:
            return self._namespace.resolve(annotation)
        except Exception as error:
            raise self._refusal(
                f"annotates its {what} as {str(annotation)[:200]!r}, which cannot be resolved "
                f"({type(error).__name__}: {str(error)[:200]}). Import it at run time, not only "
                "under TYPE_CHECKING, and define it where the module can see it"
            ) from error

    def _refusal(self, problem: str) -> ConfigurationError:
        return ConfigurationError(f"handler {self.where} {problem}")


def _function_of(handler: object) -> Callable[..., Any]:
    """Return the function that runs in the end, as far as it can be seen."""
    while True:
        if isinstance(handler, partial):
            handler = handler.func
        elif inspect.ismethod(handler) or isinstance(handler, (classmethod, staticmethod)):
            handler = handler.__func__
        elif inspect.isroutine(handler) or isinstance(handler, type):
            return cast("Callable[..., Any]", handler)
        else:
            call = getattr(type(handler), "__call__", None)  # noqa: B004 - the function is wanted
            return call if inspect.isfunction(call) else cast("Callable[..., Any]", handler)


def _where(handler: object, function: Callable[..., Any]) -> str:
    """Return `module.name (file:line)`, as errors name a handler."""
    try:
        innermost = inspect.unwrap(function)
    except ValueError:
        innermost = function
    code = getattr(innermost, "__code__", None)
    named = handler if hasattr(handler, "__qualname__") else innermost
    if not hasattr(named, "__qualname__"):
        named = type(handler)
    name = f"{getattr(named, '__module__', None) or '?'}.{getattr(named, '__qualname__', '?')}"
    return name if code is None else f"{name} ({code.co_filename}:{code.co_firstlineno})"
