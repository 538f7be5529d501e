"""Threads that must not end: a body that dies is started again, with a growing rest between.

Source: docs/design.md, section 6; docs/cases.md, case 11.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from workhorse.runtime.base.pace import Backoff, Pace
from workhorse.telemetry import Counters, Metric, get_logger

_log = get_logger("worker")


class Loop:
    """A daemon thread that calls `body` until it returns; what it raises is logged and counted.

    Args:
        name: How logs, metrics and `/livez` call it.
        body: Returns when `stopping` is set, and not before.
        stopping: Ends the loop, also during a rest.
    """

    def __init__(
        self,
        name: str,
        body: Callable[[], None],
        *,
        stopping: threading.Event,
        pace: Pace,
        counters: Counters,
    ) -> None:
        self.name = name
        self._body = body
        self._stopping = stopping
        self._pace = pace
        self._counters = counters
        self._backoff = Backoff(100, 5_000)
        self._resting = False
        self._thread = threading.Thread(target=self._run, name=f"workhorse-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for its end; answer whether it has ended. From its own thread it does not wait."""
        if threading.current_thread() is not self._thread and self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def healthy(self) -> bool:
        """Whether the thread lives and is not resting after a failure."""
        return self._thread.is_alive() and not self._resting

    def _run(self) -> None:
        while True:
            started = self._pace.now_ms()
            try:
                self._body()
            except BaseException:  # noqa: BLE001 - a loop outlives SystemExit too
                _log.exception("loop %s failed; it is started again", self.name)
            else:
                return
            self._counters.add(Metric.LOOP_RESTARTS, label=self.name)
            if self._stopping.is_set():
                return
            if self._pace.now_ms() - started > 60_000:
                self._backoff.reset()
            self._resting = True
            self._pace.pause(self._stopping, self._backoff.next_ms())
            self._resting = False
