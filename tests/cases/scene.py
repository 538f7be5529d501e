"""A rig whose handlers are of one kind, and whose wakeups travel in one way."""

from __future__ import annotations

import asyncio
import copy
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lanes import wire
from lanes.memory import Hostility, MemoryLane, MemoryReceiver
from lanes.polling import PollingLane
from tests.runtime.rig import Rig
from tests.support.eventually import eventually
from workhorse.domain.ids import RunId
from workhorse.domain.runs import RunState, RunView
from workhorse.domain.sightings import Fate
from workhorse.handlers.context import AsyncContext, Context
from workhorse.ports import Lane, Message, Wakeup
from workhorse.runtime.process.worker import Worker
from workhorse.store.base.database import ManualClock
from workhorse.telemetry import Metric

VISIBILITY_MS: Final = 5_000
HOSTILITY: Final = Hostility(drop=0.4, double=0.6, delay=0.5, reorder=0.5, seed=20261130)


@dataclass(frozen=True)
class Setting:
    """A kind of handler, and how wakeups travel."""

    kind: str
    wakeups: str

    def __str__(self) -> str:
        return f"{self.kind}-{self.wakeups}"


SETTINGS: Final = (
    Setting("plain", "on"),
    Setting("async", "off"),
    Setting("plain", "hostile"),
    Setting("async", "hostile"),
)


class HostileLane(MemoryLane):
    """Drops, doubles, delays and reorders what is sent, and half of what is settled is not."""

    def receiver(self, queue: str) -> MemoryReceiver:
        return _Forgetful(self, queue)


class _Forgetful(MemoryReceiver):
    """Its messages come back, since the broker did not hear that they are done with."""

    def __init__(self, lane: MemoryLane, queue: str) -> None:
        super().__init__(lane, queue)
        self._draw = random.Random(HOSTILITY.seed)

    def settle(self, fates: Sequence[tuple[Message, Fate]]) -> None:
        super().settle([each for each in fates if self._draw.random() < 0.5])


class Scene:
    """A rig in a setting: the store's time is `clock`'s, the broker's is moved with it."""

    def __init__(self, rig: Rig, setting: Setting, clock: ManualClock) -> None:
        self.rig, self.setting, self.clock = rig, setting, clock
        self.starts: Counter[RunId] = Counter()
        """How often the handler of each run was called."""
        self._now_ms = 0.0
        self._lock = threading.Lock()
        rig.lane = self._lane()

    def _lane(self) -> Lane:
        match self.setting.wakeups:
            case "on":
                return MemoryLane(clock=lambda: self._now_ms, visibility_ms=VISIBILITY_MS)
            case "hostile":
                return HostileLane(
                    clock=lambda: self._now_ms, visibility_ms=VISIBILITY_MS, hostility=HOSTILITY
                )
            case _:
                return PollingLane()

    def task(
        self, name: str, body: Callable[[Any], Any] = lambda _ctx: None, **arguments: Any
    ) -> None:
        """Register a handler of this setting's kind, whose starts are counted."""

        def counted(ctx: Any) -> Any:
            with self._lock:
                self.starts[ctx.run.id] += 1
            return body(ctx)

        if self.setting.kind == "plain":

            @self.rig.task(name, **arguments)
            def plain(ctx: Context) -> Any:
                return counted(ctx)
        else:

            @self.rig.task(name, **arguments)
            async def async_(ctx: AsyncContext) -> Any:
                return await asyncio.to_thread(counted, ctx)

    def sleeper(self, name: str, duration_ms: int, **arguments: Any) -> None:
        """Register a handler that sleeps, which is a wait, and says so then."""
        if self.setting.kind == "plain":

            @self.rig.task(name, **arguments)
            def plain(ctx: Context) -> str:
                ctx.sleep("nap", duration_ms=duration_ms)
                return "awake"
        else:

            @self.rig.task(name, **arguments)
            async def async_(ctx: AsyncContext) -> str:
                await ctx.sleep("nap", duration_ms=duration_ms)
                return "awake"

    def successor(self) -> Scene:
        """Return a scene on the same store and lane for workers that know other tasks."""
        made = copy.copy(self)
        made.rig = Rig(self.rig.store)
        made.rig.workers = self.rig.workers  # they end with these
        made.rig.lane = self.rig.lane
        return made

    def worker(self, concurrency: int = 1, **options: Any) -> Worker:
        """Start a worker that looks for itself each tenth of a second, where it is told little."""
        net = {"scan_ms": 100, "scan_jitter_ms": 0} if self.setting.wakeups == "hostile" else {}
        worker = self.rig.worker(concurrency=concurrency, **{**net, **options})
        worker.start()
        return worker

    def pass_time(self, ms: int) -> None:
        """Move the clocks of the store and of the broker."""
        self.clock.advance(ms)
        self._now_ms += ms

    def show_again(self, *run_ids: RunId) -> None:
        """Have the broker show what it has shown, and what it has been told in other ways.

        The wakeups of these runs lie in the queue once more: they were doubled, or sent again.
        """
        self._now_ms += VISIBILITY_MS + 1
        lane = self.rig.lane
        if isinstance(lane, MemoryLane):
            for run_id in run_ids:  # behind the back of the hostility: these do arrive
                lane.put_body("default", wire.encode(Wakeup(run_id, "default")))

    def noted(self, note: str) -> int:
        """How many messages met a fate."""
        return self.rig.count(Metric.MESSAGES, note)

    @property
    def has_messages(self) -> bool:
        return self.rig.lane.carries_messages

    def ended(self, *run_ids: RunId, within: float = 30) -> list[RunView]:
        """Wait until runs have succeeded; return them."""
        views = [self.rig.view(run_id) for run_id in run_ids]

        def all_ended() -> bool:
            views[:] = [self.rig.view(run_id) for run_id in run_ids]
            return all(view.state is RunState.SUCCEEDED for view in views)

        eventually(all_ended, within=within, every=0.02)
        return views
