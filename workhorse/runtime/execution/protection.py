"""Keeps an ECS task from being scaled in while a worker of this process is busy.

The protection is one for the whole task, so workers of one process share what keeps it. Its thread
alone talks to the agent, one call after the other; a run costs it nothing but an event that is set
when the first one comes. Outside ECS there is no thread.

Source: docs/design.md, section 6; docs/ecs.md.
"""

from __future__ import annotations

import math
import os
import threading
from datetime import timedelta
from typing import Final

from workhorse.handlers.registry import TaskRegistry
from workhorse.runtime.activations.holdings import Holdings
from workhorse.runtime.base.pace import Backoff, Pace
from workhorse.runtime.execution.ecs_agent import LONGEST_MINUTES, AgentError, EcsAgent
from workhorse.telemetry import Counters, Metric, get_logger

_log = get_logger("worker")

QUIET_MS: Final = 5_000
"""A worker is idle once it has held nothing, and settled nothing, for so long: one that is busy for
some milliseconds many times a second must not call the agent each time."""
UNLIMITED: Final = timedelta(hours=2)
"""How long a handler without a time-out is taken to need. The protection is renewed as long as it
goes on; this is what covers it when the agent cannot be reached meanwhile."""
_LOOK_MS: Final = 1_000
_FOR_EVER_MS: Final = 3_600_000
_MINUTE_MS: Final = 60_000
_OFF_S: Final = 2.2


class Protection:
    """One worker's part in it; without an agent it does nothing.

    Args:
        agent_uri: The setting; none outside ECS.
        holdings: What the worker holds.
        registry: Its tasks, whose longest time-out says how long a protection has to last.
    """

    def __init__(
        self,
        agent_uri: str | None,
        holdings: Holdings,
        registry: TaskRegistry,
        *,
        pace: Pace,
        counters: Counters,
    ) -> None:
        self.holdings = holdings
        self._registry = registry
        self._keeper = _keeper(agent_uri, pace, counters) if agent_uri else None

    def start(self) -> None:
        """Begin to watch what is held."""
        if self._keeper is not None:
            self._keeper.join(self)

    def wake(self) -> None:
        """Say that something is held again; nothing else need be said."""
        if self._keeper is not None:
            self._keeper.wake()

    def close(self) -> None:
        """Watch no more; the protection is taken off if nobody else needs it."""
        if self._keeper is not None:
            self._keeper.leave(self)

    def wait(self, timeout: float) -> None:
        """Wait until it was tried to take the protection off, where it has to be; 2.2 s at most."""
        if self._keeper is not None:
            self._keeper.wait(max(0.0, min(timeout, _OFF_S)))

    def longest(self) -> timedelta:
        """Return how long a handler may be active."""
        return max(
            (UNLIMITED if task.timeout is None else task.timeout for task in self._registry),
            default=UNLIMITED,
        )


class Keeper:
    """Has the task protected while one of its members is busy.

    Its thread is there while there are members, and until the last one's protection is off.
    """

    def __init__(self, agent: EcsAgent, *, pace: Pace, counters: Counters) -> None:
        self._agent = agent
        self._pace = pace
        self._counters = counters
        self._lock = threading.Condition()
        self._members: dict[Protection, None] = {}
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._tried_off = True
        # What follows is the thread's own; `leave` alone sets when it may call again.
        self._protected: bool | None = False
        """What the agent said last; None after a call whose outcome nobody knows."""
        self._wanted = False
        self._busy_at = 0.0
        self._settled = 0
        self._renew_at = 0.0
        self._expired_at = 0.0
        self._retry_at = 0.0
        self._backoff = Backoff(1_000, 60_000)
        self._failing = False

    # -- from outside ----------------------------------------------------------------------------

    def join(self, member: Protection) -> None:
        """Take a worker in."""
        with self._lock:
            self._members[member] = None
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._serve, name="workhorse-protection", daemon=True
                )
                self._thread.start()
        self._wake.set()

    def leave(self, member: Protection) -> None:
        """Let a worker go; when it was the last, the protection is taken off at once."""
        with self._lock:
            if self._members.pop(member, self) is self or self._members:
                return
            self._tried_off = False
            self._retry_at = 0.0
        self._wake.set()

    def wake(self) -> None:
        """Have the thread look, where it does not do so anyway."""
        if not self._wanted:
            self._wake.set()

    def wait(self, timeout: float) -> None:
        """Wait until the call that takes the protection off was made, if one was needed."""
        with self._lock:
            self._lock.wait_for(lambda: self._tried_off or bool(self._members), timeout)

    # -- the thread ------------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            self._wake.clear()
            with self._lock:
                members = list(self._members)
            now = self._pace.now_ms()
            was_wanted = self._wanted
            self._look(members, now)
            if was_wanted and not self._wanted:
                continue  # what came while it looked did not wake it: it looks again
            if self._needs_call(now):
                if now >= self._retry_at:
                    self._call(members, now)
                    continue
                rest = self._retry_at - now
            elif not self._wanted:
                if self._ends():
                    return
                rest = _FOR_EVER_MS
            else:
                rest = self._renew_at - now
            self._pace.pause(self._wake, min(rest, _LOOK_MS) if self._wanted else rest)

    def _look(self, members: list[Protection], now: float) -> None:
        """Find out whether the task should be protected: the last look counts."""
        settled = sum(member.holdings.tally().settled for member in members)
        held = any(member.holdings for member in members)
        if held or settled != self._settled:
            self._busy_at = now
        self._settled = settled
        quiet = now - self._busy_at >= QUIET_MS
        self._wanted = bool(members) and (held or (self._wanted and not quiet))
        if not self._wanted and self._protected is None and now >= self._expired_at:
            self._protected = False  # whatever became of the calls: it has ended by itself

    def _needs_call(self, now: float) -> bool:
        if self._wanted:
            return self._protected is not True or now >= self._renew_at
        return self._protected is not False

    def _call(self, members: list[Protection], now: float) -> None:
        self._protected = None
        try:
            if self._wanted:
                longest = max(member.longest() for member in members)
                minutes, renew_ms = expiry(longest)
                self._expired_at = max(self._expired_at, now + minutes * _MINUTE_MS)
                self._agent.protect(minutes)
                self._renew_at = now + renew_ms
            else:
                self._agent.release()
            self._protected = self._wanted
        except Exception as error:  # noqa: BLE001 - whatever it is, no run depends on it
            self._failed(error)
        else:
            self._retry_at = 0.0
            self._backoff.reset()
            if self._failing:
                self._failing = False
                _log.info("task protection: the ECS agent answers again")
        if not self._wanted:
            with self._lock:
                self._tried_off = True
                self._lock.notify_all()

    def _failed(self, error: Exception) -> None:
        with self._lock:
            rest = self._backoff.next_ms()
            left = not self._members and not self._tried_off and self._wanted
            self._retry_at = 0.0 if left else self._pace.now_ms() + rest
        self._counters.add(Metric.PROTECTION_ERRORS)
        if not self._failing:
            self._failing = True
            what = "on" if self._wanted else "off"
            why = error if isinstance(error, AgentError) else type(error).__name__
            _log.warning(
                "task protection is not %s: %s; runs go on, and it is tried again", what, why
            )

    def _ends(self) -> bool:
        with self._lock:
            if self._members:
                return False
            self._thread = None
            self._tried_off = True
            self._lock.notify_all()
            return True


def expiry(longest: timedelta) -> tuple[int, float]:
    """Return for how many minutes to protect, and after how many milliseconds to renew that.

    What is left is always more than the longest handler needs, so far as ECS's 48 hours allow:
    a run that is claimed right before a renewal is covered too, should the agent go away then.
    """
    needed = longest / timedelta(minutes=1)
    minutes = min(LONGEST_MINUTES, math.ceil(needed + max(10.0, needed / 2)))
    return minutes, max(5.0, (minutes - needed) / 2) * _MINUTE_MS


_keepers: dict[str, Keeper] = {}
_keepers_lock = threading.Lock()


def _keeper(uri: str, pace: Pace, counters: Counters) -> Keeper:
    agent = EcsAgent(uri)
    with _keepers_lock:
        return _keepers.setdefault(uri, Keeper(agent, pace=pace, counters=counters))


def _after_fork() -> None:
    """Begin anew in a forked process: the threads are the parent's."""
    global _keepers_lock
    _keepers_lock = threading.Lock()
    _keepers.clear()


os.register_at_fork(after_in_child=_after_fork)
