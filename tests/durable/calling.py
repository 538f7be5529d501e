"""Calls real handlers on a real store, one activation after the other, in the test's own thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tests.store.acting import an_entry, draw, put, reach, take_one
from workhorse.domain.ids import RunId
from workhorse.domain.outcomes import Failed, Outcome, Settlement, Succeeded, Suspended
from workhorse.domain.recording import NewProgress, ReadValue, Record, RecordAnswer, Recorded
from workhorse.domain.runs import ClaimedRun, Failure, RunState
from workhorse.domain.transitions import settlement_of
from workhorse.domain.values import encode
from workhorse.errors import LeaseLostError
from workhorse.handlers.activation import ActivationCore
from workhorse.handlers.plain import Context
from workhorse.handlers.recording import Pending
from workhorse.handlers.signals import Suspended as Suspension
from workhorse.store.base.database import Store
from workhorse.store.durable.boundaries import read_values, record, write_progress
from workhorse.store.lifecycle.settling import Entry, settle

Handler = Callable[[Context], object]


class StoreRecorder:
    """Writes at once what a handler asks for.

    `before` is called ahead of each boundary: what happens between its request and its commit.
    """

    def __init__(self, store: Store, before: Callable[[Record], object] | None = None) -> None:
        self._store = store
        self._before = before

    def record(self, asked: Record) -> Pending[RecordAnswer]:
        if self._before is not None:
            self._before(asked)
        pending: Pending[RecordAnswer] = Pending()
        answer = self._store.run(record, [asked], reach=reach).answers[0]
        if answer.result is Recorded.LOST:
            pending.fail(LeaseLostError("its lease is gone"))
        else:
            pending.answer(answer)
        return pending

    def read(self, request: ReadValue) -> Pending[str | None]:
        pending: Pending[str | None] = Pending()
        pending.answer(self._store.run(read_values, [request])[0])
        return pending

    def progress(self, progress: NewProgress) -> None:
        self._store.run(write_progress, [progress])

    def transact(self, asked: Record, operation: Callable[..., str]) -> Pending[RecordAnswer]:
        raise AssertionError("no handler here has one")

    def suspending(self) -> None:
        """Nothing was started that would have to be ended."""


@dataclass
class Called:
    """An activation that has come to its end, and is not settled yet."""

    claimed: ClaimedRun
    outcome: Outcome

    @property
    def value(self) -> object:
        """What the handler returned, as JSON text."""
        assert isinstance(self.outcome, Succeeded)
        return self.outcome.result

    @property
    def settlement(self) -> Settlement:
        run = self.claimed
        return settlement_of(
            self.outcome,
            attempt=run.attempt,
            hand_backs=run.hand_backs,
            retry=run.retry,
            draw=draw(),
        )

    @property
    def entry(self) -> Entry:
        return an_entry(self.claimed, self.settlement)


def call(
    store: Store,
    run: RunId | ClaimedRun,
    handler: Handler,
    *,
    before: Callable[[Record], object] | None = None,
    skew: timedelta = timedelta(0),
) -> Called:
    """Claim a run, where that is not done, and call its handler.

    `skew` is how far the host's clock is ahead of the store's.
    """
    claimed = run if isinstance(run, ClaimedRun) else take_one(store, run)
    core = ActivationCore(claimed, StoreRecorder(store, before), now=_now(store, skew))
    outcome: Outcome
    try:
        returned = handler(Context(core))
    except Suspension:
        outcome = Suspended(core.suspension)
    except Exception as error:  # noqa: BLE001 - an attempt's failure, as a worker sees it
        outcome = Failed(Failure(type(error).__name__, str(error)))
    else:
        outcome = Succeeded(encode("the result", returned, cap=10**9))
    return Called(claimed, outcome)


def finish(store: Store, called: Called) -> RunState | None:
    """Settle an activation; None where its lease is gone."""
    written: dict[RunId, Any] = store.run(settle, [called.entry], reach=reach).written
    return written.get(called.claimed.id)


def a_run_at(store: Store, handler: Handler, **fields: Any) -> RunId:
    """Return a run whose handler has come to its first wait."""
    run_id = put(store, **fields)
    state = finish(store, call(store, run_id, handler))
    assert state in (RunState.WAITING, RunState.SCHEDULED)
    return run_id


def _now(store: Store, skew: timedelta) -> Callable[[], datetime]:
    clock = store.manual_clock
    assert clock is not None
    return lambda: clock.now + skew
