"""What a handler is handed: `Context` for plain functions, `AsyncContext` for async ones.

Both are thin views of one `ActivationCore`, which the worker makes for each activation.

Source: docs/design.md, section 7.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

from workhorse.errors import ConfigurationError
from workhorse.handlers.activation import ActivationCore as ActivationCore
from workhorse.handlers.activation import RunInfo as RunInfo
from workhorse.handlers.asynchronous import AsyncContext as AsyncContext
from workhorse.handlers.plain import Context as Context

current: Final[ContextVar[Context | AsyncContext | None]] = ContextVar("workhorse.context")
"""The context of the handler that runs here, None in a batch handler; see `current_context`."""


def current_context() -> Context | AsyncContext:
    """Return the context of the handler that this code was called from.

    It follows what contextvars follow: tasks that the handler starts and `asyncio.to_thread`, not
    threads of its own making.

    Raises:
        ConfigurationError: No handler is running here, or one of batches, which has none.
    """
    try:
        context = current.get()
    except LookupError:
        raise ConfigurationError("no handler is running here, so there is no context") from None
    if context is None:
        raise ConfigurationError(
            "a batch handler is running here, and has no context: it is handed many runs at once, "
            "which have no boundaries. Ask its items, or make what needs a context a task of its "
            "own, which is called run by run"
        )
    return context
