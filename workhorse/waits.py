"""What a handler can wait for, as `ctx.wait_any` takes it: `{"paid": waits.signal(), ...}`.

The names are those of boundaries. Each of these can also be waited for alone, by the context's own
calls: `waits.signal` is `ctx.wait_for_signal`, `waits.timer` is `ctx.sleep`, and so on.

Source: docs/design.md, section 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeVar, Unpack

from workhorse.domain.boundaries import BoundaryKind
from workhorse.domain.missing import MISSING

if TYPE_CHECKING:
    from workhorse.handlers.producing import RunOptions
    from workhorse.handlers.tasks import Task

P = TypeVar("P")

_NO_PAYLOAD: Final[Any] = MISSING


class WaitFor:
    """Something to wait for; made by the functions of this module."""

    __slots__ = ()
    kind: ClassVar[BoundaryKind]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalWait(WaitFor):
    """A value that `app.send_signal` brings; see `signal`."""

    kind: ClassVar = BoundaryKind.SIGNAL
    timeout: timedelta | None = None
    default: object = MISSING


@dataclass(frozen=True, slots=True, kw_only=True)
class HumanWait(WaitFor):
    """An operator's decision; see `human`."""

    kind: ClassVar = BoundaryKind.HUMAN
    context: object = field(default=None, repr=False)
    timeout: timedelta | None = None
    default: object = MISSING


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerWait(WaitFor):
    """A time from now; see `timer`."""

    kind: ClassVar = BoundaryKind.TIMER
    duration: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class UntilWait(WaitFor):
    """An instant; see `until`."""

    kind: ClassVar = BoundaryKind.TIMER
    wake_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenWait(WaitFor):
    """What completes a wait token; see `token`."""

    kind: ClassVar = BoundaryKind.TOKEN
    ref: str = field(repr=False)  # whoever knows it can complete the wait
    default: object = MISSING


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildWait(WaitFor):
    """The end of a run that is started; see `child`."""

    kind: ClassVar = BoundaryKind.CHILD
    task: Task[Any, Any]
    payload: object = field(default=_NO_PAYLOAD, repr=False)
    options: Mapping[str, Any] = field(default_factory=dict)
    on_parent_end: str = "cancel"


class First(NamedTuple):
    """What `ctx.wait_any` returns: the name of the wait that came first, and its value."""

    name: str
    value: Any
    """What the wait alone would have returned; None for a timer."""


def signal(*, timeout: timedelta | None = None, default: object = MISSING) -> SignalWait:
    """Wait for `app.send_signal`; as `ctx.wait_for_signal`.

    Args:
        timeout: From the first arrival, at most 365 days; None waits as long as it takes.
        default: What is returned on time-out; without it `WaitTimeoutError` is raised.
    """
    return SignalWait(timeout=timeout, default=default)


def human(
    context: object = None, *, timeout: timedelta | None = None, default: object = MISSING
) -> HumanWait:
    """Wait for `app.complete_human_wait`; as `ctx.wait_for_human`.

    Args:
        context: What the operator is shown; a JSON value of 64 KiB at most.
        timeout: As of `signal`.
        default: As of `signal`.
    """
    return HumanWait(context=context, timeout=timeout, default=default)


def timer(duration: timedelta) -> TimerWait:
    """Wait for a time to pass, from the first arrival, at most 365 days; as `ctx.sleep`."""
    return TimerWait(duration=duration)


def until(wake_at: datetime) -> UntilWait:
    """Wait until an aware datetime, at most 365 days ahead; as `ctx.sleep_until`."""
    return UntilWait(wake_at=wake_at)


def token(ref: str, *, default: object = MISSING) -> TokenWait:
    """Wait for `app.complete_token`; as `ctx.wait_for_token`.

    Args:
        ref: What `ctx.token` or `app.create_token` returned.
        default: What is returned when the token's own time-out comes first.
    """
    return TokenWait(ref=ref, default=default)


def child(
    task: Task[P, Any],
    payload: P = _NO_PAYLOAD,
    *,
    on_parent_end: str = "cancel",
    **options: Unpack[RunOptions],
) -> ChildWait:
    """Start a run and wait for its result; as `ctx.child`."""
    return ChildWait(task=task, payload=payload, options=options, on_parent_end=on_parent_end)
