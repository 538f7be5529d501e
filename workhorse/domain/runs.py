"""What a run is: states, lease, and its forms at a producer, a worker and an operator."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple

from workhorse.domain.boundaries import NO_HISTORY, History
from workhorse.domain.ids import RunId
from workhorse.domain.retry import DEFAULT_RETRY, RetryPolicy

DEFAULT_PRIORITY: Final = 50
MAX_HAND_BACKS: Final = 20
_QUOTED: Final = 400
"""The hand-back of an attempt with this number, without a new boundary, is an error."""


class RunState(StrEnum):
    """Where a run stands. The last three are final; nothing leaves them."""

    SCHEDULED = "scheduled"
    READY = "ready"
    RUNNING = "running"
    WAITING = "waiting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def finished(self) -> bool:
        """Whether the run has ended."""
        return self in FINISHED


FINISHED: Final = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED})


class Reason(StrEnum):
    """Why an attempt, or a run, did not succeed."""

    ERROR = "error"
    """The handler raised."""
    NOT_RETRYABLE = "not_retryable"
    """The handler raised an error that ends the run, or its value cannot be stored."""
    TIMEOUT = "timeout"
    """The attempt's active time ran out."""
    LOST = "lost"
    """The lease expired: the worker died, or was cut off."""
    INTERRUPTED = "interrupted"
    """The attempt was handed back too often without a new boundary."""
    DEADLINE = "deadline"
    """The time of the whole run ran out."""
    CANCELLED = "cancelled"
    """Somebody cancelled the run."""


@dataclass(frozen=True, slots=True)
class Lease:  # no tuple: what collects errors and logs takes these apart, the token with them
    """Ownership of a run for a time: what guards every write of an activation.

    `token` is a random 63-bit number that the worker drew for the claim; `fence` rises by one with
    each claim of the run and is for people and outside systems.
    """

    run_id: RunId
    fence: int
    token: int = field(repr=False)  # whoever knows it could write under the lease


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as it is stored: text alone, never pickled."""

    error_type: str
    message: str
    traceback: str | None = None


def first_line(message: str | None) -> str:
    """Return the first line of an error's message, for another message that quotes it."""
    line = (message or "").strip().partition("\n")[0]
    return line if len(line) <= _QUOTED else line[: _QUOTED - 3] + "..."


class NewRun(NamedTuple):
    """A run as its producer hands it to the store; names, values and instants are checked already.

    A named tuple, as `Enqueued`: bulk enqueue makes a million of them, and a frozen dataclass takes
    four times as long.

    `delay_ms` counts from the insert by the database's clock; `run_at` is an absolute instant; at
    most one of them is set. `deadline_ms` counts from the insert too. `parent` is the run that
    started it as its child; `keep` lets it go on when that ends. `after` are runs that it waits
    for, `on_failure` what becomes of it when one of them does not succeed.
    """

    id: RunId
    task: str
    queue: str
    payload: str
    priority: int = DEFAULT_PRIORITY
    delay_ms: int = 0
    run_at: datetime | None = None
    key: str | None = None
    fingerprint: str | None = None
    session: str | None = None
    tags: tuple[str, ...] = ()
    deadline_ms: int | None = None
    timeout_ms: int | None = None
    retry: RetryPolicy = DEFAULT_RETRY
    traceparent: str | None = None
    parent: RunId | None = None
    keep: bool = False
    after: tuple[RunId, ...] = ()
    on_failure: OnFailure | None = None


class OnFailure(StrEnum):
    """What becomes of a run when one of those that it is to come after fails or is cancelled."""

    FAIL = "fail"
    """It fails too, without being called."""
    CANCEL = "cancel"
    """It ends as cancelled, without being called."""
    RUN = "run"
    """It runs all the same, once all have ended."""


class Enqueued(NamedTuple):
    """What became of one `NewRun`: its own id, or that of the run which holds its key.

    `due_in_ms` is None for a run that is ready, else the time until it is due, by the database's
    clock. `wake_sent` says that a delayed wakeup is expected to be sent for it by the producer.
    """

    run_id: RunId
    queue: str
    created: bool
    due_in_ms: int | None = None


@dataclass(slots=True, kw_only=True)
class ClaimedRun:  # not frozen, as no object of the hot path is: that triples what making it costs
    """A run under a lease, with all that an activation needs: no further read before it starts.

    `deadline_in_ms` counts from the claim, by the database's clock. `active_ms` is the time that
    earlier activations of this attempt took. `hand_backs` counts those of this attempt. `history`
    is what the run has passed and been sent; a run that is claimed for the first time has none.
    """

    id: RunId
    task: str
    queue: str
    payload: str
    attempt: int
    lease: Lease | None
    inbox: int = 0
    hand_backs: int = 0
    active_ms: int = 0
    priority: int = DEFAULT_PRIORITY
    session: str | None = None
    tags: tuple[str, ...] = ()
    key: str | None = None
    retry: RetryPolicy = DEFAULT_RETRY
    timeout_ms: int | None = None
    deadline_in_ms: int | None = None
    created_at: datetime
    started_at: datetime
    traceparent: str | None = None
    history: History = NO_HISTORY

    @property
    def is_final_attempt(self) -> bool:
        """Whether an error of this attempt ends the run."""
        return self.attempt >= self.retry.max_attempts


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run whole, as an operator sees it. Instants are in UTC; values are JSON text.

    `parent_id` is the run that started it as its child, `rerun_of` the one that it runs again.
    `progress` is the latest that its handler said.
    """

    id: RunId
    task: str
    queue: str
    state: RunState
    payload: str
    attempt: int
    fence: int
    priority: int
    created_at: datetime
    session: str | None = None
    tags: tuple[str, ...] = ()
    key: str | None = None
    due_at: datetime | None = None
    deadline_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    lease_expires_at: datetime | None = None
    cancel_asked_at: datetime | None = None
    reason: Reason | None = None
    result: str | None = None
    error_type: str | None = None
    error_message: str | None = None
    error_traceback: str | None = None
    rerun_of: RunId | None = None
    parent_id: RunId | None = None
    progress: str | None = None
