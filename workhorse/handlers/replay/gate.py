"""Whether an activation may still begin something, and who writes for it.

Source: docs/design.md, sections 6 and 7.
"""

from __future__ import annotations

from typing import Final

from workhorse.errors import ConfigurationError
from workhorse.handlers.recording import Recorder
from workhorse.handlers.signals import StopReason, StopSwitch

CUTS: Final = frozenset({StopReason.SHUTDOWN, StopReason.LEASE_LOST})
"""What ends an activation and not its run: another activation does what this one was refused."""


class Gate:
    """Lets calls pass while the activation has its lease and is not told to stop.

    Args:
        owner: How errors call the run.
        recorder: Who writes; None where nobody does.
        stopping: Set when the worker is told to end.
        cancelled: Set when the handler is to end.
    """

    __slots__ = ("_cancelled", "_closed", "_owner", "_recorder", "_stopping", "cut_short")

    def __init__(
        self,
        owner: str,
        recorder: Recorder | None,
        *,
        stopping: StopSwitch,
        cancelled: StopSwitch,
    ) -> None:
        self._owner: Final = owner
        self._recorder: Final = recorder
        self._stopping: Final = stopping
        self._cancelled: Final = cancelled
        self._closed: BaseException | None = None
        self.cut_short = False
        """Whether something was refused because the worker ends, or the lease is gone: what the
        handler comes to is then made without it, whatever it makes of the error."""

    @property
    def writer(self) -> Recorder:
        """Who writes.

        Raises:
            ConfigurationError: Nobody does.
        """
        if self._recorder is None:
            raise ConfigurationError(
                f"{self._owner}: nobody stores boundaries here; have a worker, run_now or the "
                "testing kit call the handler"
            )
        return self._recorder

    def check_lease(self) -> None:
        """Raise `LeaseLostError` where the lease is gone: not even what is stored counts then."""
        if self._cancelled.reason is StopReason.LEASE_LOST:
            self.cut_short = True
            self._cancelled.raise_if_set()

    def check_running(self) -> None:
        """Raise `LeaseLostError` where the lease is gone, or the activation has ended."""
        self.check_lease()
        if self._closed is not None:
            raise self._closed

    def check_open(self) -> None:
        """Raise where nothing new begins any more.

        Raises:
            LeaseLostError: The lease is gone.
            Stopped: The activation is told to stop.
            ConfigurationError: There is nobody who writes.
        """
        self.check_told()
        if self._closed is not None:
            raise self._closed
        _ = self.writer

    def check_told(self) -> None:
        """Raise where the handler is told to stop, and note it where that is not for its run's end.

        Raises:
            LeaseLostError: The lease is gone.
            Stopped: For any other reason.
        """
        told = self._cancelled or self._stopping
        if told:
            if told.reason in CUTS:
                self.cut_short = True
            told.raise_if_set()

    def close(self, error: BaseException) -> None:
        """Have nothing new begin any more; the first error stands."""
        self._closed = self._closed or error
