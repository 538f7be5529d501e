"""Where calls to SQS run: on daemon threads over boto3, on an event loop of our own over aioboto3.

Either way the one who asks gets a future, so that it can stop waiting: for a slow broker, or since
the receiver was closed. A thread in the middle of a call cannot be stopped, but it can be left
behind; being a daemon it does not keep the process from ending either.

A process that forks does so before the lane's first call: threads and loop do not cross a fork.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, wait
from typing import Any, Final, ParamSpec, Protocol, TypeVar

from lanes.sqs.faults import LaneClosedError

T = TypeVar("T")
P = ParamSpec("P")

Job = Callable[P, Coroutine[Any, Any, T]]
LastJob = Callable[[], Coroutine[Any, Any, None]]

_END_S: Final = 5.0


class Runner(Protocol):
    """Runs jobs in the background."""

    def submit(self, job: Job[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Start a job; after `close` the future holds a `LaneClosedError`."""
        ...

    def close(self, last: LastJob | None = None) -> None:
        """Take no more jobs, drop what has not begun, and do a last one."""
        ...


class ThreadRunner:
    """Daemon threads, started as they are needed.

    Args:
        name: What the threads are called.
        most: How many there may be; further jobs wait for one. None sets no bound.
    """

    def __init__(self, name: str, *, most: int | None) -> None:
        self._name = name
        self._most = most
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Future[Any], Callable[[], Coroutine[Any, Any, Any]]]] = deque()
        self._threads = 0
        self._idle = 0
        self._closed = False

    def submit(self, job: Job[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Start a job on a thread."""
        future: Future[T] = Future()
        with self._changed:
            if self._closed:
                future.set_exception(LaneClosedError())
                return future
            self._waiting.append((future, lambda: job(*args, **kwargs)))
            if self._idle < len(self._waiting) and self._threads != self._most:
                self._threads += 1
                name = f"workhorse-sqs-{self._name}-{self._threads}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
            self._changed.notify()
        return future

    def close(self, last: LastJob | None = None) -> None:
        """Let the threads end when they are done with what they do; do the last job here."""
        with self._changed:
            self._closed = True
            dropped = [future for future, _ in self._waiting]
            self._waiting.clear()
            self._changed.notify_all()
        for future in dropped:
            future.cancel()
        if last is not None:
            run_blocking(last())

    def _work(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                while not self._waiting and not self._closed:
                    self._changed.wait()
                self._idle -= 1
                if not self._waiting:
                    return
                future, job = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                _fulfil(future, job)
            # A thread that waits for its next job must not keep the last one's result alive.
            del future, job


class LoopRunner:
    """An asyncio event loop on a daemon thread of its own, started at the first job."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, job: Job[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Start a job as a task of the loop; cancelling the future cancels the task."""
        with self._lock:
            if self._closed:
                future: Future[T] = Future()
                future.set_exception(LaneClosedError())
                return future
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run_loop,
                    args=(self._loop,),
                    name=f"workhorse-sqs-{self._name}",
                    daemon=True,
                )
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(job(*args, **kwargs), self._loop)

    def close(self, last: LastJob | None = None) -> None:
        """Do the last job, which is over soon, cancel what is under way and end the loop."""
        with self._lock:
            self._closed = True
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            if last is not None:
                wait([asyncio.run_coroutine_threadsafe(last(), loop)], timeout=_END_S)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(timeout=_END_S)


def _fulfil(future: Future[Any], job: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    try:
        result = run_blocking(job())
    except BaseException as error:  # noqa: BLE001  (it is handed to the one who waits)
        future.set_exception(error)
    else:
        future.set_result(result)


def run_blocking(job: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, since what it awaits blocks instead."""
    try:
        job.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    job.close()
    raise RuntimeError("a job for threads has suspended; it may await blocking calls alone")


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=1))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def outcome(future: Future[Any]) -> BaseException | None:
    """Return what a finished job raised; None when it did not."""
    try:
        return future.exception()
    except CancelledError:
        return LaneClosedError()
