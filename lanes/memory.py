"""A lane inside one process, with a broker's manners and, on request, its bad ones.

It behaves like a standard SQS queue: messages come at least once, a received one is hidden for the
visibility time-out, a delayed one is hidden until it is due. Nothing survives the process, and
nothing needs to: the runs are in the store.

In hostile mode it drops, doubles, delays and reorders, each with its own probability and from a
seed, so that tests can show that none of it matters.
"""

from __future__ import annotations

import heapq
import itertools
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

from lanes import wire
from workhorse.domain.findings import Finding
from workhorse.domain.sightings import Fate, ShowAgain
from workhorse.errors import ConfigurationError
from workhorse.ports import LaneContext, Message, Outgoing, SendReport, Unreadable, Wakeup

REACH_MS: Final = 900_000
"""As far as SQS delays a message, so that the same timers go through maintenance."""
_LOOK_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class Hostility:
    """How badly the lane behaves; probabilities from 0 to 1, each drawn by itself for each send.

    Args:
        drop: The message is lost, although the send reports success.
        double: It arrives twice.
        delay: It arrives up to `max_delay_ms` later than it should.
        reorder: It goes to some place in the line instead of its end.
        seed: The same seed and the same sends give the same mishaps.
    """

    drop: float = 0.0
    double: float = 0.0
    delay: float = 0.0
    reorder: float = 0.0
    seed: int = 0
    max_delay_ms: int = 2_000

    def __post_init__(self) -> None:
        for name in ("drop", "double", "delay", "reorder"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigurationError(f"hostility: {name} must be a probability from 0 to 1")
        if self.max_delay_ms < 0:
            raise ConfigurationError("hostility: max_delay_ms must not be negative")


def _monotonic_ms() -> float:
    return time.monotonic() * 1000


@dataclass(eq=False, slots=True)
class _Stored:
    message_id: str
    content: Wakeup | Unreadable
    receive_count: int = 0
    receipt: int = 0
    """Moves on with each receipt and each showing; a handle or timer from before is stale."""


@dataclass(eq=False, slots=True)
class _Queue:
    changed: threading.Condition
    line: deque[_Stored] = field(default_factory=deque)
    hidden: list[tuple[float, int, int, _Stored]] = field(default_factory=list)
    """A heap by the instant of the next showing; entries of an old receipt are skipped."""
    stale: int = 0
    """How many of those there are, so that the heap does not keep what was deleted long ago."""


class MemoryLane:
    """Carries wakeups from this process to itself.

    Args:
        clock: Milliseconds from any fixed point, for delays and visibility; a test's clock may
            stand still. How long `receive` waits is always real time, since a test that moves the
            clock by hand could not move it while it waits.
        hostility: How badly the lane behaves; not at all when left out.
        visibility_ms: How long a received message stays hidden before it comes back.
    """

    carries_messages = True

    def __init__(
        self,
        *,
        clock: Callable[[], float] | None = None,
        hostility: Hostility | None = None,
        visibility_ms: int = 30_000,
    ) -> None:
        self._now_ms = clock or _monotonic_ms
        # A clock of one's own cannot say that it was moved, so those who wait look at it.
        self._longest_nap_s = _LOOK_S if clock else 3600.0
        self._hostility = hostility or Hostility()
        self._random = random.Random(self._hostility.seed)  # noqa: S311  (mishaps, not secrets)
        self._visibility_ms = visibility_ms
        self._lock = threading.Lock()
        self._queues: dict[str, _Queue] = {}
        self._serial = itertools.count(1)
        self._outage: Exception | None = None
        self._closed = False

    @classmethod
    def open(cls, context: LaneContext) -> Self:
        """Open the lane; it needs no setting."""
        return cls()

    def send(self, outgoing: Sequence[Outgoing]) -> SendReport:
        """Put wakeups into their queues."""
        with self._lock:
            if self._closed:
                return SendReport(failed=len(outgoing), error="the lane is closed")
            if self._outage is not None:
                return SendReport(failed=len(outgoing), error=str(self._outage))
            for each in outgoing:
                self._deliver(each)
        return SendReport(sent=len(outgoing))

    async def send_async(self, outgoing: Sequence[Outgoing]) -> SendReport:
        """As `send`, which holds its lock for a moment only."""
        return self.send(outgoing)

    def put_body(self, queue: str, body: str) -> None:
        """Put a message with any body into a queue, as a stranger at a broker could."""
        with self._lock:
            self._put(queue, wire.decode(body), delay_ms=0, anywhere=False)

    def set_outage(self, error: Exception | None) -> None:
        """Be out of reach, for tests: sends fail and receives raise `error`, until it is None."""
        with self._lock:
            self._outage = error
            for queue in self._queues.values():
                queue.changed.notify_all()

    def receiver(self, queue: str) -> MemoryReceiver:
        """Return a receiver of a queue's messages."""
        return MemoryReceiver(self, queue)

    def reach_ms(self, queue: str) -> int:
        """Return 15 minutes."""
        return REACH_MS

    def backlog(self, queue: str) -> int | None:
        """Return how many messages are visible."""
        with self._lock:
            if self._outage is not None:
                raise self._outage.with_traceback(None)
            found = self._queue(queue)
            self._show(found)
            return len(found.line)

    def check(self, queue: str) -> Sequence[Finding]:
        """Return nothing: a queue is there as soon as it is named."""
        return ()

    def close(self) -> None:
        """End the receives under way; messages are forgotten."""
        with self._lock:
            self._closed = True
            for queue in self._queues.values():
                queue.line.clear()
                queue.hidden.clear()
                queue.changed.notify_all()

    # -- under the lock ------------------------------------------------------------------------

    def _queue(self, name: str) -> _Queue:
        found = self._queues.get(name)
        if found is None:
            found = self._queues[name] = _Queue(threading.Condition(self._lock))
        return found

    def _deliver(self, outgoing: Outgoing) -> None:
        hostility, draw = self._hostility, self._random.random
        if draw() < hostility.drop:
            return
        for _ in range(2 if draw() < hostility.double else 1):
            late = self._random.uniform(0, hostility.max_delay_ms)
            delay_ms = max(0, outgoing.delay_ms) + (late if draw() < hostility.delay else 0)
            anywhere = draw() < hostility.reorder
            self._put(outgoing.wakeup.queue, outgoing.wakeup, delay_ms=delay_ms, anywhere=anywhere)

    def _put(
        self, name: str, content: Wakeup | Unreadable, *, delay_ms: float, anywhere: bool
    ) -> None:
        queue = self._queue(name)
        stored = _Stored(f"m-{next(self._serial)}", content)
        if delay_ms > 0:
            self._hide(queue, stored, delay_ms)
        elif anywhere:
            queue.line.insert(self._random.randint(0, len(queue.line)), stored)
        else:
            queue.line.append(stored)
        queue.changed.notify_all()

    def _hide(self, queue: _Queue, stored: _Stored, for_ms: float) -> None:
        entry = (self._now_ms() + for_ms, next(self._serial), stored.receipt, stored)
        heapq.heappush(queue.hidden, entry)

    def _show(self, queue: _Queue) -> None:
        """Move what has become visible to the end of the line."""
        now = self._now_ms()
        while queue.hidden and queue.hidden[0][0] <= now:
            _, _, receipt, stored = heapq.heappop(queue.hidden)
            if receipt == stored.receipt:
                stored.receipt += 1
                queue.line.append(stored)
            else:
                queue.stale -= 1

    def _tidy(self, queue: _Queue) -> None:
        if queue.stale > 64 and queue.stale * 2 > len(queue.hidden):
            queue.hidden = [entry for entry in queue.hidden if entry[2] == entry[3].receipt]
            heapq.heapify(queue.hidden)
            queue.stale = 0

    def _take(self, queue: _Queue, limit: int) -> list[Message]:
        self._show(queue)
        taken: list[Message] = []
        while queue.line and len(taken) < limit:
            stored = queue.line.popleft()
            stored.receive_count += 1
            stored.receipt += 1
            self._hide(queue, stored, self._visibility_ms)
            taken.append(
                Message(
                    stored.message_id,
                    stored.content,
                    stored.receive_count,
                    handle=(stored, stored.receipt),
                )
            )
        return taken

    def _nap_s(self, queue: _Queue, left_s: float) -> float:
        until_shown_s = (queue.hidden[0][0] - self._now_ms()) / 1000 if queue.hidden else left_s
        return max(0.0, min(left_s, until_shown_s, self._longest_nap_s))


class MemoryReceiver:
    """Takes messages of one queue."""

    def __init__(self, lane: MemoryLane, queue: str) -> None:
        self._lane = lane
        with lane._lock:
            self._queue = lane._queue(queue)
        self._closed = False

    def receive(self, limit: int, wait_ms: int) -> Sequence[Message]:
        """Return up to `limit` messages, waiting up to `wait_ms` for the first."""
        lane, queue = self._lane, self._queue
        deadline = time.monotonic() + wait_ms / 1000
        with lane._lock:
            while not (self._closed or lane._closed):
                if lane._outage is not None:
                    raise lane._outage.with_traceback(None)
                messages = lane._take(queue, limit)
                left_s = deadline - time.monotonic()
                if messages or left_s <= 0 or limit < 1:
                    return messages
                queue.changed.wait(lane._nap_s(queue, left_s))
        return []

    def settle(self, fates: Sequence[tuple[Message, Fate]]) -> None:
        """Delete messages or show them again; a receipt that has lapsed changes nothing."""
        lane, queue = self._lane, self._queue
        with lane._lock:
            for message, fate in fates:
                match message.handle:
                    case (_Stored() as stored, int(receipt)) if stored.receipt == receipt:
                        stored.receipt += 1
                        queue.stale += 1
                        if isinstance(fate, ShowAgain) and fate.after_ms > 0:
                            lane._hide(queue, stored, fate.after_ms)
                        elif isinstance(fate, ShowAgain):
                            queue.line.append(stored)
                    case _:
                        pass
            lane._tidy(queue)
            queue.changed.notify_all()

    def close(self) -> None:
        """End a receive that is under way."""
        with self._lane._lock:
            self._closed = True
            self._queue.changed.notify_all()
