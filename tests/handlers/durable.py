"""A run and its store in memory, and its handler's calls: one source of tests for both contexts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.handlers.runs import a_claimed_run
from workhorse.domain.boundaries import (
    Boundary,
    BoundaryKind,
    Delivered,
    DeliveryState,
    History,
    NewBoundary,
)
from workhorse.domain.recording import NewProgress, ReadValue, Record, RecordAnswer, Recorded
from workhorse.errors import LeaseLostError
from workhorse.handlers.context import ActivationCore, AsyncContext, Context
from workhorse.handlers.recording import Pending
from workhorse.handlers.signals import Suspended

START = datetime(2026, 1, 1, tzinfo=UTC)


class FakeRun:
    """What the store has of one run, and its recorder, which answers at once or when it is told.

    Instants are those of `now`, which stands in for the database's clock.
    """

    def __init__(self, *, session: str | None = None) -> None:
        self.claimed = a_claimed_run(session=session)
        self.now = START
        self.boundaries: dict[str, Boundary] = {}
        self.deliveries: dict[tuple[BoundaryKind, str], Delivered] = {}
        self.records: list[Record] = []
        self.reads: list[ReadValue] = []
        self.said: list[NewProgress] = []
        self.suspended = 0
        self.rolled_back = 0
        self.left_out: set[str] = set()
        self.hold = False
        self.held: list[Callable[[], object]] = []
        self.more = History()
        self.repeats = 1

    # -- what the store does ---------------------------------------------------------------------

    def activate(self) -> ActivationCore:
        """Claim the run: its history comes with it."""
        history = History(
            boundaries=tuple(
                replace(
                    each,
                    due=each.wake_at is not None and each.wake_at <= self.now,
                    value=None if each.name in self.left_out else each.value,
                    left_out=each.name in self.left_out,
                )
                for each in self.boundaries.values()
            ),
            deliveries=tuple(
                replace(each, value=None, left_out=True) if each.name in self.left_out else each
                for each in self.deliveries.values()
            ),
            count=max(len(self.boundaries), self.more.count),
            bytes=self.more.bytes,
            last_seq=max((each.seq for each in self.boundaries.values()), default=0),
        )
        claimed = replace(self.claimed, history=history)
        return ActivationCore(claimed, self, now=lambda: self.now)

    def settle(self, core: ActivationCore) -> None:
        """Write the waits that an activation ended at."""
        for wait in core.suspension:
            if wait.new is not None:
                self._insert(wait.new)

    def deliver(
        self,
        kind: BoundaryKind,
        name: str,
        value: object = None,
        state: DeliveryState = DeliveryState.VALUE,
    ) -> None:
        """Bring something from outside; the first stands."""
        delivered = Delivered(
            kind=kind,
            name=name,
            state=state,
            inbox=len(self.deliveries) + 1,
            value=None if state is DeliveryState.TIMED_OUT else json.dumps(value),
            at=self.now,
        )
        self.deliveries.setdefault((kind, name), delivered)

    def time_out(self, kind: BoundaryKind, name: str) -> None:
        """Record that a wait's time has come."""
        self.deliver(kind, name, state=DeliveryState.TIMED_OUT)

    def _insert(self, new: NewBoundary) -> RecordAnswer:
        stored = self.boundaries.get(new.name)
        if stored is not None:
            same = (stored.kind, stored.value, stored.fingerprint, stored.detail) == (
                new.kind, new.value, new.fingerprint, new.detail,
            )  # fmt: skip
            return RecordAnswer(Recorded.STORED if same else Recorded.EXISTS, stored)
        wake_at = new.wake_at
        if new.delay_ms is not None:
            wake_at = self.now + timedelta(milliseconds=new.delay_ms)
        answer = Boundary(
            name=new.name,
            kind=new.kind,
            seq=new.seq,
            value=new.value,
            fingerprint=new.fingerprint,
            detail=new.detail,
            wake_at=new.wake_at,
            absolute=new.wake_at is not None,
            due=new.wake_at is not None and new.wake_at <= self.now,
        )
        # A relative target is not read back: only the claim brings it.
        self.boundaries[new.name] = replace(answer, wake_at=wake_at)
        return RecordAnswer(Recorded.STORED, answer)

    # -- what the recorder does ------------------------------------------------------------------

    def record(self, record: Record) -> Pending[RecordAnswer]:
        self.records.append(record)
        pending: Pending[RecordAnswer] = Pending()

        def write() -> None:
            answer = self._insert(record.boundary)
            if answer.result is Recorded.STORED:
                for kind, name in record.closes:
                    self.deliver(kind, name, state=DeliveryState.CLOSED)
            pending.answer(answer)

        self._soon(write)
        return pending

    def read(self, request: ReadValue) -> Pending[str | None]:
        self.reads.append(request)
        pending: Pending[str | None] = Pending()

        def look() -> None:
            found: Boundary | Delivered | None = (
                self.boundaries.get(request.name)
                if request.kind is None
                else self.deliveries.get((request.kind, request.name))
            )
            pending.answer(None if found is None else found.value)

        self._soon(look)
        return pending

    def progress(self, progress: NewProgress) -> None:
        self.said.append(progress)

    def transact(self, record: Record, operation: Callable[..., str]) -> Pending[RecordAnswer]:
        self.records.append(record)
        pending: Pending[RecordAnswer] = Pending()

        def write() -> None:
            try:
                for _ in range(self.repeats):  # as after a deadlock
                    value = operation("connection")
            except Exception as error:  # noqa: BLE001 - handed on
                self.rolled_back += 1
                pending.fail(error)
            else:
                pending.answer(self._insert(replace(record.boundary, value=value)))

        self._soon(write)
        return pending

    def suspending(self) -> None:
        self.suspended += 1

    def _soon(self, act: Callable[[], object]) -> None:
        if self.hold:
            self.held.append(act)
        else:
            act()

    def release(self, *, backwards: bool = False) -> None:
        """Do and answer all that is held, in this order."""
        held, self.held = self.held, []
        for act in reversed(held) if backwards else held:
            act()

    def lose(self) -> None:
        """The lease is gone: what is held is answered so."""
        self.record = self._lost  # type: ignore[method-assign]

    def _lost(self, record: Record) -> Pending[RecordAnswer]:
        pending: Pending[RecordAnswer] = Pending()
        pending.fail(LeaseLostError("gone"))
        return pending


class Calls:
    """A context of either kind; its calls are plain ones."""

    def __init__(self, core: ActivationCore, runner: asyncio.Runner | None) -> None:
        self.core = core
        self._runner = runner
        self.context: Any = Context(core) if runner is None else AsyncContext(core)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.context, name)
        if self._runner is None or not callable(found):
            return found
        runner = self._runner
        return lambda *args, **kwargs: runner.run(found(*args, **kwargs))


class World:
    """A run, and a runner for async handlers where they are async."""

    def __init__(self, runner: asyncio.Runner | None) -> None:
        self.run = FakeRun()
        self.runner = runner

    def activate(self, **fields: Any) -> Calls:
        """Call the handler from the top, with what is stored by now."""
        if fields:
            self.run.claimed = replace(self.run.claimed, **fields)
        return Calls(self.run.activate(), self.runner)

    def suspends(self, ctx: Calls, call: Callable[[], object]) -> None:
        """Make a call that ends the activation at a wait, and store the wait."""
        with pytest.raises(Suspended):
            call()
        self.run.settle(ctx.core)
