"""`Workhorse`: the object that a program makes one of, and that knows all parts."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TextIO, TypedDict, Unpack

from workhorse.client.admin import Admin, Idempotency
from workhorse.client.background import Background
from workhorse.client.bulk import BulkClient
from workhorse.client.doctor import Doctor
from workhorse.client.executing import RunNow
from workhorse.client.joining import Joiner
from workhorse.client.producing import Client
from workhorse.client.publishing import Publisher
from workhorse.client.resources import Resources
from workhorse.client.results import Run, RunCalls
from workhorse.client.sending import DeliveryCalls
from workhorse.domain.ids import parse_run_id
from workhorse.domain.names import check_queue
from workhorse.handlers.registry import TaskArguments, TaskDecorator, TaskRegistry
from workhorse.ports import Lane
from workhorse.settings import Settings, doubts, load_settings, new_doubts
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.base.migrating import SchemaVersion, migrate
from workhorse.telemetry import Counters, get_logger

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session

    from workhorse.domain.runs import ClaimedRun, RunState
    from workhorse.handlers.producing import Request
    from workhorse.maintenance import Maintenance
    from workhorse.runtime.base.options import WorkerOptions
    from workhorse.runtime.functions.invocations import Invocations
    from workhorse.runtime.process.worker import Worker


class SettingsArguments(TypedDict, total=False):
    """Settings as arguments; each is a field of `Settings`, and None leaves it to the others."""

    database_url: str | None
    database_secret: str | None
    schema: str | None
    environment: str | None
    pooler: bool | None
    listen_url: str | None
    queues: Sequence[str] | str | None
    lease_seconds: float | None
    concurrency: int | None
    processes: int | None
    poll_ms: int | None
    drain_seconds: float | None
    hint_stride: int | None
    share_commits: bool | None
    health_port: int | None
    health_host: str | None
    build: str | None
    newest_build_only: bool | None
    metrics: str | None
    metrics_namespace: str | None
    ecs_agent_uri: str | None
    min_time_left_seconds: float | None
    function_timeout_seconds: float | None
    log_level: str | None
    log_format: str | None
    aws_endpoint_url: str | None
    aws_region: str | None
    sqs_queue_prefix: str | None
    sqs_queue_urls: dict[str, str] | None
    sqs_fifo: bool | None
    sqs_client: str | None


class Workhorse(DeliveryCalls):
    """Tasks, and the store and the lane that their runs go through. Safe in threads.

    Nothing is opened before it is needed: making an app and registering tasks costs no connection.
    A process that was forked opens connections of its own.

    The tables are never made on the side, on SQLite neither: who deploys runs `workhorse migrate`,
    or calls `migrate()`, which does nothing where there is nothing to do. (Processes that all
    start at once would otherwise change a schema under each other, with rights that they need at
    no other time.)

    Args:
        lane: A lane's entry-point name, or a lane of your own, which stays yours to close; by
            default the setting, which is `polling`.
        clock: Stands for the database's clock, for tests.
        registry: The tasks of another app, whose runs are this one's from now on, for tests.
        arguments: Settings by name; what is not given comes from WORKHORSE_* or the defaults.

    Raises:
        ConfigurationError: A setting is unknown or wrong.
    """

    def __init__(
        self,
        *,
        lane: str | Lane | None = None,
        clock: ManualClock | None = None,
        registry: TaskRegistry | None = None,
        **arguments: Unpack[SettingsArguments],
    ) -> None:
        named = lane if isinstance(lane, str) else None
        self.settings: Final[Settings] = load_settings(lane=named, **arguments)
        for doubt in new_doubts(self.settings):
            _log.warning("%s; %s", doubt.message, doubt.advice)
        self.registry: Final = TaskRegistry() if registry is None else registry
        self.counters: Final = Counters()
        self._given_lane = None if isinstance(lane, str) else lane
        self._lock = threading.Lock()
        self._own_worker: Worker | None = None

        self._resources = Resources(
            self.settings, lane=self._given_lane, clock=clock, counters=self.counters
        )
        store, lane_of = self._resources.checked_store, self._resources.lane
        self._background = Background()
        self._publisher = Publisher(lane_of, self.counters)
        self._joiner = Joiner(store, lane_of, self._publisher, self._background)
        self._calls = RunCalls(store, self.registry, self._publisher, self._background)
        super().__init__(self._calls.deliveries)
        self._client = Client(
            store=store,
            lane=lane_of,
            publisher=self._publisher,
            joiner=self._joiner,
            calls=self._calls,
            run_now=RunNow(
                store,
                tasks=self.registry.names,
                lease_ms=self._lease_ms,
                process=self._process,
            ),
            background=self._background,
            share_commits=self.settings.share_commits,
            clock=clock,
        )
        self._bulk = BulkClient(
            self._client,
            self._joiner,
            self._publisher,
            self._background,
            stride=self.settings.hint_stride,
        )
        self.registry.bind(self._client)
        _apps.add(self)

    def __repr__(self) -> str:
        return f"<Workhorse with {len(self.registry)} tasks, lane {self.lane_name}>"

    # -- parts -----------------------------------------------------------------------------------

    def task(self, name: str | None = None, **arguments: Unpack[TaskArguments]) -> TaskDecorator:
        """Return a decorator that makes a task of a handler; see `TaskArguments`.

        Args:
            name: 1 to 200 printable characters, stable across deployments: runs are stored under
                it. By default the function's own name.
            arguments: `queue`, `retry`, `timeout`, `deadline`, `priority`, `aliases`,
                `not_retryable`, `batch`, `min_time_left`, `executor`.

        Raises:
            ConfigurationError: The handler cannot be one, or the name or an alias is taken.
            InvalidNameError: A name is not of the allowed form.
        """
        return self.registry.task(name, **arguments)

    @property
    def store(self) -> Store:
        """The store; opened, and its schema checked, at first use.

        Raises:
            SchemaMismatchError: The database's schema does not fit: run `workhorse migrate`, or
                call `migrate()`.
            StoreUnavailableError: The database does not answer.
        """
        return self._resources.checked_store()

    @property
    def lane(self) -> Lane:
        """The lane; opened at first use.

        Raises:
            ConfigurationError: No lane of that name is installed, or a setting of it is wrong.
        """
        return self._resources.lane()

    @property
    def lane_name(self) -> str:
        """What the lane is called: its entry-point name, or the class of a lane of your own."""
        given = self._given_lane
        return self.settings.lane if given is None else type(given).__name__

    @property
    def admin(self) -> Admin:
        """Operators' calls: runs, queues, `rehint`, `doctor`."""
        return Admin(
            store=self._resources.checked_store,
            lane=self._resources.lane,
            publisher=self._publisher,
            calls=self._calls,
            doctor=Doctor(
                store=self._resources.store,
                lane=self._resources.lane,
                registry=self.registry,
                queues=self.settings.queues,
                now=self._client.now,
                stride=self.settings.hint_stride,
                function_timeout_known=self.settings.function_timeout_seconds is not None,
                doubts=doubts(self.settings),
            ),
            stride=self.settings.hint_stride,
        )

    @property
    def idempotency(self) -> Idempotency:
        """Idempotency keys: `app.idempotency.reset(task, key)`."""
        return Idempotency(self._resources.checked_store)

    def worker(
        self,
        queues: Iterable[str] | None = None,
        concurrency: int | None = None,
        *,
        worker_id: str | None = None,
        poll_ms: int | None = None,
        can_claim: Callable[[], Any] | None = None,
        on_claimed: Callable[[Sequence[ClaimedRun]], Any] | None = None,
        options: WorkerOptions | None = None,
    ) -> Worker:
        """Return a worker of this app's tasks; it is not started.

        Args:
            queues: What it serves; by default the setting.
            concurrency: How many runs are under way at once; by default the setting.
            worker_id: A name for logs.
            poll_ms: The pause between two scans that found less than asked for.
            can_claim: Asked before each receive and claim.
            on_claimed: Told after each claim that took runs.
            options: The other numbers; by default from the settings.

        Raises:
            SchemaMismatchError: The database's schema does not fit. Where the database does not
                answer yet, the worker itself finds out before its first claim.
        """
        from workhorse.runtime.process.worker import Worker

        if isinstance(queues, str):
            queues = [queues]
        settings = self.settings
        served = settings.queues if queues is None else tuple(map(check_queue, queues))
        # Of its own: what handlers enqueue must not keep claims and settles waiting.
        store = self._resources.sibling_store()
        worker = Worker(
            served,
            settings.concurrency if concurrency is None else concurrency,
            worker_id,
            settings.poll_ms if poll_ms is None else poll_ms,
            can_claim,
            on_claimed,
            store=store,
            lane=self._resources.lane(),
            registry=self.registry,
            publish=self._publisher.publish,
            counters=self.counters,
            options=self._worker_options() if options is None else options,
        )
        # A program may make one worker after the other; each one's connections go with it.
        weakref.finalize(worker, store.close).atexit = False
        return worker

    def invocations(
        self, queues: Iterable[str] | None = None, concurrency: int | None = None
    ) -> Invocations:
        """Return what runs this app's tasks in invocations of a function; see `lambda_handler`.

        Nothing is connected yet.

        Args:
            queues: What it serves; by default the setting.
            concurrency: How many runs are under way at once; by default the setting.

        Raises:
            ConfigurationError: The app's lane carries no messages.
        """
        from workhorse.runtime.functions.invocations import Invocations

        settings = self.settings
        return Invocations(
            settings.queues if queues is None else tuple(queues),
            settings.concurrency if concurrency is None else concurrency,
            store=self._resources.unchecked_sibling(),
            lane=self._resources.lane(),
            registry=self.registry,
            publish=self._publisher.publish,
            min_time_left_ms=settings.min_time_left_seconds * 1000,
            counters=self.counters,
            options=self._worker_options(),
        )

    def maintenance(self, *, measures_to: TextIO | None = None) -> Maintenance:
        """Return the maintenance of this app's store; it is not started.

        Args:
            measures_to: Where its measures are written, where the setting `metrics` asks for them;
                by default standard output.

        Raises:
            SchemaMismatchError: The database's schema does not fit. Where the database does not
                answer yet, maintenance itself finds out before its first pass.
        """
        from workhorse.maintenance import STEPS, EmfWriter, Maintenance, measure_step

        settings, steps = self.settings, STEPS
        if settings.metrics == "emf":
            writer = EmfWriter(
                namespace=settings.metrics_namespace,
                environment=settings.environment,
                stream=measures_to,
            )
            # First: a pass may come to its end before its last step, and just then it is needed.
            steps = (measure_step(writer), *STEPS)
        return Maintenance(
            store=self._resources.expected_store(),
            check=self._resources.checked_store,
            lane=self._resources.lane(),
            publish=self._publisher.publish,
            counters=self.counters,
            hint_stride=settings.hint_stride,
            steps=steps,
            build=settings.build,
            lane_name=self.lane_name,
        )

    # -- producing -------------------------------------------------------------------------------

    def enqueue_many(
        self,
        requests: Iterable[Request[Any]],
        *,
        connection: Session | Connection | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> list[Run[Any]]:
        """Enqueue what `task.prepare(...)` returned; the handles come in the same order.

        A sequence is one transaction: all of it or nothing. Any other iterable is committed each
        1,000, and read on meanwhile; when it fails, what was committed stands, and the error's note
        says how much that is.
        Wakeups are sent for one run in `hint_stride`.

        Args:
            requests: Prepared runs, of one task or of several.
            connection: An open transaction of the caller's, which all of them join.
            progress: Told after each commit how many runs are committed.

        Raises:
            IdempotencyConflictError: A key belongs to a run with another payload.
            StoreUnavailableError: The database does not answer.
        """
        return self._bulk.enqueue_many(requests, connection, progress)

    async def enqueue_many_async(
        self,
        requests: Iterable[Request[Any]] | AsyncIterable[Request[Any]],
        *,
        connection: AsyncSession | AsyncConnection | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> list[Run[Any]]:
        """As `enqueue_many`, without blocking the event loop."""
        return await self._bulk.enqueue_many_async(requests, connection, progress)

    def flush(self) -> None:
        """Send the wakeups of callers' transactions that have committed; wait for those under way.

        They are sent by themselves when the connection goes back to its pool or begins again; this
        is for a program that keeps it, or that ends.
        """
        self._joiner.flush()

    # -- runs ------------------------------------------------------------------------------------

    def run(self, run_id: str) -> Run[Any]:
        """Return the handle of a run; the store is not asked before the handle is used.

        Raises:
            InvalidNameError: That is no run id.
        """
        return Run(self._calls, parse_run_id(run_id))

    def cancel(self, run_id: str, *, by: str = "app", why: str = "") -> RunState:
        """Cancel a run, or ask the worker that runs it to end it.

        Args:
            run_id: The run.
            by: Who cancels, for the audit.
            why: For the audit; up to 1,000 characters, as `by`.

        Returns:
            The state that now stands: `cancelled`, `running` where its worker was asked and the
            run will end as cancelled, or the one in which it had finished before.

        Raises:
            RunNotFoundError: No such run.
        """
        return self._calls.cancel(parse_run_id(run_id), by=by, why=why)

    async def cancel_async(self, run_id: str, *, by: str = "app", why: str = "") -> RunState:
        """As `cancel`, without blocking the event loop."""
        return await self.run(run_id).cancel_async(by=by, why=why)

    # -- life ------------------------------------------------------------------------------------

    def migrate(self) -> SchemaVersion:
        """Create the tables, or bring them to this version; does nothing where they are.

        Raises:
            SchemaMismatchError: The schema is newer than this code.
            StoreUnavailableError: The database did not answer; nothing was changed.
        """
        return migrate(self._resources.store())

    def close(self, drain: timedelta | float = 0) -> None:
        """Send what is left, then let go of connections and threads; any number of times.

        An app that is used afterwards opens them again. Workers are not stopped by this, and must
        be before.

        Args:
            drain: How long runs of `run_now` in other threads may go on.
        """
        with self._lock:
            own_worker, self._own_worker = self._own_worker, None
        if own_worker is not None:
            own_worker.stop(drain)
        self._client.close()
        if self._resources.lane_is_open:
            self._joiner.flush()
        self._background.close()
        self._resources.close()

    @contextmanager
    def replaced_by(self, other: Workhorse) -> Iterator[None]:
        """Be another app for a while, in whatever hands this one is; for tests.

        Args:
            other: An app with the registry of this one.
        """
        own = self.__dict__
        self.__dict__ = other.__dict__
        try:
            yield
        finally:
            self.__dict__ = own
            self.registry.bind(self._client)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- parts of workers ------------------------------------------------------------------------

    @property
    def _lease_ms(self) -> int:
        return round(self.settings.lease_seconds * 1000)

    def _worker_options(self) -> WorkerOptions:
        from workhorse.runtime.base.options import Shutdown, WorkerOptions

        settings = self.settings
        return WorkerOptions(
            lease_ms=self._lease_ms,
            shutdown=Shutdown(drain_ms=round(settings.drain_seconds * 1000)),
            processes=settings.processes,
            health_host=settings.health_host,
            health_port=settings.health_port,
            ecs_agent_uri=settings.ecs_agent_uri,
            build=settings.build,
            newest_build_only=settings.newest_build_only,
            environment=settings.environment,
            lane_name=self.lane_name,
        )

    def _process(self, claimed: ClaimedRun) -> object:
        with self._lock:
            if self._own_worker is None:
                self._own_worker = self.worker()
            worker = self._own_worker
        return worker.process_run(claimed)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        _inherited.append(self._own_worker)
        self._own_worker = None
        self._background.abandon()
        self._client.abandon()
        self._resources.abandon()


_apps: weakref.WeakSet[Workhorse] = weakref.WeakSet()
_log = get_logger("settings")
_inherited: list[object] = []


def _after_fork() -> None:
    for app in list(_apps):
        app._after_fork()


os.register_at_fork(after_in_child=_after_fork)
