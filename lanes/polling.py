"""A lane without a broker: workers find runs by scanning the store.

It carries nothing. A send only ends the wait of a receiver of the same queue in the same process,
so that a program which enqueues and works in one process does not wait for its next poll.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Self

from workhorse.domain.sightings import Fate
from workhorse.ports import LaneContext, Message, Outgoing, SendReport


class _Bell:
    """Counts the rings for one queue; who waits is woken when the count has moved."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.rings = 0

    def ring(self) -> None:
        with self.changed:
            self.rings += 1
            self.changed.notify_all()


class PollingLane:
    """Carries no messages; `receive` waits, and ends early when this process enqueued something."""

    carries_messages = False

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bells: dict[str, _Bell] = {}
        self._receivers: set[PollingReceiver] = set()
        self._closed = False

    @classmethod
    def open(cls, context: LaneContext) -> Self:
        """Open the lane; it needs no setting."""
        return cls()

    def send(self, outgoing: Sequence[Outgoing]) -> SendReport:
        """Wake the receivers of the queues in this process; there is nobody else to tell."""
        # A delayed wakeup is for later: whoever scans then needs no bell now.
        for queue in {each.wakeup.queue for each in outgoing if each.delay_ms <= 0}:
            self._bell(queue).ring()
        return SendReport(sent=len(outgoing))

    async def send_async(self, outgoing: Sequence[Outgoing]) -> SendReport:
        """As `send`, which holds its locks for a moment only."""
        return self.send(outgoing)

    def receiver(self, queue: str) -> PollingReceiver:
        """Return a receiver, to wait with."""
        receiver = PollingReceiver(self._bell(queue), self._receivers.discard)
        with self._lock:
            self._receivers.add(receiver)
            closed = self._closed
        if closed:
            receiver.close()
        return receiver

    def reach_ms(self, queue: str) -> int:
        """Return 0: no wakeup can be delayed, timers wait for maintenance."""
        return 0

    def backlog(self, queue: str) -> int | None:
        """Return None: there are no messages to count."""
        return None

    def check(self, queue: str) -> Sequence[str]:
        """Return nothing: no broker, no trouble."""
        return ()

    def close(self) -> None:
        """End the waits of all receivers."""
        with self._lock:
            self._closed = True
            receivers = list(self._receivers)
        for receiver in receivers:
            receiver.close()

    def _bell(self, queue: str) -> _Bell:
        with self._lock:
            return self._bells.setdefault(queue, _Bell())


class PollingReceiver:
    """Waits, and never has a message."""

    def __init__(self, bell: _Bell, on_close: Callable[[PollingReceiver], None]) -> None:
        self._bell = bell
        self._on_close = on_close
        self._heard = bell.rings
        self._closed = False

    def receive(self, limit: int, wait_ms: int) -> Sequence[Message]:
        """Wait up to `wait_ms`, or until something was enqueued since the last call ended."""
        deadline = time.monotonic() + wait_ms / 1000
        with self._bell.changed:
            while not self._closed and self._bell.rings == self._heard:
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._bell.changed.wait(left)
            self._heard = self._bell.rings
        return []

    def settle(self, fates: Sequence[tuple[Message, Fate]]) -> None:
        """Do nothing: there are no messages."""

    def close(self) -> None:
        """End a wait that is under way."""
        with self._bell.changed:
            self._closed = True
            self._bell.changed.notify_all()
        self._on_close(self)
