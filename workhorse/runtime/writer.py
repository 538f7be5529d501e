"""The writer: settles what is waiting, many runs in one commit.

A settle is offered until the store answers or the process ends. Nothing waits for a timer: while
one commit is under way the next batch gathers, so batches grow with the load.

Source: docs/design.md, sections 3 and 6.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from workhorse.domain.hints import Reach
from workhorse.domain.ids import RunId
from workhorse.domain.outcomes import Finish
from workhorse.domain.runs import Failure, Reason, RunState
from workhorse.domain.transitions import settlement_of
from workhorse.errors import StoreUnavailableError
from workhorse.runtime.activation import Activation
from workhorse.runtime.calls import StoreCalls, lock_not_got, refuses_value
from workhorse.runtime.options import LARGEST_CLAIM
from workhorse.runtime.pace import Backoff, Pace
from workhorse.store.settling import Entry, Settled, settle, settled_before
from workhorse.telemetry import get_logger

if TYPE_CHECKING:
    from workhorse.store.database import Tx

_log = get_logger("worker")

_LARGEST_BATCH_CHARS: Final = 8 * 1024 * 1024


class Writer:
    """Commits settlements in batches. `offer` may be called from any thread.

    Args:
        settled: Told what was written for whom; None where the token was gone and nothing was.
        published: Takes the wakeups that follow a commit.
        reach: How far ahead a delayed wakeup can be sent for a queue.
    """

    def __init__(
        self,
        calls: StoreCalls,
        *,
        reach: Reach,
        settled: Callable[[Sequence[tuple[Activation, RunState | None]]], None],
        published: Callable[[Settled], None],
        pace: Pace,
    ) -> None:
        self._calls = calls
        self._reach = reach
        self._settled = settled
        self._published = published
        self._pace = pace
        self._draw = random.Random()  # noqa: S311 - jitter, not a secret
        self._changed = threading.Condition()
        self._waiting: deque[Activation] = deque()
        self._apart: list[_Apart] = []
        self._writing = 0
        self._closed = False
        self._abandoned = threading.Event()

    def offer(self, activations: Sequence[Activation]) -> None:
        """Have the outcomes of activations written; each is offered once."""
        with self._changed:
            self._waiting.extend(activations)
            self._changed.notify_all()

    def flush(self, timeout: float) -> bool:
        """Wait until all that was offered is settled, or the seconds are over; answer which."""
        with self._changed:
            return self._changed.wait_for(self._is_idle, timeout)

    def close(self, *, abandon: bool = False) -> None:
        """End the loop once all is settled; `abandon` gives up what the store does not take."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if abandon:
            self._abandoned.set()

    def serve(self) -> None:
        """Write until closed: the body of the loop."""
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    rest = self._until_apart()
                    if rest is not None and rest <= 0:
                        break
                    self._changed.wait(None if rest is None else rest / 1000)
                if self._closed and (self._is_idle() or self._abandoned.is_set()):
                    return
                batch = self._gather()
                self._writing = len(batch)
            try:
                if batch:
                    self._write(batch)
                else:
                    self._write_apart()
            except BaseException:
                self._put_back(batch)
                raise
            finally:
                with self._changed:
                    self._writing = 0
                    self._changed.notify_all()

    # -- a batch ---------------------------------------------------------------------------------

    def _gather(self) -> list[Activation]:
        batch: list[Activation] = []
        runs: set[RunId] = set()
        size = 0
        while self._waiting and len(batch) < LARGEST_CLAIM and size < _LARGEST_BATCH_CHARS:
            if self._waiting[0].lease.run_id in runs:
                break  # an older lease of the same run: answers are told apart by the run's id
            activation = self._waiting.popleft()
            settlement = self._settlement(activation)
            if isinstance(settlement, Finish) and settlement.result:
                size += len(settlement.result)
            runs.add(activation.lease.run_id)
            batch.append(activation)
        return batch

    def _write(self, batch: Sequence[Activation]) -> None:
        backoff = Backoff(50, 5_000)
        failure: Exception | None = None
        while failure is None and not self._abandoned.is_set():
            try:
                entries = [self._entry(activation) for activation in batch]
                settled, mine = self._calls.try_once(_settle, entries, reach=self._reach)
            except StoreUnavailableError as error:
                if lock_not_got(error):
                    failure = error
                else:
                    self._pace.pause(self._abandoned, backoff.next_ms())
            except Exception as error:  # noqa: BLE001 - it is named, and the offer is repeated
                failure = error
            else:
                self._published(settled)
                self._settled([(each, _written(each, settled, mine)) for each in batch])
                return
        if failure is not None:
            self._split(batch, failure)

    def _split(self, batch: Sequence[Activation], error: Exception) -> None:
        """Find the guilty one: halve the batch until it stands alone; the others go through."""
        if len(batch) > 1:
            half = len(batch) // 2
            self._write(batch[:half])
            self._write(batch[half:])
            return
        activation = batch[0]
        if refuses_value(error) and not _is_refusal(activation):
            _log.error(
                "run %s: the store refused what its handler came to (%s); it is settled as failed",
                activation.claimed.id,
                type(error).__name__,
            )
            activation.settlement = _refusal(error)
            self._write(batch)
            return
        _log.warning(
            "run %s could not be settled (%s); it is offered again",
            activation.claimed.id,
            "its row is locked" if lock_not_got(error) else type(error).__name__,
            exc_info=None if lock_not_got(error) else error,
        )
        self._set_apart(activation)

    # -- what stands alone -----------------------------------------------------------------------

    def _set_apart(self, activation: Activation) -> None:
        with self._changed:
            apart = next((each for each in self._apart if each.activation is activation), None)
            if apart is None:
                apart = _Apart(activation)
                self._apart.append(apart)
            apart.due_ms = self._pace.now_ms() + apart.backoff.next_ms()

    def _write_apart(self) -> None:
        now = self._pace.now_ms()
        with self._changed:
            due = [each for each in self._apart if each.due_ms <= now]
        for each in due:
            each.due_ms = float("inf")
            self._write([each.activation])
            if each.due_ms == float("inf"):  # nobody set it apart again
                with self._changed:
                    self._apart.remove(each)

    def _until_apart(self) -> float | None:
        if not self._apart:
            return None
        return min(each.due_ms for each in self._apart) - self._pace.now_ms()

    def _is_idle(self) -> bool:
        return not self._waiting and not self._apart and not self._writing

    def _put_back(self, batch: Sequence[Activation]) -> None:
        """Offer again what a failure of the loop itself left unsettled."""
        with self._changed:
            apart = [each.activation for each in self._apart]
            self._waiting.extendleft(
                each for each in reversed(batch) if not each.settled and each not in apart
            )
            now = self._pace.now_ms()
            for each in self._apart:
                each.due_ms = min(each.due_ms, now + 1_000)

    # -- entries ---------------------------------------------------------------------------------

    def _settlement(self, activation: Activation) -> object:
        """Decide what is written, once: an offer that is repeated says the same."""
        if activation.settlement is None:
            claimed, outcome = activation.claimed, activation.outcome
            if outcome is None:
                raise AssertionError(f"{activation!r} was offered without an outcome")
            activation.settlement = settlement_of(
                outcome,
                attempt=claimed.attempt,
                hand_backs=claimed.hand_backs,
                retry=claimed.retry,
                draw=self._draw,
            )
        return activation.settlement

    def _entry(self, activation: Activation) -> Entry:
        claimed = activation.claimed
        if activation.settlement is None:
            raise AssertionError(f"{activation!r} has no settlement")
        return Entry(
            activation.lease,
            activation.settlement,
            queue=claimed.queue,
            active_ms=activation.active_ms,
            inbox=claimed.inbox,
        )


class _Apart:
    """An offer that failed alone: it is repeated by itself, less and less often."""

    __slots__ = ("activation", "backoff", "due_ms")

    def __init__(self, activation: Activation) -> None:
        self.activation = activation
        self.backoff = Backoff(1_000, 30_000)
        self.due_ms = 0.0


def _settle(tx: Tx, entries: Sequence[Entry], *, reach: Reach) -> tuple[Settled, set[RunId]]:
    settled = settle(tx, entries, reach=reach)
    gone = [entry.lease for entry in entries if entry.lease.run_id not in settled.written]
    return settled, settled_before(tx, gone) if gone else set()


def _written(activation: Activation, settled: Settled, mine: set[RunId]) -> RunState | None:
    run_id, settlement = activation.lease.run_id, activation.settlement
    if run_id in mine and isinstance(settlement, Finish):
        return settlement.state  # by a commit whose answer was lost: my token stands there
    return settled.written.get(run_id)


def _refusal(error: Exception) -> Finish:
    failure = Failure(
        "SettlementRefused",
        f"the handler's result or error cannot be stored: the database refused it "
        f"({type(error).__name__})",
    )
    return Finish(RunState.FAILED, Reason.NOT_RETRYABLE, failure=failure)


def _is_refusal(activation: Activation) -> bool:
    settlement = activation.settlement
    return (
        isinstance(settlement, Finish)
        and settlement.failure is not None
        and settlement.failure.error_type == "SettlementRefused"
    )
