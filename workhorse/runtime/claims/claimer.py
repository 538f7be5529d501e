"""Claims for one queue: tokens, lost and late answers, and the slots that claims reserve.

Source: docs/design.md, section 3.
"""

from __future__ import annotations

import random
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from workhorse.domain.hints import Hint, Reach
from workhorse.domain.ids import RunId
from workhorse.domain.runs import ClaimedRun, RunState
from workhorse.domain.sightings import Sighting
from workhorse.errors import StoreUnavailableError
from workhorse.handlers.registry import TaskRegistry
from workhorse.runtime.base.calls import StoreCalls
from workhorse.runtime.base.pace import Pace
from workhorse.runtime.claims.hooks import Hooks
from workhorse.runtime.claims.slots import Slots
from workhorse.runtime.claims.starting import Starter
from workhorse.runtime.execution.engine import Engine
from workhorse.store.lifecycle.claiming import Claim, claim, claimed_under, turn_was_taken
from workhorse.store.lifecycle.sighting import sight
from workhorse.store.lifecycle.sweeping import promote, recover
from workhorse.telemetry import Counters, Metric, get_logger

if TYPE_CHECKING:
    from workhorse.store.lifecycle.cursors import Cursor, Head

_log = get_logger("worker")


@dataclass(frozen=True, slots=True)
class _Unanswered:
    token: int
    sent_ms: float
    slots: int


class Claimer:
    """Takes runs of one queue and has them executed; for one thread.

    Args:
        starter: Shared by the claimers of a worker: starts what large claims bring.
        gate: Shared by the claimers of a worker: how many of them use the store at once.
        ended: Set when nothing is to be started any more: what a claim brings is handed back.
        tasks: Returns the tasks that are claimed; by default all that are registered.
    """

    def __init__(
        self,
        queue: str,
        *,
        calls: StoreCalls,
        engine: Engine,
        slots: Slots,
        starter: Starter,
        hooks: Hooks,
        registry: TaskRegistry,
        reach: Reach,
        lease_ms: int,
        gate: threading.Semaphore,
        ended: threading.Event,
        pace: Pace,
        counters: Counters,
        tasks: Callable[[], Sequence[str]] | None = None,
    ) -> None:
        self.queue = queue
        self._calls = calls
        self._engine = engine
        self._slots = slots
        self._starter = starter
        self._hooks = hooks
        self._tasks = registry.names if tasks is None else tasks
        self._reach = reach
        self._lease_ms = lease_ms
        self._gate = gate
        self._ended = ended
        self._pace = pace
        self._counters = counters
        self._unanswered: list[_Unanswered] = []
        self._sent_ms = 0.0
        self._draw = random.Random()  # noqa: S311 - jitter, not a secret

    @property
    def unanswered(self) -> bool:
        """Whether there are claims whose answer was lost."""
        return bool(self._unanswered)

    def take(
        self,
        ids: Sequence[RunId],
        reserved: int,
        *,
        scan: bool,
        cursor: Cursor | Head | None = None,
    ) -> Claim:
        """Claim up to `reserved` runs and start them; slots that are not used are given back.

        Many are started by another thread, soon after this has returned.

        Args:
            ids: Runs that wakeups named.
            reserved: Slots that the caller has reserved.
            scan: Whether to fill up from the queue.
            cursor: Where the page to scan starts.

        Raises:
            StoreUnavailableError: No answer. What the claim may have taken is looked up by
                `look_up`, and its slots stay reserved until then.
            Exception: Runs of a claim before could not be started, and nothing was claimed; or
                these could not.
        """
        token = secrets.randbits(63) or 1
        try:
            self._starter.check()
            answer = self._ask(ids, reserved, token, scan=scan, cursor=cursor)
        except StoreUnavailableError:
            self._unanswered.append(_Unanswered(token, self._sent_ms, reserved))
            raise
        except BaseException:
            self._slots.give_back(reserved)
            raise
        if scan:
            self._counters.add(Metric.SCAN_PAGES)
        self._take_in(answer.runs, self._sent_ms, reserved)
        return answer

    def look_up(self) -> None:
        """Find out what claims took whose answers were lost, and run it or hand it back.

        Raises:
            StoreUnavailableError: The store does not answer still.
        """
        while self._unanswered:
            lost = self._unanswered[-1]
            with self._gate:
                runs = self._calls.try_once(claimed_under, lost.token)
            self._unanswered.pop()
            if runs:
                _log.info("a claim whose answer was lost had taken %d runs", len(runs))
            self._take_in(runs, lost.sent_ms, lost.slots)

    def sight(self, ids: Sequence[RunId]) -> dict[RunId, Sighting]:
        """Return what the store says about runs that a claim did not take.

        Raises:
            StoreUnavailableError: It does not answer.
        """
        with self._gate:
            return self._calls.run(sight, ids)

    def mend(self, seen: Mapping[RunId, Sighting]) -> list[Hint]:
        """Recover and promote runs in place, by what was seen of them; answer the wakeups.

        Raises:
            StoreUnavailableError: The store does not answer.
        """
        hints: list[Hint] = []
        expired = [run_id for run_id, each in seen.items() if each.state is RunState.RUNNING]
        due = [run_id for run_id in seen if run_id not in expired]
        with self._gate:
            if expired:
                swept = self._calls.run(recover, reach=self._reach, draw=self._draw, ids=expired)
                self._counters.add(Metric.RUNS_RECOVERED, swept.count)
                hints += swept.hints
            if due:
                hints += self._calls.run(promote, ids=due).hints
        return hints

    def probe(self) -> None:
        """Ask the store for anything at all.

        Raises:
            StoreUnavailableError: It does not answer.
        """
        with self._gate:
            self._calls.try_once(claimed_under, 0)

    def _ask(
        self,
        ids: Sequence[RunId],
        free: int,
        token: int,
        *,
        scan: bool,
        cursor: Cursor | Head | None,
    ) -> Claim:
        tasks = self._tasks()
        for trial in (1, 2, 3):
            try:
                with self._gate:
                    self._sent_ms = self._pace.now_ms()
                    return self._calls.run_once(
                        claim, queue=self.queue, ids=ids, tasks=tasks, free=free, token=token,
                        lease_ms=self._lease_ms, scan=scan, cursor=cursor, sessions=trial < 3,
                    )  # fmt: skip
            except Exception as error:
                # Two workers saw the same turn of a session free; the index let one of them pass.
                if trial == 3 or not turn_was_taken(error):
                    raise
        raise AssertionError("the third trial returns or raises")

    def _take_in(self, runs: Sequence[ClaimedRun], sent_ms: float, reserved: int) -> None:
        self._slots.give_back(reserved - len(runs))
        if not runs:
            return
        self._counters.add(Metric.RUNS_CLAIMED, len(runs))
        late = self._is_late(sent_ms)
        if late:
            _log.warning(
                "queue %s: a claim was answered after two thirds of the lease; its %d runs are "
                "handed back",
                self.queue,
                len(runs),
            )
        self._engine.holdings.expect(len(runs))
        self._starter.start(partial(self._start, runs, sent_ms), len(runs))
        if not late and not self._ended.is_set():
            self._hooks.tell_claimed(runs)

    def _start(self, runs: Sequence[ClaimedRun], sent_ms: float) -> int:
        """Start runs, or hand them back; answer how many were handed back."""
        try:
            activations = self._engine.hold(runs, sent_ms=sent_ms, expected=True)
        except BaseException:
            # Nobody knows of them here: they wait for the end of their leases.
            self._engine.holdings.expect(-len(runs))
            self._slots.give_back(len(runs))
            raise
        if self._ended.is_set() or self._is_late(sent_ms):
            self._engine.hand_back(activations)
            return len(activations)
        self._engine.dispatch(activations)
        return 0

    def _is_late(self, sent_ms: float) -> bool:
        return self._pace.now_ms() - sent_ms > self._lease_ms * 2 / 3
