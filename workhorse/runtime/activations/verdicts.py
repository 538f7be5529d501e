"""How an activation ended, from what its handler returned or raised and what it was told.

A stop is recognised by what the worker told the handler, not only by the error that comes back: a
TaskGroup wraps it, a library turns it into an error of its own, and a handler may swallow it.

Source: docs/design.md, sections 2 and 6.
"""

from __future__ import annotations

import contextlib
from typing import Final, assert_never

from workhorse.domain.outcomes import Failed, HandedBack, Outcome, Succeeded
from workhorse.domain.outcomes import Suspended as SuspendedAt
from workhorse.domain.runs import Failure, Reason
from workhorse.domain.transitions import LEASE_EXPIRED
from workhorse.errors import BoundaryNotAwaitedError
from workhorse.handlers.failures import ENDS, STOPS, describe, reason_for, tells_of
from workhorse.handlers.replay.gate import CUTS
from workhorse.handlers.signals import StopReason
from workhorse.runtime.activations.activation import Activation
from workhorse.store.lifecycle.sweeping import DEADLINE_PASSED

TIMED_OUT: Final = Failure("AttemptTimeout", "the attempt's active time ran out")
CANCELLED: Final = Failure("Cancelled", "the run was cancelled while its handler was running")

_SUCCEEDED: Final = Succeeded()


def of_value(activation: Activation, value: object) -> Outcome:
    """Return the outcome of a handler that returned."""
    if activation.limit is not None or activation.core.used:
        decided = _of_return(activation)
        if decided is not None:
            return decided
    try:
        result = activation.task.encode_result(value)
        return Succeeded(result) if result != "null" else _SUCCEEDED
    except BaseException as error:  # noqa: BLE001 - a codec runs the user's code
        return Failed(describe(error), reason_for(activation.task, error))


def _of_return(activation: Activation) -> Outcome | None:
    """Return what decides the outcome where a handler returned; None for what it returned."""
    decided = of_state(activation)
    if decided is not None:
        activation.swallowed = isinstance(decided, SuspendedAt)
        return decided
    if activation.core.cut_short:
        cut = of_cut(activation)
        if cut is not None:
            return cut
    unawaited = forgotten(activation)
    if unawaited is not None:
        return Failed(describe(unawaited), reason_for(activation.task, unawaited))
    return None


def of_error(activation: Activation, error: BaseException) -> Outcome:
    """Return the outcome of a handler that raised, or whose payload does not fit it."""
    told = of_told(activation, error)
    if told is not None:
        return told
    unawaited = forgotten(activation)
    if unawaited is not None:
        # Often the reason for it: a coroutine stands where the stage's value should be. The error
        # itself stands, for a call may also wait to be awaited where another has failed.
        with contextlib.suppress(Exception):
            error.add_note(str(unawaited))
    return Failed(describe(error), reason_for(activation.task, error))


def of_told(activation: Activation, error: BaseException) -> Outcome | None:
    """Return what decides the outcome where a handler raised; None for the error itself."""
    decided = of_state(activation)
    if decided is not None:
        activation.swallowed = isinstance(decided, SuspendedAt) and not tells_of(ENDS, error)
        return decided
    stop = activation.core.cancelled.reason or activation.core.stopping.reason
    if stop is not None and (tells_of(STOPS, error) or _ended_by(activation, stop)):
        return of_stop(stop)
    return None


def failed_beside(activation: Activation, error: BaseException) -> bool:
    """Say that a handler has failed by itself while some of its tasks were held at waits.

    It has seen no suspension then, nor was it told to stop, that its error could come of. The next
    attempt gets to those waits again; in this one they would hide what has to be tried again.
    """
    core = activation.core
    if not core.suspension or core.suspended or core.cancelled or core.stopping:
        return False
    return not tells_of(ENDS, error)


def of_state(activation: Activation) -> Outcome | None:
    """Return what decides the outcome, whatever the handler makes of it; None where nothing does.

    A handler that has come to a wait is suspended, also when it swallowed that and went on; unless
    its time is over, or its run was cancelled.
    """
    if activation.limit is not None:
        return of_limit(activation.limit)
    waits = activation.waits or activation.core.suspension
    if not waits:
        return None
    if activation.core.cancelled.reason is StopReason.CANCELLED:
        return of_stop(StopReason.CANCELLED)
    return SuspendedAt(waits)


def of_stop(stop: StopReason) -> Outcome:
    """Return the outcome of a handler that ended since it was told to."""
    match stop:
        case StopReason.SHUTDOWN:
            return HandedBack()
        case StopReason.CANCELLED:
            return Failed(CANCELLED, Reason.CANCELLED)
        case StopReason.LEASE_LOST:
            # As recovery would say; it counts only if the token is still there.
            return Failed(LEASE_EXPIRED, Reason.LOST)
        case StopReason.TIMEOUT:
            return of_limit(Reason.TIMEOUT)
        case StopReason.DEADLINE:
            return of_limit(Reason.DEADLINE)
        case _:
            assert_never(stop)


def of_limit(limit: Reason) -> Outcome:
    """Return the outcome of a handler whose time ran out."""
    failure = DEADLINE_PASSED if limit is Reason.DEADLINE else TIMED_OUT
    return Failed(failure, limit)


def forgotten(activation: Activation) -> BoundaryNotAwaitedError | None:
    """Return what there is to say of calls that an async handler has made and never awaited.

    They are closed, so that Python does not say it a second time.
    """
    if not activation.core.unawaited:
        return None
    return activation.core.forgotten([task.get_coro() for task in activation.children or ()])


def of_cut(activation: Activation) -> Outcome | None:
    """Return what a handler that went on without a boundary it was refused comes to.

    None where it was refused since its run ends: what it returns is then kept with the outcome.
    """
    stop = activation.core.cancelled.reason or activation.core.stopping.reason
    return of_stop(stop) if stop in CUTS else None


def _ended_by(activation: Activation, stop: StopReason) -> bool:
    # Once its tasks were cancelled for a shutdown, or a boundary was refused, whatever a handler
    # raises comes of that.
    if activation.core.cut_short:
        return stop in CUTS
    return activation.uprooted and stop is StopReason.SHUTDOWN
