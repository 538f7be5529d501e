"""What `task.enqueue` and its relatives do: store the run, then wake a worker for it.

Enqueue raises for the store, never for the lane: once the run is committed it is accepted, and what
a lane loses is found by the nets.

Source: docs/design.md, section 8.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from workhorse.client.arming import Arming
from workhorse.client.background import Background
from workhorse.client.executing import RunNow
from workhorse.client.joining import Joiner
from workhorse.client.publishing import Publisher, predecessors_of
from workhorse.client.results import Run, RunCalls
from workhorse.client.sharing import SharedCommits
from workhorse.domain.hints import Hint
from workhorse.domain.runs import Enqueued, NewRun
from workhorse.handlers.producing import Request
from workhorse.ports import Announce, Lane, announce_of
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.fleet.notifying import enqueue_alone_and_ring, enqueue_and_ring
from workhorse.store.producing.inserting_plain import stands_alone
from workhorse.store.producing.ringing import is_full
from workhorse.telemetry import get_logger

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session

R = TypeVar("R")

_log = get_logger("client")

_SAID_AGAIN_S: Final = 60.0


class Client:
    """Stores runs and sends their wakeups; the `Producer` of an app's tasks. Safe in threads.

    Args:
        store: Returns the store, opened and checked; asked at each call.
        lane: Returns the lane.
        publisher: Sends wakeups.
        joiner: Puts runs into callers' transactions.
        calls: What the returned handles work with.
        run_now: Claims and executes a run in this process.
        background: Where store calls of async callers run.
        share_commits: Whether single enqueues of callers at once share a commit.
        clock: A test's clock; the host's for the coarse checks where there is none.
    """

    def __init__(
        self,
        *,
        store: Callable[[], Store],
        lane: Callable[[], Lane],
        publisher: Publisher,
        joiner: Joiner,
        calls: RunCalls,
        run_now: RunNow,
        background: Background,
        share_commits: bool = False,
        clock: ManualClock | None = None,
    ) -> None:
        self._store = store
        self._lane = lane
        self._publisher = publisher
        self._joiner = joiner
        self._calls = calls
        self._run_now = run_now
        self._background = background
        self._clock = clock
        self._said_full_at: float | None = None
        self._arming = Arming(store)
        shared = SharedCommits(self.store_runs, publisher, background)
        self._shared = shared if share_commits else None

    def now(self) -> datetime:
        """Return about the present, in UTC, for coarse checks only."""
        return self._clock.now if self._clock is not None else datetime.now(UTC)

    def enqueue(
        self, request: Request[R], connection: Session | Connection | None = None
    ) -> Run[R]:
        """Store the run, in the caller's transaction where there is one; see `Task.enqueue`."""
        if connection is not None:
            return self.handle(self._joiner.enqueue([request.run], connection)[0], joined=True)
        if self._shared is not None:
            return self.handle(self._shared.enqueue(request.run))
        done, hints = self.store_runs([request.run])
        self._publisher.publish(hints)
        return self.handle(done[0])

    async def enqueue_async(
        self, request: Request[R], connection: AsyncSession | AsyncConnection | None = None
    ) -> Run[R]:
        """As `enqueue`, without blocking the event loop."""
        if connection is not None:
            done = await self._joiner.enqueue_async([request.run], connection)
            return self.handle(done[0], joined=True)
        if self._shared is not None:
            return self.handle(await self._shared.enqueue_async(request.run))
        done, hints = await self._background.call(self.store_runs, [request.run])
        await self._publisher.publish_async(hints)
        return self.handle(done[0])

    def run_now(self, request: Request[R]) -> Run[R]:
        """Store the run, claim it and execute it here; see `RunNow`."""
        # No bell is rung for it: the workers who heard it would be quicker.
        done, hints = self.store_runs([request.run], rings=False)
        run: Run[R] = self.handle(done[0])
        executed = False
        try:
            executed = self._run_now.execute(run.id, request.run.queue)
        finally:
            if not executed:  # the run is stored, and a worker's to execute
                self._publisher.publish(hints)
        if executed:
            view = run.view()
            if view.state.finished:
                self._calls.value_of(view)
        return run

    async def run_now_async(self, request: Request[R]) -> Run[R]:
        """As `run_now`, without blocking the event loop."""
        # Not on the app's few threads: the handler may take as long as it likes.
        return await asyncio.to_thread(self.run_now, request)

    # -- life ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Wait for the commits under way; a later enqueue begins anew."""
        if self._shared is not None:
            self._shared.close()

    def abandon(self) -> None:
        """Begin anew in a process that was forked."""
        if self._shared is not None:
            self._shared.abandon()

    # -- parts that bulk enqueue shares ----------------------------------------------------------

    def store_runs(
        self,
        runs: Sequence[NewRun],
        *,
        stride: int = 1,
        patient: bool = True,
        rings: bool = True,
    ) -> tuple[list[Enqueued], list[Hint]]:
        """Insert runs in one transaction; return the answers and the wakeups that must follow.

        Whoever is not `patient` gets a `KeysHeldError` where a key's owner has not committed yet.
        Where it does not ring, all wakeups follow, on a lane too that rings in the transaction.
        """
        announce = announce_of(self._lane()) if rings else None
        if announce is None:
            return self._store_runs(runs, None, stride=stride, patient=patient)
        try:
            return self._store_runs(runs, announce, stride=stride, patient=patient)
        except Exception as error:
            if not is_full(error):
                raise
            self._say_full()
            # Nothing was stored, for it has failed at the commit.
            return self._store_runs(runs, None, stride=stride, patient=patient)

    def _store_runs(
        self, runs: Sequence[NewRun], announce: Announce | None, *, stride: int, patient: bool
    ) -> tuple[list[Enqueued], list[Hint]]:
        store, lane = self._store(), self._lane()
        if len(runs) == 1 and stands_alone(runs[0]):
            return store.run(
                enqueue_alone_and_ring, runs[0], reach=lane.reach_ms, announce=announce
            )
        # The ids were drawn before, so trying again after a lost answer makes no second run.
        done, hints = store.run(
            enqueue_and_ring,
            runs,
            reach=lane.reach_ms,
            stride=stride,
            announce=announce,
            patient=patient,
        )
        return done, hints + self._arming.arm(predecessors_of(runs, done))

    def _say_full(self) -> None:
        now = time.monotonic()
        if self._said_full_at is None or now - self._said_full_at > _SAID_AGAIN_S:
            self._said_full_at = now
            _log.warning(
                "the database takes no notification any more: runs are stored without, and found "
                "by the scans of workers. Some session listens and reads nothing; end it, see "
                "pg_notification_queue_usage() and pg_stat_activity"
            )

    def handle(self, done: Enqueued, *, joined: bool = False) -> Run[Any]:
        """Return the handle of what an enqueue answered."""
        # The owner of a key may have been enqueued to another queue; its handle asks the store.
        queue = done.queue if done.created else None
        return Run(self._calls, done.run_id, queue=queue, created=done.created, joined=joined)
