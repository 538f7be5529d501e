"""What an examination can find: each with a code of its own, how bad it is, and what to do.

The codes are an interface: alarms and scripts are built on them. docs/doctor.md says of each what
it means and what to do; a test keeps the two equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing, and nothing that has to be done."""
    WARNING = "warning"
    """Runs go on, later or at a higher price than they should."""
    ERROR = "error"
    """Runs do not go on, or will not for long."""

    @property
    def bad(self) -> bool:
        """Whether something has to be done."""
        return self in (Severity.WARNING, Severity.ERROR)


class Code(StrEnum):
    """What can be found; each one's meaning stands beside it."""

    meaning: str

    def __new__(cls, code: str, meaning: str) -> Code:
        """Make a member of its code and its meaning."""
        member = str.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    # What is well.
    STORE_OK = "store_ok", "the database answers"
    SCHEMA_OK = "schema_ok", "its tables fit this version"
    TASKS_OK = "tasks_ok", "the app's handlers can be called"
    MAINTENANCE_OK = "maintenance_ok", "all of its steps are done in time"
    PROCESSES_OK = "processes_ok", "which processes are alive"
    QUEUES_OK = "queues_ok", "the lane finds nothing wrong with the queues"

    # The settings.
    SETTING_DOUBTFUL = "setting_doubtful", "a setting is probably not what was meant"

    # The store.
    STORE_UNREACHABLE = "store_unreachable", "the database does not answer"
    STORE_MISCONFIGURED = "store_misconfigured", "a setting of the store is wrong, or another's"
    SCHEMA_BEHIND = "schema_behind", "the tables are missing, or older than this version needs"
    SCHEMA_AHEAD = "schema_ahead", "the tables are newer and do not serve this version any more"
    CLOCK_SKEW = "clock_skew", "this machine's clock and the database's, or SQS's, differ"

    # Tasks and queues, as the store knows them.
    TASKS_INVALID = "tasks_invalid", "a handler's annotations cannot be used"
    UNKNOWN_TASK = "unknown_task", "runs are ready whose task is not registered here"
    QUEUE_PAUSED = "queue_paused", "an operator has paused a queue"
    RUNNABLE_WITHOUT_WAKEUPS = (
        "runnable_without_wakeups",
        "runs are ready, nobody takes them, and no messages are on their way that would tell",
    )

    # Processes.
    MAINTENANCE_NEVER = "maintenance_never", "maintenance has never run on this store"
    MAINTENANCE_LATE = "maintenance_late", "a step of maintenance was not done when it was due"
    NO_WORKERS = "no_workers", "runs are ready in a queue that no live process serves"
    MIXED_BUILDS = "mixed_builds", "live workers were built from different code"
    STALE_PROCESSES = "stale_processes", "processes have gone without a word"
    FUNCTION_TIMEOUT_UNKNOWN = (
        "function_timeout_unknown",
        "a Lambda function serves a queue, and its time-out is not known here",
    )

    # The lane, and how its broker is reached.
    LANE_MISCONFIGURED = "lane_misconfigured", "the lane cannot be opened, or a queue not named"
    LANE_FAILED = "lane_failed", "the lane could not look, for a reason that has no other code"
    ENDPOINT_UNREACHABLE = "endpoint_unreachable", "the broker is not reached, or does not answer"
    REGION_MISSING = "region_missing", "no AWS region is set"
    WRONG_REGION = "wrong_region", "a queue's address names another region than the client's"
    CREDENTIALS_MISSING = "credentials_missing", "there are no AWS credentials"
    CREDENTIALS_EXPIRED = "credentials_expired", "the AWS credentials have expired"
    CREDENTIALS_REFUSED = "credentials_refused", "AWS does not accept the credentials"
    ACCESS_DENIED = "access_denied", "the role may not do something; the finding names the action"
    BROKER_FAILED = "broker_failed", "the broker answered with another error, or was throttling"
    BELL_UNHEARD = "bell_unheard", "lane notify: a bell was rung and not heard"

    # The broker's queues.
    QUEUE_MISSING = "queue_missing", "the broker has no such queue, or does not show it to the role"
    VISIBILITY_TOO_SHORT = (
        "visibility_too_short",
        "messages come back before they can have been looked at",
    )
    QUEUE_DELAYS = "queue_delays", "the queue delays every message"
    LOW_MAX_RECEIVE_COUNT = (
        "low_max_receive_count",
        "messages are dead-lettered after few receipts, which are no attempts",
    )
    UNREADABLE_REDRIVE_POLICY = "unreadable_redrive_policy", "the redrive policy is not understood"
    NO_DEAD_LETTER_QUEUE = "no_dead_letter_queue", "the queue has no dead-letter queue"
    DEAD_LETTERS = "dead_letters", "the dead-letter queue holds messages, which do no harm"
    DEAD_LETTERS_UNSEEN = "dead_letters_unseen", "the dead-letter queue cannot be looked at"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Args:
        code: What it is, for programs.
        severity: How bad it is.
        message: What was found: a sentence without payloads and credentials, which names its
            queue by itself.
        advice: What to do; empty where nothing is to be done.
        queue: The queue that it is about, where it is about one.
        action: The permission that is missing, as IAM spells it.
    """

    code: Code
    severity: Severity
    message: str
    advice: str = ""
    queue: str | None = None
    action: str | None = None

    @property
    def sentence(self) -> str:
        """What was found and what to do, on one line for a log."""
        return f"{self.message}; {self.advice}" if self.advice else self.message
