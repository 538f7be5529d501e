"""Handlers of both kinds from one source: `steps` awaits `its(ctx.call(...))`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from workhorse.handlers.context import AsyncContext, Context

Steps = Callable[[Any], Awaitable[Any]]


async def its(returned: Any) -> Any:
    """What a context's call returns: at once where the context is a plain one."""
    return await returned if inspect.isawaitable(returned) else returned


def handler(kind: str, steps: Steps) -> Callable[..., Any]:
    """Return a plain or an async handler that does these steps."""

    def plain(ctx: Context) -> Any:
        return carry_out(steps, ctx)

    async def waits(ctx: AsyncContext) -> Any:
        return await steps(ctx)

    return plain if kind == "plain" else waits


def carry_out(steps: Steps, ctx: Context) -> Any:
    """Do the steps with a plain context, whose calls leave nothing to be awaited."""
    coroutine: Any = steps(ctx)
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("a plain context's call was not carried out at once")
