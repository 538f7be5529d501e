"""What a handler is handed: `Context` for plain functions, `AsyncContext` for async ones.

Both are thin views of one `ActivationCore`, which the worker makes for each activation.

Source: docs/design.md, section 7.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from workhorse.domain.ids import RunId
from workhorse.domain.runs import ClaimedRun, Lease
from workhorse.errors import ConfigurationError, LeaseRequiredError
from workhorse.handlers.signals import AsyncStopSignal, StopSignal, StopSwitch


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

    Raises:
        LeaseRequiredError: The run carries no lease.
    """

    __slots__ = ("attempt", "cancelled", "is_final_attempt", "lease", "run", "stopping")

    run: Final[RunInfo]
    lease: Final[Lease]
    attempt: Final[int]
    is_final_attempt: Final[bool]
    stopping: Final[StopSwitch]
    cancelled: Final[StopSwitch]

    def __init__(self, claimed: ClaimedRun) -> None:
        if claimed.lease is None:
            raise LeaseRequiredError(f"run {claimed.id} carries no lease; it was not touched")
        self.run = RunInfo(
            id=claimed.id,
            task=claimed.task,
            queue=claimed.queue,
            tags=claimed.tags,
            session=claimed.session,
            key=claimed.key,
            created_at=claimed.created_at,
            started_at=claimed.started_at,
        )
        self.lease = claimed.lease
        self.attempt = claimed.attempt
        self.is_final_attempt = claimed.is_final_attempt
        owner = f"run {claimed.id}"
        self.stopping = StopSwitch(owner)
        self.cancelled = StopSwitch(owner)

    @property
    def queue_ms(self) -> int:
        """Milliseconds from the run's creation to its first claim; never negative."""
        waited = self.run.started_at - self.run.created_at
        return max(0, round(waited.total_seconds() * 1000))


class _Context:
    __slots__ = ("_core",)

    def __init__(self, core: ActivationCore) -> None:
        self._core = core

    def __repr__(self) -> str:
        return f"<{type(self).__name__} run {self.run.id} attempt {self.attempt}>"

    @property
    def run(self) -> RunInfo:
        """The run: id, task, queue, tags, session, key, and when it was made and started."""
        return self._core.run

    @property
    def lease(self) -> Lease:
        """The lease. Pass `lease.fence` on to systems that can refuse a number they saw pass."""
        return self._core.lease

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1; waits and hand-backs spend none."""
        return self._core.attempt

    @property
    def is_final_attempt(self) -> bool:
        """Whether an error of this attempt ends the run."""
        return self._core.is_final_attempt

    @property
    def queue_ms(self) -> int:
        """Milliseconds from the run's creation to its first claim; never negative."""
        return self._core.queue_ms


class Context(_Context):
    """What a plain handler is handed; see `AsyncContext` for async ones."""

    __slots__ = ()

    @property
    def stopping(self) -> StopSignal:
        """Set as soon as the worker is told to end; the handler still has its drain time."""
        return StopSignal(self._core.stopping)

    @property
    def cancelled(self) -> StopSignal:
        """Set when the handler is to end now; `.reason` says why."""
        return StopSignal(self._core.cancelled)


class AsyncContext(_Context):
    """What an async handler is handed; see `Context` for plain ones."""

    __slots__ = ()

    @property
    def stopping(self) -> AsyncStopSignal:
        """Set as soon as the worker is told to end; the handler still has its drain time."""
        return AsyncStopSignal(self._core.stopping)

    @property
    def cancelled(self) -> AsyncStopSignal:
        """Set when the handler is to end now; `.reason` says why."""
        return AsyncStopSignal(self._core.cancelled)


current: Final[ContextVar[Context | AsyncContext]] = ContextVar("workhorse.context")
"""The context of the handler that runs here; see `current_context`."""


def current_context() -> Context | AsyncContext:
    """Return the context of the handler that this code was called from.

    It follows what contextvars follow: tasks that the handler starts and `asyncio.to_thread`, not
    threads of its own making.

    Raises:
        ConfigurationError: No handler is running here.
    """
    try:
        return current.get()
    except LookupError:
        raise ConfigurationError("no handler is running here, so there is no context") from None
