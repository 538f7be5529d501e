"""A run in this worker: from the claim's answer until its settle has committed.

Many threads meet here: the one that calls the handler, the heartbeat, the monitor, the writer and
whoever stops the worker. What they race for is who says first how the activation ended.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

from workhorse.domain.boundaries import Wait
from workhorse.domain.outcomes import Outcome, Settlement
from workhorse.domain.runs import ClaimedRun, Lease, Reason, RunState
from workhorse.errors import LeaseRequiredError
from workhorse.handlers.context import ActivationCore
from workhorse.handlers.tasks import Task

if TYPE_CHECKING:
    from workhorse.runtime.activations.recorder import Recorders
    from workhorse.runtime.execution.executors import Executor


class Activation:
    """One call of a handler under one lease, as the worker sees it.

    Args:
        claimed: The run; it carries a lease.
        task: Its task.
        executor: What calls the task's handler.
        sent_ms: When the claim was sent: the lease is younger than that, by the worker's clock.
        variables: The context variables that the handler sees; a copy of its own.
        takes_slot: Whether it takes one of the worker's slots.
        recorders: Makes what its context writes through.

    Raises:
        LeaseRequiredError: The run carries no lease.
    """

    __slots__ = (
        "__weakref__",
        "_done",
        "_let_go",
        "_lock",
        "_returned",
        "_settled",
        "_variables",
        "active_ms",
        "ask_ms",
        "children",
        "claimed",
        "core",
        "executor",
        "lapsed",
        "lease",
        "limit",
        "limit_kind",
        "limit_ms",
        "lost",
        "main",
        "outcome",
        "recorder",
        "renewed_ms",
        "settlement",
        "started_ms",
        "swallowed",
        "takes_slot",
        "task",
        "uprooted",
        "waits",
        "written",
    )  # fmt: skip

    def __init__(
        self,
        claimed: ClaimedRun,
        task: Task[Any, Any],
        *,
        executor: Executor,
        sent_ms: float,
        variables: contextvars.Context,
        takes_slot: bool,
        recorders: Recorders,
    ) -> None:
        if claimed.lease is None:
            raise LeaseRequiredError(f"run {claimed.id} carries no lease; it was not touched")
        self.claimed: Final = claimed
        self.task: Final = task
        self.executor: Final = executor
        self.lease: Final[Lease] = claimed.lease
        self.recorder: Final = recorders.make(self, claimed.lease)
        self.core: Final = ActivationCore(claimed, self.recorder, now=recorders.now)
        self._variables: contextvars.Context | None = variables
        self.takes_slot: Final = takes_slot

        # for the heartbeat
        self.renewed_ms = sent_ms
        """When the request that last succeeded was sent."""
        self.ask_ms = 0.0
        """When the lease is to be renewed next."""
        self.lapsed = False
        self.lost = False
        """The token is gone: nothing is sent any more."""

        # for the handler
        self.started_ms: float | None = None
        self.main: asyncio.Task[None] | None = None
        """The task that an async handler runs in, from its start to its end."""
        self.children: weakref.WeakSet[asyncio.Task[Any]] | None = None
        self.limit_ms = float("inf")
        """When the time of the attempt, or of the run, is over; which one, `limit_kind` says."""
        self.limit_kind = Reason.TIMEOUT
        self.limit: Reason | None = None
        """The time that did run out while the handler was running."""
        self.uprooted = False
        """Whether the handler's asyncio tasks have been cancelled."""
        self.waits: tuple[Wait, ...] = ()
        """Where it suspended; what its cleaning up comes to does not count."""
        self.swallowed = False
        """Whether the handler went on after it had come to a wait."""

        # for the writer
        self.outcome: Outcome | None = None
        self.active_ms = 0
        self.settlement: Settlement | None = None
        self.written: RunState | None = None
        self._done: threading.Event | None = None

        self._lock = threading.Lock()
        self._settled = False
        self._returned = False
        self._let_go = False

    def __repr__(self) -> str:
        return f"<Activation of run {self.claimed.id}, task {self.claimed.task!r}>"

    @property
    def settled(self) -> bool:
        """Whether what was to be written is written, or can never be."""
        return self._settled

    @property
    def progressed(self) -> bool:
        """Whether it has stored a boundary: from there hand-backs count anew."""
        return self.core.new_boundaries > 0 or self.recorder.stored > 0

    @property
    def returned(self) -> bool:
        """Whether the handler has returned, or will never be called."""
        return self._returned

    @property
    def stuck(self) -> bool:
        """Whether the handler still runs although the run is settled."""
        return self._settled and not self._returned

    def take_variables(self) -> contextvars.Context:
        """Hand over the handler's context variables, once, to who calls it.

        They tell of the activation (`eventloop.running`). If it kept them, the two would hold each
        other, and every run would be garbage that waits for Python's collector.
        """
        variables, self._variables = self._variables, None
        if variables is None:
            raise RuntimeError(f"{self!r}: its handler was called before")
        return variables

    def begin(self, now_ms: float) -> bool:
        """Note that the handler is called now; False when it is too late for that."""
        with self._lock:
            if self.outcome is not None:
                return False
            self.started_ms = now_ms
            return True

    def conclude(self, outcome: Outcome, now_ms: float) -> bool:
        """Say how the activation ended; the first one to say so stands, and is answered True."""
        with self._lock:
            if self.outcome is not None:
                return False
            self.outcome = outcome
            started_ms = self.started_ms
            if started_ms is not None and now_ms > started_ms:
                self.active_ms = round(now_ms - started_ms)
            return True

    def note_returned(self) -> bool:
        """Note that the handler has returned; answer whether the slot is free now."""
        with self._lock:
            first, self._returned = not self._returned, True
            return first and self._settled

    def note_settled(self, written: RunState | None) -> bool:
        """Note what was written, None for nothing; answer whether the slot is free now."""
        with self._lock:
            first, self._settled = not self._settled, True
            if first:
                self.written = written
            if self._done is not None:
                self._done.set()
            return first and self._returned

    def let_go(self) -> None:
        """Let nobody wait any more: the worker has ended, and the store has not answered."""
        with self._lock:
            self._let_go = True
            if self._done is not None:
                self._done.set()

    def waited_for(self) -> threading.Event:
        """Return an event that is set once the run is settled, or let go of."""
        with self._lock:
            self._done = threading.Event()
            if self._settled or self._let_go:
                self._done.set()
            return self._done

    def cut_off(self, error: BaseException | None = None) -> None:
        """Fail what the handler waits for and what it asks for from here on: the lease is gone."""
        self.core.fail_pending(self.recorder.fail(error))

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Remember an asyncio task that the handler started; in the event loop's thread."""
        if self.children is None:
            self.children = weakref.WeakSet()
        self.children.add(task)
