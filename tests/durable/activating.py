"""Activations that are stepped by hand: what they ask for is held until a rule lets it happen."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from tests.durable.model import Model, Then
from tests.durable.programs import LARGE, NotYetError, Program, Step, carry_out
from workhorse.domain.ids import RunId
from workhorse.domain.outcomes import Failed, Outcome, Settlement, Succeeded, Suspended
from workhorse.domain.recording import NewProgress, ReadValue, Record, RecordAnswer
from workhorse.domain.runs import ClaimedRun, Failure, Lease
from workhorse.domain.transitions import settlement_of
from workhorse.domain.values import encode
from workhorse.errors import LeaseLostError
from workhorse.handlers.activation import ActivationCore
from workhorse.handlers.asynchronous import AsyncContext
from workhorse.handlers.recording import Pending
from workhorse.store.lifecycle.settling import Entry

QUEUE: Final = "default"
_draw = random.Random(7)  # no rest has a jitter here
_TURNS: Final = 200


class HeldRecorder:
    """Keeps what an activation asks for until a rule lets it happen."""

    def __init__(self) -> None:
        self.asked: deque[tuple[Record | ReadValue, Pending[Any]]] = deque()
        self.said: NewProgress | None = None

    def record(self, record: Record) -> Pending[RecordAnswer]:
        return self._hold(record)

    def read(self, request: ReadValue) -> Pending[str | None]:
        return self._hold(request)

    def progress(self, progress: NewProgress) -> None:
        self.said = progress

    def transact(self, record: Record, operation: Callable[..., str]) -> Pending[RecordAnswer]:
        raise AssertionError("programs have none")

    def suspending(self) -> None:
        """Programs start nothing that would have to be ended."""

    def _hold(self, request: Record | ReadValue) -> Pending[Any]:
        pending: Pending[Any] = Pending()
        self.asked.append((request, pending))
        return pending


class Ledger(Protocol):
    """What outlives activations; the machine keeps it."""

    model: Model
    executions: dict[tuple[str, str], int]
    seen: dict[str, dict[str, Any]]
    shared: list[str]


class Activation:
    """One call of a handler under a lease, which may be gone by now."""

    def __init__(
        self,
        ledger: Ledger,
        claimed: ClaimedRun,
        program: Program,
        then: Then,
        core: ActivationCore,
        recorder: HeldRecorder,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        assert claimed.lease is not None
        self.claimed = claimed
        self.lease: Lease = claimed.lease
        self.program = program
        self.then = then
        self.core = core
        self.recorder = recorder
        self._ledger = ledger
        self._loop = loop
        self._answers: list[Any] = []
        self._fate: Settlement | None = None
        self._task = loop.create_task(carry_out(AsyncContext(core), program, self))
        self.go_on()

    @property
    def run_id(self) -> RunId:
        return self.claimed.id

    @property
    def done(self) -> bool:
        return self._task.done()

    def go_on(self) -> None:
        """Let the handler run until it asks for something, or ends."""
        for _ in range(_TURNS):
            if self._task.done() or self.recorder.asked:
                return
            self._turn()
        raise AssertionError("a handler that waits for nothing")

    def drop(self) -> None:
        """End it as a process that dies: nothing is written any more."""
        self.recorder.asked.clear()
        self._task.cancel()
        for _ in range(_TURNS):
            if self._task.done():
                break
            self._turn()
        if not self._task.cancelled():
            self._task.exception()  # looked at, so that nobody complains

    def _turn(self) -> None:
        self._loop.call_soon(self._loop.stop)
        self._loop.run_forever()

    # -- what its handler does -------------------------------------------------------------------

    def execute(self, step: Step) -> Any:
        """The user's operation: never again once its checkpoint was stored, as of the claim."""
        assert step.name not in self.then.boundaries, f"{step.name} was executed again"
        counts, key = self._ledger.executions, (self.run_id, step.name)
        n = counts[key] = counts.get(key, 0) + 1
        if n <= step.fails:
            raise NotYetError(step.name)
        return f"{LARGE} {n}" if step.large else {"by": step.name, "n": n}

    def token(self, pick: int) -> str:
        return self._ledger.shared[pick]

    def answered(self, step: Step, answer: Any) -> None:
        """A step's answer is what is stored, and the same in each activation."""
        run = self._ledger.model.runs[self.run_id]
        assert answer == self._ledger.model.answer(run, step), step
        seen = self._ledger.seen.setdefault(self.run_id, {})
        assert seen.setdefault(step.name, answer) == answer, step
        self._answers.append(answer)

    # -- how it ends -----------------------------------------------------------------------------

    def settlement(self) -> Settlement:
        """What is to be written; decided once, so that a repeated settle offers the same."""
        if self._fate is None:
            self._fate = settlement_of(
                self._outcome(),
                attempt=self.claimed.attempt,
                hand_backs=self.claimed.hand_backs,
                retry=self.claimed.retry,
                draw=_draw,
            )
        return self._fate

    def _outcome(self) -> Outcome:
        """What a worker would make of its end: the suspension decides, whatever was raised."""
        error = self._task.exception()
        if self.core.suspension:
            for wait in self.core.suspension:
                assert (wait.kind, wait.name) not in self.then.deliveries, "it was settled already"
            return Suspended(self.core.suspension)
        if error is None:
            assert self._task.result() == self._answers
            return Succeeded(encode("the result", self._answers, cap=10**9))
        if isinstance(error, LeaseLostError):
            assert self._ledger.model.runs[self.run_id].token != self.lease.token
        elif not isinstance(error, NotYetError):
            raise error
        return Failed(Failure(type(error).__name__, str(error)))

    def entry(self, settlement: Settlement | None = None) -> Entry:
        return Entry(
            self.lease,
            settlement or self.settlement(),
            queue=QUEUE,
            inbox=self.claimed.inbox,
            progressed=self.core.new_boundaries > 0,
        )
