"""Between a task and the client: a request that is checked and encoded, and who carries it out.

All checks happen in the producer's call, before anything is stored.

Source: docs/design.md, section 8.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypedDict, TypeVar

from workhorse.domain.boundaries import DeliveryResult
from workhorse.domain.ids import RunId, new_run_id, parse_run_id
from workhorse.domain.instants import check_ahead, check_duration, check_instant, to_millis
from workhorse.domain.names import (
    check_key,
    check_priority,
    check_queue,
    check_session,
    check_tags,
)
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import NewRun, OnFailure, RunState, RunView
from workhorse.domain.showing import member, shown
from workhorse.domain.values import fingerprint
from workhorse.errors import ConfigurationError, InvalidInstantError, InvalidNameError

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session

    from workhorse.handlers.tasks import Task

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class RunOptions(TypedDict, total=False):
    """What a producer may say about a run; what is left out or None is the task's own.

    Instants and durations are timedeltas and aware datetimes, at most 365 days ahead.
    """

    queue: str | None
    """1 to 60 characters of `a-z0-9_-`."""
    priority: int | None
    """0 to 100; higher is claimed first, the oldest first within."""
    key: str | None
    """An idempotency key, 1 to 256 characters; it belongs to the task for 30 days."""
    session: str | None
    """Runs of one session take turns, in order; 1 to 256 characters."""
    tags: Iterable[str] | None
    """At most 20 of 1 to 100 characters, for people to find the run by."""
    deadline: timedelta | None
    """How long the whole run may take in real time, from the enqueue."""
    timeout: timedelta | None
    """How long an attempt may be active."""
    retry: RetryPolicy | None
    """How many attempts, and the rest between two."""


class EnqueueOptions(RunOptions, total=False):
    """As `RunOptions`, and when the run is due: at once, or by one of the first three."""

    delay: timedelta | None
    """From the insert, by the database's clock."""
    run_at: datetime | None
    """An aware datetime; what is past is due at once."""
    after: Iterable[str | RunHandle[Any]] | None
    """Once all of these runs have ended, at most 1,000, by their ids or handles."""
    on_failure: OnFailure | str | None
    """What becomes of it when one of those fails or is cancelled: `fail` (the default) or `cancel`
    ends it so without a call, `run` runs it all the same, once all have ended."""


class RunHandle(Protocol[R_co]):
    """A run that was enqueued."""

    @property
    def id(self) -> RunId:
        """The run's id."""
        ...

    @property
    def queue(self) -> str:
        """The queue that it is in."""
        ...

    @property
    def created(self) -> bool:
        """Whether this call made it; False where its idempotency key found an earlier run."""
        ...

    def result(self, timeout: timedelta | float | None = None) -> R_co:
        """Wait for the run's end and return what its handler returned.

        Args:
            timeout: The longest wait, a timedelta or seconds; None waits as long as it takes.

        Raises:
            RunFailedError: The run has failed.
            RunCancelledError: The run was cancelled.
            ResultTimeoutError: It has not ended in time; it goes on.
        """
        ...

    async def result_async(self, timeout: timedelta | float | None = None) -> R_co:  # noqa: ASYNC109
        """As `result`, without blocking the event loop."""
        ...

    def view(self) -> RunView:
        """Return the run whole, as it stands now."""
        ...

    async def view_async(self) -> RunView:
        """As `view`, without blocking the event loop."""
        ...

    def cancel(self, *, by: str = "app", why: str = "") -> RunState:
        """Cancel the run, or ask its worker to end it; return the state that now stands."""
        ...

    async def cancel_async(self, *, by: str = "app", why: str = "") -> RunState:
        """As `cancel`, without blocking the event loop."""
        ...

    def send_signal(
        self, name: str, value: object = None, *, idempotency_key: str | None = None
    ) -> DeliveryResult:
        """Send the run a signal; see `Workhorse.send_signal`."""
        ...

    async def send_signal_async(
        self, name: str, value: object = None, *, idempotency_key: str | None = None
    ) -> DeliveryResult:
        """As `send_signal`, without blocking the event loop."""
        ...


@dataclass(slots=True, eq=False)
class Request(Generic[R_co]):  # not frozen: bulk enqueue makes a million of them
    """A run that is checked and encoded, and not stored yet; see `Task.prepare`.

    The run's id is drawn already, so that storing a request twice makes one run.
    """

    task: Task[Any, R_co]
    run: NewRun


class Producer(Protocol):
    """Who stores requests and wakes workers for them; the client is one, the app hands it over."""

    def now(self) -> datetime:
        """Return about the present, in UTC, for coarse checks only: the host's, or a test's."""
        ...

    def enqueue(
        self, request: Request[R], connection: Session | Connection | None = None
    ) -> RunHandle[R]:
        """Store the run, in the caller's transaction where there is one.

        Raises:
            IdempotencyConflictError: The key belongs to a run with another payload.
            StoreUnavailableError: The database does not answer.
        """
        ...

    async def enqueue_async(
        self, request: Request[R], connection: AsyncSession | AsyncConnection | None = None
    ) -> RunHandle[R]:
        """As `enqueue`, without blocking the event loop."""
        ...

    def run_now(self, request: Request[R]) -> RunHandle[R]:
        """Store the run, claim it and run its handler here, by the same rules as a worker."""
        ...

    async def run_now_async(self, request: Request[R]) -> RunHandle[R]:
        """As `run_now`, without blocking the event loop."""
        ...


def plain_run(task: Task[Any, Any], payload: str) -> NewRun:
    """Return the run of a producer who says nothing but the payload, with a new id.

    What `checked_run` returns without options, sooner: bulk enqueue is long lists of these.
    """
    return NewRun(new_run_id(), task.name, task.queue, payload, *task.plain_options)


def plain_options(task: Task[Any, Any]) -> tuple[Any, ...]:
    """Return what stands behind the payload in the run of a producer who says nothing else."""
    run = NewRun(
        new_run_id(),
        task.name,
        task.queue,
        "",
        task.priority,
        deadline_ms=_limit_ms("deadline", task.deadline),
        timeout_ms=_limit_ms("timeout", task.timeout),
        retry=task.retry,
    )
    return run[4:]


def checked_run(
    task: Task[Any, Any],
    payload: str,
    now: datetime | None = None,
    *,
    queue: str | None = None,
    priority: int | None = None,
    delay: timedelta | None = None,
    run_at: datetime | None = None,
    key: str | None = None,
    session: str | None = None,
    tags: Iterable[str] | None = None,
    deadline: timedelta | None = None,
    timeout: timedelta | None = None,
    retry: RetryPolicy | None = None,
    after: Iterable[object] | None = None,
    on_failure: OnFailure | str | None = None,
) -> NewRun:
    """Check a producer's options and return the run with a new id.

    Args:
        task: Whose run it is; what is not given is taken from it.
        payload: JSON text, encoded by the task.
        now: What `run_at` is compared with; None for the host's clock.

    Raises:
        InvalidNameError: A queue, key, session, tag or priority is not of the allowed form, or
            `after` holds something that is no run.
        InvalidInstantError: `delay`, `run_at`, `deadline` or `timeout` is out of range, or more
            than one of `delay`, `run_at` and `after` are given.
        ConfigurationError: `retry` is no `RetryPolicy`; `after` names too many runs; `on_failure`
            is none of its values, or given without `after`.
    """
    if delay is not None and run_at is not None:
        raise InvalidInstantError(
            f"task '{task.name}': delay and run_at are both given; a run has one due time"
        )
    if on_failure is not None and after is None:
        raise ConfigurationError(
            f"task '{task.name}': on_failure is given without after: there is nothing that fails"
        )
    predecessors, if_one_fails = check_after(after), check_on_failure(on_failure)
    if predecessors and (delay is not None or run_at is not None):
        raise InvalidInstantError(
            f"task '{task.name}': after is given beside delay or run_at; a run that comes after "
            "others is due when they have ended. Sleep in its handler for a rest after that"
        )
    if run_at is not None:
        run_at = check_ahead("run_at", check_instant("run_at", run_at), now or datetime.now(UTC))
    return NewRun(
        id=new_run_id(),
        task=task.name,
        queue=task.queue if queue is None else check_queue(queue),
        payload=payload,
        priority=task.priority if priority is None else check_priority(priority),
        delay_ms=0 if delay is None else to_millis(check_duration("delay", delay)),
        run_at=run_at,
        key=None if key is None else check_key(key),
        fingerprint=None if key is None else fingerprint(payload),
        session=None if session is None else check_session(session),
        tags=() if tags is None else check_tags(tags),
        deadline_ms=_limit_ms("deadline", task.deadline if deadline is None else deadline),
        timeout_ms=_limit_ms("timeout", task.timeout if timeout is None else timeout),
        retry=task.retry if retry is None else check_retry(retry),
        after=predecessors,
        on_failure=if_one_fails if predecessors else None,
    )


def check_after(after: object) -> tuple[RunId, ...]:
    """Return the ids of runs that another is to come after, each once and in order.

    Args:
        after: Ids, or handles of runs; None is none.

    Raises:
        InvalidNameError: It is no list, or something in it is neither.
        ConfigurationError: There are more than 1,000.
    """
    if after is None:
        return ()
    if isinstance(after, str) or not isinstance(after, Iterable):
        raise InvalidNameError(
            f"after is a list of run ids or handles; got a single {type(after).__name__}"
        )
    unique = tuple(dict.fromkeys(parse_run_id(getattr(each, "id", each)) for each in after))
    if len(unique) > MAX_AFTER:
        raise ConfigurationError(
            f"after names {len(unique):,} runs; it may be {MAX_AFTER:,}. Put runs in between that "
            "come after a part of them each"
        )
    return unique


def check_limit(what: str, duration: object) -> timedelta:
    """Return a time-out or deadline: longer than zero, at most 365 days."""
    checked = check_duration(what, duration)
    if checked == _ZERO:
        raise InvalidInstantError(f"{what} is zero: no handler could end in it")
    return checked


def check_retry(retry: object) -> RetryPolicy:
    """Return a retry policy."""
    if not isinstance(retry, RetryPolicy):
        raise ConfigurationError(f"retry must be a RetryPolicy; got {type(retry).__name__}")
    return retry


_ZERO: Final = timedelta(0)
MAX_AFTER: Final = 1_000
"""How many runs one may come after."""


def check_on_failure(on_failure: str | None) -> OnFailure:
    """Return what becomes of a run when one that it comes after fails; by default it fails too."""
    meant = OnFailure.FAIL if on_failure is None else member(OnFailure, on_failure)
    if meant is None:
        raise ConfigurationError(
            f"on_failure {shown(on_failure)} is none of: {', '.join(OnFailure)}"
        )
    return meant


def _limit_ms(what: str, duration: timedelta | None) -> int | None:
    return None if duration is None else to_millis(check_limit(what, duration))
