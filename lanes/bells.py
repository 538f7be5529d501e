"""Bells inside a process, for lanes that carry no messages: a ring ends the waits for its queue."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from workhorse.domain.sightings import Fate
from workhorse.ports import Message


class Belfry:
    """The bells of a lane's queues, and who waits for them.

    Args:
        rest_ms: How long after one ring has ended a receiver's wait the next one may.
        changed: Told after a receiver was opened or closed.
    """

    def __init__(self, *, rest_ms: float = 0.0, changed: Callable[[], None] = lambda: None) -> None:
        self._rest_s = rest_ms / 1000
        self._changed = changed
        self._lock = threading.Lock()
        self._bells: dict[str, _Bell] = {}
        self._receivers: set[BellReceiver] = set()
        self._closed = False

    def ring(self, queue: str) -> None:
        """End the waits for a queue; who is not waiting now does not wait next time."""
        with self._lock:
            bell = self._bells.get(queue)
        if bell is not None:  # else nobody has ever waited for it
            bell.ring()

    def receiver(self, queue: str) -> BellReceiver:
        """Return a receiver, to wait with."""
        receiver = BellReceiver(queue, self._bell(queue), self._rest_s, self._forget)
        with self._lock:
            self._receivers.add(receiver)
            closed = self._closed
        if closed:
            receiver.close()
        else:
            self._changed()
        return receiver

    def awaited(self) -> frozenset[str]:
        """Return the queues that somebody has a receiver of."""
        with self._lock:
            return frozenset(receiver.queue for receiver in self._receivers)

    def close(self) -> None:
        """End the waits of all receivers, for ever."""
        with self._lock:
            self._closed = True
            receivers = list(self._receivers)
        for receiver in receivers:
            receiver.close()

    def _bell(self, queue: str) -> _Bell:
        with self._lock:
            return self._bells.setdefault(queue, _Bell())

    def _forget(self, receiver: BellReceiver) -> None:
        with self._lock:
            known = receiver in self._receivers
            self._receivers.discard(receiver)
        if known:
            self._changed()


class _Bell:
    """Counts the rings for one queue; who waits is woken when the count has moved."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.rings = 0

    def ring(self) -> None:
        with self.changed:
            self.rings += 1
            self.changed.notify_all()


class BellReceiver:
    """Waits, and never has a message."""

    def __init__(
        self, queue: str, bell: _Bell, rest_s: float, on_close: Callable[[BellReceiver], None]
    ) -> None:
        self.queue = queue
        self._bell = bell
        self._rest_s = rest_s
        self._on_close = on_close
        self._heard = bell.rings
        self._heard_at = float("-inf")
        self._closed = False

    def receive(self, limit: int, wait_ms: int) -> Sequence[Message]:
        """Wait up to `wait_ms`, or until the bell was rung since the last call ended."""
        deadline = time.monotonic() + wait_ms / 1000
        with self._bell.changed:
            while not self._closed:
                now = time.monotonic()
                # What rings again and again is heard as one.
                rest = self._heard_at + self._rest_s - now
                rung = self._bell.rings != self._heard
                if now >= deadline or (rung and rest <= 0):
                    break
                self._bell.changed.wait(min(rest, deadline - now) if rung else deadline - now)
            if self._bell.rings != self._heard:
                self._heard, self._heard_at = self._bell.rings, time.monotonic()
        return []

    def settle(self, fates: Sequence[tuple[Message, Fate]]) -> None:
        """Do nothing: there are no messages."""

    def close(self) -> None:
        """End a wait that is under way."""
        with self._bell.changed:
            self._closed = True
            self._bell.changed.notify_all()
        self._on_close(self)
