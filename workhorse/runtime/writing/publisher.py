"""Sends the wakeups that follow commits, on a thread of its own.

Source: docs/design.md, section 4.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from workhorse.domain.hints import Hint
from workhorse.telemetry import Counters, Metric, get_logger

_log = get_logger("worker")


class Publisher:
    """Keeps hints until they are sent; a broker that is slow delays nobody but itself.

    Args:
        publish: Sends hints; what it raises is logged and counted, and left to the nets.
    """

    def __init__(self, publish: Callable[[Sequence[Hint]], object], *, counters: Counters) -> None:
        self._publish = publish
        self._counters = counters
        self._changed = threading.Condition()
        self._waiting: list[Hint] = []
        self._sending = 0
        self._closed = False

    def put(self, hints: Sequence[Hint]) -> None:
        """Have wakeups sent, soon."""
        if hints:
            with self._changed:
                self._waiting.extend(hints)
                self._changed.notify_all()

    def flush(self, timeout: float) -> bool:
        """Wait until all are sent, or the seconds are over; answer which."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._sending, timeout)

    def close(self) -> None:
        """End the loop once what waits is sent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def serve(self) -> None:
        """Send until closed: the body of the loop."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                hints, self._waiting = self._waiting, []
                self._sending = len(hints)
            try:
                self._publish(hints)
            except Exception:  # noqa: BLE001 - the nets are there
                self._counters.add(Metric.WAKEUPS_NOT_SENT, len(hints))
                _log.exception("%d wakeups were not sent; the runs wait for a net", len(hints))
            finally:
                with self._changed:
                    self._sending = 0
                    self._changed.notify_all()
