"""Every error that Workhorse raises.

A message says what happened, which one it happened to, what now stands, and what to do. Messages
never hold payloads, values or credentials: they end up in logs.

Source: docs/design.md, section 11.
"""

from __future__ import annotations

from functools import partial


class WorkhorseError(Exception):
    """The base of all errors below; catching it catches whatever Workhorse raises itself."""


class InvalidNameError(WorkhorseError, ValueError):
    """A queue, task, boundary, key, session, tag or run id is not of the allowed form."""


class InvalidInstantError(WorkhorseError, ValueError):
    """A point in time or a duration is naive, not finite or out of range."""


class UnstorableValueError(WorkhorseError, ValueError):
    """A value cannot be stored unchanged. `path` names the bad part, e.g. `$.items[3]`."""

    def __init__(self, message: str, *, path: str = "$") -> None:
        super().__init__(message)
        self.path = path


class ValueTooLargeError(WorkhorseError, ValueError):
    """A value's compact JSON is larger than its cap; `size` and `cap` are bytes of UTF-8."""

    def __init__(self, what: str, size: int, cap: int) -> None:
        super().__init__(
            f"{what} is {size:,} bytes of JSON and may be {cap:,} at most; nothing was stored. "
            "Keep the value where it belongs (an object store, a table) and pass its key instead"
        )
        self.what = what
        self.size = size
        self.cap = cap

    def __reduce__(self) -> tuple[type[ValueTooLargeError], tuple[str, int, int]]:
        return type(self), (self.what, self.size, self.cap)


class ConfigurationError(WorkhorseError):
    """A setting, a task's definition or a combination of them cannot work."""


class UnknownTaskError(WorkhorseError, LookupError):
    """No task of that name is registered in this app."""


class IdempotencyConflictError(WorkhorseError):
    """The key belongs to a run with another payload, or the request id to another request.

    What it belongs to stands as it is.
    """


class RunNotFoundError(WorkhorseError, LookupError):
    """No run has that id in this store and environment."""


class RunNotFinishedError(WorkhorseError):
    """The run has not ended yet, so it cannot be run again; it goes on as it is."""


class BoundaryNotFoundError(WorkhorseError, LookupError):
    """The run has passed no boundary of that name."""


class RunFailedError(WorkhorseError):
    """The run that was waited for has failed; `reason`, `error_type`, `error_message` say how."""

    def __init__(
        self, message: str, *, reason: str, error_type: str | None, error_message: str | None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.error_type = error_type
        self.error_message = error_message

    def __reduce__(self) -> tuple[partial[RunFailedError], tuple[object, ...]]:
        # Without it, the error cannot cross to another process: it has arguments by keyword.
        rebuild = partial(
            type(self),
            reason=self.reason,
            error_type=self.error_type,
            error_message=self.error_message,
        )
        return rebuild, self.args


class RunCancelledError(WorkhorseError):
    """The run that was waited for was cancelled."""


class ResultTimeoutError(WorkhorseError, TimeoutError):
    """The run that was waited for has not ended in time; it goes on."""


class LeaseLostError(WorkhorseError):
    """The run's lease ran out or was taken; nothing was stored under it."""


class LeaseRequiredError(WorkhorseError):
    """A run was handed over for execution without a lease; it was not touched."""


class CheckpointConflictError(WorkhorseError):
    """The checkpoint already holds another value or input, which stands."""


class DuplicateBoundaryError(WorkhorseError):
    """Two stages or waits of a handler have one name; the first stands."""


class BoundaryNotAwaitedError(WorkhorseError):
    """An async handler has called its context and never awaited the call, which did nothing."""


class WaitConflictError(WorkhorseError):
    """The name already belongs to another kind of wait, or to another target."""


class WaitLimitExceededError(WorkhorseError):
    """The run has as many open waits as it may have."""


class WaitTimeoutError(WorkhorseError, TimeoutError):
    """The wait's time-out came before its value."""


class BoundaryLimitExceededError(WorkhorseError):
    """The run has as many boundaries, or as many bytes in them, as it may have."""


class DeliveryConflictError(WorkhorseError):
    """The delivery's key was used before with another value, which stands."""


class DeliveryLimitExceededError(WorkhorseError):
    """The run has as many unread deliveries as it may have."""


class TokenNotFoundError(WorkhorseError, LookupError):
    """No wait token has that reference."""


class ChildFailedError(WorkhorseError):
    """A child run that was waited for has failed or was cancelled.

    `run_id` names it; `reason` (`cancelled` for one that was), `error_type`, `error_message` say
    how it ended.
    """

    def __init__(
        self,
        message: str,
        *,
        run_id: str | None,
        reason: str,
        error_type: str | None,
        error_message: str | None,
    ) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.reason = reason
        self.error_type = error_type
        self.error_message = error_message

    def __reduce__(self) -> tuple[partial[ChildFailedError], tuple[object, ...]]:
        # As above.
        rebuild = partial(
            type(self),
            run_id=self.run_id,
            reason=self.reason,
            error_type=self.error_type,
            error_message=self.error_message,
        )
        return rebuild, self.args


class ReplayDivergenceError(WorkhorseError, AssertionError):
    """A handler no longer takes the way that a stored run has gone.

    `boundary` is where; `expected` and `came` say what stood and what was found; `place` is
    `file:line` of the call, None where there was none.
    """

    def __init__(
        self,
        message: str,
        *,
        boundary: str | None = None,
        expected: str = "",
        came: str = "",
        place: str | None = None,
    ) -> None:
        super().__init__(message)
        self.boundary = boundary
        self.expected = expected
        self.came = came
        self.place = place

    def __reduce__(self) -> tuple[partial[ReplayDivergenceError], tuple[object, ...]]:
        rebuild = partial(
            type(self),
            boundary=self.boundary,
            expected=self.expected,
            came=self.came,
            place=self.place,
        )
        return rebuild, self.args


class TransactionMisuseError(WorkhorseError):
    """An operation ended or broke the transaction that it was handed; no checkpoint was stored."""


class TransactionTimeoutError(WorkhorseError, TimeoutError):
    """An operation kept SQLite's write lock for too long; all of it was rolled back."""


class SchemaMismatchError(WorkhorseError):
    """The database's schema is missing, older than this version needs, or no longer serves it."""


class StoreUnavailableError(WorkhorseError):
    """The database could not be reached, or did not answer; the message says what now stands.

    Where no statement can have got to it, nothing was sent; else the operation may have happened.
    """


class StoreRefusedError(StoreUnavailableError):
    """The database cannot be used as it is: no right, or a file that cannot be written or read.

    It does not pass by itself. Nothing was stored, but where a try before it lost its connection:
    then the message says that the operation may have happened.
    """


class InvalidEventError(WorkhorseError, ValueError):
    """A function was invoked with an event that its handler is not for; nothing was done."""


class MaintenanceFailedError(WorkhorseError):
    """Every step of a maintenance pass failed; nothing is lost, and the next pass tries again."""


class NonRetryableError(WorkhorseError):
    """Raise it in a handler to end the run at once, whatever attempts are left."""
