"""Errors as text: what of an exception is stored, and whether it may be tried again.

Source: docs/design.md, sections 2 and 6; docs/cases.md, case 17.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from workhorse.domain.runs import Failure, Reason
from workhorse.errors import (
    BoundaryLimitExceededError,
    BoundaryNotAwaitedError,
    CheckpointConflictError,
    ChildFailedError,
    DuplicateBoundaryError,
    LeaseLostError,
    NonRetryableError,
    TokenNotFoundError,
    TransactionMisuseError,
    UnstorableValueError,
    ValueTooLargeError,
    WaitConflictError,
    WaitLimitExceededError,
    WaitTimeoutError,
)
from workhorse.handlers.signals import Stopped, Suspended
from workhorse.handlers.tracebacks import fit, render, text_of, type_name

if TYPE_CHECKING:
    from workhorse.handlers.tasks import Task

MAX_FAILURE_BYTES: Final = 64 * 1024
"""What message and traceback may have together, in UTF-8."""
_MAX_MESSAGE_BYTES: Final = 8 * 1024
_MAX_TYPE_BYTES: Final = 300

_NOT_RETRYABLE: Final = (
    NonRetryableError,
    UnstorableValueError,
    ValueTooLargeError,
    CheckpointConflictError,
    DuplicateBoundaryError,
    BoundaryNotAwaitedError,
    WaitConflictError,
    WaitLimitExceededError,
    BoundaryLimitExceededError,
    TokenNotFoundError,
    TransactionMisuseError,
    # They would be raised at the same boundary by each further attempt.
    WaitTimeoutError,
    ChildFailedError,
)

STOPS: Final = (asyncio.CancelledError, Stopped, LeaseLostError)
"""What a handler raises that was told to stop, or has lost its lease."""
ENDS: Final = (*STOPS, Suspended)
"""These, and what ends an activation at a wait."""


def describe(error: object) -> Failure:
    """Return an error as it is stored: type, message and traceback, as text.

    It never raises, whatever the error's own methods do, and takes bounded time and memory. Message
    and traceback have 64 KiB together; what is longer keeps its head and its tail. The text holds
    no NUL, no lone surrogate and no values of local variables. The type is `module.QualName`, also
    for Python's own errors: `builtins.ValueError`.
    """
    message = fit(text_of(error), _MAX_MESSAGE_BYTES)
    traceback = None
    if isinstance(error, BaseException):
        traceback = fit(render(error), MAX_FAILURE_BYTES - len(message.encode()))
    return Failure(fit(type_name(error), _MAX_TYPE_BYTES), message, traceback)


def reason_for(task: Task[Any, Any] | None, error: BaseException) -> Reason:
    """Return whether an attempt that ended with this error may be followed by another.

    `Reason.NOT_RETRYABLE` for `NonRetryableError`, for the classes that the task names, for values
    that cannot be stored or are too large, for conflicts and limits of boundaries, for calls that
    were never awaited, for tokens that do not exist, for time-outs of waits and failed children,
    and for transactions that their operation ended, also when one of them stands in an exception
    group (a TaskGroup wraps what its tasks raise). Else `Reason.ERROR`.
    """
    final = _NOT_RETRYABLE if task is None else (*_NOT_RETRYABLE, *task.not_retryable)
    if any(isinstance(part, final) for part in _parts(error)):
        return Reason.NOT_RETRYABLE
    return Reason.ERROR


def tells_of(kinds: tuple[type[BaseException], ...], error: BaseException) -> bool:
    """Return whether an error is of one of these types, or a group that holds one."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(kinds) is not None
    return isinstance(error, kinds)


def _parts(error: BaseException) -> Iterator[BaseException]:
    """Walk a group of groups without recursion; a group that stands in it twice is seen once."""
    seen: set[int] = set()
    stack = [error]
    while stack:
        part = stack.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        if isinstance(part, BaseExceptionGroup):
            stack.extend(part.exceptions)
