"""A replay that answers from a stored history and from nothing else, and watches the way it takes.

Source: docs/testing.md; docs/design.md, section 7
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable, Collection
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import workhorse.handlers
from workhorse.client.importing import ImportedRun
from workhorse.domain.boundaries import Boundary, BoundaryKind
from workhorse.domain.recording import NewProgress, ReadValue, Record, RecordAnswer, Recorded
from workhorse.handlers.context import ActivationCore
from workhorse.handlers.recording import Pending
from workhorse.handlers.replay.flights import Flight, Steps
from workhorse.handlers.replay.state import Replay
from workhorse.waits import HumanWait, SignalWait, TimerWait

if TYPE_CHECKING:
    from sqlalchemy import Connection

_OUR_OWN: Final = (str(Path(workhorse.handlers.__file__).parent), __file__)
_ASYNCIO: Final = str(Path(asyncio.__file__).parent)
_SLACK: Final = timedelta(milliseconds=100)
"""What a stored duration may differ by: its two instants were read one after the other."""
_DECIDED_LATER: Final = frozenset({BoundaryKind.ANY, BoundaryKind.PATCH})
"""Kinds that a handler comes to before it is clear whether anything new begins."""


class Ended(BaseException):
    """Ends the handler that is checked: nothing is known of what comes now."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where the ways part: at which boundary, what stood there, what came, and from which line."""

    boundary: str | None
    expected: str
    came: str
    place: str | None


@dataclass(frozen=True, slots=True)
class _Mark:
    """How far the code here has come: `floor` before the call under way, `top` with it."""

    call: FrameType | None
    floor: int
    top: int


_mark: Final[ContextVar[_Mark | None]] = ContextVar("workhorse.rehearsal", default=None)


class Watch:
    """Notes which stored boundaries a handler comes to, from where, and what does not fit.

    Boundaries are to come in the order in which they were stored, but for what runs side by side:
    the tasks of a handler are compared each by itself, and with what was before they began.
    """

    def __init__(self, imported: ImportedRun, optional: Collection[str]) -> None:
        self._lock = threading.Lock()
        self._optional = frozenset(optional)
        self._durations_known = imported.durations_known
        self.stored: Final = {each.name: each for each in imported.claimed.history.boundaries}
        self.reached: dict[str, str | None] = {}
        """Names in the order in which they were asked for, with the line that did so first."""
        self.last: str | None = None
        self.diverged: Divergence | None = None
        self.new: tuple[str, str | None] | None = None
        """The first that the run has not come to yet: what it is, and its line."""

    def unreached(self) -> Boundary | None:
        """Return the first stored boundary that was not asked for."""
        left = [
            each
            for each in self.stored.values()
            if each.name not in self.reached and each.name not in self._optional
        ]
        return min(left, key=lambda each: each.seq, default=None)

    def instead_of(self, missing: Boundary) -> tuple[str, str | None] | None:
        """Return the first that was asked for although a boundary before it was missing."""
        for name, place in self.reached.items():
            stored = self.stored.get(name)
            if stored is not None and stored.seq > missing.seq:
                return described(stored), place
        return self.new

    def come_to(self, name: str) -> None:
        """Note that a boundary is asked for."""
        place, call = _caller()
        with self._lock:
            first = name not in self.reached
            self.reached.setdefault(name, place)
            self.last = name
        stored = self.stored.get(name)
        if stored is None or not first:
            return
        mark = _mark.get() or _Mark(None, 0, 0)
        floor = mark.floor if mark.call is call else mark.top
        _mark.set(_Mark(call, floor, max(mark.top, stored.seq)))
        if stored.seq < floor:
            instead = self.instead_of(stored)
            came, place = instead if instead is not None else ("another", place)
            self.diverge(name, f"{described(stored)} before it", came, place)

    def begin(self, what: str, place: str | None) -> NoReturn:
        """Note that something new would begin, and end there."""
        with self._lock:
            self.new = self.new or (what, place)
        raise Ended

    def diverge(self, name: str, expected: str, came: str, place: str | None) -> NoReturn:
        """Note that the handler goes another way, and end there."""
        with self._lock:
            self.diverged = self.diverged or Divergence(name, expected, came, place)
        raise Ended

    def compare_duration(self, name: str, wait: object) -> None:
        """Compare what a wait is told now with what it was told when it was stored."""
        stored = self.stored.get(name)
        if stored is None or not self._durations_known or stored.created_at is None:
            return
        match wait:
            case TimerWait(duration=told):
                pass
            case SignalWait(timeout=told) | HumanWait(timeout=told):
                pass
            case _:
                return
        if stored.kind is not wait.kind or stored.absolute:
            return  # another kind, or an instant: that is found where it is looked up
        was = None if stored.wake_at is None else stored.wake_at - stored.created_at
        differs = was != told if was is None or told is None else abs(was - told) > _SLACK
        if differs:
            what = described(stored)
            self.come_to(name)
            self.diverge(name, f"{what} {_for(was)}", f"{what} {_for(told)}", _caller()[0])


class Rehearsed(Replay):
    """Answers what is stored; what is not ends the handler before anything of it is done."""

    __slots__ = ("_watch",)

    def __init__(self, watch: Watch, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._watch = watch

    def touch(self, name: str) -> None:
        """Note that a boundary is asked for."""
        self._watch.come_to(name)
        super().touch(name)

    def meet(self, name: str, wait: object) -> None:
        """Be told what is waited for."""
        self._watch.compare_duration(name, wait)

    def enter(self, kind: BoundaryKind, name: str) -> Steps[Boundary | Flight]:
        """Return the boundary of that name; end where there is none."""
        entered = yield from super().enter(kind, name)
        if isinstance(entered, Flight) and kind not in _DECIDED_LATER:
            self.release(entered, None)
            self._watch.begin(f"a new {kind.value} '{name}'", _caller()[0])
        return entered

    def check_kind(self, stored: BoundaryKind, asked: BoundaryKind, name: str) -> None:
        """Compare the kind."""
        if stored is not asked:
            expected, came = f"{stored.value} '{name}'", f"{asked.value} '{name}'"
            self._watch.diverge(name, expected, came, _caller()[0])


class NobodyWrites:
    """Takes what a handler would have stored: answers what needs no store, and ends at the rest."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def record(self, record: Record) -> Pending[RecordAnswer]:
        """Answer a mark of changed code, which is made for this; end at anything else."""
        new = record.boundary
        if new.kind is BoundaryKind.ANY:
            for name in json.loads(new.detail or "[]"):
                if name in self._watch.stored:
                    self._watch.reached.setdefault(name, _caller()[0])
        if new.kind is not BoundaryKind.PATCH:
            self._watch.begin(f"a new {new.kind.value} '{new.name}'", _caller()[0])
        answer: Pending[RecordAnswer] = Pending()
        answer.answer(RecordAnswer(Recorded.STORED))
        return answer

    def read(self, request: ReadValue) -> Pending[str | None]:
        """Answer that there is none: all values came with the document."""
        answer: Pending[str | None] = Pending()
        answer.answer(None)
        return answer

    def progress(self, progress: NewProgress) -> None:
        """Do nothing."""

    def transact(
        self, record: Record, operation: Callable[[Connection], str]
    ) -> Pending[RecordAnswer]:
        """End there."""
        self._watch.begin(f"a new transaction '{record.boundary.name}'", _caller()[0])

    def suspending(self) -> None:
        """Do nothing: the handler is unwound by the wait itself."""


class RehearsedCore(ActivationCore):
    """An activation whose boundaries come from a document."""

    __slots__ = ()

    def __init__(self, imported: ImportedRun, watch: Watch) -> None:
        recorder = NobodyWrites(watch)
        super().__init__(imported.claimed, recorder)
        self._replay = Rehearsed(
            watch,
            imported.claimed,
            self.lease,
            recorder,
            stopping=self.stopping,
            cancelled=self.cancelled,
            now=_now,
        )


def described(stored: Boundary) -> str:
    """Return how a divergence calls a stored boundary."""
    return f"{stored.kind.value} '{stored.name}'"


def _caller() -> tuple[str | None, FrameType | None]:
    """Return `file:line` of the call of the context that is under way, and the call's frame."""
    frame: FrameType | None = sys._getframe(1)
    call: FrameType | None = None
    while frame is not None and frame.f_code.co_filename.startswith(_OUR_OWN):
        call, frame = frame, frame.f_back
    if frame is None or frame.f_code.co_filename.startswith(_ASYNCIO):
        return None, call  # `create_task(ctx.sleep(...))`: nobody's line is on the stack
    return f"{frame.f_code.co_filename}:{frame.f_lineno}", call


def _for(told: timedelta | None) -> str:
    return "without a time-out" if told is None else f"of {told}"


def _now() -> datetime:
    return datetime.now(UTC)
