"""A worker's slots, and whose turn it is to fill them when several queues want to.

Source: docs/design.md, section 6.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

_MANY: Final = 10
_WHOLE: Final = 50
"""Up to so many slots, a claim takes all that are free: smaller claims would cost more a run."""


class Slots:
    """Counts free slots. A queue that was served waits behind those that want to be served.

    Args:
        size: How many runs are under way at once.
        queues: The queues that share them.
    """

    def __init__(self, size: int, queues: Sequence[str]) -> None:
        self.size = size
        self.share = size if size <= _WHOLE else max(_WHOLE, size // 2)
        """How many are taken at once: of many slots not all, so that one claim is on its way while
        the runs of another are handled and those of a third are settled."""
        self._free = size
        self._many = min(size, _MANY)
        self.roomy = threading.Event()
        """Whether many slots are free, or all of them, or nobody waits any more."""
        self.roomy.set()
        self._changed = threading.Condition()
        self._closed = False
        self._served = dict.fromkeys(queues, 0)
        self._serving = 0
        self._interested: dict[str, int] = dict.fromkeys(queues, 0)

    @property
    def free(self) -> int:
        """How many slots are free."""
        return self._free

    def close(self) -> None:
        """Let nobody wait any more: there is nothing to fill slots for."""
        with self._changed:
            self._closed = True
            self.roomy.set()
            self._changed.notify_all()

    def give_back(self, count: int) -> None:
        """Free slots."""
        if count:
            with self._changed:
                self._free += count
                if self._free >= self._many:
                    self.roomy.set()
                self._changed.notify_all()

    @contextmanager
    def turn(self, queue: str) -> Iterator[Turn]:
        """Stand in line for the time of the block: others that were served later wait."""
        with self._changed:
            self._interested[queue] += 1
        turn = Turn(self, queue)
        try:
            yield turn
        finally:
            turn.leave()

    def wait_until_all_free(self, timeout: float | None) -> bool:
        """Wait until no slot is taken, or the seconds are over; answer which."""
        with self._changed:
            return self._changed.wait_for(lambda: self._free >= self.size, timeout)

    def _wait_for_turn(self, queue: str, timeout: float | None) -> int:
        """Return the free slots once there are some and it is this queue's turn; else 0."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._closed:
            if self._free > 0 and self._is_next(queue):
                return self._free
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                break
            self._changed.wait(left)
        return 0

    def _is_next(self, queue: str) -> bool:
        mine = self._served[queue]
        return all(
            mine < served or not self._interested[other]
            for other, served in self._served.items()
            if other != queue and served != mine
        )


class Turn:
    """A queue's place in the line for slots."""

    def __init__(self, slots: Slots, queue: str) -> None:
        self._slots = slots
        self._queue = queue
        self._standing = True

    def wait(self, timeout: float | None = None) -> int:
        """Wait for a free slot and the queue's turn; return the free slots, 0 when time is up."""
        with self._slots._changed:
            return self._slots._wait_for_turn(self._queue, timeout)

    def reserve(self, wanted: int, timeout: float | None = None) -> int:
        """Take up to `wanted` slots, once one is free and it is the queue's turn; leave the line.

        Returns:
            How many were taken; 0 when the seconds are over, or the slots are closed.
        """
        slots = self._slots
        with slots._changed:
            taken = min(wanted, slots.share, slots._wait_for_turn(self._queue, timeout))
            if taken:
                slots._free -= taken
                if slots._free < slots._many and not slots._closed:
                    slots.roomy.clear()
                slots._serving += 1
                slots._served[self._queue] = slots._serving
        self.leave()
        return taken

    def leave(self) -> None:
        """Leave the line; any number of times."""
        if self._standing:
            self._standing = False
            with self._slots._changed:
                self._slots._interested[self._queue] -= 1
                self._slots._changed.notify_all()
