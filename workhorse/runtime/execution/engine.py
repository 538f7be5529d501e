"""The part of a worker that executes: from a claimed run to its settle.

It knows nothing of queues and lanes, so that a worker, `process_run` and whoever brings runs from
elsewhere share it. Threads: the writer, the publisher, the heartbeat, the monitor, the event loop
(once an async handler comes), one for each plain handler that is running, one for those that run in
processes of their own, and up to five for `ctx.transaction`.

Source: docs/design.md, section 6.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from workhorse.domain.hints import Hint, Reach
from workhorse.domain.outcomes import HandedBack
from workhorse.domain.runs import ClaimedRun, RunState
from workhorse.errors import WorkhorseError
from workhorse.handlers.registry import TaskRegistry
from workhorse.handlers.signals import StopReason
from workhorse.handlers.tasks import Task
from workhorse.runtime.activations.activation import Activation
from workhorse.runtime.activations.endings import Endings
from workhorse.runtime.activations.holdings import Holdings
from workhorse.runtime.activations.recorder import Recorders
from workhorse.runtime.base.calls import StoreCalls
from workhorse.runtime.base.loops import Loop
from workhorse.runtime.base.options import WorkerOptions
from workhorse.runtime.base.pace import Pace
from workhorse.runtime.execution.batches import BatchExecutor
from workhorse.runtime.execution.eventloop import HandlerLoop
from workhorse.runtime.execution.executors import Executor, ThreadExecutor
from workhorse.runtime.execution.heartbeat import Heartbeat
from workhorse.runtime.execution.monitor import Monitor
from workhorse.runtime.execution.processes.executor import ProcessExecutor
from workhorse.runtime.execution.protection import Protection
from workhorse.runtime.execution.transactions import CONNECTIONS, Transactions
from workhorse.runtime.writing.publisher import Publisher
from workhorse.runtime.writing.reporting import Reports
from workhorse.runtime.writing.writer import Writer
from workhorse.telemetry import Counters, get_logger

if TYPE_CHECKING:
    from workhorse.store.base.database import Store

_log = get_logger("worker")

_MORE_S: Final = 0.5
"""What the executors have, all together, where the time for closing is over."""


class Engine:
    """Executes claimed runs and settles them. All methods are safe in threads.

    Args:
        calls: The store, for settles.
        heartbeat_store: The store, for renewals alone.
        publish: Sends wakeups.
        freed: Told how many slots are free again.
    """

    def __init__(
        self,
        calls: StoreCalls,
        heartbeat_store: Store,
        registry: TaskRegistry,
        *,
        publish: Callable[[Sequence[Hint]], object],
        reach: Reach,
        freed: Callable[[int], None],
        options: WorkerOptions,
        pace: Pace,
        counters: Counters,
    ) -> None:
        self._calls = calls
        self._registry = registry
        self._freed = freed
        self._options = options
        self._pace = pace
        self._counters = counters
        self._reports = Reports(counters)
        self._heartbeat_store = heartbeat_store
        self._lock = threading.Lock()
        self._variables = contextvars.Context()
        self._closing = threading.Event()
        self._closed = False
        self.holdings = Holdings()
        self._protection = Protection(
            options.ecs_agent_uri, self.holdings, registry, pace=pace, counters=counters
        )
        self.publisher = Publisher(publish, counters=counters)
        self.loop = HandlerLoop(
            self._concluded, suspended=self._suspended, cancel_wait_ms=options.cancel_wait_ms,
            pace=pace, counters=counters,
        )  # fmt: skip
        self._plain = ThreadExecutor(self._concluded, hand_back=self.hand_back, pace=pace)
        self._processes = ProcessExecutor(
            self._concluded, hand_back=self.hand_back, begun=self._begun, registry=registry,
            processes=options.processes, cancel_wait_ms=options.cancel_wait_ms,
            now=heartbeat_store.about_now, pace=pace,
        )  # fmt: skip
        self._batches = BatchExecutor(
            self._concluded, hand_back=self.hand_back, abandoned=self._abandoned, loop=self.loop,
            pace=pace,
        )  # fmt: skip
        # Batches first: some of their handlers may still need the loop to clean up.
        self._executors: tuple[Executor, ...] = (
            self._batches, self.loop, self._plain, self._processes
        )  # fmt: skip
        self._writer = Writer(
            calls, reach=reach, settled=self._settled, published=self.publisher.put,
            post=self.loop.post, pace=pace,
        )  # fmt: skip
        self._endings = Endings(
            self.holdings, concluded=self._conclude, cancel_wait_ms=options.cancel_wait_ms,
            pace=pace, counters=counters,
        )  # fmt: skip
        self._heartbeat = Heartbeat(
            heartbeat_store, self.holdings.all, self._endings, lease_ms=options.lease_ms,
            pace=pace, counters=counters,
        )  # fmt: skip
        self._transactions = Transactions(
            calls.store.sibling(connections=CONNECTIONS, bounded=False),
            lease_ms=options.lease_ms, let_renew=self._heartbeat.wait_for_answer,
        )  # fmt: skip
        self._recorders = Recorders(
            self._writer.ask, pace=pace, now=heartbeat_store.about_now,
            after_record=options.after_record, transactions=self._transactions,
        )  # fmt: skip
        self._recorders.events = self
        self._monitor = Monitor(
            self.holdings.all, self._endings, calls=calls, heartbeat=self._heartbeat,
            loop=self.loop, lease_ms=options.lease_ms, blocked_ms=options.blocked_ms,
            pace=pace, counters=counters,
        )  # fmt: skip
        self._endings.timers = self._recorders.timers = self._monitor
        self._loops: list[Loop] = []

    # -- life ------------------------------------------------------------------------------------

    def start(self, variables: contextvars.Context | None = None) -> None:
        """Start the threads, if they are not up.

        Args:
            variables: The context variables that handlers see a copy of.
        """
        with self._lock:
            if self._closing.is_set():
                raise WorkhorseError("the worker has ended; make a new one")
            if self._loops:
                return
            self._variables = self._variables if variables is None else variables
            self._loops = [
                Loop(name, body, stopping=self._closing, pace=self._pace, counters=self._counters)
                for name, body in (
                    ("writer", self._writer.serve),
                    ("publisher", self.publisher.serve),
                    ("heartbeat", self._heartbeat.serve),
                    ("monitor", self._monitor.serve),
                )
            ]
            for loop in self._loops:
                loop.start()
            self._protection.start()

    def close(self, deadline: float) -> bool:
        """End all threads, by a time of `time.monotonic`; what is held by then is let go of.

        Returns:
            Whether everything was settled and sent, and every thread has ended.
        """
        with self._lock:
            started = bool(self._loops)
            self._closing.set()
        done = True
        self._protection.close()
        if started:
            done = self._writer.flush(_left(deadline))
            done = self.publisher.flush(_left(deadline)) and done
        self._writer.close(abandon=not done)
        self.publisher.close()
        self._heartbeat.close()
        self._monitor.close()
        self._transactions.close()
        # What is left to them when the time is over, they share: a backstop waits for none of them.
        last = max(deadline, time.monotonic() + _MORE_S)
        for executor in self._executors:
            done = executor.close(min(2.0, _left(last))) and done
        last = max(last, time.monotonic() + _MORE_S / 5)
        for loop in self._loops:
            done = loop.join(_left(last)) and done
        self._protection.wait(_left(deadline) - 0.5)
        self._heartbeat_store.close()
        self._closed = True
        self._writer.end()
        for activation in self.holdings.all():
            activation.cut_off()
        self.holdings.let_go()
        return done

    def loops(self) -> list[Loop]:
        """Return the loops, for `/livez`."""
        return list(self._loops)

    @property
    def loop_blocked(self) -> bool:
        """Whether a handler blocks the event loop just now."""
        return self._monitor.loop_blocked

    # -- executing -------------------------------------------------------------------------------

    def hold(
        self,
        runs: Sequence[ClaimedRun],
        *,
        sent_ms: float,
        takes_slots: bool = True,
        expected: bool = False,
        variables: contextvars.Context | None = None,
    ) -> list[Activation]:
        """Take claimed runs in: from here on their leases are renewed.

        Args:
            sent_ms: When the claim was sent.
            takes_slots: Whether they take slots of the worker, which are told when they are free.
            expected: Whether `holdings` were told that they would come.
            variables: The context variables that the handlers see, by default those of `start`.

        Raises:
            LeaseRequiredError: A run carries no lease.
            UnknownTaskError: A run's task is not known here.
        """
        activations = []
        known: dict[str, tuple[Task[Any, Any], Executor]] = {}
        seen = self._variables if variables is None else variables
        ask_ms = sent_ms + self._options.lease_ms / 3
        for run in runs:
            found = known.get(run.task)
            if found is None:
                task = self._registry.require(run.task)
                found = known[run.task] = (task, self._executor_of(task))
            task, executor = found
            activation = Activation(
                run,
                task,
                executor=executor,
                sent_ms=sent_ms,
                variables=seen.copy(),
                takes_slot=takes_slots,
                recorders=self._recorders,
            )
            activation.ask_ms = ask_ms
            activations.append(activation)
        if self.holdings.add(activations, expected=expected):
            self._heartbeat.wake()
            self._monitor.wake()
            self._protection.wake()
        if self._closed:  # while they came: nobody is left who settles them
            self.holdings.let_go()
        return activations

    def dispatch(self, activations: Sequence[Activation]) -> None:
        """Call the handlers.

        Raises: What an executor failed with; its share is handed back, the others' are called.
        """
        later = self._processes  # it says itself when a handler is called
        try:
            limited = [
                each
                for each in activations
                if each.claimed.timeout_ms is not None or each.claimed.deadline_in_ms is not None
            ]
            for each in limited:
                self._endings.set_limit(each, begins=each.executor is not later)
            if limited:
                self._monitor.wake()
        except BaseException:
            self.hand_back(activations)
            raise
        shares: dict[Executor, list[Activation]] = {}
        for each in activations:
            shares.setdefault(each.executor, []).append(each)
        failure: BaseException | None = None
        for executor, share in shares.items():
            try:
                executor.submit(share)
            except BaseException as error:  # noqa: BLE001 - it is raised when all are called
                self.hand_back(share)
                if not isinstance(error, RuntimeError):  # the worker has ended meanwhile
                    failure = error
        if failure is not None:
            raise failure

    def _executor_of(self, task: Task[Any, Any]) -> Executor:
        if task.batch is not None:
            return self._batches
        if task.is_async:
            return self.loop
        in_process = task.executor == "process" and self._options.processes != 0
        return self._processes if in_process else self._plain

    def _begun(self, activation: Activation) -> None:
        if self._endings.begun(activation):
            self._monitor.wake()

    def _abandoned(self, activations: Sequence[Activation]) -> None:
        self._endings.abandoned(activations)

    def hand_back(self, activations: Sequence[Activation]) -> None:
        """Give up runs whose handlers were not called."""
        now = self._pace.now_ms()
        mine = [each for each in activations if each.conclude(HandedBack(), now)]
        self._concluded(mine, mine)

    def _conclude(self, ended: Sequence[Activation]) -> None:
        self._concluded(ended, ())

    def _concluded(self, ended: Sequence[Activation], returned: Sequence[Activation]) -> None:
        if ended:
            lost = [each for each in ended if each.lost]
            if lost:
                self._settled([(each, None) for each in lost])  # nothing is sent without a token
                ended = [each for each in ended if not each.lost]
            self._writer.offer(ended)
        self._free([each for each in returned if each.note_returned()])

    # -- settling --------------------------------------------------------------------------------

    def _settled(self, answers: Sequence[tuple[Activation, RunState | None]]) -> None:
        self._reports.settled(answers)
        freed = [each for each, written in answers if each.note_settled(written)]
        self.holdings.remove([each for each, _ in answers])
        self._free(freed)

    def _free(self, activations: Sequence[Activation]) -> None:
        if activations:
            self.holdings.note_freed(activations)
            self._freed([each.takes_slot for each in activations].count(True))

    # -- what recorders find out -----------------------------------------------------------------

    def suspending(self, activation: Activation) -> None:
        """The handler has come to a wait; a plain one ends by itself."""
        if activation.task.is_async:
            self.loop.suspend(activation)
        else:
            activation.waits = activation.core.suspension

    def _suspended(self, activation: Activation) -> None:
        self._endings.suspended(activation)

    def lost(self, activation: Activation) -> None:
        """The token is gone."""
        self._endings.lost(activation)

    def crashed(self, activation: Activation) -> None:
        """A test wants it to end as if its process had died."""
        self._endings.crashed(activation)

    # -- stopping --------------------------------------------------------------------------------

    def tell_cancelled(self) -> None:
        """Set `ctx.cancelled` of all that runs; what protects them is taken off, for they end."""
        self._protection.close()
        for activation in self.holdings.all():
            activation.core.cancelled.set(StopReason.SHUTDOWN)

    def uproot_all(self) -> None:
        """End all handlers that can be ended from outside."""
        for activation in self.holdings.all():
            activation.executor.uproot(activation)

    def release(self) -> int:
        """Hand back all that is held and not about to be settled; answer how many."""
        now = self._pace.now_ms()
        released = [each for each in self.holdings.all() if each.conclude(HandedBack(), now)]
        for activation in released:
            activation.core.cancelled.set(StopReason.SHUTDOWN)
            activation.executor.uproot(activation)
        self._conclude(released)
        return len(released)

    def flush(self, timeout: float) -> bool:
        """Wait until what was concluded is settled and its wakeups are sent; answer whether."""
        deadline = time.monotonic() + timeout
        return self._writer.flush(timeout) and self.publisher.flush(_left(deadline))


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
