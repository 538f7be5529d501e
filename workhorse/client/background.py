"""Threads of the app: store calls of async callers, and sends that no caller must wait for."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Final, ParamSpec, TypeVar

from workhorse.telemetry import get_logger

P = ParamSpec("P")
T = TypeVar("T")

THREADS: Final = 4
_log = get_logger("client")


class Background:
    """Runs plain functions on threads of its own, which are started when they are needed.

    Nothing of a user's runs here but what the caller hands over, in a copy of its context.
    """

    def __init__(self, threads: int = THREADS) -> None:
        self._threads = threads
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._submitted: set[Future[None]] = set()

    async def call(self, op: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function on a thread and return what it returns.

        A caller that is cancelled meanwhile does not stop it: what it stores is stored.
        """
        inside = partial(contextvars.copy_context().run, op, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._executor(), inside)

    def start(self, op: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call a function on a thread; the caller waits for what it returns when it likes."""
        return self._executor().submit(partial(op, *args, **kwargs))

    def submit(self, op: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Have a function called on a thread; an error of it is logged."""
        future = self._executor().submit(_logged, partial(op, *args, **kwargs))
        with self._lock:
            self._submitted.add(future)
        future.add_done_callback(self._forget)

    def settle(self, timeout_s: float | None = None) -> bool:
        """Wait for what was submitted so far; answer whether all of it has ended."""
        with self._lock:
            submitted = set(self._submitted)
        return not wait(submitted, timeout_s).not_done

    def close(self) -> None:
        """End the threads, after what they are doing; the next call starts new ones."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)

    def abandon(self) -> None:
        """Forget the threads, in a process that was forked and does not have them."""
        self._lock = threading.Lock()
        self._pool = None
        self._submitted = set()

    def _executor(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="workhorse-app")
            return self._pool

    def _forget(self, future: Future[None]) -> None:
        with self._lock:
            self._submitted.discard(future)


def _logged(op: Callable[[], object]) -> None:
    try:
        op()
    except Exception:  # noqa: BLE001 - nobody waits for it
        _log.exception("a call in the background failed")
