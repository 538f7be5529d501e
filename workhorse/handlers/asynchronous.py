"""`AsyncContext`: what an async handler is handed; `Context` says more of each call.

Source: docs/design.md, section 7.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, Unpack, overload

from workhorse import waits
from workhorse.domain.missing import MISSING
from workhorse.errors import ChildFailedError
from workhorse.handlers.replay import checkpoints, choosing, groups, looking, waiting
from workhorse.handlers.replay.driving import check_callable, check_plain, drive_async
from workhorse.handlers.signals import AsyncStopSignal
from workhorse.handlers.views import View

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from workhorse.handlers.producing import RunOptions
    from workhorse.handlers.tasks import Task

P = TypeVar("P")
R = TypeVar("R")

_NO_PAYLOAD: Final[Any] = MISSING


class AsyncContext(View):
    """What an async handler is handed; see `Context`, whose calls these are, for plain ones.

    All calls but the properties are awaited, from any number of tasks of the handler. A cancelled
    task (`asyncio.wait_for`) ends its own call alone: what was handed to the store is stored.

    A wait raises a `BaseException` that ends the activation, and with it the tasks of the handler:
    what they have not stored runs again.
    """

    __slots__ = ()

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
    async def checkpoint(
        self,
        name: str,
        operation: Callable[[], object],
        input: object = MISSING,  # noqa: A002 - the word for it
    ) -> Any:
        """As `Context.checkpoint`; the operation may be async, a plain one runs on the event loop.

        Returns:
            The stored form, decoded: a fresh object at each call, also the first time.
        """
        check_callable(f"checkpoint '{name}'", operation)
        return await drive_async(checkpoints.checkpoint(self._core.replay, name, operation, input))

    async def transaction(self, name: str, operation: Callable[[Connection], R]) -> R:
        """As `Context.transaction`: a plain function, called in a thread and not on the loop."""
        check_plain(f"transaction '{name}'", operation)
        return await drive_async(checkpoints.transaction(self._core.replay, name, operation))

    async def patched(self, name: str) -> bool:
        """As `Context.patched`."""
        return await drive_async(checkpoints.patched(self._core.replay, name))

    async def progress(self, value: object) -> None:
        """As `Context.progress`; it does not wait for the store."""
        looking.progress(self._core.replay, value)

    # -- waits -----------------------------------------------------------------------------------

    async def sleep(
        self, name: str, duration: timedelta | None = None, *, duration_ms: int | None = None
    ) -> None:
        """As `Context.sleep`."""
        spec = waits.timer(waiting.one_duration(name, duration, duration_ms))
        await drive_async(waiting.wait(self._core.replay, name, spec))

    async def sleep_until(self, name: str, wake_at: datetime) -> None:
        """As `Context.sleep_until`."""
        await drive_async(waiting.wait(self._core.replay, name, waits.until(wake_at)))

    async def wait_for_signal(
        self,
        name: str,
        timeout: timedelta | None = None,  # noqa: ASYNC109 - the store watches it
        default: object = MISSING,
    ) -> Any:
        """As `Context.wait_for_signal`."""
        spec = waits.signal(timeout=timeout, default=default)
        return await drive_async(waiting.wait(self._core.replay, name, spec))

    async def wait_for_human(
        self,
        name: str,
        context: object = None,
        timeout: timedelta | None = None,  # noqa: ASYNC109 - the store watches it
        default: object = MISSING,
    ) -> Any:
        """As `Context.wait_for_human`."""
        spec = waits.human(context, timeout=timeout, default=default)
        return await drive_async(waiting.wait(self._core.replay, name, spec))

    async def wait_any(
        self, waits: Mapping[str, waits.WaitFor], *, name: str | None = None
    ) -> waits.First:
        """As `Context.wait_any`."""
        return await drive_async(choosing.wait_any(self._core.replay, waits, name))

    async def token(self, name: str, timeout: timedelta | None = None) -> str:  # noqa: ASYNC109
        """As `Context.token`."""
        return await drive_async(checkpoints.token(self._core.replay, name, timeout))

    async def wait_for_token(self, name: str, token: str, default: object = MISSING) -> Any:
        """As `Context.wait_for_token`."""
        spec = waits.token(token, default=default)
        return await drive_async(waiting.wait(self._core.replay, name, spec))

    # -- children --------------------------------------------------------------------------------

    async def child(
        self,
        name: str,
        task: Task[P, R],
        payload: P = _NO_PAYLOAD,
        *,
        on_parent_end: Literal["cancel", "keep"] = "cancel",
        **options: Unpack[RunOptions],
    ) -> R:
        """As `Context.child`."""
        spec = waits.child(task, payload, on_parent_end=on_parent_end, **options)
        result: R = await drive_async(waiting.wait(self._core.replay, name, spec))
        return result

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
    async def children(
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
        """As `Context.children`."""
        return await drive_async(
            groups.children(
                self._core.replay,
                name,
                task,
                payloads,
                max_parallel=max_parallel,
                on_failure=on_failure,
                on_parent_end=on_parent_end,
                options=options,
            )
        )

    # -- looking ---------------------------------------------------------------------------------

    async def get_checkpoint(self, name: str) -> Any:
        """As `Context.get_checkpoint`; awaited, since a large value is read when asked for."""
        return await drive_async(looking.get_checkpoint(self._core.replay, name))

    async def get_wait(self, name: str) -> Any:
        """As `Context.get_wait`; awaited, since a large value is read when asked for."""
        return await drive_async(looking.get_wait(self._core.replay, name))
