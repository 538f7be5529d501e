"""`Context`: what a plain handler is handed.

Source: docs/design.md, section 7.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, Unpack, overload

from workhorse import waits
from workhorse.domain.missing import MISSING
from workhorse.errors import ChildFailedError
from workhorse.handlers.replay import checkpoints, choosing, groups, looking, waiting
from workhorse.handlers.replay.driving import check_plain, drive
from workhorse.handlers.replay.flights import Steps
from workhorse.handlers.replay.state import Replay
from workhorse.handlers.signals import StopSignal
from workhorse.handlers.views import View

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from workhorse.handlers.producing import RunOptions
    from workhorse.handlers.tasks import Task

P = TypeVar("P")
R = TypeVar("R")

_NO_PAYLOAD: Final[Any] = MISSING
_frame: Final = sys._getframe


class Context(View):
    """What a plain handler is handed; see `AsyncContext` for async ones.

    After a retry, a crash or a wait the handler is called from the top; calls that it has passed
    answer from the store. Their names are program state: 1 to 200 printable characters, unique in
    the run, the same in each deployment. All of these calls may be made from several threads.

    Each of them raises, besides what it says itself:
        InvalidNameError: The name is not of the allowed form.
        LeaseLostError: The lease ran out or was taken; nothing was stored.
        DuplicateBoundaryError: The handler has asked for the name at another place. The run fails.
        Stopped: The activation is told to end (`stopping`, `cancelled`), and the call would begin
            something new; no `Exception`, so that `except Exception` lets it pass.
        BoundaryLimitExceededError: The run has 10,000 boundaries, or 64 MiB in them. It fails.
        ConfigurationError: The context belongs to no worker, so that nobody stores boundaries.
    """

    __slots__ = ()

    def _drive(self, replay: Replay, name: str | None, steps: Steps[R]) -> R:
        """Carry out a call. Where the handler itself makes it, that is noted."""
        if type(name) is str and get_ident() == self._core.thread:
            caller = _frame(2)
            place = (caller.f_code, caller.f_lasti)
            asked = replay.calls.asked
            if name in asked and replay.calls.is_stored(name):
                value = drive(steps)
                replay.calls.answered_again(name, place)
                return value
            asked[name] = place
        return drive(steps)

    @property
    def stopping(self) -> StopSignal:
        """Set as soon as the worker is told to end; the handler still has its drain time."""
        return StopSignal(self._core.stopping)

    @property
    def cancelled(self) -> StopSignal:
        """Set when the handler is to end now; `.reason` says why."""
        return StopSignal(self._core.cancelled)

    # -- stages ----------------------------------------------------------------------------------

    def checkpoint(
        self,
        name: str,
        operation: Callable[[], R],
        input: object = MISSING,  # noqa: A002 - the word for it
    ) -> R:
        """Run an operation once and store its result; later activations get the stored value.

        The operation can run again where the process dies between its effect and the commit; pass
        an idempotency key on to systems outside. One that raises stores nothing and runs again in
        the next attempt. Calls of one name at once are one execution.

        Args:
            name: Of the boundary.
            operation: A plain function without parameters. It returns a JSON value of 1 MiB at
                most.
            input: What the stage depends on, a JSON value. Its fingerprint is stored: another one
                on replay is a conflict.

        Returns:
            The stored form, decoded: a fresh object at each call, also the first time.

        Raises:
            CheckpointConflictError: The name belongs to something else, to another value or to
                another input, which stands. The run fails.
            UnstorableValueError: The result is no JSON value. The run fails.
            ValueTooLargeError: The result is too large. The run fails.
            ConfigurationError: The operation is a coroutine function, or returned an awaitable.

        Source: docs/design.md, section 7
        """
        check_plain(f"checkpoint '{name}'", operation)
        replay = self._core.replay
        value: R = self._drive(replay, name, checkpoints.checkpoint(replay, name, operation, input))
        return value

    def transaction(self, name: str, operation: Callable[[Connection], R]) -> R:
        """Run an operation whose writes commit together with the checkpoint: exactly once.

        It is for work in the database that Workhorse itself uses. It runs in another thread, in a
        copy of the context variables; on SQLite it may take a third of the lease.

        Args:
            name: Of the boundary.
            operation: A plain function of an open SQLAlchemy connection, which it must neither
                commit nor roll back. It returns a JSON value of 1 MiB at most. It is called again
                after a deadlock or a lost connection.

        Returns:
            As `checkpoint`.

        Raises:
            TransactionMisuseError: The operation ended the transaction; nothing was stored.
            TransactionTimeoutError: It took too long on SQLite; all was rolled back.
            CheckpointConflictError, UnstorableValueError, ValueTooLargeError, ConfigurationError:
                As `checkpoint`; all was rolled back.

        Source: docs/design.md, section 7
        """
        check_plain(f"transaction '{name}'", operation)
        replay = self._core.replay
        value: R = self._drive(replay, name, checkpoints.transaction(replay, name, operation))
        return value

    def patched(self, name: str) -> bool:
        """Whether the run takes the new branch of changed code; decided once and stored.

        False for a run that an earlier activation has taken beyond this place, so that it keeps
        the old branch; True for all others.

        Raises:
            CheckpointConflictError: The name belongs to something else. The run fails.
        """
        replay = self._core.replay
        return self._drive(replay, None, checkpoints.patched(replay, name))

    def progress(self, value: object) -> None:
        """Say how far the run is: a JSON value of 64 KiB at most. The latest stands.

        It is written at most every 100 ms and survives the run's end; it is no boundary.

        Raises:
            UnstorableValueError, ValueTooLargeError: The value cannot be stored. The run fails.
        """
        looking.progress(self._core.replay, value)

    # -- waits -----------------------------------------------------------------------------------

    def sleep(
        self, name: str, duration: timedelta | None = None, *, duration_ms: int | None = None
    ) -> None:
        """Give the lease up until a time has passed; the slot is free, no attempt is spent.

        The first activation to get here stores the target; later ones keep it and return at once
        when it has passed. Zero is stored, and returns at once.

        Args:
            name: Of the boundary.
            duration: From the first arrival, by the database's clock; at most 365 days.
            duration_ms: The same, in whole milliseconds; one of the two is given.

        Raises:
            InvalidInstantError: The duration is negative, not finite, too long or not given.
            WaitConflictError: The name belongs to something else. The run fails.
            WaitLimitExceededError: The run has 1,000 open waits. It fails.
        """
        spec = waits.timer(waiting.one_duration(name, duration, duration_ms))
        replay = self._core.replay
        self._drive(replay, name, waiting.wait(replay, name, spec))

    def sleep_until(self, name: str, wake_at: datetime) -> None:
        """Give the lease up until an instant; what is past returns at once.

        Args:
            name: Of the boundary.
            wake_at: An aware datetime, at most 365 days ahead; it must not change on replay.

        Raises:
            InvalidInstantError: The instant is naive or out of range.
            WaitConflictError: The name belongs to something else or another instant. The run fails.
            WaitLimitExceededError: The run has 1,000 open waits. It fails.
        """
        replay = self._core.replay
        self._drive(replay, name, waiting.wait(replay, name, waits.until(wake_at)))

    def wait_for_signal(
        self, name: str, timeout: timedelta | None = None, default: object = MISSING
    ) -> Any:
        """Return what `app.send_signal(run_id, name, value)` brings; give the lease up until then.

        A signal that was sent before is there at once.

        Args:
            name: Of the boundary, and of the signal.
            timeout: From the first arrival, at most 365 days; None waits as long as it takes.
            default: What is returned on time-out.

        Raises:
            WaitTimeoutError: The time-out came first, and there is no default.
            InvalidInstantError: The time-out is negative or too long.
            WaitConflictError: The name belongs to something else. The run fails.
            WaitLimitExceededError: The run has 1,000 open waits. It fails.
        """
        spec = waits.signal(timeout=timeout, default=default)
        replay = self._core.replay
        return self._drive(replay, name, waiting.wait(replay, name, spec))

    def wait_for_human(
        self,
        name: str,
        context: object = None,
        timeout: timedelta | None = None,
        default: object = MISSING,
    ) -> Any:
        """Return an operator's decision, of `app.complete_human_wait`; see `wait_for_signal`.

        Args:
            name: Of the boundary.
            context: What the operator is shown: a JSON value of 64 KiB at most; the first stands.
            timeout: As of `wait_for_signal`.
            default: As of `wait_for_signal`.

        Raises: As `wait_for_signal`, and:
            UnstorableValueError, ValueTooLargeError: The context cannot be stored. The run fails.
        """
        spec = waits.human(context, timeout=timeout, default=default)
        replay = self._core.replay
        return self._drive(replay, name, waiting.wait(replay, name, spec))

    def wait_any(
        self, waits: Mapping[str, waits.WaitFor], *, name: str | None = None
    ) -> waits.First:
        """Wait for the first of several, and close the others: they take no value any more.

        What was delivered counts in the order in which it came, before timers that have passed. A
        child that did not come first goes on; nobody gets its result here.

        Args:
            waits: Boundary names, each with a wait of `workhorse.waits`.
            name: Of the boundary that keeps the decision; default `any:` and the first of the
                names in alphabetical order.

        Returns:
            The name that came first, and what that wait alone would have returned.

        Raises:
            WaitTimeoutError, ChildFailedError: What came first is that.
            WaitConflictError: A name belongs to something else, or the decision was taken among
                other waits. The run fails.
            WaitLimitExceededError: The run has 1,000 open waits. It fails.
        """
        replay = self._core.replay
        return self._drive(
            replay, choosing.name_of(waits, name), choosing.wait_any(replay, waits, name)
        )

    def token(self, name: str, timeout: timedelta | None = None) -> str:
        """Make an unguessable reference once, which completes waits from outside.

        Hand it to who is to call `app.complete_token(reference, value)`; it is a secret.

        Args:
            name: Of the boundary; the wait for the token has a name of its own.
            timeout: When it is settled as timed out; at most 365 days. None never does.

        Raises:
            InvalidInstantError: The time-out is negative or too long.
            WaitConflictError: The name belongs to something else. The run fails.
        """
        replay = self._core.replay
        return self._drive(replay, name, checkpoints.token(replay, name, timeout))

    def wait_for_token(self, name: str, token: str, default: object = MISSING) -> Any:
        """Return what completes a token; many runs can wait for the same one.

        Args:
            name: Of the boundary.
            token: What `token` or `app.create_token` returned.
            default: What is returned when the token's own time-out comes first.

        Raises:
            WaitTimeoutError: The token's time-out came first, and there is no default.
            WaitConflictError: The name belongs to something else, or another token. The run fails.
            WaitLimitExceededError: The run has 1,000 open waits. It fails.
        """
        spec = waits.token(token, default=default)
        replay = self._core.replay
        return self._drive(replay, name, waiting.wait(replay, name, spec))

    # -- children --------------------------------------------------------------------------------

    def child(
        self,
        name: str,
        task: Task[P, R],
        payload: P = _NO_PAYLOAD,
        *,
        on_parent_end: Literal["cancel", "keep"] = "cancel",
        **options: Unpack[RunOptions],
    ) -> R:
        """Start another run once, and return its result; give the lease up until it has ended.

        Args:
            name: Of the boundary.
            task: Whose run it is.
            payload: As of `task.enqueue`.
            on_parent_end: `cancel` cancels the child when this run ends; `keep` lets it go on.
            options: See `RunOptions`. A `key` is refused, for the name is one; so is the session
                of this run, whose turn the child would never get.

        Raises:
            ChildFailedError: The child has failed or was cancelled.
            WaitConflictError: The name belongs to something else, another task or another payload.
                The run fails.
            WaitLimitExceededError: The run has 1,000 open waits. It fails.
            ConfigurationError: An option cannot work.
            UnstorableValueError, ValueTooLargeError: As `task.enqueue`. The run fails.
        """
        spec = waits.child(task, payload, on_parent_end=on_parent_end, **options)
        replay = self._core.replay
        result: R = self._drive(replay, name, waiting.wait(replay, name, spec))
        return result

    @overload
    def children(
        self,
        name: str,
        task: Task[P, R],
        payloads: Iterable[P],
        *,
        on_failure: Literal["return"],
        max_parallel: int | None = None,
        on_parent_end: Literal["cancel", "keep"] = "cancel",
        **options: Unpack[RunOptions],
    ) -> list[R | ChildFailedError]: ...
    @overload
    def children(
        self,
        name: str,
        task: Task[P, R],
        payloads: Iterable[P],
        *,
        on_failure: Literal["raise", "cancel"] = "raise",
        max_parallel: int | None = None,
        on_parent_end: Literal["cancel", "keep"] = "cancel",
        **options: Unpack[RunOptions],
    ) -> list[R]: ...
    def children(
        self,
        name: str,
        task: Task[Any, Any],
        payloads: Iterable[Any],
        *,
        on_failure: str = "raise",
        max_parallel: int | None = None,
        on_parent_end: str = "cancel",
        **options: Unpack[RunOptions],
    ) -> list[Any]:
        """Start a run for each payload, and return their results in order.

        Each is a boundary of its own, `name[0]` and so on.

        Args:
            name: Of the boundary that stands for all of them.
            task: Whose runs they are.
            payloads: One for each; their number must not change on replay.
            on_failure: What the first failure does: `raise` raises it and lets the others go on,
                `cancel` has the others cancelled before, `return` puts the error in its place.
            max_parallel: How many may be unfinished at once; None starts all.
            on_parent_end: As of `child`.
            options: As of `child`.

        Raises:
            ChildFailedError: The first of them that failed or was cancelled.
            WaitConflictError: As `child`, or their number has changed. The run fails.
            WaitLimitExceededError: The run has 1,000 open waits; `max_parallel` helps. It fails.
            ConfigurationError: An option cannot work.
        """
        replay = self._core.replay
        return self._drive(
            replay,
            name,
            groups.children(
                replay,
                name,
                task,
                payloads,
                max_parallel=max_parallel,
                on_failure=on_failure,
                on_parent_end=on_parent_end,
                options=options,
            ),
        )

    # -- looking ---------------------------------------------------------------------------------

    def get_checkpoint(self, name: str) -> Any:
        """Return the value of a checkpoint, `MISSING` where there is none; begin nothing.

        `MISSING` is false, and null is a value.
        """
        replay = self._core.replay
        return self._drive(replay, None, looking.get_checkpoint(replay, name))

    def get_wait(self, name: str) -> Any:
        """Return what has come for a wait, `MISSING` where nothing has; begin nothing.

        None for a timer that has passed. A signal that was sent before its wait is seen too, and a
        child's result as plain JSON. What comes while the handler runs is seen by its next
        activation: do not branch on it what must replay.
        """
        replay = self._core.replay
        return self._drive(replay, None, looking.get_wait(replay, name))
