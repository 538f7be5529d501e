"""`ActivationCore`: one call of a handler under one lease, and what it may know of its run.

Source: docs/design.md, sections 6 and 7.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from workhorse.domain.boundaries import Wait
from workhorse.domain.ids import RunId
from workhorse.domain.runs import ClaimedRun, Lease
from workhorse.errors import BoundaryNotAwaitedError, LeaseLostError, LeaseRequiredError
from workhorse.handlers.recording import Recorder
from workhorse.handlers.replay.state import Replay
from workhorse.handlers.signals import StopSwitch

_making: Final = threading.Lock()


def _host_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """What a handler may know of its run; the same in each activation. Instants are in UTC."""

    id: RunId
    task: str
    """As it was enqueued; an alias of the task that runs, after a rename."""
    queue: str
    tags: tuple[str, ...]
    session: str | None
    key: str | None
    created_at: datetime
    started_at: datetime
    """When the run was claimed for the first time."""


class ActivationCore:
    """One call of a handler under one lease: what both contexts look at, and the worker steers.

    Args:
        claimed: The run as it was claimed.
        recorder: Who writes its boundaries; without one, calls that need one are refused.
        now: About the present, in UTC, for coarse checks only: the host's clock, or a test's.

    Raises:
        LeaseRequiredError: The run carries no lease.
    """

    __slots__ = (
        "_claimed", "_now", "_over", "_replay", "_run", "attempt", "cancelled", "flow", "lease",
        "recorder", "stopping", "thread",
    )  # fmt: skip

    lease: Final[Lease]
    attempt: Final[int]
    stopping: Final[StopSwitch]
    cancelled: Final[StopSwitch]

    def __init__(
        self,
        claimed: ClaimedRun,
        recorder: Recorder | None = None,
        *,
        now: Callable[[], datetime] = _host_now,
    ) -> None:
        if claimed.lease is None:
            raise LeaseRequiredError(f"run {claimed.id} carries no lease; it was not touched")
        self.lease = claimed.lease
        self.attempt = claimed.attempt
        owner = f"run {claimed.id}"
        self.stopping = StopSwitch(owner)
        self.cancelled = StopSwitch(owner)
        self.recorder = recorder
        self.flow: asyncio.Task[Any] | None = None
        """The task that an async handler runs in, until its end; those it starts are others."""
        self.thread: int | None = None
        """The thread that a plain handler is called in."""
        self._claimed = claimed
        self._now = now
        self._replay: Replay | None = None
        self._run: RunInfo | None = None
        self._over = False

    @property
    def is_final_attempt(self) -> bool:
        """Whether an error of this attempt ends the run."""
        return self._claimed.is_final_attempt

    @property
    def run(self) -> RunInfo:
        """What the handler may know of its run; made when it is first asked for."""
        if self._run is None:
            claimed = self._claimed
            self._run = RunInfo(
                id=claimed.id,
                task=claimed.task,
                queue=claimed.queue,
                tags=claimed.tags,
                session=claimed.session,
                key=claimed.key,
                created_at=claimed.created_at.astimezone(UTC),
                started_at=claimed.started_at.astimezone(UTC),
            )
        return self._run

    @property
    def queue_ms(self) -> int:
        """Milliseconds from the run's creation to its first claim; never negative."""
        waited = self.run.started_at - self.run.created_at
        return max(0, round(waited.total_seconds() * 1000))

    # -- durable execution -----------------------------------------------------------------------

    @property
    def replay(self) -> Replay:
        """What answers boundaries; made when it is first used, for most handlers use none."""
        if self._replay is None:
            with _making:  # threads of a handler share it
                if self._replay is None:
                    self._replay = Replay(
                        self._claimed,
                        self.lease,
                        self.recorder,
                        stopping=self.stopping,
                        cancelled=self.cancelled,
                        now=self._now,
                    )
                    if self._over:
                        self._replay.gate.close(self._ended())
        return self._replay

    @property
    def used(self) -> bool:
        """Whether anything durable was asked of it; most handlers of short work ask for nothing."""
        return self._replay is not None

    @property
    def suspension(self) -> tuple[Wait, ...]:
        """The waits that the activation ends at; empty while it has come to none."""
        return () if self._replay is None else self._replay.suspension

    @property
    def suspended(self) -> bool:
        """Whether the activation is ended at its waits; before, its tasks are held at them."""
        return self._replay is not None and self._replay.suspended

    @property
    def cut_short(self) -> bool:
        """Whether a boundary was refused because the worker ends, or the lease is gone."""
        return self._replay is not None and self._replay.gate.cut_short

    def forget_waits(self) -> None:
        """Let none of the waits count that tasks of the handler are held at: it has failed."""
        self.replay.forget_waits()

    @property
    def new_boundaries(self) -> int:
        """How many boundaries this activation has stored."""
        return 0 if self._replay is None else self._replay.new_boundaries

    @property
    def reached(self) -> list[str]:
        """The names of the boundaries that this activation has asked for, in order."""
        return [] if self._replay is None else self._replay.reached

    @property
    def unawaited(self) -> bool:
        """Whether there are calls of the context that nobody has awaited by now."""
        return self._replay is not None and bool(self._replay.calls.made)

    def forgotten(self, held: Collection[object]) -> BoundaryNotAwaitedError | None:
        """Return what there is to say of these calls, and close them.

        Args:
            held: Coroutines of tasks that the handler has started: calls that are not forgotten.
        """
        return self.replay.calls.forgotten(held)

    def fail_pending(self, error: BaseException) -> None:
        """Let nobody wait any more for what is under way; new boundaries are refused with it."""
        self.replay.fail_pending(error)

    def end(self) -> None:
        """Have nothing new begin any more, the handler has returned.

        A thread or task that it has left behind may still hold its context: what that begins could
        not be stored, so its operations are not called.
        """
        with _making:
            self._over = True
            replay = self._replay
        self.flow = None  # it holds the context of the handler, and that holds this
        if replay is not None:
            replay.gate.close(self._ended())

    def _ended(self) -> LeaseLostError:
        return LeaseLostError(
            f"run {self._claimed.id}: its activation has ended; nothing more begins under its "
            "lease. Wait in the handler for the threads and tasks that it starts"
        )
