"""Starts what large claims brought, while the next claim is on its way.

A claim of hundreds of runs is answered in a few milliseconds, and it takes as long to make
activations of them and to hand these to their executors. One after the other, the database would
wait for Python and Python for the database.

Source: docs/adr/0029-claims-ahead.md
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from workhorse.telemetry import Counters, Metric, get_logger

_log = get_logger("worker")

FEW: Final = 50
"""Up to so many runs are started by the thread that claimed them: for these the change of threads
costs more than it wins, and an idle worker answers sooner."""
_AHEAD: Final = 2
"""So many batches may be on their way; who brings another waits."""

Start = Callable[[], int]
"""Starts a batch of runs; answers how many were handed back instead."""


class Starter:
    """Starts batches of claimed runs one after the other, on a thread that the first of them makes.

    A batch that fails there is no other's failure: whoever calls `check` is told.
    """

    def __init__(self, *, counters: Counters) -> None:
        self._counters = counters
        self._changed = threading.Condition()
        self._waiting: deque[Start] = deque()
        self._under_way = 0
        self._thread: threading.Thread | None = None
        self._closed = False
        self._error: BaseException | None = None
        self.handed_back = 0
        """How many runs were handed back where they would have begun."""

    def start(self, batch: Start, runs: int) -> None:
        """Start a batch: here and now if it is small, or there is no thread; else on the thread.

        Raises: What this batch failed with, if it was started here.
        """
        with self._changed:
            served = runs > FEW and not self._closed and self._has_thread()
            if served:
                self._under_way += 1
                self._waiting.append(batch)
                self._changed.notify_all()
        if not served:
            self._note(batch())
            return
        with self._changed:  # it is in: whoever is interrupted here loses nothing
            self._changed.wait_for(lambda: self._under_way <= _AHEAD or self._closed)

    def check(self) -> None:
        """Raise what a batch has failed with on the thread, once: before the next claim is sent."""
        with self._changed:
            error, self._error = self._error, None
        if error is not None:
            raise error

    def flush(self, timeout: float | None) -> bool:
        """Wait until nothing is on its way, or the seconds are over; answer which."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._under_way, timeout)

    def close(self) -> None:
        """End the thread once what is on its way is started; later batches are the callers' own."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # -- the thread ------------------------------------------------------------------------------

    def _has_thread(self) -> bool:
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._serve, name="workhorse-starter", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the process has too many, or is about to end
                return False
            self._thread = thread
        return True

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                batch = self._waiting.popleft()
            self._call(batch)
            del batch  # or its runs would live as long as nothing is to be done

    def _call(self, batch: Start) -> None:
        try:
            self._note(batch())
        except BaseException as error:  # noqa: BLE001 - it is raised where claims are made
            self._error = self._error or error
            self._counters.add(Metric.LOOP_RESTARTS, label="starter")
            _log.exception("claimed runs could not be started")
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()

    def _note(self, handed_back: int) -> None:
        with self._changed:
            self.handed_back += handed_back
