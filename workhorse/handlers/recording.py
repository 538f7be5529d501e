"""What stands between a context and the worker: who writes boundaries, and answers that come later.

Source: docs/design.md, sections 6 and 7.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, cast

from workhorse.domain.recording import NewProgress, ReadValue, Record, RecordAnswer

if TYPE_CHECKING:
    from sqlalchemy import Connection

T = TypeVar("T")


class Pending(Generic[T]):
    """An answer that another thread will give. Given once; the first one stands. Safe in threads.

    It is lighter than a `concurrent.futures.Future`, and an answer that is given in the thread of
    the event loop that waits for it wakes the loop no further.
    """

    __slots__ = ("_answer", "_callbacks", "_done", "_error", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._done = False
        self._answer: T | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[], object]] = []

    @property
    def done(self) -> bool:
        """Whether the answer is there."""
        return self._done

    def answer(self, answer: T) -> bool:
        """Give the answer; False where there was one already."""
        return self._finish(answer, None)

    def fail(self, error: BaseException) -> bool:
        """Give an error as the answer; False where there was one already."""
        return self._finish(None, error)

    def result(self) -> T:
        """Wait for the answer, in a thread that may block, and return or raise it."""
        if not self._done:
            event = threading.Event()
            if self._on_done(event.set, ahead=True):
                event.wait()
        return self._get()

    async def result_async(self) -> T:
        """Wait for the answer on an event loop, and return or raise it."""
        if not self._done:
            loop = asyncio.get_running_loop()
            own_thread = threading.get_ident()
            woken: asyncio.Future[None] = loop.create_future()

            def wake() -> None:
                if not woken.done():
                    woken.set_result(None)

            def given() -> None:
                if threading.get_ident() == own_thread:
                    wake()
                else:
                    with contextlib.suppress(RuntimeError):  # the loop has closed
                        loop.call_soon_threadsafe(wake)

            if self._on_done(given, ahead=True):
                await woken
        return self._get()

    def on_done(self, callback: Callable[[], object]) -> None:
        """Have `callback` called when the answer is there, or now if it is; it must not raise."""
        if not self._on_done(callback):
            callback()

    def _on_done(self, callback: Callable[[], object], *, ahead: bool = False) -> bool:
        """Keep a callback; False when the answer is there.

        Who waits is woken ahead of everybody else: a callback may start to count the turns of the
        loop, in which the one who waited is to go on, and the answer come from another thread.
        """
        with self._lock:
            if self._done:
                return False
            self._callbacks.insert(0 if ahead else len(self._callbacks), callback)
            return True

    def _finish(self, answer: T | None, error: BaseException | None) -> bool:
        with self._lock:
            if self._done:
                return False
            self._answer, self._error = answer, error
            self._done = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()
        return True

    def _get(self) -> T:
        if self._error is not None:
            raise self._error
        return cast("T", self._answer)


class Recorder(Protocol):
    """Who writes for an activation: its worker, or a test. All calls return at once.

    What was asked for is written in the order of the calls. When the lease is lost, or has lapsed,
    pending answers fail with `LeaseLostError`.
    """

    def record(self, record: Record) -> Pending[RecordAnswer]:
        """Write a boundary; `LOST` is answered as `LeaseLostError`."""
        ...

    def read(self, request: ReadValue) -> Pending[str | None]:
        """Read a value by name: its JSON text, None where there is none."""
        ...

    def progress(self, progress: NewProgress) -> None:
        """Replace what the run says of its progress; the latest is written, when there is time."""
        ...

    def transact(
        self, record: Record, operation: Callable[[Connection], str]
    ) -> Pending[RecordAnswer]:
        """Call `operation` with a connection, and commit its writes and the boundary together.

        It runs in a thread of the recorder's, in a copy of the caller's context variables, and
        returns the value's JSON text, which replaces `record.boundary.value`.

        Raises (as the pending answer):
            TransactionMisuseError: The operation ended the transaction itself.
            Exception: What the operation raised; all was rolled back.
        """
        ...

    def suspending(self) -> None:
        """Be told, once, that the activation ends at a wait: what its handler started is to end."""
        ...
