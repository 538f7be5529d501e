"""`AsyncContext`: what an async handler is handed; `Context` says more of each call.

Source: docs/design.md, section 7.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, Unpack, overload

from workhorse import waits
from workhorse.domain.missing import MISSING
from workhorse.errors import ChildFailedError
from workhorse.handlers.replay import checkpoints, choosing, groups, looking, waiting
from workhorse.handlers.replay.driving import check_callable, check_plain, drive_async
from workhorse.handlers.replay.flights import Steps
from workhorse.handlers.replay.state import Replay
from workhorse.handlers.signals import AsyncStopSignal
from workhorse.handlers.views import View

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from workhorse.handlers.producing import RunOptions
    from workhorse.handlers.tasks import Task

P = TypeVar("P")
R = TypeVar("R")

_NO_PAYLOAD: Final[Any] = MISSING
_frame: Final = sys._getframe


class AsyncContext(View):
    """What an async handler is handed; see `Context`, whose calls these are, for plain ones.

    All calls but the properties are awaited, from any number of tasks of the handler. One that is
    not fails the run with `BoundaryNotAwaitedError`, when the handler returns. A cancelled task
    (`asyncio.wait_for`) ends its own call alone: what was handed to the store is stored.

    A wait raises a `BaseException` that ends the activation, and with it the tasks of the handler:
    what they have not stored runs again.
    """

    __slots__ = ()

    def _call(
        self, replay: Replay, what: str, name: str | None, steps: Steps[R]
    ) -> Coroutine[Any, Any, R]:
        """Return a call that is to be awaited; it is noted until it is.

        No method is a coroutine function: once that runs, who has called it is not to be seen.
        """
        caller = _frame(2)
        place = (caller.f_code, caller.f_lasti)
        calls = replay.calls
        call = drive_async(calls, steps, name, self._core.flow)
        calls.made[steps] = (call, what, place)
        return call

    @property
    def stopping(self) -> AsyncStopSignal:
        """Set as soon as the worker is told to end; the handler still has its drain time."""
        return AsyncStopSignal(self._core.stopping)

    @property
    def cancelled(self) -> AsyncStopSignal:
        """Set when the handler is to end now; `.reason` says why."""
        return AsyncStopSignal(self._core.cancelled)

    # -- stages ----------------------------------------------------------------------------------

    @overload
    async def checkpoint(
        self, name: str, operation: Callable[[], Awaitable[R]], input: object = MISSING
    ) -> R: ...
    @overload
    async def checkpoint(
        self, name: str, operation: Callable[[], R], input: object = MISSING
    ) -> R: ...
    def checkpoint(
        self,
        name: str,
        operation: Callable[[], object],
        input: object = MISSING,  # noqa: A002 - the word for it
    ) -> Coroutine[Any, Any, Any]:
        """As `Context.checkpoint`; the operation may be async, a plain one runs on the event loop.

        Returns:
            The stored form, decoded: a fresh object at each call, also the first time.
        """
        check_callable(f"checkpoint '{name}'", operation)
        replay = self._core.replay
        return self._call(
            replay, "checkpoint", name, checkpoints.checkpoint(replay, name, operation, input)
        )

    def transaction(
        self, name: str, operation: Callable[[Connection], R]
    ) -> Coroutine[Any, Any, R]:
        """As `Context.transaction`: a plain function, called in a thread and not on the loop."""
        check_plain(f"transaction '{name}'", operation)
        replay = self._core.replay
        return self._call(
            replay, "transaction", name, checkpoints.transaction(replay, name, operation)
        )

    def patched(self, name: str) -> Coroutine[Any, Any, bool]:
        """As `Context.patched`."""
        replay = self._core.replay
        return self._call(replay, "patched", None, checkpoints.patched(replay, name))

    def progress(self, value: object) -> Coroutine[Any, Any, None]:
        """As `Context.progress`; it does not wait for the store."""
        replay = self._core.replay
        return self._call(replay, "progress", None, looking.say(replay, value))

    # -- waits -----------------------------------------------------------------------------------

    def sleep(
        self, name: str, duration: timedelta | None = None, *, duration_ms: int | None = None
    ) -> Coroutine[Any, Any, None]:
        """As `Context.sleep`."""
        spec = waits.timer(waiting.one_duration(name, duration, duration_ms))
        replay = self._core.replay
        return self._call(replay, "sleep", name, waiting.wait(replay, name, spec))

    def sleep_until(self, name: str, wake_at: datetime) -> Coroutine[Any, Any, None]:
        """As `Context.sleep_until`."""
        replay = self._core.replay
        return self._call(
            replay, "sleep_until", name, waiting.wait(replay, name, waits.until(wake_at))
        )

    def wait_for_signal(
        self,
        name: str,
        timeout: timedelta | None = None,
        default: object = MISSING,
    ) -> Coroutine[Any, Any, Any]:
        """As `Context.wait_for_signal`."""
        spec = waits.signal(timeout=timeout, default=default)
        replay = self._core.replay
        return self._call(replay, "wait_for_signal", name, waiting.wait(replay, name, spec))

    def wait_for_human(
        self,
        name: str,
        context: object = None,
        timeout: timedelta | None = None,
        default: object = MISSING,
    ) -> Coroutine[Any, Any, Any]:
        """As `Context.wait_for_human`."""
        spec = waits.human(context, timeout=timeout, default=default)
        replay = self._core.replay
        return self._call(replay, "wait_for_human", name, waiting.wait(replay, name, spec))

    def wait_any(
        self, waits: Mapping[str, waits.WaitFor], *, name: str | None = None
    ) -> Coroutine[Any, Any, waits.First]:
        """As `Context.wait_any`."""
        replay = self._core.replay
        return self._call(
            replay,
            "wait_any",
            choosing.name_of(waits, name),
            choosing.wait_any(replay, waits, name),
        )

    def token(self, name: str, timeout: timedelta | None = None) -> Coroutine[Any, Any, str]:
        """As `Context.token`."""
        replay = self._core.replay
        return self._call(replay, "token", name, checkpoints.token(replay, name, timeout))

    def wait_for_token(
        self, name: str, token: str, default: object = MISSING
    ) -> Coroutine[Any, Any, Any]:
        """As `Context.wait_for_token`."""
        spec = waits.token(token, default=default)
        replay = self._core.replay
        return self._call(replay, "wait_for_token", name, waiting.wait(replay, name, spec))

    # -- children --------------------------------------------------------------------------------

    def child(
        self,
        name: str,
        task: Task[P, R],
        payload: P = _NO_PAYLOAD,
        *,
        on_parent_end: Literal["cancel", "keep"] = "cancel",
        **options: Unpack[RunOptions],
    ) -> Coroutine[Any, Any, R]:
        """As `Context.child`."""
        spec = waits.child(task, payload, on_parent_end=on_parent_end, **options)
        replay = self._core.replay
        return self._call(replay, "child", name, waiting.wait(replay, name, spec))

    @overload
    async def children(
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
    async def children(
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
    ) -> Coroutine[Any, Any, list[Any]]:
        """As `Context.children`."""
        replay = self._core.replay
        return self._call(
            replay,
            "children",
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

    def get_checkpoint(self, name: str) -> Coroutine[Any, Any, Any]:
        """As `Context.get_checkpoint`; awaited, since a large value is read when asked for."""
        replay = self._core.replay
        return self._call(replay, "get_checkpoint", None, looking.get_checkpoint(replay, name))

    def get_wait(self, name: str) -> Coroutine[Any, Any, Any]:
        """As `Context.get_wait`; awaited, since a large value is read when asked for."""
        replay = self._core.replay
        return self._call(replay, "get_wait", None, looking.get_wait(replay, name))
