"""A handler that is running in a process: what it asks of its worker, and how it ends.

What its context writes goes through the activation's own recorder, in the order in which it comes,
as if the handler ran here. All of it is for the thread of the executor's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal

from workhorse.domain.outcomes import Failed, HandedBack, Outcome, Succeeded
from workhorse.domain.outcomes import Suspended as SuspendedAt
from workhorse.domain.recording import NewProgress, ReadValue, Record, RecordAnswer
from workhorse.domain.runs import Reason
from workhorse.handlers.places import Place
from workhorse.handlers.recording import Pending
from workhorse.handlers.signals import StopReason
from workhorse.runtime.activations import verdicts
from workhorse.runtime.activations.activation import Activation
from workhorse.runtime.execution.processes.children import Child
from workhorse.runtime.execution.processes.deaths import died
from workhorse.runtime.execution.processes.frames import (
    Answered,
    Asked,
    Begin,
    Begun,
    Ended,
    Progressed,
    Read,
    Refused,
    Suspending,
    Told,
)


class Call:
    """One call of a handler in a process.

    Args:
        post: Has something called in the executor's thread.
        cancel_wait_s: How long a handler that is to end may take to do so.
    """

    def __init__(
        self,
        activation: Activation,
        child: Child,
        *,
        post: Callable[..., None],
        cancel_wait_s: float,
    ) -> None:
        self.activation: Final = activation
        self.child: Final = child
        self._post = post
        self._cancel_wait_s = cancel_wait_s
        self._timer: asyncio.TimerHandle | None = None
        self._begun = False
        self._over = False

    def begin(self, place: Place, now: datetime) -> None:
        """Have the handler called."""
        claimed = self.activation.claimed
        self.child.tell(
            Begin(
                place=place,
                now=now,
                run_id=claimed.id,
                task=claimed.task,
                queue=claimed.queue,
                payload=claimed.payload,
                attempt=claimed.attempt,
                fence=self.activation.lease.fence,
                retry=claimed.retry,
                session=claimed.session,
                tags=claimed.tags,
                key=claimed.key,
                created_at=claimed.created_at,
                started_at=claimed.started_at,
                traceparent=claimed.traceparent,
                history=claimed.history,
            )
        )

    def tell(self, signal: Literal["stopping", "cancelled"], reason: StopReason) -> None:
        """Set a signal of the handler's context."""
        self.child.tell(Told(signal=signal, reason=reason))

    def take(self, message: Any) -> Outcome | None:
        """Do what the handler asks for; answer its outcome when it has ended."""
        recorder, lease = self.activation.recorder, self.activation.lease
        match message:
            case Begun():
                self._begun = True
            case Asked(number=number):
                record = Record(
                    lease=lease,
                    boundary=message.boundary,
                    token=message.token,
                    child=message.child,
                    closes=message.closes,
                    cancels=message.cancels,
                )
                self._answer_later(number, recorder.record(record))
            case Read(number=number, name=name, of=kind):
                request = ReadValue(lease.run_id, name, kind)
                self._answer_later(number, recorder.read(request))
            case Progressed(value=value):
                recorder.progress(NewProgress(lease, value))
            case Suspending(waits=waits):
                self.activation.waits = waits
                self.kill_later()
            case Ended():
                return self._outcome(message)
        return None

    def kill_later(self) -> None:
        """End the process unless the handler has ended when its time to do so is over."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._cancel_wait_s, self.child.kill)

    def end(self) -> None:
        """Note that the handler has ended, or its process has."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()

    def outcome_of_death(self, code: int) -> Outcome:
        """Return the outcome of a handler whose process has ended under it."""
        activation = self.activation
        decided = verdicts.of_state(activation)
        if decided is not None:
            return decided
        if self.child.killed:
            return verdicts.of_stop(activation.core.cancelled.reason or StopReason.SHUTDOWN)
        if not self._begun:
            return HandedBack()  # it died of what was before: the handler was not called
        return Failed(died(code, self.child.fault), Reason.LOST)

    # -- its own ---------------------------------------------------------------------------------

    def _outcome(self, ended: Ended) -> Outcome:
        """Return the outcome that `verdicts` would find for a handler which has ended so here."""
        activation = self.activation
        activation.waits = ended.waits
        decided = verdicts.of_state(activation)
        if decided is not None:
            activation.swallowed = isinstance(decided, SuspendedAt) and not ended.passed_on
            return decided
        if ended.failure is None:
            refused = ended.stopped or activation.core.cut_short
            cut = verdicts.of_cut(activation) if refused else None
            return cut or Succeeded(ended.result or "null")
        stop = activation.core.cancelled.reason or activation.core.stopping.reason
        if stop is not None and ended.stopped:
            return verdicts.of_stop(stop)
        return Failed(ended.failure, ended.reason)

    def _answer_later(self, number: int, pending: Pending[Any]) -> None:
        # The answer is given in whatever thread has it.
        pending.on_done(partial(self._post, self._answer, number, pending))

    def _answer(self, number: int, pending: Pending[Any]) -> None:
        if self._over:
            return  # nobody waits any more
        try:
            answer = pending.result()
        except BaseException as error:  # noqa: BLE001 - it is the handler's, and is raised there
            name = type(error).__name__
            self.child.tell(Refused(number=number, error=name, message=str(error)))
            return
        if isinstance(answer, RecordAnswer):
            self.child.tell(Answered(number=number, answer=answer))
        else:
            self.child.tell(Answered(number=number, value=answer))
