"""Daemon threads for plain functions: made when needed, reused, never waited for at exit.

The standard library's executor joins its threads when the interpreter ends, so one function that
hangs would keep the process from ending.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable

from workhorse.telemetry import get_logger

_log = get_logger("worker")


class Threads:
    """Runs callables, each in a thread of its own for the time. Whoever submits bounds how many.

    Args:
        name: What the threads are called.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._numbers = itertools.count(1)
        self._work: deque[Callable[[], object]] = deque()
        self._changed = threading.Condition()
        self._idle = 0
        self._closed = False

    def submit(self, call: Callable[[], object]) -> None:
        """Have `call` run in a thread, at once.

        Raises:
            RuntimeError: The system gives no further thread.
        """
        with self._changed:
            if self._idle > 0:
                self._idle -= 1
                self._work.append(call)
                self._changed.notify()
                return
        thread = threading.Thread(
            target=self._serve,
            args=(call,),
            name=f"{self._name}-{next(self._numbers)}",
            daemon=True,
        )
        thread.start()

    def close(self) -> None:
        """End the threads that have nothing to do; the others end when they are done."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _serve(self, call: Callable[[], object]) -> None:
        process = os.getpid()
        while True:
            try:
                call()
            except BaseException:  # noqa: BLE001 - the thread is needed again
                _log.exception("thread %s: its call failed", threading.current_thread().name)
            if os.getpid() != process:
                return  # a copy that the call has forked: what waits here is the worker's to do
            del call  # or it would keep what it closes over alive while the thread is idle
            with self._changed:
                self._idle += 1
                while not self._work and not self._closed:
                    self._changed.wait()
                if not self._work:
                    self._idle -= 1
                    return
                call = self._work.popleft()
