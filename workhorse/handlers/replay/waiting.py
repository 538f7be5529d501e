"""All waits: how one is reached, what settles it, and what its caller gets.

Source: docs/design.md, section 7; docs/adr/0012-boundaries-and-deliveries.md
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, Final, TypeAlias, assert_never

from workhorse.domain.boundaries import (
    Boundary,
    BoundaryKind,
    Delivered,
    DeliveryState,
    NewBoundary,
    Wait,
)
from workhorse.domain.instants import check_ahead, check_duration, check_instant, to_millis
from workhorse.domain.missing import MISSING
from workhorse.domain.names import check_boundary
from workhorse.domain.recording import Record
from workhorse.domain.references import check_reference
from workhorse.domain.values import MAX_DELIVERY_BYTES, decode, encode
from workhorse.errors import (
    InvalidInstantError,
    InvalidNameError,
    TokenNotFoundError,
    WaitConflictError,
    WaitTimeoutError,
)
from workhorse.handlers.replay.children import failure_of, reach_child
from workhorse.handlers.replay.flights import Steps
from workhorse.handlers.replay.reading import delivered_text
from workhorse.handlers.replay.state import Replay
from workhorse.waits import (
    ChildWait,
    HumanWait,
    SignalWait,
    TimerWait,
    TokenWait,
    UntilWait,
    WaitFor,
)

Reached: TypeAlias = Wait | Delivered | Boundary
"""A wait that is open, what was delivered for it, or a timer that has passed."""

_TIMER: Final = BoundaryKind.TIMER


def one_duration(name: str, duration: timedelta | None, duration_ms: int | None) -> timedelta:
    """Return the one duration that a sleep was given.

    Raises:
        InvalidNameError: The name is not of the allowed form; above all, a duration in its place.
        InvalidInstantError: None or both are given, or the milliseconds are no whole number.
    """
    check_boundary(name)
    what = f"duration of '{name}'"
    if (duration is None) == (duration_ms is None):
        raise InvalidInstantError(f"{what}: give a timedelta or duration_ms=, one of them")
    if duration is not None:
        return duration
    if type(duration_ms) is not int:
        raise InvalidInstantError(
            f"{what}: duration_ms must be a whole number; got {type(duration_ms).__name__}"
        )
    try:
        return timedelta(milliseconds=duration_ms)
    except OverflowError:
        raise InvalidInstantError(f"{what} is longer than 365 days") from None


def wait(replay: Replay, name: str, spec: WaitFor) -> Steps[Any]:
    """Wait for one thing: return its value, or end the activation until it is there."""
    reached = yield from reach(replay, name, spec)
    if isinstance(reached, Wait):
        replay.suspend([reached])
    return (yield from value_of(replay, spec, reached))


def reach(replay: Replay, name: str, spec: WaitFor) -> Steps[Reached]:
    """Come to a wait: start what it starts, store what is to be stored now, see what settled it."""
    check_boundary(name)  # before any message names it
    replay.meet(name, spec)
    match spec:
        case SignalWait() | HumanWait():
            what = f"{replay.owner}: timeout of {spec.kind.value} '{name}'"
            limit = None if spec.timeout is None else to_millis(check_duration(what, spec.timeout))
            return (yield from _reach_delivery(replay, name, spec, delay_ms=limit))
        case TokenWait():
            _check_ref(replay, name, spec.ref)
            return (yield from _reach_delivery(replay, name, spec))
        case TimerWait():
            return (yield from _reach_timer(replay, name, spec.duration))
        case UntilWait():
            return (yield from _reach_instant(replay, name, spec))
        case ChildWait():
            return (yield from reach_child(replay, name, spec))
        case _:
            raise AssertionError(f"a wait of an unknown type: {type(spec).__name__}")


def value_of(replay: Replay, spec: WaitFor, settled: Delivered | Boundary) -> Steps[Any]:
    """Return what a settled wait brought its caller, or raise it.

    Raises:
        WaitTimeoutError: Its time-out came first, and no default is given.
        WaitConflictError: `wait_any` has closed it.
        TokenNotFoundError: It was for a token that is not there.
        ChildFailedError: The child has failed or was cancelled.
    """
    if isinstance(settled, Boundary):
        return None
    match settled.state:
        case DeliveryState.VALUE:
            text = yield from delivered_text(replay, settled)
            return spec.task.decode_result(text) if isinstance(spec, ChildWait) else decode(text)
        case DeliveryState.TIMED_OUT:
            default = getattr(spec, "default", MISSING)
            if default is not MISSING:
                return default
            raise WaitTimeoutError(
                f"{replay.owner}: {settled.kind.value} '{settled.name}' did not come in time"
            )
        case DeliveryState.CLOSED:
            raise WaitConflictError(
                f"{replay.owner}: {settled.kind.value} '{settled.name}' was closed when another "
                "came first in its wait_any, and takes no value any more; wait under a new name"
            )
        case DeliveryState.FAILED if settled.kind is BoundaryKind.TOKEN:
            # The reference is as good as a password: no message repeats it.
            raise TokenNotFoundError(
                f"{replay.owner}: wait '{settled.name}' is for a token that is not in this store, "
                "so nobody could complete it; pass what ctx.token or app.create_token returned"
            )
        case DeliveryState.FAILED | DeliveryState.CANCELLED:
            raise failure_of(replay, settled, (yield from delivered_text(replay, settled)))
        case _:
            assert_never(settled.state)


def _reach_delivery(
    replay: Replay,
    name: str,
    spec: SignalWait | HumanWait | TokenWait,
    *,
    delay_ms: int | None = None,
) -> Steps[Wait | Delivered]:
    ref = spec.ref if isinstance(spec, TokenWait) else None
    entered = yield from replay.enter(spec.kind, name)
    delivered = replay.deliveries.get((spec.kind, name))
    if isinstance(entered, Boundary):
        if ref is not None and entered.detail != json.dumps(ref):
            raise WaitConflictError(
                f"{replay.owner}: '{name}' waits for another token, which stands; "
                "give the wait for this one a name of its own"
            )
        return delivered or Wait(kind=spec.kind, name=name, token=ref)
    with entered as flight:
        new = NewBoundary(
            name=name,
            kind=spec.kind,
            seq=0,
            detail=_detail(replay, name, spec),
            delay_ms=delay_ms,
        )
        if delivered is None:  # it is written when the activation ends at it
            return Wait(kind=spec.kind, name=name, new=new, token=ref)
        replay.may_start()
        new = replay.number(new)
        yield from replay.write(flight, Record(lease=replay.lease, boundary=new))
    return (yield from _reach_delivery(replay, name, spec, delay_ms=delay_ms))


def _detail(replay: Replay, name: str, spec: SignalWait | HumanWait | TokenWait) -> str | None:
    match spec:
        case HumanWait():
            what = f"{replay.owner}: context of human wait '{name}'"
            return encode(what, spec.context, cap=MAX_DELIVERY_BYTES)
        case TokenWait():
            return json.dumps(spec.ref)
        case _:
            return None


def _reach_timer(replay: Replay, name: str, duration: timedelta) -> Steps[Wait | Boundary]:
    delay_ms = to_millis(check_duration(f"{replay.owner}: duration of '{name}'", duration))
    entered = yield from replay.enter(_TIMER, name)
    if isinstance(entered, Boundary):
        if entered.absolute:
            raise WaitConflictError(
                f"{replay.owner}: '{name}' waits for an instant, which stands; "
                "give the wait for a duration a name of its own"
            )
        # One of zero is not asked about: no clock is needed to say that it has passed.
        return entered if entered.due else Wait(kind=_TIMER, name=name)
    with entered as flight:
        new = NewBoundary(name=name, kind=_TIMER, seq=0, delay_ms=delay_ms)
        if delay_ms > 0:
            return Wait(kind=_TIMER, name=name, new=new)
        replay.may_start()
        new = replay.number(new)
        yield from replay.write(flight, Record(lease=replay.lease, boundary=new))
    return (yield from _reach_timer(replay, name, duration))


def _reach_instant(replay: Replay, name: str, spec: UntilWait) -> Steps[Wait | Boundary]:
    what = f"{replay.owner}: wake_at of '{name}'"
    wake_at = check_instant(what, spec.wake_at)
    entered = yield from replay.enter(_TIMER, name)
    if isinstance(entered, Boundary):
        if not entered.absolute or entered.wake_at != wake_at:
            raise WaitConflictError(
                f"{replay.owner}: '{name}' waits for another time, which stands; "
                "give the wait for the new one a name of its own"
            )
        return entered if entered.due else Wait(kind=_TIMER, name=name)
    with entered as flight:
        check_ahead(what, wake_at, replay.now())
        new = NewBoundary(name=name, kind=_TIMER, seq=0, wake_at=wake_at)
        if replay.suspension:  # the lease is given up, whether it is past or not
            return Wait(kind=_TIMER, name=name, new=new)
        replay.may_start()
        # Written now and not with the suspension: only the database can say whether it is past.
        new = replay.number(new)
        yield from replay.write_timer(flight, Record(lease=replay.lease, boundary=new))
    return (yield from _reach_instant(replay, name, spec))


def _check_ref(replay: Replay, name: str, ref: object) -> None:
    try:
        check_reference(ref)
    except InvalidNameError as error:
        raise InvalidNameError(f"{replay.owner}: the token of '{name}': {error}") from None
