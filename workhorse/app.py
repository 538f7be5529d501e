"""`Workhorse`: the object that a program makes one of, and that knows all parts."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from workhorse.client.results import Run
from workhorse.settings import Settings, load_settings

if TYPE_CHECKING:
    from workhorse.client.admin import Admin, Idempotency
    from workhorse.domain.runs import RunState
    from workhorse.maintenance import Maintenance
    from workhorse.ports import Lane
    from workhorse.runtime.worker import Worker
    from workhorse.store.clock import ManualClock
    from workhorse.store.database import Store
    from workhorse.telemetry import Counters


class SettingsArguments(TypedDict, total=False):
    """Settings as arguments; each is a field of `Settings`, and None leaves it to the others."""

    database_url: str | None
    schema: str | None
    environment: str | None
    pooler: bool | None
    queues: Sequence[str] | str | None
    lease_seconds: float | None
    concurrency: int | None
    poll_ms: int | None
    drain_seconds: float | None
    hint_stride: int | None
    health_port: int | None
    health_host: str | None
    log_level: str | None
    aws_endpoint_url: str | None
    aws_region: str | None
    sqs_queue_prefix: str | None
    sqs_queue_urls: dict[str, str] | None
    sqs_fifo: bool | None
    sqs_client: str | None


class Workhorse:
    """Tasks, and the store and the lane that their runs go through.

    Nothing is opened before it is needed: making an app and registering tasks costs no connection.

    Args:
        lane: A lane's entry-point name, or a lane of your own; else the setting.
        clock: Stands for the database's clock, for tests.
        arguments: Settings by name; what is not given comes from WORKHORSE_* or the defaults.

    Raises:
        ConfigurationError: A setting is unknown or wrong.
    """

    settings: Settings
    counters: Counters

    def __init__(
        self,
        *,
        lane: str | Lane | None = None,
        clock: ManualClock | None = None,
        **arguments: Unpack[SettingsArguments],
    ) -> None:
        self.settings = load_settings(lane=lane if isinstance(lane, str) else None, **arguments)

    # -- parts -----------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        """The store; opened, and its schema checked, at first use.

        Raises:
            SchemaMismatchError: The database has no schema of this version: run `workhorse migrate`
                or call `app.migrate()`.
            StoreUnavailableError: The database does not answer.
        """
        raise NotImplementedError

    @property
    def lane(self) -> Lane:
        """The lane; opened at first use.

        Raises:
            ConfigurationError: No lane of that name is installed, or a setting of it is wrong.
        """
        raise NotImplementedError

    @property
    def admin(self) -> Admin:
        """Operators' calls: runs, queues, `rehint`, `doctor`."""
        raise NotImplementedError

    @property
    def idempotency(self) -> Idempotency:
        """Idempotency keys: `app.idempotency.reset(task, key)`."""
        raise NotImplementedError

    def worker(
        self,
        queues: Sequence[str] | None = None,
        concurrency: int | None = None,
        *,
        worker_id: str | None = None,
        poll_ms: int | None = None,
        can_claim: Callable[[], Any] | None = None,
        on_claimed: Callable[..., Any] | None = None,
    ) -> Worker:
        """Return a worker of this app's tasks; it is not started."""
        raise NotImplementedError

    def maintenance(self) -> Maintenance:
        """Return the maintenance of this app's store; it is not started."""
        raise NotImplementedError

    # -- producing -------------------------------------------------------------------------------

    def enqueue_many(
        self,
        requests: Iterable[Any],
        *,
        connection: Any = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[Run[Any]]:
        """Enqueue what `task.prepare(...)` returned: a list in one transaction."""
        raise NotImplementedError

    async def enqueue_many_async(
        self,
        requests: Iterable[Any] | AsyncIterable[Any],
        *,
        connection: Any = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[Run[Any]]:
        """As `enqueue_many`, without blocking the event loop."""
        raise NotImplementedError

    def flush(self) -> None:
        """Send the wakeups of transactions that have committed, and wait for those under way."""
        raise NotImplementedError

    # -- runs ------------------------------------------------------------------------------------

    def run(self, run_id: str) -> Run[Any]:
        """Return the handle of a run, by its id; the store is not asked."""
        raise NotImplementedError

    def cancel(self, run_id: str, *, by: str = "app", why: str = "") -> RunState:
        """Cancel a run, or ask the worker that runs it to end; return the state that now stands.

        Raises:
            RunNotFoundError: No such run.
        """
        raise NotImplementedError

    async def cancel_async(self, run_id: str, *, by: str = "app", why: str = "") -> RunState:
        """As `cancel`, without blocking the event loop."""
        raise NotImplementedError

    # -- life ------------------------------------------------------------------------------------

    def migrate(self) -> None:
        """Create the tables, or bring them to this version's schema; does nothing when they are."""
        raise NotImplementedError

    def close(self, timeout: timedelta | None = None) -> None:
        """Send what is left, then let go of connections and threads; any number of times."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
