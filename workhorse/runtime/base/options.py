"""The numbers a worker keeps to; the defaults are those of docs/design.md."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from workhorse.domain.presence import BEAT_MS
from workhorse.errors import ConfigurationError
from workhorse.runtime.base.crashing import AfterRecord

LARGEST_CLAIM: Final = 200
"""The most runs of one claim or settle: larger batches cost more a run, not less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shutdown:
    """How long each part of a shutdown may take, in milliseconds.

    From the first signal: runs end by themselves for `drain_ms`; then `ctx.cancelled` is set;
    `cancel_grace_ms` later async handlers are cancelled as tasks; what is left is handed back
    within `hand_back_ms`; and `backstop_ms` after the drain the process ends, whatever hangs.
    """

    drain_ms: int = 25_000
    cancel_grace_ms: int = 2_000
    hand_back_ms: int = 3_000
    backstop_ms: int = 4_000
    second_signal_ms: int = 1_000
    """A second signal within this time is an echo of the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The numbers a worker keeps to; all are milliseconds unless they say otherwise."""

    lease_ms: int = 30_000
    shutdown: Shutdown = field(default_factory=Shutdown)
    long_poll_ms: int = 20_000
    """How long a receive waits for the first message."""
    idle_ms: int = 1_000
    """What pauses between scans of an idle queue grow to, on a lane without messages."""
    head_ms: int = 1_000
    """How often a scan starts at the very head of a queue that is being swept."""
    scan_ms: int = 30_000
    scan_jitter_ms: int = 5_000
    """The net on lanes with messages: a scan each `scan_ms`, give or take the jitter."""
    hook_ms: int = 1_000
    blocked_ms: int = 1_000
    """How long the event loop may not answer before the handler that blocks it is named."""
    cancel_wait_ms: int = 5_000
    """How long the tasks of a cancelled async handler are waited for, and a handler in a process of
    its own, before that is killed."""
    processes: int | None = None
    """The most processes of handlers; None takes one for each core. 0 is for tests: these handlers
    are called in threads."""
    store_call_ms: int = 20_000
    """A statement without an answer for so long has its connection thrown away."""
    health_host: str = "127.0.0.1"
    health_port: int | None = None
    """Where `/livez`, `/readyz` and `/metrics` answer; 0 picks a free port, None is off."""
    ecs_agent_uri: str | None = None
    """Where the ECS agent answers; it keeps a busy worker's task from being scaled in."""
    build: str = ""
    newest_build_only: bool = False
    """Whether queues that a live worker of a newer build serves are left to it."""
    beat_ms: int = BEAT_MS
    environment: str = ""
    lane_name: str = ""
    after_record: AfterRecord | None = None
    """For tests: told of each boundary that is committed, and may end its activation there."""

    def __post_init__(self) -> None:
        if self.lease_ms < 100:
            raise ConfigurationError(f"lease_ms is {self.lease_ms}; it must be 100 at least")
