"""The tables, described once for PostgreSQL and SQLite.

A run is kept in three parts. `runs` holds what never changes (task, payload). `live` is the small
row that is updated while the run is unfinished: claims and renewals never rewrite a payload, and
the table stays as small as the live work. `outcomes` is append-only. Deleting the live row is the
guard for "ends once". There are no foreign keys between hot tables: each would cost a look-up and a
lock on the parent; the store suite checks the references instead.

Values are the text of their JSON, never jsonb, which changes numbers and refuses escapes.

Source: docs/design.md, section 10; docs/adr/0004-a-run-in-three-parts.md
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    String,
    Table,
    Text,
    Uuid,
    false,
    text,
)
from sqlalchemy.types import TypeEngine

VERSION: Final = 3
"""The schema that this code writes, and the oldest that it can work with."""
SERVES_FROM: Final = 2
"""The oldest code (by the schema that it writes) which may work with this schema: code of version 1
would end a child without a word to its parent."""

Id: Final[TypeEngine[str]] = Uuid(as_uuid=False).with_variant(String(36), "sqlite")
"""A run id."""
Instant: Final[TypeEngine[Any]] = DateTime(timezone=True).with_variant(BigInteger(), "sqlite")
"""A point in time: `timestamptz`; on SQLite microseconds since 1970 in UTC."""
Number: Final[TypeEngine[int]] = BigInteger().with_variant(Integer(), "sqlite")

metadata: Final = MetaData()


def _partial(name: str, *columns: object, where: str, unique: bool = False) -> Index:
    condition = text(where)
    return Index(name, *columns, unique=unique, postgresql_where=condition, sqlite_where=condition)  # type: ignore[arg-type]


runs: Final = Table(
    "runs",
    metadata,
    Column("id", Id, primary_key=True),
    Column("task", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("payload", Text, nullable=False),
    Column("priority", SmallInteger, nullable=False),
    Column("key", Text),
    Column("session", Text),
    Column("tags", Text),  # a JSON list, where there are any
    Column("retry", Text),  # a RetryPolicy, where it is not the default
    Column("timeout_ms", Number),
    Column("traceparent", Text),
    Column("rerun_of", Id),
    Column("created_at", Instant, nullable=False),
    Column("parent_id", Id),  # the run that started it as its child
    Column("keep", Boolean),  # a child that goes on when its parent ends
    Column("on_failure", Text),  # what becomes of it when a run that it comes after fails
    _partial("runs_parent", "parent_id", "id", where="parent_id is not null"),
)

live: Final = Table(
    "live",
    metadata,
    Column("id", Id, primary_key=True),
    Column("queue", Text, nullable=False),
    Column("task", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("rank", SmallInteger, nullable=False),  # 100 - priority: one direction for the index
    Column("ready_at", Instant),
    Column("due_at", Instant),  # of a scheduled run; of a waiting one its time-out
    Column("wake_sent", Boolean, nullable=False),  # a delayed wakeup is under way for due_at
    Column("attempt", Integer, nullable=False),
    Column("fence", Number, nullable=False),
    Column("token", Number),
    Column("lease_expires_at", Instant),  # in no index: renewals write it
    Column("inbox", Integer, nullable=False),
    Column("hand_backs", Integer, nullable=False),
    Column("active_ms", Number, nullable=False),
    Column("session", Text),
    Column("line_at", Instant),
    Column("deadline_at", Instant),
    Column("cancel_asked_at", Instant),
    Column("started_at", Instant),
    # Somebody is to be freed, or cancelled, by its end, which is noted in `freed` then.
    Column("watched", Boolean, nullable=False, server_default=false()),
    Column("blockers", Integer, nullable=False, server_default=text("0")),  # runs it comes after
    CheckConstraint("state in ('scheduled', 'ready', 'running', 'waiting')", name="live_state"),
    CheckConstraint("(state = 'running') = (token is not null)", name="live_token"),
    CheckConstraint("(token is null) = (lease_expires_at is null)", name="live_lease"),
    CheckConstraint("(state = 'ready') = (ready_at is not null)", name="live_ready_at"),
    CheckConstraint(
        "case state when 'scheduled' then due_at is not null"
        " when 'waiting' then true else due_at is null end",
        name="live_due_at",
    ),
    CheckConstraint("(session is null) = (line_at is null)", name="live_line_at"),
    CheckConstraint(
        "rank between 0 and 100 and attempt >= 1 and fence >= 0 and inbox >= 0"
        " and hand_backs >= 0 and active_ms >= 0",
        name="live_counts",
    ),
    # What a scan reads: one probe per known task, so runs of unknown tasks cost nothing.
    _partial("live_ready", "queue", "task", "rank", "ready_at", "id", where="state = 'ready'"),
    _partial("live_running", "id", where="state = 'running'"),
    _partial("live_due", "due_at", "id", where="due_at is not null"),
    _partial("live_unsent", "due_at", "id", where="due_at is not null and not wake_sent"),
    _partial("live_deadline", "deadline_at", "id", where="deadline_at is not null"),
    _partial("live_cancelled", "id", where="cancel_asked_at is not null"),
    _partial("live_session", "session", "line_at", "id", where="session is not null"),
    # What measuring counts.
    _partial("live_parked", "state", "queue", where="state = 'scheduled' or state = 'waiting'"),
    # The last guard of a session's turn.
    _partial(
        "live_turn", "session", where="state = 'running' and session is not null", unique=True
    ),
    sqlite_with_rowid=False,
)

outcomes: Final = Table(
    "outcomes",
    metadata,
    Column("id", Id, primary_key=True),
    Column("state", Text, nullable=False),
    Column("reason", Text),
    Column("attempt", Integer, nullable=False),
    Column("fence", Number, nullable=False),
    Column("token", Number),  # of the lease that settled it: how a worker knows its own success
    Column("result", Text),
    Column("error_type", Text),
    Column("error_message", Text),
    Column("error_traceback", Text),
    Column("cancel_asked_at", Instant),
    Column("started_at", Instant),
    Column("finished_at", Instant, nullable=False),
    CheckConstraint("state in ('succeeded', 'failed', 'cancelled')", name="outcomes_state"),
    CheckConstraint("(state = 'succeeded') = (reason is null)", name="outcomes_reason"),
    CheckConstraint("state <> 'succeeded' or result is not null", name="outcomes_result"),
    # A run that ends well pays nothing for it.
    _partial("outcomes_failed", "finished_at", "id", where="state = 'failed'"),
)

attempts: Final = Table(
    "attempts",
    metadata,
    Column("run_id", Id, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("fence", Number, nullable=False),
    Column("reason", Text, nullable=False),
    Column("error_type", Text),
    Column("error_message", Text),
    Column("error_traceback", Text),
    Column("ended_at", Instant, nullable=False),
    PrimaryKeyConstraint("run_id", "attempt", name="attempts_pkey"),
)
"""Failed attempts; a first attempt that succeeds leaves no row of its own."""

boundaries: Final = Table(
    "boundaries",
    metadata,
    Column("run_id", Id, nullable=False),
    Column("name", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("seq", Integer, nullable=False),  # the order in which the run got to them
    Column("value", Text),
    Column("bytes", Integer, nullable=False),  # of value and detail, as UTF-8
    Column("fingerprint", Text),  # of what went in
    Column("detail", Text),
    Column("wake_at", Instant),
    Column("absolute", Boolean, nullable=False),  # the caller named the instant
    Column("fence", Number, nullable=False),
    Column("created_at", Instant, nullable=False),
    PrimaryKeyConstraint("run_id", "name", name="boundaries_pkey"),
    # What a time-out reads of a run that may have passed thousands of checkpoints.
    _partial("boundaries_wake", "run_id", "wake_at", where="wake_at is not null"),
)
"""What runs have passed. Written by the holder of the lease alone, once; see `deliveries`."""

deliveries: Final = Table(
    "deliveries",
    metadata,
    Column("run_id", Id, nullable=False),
    Column("kind", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("inbox", Integer, nullable=False),  # its number in the run
    Column("value", Text),
    Column("bytes", Integer, nullable=False),
    Column("key", Text),  # the sender's idempotency key
    Column("by", Text),
    Column("why", Text),
    Column("created_at", Instant, nullable=False),
    PrimaryKeyConstraint("run_id", "kind", "name", name="deliveries_pkey"),
    CheckConstraint(
        "state in ('value', 'timed_out', 'closed', 'failed', 'cancelled')", name="deliveries_state"
    ),
)
"""What came to runs from outside, the time-outs of their waits included. The first one stands."""

progress: Final = Table(
    "progress",
    metadata,
    Column("run_id", Id, primary_key=True),
    Column("value", Text, nullable=False),
    Column("fence", Number, nullable=False),
    Column("at", Instant, nullable=False),
)
"""The latest that a run said of its progress."""

tokens: Final = Table(
    "tokens",
    metadata,
    Column("ref", Text, primary_key=True),
    Column("state", Text, nullable=False),
    Column("value", Text),
    Column("key", Text),
    Column("run_id", Id),  # the run that made it, where one did
    Column("due_at", Instant),  # its time-out
    Column("created_at", Instant, nullable=False),
    Column("settled_at", Instant),
    CheckConstraint("state in ('open', 'value', 'timed_out')", name="tokens_state"),
    CheckConstraint("(state = 'open') = (settled_at is null)", name="tokens_settled"),
    _partial("tokens_due", "due_at", "ref", where="state = 'open' and due_at is not null"),
)
"""Wait tokens: unguessable references that complete waits from outside."""


class LinkKind(StrEnum):
    """What a link is followed for, when its source has come to its end."""

    TOKEN = "token"  # noqa: S105 - a kind of link
    """A wait for a token is settled."""
    CHILD = "child"
    """A parent's wait for its child is settled."""
    AFTER = "after"
    """A run that comes after others has one less to wait for."""
    CANCEL = "cancel"
    """A child is cancelled, since its parent has asked for it."""


links: Final = Table(
    "links",
    metadata,
    Column("kind", Text, nullable=False),  # a LinkKind
    Column("source", Text, nullable=False),  # the token's reference, or the run whose end it is
    Column("run_id", Id, nullable=False),  # who waits
    Column("name", Text, nullable=False),  # the wait that it settles
    # A run that was there before the link may have ended unseen; 'armed' when that was looked at.
    Column("armed", Boolean, nullable=False),
    PrimaryKeyConstraint("source", "run_id", "name", name="links_pkey"),
    _partial("links_unarmed", "source", where="not armed"),
)
"""Who is freed by what. A link goes when its run has got the delivery."""

freed: Final = Table(
    "freed",
    metadata,
    Column("source", Text, primary_key=True),
    Column("at", Instant, nullable=False),
    Index("freed_at", "at", "source"),
)
"""What has come to its end, a token or a run, and may have links left. Written together with that
end, so that whoever dies behind its commit is made up for."""

keys: Final = Table(
    "keys",
    metadata,
    Column("task", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("run_id", Id, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("expires_at", Instant, nullable=False),
    PrimaryKeyConstraint("task", "key", name="keys_pkey"),
)

queues: Final = Table(
    "queues",
    metadata,
    Column("name", Text, primary_key=True),
    Column("paused_at", Instant),
    Column("paused_by", Text),
    Column("paused_why", Text),
)
"""Queues that were paused at least once; a queue without a row is open."""

audit: Final = Table(
    "audit",
    metadata,
    Column("id", Id, primary_key=True),
    Column("at", Instant, nullable=False),
    Column("act", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("by", Text, nullable=False),
    Column("why", Text, nullable=False),
    Column("request_id", Text),
    Column("answer", Text),
    Index("audit_request", "act", "subject", "request_id", unique=True),
    Index("audit_subject", "subject", "at"),
)
"""Operators' acts: who did what to which run or queue, and why."""

steps: Final = Table(
    "steps",
    metadata,
    Column("name", Text, primary_key=True),
    Column("next_at", Instant, nullable=False),
    Column("last_at", Instant),
    Column("last_count", Number),
    Column("reached_at", Instant),  # up to where a step that goes through time has come
)
"""Maintenance's steps: when each is due again, and when it last ran."""

processes: Final = Table(
    "processes",
    metadata,
    Column("key", Text, primary_key=True),
    Column("id", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", Number, nullable=False),
    Column("version", Text, nullable=False),
    Column("build", Text, nullable=False),
    Column("lane", Text, nullable=False),
    Column("queues", Text, nullable=False),  # a JSON list
    Column("slots", Integer, nullable=False),
    Column("every_ms", Number, nullable=False),  # how often it means to beat
    Column("stopping", Boolean, nullable=False),
    Column("started_at", Instant, nullable=False),
    Column("beat_at", Instant, nullable=False),  # in no index: each beat writes it
)
"""Who is alive: a row for each process, for an hour after its last beat. Nothing that is decided
about a run hangs on it."""

meta: Final = Table(
    "meta",
    metadata,
    Column("id", SmallInteger, primary_key=True, autoincrement=False),
    Column("version", Integer, nullable=False),
    Column("serves_from", Integer, nullable=False),
    Column("environment", Text, nullable=False),
    CheckConstraint("id = 1", name="meta_one_row"),
)

VIEW: Final = "run_view"
"""A run whole; its definition stands in the migrations."""
