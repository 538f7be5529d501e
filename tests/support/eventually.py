"""Waiting for something to become true, with a deadline instead of a sleep."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(
    predicate: Callable[[], T], *, within: float = 30.0, every: float = 0.01, what: str = ""
) -> T:
    """Call a predicate until what it returns is true, and return that.

    An AssertionError that it raises counts as "not yet", so it may hold plain asserts and return
    something true at its end. Other exceptions pass.

    Args:
        predicate: Looks; it should be quick and change nothing.
        within: Seconds. Generous: it is reached only by a test that fails.
        every: Seconds between two looks.
        what: How the message calls it; the predicate's own source by default.
    """
    deadline = time.monotonic() + within
    while True:
        seen, last = _look(predicate)
        if seen is not None:
            return seen[0]
        if time.monotonic() >= deadline:
            raise AssertionError(_message(predicate, within, what, last))
        time.sleep(every)


async def eventually_async(
    predicate: Callable[[], T], *, within: float = 30.0, every: float = 0.01, what: str = ""
) -> T:
    """As `eventually`, while the event loop goes on."""
    deadline = time.monotonic() + within
    while True:
        seen, last = _look(predicate)
        if seen is not None:
            return seen[0]
        if time.monotonic() >= deadline:
            raise AssertionError(_message(predicate, within, what, last))
        await asyncio.sleep(every)


def _look(predicate: Callable[[], T]) -> tuple[tuple[T] | None, str]:
    try:
        value = predicate()
    except AssertionError as error:
        return None, f"the last look failed: {error}"
    return ((value,) if value else None), f"the last look returned {value!r}"


def _message(predicate: Callable[[], object], within: float, what: str, last: str) -> str:
    if not what:
        try:
            what = inspect.getsource(predicate).strip()
        except (OSError, TypeError):
            what = repr(predicate)
    return f"not true within {within:g} s: {what}\n{last}"
