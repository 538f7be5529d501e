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

from workhorse.runtime.activations.holdings import Holdings
from workhorse.telemetry import Counters, Metric, get_logger

_log = get_logger("worker")

MANY: Final = 50
"""Fewer runs are started by the thread that claimed them: for these the change of threads costs
more than it wins, and an idle worker answers sooner."""
_AHEAD: Final = 2
"""So many batches may be on their way; who brings another waits."""


class Starter:
    """Starts batches of claimed runs one after the other, on a thread that the first of them makes.

    Args:
        holdings: Told how many runs are on their way, since these are the worker's already.
    """

    def __init__(self, holdings: Holdings, *, counters: Counters) -> None:
        self._holdings = holdings
        self._counters = counters
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Callable[[], None], int]] = deque()
        self._under_way = 0
        self._thread: threading.Thread | None = None
        self._closed = False

    def start(self, call: Callable[[], None], runs: int) -> None:
        """Have `call` start so many runs: here and now if they are few, else on the thread.

        Raises: What `call` raises, where it is called here.
        """
        if runs < MANY:
            call()
            return
        with self._changed:
            self._changed.wait_for(lambda: self._under_way < _AHEAD or self._closed)
            self._under_way += 1
            self._holdings.expect(runs)
            closed = self._closed
            if not closed:
                self._waiting.append((call, runs))
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._serve, name="workhorse-starter", daemon=True
                    )
                    self._thread.start()
                self._changed.notify_all()
        if closed:
            self._call(call, runs)

    def flush(self, timeout: float) -> bool:
        """Wait until nothing is on its way, or the seconds are over; answer which."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._under_way, timeout)

    def close(self) -> None:
        """End the thread once what is on its way is started; later batches are the callers' own."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # -- the thread ------------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                call, runs = self._waiting.popleft()
            self._call(call, runs)

    def _call(self, call: Callable[[], None], runs: int) -> None:
        try:
            call()
        except BaseException:  # noqa: BLE001 - the next batch is nobody's fault
            _log.exception("%d claimed runs were not started; they wait for their leases", runs)
            self._counters.add(Metric.LOOP_RESTARTS, label="starter")
        finally:
            self._holdings.expect(-runs)
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()
