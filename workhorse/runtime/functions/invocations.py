"""`Invocations`: a worker that lives in the invocations of a function, and is frozen in between.

What is kept from one invocation to the next is what costs time to make and holds nothing: threads
that wait, and connections to the store. No lease, no message and no handler outlives its
invocation, so it does not matter how long the process stands still, or whether it is woken again.

Source: docs/design.md, section 5; docs/adr/0023-invocations.md
"""

from __future__ import annotations

import contextvars
import os
import secrets
import socket
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Final

from workhorse.domain.hints import Hint
from workhorse.domain.names import check_queue
from workhorse.domain.presence import Process, ProcessKind
from workhorse.errors import ConfigurationError, StoreUnavailableError
from workhorse.handlers.registry import TaskRegistry
from workhorse.ports import Lane, Message
from workhorse.runtime.base.calls import StoreCalls
from workhorse.runtime.base.options import WorkerOptions
from workhorse.runtime.base.pace import Backoff, Pace, SystemPace
from workhorse.runtime.claims.claimer import Claimer
from workhorse.runtime.functions.invoking import Invocation
from workhorse.runtime.functions.remaining import STORE_CALL_MS, TimeLeft, shutdown_within
from workhorse.runtime.process.checks import SchemaCheck
from workhorse.runtime.process.parts import Parts
from workhorse.store.base.migrating import SchemaVersion
from workhorse.store.lifecycle.claiming import claimed_under
from workhorse.telemetry import Counters, get_logger, own_version

if TYPE_CHECKING:
    from workhorse.runtime.activations.activation import Activation
    from workhorse.store.base.database import Store

_log = get_logger("function")

_FIRST_TRIES: Final = 4
_BEAT_NEEDS_MS: Final = STORE_CALL_MS + 1_000
"""With less time left, or half of what there was, an invocation ends without a word to others that
it is alive: it would be killed at its end if the store did not answer."""


class Invocations:
    """Runs the tasks of an app in invocations. `Workhorse.invocations()` makes one.

    One invocation at a time; another that comes meanwhile waits.

    Args:
        queues: The queues to serve; wakeups of others are deleted and counted.
        concurrency: Slots: how many runs are under way at once.
        store: Where the runs are.
        lane: Where wakeups are sent to.
        registry: The tasks that are known here.
        publish: Sends the wakeups that follow a commit; never raises for the broker.
        min_time_left_ms: What must be left of an invocation for a run to be begun, where its task
            says nothing else.
        heartbeat_store: For renewals alone; by default a sibling of `store`.
        counters: Where to count.
        options: The other numbers; what they say of a shutdown is put by what the function's own
            time-out allows.
        pace: The own clock, for tests.

    Raises:
        ConfigurationError: There is no queue or no slot, or the lane carries no messages.
    """

    def __init__(
        self,
        queues: Sequence[str],
        concurrency: int,
        *,
        store: Store,
        lane: Lane,
        registry: TaskRegistry,
        publish: Callable[[Sequence[Hint]], object],
        min_time_left_ms: float,
        heartbeat_store: Store | None = None,
        counters: Counters | None = None,
        options: WorkerOptions | None = None,
        pace: Pace | None = None,
    ) -> None:
        if isinstance(queues, str) or not queues:
            raise ConfigurationError("a function needs a list of queues, one at least")
        if concurrency < 1:
            raise ConfigurationError("a function needs a slot at least")
        if not lane.carries_messages:
            raise ConfigurationError(
                f"{type(lane).__name__} carries no messages, and a function is invoked with "
                "messages of a broker that it also sends to: set WORKHORSE_LANE=sqs, or give the "
                "app lane='sqs'"
            )
        self.queues = tuple(dict.fromkeys(check_queue(queue) for queue in queues))
        self.concurrency = concurrency
        self._store = store
        self._heartbeat_store = heartbeat_store or store.sibling(connections=1)
        self._lane = lane
        self._registry = registry
        self._publish = publish
        self._min_time_left_ms = min_time_left_ms
        self._counters = counters or Counters()
        self._options = replace(options or WorkerOptions(), store_call_ms=STORE_CALL_MS)
        self._pace = pace or SystemPace()
        self._lock = threading.Lock()
        self._calls = StoreCalls(
            store, pace=self._pace, counters=self._counters, hang_ms=STORE_CALL_MS
        )
        self._check = SchemaCheck(
            store, self._calls, passed=self._log_start, failed=lambda _error: None
        )
        self._process: Process | None = None
        self._time: TimeLeft | None = None
        self._parts: Parts | None = None
        self._claimers: dict[str, Claimer] = {}
        self._left_behind: list[Activation] = []
        self._complained: set[str] = set()

    def serve(
        self, messages: Sequence[Message], time_left_ms: Callable[[], float]
    ) -> Collection[str]:
        """Serve one invocation; see `ports.Activations`.

        Raises:
            ConfigurationError: The function's time is too short for any of its tasks, or a
                handler's annotations cannot be used.
            SchemaMismatchError: The database's schema does not fit.
        """
        with self._lock:
            time = TimeLeft(time_left_ms, self._registry, default_ms=self._min_time_left_ms)
            self._look_at(time)
            if not self._check.done:
                self._registry.check()
            parts = self._parts_for(time)  # it breaks what hangs, the check of the schema too
            try:
                self._make_sure(time)
            except StoreUnavailableError as error:
                _log.warning(
                    "the store is away, and %d messages are kept by their queue: %s",
                    len(messages),
                    error,
                )
                return [message.message_id for message in messages]
            self._time = time
            invocation = Invocation(
                messages,
                time,
                parts,
                self._claimers,
                calls=self._calls,
                lane=self._lane,
                counters=self._counters,
                pace=self._pace,
            )
            try:
                kept = invocation.run()
                # A start that has failed is this invocation's error, and not the next one's.
                parts.starter.check()
            except BaseException:
                self._end(parts, 0)
                raise
            if parts.holdings:
                # Nothing is held beyond the invocation, whatever its handlers do. A store that hung
                # may have kept it from asking them to stop: the drain ends when it would have.
                shutdown = self._options.shutdown
                left_s = time.left_s() - shutdown.backstop_ms / 1000
                self._end(parts, max(0.0, min(shutdown.drain_ms / 1000, left_s)))
                # A first send takes longer than the others: the SDK is loaded for it.
                parts.engine.publisher.flush(time.left_s() * 0.7)
            elif time_left_ms() > min(_BEAT_NEEDS_MS, time.whole_ms / 2):
                parts.presence.beat_if_due()  # last, so that no handler waits for it
            return kept

    def close(self) -> None:
        """Hand back what is held and end all threads; any number of times."""
        with self._lock:
            if self._parts is not None:
                self._end(self._parts, 0)

    # -- before ----------------------------------------------------------------------------------

    def _look_at(self, time: TimeLeft) -> None:
        if not time.known and len(self._registry):
            least = min(time.too_long.values())
            raise ConfigurationError(
                f"this function's invocations last {time.whole_ms / 1000:.1f} s, and none of its "
                f"tasks is begun with less than {least / 1000:.1f} s left, so nothing is ever run "
                "here; raise the function's time-out, or lower WORKHORSE_MIN_TIME_LEFT_SECONDS "
                "or the tasks' min_time_left. The messages stay in their queue"
            )
        for name in time.too_long.keys() - self._complained:
            self._complained.add(name)
            _log.warning(
                "task %r is begun only while %.1f s are left, and this function's invocations "
                "last %.1f s: its runs are left to others",
                name,
                time.too_long[name] / 1000,
                time.whole_ms / 1000,
            )

    def _make_sure(self, time: TimeLeft) -> None:
        """Make sure, once, that the store answers and its schema fits."""
        if self._check.done:
            return
        rest = Backoff(100, 1_000)
        for left in range(_FIRST_TRIES - 1, -1, -1):
            try:
                # The check itself tries for half a minute, which most functions do not have.
                self._calls.try_once(claimed_under, 0)
            except StoreUnavailableError:
                if not left or not time.may_ask_again():
                    raise
                self._pace.pause(threading.Event(), rest.next_ms())
            except Exception:  # noqa: BLE001 - it answered, and the check says what is wrong
                break
            else:
                break
        self._check()

    def _myself(self) -> Process:
        # Not before the first invocation: many processes may come of one snapshot.
        if self._process is None:
            self._process = Process(
                key=secrets.token_hex(8),
                id=f"f-{secrets.token_hex(4)}",
                kind=ProcessKind.FUNCTION,
                host=socket.gethostname(),
                pid=os.getpid(),
                version=own_version(),
                build=self._options.build,
                lane=self._options.lane_name or type(self._lane).__name__,
                queues=self.queues,
                slots=self.concurrency,
                every_ms=self._options.beat_ms,
            )
        return self._process

    def _parts_for(self, time: TimeLeft) -> Parts:
        parts = self._parts
        if parts is not None and not parts.slots.free:
            # Handlers of earlier invocations that do not stop have all of them, perhaps for ever.
            self._end(parts, 0)
            parts = None
        if parts is None:
            # One that was left behind may wake with the process and go on: it counts.
            self._left_behind = [each for each in self._left_behind if not each.returned]
            self._options = replace(self._options, shutdown=shutdown_within(time.reserve_ms))
            # One that hangs from right before the reserve on leaves half of that for the end.
            self._calls.hang_ms = min(STORE_CALL_MS, time.reserve_ms / 2)
            parts = self._parts = Parts(
                self.queues,
                max(1, self.concurrency - len(self._left_behind)),
                process=self._myself(),
                calls=self._calls,
                heartbeat_store=self._heartbeat_store,
                lane=self._lane,
                registry=self._registry,
                publish=self._publish,
                can_claim=None,
                on_claimed=None,
                poll_ms=1,
                options=self._options,
                pace=self._pace,
                counters=self._counters,
            )
            self._claimers = {each.queue: each for each in parts.claimers(self._fitting)}
            parts.engine.start(contextvars.Context())
        return parts

    def _fitting(self) -> tuple[str, ...]:
        return () if self._time is None else self._time.fitting()

    # -- after -----------------------------------------------------------------------------------

    def _end(self, parts: Parts, drain_s: float) -> None:
        self._parts = None
        drained = monotonic() + drain_s
        parts.end_claims()
        parts.starter.flush(drain_s)
        held = parts.holdings.all() + parts.holdings.running_on()
        parts.shut_down(max(0.0, drained - monotonic()))
        self._left_behind += [each for each in held if not each.returned]

    def _log_start(self, schema: SchemaVersion) -> None:
        _log.info(
            "function: workhorse %s, schema %d, environment %r, store %s, lane %s, queues %s, "
            "%d slots",
            own_version(),
            schema.version,
            self._options.environment,
            self._store.description,
            self._options.lane_name or type(self._lane).__name__,
            ", ".join(self.queues),
            self.concurrency,
        )
