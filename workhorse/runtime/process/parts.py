"""The parts that share a worker's slots: made once for a start, and anew for each drain."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from workhorse.domain.hints import Hint
from workhorse.domain.presence import Process
from workhorse.domain.runs import ClaimedRun
from workhorse.handlers.registry import TaskRegistry
from workhorse.ports import Lane
from workhorse.runtime.base.calls import StoreCalls
from workhorse.runtime.base.loops import Loop
from workhorse.runtime.base.options import WorkerOptions
from workhorse.runtime.base.pace import Pace
from workhorse.runtime.claims.claimer import Claimer
from workhorse.runtime.claims.hooks import Hooks
from workhorse.runtime.claims.intake import Intake
from workhorse.runtime.claims.lane_watch import LaneWatch
from workhorse.runtime.claims.slots import Slots
from workhorse.runtime.claims.starting import Starter
from workhorse.runtime.execution.engine import Engine
from workhorse.runtime.process.presence import Presence
from workhorse.telemetry import Counters, get_logger

if TYPE_CHECKING:
    from workhorse.store.base.database import Store

_log = get_logger("worker")

_CLAIMS_IN_FLIGHT: Final = 2
"""Claims, and what belongs to them, at one time: the third connection is the writer's."""
_EXIT_S: Final = 0.5
"""How long a process may take to end once its worker has stopped, before the backstop comes."""
_HAND_BACK_S: Final = 0.5
"""The least time for hand-backs, whatever came before."""
_STARTS_S: Final = 0.2
"""How long a hand-back waits for claimed runs that are on their way to their start."""
_LEAVE_S: Final = 0.5
"""How long the last act of an ending worker, to leave the list of processes, may take."""


class Parts:
    """Slots, engine, hooks and intakes of a worker, and how they are ended together."""

    def __init__(
        self,
        queues: Sequence[str],
        concurrency: int,
        *,
        process: Process,
        calls: StoreCalls,
        heartbeat_store: Store,
        lane: Lane,
        registry: TaskRegistry,
        publish: Callable[[Sequence[Hint]], object],
        can_claim: Callable[[], Any] | None,
        on_claimed: Callable[[Sequence[ClaimedRun]], Any] | None,
        poll_ms: int,
        options: WorkerOptions,
        pace: Pace,
        counters: Counters,
    ) -> None:
        self._queues = queues
        self._calls = calls
        self._lane = lane
        self._registry = registry
        self._poll_ms = poll_ms
        self._options = options
        self._pace = pace
        self._counters = counters
        self._gate = threading.Semaphore(_CLAIMS_IN_FLIGHT)
        self._intakes: list[Intake] = []
        self.ended = threading.Event()
        """Set when nothing more is to be claimed."""
        self.loops: list[Loop] = []
        """The intakes' threads."""
        self.slots = Slots(concurrency, queues)
        self.engine = Engine(
            calls,
            heartbeat_store,
            registry,
            publish=publish,
            reach=lane.reach_ms,
            freed=self.slots.give_back,
            options=options,
            pace=pace,
            counters=counters,
        )
        self.holdings = self.engine.holdings
        self.starter = Starter(counters=counters)
        self.presence = Presence(
            process,
            calls=calls,
            gate=self._gate,
            newest_only=options.newest_build_only,
            pace=pace,
            counters=counters,
        )
        self.hooks = Hooks(
            can_claim,
            on_claimed,
            serves=self.presence.may_claim,
            loop=self.engine.loop,
            limit_ms=options.hook_ms,
            counters=counters,
        )

    def claimers(self, tasks: Callable[[], Sequence[str]] | None = None) -> list[Claimer]:
        """Return a claimer for each queue; of all tasks, or of those that `tasks` returns."""
        return [
            Claimer(
                queue,
                calls=self._calls,
                engine=self.engine,
                slots=self.slots,
                starter=self.starter,
                hooks=self.hooks,
                registry=self._registry,
                reach=self._lane.reach_ms,
                lease_ms=self._options.lease_ms,
                gate=self._gate,
                ended=self.ended,
                pace=self._pace,
                counters=self._counters,
                tasks=tasks,
            )
            for queue in self._queues
        ]

    def start_intakes(self, check: Callable[[], None]) -> None:
        """Start an intake for each queue; `check` makes sure that the schema fits."""
        watch = LaneWatch(self._lane, self._queues, ended=self.ended, pace=self._pace)
        watch.start()
        for claimer in self.claimers():
            intake = Intake(
                claimer,
                self._lane,
                watch=watch,
                calls=self._calls,
                slots=self.slots,
                hooks=self.hooks,
                registry=self._registry,
                publish=self.engine.publisher.put,
                check=check,
                ended=self.ended,
                poll_ms=self._poll_ms,
                options=self._options,
                pace=self._pace,
                counters=self._counters,
            )
            self._intakes.append(intake)
            self.loops.append(
                Loop(
                    f"intake-{claimer.queue}",
                    intake.serve,
                    stopping=self.ended,
                    pace=self._pace,
                    counters=self._counters,
                )
            )
        for loop in self.loops:
            loop.start()

    # -- ending ----------------------------------------------------------------------------------

    def end_claims(self) -> None:
        """Claim nothing more; a claim under way is handed back, a receive is not waited for."""
        self.ended.set()
        self.presence.tell_stopping()
        self.slots.close()
        for intake in self._intakes:
            intake.close()

    def release(self) -> int:
        """Hand back all that is held, at once; answer how much it was."""
        bound_s = self._options.shutdown.hand_back_ms / 1000
        before = self.starter.handed_back
        self.end_claims()
        for loop in self.loops:
            loop.join(bound_s / 3)
        self.starter.flush(bound_s / 3)
        released = self.starter.handed_back - before + self.engine.release()
        self.engine.flush(bound_s)
        return released

    def hand_back(self) -> int:
        """Hand back all that is held; what is still on its way goes back where it would start.

        Returns:
            How many runs were handed back.
        """
        before = self.starter.handed_back
        self.ended.set()
        self.starter.flush(_STARTS_S)
        return self.starter.handed_back - before + self.engine.release()

    def shut_down(self, drain_s: float) -> bool:
        """Go through all parts of a shutdown; answer whether all runs ended by themselves."""
        shutdown, hand_back_ms = self._options.shutdown, self._options.shutdown.hand_back_ms
        ends = time.monotonic() + drain_s + shutdown.backstop_ms / 1000 - _EXIT_S
        self.end_claims()
        self.holdings.tell_stopping()
        quiet = self._wait_until_quiet(drain_s)
        # What hangs must not bring the backstop on: that would be before the hand-backs. Who holds
        # the interpreter while one part of it ends takes its time from the next.
        if not quiet:
            self.engine.tell_cancelled()
            grace_s = min(shutdown.cancel_grace_ms / 1000, ends - _HAND_BACK_S - time.monotonic())
            quiet = self._wait_until_quiet(max(0.0, grace_s))
        if not quiet:
            self.engine.uproot_all()
            planned_ms = shutdown.backstop_ms - shutdown.cancel_grace_ms - _EXIT_S * 1000
            left_ms = min(planned_ms, (ends - time.monotonic()) * 1000)
            hand_back_ms = round(min(hand_back_ms, max(_HAND_BACK_S * 1000, left_ms)))
            quiet = self._wait_until_quiet(hand_back_ms / 3000)
            hand_back_ms = hand_back_ms * 2 // 3
        released = self.hand_back()
        if released:
            _log.warning("%d runs do not end: they are handed back as they are", released)
        closed = self.close(hand_back_ms)
        return quiet and closed and not released and not self.holdings.cut_short

    def close(self, within_ms: float) -> bool:
        """Settle what has ended, send its wakeups, end all threads; answer whether that was all."""
        deadline = time.monotonic() + within_ms / 1000
        self.starter.flush(within_ms / 3000)  # it offers to the writer, which `engine` ends
        self.starter.close()
        closed = self.engine.close(deadline)
        self.hooks.close()
        self.presence.close(min(_LEAVE_S, max(0.0, deadline - time.monotonic())))
        return closed

    def _wait_until_quiet(self, timeout: float) -> bool:
        """Wait until no claim is under way and nothing is held; answer whether it came to that."""
        deadline = time.monotonic() + timeout
        ended = all(loop.join(max(0.0, deadline - time.monotonic())) for loop in self.loops)
        settled = self.holdings.wait_until_empty(max(0.0, deadline - time.monotonic()))
        return ended and settled
