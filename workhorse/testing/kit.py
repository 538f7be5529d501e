"""`Kit`: an app in a test, with a clock that stands still until the test moves it.

Source: docs/testing.md; docs/design.md, section 7.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, overload

from workhorse.app import Workhorse
from workhorse.client.results import Run
from workhorse.domain.instants import check_duration
from workhorse.domain.runs import RunState, RunView
from workhorse.errors import ConfigurationError, WorkhorseError
from workhorse.maintenance import Maintenance, Pass
from workhorse.runtime.base.options import Shutdown, WorkerOptions
from workhorse.store.base.database import ManualClock
from workhorse.store.base.throwaway import throwaway_database
from workhorse.testing.captured import CapturingLane, SentWakeup
from workhorse.testing.crashes import Crash, Crashes

if TYPE_CHECKING:
    from workhorse.domain.ids import RunId
    from workhorse.domain.runs import ClaimedRun
    from workhorse.handlers.producing import RunHandle
    from workhorse.runtime.process.worker import Worker

R = TypeVar("R")

_QUICK: Final = Shutdown(drain_ms=0, cancel_grace_ms=50, hand_back_ms=1_000)
_TIMED: Final = (RunState.SCHEDULED, RunState.WAITING, RunState.RUNNING)


class NotAtRestError(WorkhorseError, AssertionError):
    """Handlers go on and on, or a run that was to end does not."""


class Kit:
    """Runs an app's tasks in a test: on a throw-away SQLite file, by a clock that the test moves.

    While the kit is open, as a context manager or by the fixture `workhorse_kit`, the app itself is
    in it: whatever the tests, the handlers and the code around them do with the app and its tasks
    (`task.enqueue`, `app.send_signal`, `app.admin`) goes to the throw-away database, and nothing
    reaches the one that the app is set to. A real worker and real maintenance do the work, but
    only when they are told to, and by the kit's clock.

    Its calls block; an async test may call them too, as handlers run in threads of their own.

    Args:
        app: The app whose tasks are tested.
        clock: The clock; a new one by default.
        start: Where a new clock begins, aware; by default about now, so that instants which the
            code under test makes of the host's clock fit.
        concurrency: How many runs are under way at once. One is the easiest to follow.

    Raises:
        ConfigurationError: That is no app, or both a clock and its start are given.
    """

    __test__ = False

    def __init__(
        self,
        app: Workhorse,
        *,
        clock: ManualClock | None = None,
        start: datetime | None = None,
        concurrency: int = 1,
    ) -> None:
        if not isinstance(app, Workhorse):
            raise ConfigurationError(f"a kit is for a Workhorse app; got {type(app).__name__}")
        if clock is not None and start is not None:
            raise ConfigurationError("give a kit a clock, or where its own starts")
        self.app: Final = app
        self.clock: Final = clock or ManualClock(start or datetime.now(UTC).replace(microsecond=0))
        self.concurrency: Final = concurrency
        self._lane = CapturingLane(lambda: self.clock.now)
        self.crashes: Final = Crashes()
        self._started: Counter[str] = Counter()
        self._open: ExitStack | None = None
        self._worker: Worker | None = None
        self._maintenance: Maintenance | None = None

    def __repr__(self) -> str:
        return f"<Kit of {self.app!r} at {self.clock.now.isoformat()}>"

    # -- life ------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._open is not None:
            raise ConfigurationError("this kit is open; make another one")
        with ExitStack() as stack:
            settings = self.app.settings
            url = stack.enter_context(throwaway_database(settings.environment))
            twin = Workhorse(
                registry=self.app.registry,
                clock=self.clock,
                lane=self._lane,
                database_url=url,
                environment=settings.environment,
                queues=settings.queues,
                lease_seconds=settings.lease_seconds,
                hint_stride=settings.hint_stride,
            )
            stack.callback(twin.close)
            stack.enter_context(self.app.replaced_by(twin))
            stack.callback(self._stop_worker)
            self._open = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        if error is None:
            self.crashes.check_all_happened()

    def close(self) -> None:
        """End the worker, give the app back, and remove the database; any number of times."""
        stack, self._open = self._open, None
        if stack is not None:
            stack.close()

    # -- time ------------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """The time by the kit's clock, in UTC."""
        return self.clock.now

    @property
    def lease(self) -> timedelta:
        """How long a lease lasts: what has to go by until a crash is found out."""
        return timedelta(seconds=self.app.settings.lease_seconds)

    def advance(self, by: timedelta) -> datetime:
        """Move the clock; nothing runs by that. Answer the time.

        Raises:
            InvalidInstantError: The duration is negative or longer than 365 days.
        """
        return self.clock.advance(check_duration("advance", by))

    def advance_to_next(self) -> datetime | None:
        """Move the clock to the next time that is set, and answer it; None where there is none.

        That is the first of: a timer, a backoff, a time-out of a wait, a deadline, and the end of
        the lease of a run that crashed. What is due already does not move the clock.
        """
        then = self._next_time()
        if then is None:
            return None
        self.clock.advance(max(timedelta(0), then - self.now))
        return self.now

    # -- work ------------------------------------------------------------------------------------

    def run_until_idle(
        self, *, most: int = 1_000, within: timedelta = timedelta(seconds=60)
    ) -> int:
        """Do maintenance and run what can be run, again and again, until nothing moves.

        The clock stands still meanwhile. Answers how many activations were executed.

        Args:
            most: How many activations there may be.
            within: How long handlers may take, in real time.

        Raises:
            NotAtRestError: There are more activations, or a handler does not return.
            WorkhorseError: A step of maintenance failed.
        """
        self._started.clear()
        executed = 0
        for _ in range(most + 100):
            moved = self.maintain().total
            done = self._drain(most - executed + 1, within)
            executed += done
            if executed > most:
                raise NotAtRestError(
                    f"{executed:,} activations, and still not at rest; most of them of "
                    f"{_counted(self._started)}. Each enqueues the next, or waits for nothing; "
                    "most= allows more"
                )
            if not done and not moved:
                return executed
        raise NotAtRestError("maintenance finds something to do again and again")

    async def run_until_idle_async(
        self, *, most: int = 1_000, within: timedelta = timedelta(seconds=60)
    ) -> int:
        """As `run_until_idle`, while the event loop of the test goes on."""
        return await asyncio.to_thread(self.run_until_idle, most=most, within=within)

    @overload
    def run_to_end(
        self, run: str, *, within: timedelta = timedelta(days=365), most: int = 1_000
    ) -> Run[Any]: ...
    @overload
    def run_to_end(
        self, run: RunHandle[R], *, within: timedelta = timedelta(days=365), most: int = 1_000
    ) -> RunHandle[R]: ...
    def run_to_end(
        self,
        run: RunHandle[Any] | str,
        *,
        within: timedelta = timedelta(days=365),
        most: int = 1_000,
    ) -> RunHandle[Any]:
        """Run until idle and move the clock to the next time that is set, until a run has ended.

        Args:
            run: The run, or its id.
            within: How far the clock may go.
            most: How many activations there may be between two moves of the clock.

        Returns:
            The run's handle; whether it succeeded, its `result()` or `view()` says.

        Raises:
            NotAtRestError: It waits for something that no time brings, or for longer than that.
        """
        handle: RunHandle[Any] = self.app.run(run) if isinstance(run, str) else run
        until = self.now + within
        while True:
            self.run_until_idle(most=most)
            view = handle.view()
            if view.state.finished:
                return handle
            then = self._next_time()
            if then is None or not self.now < then <= until:
                raise NotAtRestError(
                    f"run {view.id} of task '{view.task}' does not end: it is {view.state}, and "
                    + ("no time is set" if then is None else "the next time that is set is too far")
                    + f"; {self._waits_of(view)}"
                )
            self.advance_to_next()

    def maintain(self) -> Pass:
        """Do all steps of maintenance once, by the kit's clock.

        Raises:
            WorkhorseError: A step failed; its error is in the log.
        """
        self._require_open()
        if self._maintenance is None:
            self._maintenance = self.app.maintenance()
        done = self._maintenance.run_once()
        if done.failed:
            failed = ", ".join(f"{name} ({error})" for name, error in done.failed.items())
            raise WorkhorseError(f"steps of maintenance have failed: {failed}; the log says more")
        return done

    def crash_after(self, boundary: str, *, task: str | None = None) -> Crash:
        """Have the next activation that stores this boundary end there, as by SIGKILL.

        The boundary is stored; nothing else is: no settle, no hand-back, no renewal, no wakeup.
        The handler is unwound by a `BaseException`. Other runs go on. The run stays `running` until
        its lease is over by the kit's clock: `advance(kit.lease)`.

        Args:
            boundary: A checkpoint, wait, child, token or patch, by its name.
            task: Only in runs of the task of this name.

        Returns:
            What tells whether it has happened. A kit that is closed after a test that passed raises
            where it has not: a mistyped name would test nothing.
        """
        return self.crashes.arm(boundary, task)

    # -- looking ---------------------------------------------------------------------------------

    @property
    def wakeups(self) -> list[SentWakeup]:
        """What was sent to the lane, in order; clear the list to look at what follows."""
        return self._lane.sent

    def run(self, run_id: str) -> Run[Any]:
        """Return the handle of a run, as `app.run`."""
        self._require_open()
        return self.app.run(run_id)

    # -- its own ---------------------------------------------------------------------------------

    def _require_open(self) -> None:
        if self._open is None:
            raise ConfigurationError("the kit is not open; use it as a context manager")

    def _drain(self, most: int, within: timedelta) -> int:
        worker = self._worker_of_all_queues()
        with self._stopped_after(within, worker) as stopped:
            done = worker.drain(max_runs=most)
        if stopped:
            self._worker = None
            raise NotAtRestError(
                f"handlers have not returned within {within.total_seconds():g} s: {stopped[0]}; "
                "the worker was stopped. What waits in a handler, other than by its context, waits "
                "in real time"
            )
        return done

    @contextmanager
    def _stopped_after(self, within: timedelta, worker: Worker) -> Iterator[list[str]]:
        stopped: list[str] = []

        def stop() -> None:
            held = self.app.admin.list_runs(state=RunState.RUNNING, limit=20)
            stopped.append(", ".join(f"run {view.id} of task '{view.task}'" for view in held))
            worker.stop(0)

        timer = threading.Timer(within.total_seconds(), stop)
        timer.daemon = True
        timer.start()
        try:
            yield stopped
        finally:
            timer.cancel()
            timer.join()

    def _worker_of_all_queues(self) -> Worker:
        self._require_open()
        queues = {*self.app.settings.queues, *(task.queue for task in self.app.registry)}
        queues |= {queue.name for queue in self.app.admin.list_queues()}
        if self._worker is None or set(self._worker.queues) != queues:
            self._stop_worker()
            self._worker = self.app.worker(
                sorted(queues),
                self.concurrency,
                worker_id="kit",
                on_claimed=self._note_claimed,
                options=WorkerOptions(
                    lease_ms=round(self.app.settings.lease_seconds * 1000),
                    shutdown=_QUICK,
                    processes=0,  # a test sees what its handlers do, and patches what they use
                    after_record=self.crashes.after_record,
                ),
            )
        return self._worker

    def _stop_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.stop(0)

    def _note_claimed(self, runs: Sequence[ClaimedRun]) -> None:
        self._started.update(run.task for run in runs)

    def _waits_of(self, view: RunView) -> str:
        waits = self.app.admin.list_waits(view.id, limit=5)
        if not waits:
            return "its queue may be paused, or its session another's turn"
        named = ", ".join(f"{wait.kind} '{wait.name}'" for wait in waits)
        return f"it waits for {named}"

    def _next_time(self) -> datetime | None:
        return min((when for view in self._unfinished() for when in _times(view)), default=None)

    def _unfinished(self) -> Iterator[RunView]:
        self._require_open()
        for state in _TIMED:
            before: RunId | None = None
            while page := self.app.admin.list_runs(state=state, limit=1_000, before=before):
                yield from page
                before = page[-1].id


def _times(view: RunView) -> Iterable[datetime]:
    when = view.lease_expires_at if view.state is RunState.RUNNING else view.due_at
    return [each for each in (when, view.deadline_at) if each is not None]


def _counted(started: Counter[str]) -> str:
    return ", ".join(f"task '{name}' ({count:,})" for name, count in started.most_common(3))
