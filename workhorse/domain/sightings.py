"""What becomes of a message, from what the store says about the run that it names.

The table of docs/design.md, section 4, as a function. A message goes only once a statement begun
after its receipt found its run not claimable, or took it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from workhorse.domain.runs import RunState

NEAR_MS: Final = 60_000
"""A run due within this time keeps its message, which becomes visible when it is due."""
LOCKED_AGAIN_MS: Final = 1_000
UNSEEN_AGAIN_MS: Final = 5_000
NEWER_FORMAT_AGAIN_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Delete:
    """The message has done its work, or has none."""


@dataclass(frozen=True, slots=True)
class ShowAgain:
    """The message becomes visible after `after_ms`; zero is at once."""

    after_ms: int


Fate = Delete | ShowAgain
DELETE: Final = Delete()


class Note(StrEnum):
    """What is counted about a wakeup."""

    CLAIMED = "claimed"
    STALE = "stale"
    """Its run was taken, waiting, finished, far off, or behind others: nothing to do."""
    EARLY = "early"
    LOCKED = "locked"
    CROWDED = "crowded"
    """Claimable, but no slot or no time was left."""
    UNKNOWN_TASK = "unknown_task"
    OTHER_QUEUE = "other_queue"
    UNSEEN = "unseen"
    """No such run yet; its transaction may still commit."""
    MISSING = "missing"
    """No such run, at the second look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """The store's answer about a named run that a claim did not take.

    `due_in_ms` counts to the due time of a scheduled run, or to the time-out of a waiting one.
    """

    state: RunState
    queue: str
    task: str
    due_in_ms: int | None = None
    lease_expired: bool = False
    queue_paused: bool = False
    turn: bool = True

    @property
    def overdue(self) -> bool:
        """Whether recovery, promotion or a time-out in place comes first."""
        if self.state is RunState.RUNNING:
            return self.lease_expired
        if self.state in (RunState.SCHEDULED, RunState.WAITING):
            return self.due_in_ms is not None and self.due_in_ms <= 0
        return False


def fate_of(
    sighting: Sighting | None,
    *,
    queue: str,
    known_task: bool,
    seen_before: bool,
    room: bool,
) -> tuple[Fate, Note]:
    """Decide about a message whose run the claim did not take.

    Args:
        sighting: What a statement begun after the receipt saw; None where there is no such run.
        queue: The queue that the message came from.
        known_task: Whether this worker has the run's task.
        seen_before: Whether this message was shown again for a missing run before.
        room: Whether a slot and time were left when the claim was made.
    """
    if sighting is None:
        return (DELETE, Note.MISSING) if seen_before else (ShowAgain(UNSEEN_AGAIN_MS), Note.UNSEEN)
    if sighting.state.finished:
        return DELETE, Note.STALE
    if sighting.queue != queue:
        return DELETE, Note.OTHER_QUEUE
    if not known_task:
        return DELETE, Note.UNKNOWN_TASK
    match sighting.state:
        case RunState.RUNNING:
            # An expired lease that recovery left alone (somebody holds the row, or the database has
            # just started) is looked at again; a live one needs nobody.
            if sighting.lease_expired:
                return ShowAgain(LOCKED_AGAIN_MS), Note.LOCKED
            return DELETE, Note.STALE
        case RunState.SCHEDULED | RunState.WAITING:
            due = sighting.due_in_ms
            if due is None or due > NEAR_MS:
                return DELETE, Note.STALE
            if due > 0:
                return ShowAgain(due), Note.EARLY
            return ShowAgain(LOCKED_AGAIN_MS), Note.LOCKED
        case _:
            if sighting.queue_paused or not sighting.turn:
                return DELETE, Note.STALE
            if not room:
                return ShowAgain(0), Note.CROWDED
            return ShowAgain(LOCKED_AGAIN_MS), Note.LOCKED
