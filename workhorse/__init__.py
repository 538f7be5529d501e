"""Durable background runs: the truth in a relational store, wakeups over SQS.

Names are loaded when they are first used: `import workhorse` alone loads no SQLAlchemy, no pydantic
and no AWS client, so a command that only prints its help stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workhorse.app import Workhorse as Workhorse
    from workhorse.client.results import Run as Run
    from workhorse.domain.boundaries import DeliveryResult as DeliveryResult
    from workhorse.domain.ids import RunId as RunId
    from workhorse.domain.missing import MISSING as MISSING
    from workhorse.domain.retry import RetryPolicy as RetryPolicy
    from workhorse.domain.runs import OnFailure as OnFailure
    from workhorse.domain.runs import RunState as RunState
    from workhorse.domain.runs import RunView as RunView
    from workhorse.errors import ChildFailedError as ChildFailedError
    from workhorse.errors import NonRetryableError as NonRetryableError
    from workhorse.errors import WaitTimeoutError as WaitTimeoutError
    from workhorse.errors import WorkhorseError as WorkhorseError
    from workhorse.functions import lambda_handler as lambda_handler
    from workhorse.functions import lambda_maintenance as lambda_maintenance
    from workhorse.handlers.batches import BatchItem as BatchItem
    from workhorse.handlers.context import AsyncContext as AsyncContext
    from workhorse.handlers.context import Context as Context
    from workhorse.handlers.context import current_context as current_context
    from workhorse.handlers.producing import Request as Request
    from workhorse.handlers.tasks import Task as Task

_HOMES = {
    "MISSING": "workhorse.domain.missing",
    "AsyncContext": "workhorse.handlers.context",
    "BatchItem": "workhorse.handlers.batches",
    "ChildFailedError": "workhorse.errors",
    "Context": "workhorse.handlers.context",
    "DeliveryResult": "workhorse.domain.boundaries",
    "NonRetryableError": "workhorse.errors",
    "OnFailure": "workhorse.domain.runs",
    "Request": "workhorse.handlers.producing",
    "RetryPolicy": "workhorse.domain.retry",
    "Run": "workhorse.client.results",
    "RunId": "workhorse.domain.ids",
    "RunState": "workhorse.domain.runs",
    "RunView": "workhorse.domain.runs",
    "Task": "workhorse.handlers.tasks",
    "WaitTimeoutError": "workhorse.errors",
    "Workhorse": "workhorse.app",
    "WorkhorseError": "workhorse.errors",
    "current_context": "workhorse.handlers.context",
    "lambda_handler": "workhorse.functions",
    "lambda_maintenance": "workhorse.functions",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
