"""Watches over what a worker holds: time-outs, leases that lapse, and what hangs or blocks.

It calls no user code and no statement, so nothing delays it but the machine itself.

Source: docs/design.md, sections 3 and 6; docs/cases.md, case 12.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import traceback
from collections.abc import Callable, Collection

from workhorse.runtime.activations.activation import Activation
from workhorse.runtime.base.calls import StoreCalls
from workhorse.runtime.base.pace import Pace
from workhorse.runtime.execution.eventloop import HandlerLoop
from workhorse.runtime.execution.heartbeat import Events, Heartbeat
from workhorse.telemetry import Counters, Metric, get_logger

_log = get_logger("worker")

_BUSY_TICK_MS = 200.0
_IDLE_TICK_MS = 1_000.0
_BLOCKED = (
    "%s has blocked the event loop for %.1f s: all other async handlers stand still. Await what "
    "takes long, or make it a plain function, which runs in a thread\n%s"
)


class Monitor:
    """Timers, the watchdog of the leases, and the look at the event loop; the body of a loop."""

    def __init__(
        self,
        held: Callable[[], Collection[Activation]],
        events: Events,
        *,
        calls: StoreCalls,
        heartbeat: Heartbeat,
        loop: HandlerLoop,
        lease_ms: int,
        blocked_ms: float,
        pace: Pace,
        counters: Counters,
    ) -> None:
        self._held = held
        self._events = events
        self._calls = calls
        self._heartbeat = heartbeat
        self._loop = loop
        self._lease_ms = lease_ms
        self._blocked_ms = blocked_ms
        self._pace = pace
        self._counters = counters
        self._tick_ms = min(_BUSY_TICK_MS, lease_ms / 10, blocked_ms / 2)
        self._wake = threading.Event()
        self._closed = False
        self._lock = threading.Lock()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._probed_at: float | None = None
        self._warned = False

    @property
    def loop_blocked(self) -> bool:
        """Whether the event loop does not answer just now."""
        return self._warned

    def at(self, when_ms: float, call: Callable[[], None]) -> None:
        """Have `call` called at a time; it must be quick and not raise."""
        with self._lock:
            first = not self._timers or when_ms < self._timers[0][0]
            heapq.heappush(self._timers, (when_ms, next(self._numbers), call))
        if first:
            self._wake.set()

    def wake(self) -> None:
        """Say that something is held again: until then it looks around only now and then."""
        self._wake.set()

    def close(self) -> None:
        """End the loop."""
        self._closed = True
        self._wake.set()

    def serve(self) -> None:
        """Watch until closed: the body of the loop."""
        while not self._closed:
            held = self._held()
            now = self._pace.now_ms()
            self._fire_timers(now)
            for activation in held:
                if now - activation.renewed_ms >= self._lease_ms and not activation.lapsed:
                    self._events.lapsed(activation)
                if now >= activation.limit_ms:
                    self._events.out_of_time(activation)
            self._heartbeat.break_hung()
            self._calls.break_hung()
            self._probe_loop(held, now)
            self._pace.pause(self._wake, self._rest(held))
            self._wake.clear()

    def _fire_timers(self, now: float) -> None:
        while True:
            with self._lock:
                if not self._timers or self._timers[0][0] > now:
                    return
                _, _, call = heapq.heappop(self._timers)
            call()

    def _rest(self, held: Collection[Activation]) -> float:
        now = self._pace.now_ms()
        with self._lock:
            next_timer = self._timers[0][0] if self._timers else float("inf")
        next_limit = min((each.limit_ms for each in held), default=float("inf"))
        return min(self._tick_ms if held else _IDLE_TICK_MS, min(next_timer, next_limit) - now)

    # -- the event loop --------------------------------------------------------------------------

    def _probe_loop(self, held: Collection[Activation], now: float) -> None:
        if self._probed_at is None:
            if any(each.task.is_async and not each.returned for each in held):
                self._probed_at = now
                if not self._loop.post(self._note_answer):
                    self._probed_at = None
            return
        if now - self._probed_at >= self._blocked_ms and not self._warned:
            self._warned = True
            self._counters.add(Metric.LOOP_BLOCKED)
            _log.warning(*self._describe_block(held))

    def _note_answer(self) -> None:
        self._probed_at = None
        self._warned = False

    def _describe_block(self, held: Collection[Activation]) -> tuple[str, object, object, object]:
        task, frame = self._loop.current()
        blocking = next(
            (
                each
                for each in held
                if task is not None
                and (each.main is task or (each.children is not None and task in each.children))
            ),
            None,
        )
        named = (
            f"the handler of task '{blocking.task.name}' (run {blocking.claimed.id})"
            if blocking is not None
            else "something"
        )
        where = "".join(traceback.format_stack(frame)[-8:]) if frame is not None else ""
        return (
            _BLOCKED,
            named,
            self._blocked_ms / 1000,
            where,
        )
