"""Activations that end as if their process had been killed, at boundaries that a test names."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from workhorse.domain.names import check_boundary, check_task
from workhorse.errors import WorkhorseError

if TYPE_CHECKING:
    from workhorse.domain.ids import RunId
    from workhorse.runtime.activations.activation import Activation


class CrashMissedError(WorkhorseError, AssertionError):
    """A crash that a test asked for did not happen: no activation stored its boundary."""


class Crash:
    """A crash that is to happen once, see `Kit.crash_after`; true when it has happened."""

    def __init__(self, boundary: str, task: str | None) -> None:
        self.boundary = boundary
        self.task = task
        self.run_id: RunId | None = None
        """The run that it happened to."""

    def __bool__(self) -> bool:
        return self.run_id is not None

    def __repr__(self) -> str:
        of = "" if self.task is None else f" of task '{self.task}'"
        then = "has not happened" if self.run_id is None else f"happened to run {self.run_id}"
        return f"<Crash after '{self.boundary}'{of}: {then}>"


class Crashes:
    """The crashes that a test asked for; safe in threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._armed: list[Crash] = []

    def arm(self, boundary: str, task: str | None) -> Crash:
        """Have a crash happen after a boundary.

        Raises:
            InvalidNameError: The boundary or the task cannot be of that name.
        """
        crash = Crash(check_boundary(boundary), None if task is None else check_task(task))
        with self._lock:
            self._armed.append(crash)
        return crash

    def after_record(self, activation: Activation, boundary: str) -> bool:
        """Answer whether the activation ends now: the seam that the worker offers for this."""
        with self._lock:
            for crash in self._armed:
                if crash.boundary == boundary and crash.task in (None, activation.task.name):
                    self._armed.remove(crash)
                    crash.run_id = activation.claimed.id
                    return True
        return False

    def forget(self) -> None:
        """Ask for no crash any more."""
        with self._lock:
            self._armed.clear()

    def check_all_happened(self) -> None:
        """Refuse a test whose crashes did not happen.

        Raises:
            CrashMissedError: One did not.
        """
        with self._lock:
            missed, self._armed = self._armed, []
        if missed:
            names = ", ".join(f"'{crash.boundary}'" for crash in missed)
            raise CrashMissedError(
                f"crash_after: no activation stored {names}, so nothing crashed; is the name the "
                "one that the handler uses, and was it stored before?"
            )
