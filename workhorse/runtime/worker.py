"""`Worker`: claims runs of some queues, calls their handlers and settles them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from workhorse.domain.hints import Hint
from workhorse.domain.runs import ClaimedRun, RunState
from workhorse.ports import Lane
from workhorse.runtime.options import WorkerOptions
from workhorse.telemetry import Counters

if TYPE_CHECKING:
    from workhorse.handlers.tasks import TaskRegistry
    from workhorse.store.database import Store


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
    ) -> None:
        raise NotImplementedError

    @property
    def worker_id(self) -> str:
        """The worker's name in logs."""
        raise NotImplementedError

    @property
    def health_address(self) -> tuple[str, int] | None:
        """Host and port of the health endpoint, while it answers."""
        raise NotImplementedError

    def start(self) -> None:
        """Start; returns when the loops are up. A worker is started once.

        Raises:
            SchemaMismatchError: The database's schema does not fit this version.
        """
        raise NotImplementedError

    def stop(self, drain: timedelta | float | None = None) -> bool:
        """Claim nothing more, wait for what is under way, hand the rest back.

        Args:
            drain: How long runs may go on, a timedelta or seconds; by default the option's 25 s.

        Returns:
            Whether all runs ended by themselves. A second call joins the first.
        """
        raise NotImplementedError

    def release_in_flight(self) -> int:
        """Hand back every run that is claimed and not settled; the last act of a process.

        Nothing is claimed afterwards. Handlers that are still running are told to stop, and what
        they return is not stored. Calls at the same time share one pass; a run is handed back once.

        Returns:
            How many runs the pass handed back.
        """
        raise NotImplementedError

    def busy(self) -> bool:
        """Whether a run is held: from a claim's answer until its settle has committed."""
        raise NotImplementedError

    def drain(self, max_runs: int | None = None) -> int:
        """Run what can be claimed, by scan, until nothing is left; for a worker not started.

        Args:
            max_runs: Execute at most so many.

        Returns:
            How many runs were executed.

        Raises:
            StoreUnavailableError: The database does not answer.
        """
        raise NotImplementedError

    def run(self) -> int:
        """Start, go on until SIGTERM or SIGINT, stop; returns the exit code (`runtime.exits`)."""
        raise NotImplementedError

    def process_run(self, claimed: ClaimedRun) -> RunState | None:
        """Execute a claimed run and settle it: the step that worker, Lambda and tests share.

        The worker need not be started; what the step needs is started with it and stays up until
        `stop`.

        Returns:
            The state that was written; None when the lease was gone and nothing was.

        Raises:
            LeaseRequiredError: The run carries no lease; it was not touched.
        """
        raise NotImplementedError
