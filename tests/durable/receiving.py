"""Wakeups in the state machine: a lane that drops, doubles, delays and reorders them.

What a commit says is to be woken is sent; what arrives is claimed, looked at where it was not
taken, recovered or promoted in place, and shown again or deleted, as a worker does it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar, Final

from hypothesis import strategies as st
from hypothesis.stateful import rule

from lanes.memory import Hostility, MemoryLane, MemoryReceiver
from tests.durable.activating import QUEUE
from tests.durable.model import Model, Run
from workhorse.domain.hints import Hint
from workhorse.domain.ids import RunId
from workhorse.domain.runs import RunState
from workhorse.domain.sightings import NEAR_MS, Delete, Fate, Sighting, fate_of
from workhorse.ports import Message, Outgoing, Wakeup
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.lifecycle.sighting import sight

VISIBILITY_MS: Final = 30_000


class Receiving:
    """The rules of wakeups; a part of the machine, which has the rest."""

    store: ClassVar[Store]
    clock: ClassVar[ManualClock]
    model: Model

    def _claim(self, ids: Sequence[RunId], *, scan: bool, lost: bool) -> set[RunId]:
        raise NotImplementedError

    def _maintain(self, which: str, ids: list[RunId] | None = None) -> None:
        raise NotImplementedError

    def _open_lane(self, seed: int) -> None:
        """A lane as bad as can be: a third of all messages has each of the mishaps."""
        mishaps = {"drop": 0.3, "double": 0.3, "delay": 0.3, "reorder": 0.3}
        self._lane = MemoryLane(
            clock=lambda: self.clock.now.timestamp() * 1_000,
            hostility=Hostility(**mishaps, seed=seed),  # type: ignore[arg-type]
            visibility_ms=VISIBILITY_MS,
        )
        self._receiver: MemoryReceiver = self._lane.receiver(QUEUE)

    def _send(self, hints: Iterable[Hint]) -> None:
        outgoing = [Outgoing(Wakeup(hint.run_id, hint.queue), hint.delay_ms) for hint in hints]
        assert self._lane.send(outgoing).failed == 0

    @rule(limit=st.integers(1, 4), dies=st.sampled_from([False, False, False, True]))
    def receive(self, limit: int, dies: bool) -> None:
        """Wakeups arrive, whatever their runs are by now; who got them may die at once."""
        messages = self._receiver.receive(limit, 0)
        if dies or not messages:
            return  # they come back
        named = {each.message_id: self._named(each) for each in messages}
        ids = list(dict.fromkeys(named.values()))
        taken = self._claim(ids, scan=False, lost=False)
        seen = self._sight([run_id for run_id in ids if run_id not in taken])
        overdue = [run_id for run_id, each in seen.items() if each.overdue]
        if overdue:
            self._maintain("recover", overdue)
            self._maintain("promote", overdue)
            taken |= self._claim(overdue, scan=False, lost=False)
            seen = self._sight([run_id for run_id in ids if run_id not in taken])
        self._receiver.settle(
            [(each, self._fate(self.model.runs[named[each.message_id]], seen)) for each in messages]
        )

    @staticmethod
    def _named(message: Message) -> RunId:
        assert isinstance(message.content, Wakeup)
        return message.content.run_id

    def _sight(self, ids: Sequence[RunId]) -> dict[RunId, Sighting]:
        seen: dict[RunId, Sighting] = self.store.run(sight, ids)
        expected = {run_id: self._sighting(self.model.runs[run_id]) for run_id in ids}
        for run_id, one in seen.items():
            like = expected[run_id]
            # SQLite reckons in fractions of a day: the last millisecond is not its strength.
            ours, theirs = like.due_in_ms, one.due_in_ms
            if ours is not None and theirs is not None and abs(ours - theirs) <= 1:
                expected[run_id] = replace(like, due_in_ms=theirs)
        assert seen == expected, (seen, expected)
        return seen

    def _sighting(self, run: Run) -> Sighting:
        """What is to be seen of a run."""
        due: dict[str, Any] = {}
        if run.due_at is not None:
            due = {"due_in_ms": (run.due_at - self.model.now) // timedelta(milliseconds=1)}
        return Sighting(
            state=RunState(run.state),
            queue=QUEUE,
            task=run.task,
            lease_expired=run.expires_at is not None and run.expires_at <= self.model.now,
            queue_paused=self.model.paused,
            turn=run.finished or self.model.has_turn(run),
            **due,
        )

    def _fate(self, run: Run, seen: dict[RunId, Sighting]) -> Fate:
        """A message goes only where its run was taken, or needs nobody for now."""
        if run.id not in seen:
            return Delete()
        fate, _ = fate_of(seen[run.id], queue=QUEUE, known_task=True, seen_before=False, room=True)
        goes = isinstance(fate, Delete)
        near = timedelta(milliseconds=NEAR_MS)
        soon = run.due_at is not None and run.due_at - self.model.now <= near
        match run.state:
            case "ready":
                assert goes == (self.model.paused or not self.model.has_turn(run))
            case "scheduled" | "waiting":
                assert goes != soon
            case "running":
                assert goes == (run.expires_at is not None and run.expires_at > self.model.now)
            case _:
                assert goes
        return fate
