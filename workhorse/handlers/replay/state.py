"""The core of an activation's replay: what its run has passed, and what it has begun itself.

Source: docs/design.md, section 7; docs/adr/0012-boundaries-and-deliveries.md
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NoReturn

from workhorse.domain.boundaries import (
    Boundary,
    BoundaryKind,
    Delivered,
    DeliveryState,
    NewBoundary,
    Wait,
)
from workhorse.domain.names import check_boundary
from workhorse.domain.recording import Record, RecordAnswer, Recorded
from workhorse.domain.runs import ClaimedRun, Lease
from workhorse.errors import (
    CheckpointConflictError,
    ConfigurationError,
    LeaseLostError,
    WaitConflictError,
)
from workhorse.handlers.recording import Pending, Recorder
from workhorse.handlers.replay.calls import Calls
from workhorse.handlers.replay.flights import Flight, Steps, within
from workhorse.handlers.replay.gate import Gate
from workhorse.handlers.replay.limits import Limits
from workhorse.handlers.signals import StopSwitch, Suspended

if TYPE_CHECKING:
    from sqlalchemy import Connection

_STAGES: Final = frozenset({BoundaryKind.CHECKPOINT, BoundaryKind.PATCH})
PATIENCE_S: Final = 5.0
"""How long a handler's other tasks may go on once one has come to a wait."""
_TURNS: Final = 5
"""Turns of the event loop that a handler's tasks may take from one boundary to the next: a task
that ends, a gather that notices, the task that awaits it."""


class Replay:
    """Answers boundaries from what is stored, and writes new ones. Safe in threads.

    Args:
        claimed: The run with its history.
        lease: Under which it writes.
        recorder: Who writes; None where nobody does.
        stopping: Set when the worker is told to end.
        cancelled: Set when the handler is to end.
        now: About the present, in UTC, for coarse checks only.
    """

    __slots__ = (
        "_ended_in", "_ending", "_flights", "_loaded", "_lock", "_loop", "_parked",
        "_patience", "_quiet",
        "_reached", "_seq", "_timers", "_waits", "boundaries", "calls", "deliveries", "gate",
        "lease", "limits", "new_boundaries", "now", "owner", "session",
    )  # fmt: skip

    def __init__(
        self,
        claimed: ClaimedRun,
        lease: Lease,
        recorder: Recorder | None,
        *,
        stopping: StopSwitch,
        cancelled: StopSwitch,
        now: Callable[[], datetime],
    ) -> None:
        history = claimed.history
        self.lease: Final = lease
        self.owner: Final = f"run {claimed.id}"
        self.session: Final = claimed.session
        self.now: Final = now
        self.boundaries: Final = {each.name: each for each in history.boundaries}
        """What the run has passed, by name; it grows."""
        self.calls: Final = Calls(self.owner, claimed.task, self.boundaries)
        """What the handler calls."""
        self.deliveries: Final = {(each.kind, each.name): each for each in history.deliveries}
        """What came from outside until the claim, by kind and name."""
        self.new_boundaries = 0
        """How many this activation has stored."""
        self.limits: Final = Limits(self.owner, history)
        self._loaded: Final = history.boundaries
        self._seq = history.last_seq
        self.gate: Final = Gate(self.owner, recorder, stopping=stopping, cancelled=cancelled)
        self._lock: Final = threading.Lock()
        self._flights: dict[str, Flight] = {}
        self._waits: dict[str, Wait] = {}
        self._timers: set[str] = set()
        # Weak: a task's context leads back to here.
        self._ended_in: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self._ending = False
        self._parked: set[Flight] = set()
        self._quiet: Pending[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._reached: dict[str, None] = {}

    # -- for the worker --------------------------------------------------------------------------

    @property
    def suspension(self) -> tuple[Wait, ...]:
        """The waits that the activation ends at; empty while it has come to none."""
        if not self._waits:
            return ()
        with self._lock:
            begun = (Wait(kind=BoundaryKind.TIMER, name=each) for each in sorted(self._timers))
            return (*self._waits.values(), *begun)

    @property
    def suspended(self) -> bool:
        """Whether the activation is ended at its waits; before, its tasks are held at them."""
        return self._ending

    def forget_waits(self) -> None:
        """Be told that the handler has failed while tasks of it were held at waits: none counts."""
        with self._lock:
            self._ending = True
            self._waits.clear()
        self._let_go()

    @property
    def reached(self) -> list[str]:
        """The names of the boundaries that this activation has asked for, in order."""
        return list(self._reached)

    def fail_pending(self, error: BaseException) -> None:
        """Let nobody wait any more for what is under way; what is not stored begins no more."""
        self.gate.close(error)
        with self._lock:
            joined = [flight.joined for flight in self._flights.values()]
        for each in (*joined, self._quiet):
            if each is not None:
                each.fail(error)

    # -- reaching --------------------------------------------------------------------------------

    def touch(self, name: str) -> None:
        """Note that a boundary is asked for.

        Raises:
            LeaseLostError: The lease is gone, so that not even what is stored counts.
        """
        self.gate.check_lease()
        self._reached[name] = None

    def enter(self, kind: BoundaryKind, name: str) -> Steps[Boundary | Flight]:
        """Return the boundary of that name, or the right and duty to make it.

        Calls for a name that is under way wait for its end, and get its error where it has one.

        Raises:
            CheckpointConflictError, WaitConflictError: The name belongs to another kind.
        """
        check_boundary(name)
        while True:
            self.touch(name)
            stored = self.boundaries.get(name)
            if stored is not None:
                self.check_kind(stored.kind, kind, name)
                return stored
            with self._lock:
                flight = self._flights.get(name)
                if flight is None:
                    if name in self.boundaries:  # it has landed just now
                        continue
                    self._flights[name] = flight = Flight(name, self)
                    return flight
                if flight in within.get():
                    raise ConfigurationError(
                        f"{self.owner}: the operation of '{name}' asks for '{name}' itself, which "
                        "would wait for ever; give the inner one a name of its own"
                    )
                if flight.joined is None:
                    flight.joined = Pending()
                joined = flight.joined
            yield joined

    def meet(self, name: str, wait: object) -> None:
        """Be told what is waited for, before it is looked up; who checks changed code listens."""

    def check_kind(self, stored: BoundaryKind, asked: BoundaryKind, name: str) -> None:
        """Refuse a name that belongs to a boundary of another kind."""
        if stored is asked:
            return
        error = CheckpointConflictError if asked in _STAGES else WaitConflictError
        raise error(
            f"{self.owner}: '{name}' is a {stored.value} and stays one; "
            f"give the new {asked.value} a name of its own"
        )

    def unreached(self) -> bool:
        """Whether an earlier activation has been beyond where this one is now.

        What lies before does not count: a boundary inside another's operation, or one that was
        taken out of the code, is never come to again.
        """
        reached = max((each.seq for each in self._loaded if each.name in self._reached), default=0)
        return any(each.seq > reached for each in self._loaded)

    def may_start(self) -> None:
        """Raise where the activation begins nothing new any more.

        Raises:
            ConfigurationError: There is nobody who writes.
            LeaseLostError: The lease is gone.
            Stopped: It is told to stop.
            Suspended: It has come to a wait.
        """
        self.gate.check_open()
        if self._waits and (self._ending or running_task() in self._ended_in):
            raise self._suspended()

    # -- writing ---------------------------------------------------------------------------------

    def number(self, new: NewBoundary) -> NewBoundary:
        """Return a boundary with its place in the run, counted for the run's limits.

        Raises:
            BoundaryLimitExceededError, WaitLimitExceededError: The run has as many as it may have.
        """
        with self._lock:
            return self._number(new)

    def _number(self, new: NewBoundary) -> NewBoundary:
        self.limits.take(new, self.boundaries, self.deliveries)
        self._seq += 1
        return NewBoundary(  # a quarter of what dataclasses.replace takes
            name=new.name,
            kind=new.kind,
            seq=self._seq,
            value=new.value,
            fingerprint=new.fingerprint,
            detail=new.detail,
            delay_ms=new.delay_ms,
            wake_at=new.wake_at,
        )

    def take_bytes(self, name: str, size: int) -> None:
        """Count the bytes of a value that was not known when its boundary was counted.

        Raises:
            BoundaryLimitExceededError: The run has no room for them.
        """
        with self._lock:
            self.limits.take_bytes(name, size)

    def write(self, flight: Flight, record: Record) -> Steps[RecordAnswer]:
        """Have a boundary written, and wait for the answer."""
        written = self.launch(flight, record)
        return (yield from self.answer(flight, record.boundary, written))

    def write_timer(self, flight: Flight, record: Record) -> Steps[RecordAnswer]:
        """As `write`, for a timer that may be past.

        Where the activation ends at another wait before the answer is there, it ends at this too.
        """
        with self._lock:
            self._timers.add(flight.name)
        answer = yield from self.write(flight, record)
        with self._lock:
            self._timers.discard(flight.name)
        return answer

    def answer(
        self, flight: Flight, new: NewBoundary, written: Pending[RecordAnswer]
    ) -> Steps[RecordAnswer]:
        """Wait for the answer to a write.

        Raises:
            LeaseLostError: The lease is gone; nothing was stored.
        """
        answer: RecordAnswer = yield written
        self.land(flight, new, written)
        if answer.result is Recorded.LOST:
            raise self._lost(new)
        return answer

    def launch(self, flight: Flight, record: Record) -> Pending[RecordAnswer]:
        """Have a boundary written; its flight ends when the answer comes, whoever waits for it.

        What an operation has returned is written also when the activation is told to stop by now.
        """
        return self._follow(flight, record.boundary, self.gate.writer.record(record))

    def launch_transaction(
        self, flight: Flight, record: Record, operation: Callable[[Connection], str]
    ) -> Pending[RecordAnswer]:
        """As `launch`, with the writes of an operation, which returns the boundary's value."""
        return self._follow(flight, record.boundary, self.gate.writer.transact(record, operation))

    def _follow(
        self, flight: Flight, new: NewBoundary, written: Pending[RecordAnswer]
    ) -> Pending[RecordAnswer]:
        flight.launched = True
        written.on_done(lambda: self.land(flight, new, written))
        return written

    def land(self, flight: Flight, new: NewBoundary, written: Pending[RecordAnswer]) -> None:
        """Take in the answer to a write, once; who sees it first does so."""
        error: BaseException | None = None
        with self._lock:
            if flight.landed:
                return
            flight.landed = True
            try:
                answer = written.result()
            except BaseException as failure:  # noqa: BLE001 - it is raised where it is waited for
                error = failure
            else:
                error = self._keep(flight, new, answer)
        self.release(flight, error)

    def _keep(self, flight: Flight, new: NewBoundary, answer: RecordAnswer) -> BaseException | None:
        if answer.result is Recorded.LOST:
            return self._lost(new)
        stored = answer.boundary or Boundary(
            name=new.name,
            kind=new.kind,
            seq=new.seq,
            value=new.value,
            fingerprint=new.fingerprint,
            detail=new.detail,
            wake_at=new.wake_at,
            absolute=new.wake_at is not None,
        )
        if answer.result is Recorded.STORED:
            self.new_boundaries += 1
            if new.delay_ms == 0 and not stored.due:  # no clock is needed to say that it has passed
                stored = replace(stored, due=True)
            if new.wake_at is not None and stored.due:
                self.limits.settled()
        self.boundaries[new.name] = stored
        if new.kind is BoundaryKind.ANY:
            self.limits.recount()
        if flight.closes and stored.value == new.value:
            self._close(flight.closes, answer.kept)
        return None

    def _lost(self, new: NewBoundary) -> LeaseLostError:
        return LeaseLostError(f"{self.owner}: its lease is gone; '{new.name}' was not stored")

    def release(self, flight: Flight, error: BaseException | None) -> None:
        """End a flight. Those who joined it get its error, or look for themselves what stands.

        What is no `Exception` (a cancelled task, a suspension) ends the leader alone: one of the
        others takes its place.
        """
        with self._lock:
            if self._flights.get(flight.name) is flight:
                del self._flights[flight.name]
            joined = flight.joined
            loop = self._loop if not self._ending else None
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it is closed: nobody waits any more
                loop.call_soon_threadsafe(self._look_around, _TURNS)
        if joined is not None:
            if isinstance(error, Exception):
                joined.fail(error)
            else:
                joined.answer(None)

    def _close(self, waits: Iterable[tuple[BoundaryKind, str]], kept: Iterable[Delivered]) -> None:
        """Note that waits were closed: nothing more counts for them but what had come already."""
        for came in kept:
            self.deliveries.setdefault((came.kind, came.name), came)
        for kind, name in waits:
            closed = Delivered(kind=kind, name=name, state=DeliveryState.CLOSED, inbox=0)
            self.deliveries.setdefault((kind, name), closed)
            if name in self.boundaries:
                self.limits.settled()

    # -- suspending ------------------------------------------------------------------------------

    def suspend(self, waits: Sequence[Wait]) -> NoReturn:
        """End the activation at these waits, together with those that it has come to before."""
        self.gate.check_open()
        self._come_to(waits)
        raise self._suspended()

    def _come_to(self, waits: Sequence[Wait]) -> None:
        # Apart from who raises: the error keeps that one's frame, the running task keeps the error,
        # and with the task in the frame they would be a circle.
        task = running_task()
        with self._lock:
            if task in self._ended_in:
                return  # what cleans up behind a wait starts no other
            first = not self._waits
            reached: dict[str, Wait] = {}
            for wait in waits:
                known = self._waits.get(wait.name)
                if known is not None:
                    self.check_kind(known.kind, wait.kind, wait.name)
                    continue
                if wait.new is not None:
                    wait = replace(wait, new=self._number(wait.new))
                reached[wait.name] = wait
            # All of them or none: with some, a refusal of the others would be taken for their end.
            self._waits |= reached
            if task is not None:
                self._ended_in.add(task)
                self._parked.update(within.get())
                self._quiet = self._quiet or Pending()
        if task is not None:
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
                # Not in the handler's context: a handle keeps it until its time, cancelled too.
                self._patience = self._loop.call_later(
                    PATIENCE_S, self._end, context=contextvars.Context()
                )
            self._loop.call_soon(self._look_around, _TURNS)
        else:
            self._ending = True
            if first:
                self.gate.writer.suspending()

    def _look_around(self, turns: int) -> None:
        """End the activation once no other of its tasks is in the midst of a boundary.

        What is under way is finished and stored, and may lead to the next, some turns of the loop
        later; so branches that do not wait come as far as they can, for a while. An operation that
        waits itself is not waited for.
        """
        with self._lock:
            if not self._parked.issuperset(self._flights.values()):
                return  # whoever ends a flight looks again
        if turns == 0:
            self._end()
        elif not self._ending and self._loop is not None:
            self._loop.call_soon(self._look_around, turns - 1)

    def _end(self) -> None:
        with self._lock:
            if self._ending or self._quiet is None or self._quiet.done:
                return
            self._ending = True
        self.gate.writer.suspending()
        self._let_go()

    def _let_go(self) -> None:
        """Let the tasks that are held at waits end."""
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        if self._quiet is not None:
            self._quiet.answer(None)

    def _suspended(self) -> Suspended:
        message = f"{self.owner} gives its lease up until one of its waits is settled"
        return Suspended(message, quiet=self._quiet)


def running_task() -> asyncio.Task[Any] | None:
    """Return the asyncio task that this code is a part of, if any."""
    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop runs here: a plain handler
        return None
