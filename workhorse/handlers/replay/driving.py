"""Drives the calls of contexts: in a thread that may block, or on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import sys
from asyncio import Task
from collections.abc import Awaitable
from types import FunctionType
from typing import Any, TypeVar, cast

from workhorse.errors import ConfigurationError
from workhorse.handlers.replay.calls import Calls
from workhorse.handlers.replay.flights import Invoke, Steps, within
from workhorse.handlers.signals import Suspended

T = TypeVar("T")

if sys.version_info >= (3, 12):
    _running_on = asyncio.current_task
else:  # where that is written in Python, and asks the system twice whether the process has forked
    _running_on = asyncio.tasks._current_tasks.get  # type: ignore[attr-defined]


def drive(steps: Steps[T]) -> T:
    """Carry out a call of a plain handler, in its thread."""
    try:
        ask = next(steps)
        while True:
            try:
                given = _invoke(ask) if type(ask) is Invoke else cast("Any", ask).result()
            except BaseException as error:  # noqa: BLE001 - the steps decide what becomes of it
                ask = steps.throw(error)
            else:
                ask = steps.send(given)
    except StopIteration as end:
        return cast("T", end.value)


async def drive_async(calls: Calls, steps: Steps[T], name: str | None, flow: Task[Any] | None) -> T:
    """Carry out a call of an async handler, as a part of the running task.

    Args:
        calls: Where the call was noted.
        steps: What it does.
        name: Of the boundary that it asks for, None for a call that is none.
        flow: The task that the handler itself runs in.
    """
    place = calls.made.pop(steps)[2]
    if type(name) is str and flow is not None and _running_on(flow.get_loop()) is flow:
        again = name in calls.asked and calls.is_stored(name)
        if not again:
            calls.asked[name] = place
    else:
        again = False
    try:
        ask = next(steps)
        while True:
            try:
                if type(ask) is Invoke:
                    given = await _invoke_async(ask)
                else:
                    given = await cast("Any", ask).result_async()
            except BaseException as error:  # noqa: BLE001 - the steps decide what becomes of it
                ask = steps.throw(error)
            else:
                ask = steps.send(given)
    except StopIteration as end:
        if again:
            calls.answered_again(cast("str", name), place)
        return cast("T", end.value)
    except Suspended as suspended:
        if suspended.quiet is not None:  # other tasks of the handler are at work
            await suspended.quiet.result_async()
        raise


def check_plain(what: str, operation: object) -> None:
    """Refuse a coroutine function where nobody would await it, and what cannot be called.

    Raises:
        ConfigurationError: It is one of these; it was not called.
    """
    check_callable(what, operation)
    function = operation
    while isinstance(function, functools.partial):
        function = function.func
    is_async = inspect.iscoroutinefunction(function)
    if not is_async and type(function) is not FunctionType:
        is_async = inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
    if is_async:
        raise ConfigurationError(
            f"{what}: {_named(function)} is a coroutine function, and nobody would await it here; "
            "pass a plain function. It was not called"
        )


def check_callable(what: str, operation: object) -> None:
    """Refuse what cannot be called, above all what was called already: `checkpoint(n, fetch())`.

    Raises:
        ConfigurationError: It cannot be called.
    """
    if callable(operation):
        return
    close(operation)
    raise ConfigurationError(
        f"{what}: its operation is a {type(operation).__name__}, which cannot be called; "
        "pass the function itself, or a lambda that calls it"
    )


def close(returned: object) -> None:
    """Spare a coroutine that nobody will await its warning."""
    if inspect.iscoroutine(returned):
        returned.close()


def refuse_awaitable(what: str, returned: object) -> None:
    """Refuse what a plain operation returned for somebody to await.

    Raises:
        ConfigurationError: It is an awaitable; a coroutine is closed.
    """
    if inspect.isawaitable(returned):
        close(returned)
        raise ConfigurationError(
            f"{what}: its operation returned a {type(returned).__name__}, which nobody awaits "
            "here, so its work was not done; pass a plain function that does the work itself"
        )


def _invoke(ask: Invoke) -> object:
    before = within.set((*within.get(), ask.flight))
    try:
        returned = ask.operation()
    finally:
        within.reset(before)
    refuse_awaitable(f"checkpoint '{ask.flight.name}'", returned)
    return returned


async def _invoke_async(ask: Invoke) -> object:
    before = within.set((*within.get(), ask.flight))
    try:
        returned = ask.operation()
        if inspect.isawaitable(returned):
            return await cast("Awaitable[object]", returned)
        return returned
    finally:
        with contextlib.suppress(ValueError):  # closed from elsewhere, when its loop is gone
            within.reset(before)


def _named(function: object) -> str:
    return getattr(function, "__qualname__", None) or type(function).__name__
