"""`Worker`: claims runs of some queues, calls their handlers and settles them.

Source: docs/design.md, section 6.
"""

from __future__ import annotations

import contextvars
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from workhorse.domain.hints import Hint
from workhorse.domain.instants import check_duration
from workhorse.domain.names import check_queue
from workhorse.domain.presence import Process, ProcessKind
from workhorse.domain.runs import ClaimedRun, RunState
from workhorse.errors import ConfigurationError, LeaseRequiredError, WorkhorseError
from workhorse.handlers.registry import TaskRegistry
from workhorse.ports import Lane
from workhorse.runtime.base import exits
from workhorse.runtime.base.calls import StoreCalls
from workhorse.runtime.base.garbage import tend_garbage
from workhorse.runtime.base.options import WorkerOptions
from workhorse.runtime.base.pace import Pace, SystemPace
from workhorse.runtime.process.checks import SchemaCheck
from workhorse.runtime.process.draining import Drain
from workhorse.runtime.process.health import HealthServer, Report
from workhorse.runtime.process.parts import Parts
from workhorse.runtime.process.signals import Signals
from workhorse.store.base.migrating import SchemaVersion
from workhorse.telemetry import Counters, get_logger, own_version

if TYPE_CHECKING:
    from workhorse.store.base.database import Store

_log = get_logger("worker")


class Worker:
    """Runs the tasks of an app. `Workhorse.worker()` makes one with its dependencies.

    All methods are synchronous and may be called from any thread, but for `run`, which takes the
    main thread.

    Args:
        queues: The queues to serve.
        concurrency: Slots: how many runs are under way at once.
        worker_id: A name for logs; by default `w-` and 8 hex digits. No write trusts it.
        poll_ms: The pause between two scans that found less than asked for.
        can_claim: Asked before each receive and each claim, `can_claim() -> bool`, plain or async.
            It has a second; an error, or no answer in time, counts as False.
        on_claimed: Told after each claim that took runs, `on_claimed(runs)`, plain or async.
        store: Where the runs are; used with at most three connections.
        heartbeat_store: For renewals alone: a store with one connection of its own; by default a
            sibling of `store`. The worker closes it.
        lane: How wakeups travel.
        registry: The tasks that are known here.
        publish: Sends the wakeups that follow a commit; it never raises for the broker. It is
            called on a thread of its own.
        counters: Where to count.
        options: The other numbers.
        pace: The worker's own clock, for tests.

    Raises:
        ConfigurationError: There is no queue, no slot or an impossible pause.
    """

    def __init__(
        self,
        queues: Sequence[str],
        concurrency: int = 10,
        worker_id: str | None = None,
        poll_ms: int = 50,
        can_claim: Callable[[], Any] | None = None,
        on_claimed: Callable[[Sequence[ClaimedRun]], Any] | None = None,
        *,
        store: Store,
        lane: Lane,
        registry: TaskRegistry,
        publish: Callable[[Sequence[Hint]], object],
        heartbeat_store: Store | None = None,
        counters: Counters | None = None,
        options: WorkerOptions | None = None,
        pace: Pace | None = None,
    ) -> None:
        if isinstance(queues, str) or not queues:
            raise ConfigurationError("a worker needs a list of queues, one at least")
        if concurrency < 1 or poll_ms < 1:
            raise ConfigurationError("a worker needs a slot at least, and poll_ms of 1 or more")
        self.worker_id = worker_id or f"w-{secrets.token_hex(4)}"
        self.queues = tuple(dict.fromkeys(check_queue(queue) for queue in queues))
        self.concurrency = concurrency
        self._poll_ms = poll_ms
        self._can_claim = can_claim
        self._on_claimed = on_claimed
        self._store = store
        self._registry = registry
        self._lane = lane
        self._counters = counters or Counters()
        self._options = options or WorkerOptions()
        self._pace = pace or SystemPace()
        self._calls = StoreCalls(
            store, pace=self._pace, counters=self._counters, hang_ms=self._options.store_call_ms
        )
        self._check = SchemaCheck(store, self._calls, passed=self._log_start, failed=self._die_of)
        self._make_parts = partial(
            Parts,
            self.queues,
            concurrency,
            process=self._describe(),
            calls=self._calls,
            heartbeat_store=heartbeat_store or store.sibling(connections=1),
            lane=lane,
            registry=registry,
            publish=publish,
            can_claim=can_claim,
            on_claimed=on_claimed,
            poll_ms=poll_ms,
            options=self._options,
            pace=self._pace,
            counters=self._counters,
        )
        self._parts = self._make_parts()
        self._changed = threading.Condition()
        self._started = False
        self._draining = False
        self._stopping = False
        self._stop_result: bool | None = None
        self._releasing = False
        self._released = 0
        self._died: Exception | None = None
        self._wake_run: Callable[[], None] = _nothing
        self._health: HealthServer | None = None

    def __repr__(self) -> str:
        return f"<Worker {self.worker_id}: {', '.join(self.queues)}>"

    @property
    def health_address(self) -> tuple[str, int] | None:
        """Host and port of the health endpoint, while it answers."""
        return self._health.address if self._health is not None else None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # -- starting --------------------------------------------------------------------------------

    def start(self) -> None:
        """Start; returns when the loops are up. A worker is started once.

        A database that does not answer is waited for: its schema is checked before the first claim.

        Raises:
            SchemaMismatchError: The database's schema does not fit this version.
            ConfigurationError: A handler's annotations cannot be used.
        """
        with self._changed:
            if self._started or self._stopping or self._draining:
                raise WorkhorseError(
                    f"worker {self.worker_id} was started before; make a new one instead"
                )
            self._started = True
        try:
            self._registry.check()
            self._check.at_start()
            options = self._options
            if options.health_port is not None:
                self._health = HealthServer(
                    options.health_host, options.health_port, self._report, self._counters
                )
        except BaseException:
            self.stop(0)
            raise
        self._parts.engine.start(contextvars.copy_context())
        self._parts.presence.start(lambda: self._check.done)
        self._parts.start_intakes(self._check)

    def run(self) -> int:
        """Start, go on until SIGTERM or SIGINT, stop; returns the exit code (`runtime.base.exits`).

        The first signal stops the worker as `stop` does; a second one, more than a second later,
        ends the process at once. When runs were cut short, a backstop ends the process soon after,
        whatever hangs: leave it with the exit code that is returned.

        The process is the worker's: Python's garbage collector is set to be less eager, where
        nobody has done so before (`runtime.base.garbage`).

        Raises:
            ConfigurationError: It was not called in the main thread.
            SchemaMismatchError: As `start`.
        """
        shutdown = self._options.shutdown
        with Signals(shutdown) as signals:
            self._wake_run = signals.wake
            self.start()
            tend_garbage()
            signals.wait()
            if self._died is not None:
                self.stop(0)
                return exits.DIED
            left = shutdown.drain_ms / 1000
            if signals.received is not None:
                _log.info("worker %s: %s; it stops", self.worker_id, signals.received.name)
                left -= time.monotonic() - signals.received_at
            if self.stop(max(0.0, left)):
                signals.disarm()
                return exits.STOPPED
            return exits.HANDED_BACK

    # -- stopping --------------------------------------------------------------------------------

    def stop(self, drain: timedelta | float | None = None) -> bool:
        """Claim nothing more, wait for what is under way, hand the rest back.

        `ctx.stopping` is set at once, `ctx.cancelled` when `drain` is over; two seconds later async
        handlers are cancelled as tasks. What is left is handed back, plain functions that do not
        return among it: this is the last act of a worker's process.

        Args:
            drain: How long runs may go on, a timedelta or seconds; by default the option's 25 s.

        Returns:
            Whether all runs ended by themselves. A second call joins the first.
        """
        drain_s = self._seconds(drain)
        with self._changed:
            first, self._stopping = not self._stopping, True
            if not first:
                self._changed.wait_for(lambda: self._stop_result is not None)
                return bool(self._stop_result)
        clean = False
        try:
            clean = self._parts.shut_down(drain_s)
            if self._health is not None:
                self._health.close()
                self._health = None
        finally:
            with self._changed:
                self._stop_result = clean
                self._changed.notify_all()
            self._wake_run()
        if self._started:
            how = "all runs had ended" if clean else "runs were cut short"
            _log.info("worker %s has stopped; %s", self.worker_id, how)
        return clean

    def release_in_flight(self) -> int:
        """Hand back every run that is claimed and not settled; the last act of a process.

        Nothing is claimed afterwards. Handlers that are still running are told to stop, and what
        they return is not stored. Calls at the same time share one pass; a run is handed back once.

        Returns:
            How many runs the pass handed back.
        """
        with self._changed:
            if self._releasing:
                self._changed.wait_for(lambda: not self._releasing)
                return self._released
            self._releasing = True
        released = 0
        try:
            released = self._parts.release()
        finally:
            with self._changed:
                self._released = released
                self._releasing = False
                self._changed.notify_all()
        return released

    def _seconds(self, drain: timedelta | float | None) -> float:
        if drain is None:
            return self._options.shutdown.drain_ms / 1000
        if not isinstance(drain, timedelta):
            drain = timedelta(seconds=drain)
        return check_duration("drain", drain).total_seconds()

    # -- executing -------------------------------------------------------------------------------

    def busy(self) -> bool:
        """Whether a run is held: from a claim's answer until its settle has committed."""
        return bool(self._parts.holdings)

    def drain(self, max_runs: int | None = None) -> int:
        """Run what can be claimed, by scan, until nothing is left; for a worker not started.

        Args:
            max_runs: Execute at most so many.

        Returns:
            How many runs were executed.

        Raises:
            StoreUnavailableError: The database does not answer.
            SchemaMismatchError: The database's schema does not fit this version.
        """
        with self._changed:
            if self._started or self._stopping or self._draining:
                raise WorkhorseError(
                    f"worker {self.worker_id} is started or stopped; drain() is for one that is "
                    "neither"
                )
            self._draining = True
        parts = self._parts
        try:
            self._registry.check()
            self._check()
            parts.engine.start(contextvars.copy_context())
            return Drain(
                parts.claimers(),
                starter=parts.starter,
                holdings=parts.holdings,
                slots=parts.slots,
                hooks=parts.hooks,
                ended=parts.ended,
            ).run(max_runs)
        finally:
            with self._changed:
                self._draining = False
                stopping = self._stopping  # then `stop` closes them
            if not stopping:
                parts.hand_back()
                parts.close(self._options.shutdown.hand_back_ms)
                self._parts = self._make_parts()

    def process_run(self, claimed: ClaimedRun) -> RunState | None:
        """Execute a claimed run and settle it: the step that worker, Lambda and tests share.

        The worker need not be started; what the step needs is started with it and stays up until
        `stop`. The handler sees the caller's context variables.

        Returns:
            The state that was written; None when nothing was: the lease was gone, or the worker
            was stopped before the store answered.

        Raises:
            LeaseRequiredError: The run carries no lease; it was not touched.
            UnknownTaskError: The run's task is not known here; it was not touched.
        """
        if claimed.lease is None:
            raise LeaseRequiredError(f"run {claimed.id} carries no lease; it was not touched")
        engine = self._parts.engine
        self._registry.require(claimed.task)
        engine.start()
        (activation,) = engine.hold(
            [claimed],
            sent_ms=self._pace.now_ms(),
            takes_slots=False,
            variables=contextvars.copy_context(),
        )
        done = activation.waited_for()
        engine.dispatch([activation])
        done.wait()
        return activation.written

    # -- what is known of it ---------------------------------------------------------------------

    def _log_start(self, schema: SchemaVersion) -> None:
        _log.info(
            "worker %s: workhorse %s, schema %d, environment %r, store %s, lane %s, queues %s, "
            "1 worker, %d slots",
            self.worker_id,
            own_version(),
            schema.version,
            self._options.environment,
            self._store.description,
            self._options.lane_name or type(self._lane).__name__,
            ", ".join(self.queues),
            self.concurrency,
        )

    def _describe(self) -> Process:
        options = self._options
        return Process(
            key=secrets.token_hex(8),
            id=self.worker_id,
            kind=ProcessKind.WORKER,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=own_version(),
            build=options.build,
            lane=options.lane_name or type(self._lane).__name__,
            queues=self.queues,
            slots=self.concurrency,
            every_ms=options.beat_ms,
        )

    def _die_of(self, error: Exception) -> None:
        self._died = error
        if self._parts.loops:  # else `start` raises it
            _log.critical("worker %s ends: %s", self.worker_id, error)
        self._parts.ended.set()
        self._wake_run()

    def _report(self) -> Report:
        parts, engine = self._parts, self._parts.engine
        loops = {loop.name: loop.healthy for loop in [*engine.loops(), *parts.loops]}
        loops["async"] = engine.loop.healthy
        held, stuck = parts.holdings.tally().held, parts.holdings.stuck
        stopping, away = parts.ended.is_set(), self._calls.away
        live = all(loops.values()) and stuck < self.concurrency and self._died is None
        return Report(
            live=live,
            ready=live and self._check.done and not away and not stopping,
            details={
                "worker": self.worker_id,
                "loops": loops,
                "held": held,
                "stuck": stuck,
                "loop_blocked": engine.loop_blocked,
                "store_answers": not away,
                "stopping": stopping,
                "build": self._options.build,
                "left_to_newer_builds": dict(parts.presence.newer),
            },
            gauges={
                "slots": self.concurrency,
                "slots_free": parts.slots.free,
                "runs_held": held,
                "handlers_stuck": stuck,
                "loop_is_blocked": engine.loop_blocked,
                "store_is_away": away,
                "queues_left_to_newer_builds": len(parts.presence.newer),
            },
        )


def _nothing() -> None:
    """Tell nobody."""
