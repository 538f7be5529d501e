"""The handle of a run: what enqueue returns, and what `app.run(id)` finds again.

Who waits for a result polls the store: the outcome is there and nowhere else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final, Generic, TypeVar, cast

from workhorse.client.background import Background
from workhorse.client.checks import check_said, new_request_id, seconds_of
from workhorse.client.delivering import Deliveries
from workhorse.client.passing import pass_on
from workhorse.client.publishing import Publisher
from workhorse.domain.boundaries import DeliveryResult
from workhorse.domain.hints import Hint
from workhorse.domain.ids import RunId
from workhorse.domain.runs import RunState, RunView, first_line
from workhorse.domain.values import decode
from workhorse.errors import (
    ResultTimeoutError,
    RunCancelledError,
    RunFailedError,
    RunNotFoundError,
)
from workhorse.handlers.registry import TaskRegistry
from workhorse.store.base.database import Store, Tx
from workhorse.store.lifecycle.sighting import sight
from workhorse.store.operators import operating, viewing

R = TypeVar("R")

FIRST_REST_S: Final = 0.02
LONGEST_REST_S: Final = 1.0
_GROWTH: Final = 1.5


class Run(Generic[R]):
    """A run of this app's store: its id, and calls that look at it or act on it.

    `id` and `created` are known without a query. `created` is False where an idempotency key led to
    a run that was there before.
    """

    __slots__ = ("_calls", "_joined", "_queue", "created", "id")

    id: RunId
    created: bool

    def __init__(
        self,
        calls: RunCalls,
        run_id: RunId,
        *,
        queue: str | None = None,
        created: bool = False,
        joined: bool = False,
    ) -> None:
        self._calls = calls
        self._queue = queue
        self._joined = joined
        self.id = run_id
        self.created = created

    def __repr__(self) -> str:
        return f"<Run {self.id}>"

    @property
    def queue(self) -> str:
        """The queue that the run is in; read from the store where this call did not make the run.

        Raises:
            RunNotFoundError: No such run.
        """
        if self._queue is None:
            self._queue = self.view().queue
        return self._queue

    def result(self, timeout: timedelta | float | None = None) -> R:
        """Wait for the run's end and return what its handler returned.

        Args:
            timeout: The longest wait, a timedelta or seconds; None waits as long as it takes, and
                zero looks once.

        Raises:
            RunFailedError: The run has failed; `reason`, `error_type`, `error_message` say how.
            RunCancelledError: The run was cancelled.
            ResultTimeoutError: The run has not ended in time; it goes on.
            RunNotFoundError: No such run: its transaction has not committed, or it was pruned.
            StoreUnavailableError: The database does not answer; the run is not touched by that.
        """
        try:
            return cast("R", self._calls.result(self.id, timeout))
        except RunNotFoundError as error:
            raise self._explained(error) from None

    async def result_async(self, timeout: timedelta | float | None = None) -> R:  # noqa: ASYNC109
        """As `result`, without blocking the event loop."""
        try:
            return cast("R", await self._calls.result_async(self.id, timeout))
        except RunNotFoundError as error:
            raise self._explained(error) from None

    def view(self) -> RunView:
        """Return the run whole, as it stands now.

        Raises:
            RunNotFoundError: No such run.
        """
        return self._calls.view(self.id)

    async def view_async(self) -> RunView:
        """As `view`, without blocking the event loop."""
        return await self._calls.background.call(self._calls.view, self.id)

    def cancel(self, *, by: str = "app", why: str = "") -> RunState:
        """Cancel the run; see `Workhorse.cancel`."""
        return self._calls.cancel(self.id, by=by, why=why)

    async def cancel_async(self, *, by: str = "app", why: str = "") -> RunState:
        """As `cancel`, without blocking the event loop."""
        return await self._calls.background.call(self._calls.cancel, self.id, by=by, why=why)

    def send_signal(
        self, name: str, value: object = None, *, idempotency_key: str | None = None
    ) -> DeliveryResult:
        """Send the run a signal; see `Workhorse.send_signal`."""
        deliveries = self._calls.deliveries
        return deliveries.make(deliveries.signal(self.id, name, value, idempotency_key))

    async def send_signal_async(
        self, name: str, value: object = None, *, idempotency_key: str | None = None
    ) -> DeliveryResult:
        """As `send_signal`, without blocking the event loop."""
        deliveries = self._calls.deliveries
        return await deliveries.make_async(deliveries.signal(self.id, name, value, idempotency_key))

    def _explained(self, error: RunNotFoundError) -> RunNotFoundError:
        if not self._joined:
            return error
        return RunNotFoundError(
            f"run {self.id} was enqueued in a transaction of the caller's that has not committed, "
            "or was rolled back; ask for its result after the commit"
        )


class RunCalls:
    """What the handles of an app's runs do their work with."""

    def __init__(
        self,
        store: Callable[[], Store],
        registry: TaskRegistry,
        publisher: Publisher,
        background: Background,
    ) -> None:
        self._store = store
        self._registry = registry
        self._publisher = publisher
        self.background = background
        self.deliveries: Final = Deliveries(store, publisher, background)

    def view(self, run_id: RunId) -> RunView:
        """Return a run whole."""
        return self._store().read(viewing.show, run_id)

    def cancel(self, run_id: RunId, *, by: str, why: str) -> RunState:
        """Cancel a run, or ask its worker to end it; return the state that now stands."""
        check_said("by", by, least=1)
        check_said("why", why)
        store = self._store()
        state, hints = store.run(_cancel, run_id, by=by, why=why, request=new_request_id())
        self._publisher.publish([*hints, *pass_on(store, [run_id])])
        return state

    def result(self, run_id: RunId, timeout: timedelta | float | None) -> Any:
        """Wait for a run's end; return its value or raise what became of it."""
        waiting = _Waiting(run_id, timeout)
        for rest_s in waiting:
            if (view := self._ended(run_id)) is not None:
                return self.value_of(view)
            time.sleep(waiting.within(rest_s))
        raise AssertionError("unreachable")  # pragma: no cover

    async def result_async(self, run_id: RunId, timeout: timedelta | float | None) -> Any:  # noqa: ASYNC109
        """As `result`, without blocking the event loop."""
        waiting = _Waiting(run_id, timeout)
        for rest_s in waiting:
            if (view := await self.background.call(self._ended, run_id)) is not None:
                return self.value_of(view)
            await asyncio.sleep(waiting.within(rest_s))
        raise AssertionError("unreachable")  # pragma: no cover

    def value_of(self, view: RunView) -> Any:
        """Return the value of a finished run, or raise what became of it."""
        if view.state is RunState.SUCCEEDED:
            text = "null" if view.result is None else view.result
            task = self._registry.get(view.task)
            return decode(text) if task is None else task.decode_result(text)
        if view.state is RunState.CANCELLED:
            raise RunCancelledError(f"run {view.id} of task {view.task!r} was cancelled")
        raise RunFailedError(
            f"run {view.id} of task {view.task!r} has failed in attempt {view.attempt} "
            f"({view.reason}): {view.error_type}: {first_line(view.error_message)}",
            reason=str(view.reason),
            error_type=view.error_type,
            error_message=view.error_message,
        )

    def _ended(self, run_id: RunId) -> RunView | None:
        return self._store().read(_ended, run_id)


class _Waiting:
    """The rests between two looks: short at first, growing, and none beyond the time-out."""

    def __init__(self, run_id: RunId, timeout: timedelta | float | None) -> None:
        self._run_id = run_id
        self._until = None if timeout is None else time.monotonic() + seconds_of(timeout)

    def __iter__(self) -> Iterator[float]:
        rest_s = FIRST_REST_S
        while True:
            yield rest_s
            rest_s = min(rest_s * _GROWTH, LONGEST_REST_S)

    def within(self, rest_s: float) -> float:
        """Return a rest that ends in time.

        Raises:
            ResultTimeoutError: The time is up.
        """
        if self._until is None:
            return rest_s
        left = self._until - time.monotonic()
        if left <= 0:
            raise ResultTimeoutError(
                f"run {self._run_id} has not ended in time; it goes on, and its result can be "
                "asked for again"
            )
        return min(rest_s, left)


def _ended(tx: Tx, run_id: RunId) -> RunView | None:
    # The whole run is read once it has ended; until then a look costs no payload.
    sighting = sight(tx, [run_id]).get(run_id)
    if sighting is not None and not sighting.state.finished:
        return None
    view = viewing.show(tx, run_id)
    # One that was not there at the first look may have come before the second.
    return view if view.state.finished else None


def _cancel(
    tx: Tx, run_id: RunId, *, by: str, why: str, request: str
) -> tuple[RunState, list[Hint]]:
    result, hints = operating.cancel(tx, run_id, by=by, why=why, request_id=request)
    match result:
        case operating.CancelResult.CANCELLED:
            return RunState.CANCELLED, hints
        case operating.CancelResult.ASKED:
            return RunState.RUNNING, hints
        case operating.CancelResult.ALREADY_FINISHED:
            return sight(tx, [run_id])[run_id].state, hints
