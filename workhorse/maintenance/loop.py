"""The loop that does each step when it is due, and one pass for a scheduled task.

Source: docs/design.md, section 9
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import Final, Self

from workhorse.domain.presence import BEAT_MS, Process, ProcessKind
from workhorse.errors import (
    ConfigurationError,
    SchemaMismatchError,
    StoreUnavailableError,
    WorkhorseError,
)
from workhorse.maintenance.pulse import Health, Pulse
from workhorse.maintenance.steps import STEPS, Parts, Publish, Step
from workhorse.ports import Lane, LaneError
from workhorse.store.base.database import Store
from workhorse.store.fleet import presence
from workhorse.store.fleet import steps as rows
from workhorse.telemetry import Counters, Metric, get_logger, own_version

_log = get_logger("maintenance")

ONE_PASS: Final = timedelta(seconds=50)
"""A pass ends within this time: a scheduled task comes each minute."""
_LOOK_S: Final = 1.0
_LONGEST_REST_S: Final = 30.0
_EACH_PASS_MS: Final = 60_000
"""How often a scheduled task comes."""


@dataclass(slots=True)
class Pass:
    """What a pass did: rows changed by step; and the steps that failed, with the error's type."""

    counts: dict[str, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Rows changed by all steps."""
        return sum(self.counts.values())


class Maintenance:
    """The maintenance of one store. Any number may run; a fleet does each step once an interval.

    Args:
        store: The store; connections of its own are not needed, it uses one at a time.
        lane: How wakeups travel, for what becomes claimable.
        publish: Sends wakeups after a page's commit; never raises.
        counters: Where to count.
        hint_stride: How many ready runs one wakeup stands for.
        draw: Where the jitter of recovered runs' rests comes from.
        steps: What to do, in order.
        check: Makes sure that the schema fits; called before the first pass.
        build: What this process was built from.
        lane_name: How the lane is called where processes are listed.
    """

    def __init__(
        self,
        *,
        store: Store,
        lane: Lane,
        publish: Publish,
        counters: Counters,
        hint_stride: int = 10,
        draw: random.Random | None = None,
        steps: Sequence[Step] = STEPS,
        check: Callable[[], object] | None = None,
        build: str = "",
        lane_name: str = "",
    ) -> None:
        self._parts = Parts(
            store=store,
            lane=lane,
            publish=publish,
            counters=counters,
            hint_stride=hint_stride,
            draw=draw or random.Random(),  # noqa: S311 - jitter, not a secret
        )
        self._steps = tuple(steps)
        self._check = check
        self._beats = _Beats(store, build=build, lane=lane_name or type(lane).__name__)
        self._stopped = False
        self._pulse = Pulse()
        # Not an event: a signal that comes while the main thread holds its lock would wait for that
        # lock for ever. This one's `put` may be called at any moment.
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop(wait=True)

    @property
    def place(self) -> str:
        """Type and place of the store, without credentials."""
        return self._parts.store.description

    def health(self) -> Health:
        """Return how the loop of `run` or `start` is; from any thread, and at once."""
        return self._pulse.health(stopping=self._stopped)

    def run_once(
        self, within: timedelta = ONE_PASS, *, on_step: Callable[[str, int], None] | None = None
    ) -> Pass:
        """Do all steps now, whenever they were done last, page after page.

        A step that fails is reported and does not keep the others from being done.

        Args:
            within: No page is begun after this time, nor a step that would probably fail after it.
            on_step: Told of each step when it has ended, with its count.

        Raises:
            SchemaMismatchError: The database's schema does not fit.
            StoreUnavailableError: The database did not answer before the first pass.
        """
        self._make_sure()
        self._beats.of_a_pass()
        ends_at = time.monotonic() + within.total_seconds()
        done = Pass()
        took = 0.0
        for step in self._steps:
            began = time.monotonic()
            if self._stopped or began + took >= ends_at:
                break
            self._do(step, done, ends_at, force=True)
            # A store that is out of reach fails each step only after a while.
            took = time.monotonic() - began if step.name in done.failed else 0.0
            if on_step is not None:
                on_step(step.name, done.counts.get(step.name, 0))
        return done

    def run_due(self, within: timedelta = ONE_PASS) -> Pass:
        """Do the steps that are due by their rows, page after page.

        Raises:
            SchemaMismatchError: The database's schema does not fit.
            StoreUnavailableError: The database did not answer before the first pass.
        """
        self._make_sure()
        ends_at = time.monotonic() + within.total_seconds()
        done = Pass()
        for step in self._steps:
            if self._stopped:
                break
            self._do(step, done, ends_at, force=False)
        return done

    def run(self, *, on_pass: Callable[[Pass], None] | None = None) -> None:
        """Do what is due, for ever: until `stop`, or SIGTERM or SIGINT in the main thread.

        The loop outlives whatever fails in it; while the store is out of reach it looks less often.

        Args:
            on_pass: Told of each pass in which a step was done.

        Raises:
            SchemaMismatchError: The database's schema does not fit.
        """
        self._beats.begin()
        self._pulse.goes_on()
        try:
            with self._signals():
                self._go_on(on_pass)
        finally:
            self._beats.end()

    def _go_on(self, on_pass: Callable[[Pass], None] | None) -> None:
        rest = _LOOK_S
        while not self._stopped:
            failing = True
            try:
                done = self.run_due()
            except StoreUnavailableError as error:
                _log.warning("the store is away; maintenance waits for it: %s", error)
                self._pulse.passed(store_answers=False)
            else:
                away = StoreUnavailableError.__name__ in done.failed.values()
                self._pulse.passed(store_answers=not away)
                if on_pass is not None and (done.counts or done.failed):
                    on_pass(done)
                failing = len(done.failed) == len(self._steps)
            rest = min(rest * 2, _LONGEST_REST_S) if failing else _LOOK_S
            # Several processes that started together do not look together for long.
            self._rest(rest * self._parts.draw.uniform(0.8, 1.0))

    def start(self) -> None:
        """Go on like `run` in a thread of its own, for a program that has a worker beside it.

        A database whose schema does not fit ends the thread; whoever starts a worker is told there.
        """
        if self._thread is not None:
            raise WorkhorseError("this maintenance was started before; make a new one instead")
        self._thread = threading.Thread(
            target=self._run_quietly, name="workhorse-maintenance", daemon=True
        )
        self._thread.start()

    def _run_quietly(self) -> None:
        try:
            self.run()
        except (SchemaMismatchError, ConfigurationError) as error:
            _log.error("maintenance ends: %s", error)

    def stop(self, *, wait: bool = False) -> None:
        """End `run` or `start` after the page under way; from any thread, any number of times.

        Args:
            wait: Whether to wait for the thread of `start`, 5 s at most.
        """
        self._stopped = True
        self._bell.put(None)
        if wait and self._thread is not None:
            self._thread.join(5)

    def _make_sure(self) -> None:
        if self._check is not None:
            self._check()
            self._check = None

    def _rest(self, seconds: float) -> None:
        with suppress(Empty):
            self._bell.get(timeout=seconds)

    def _do(self, step: Step, done: Pass, ends_at: float, *, force: bool) -> None:
        store = self._parts.store
        self._pulse.goes_on()
        self._beats.if_due()
        try:
            if not store.run(rows.take, step.name, step.interval_ms, force=force):
                return
            count = 0
            while True:
                self._pulse.goes_on()
                self._beats.if_due()
                swept = step.page(self._parts)
                self._parts.publish(swept.hints)
                count += swept.count
                if not swept.full or self._stopped or time.monotonic() >= ends_at:
                    break
            done.counts[step.name] = count
            store.run(rows.record, step.name, count)
        except Exception as error:  # noqa: BLE001 - one step must not keep the others from healing
            done.failed[step.name] = type(error).__name__
            self._parts.counters.add(Metric.LOOP_RESTARTS, label=f"maintenance.{step.name}")
            if isinstance(error, (StoreUnavailableError, LaneError)):
                # Store and broker are away now and then, and these errors say all of it.
                _log.warning("step %s: %s", step.name, error)
            else:
                _log.error("step %s failed: %s", step.name, type(error).__name__, exc_info=error)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(_number: int, _frame: FrameType | None) -> None:
            self.stop()

        before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Beats:
    """Says that maintenance is alive, between two pages; what fails in it fails nothing else."""

    def __init__(self, store: Store, *, build: str, lane: str) -> None:
        self._store = store
        self._process = Process(
            key=secrets.token_hex(8),
            id=f"m-{secrets.token_hex(4)}",
            kind=ProcessKind.MAINTENANCE,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=own_version(),
            build=build,
            lane=lane,
        )
        self._started_at = time.monotonic()
        self._next_at = float("inf")
        self._listed = False

    def of_a_pass(self) -> None:
        """Beat once, under the key and the name that all passes of scheduled tasks share.

        So the list has one row for them, which says when the last one came.
        """
        if self._next_at == float("inf"):
            self._beat(
                replace(self._process, key="pass", id="maintain-once", every_ms=_EACH_PASS_MS)
            )

    def begin(self) -> None:
        """Beat from now on."""
        self._started_at = time.monotonic()
        self._next_at = self._started_at

    def if_due(self) -> None:
        """Beat, if that is due."""
        now = time.monotonic()
        if now >= self._next_at:
            self._next_at = now + BEAT_MS / 1000
            self._listed = self._beat(self._process) or self._listed

    def end(self) -> None:
        """Go off the list."""
        if self._listed:
            with suppress(Exception):  # then it is listed as late, for an hour
                self._store.try_once(presence.leave, self._process.key)

    def _beat(self, process: Process) -> bool:
        up_ms = round((time.monotonic() - self._started_at) * 1000)
        try:
            self._store.try_once(presence.beat, process, up_ms=up_ms)
        except Exception as error:  # noqa: BLE001 - the steps say what is wrong with the store
            _log.debug("a beat failed: %s", type(error).__name__)
            return False
        return True


__all__ = ["ONE_PASS", "Maintenance", "Pass"]
