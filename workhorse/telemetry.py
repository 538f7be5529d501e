"""Event and metric names, and the counters that carry them inside a process.

Names are an interface: dashboards and alarms are built on them. A counter is never reset while its
process lives. Neither events nor counters hold payloads, results, names of users or credentials.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

LOGGER: Final = "workhorse"
DISTRIBUTION: Final = "workhorse-lanes"


def get_logger(part: str) -> logging.Logger:
    """Return the logger of a part, e.g. `workhorse.worker`."""
    return logging.getLogger(f"{LOGGER}.{part}")


def own_version() -> str:
    """Return the installed version."""
    from importlib import metadata  # costs as much as all the rest of the command line's help

    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:  # a checkout that was not installed
        return "unknown"


class Metric(StrEnum):
    """What is counted. Where a label is given, it stands behind the name in brackets."""

    WAKEUPS_SENT = "wakeups_sent"
    WAKEUPS_NOT_SENT = "wakeups_not_sent"
    MESSAGES = "messages"  # [note], see domain.sightings.Note; unreadable; newer_format
    RECEIVE_ERRORS = "receive_errors"
    RINGS = "rings"  # [inside | sent | heard]; inside: left to an enqueue's transaction
    MESSAGE_SETTLE_ERRORS = "message_settle_errors"
    RUNS_CLAIMED = "runs_claimed"
    RUNS_SETTLED = "runs_settled"  # [succeeded | failed | retry | cancelled | parked | handed_back]
    RUNS_RECOVERED = "runs_recovered"
    LEASES_LOST = "leases_lost"
    LEASES_LAPSED = "leases_lapsed"
    STORE_ERRORS = "store_errors"
    LOOP_RESTARTS = "loop_restarts"  # [loop]
    HANDLERS_STUCK = "handlers_stuck"
    LOOP_BLOCKED = "loop_blocked"
    PROTECTION_ERRORS = "protection_errors"
    HOOK_ERRORS = "hook_errors"  # [hook]
    SCAN_PAGES = "scan_pages"
    TOP_UPS = "top_ups"


class Counters:
    """Counts by metric and label; safe in threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}

    def add(self, metric: Metric, count: int = 1, *, label: str | None = None) -> None:
        """Add to a count."""
        if count == 0:
            return
        name = metric.value if label is None else f"{metric.value}[{label}]"
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + count

    def get(self, metric: Metric, *, label: str | None = None) -> int:
        """Return a count."""
        name = metric.value if label is None else f"{metric.value}[{label}]"
        with self._lock:
            return self._counts.get(name, 0)

    def snapshot(self) -> Mapping[str, int]:
        """Return all counts, by name, sorted."""
        with self._lock:
            return dict(sorted(self._counts.items()))
