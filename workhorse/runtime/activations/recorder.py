"""What a handler's context writes through: the recorder of one activation, over the writer.

What is asked for goes into the writer's next batch, in the order of the calls; the answer comes
back as a `Pending`. When the lease has lapsed or is lost, what is under way fails at once, so that
no handler waits for a store that will not take its write.

Source: docs/design.md, sections 3, 6 and 7
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from workhorse.domain.recording import NewProgress, ReadValue, Record, RecordAnswer, Recorded
from workhorse.domain.runs import Lease
from workhorse.errors import ConfigurationError, LeaseLostError
from workhorse.handlers.recording import Pending
from workhorse.runtime.activations.progress import LatestProgress
from workhorse.runtime.activations.requests import Item, ToProgress, ToRead, ToRecord
from workhorse.runtime.base.crashing import AfterRecord, Crashed
from workhorse.runtime.base.pace import Pace, Timers
from workhorse.telemetry import get_logger

_log = get_logger("worker")

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from workhorse.runtime.activations.activation import Activation


class Transactions(Protocol):
    """Carries out `ctx.transaction`."""

    def transact(
        self, activation: Activation, record: Record, operation: Callable[[Connection], str]
    ) -> Pending[RecordAnswer]:
        """Call `operation` and write the boundary in one transaction, in a thread of its own.

        What the store answers is handed to `activation.recorder.take` before it is given.
        """
        ...


class Events(Protocol):
    """Takes what recorders find out about an activation."""

    def suspending(self, activation: Activation) -> None:
        """The handler has come to a wait."""
        ...

    def lost(self, activation: Activation) -> None:
        """The token is gone."""
        ...

    def crashed(self, activation: Activation) -> None:
        """A test wants it to end as if its process had died."""
        ...


class Recorders:
    """Makes the recorders of a worker's activations.

    Args:
        ask: Has the writer take something; False when the worker has ended.
        now: Tells handlers' contexts about the present, for coarse checks.
        after_record: Told of boundaries that are committed, see `AfterRecord`.
        transactions: Carries out `ctx.transaction`; None where nobody does.
    """

    timers: Timers
    events: Events

    def __init__(
        self,
        ask: Callable[[Item], bool],
        *,
        pace: Pace,
        now: Callable[[], datetime],
        after_record: AfterRecord | None = None,
        transactions: Transactions | None = None,
    ) -> None:
        self.ask = ask
        self.pace = pace
        self.now = now
        self.after_record = after_record
        self.transactions = transactions

    def make(self, activation: Activation, lease: Lease) -> ActivationRecorder:
        """Return the recorder of an activation."""
        return ActivationRecorder(activation, lease, self)


class ActivationRecorder:
    """Writes for one activation; `handlers.recording.Recorder` says what its calls do."""

    __slots__ = (
        "_activation", "_closed", "_lock", "_of", "_pending", "_progress", "_refusal", "lease",
        "stored",
    )  # fmt: skip

    def __init__(self, activation: Activation, lease: Lease, of: Recorders) -> None:
        # Weak: the activation has its core, and that has the recorder.
        self._activation = weakref.ref(activation)
        self._of = of
        self._lock = threading.Lock()
        self._pending: set[Pending[Any]] = set()
        self._refusal: BaseException | None = None
        self._closed = False
        """Whether it takes nothing any more; what it answers then is made when somebody asks."""
        self._progress: LatestProgress | None = None
        self.lease = lease
        self.stored = 0
        """How many boundaries this activation has stored."""

    # -- for the handler's context ---------------------------------------------------------------

    def record(self, record: Record) -> Pending[RecordAnswer]:
        """Write a boundary."""
        asked = ToRecord(self, record)
        self._submit(asked, asked.pending)
        return asked.pending

    def read(self, request: ReadValue) -> Pending[str | None]:
        """Read a value by name."""
        asked = ToRead(self, request)
        self._submit(asked, asked.pending)
        return asked.pending

    def progress(self, progress: NewProgress) -> None:
        """Replace what the run says of its progress; after the end of the lease, say nothing."""
        with self._lock:
            if self._refusal is not None or self._closed:
                return
            if self._progress is None:
                self._progress = LatestProgress(
                    lambda: self._of.ask(ToProgress(self)),
                    timers=self._of.timers,
                    pace=self._of.pace,
                )
        self._progress.put(progress)

    def transact(
        self, record: Record, operation: Callable[[Connection], str]
    ) -> Pending[RecordAnswer]:
        """Write a boundary together with what an operation writes."""
        activation, transactions = self._activation(), self._of.transactions
        if transactions is None:
            raise ConfigurationError("this worker carries out no transactions of handlers")
        if activation is None or self._refusal is not None or self._closed:
            refused: Pending[RecordAnswer] = Pending()
            refused.fail(self._refused())
            return refused
        pending = transactions.transact(activation, record, operation)
        if self._await(pending):
            pending.on_done(lambda: self.forget(pending))
        return pending

    def suspending(self) -> None:
        """Be told that the activation ends at a wait."""
        activation = self._activation()
        if activation is not None:
            self._of.events.suspending(activation)

    # -- for the worker --------------------------------------------------------------------------

    @property
    def in_loop(self) -> bool:
        """Whether a handler on the event loop waits for the answers."""
        activation = self._activation()
        return activation is not None and activation.task.is_async

    @property
    def unwritten(self) -> LatestProgress | None:
        """The progress of the run, where it says any."""
        return self._progress

    def take(self, record: Record, answer: RecordAnswer) -> BaseException | None:
        """Take in what the store said to a record; answer what its handler is to get instead."""
        activation = self._activation()
        if answer.result is Recorded.LOST:
            if activation is not None:
                self._of.events.lost(activation)
            return self._lost()
        if answer.result is Recorded.STORED:
            self.stored += 1
            if self._is_crash(activation, record.boundary.name):
                return self._refusal or Crashed()
        return None

    def take_waits(self, names: Sequence[str]) -> bool:
        """Take in that waits were committed with the settle; answer whether a test ends it there.

        Nothing is left to be ended then but the wakeups of the commit.
        """
        activation = self._activation()
        return any([self._is_wanted(activation, name) for name in names])  # noqa: C419 - each is told

    def fail(self, error: BaseException | None = None) -> BaseException:
        """Answer what is under way, and all that comes, with an error; return the one that stands.

        By default it says that the lease is gone.
        """
        with self._lock:
            if self._refusal is None:
                self._refusal = error or self._refused()
            refusal = self._refusal
            pending, self._pending = self._pending, set()
        if self._progress is not None:
            self._progress.drop()
        activation = self._activation()
        if pending and activation is not None:
            activation.core.replay.gate.cut_short = True
        for each in pending:
            each.fail(refusal)
        return refusal

    def close(self) -> NewProgress | None:
        """Take nothing any more, the activation is settled now; return what is still unwritten."""
        last = self._progress.take() if self._progress is not None else None
        with self._lock:
            self._closed = True
            quiet = not self._pending and self._progress is None
        if not quiet:
            self.fail()
        return last

    def forget(self, pending: Pending[Any]) -> None:
        """Note that something has its answer."""
        with self._lock:
            self._pending.discard(pending)

    # -- its own ---------------------------------------------------------------------------------

    def _submit(self, asked: ToRecord | ToRead, pending: Pending[Any]) -> None:
        activation = self._activation()
        if activation is None or activation.outcome is not None:
            pending.fail(self._refused())
        elif self._await(pending) and not self._of.ask(asked):
            self.forget(pending)
            pending.fail(self._lost())

    def _await(self, pending: Pending[Any]) -> bool:
        with self._lock:
            if self._refusal is None and not self._closed:
                self._pending.add(pending)
                return True
        pending.fail(self._refused())
        return False

    def _refused(self) -> BaseException:
        if self._refusal is not None:
            return self._refusal
        if not self._closed:
            return self._lost()
        return LeaseLostError(
            f"run {self.lease.run_id}: its activation has ended; nothing more is stored for it"
        )

    def _is_crash(self, activation: Activation | None, name: str) -> bool:
        if isinstance(self._refusal, Crashed):
            return True  # the same commit had a boundary that it crashed at
        if activation is None or not self._is_wanted(activation, name):
            return False
        self._of.events.crashed(activation)
        return True

    def _is_wanted(self, activation: Activation | None, name: str) -> bool:
        after = self._of.after_record
        if after is None or activation is None:
            return False
        try:
            return after(activation, name)
        except Exception:  # noqa: BLE001 - it must not stop the writer
            _log.exception("after_record failed, which counts as False")
            return False

    def _lost(self) -> LeaseLostError:
        return LeaseLostError(
            f"run {self.lease.run_id}: its lease ran out or was taken; nothing more is stored "
            "under it"
        )
