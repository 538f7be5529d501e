"""The handle of a run: what enqueue returns, and what `app.run(id)` finds again."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Generic, TypeVar

from workhorse.domain.ids import RunId

if TYPE_CHECKING:
    from workhorse.domain.runs import RunState, RunView

R = TypeVar("R")


class Run(Generic[R]):
    """A run of this app's store: its id, and calls that look at it or act on it.

    `id`, `queue` and `created` are known without a query. `created` is False where an idempotency
    key led to a run that was there before.
    """

    __slots__ = ("created", "id", "queue")

    id: RunId
    queue: str
    created: bool

    def result(self, timeout: timedelta | float | None = None) -> R:
        """Wait for the run's end and return what its handler returned.

        Args:
            timeout: The longest wait, a timedelta or seconds; None waits as long as it takes, and
                zero looks once.

        Raises:
            RunFailedError: The run has failed; `reason`, `error_type`, `error_message` say how.
            RunCancelledError: The run was cancelled.
            ResultTimeoutError: The run has not ended in time; it goes on.
            RunNotFoundError: No such run: never committed, or pruned since.
        """
        raise NotImplementedError

    async def result_async(self, timeout: timedelta | float | None = None) -> R:
        """As `result`, without blocking the event loop."""
        raise NotImplementedError

    def view(self) -> RunView:
        """Return the run whole, as it stands now.

        Raises:
            RunNotFoundError: No such run.
        """
        raise NotImplementedError

    async def view_async(self) -> RunView:
        """As `view`, without blocking the event loop."""
        raise NotImplementedError

    def cancel(self, *, by: str = "app", why: str = "") -> RunState:
        """Cancel the run; see `Workhorse.cancel`."""
        raise NotImplementedError

    async def cancel_async(self, *, by: str = "app", why: str = "") -> RunState:
        """As `cancel`, without blocking the event loop."""
        raise NotImplementedError
