"""Signals that tell a handler to stop: falsy until set, waited for from threads and event loops.

Each signal is one `StopSwitch`, which the worker holds and sets, and two thin views of it:
`StopSignal` for plain handlers and `AsyncStopSignal` for async ones.

Source: docs/design.md, sections 6 and 7.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from workhorse.domain.instants import check_duration
from workhorse.errors import InvalidInstantError, LeaseLostError
from workhorse.telemetry import get_logger

if TYPE_CHECKING:
    from workhorse.handlers.recording import Pending

_log = get_logger("handlers")


class StopReason(StrEnum):
    """Why a handler is told to stop."""

    CANCELLED = "cancelled"
    """Somebody cancelled the run."""
    LEASE_LOST = "lease_lost"
    """The lease ran out, or a newer claim owns the run."""
    TIMEOUT = "timeout"
    """The attempt's active time ran out."""
    DEADLINE = "deadline"
    """The time of the whole run ran out."""
    SHUTDOWN = "shutdown"
    """The worker ends."""


class Stopped(BaseException):
    """Ends an activation that was told to stop; `reason` says why.

    It is no `Exception`, so that a handler's `except Exception` lets it pass. A handler that
    swallows it is not safe from the stop either: the worker knows the state of the signal and does
    not judge by this type alone.
    """

    def __init__(self, message: str, *, reason: StopReason) -> None:
        super().__init__(message)
        self.reason = reason


class Suspended(BaseException):
    """Ends an activation at a wait: its lease is given up until one of its waits is settled.

    As `Stopped` it is no `Exception`, and a handler that swallows it is suspended all the same.

    `quiet` is answered once nothing of the activation is under way any more; until then the call of
    an async handler holds the error back. None where it is to be raised at once.
    """

    def __init__(self, message: str, *, quiet: Pending[None] | None = None) -> None:
        super().__init__(message)
        self.quiet = quiet


_guard: Final = threading.Lock()
"""Shared by all switches, which most activations make two of and never set."""


class StopSwitch:
    """The worker's side of a signal. It is set once; the first reason stands. Safe in threads.

    Args:
        owner: Whom the signal is for, as errors call it, e.g. `run 0197c2`.
    """

    __slots__ = ("_callbacks", "_reason", "owner")

    def __init__(self, owner: str = "the run") -> None:
        self.owner = owner
        self._reason: StopReason | None = None
        self._callbacks: tuple[Callable[[], object], ...] = ()

    @property
    def reason(self) -> StopReason | None:
        """Why it was set; None until then."""
        return self._reason

    def __bool__(self) -> bool:
        return self._reason is not None

    def set(self, reason: StopReason) -> bool:
        """Set the signal and wake who waits; answer whether this call was the first.

        Callbacks are called here, in the caller's thread, each once; what one raises is logged.
        """
        with _guard:
            if self._reason is not None:
                return False
            self._reason = reason
            callbacks, self._callbacks = self._callbacks, ()
        for callback in callbacks:
            self._call(callback)
        return True

    def on_set(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call `callback` when the signal is set, or now if it is; return how to take that back.

        It runs in the thread that sets the signal and must not block.
        """
        with _guard:
            if self._reason is None:
                self._callbacks = (*self._callbacks, callback)
                return lambda: self._forget(callback)
        self._call(callback)
        return lambda: None

    def raise_if_set(self) -> None:
        """Raise `LeaseLostError` for a lost lease, `Stopped` for any other reason that was set."""
        reason = self._reason
        if reason is None:
            return
        if reason is StopReason.LEASE_LOST:
            raise LeaseLostError(
                f"{self.owner}: its lease ran out or was taken; nothing more is stored under it"
            )
        raise Stopped(f"{self.owner} was told to stop: {reason.value}", reason=reason)

    def _forget(self, callback: Callable[[], object]) -> None:
        with _guard:
            left = list(self._callbacks)
            with contextlib.suppress(ValueError):
                left.remove(callback)
            self._callbacks = tuple(left)

    def _call(self, callback: Callable[[], object]) -> None:
        try:
            callback()
        except Exception:  # noqa: BLE001 - one waiter's trouble must not keep the others asleep
            _log.exception("a callback of a stop signal failed; the others go on")


class _View:
    __slots__ = ("_switch",)

    def __init__(self, switch: StopSwitch) -> None:
        self._switch = switch

    def __bool__(self) -> bool:
        return bool(self._switch)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.reason or 'not set'}>"

    @property
    def reason(self) -> StopReason | None:
        """Why the signal was set; None until then. The first reason stands."""
        return self._switch.reason

    def raise_if_set(self) -> None:
        """End the activation if the signal is set; do nothing otherwise.

        Raises:
            LeaseLostError: The lease ran out or was taken.
            Stopped: Any other reason; no `Exception`, so that `except Exception` lets it pass.
        """
        self._switch.raise_if_set()


class StopSignal(_View):
    """Tells a plain handler to stop. It is falsy until set: `if ctx.cancelled: ...`."""

    __slots__ = ()

    def wait(self, timeout: timedelta | float | None = None) -> bool:
        """Block until the signal is set or the time is over; answer whether it is set.

        Args:
            timeout: The longest wait, a timedelta or seconds; None waits as long as it takes.

        Raises:
            InvalidInstantError: The time-out is negative, not finite or longer than 365 days.
        """
        seconds = _seconds(timeout)
        event = threading.Event()
        forget = self._switch.on_set(event.set)
        try:
            return event.wait(seconds) or bool(self)
        finally:
            forget()


class AsyncStopSignal(_View):
    """Tells an async handler to stop. It is falsy until set: `if ctx.cancelled: ...`."""

    __slots__ = ()

    async def wait(self, timeout: timedelta | float | None = None) -> bool:  # noqa: ASYNC109
        """Wait until the signal is set or the time is over; answer whether it is set.

        It may be set from any thread. Waits in several tasks and event loops are independent.

        Args:
            timeout: The longest wait, a timedelta or seconds; None waits as long as it takes.

        Raises:
            InvalidInstantError: The time-out is negative, not finite or longer than 365 days.
        """
        seconds = _seconds(timeout)
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
                loop.call_soon_threadsafe(woken.set)

        forget = self._switch.on_set(wake)
        try:
            await asyncio.wait_for(woken.wait(), seconds)
        except TimeoutError:
            return bool(self)
        finally:
            forget()
        return True


def _seconds(timeout: timedelta | float | None) -> float | None:
    if timeout is None:
        return None
    if isinstance(timeout, (int, float)):
        try:
            timeout = timedelta(seconds=timeout)
        except (ValueError, OverflowError):
            raise InvalidInstantError("timeout is not a finite number of seconds") from None
    return check_duration("timeout", timeout).total_seconds()
