"""Workers on simulated time: real ones, over the real SQS lane, above a broker that owns the clock.

Nothing sleeps. Whoever would wait says until when: an intake that rests, a long poll, a handler
at work. When all wait, and nothing else is under way, the clock moves to the earliest of these
moments. So ten minutes take a second, however busy the machine is.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from lanes.sqs import SqsLane, Timing
from lanes.sqs.clients import Calls, Endpoint
from tests.runtime.faults import FaultyStore
from workhorse.app import Workhorse
from workhorse.client.publishing import Publisher
from workhorse.domain.runs import RunState
from workhorse.handlers.context import Context
from workhorse.maintenance import Maintenance
from workhorse.ports import LaneContext
from workhorse.runtime.base.options import WorkerOptions
from workhorse.runtime.process.worker import Worker
from workhorse.settings import Settings, load_settings
from workhorse.store.base.database import ManualClock, Store
from workhorse.telemetry import Counters, Metric

PATIENCE_S: Final = 30.0
"""In real time: how long a simulation that has come to a stop is waited for."""
VISIBILITY_MS: Final = 30_000.0
HANDLERS: Final = "handlers"
OPTIONS: Final = WorkerOptions(lease_ms=86_400_000, store_call_ms=86_400_000)
"""Statements take real time, in which simulated time may go on: none of them is said to hang."""


@dataclass(eq=False)
class Sleeper:
    """Somebody who waits for a moment of the simulated time."""

    until: float
    who: str
    event: threading.Event | None = None
    """Ends the waiting early."""
    woken: bool = False


class SimulatedTime:
    """A clock that moves when everybody waits for it.

    Args:
        clock: The store's, which is moved along.
    """

    def __init__(self, clock: ManualClock) -> None:
        self.changed = threading.Condition()
        self.now_ms = 0.0
        self._clock = clock
        self._sleepers: list[Sleeper] = []
        self._over = False

    @property
    def over(self) -> bool:
        """Whether nobody waits any more."""
        return self._over

    def sleeping(self, who: str) -> int:
        """Return how many wait under a name."""
        with self.changed:
            return sum(
                each.who == who and not (each.event and each.event.is_set())
                for each in self._sleepers
            )

    def sleep(self, ms: float, who: str, event: threading.Event | None = None) -> None:
        """Wait, until the event is set at the latest."""
        with self.changed:
            sleeper = Sleeper(self.now_ms + max(0.0, ms), who, event)
            self._sleepers.append(sleeper)
            while not self._over and not sleeper.woken:
                if event is not None and event.is_set():
                    self.wake(sleeper)
                    break
                self.changed.wait(None if event is None else 0.001)

    def add(self, ms: float, who: str) -> Sleeper:
        """Say that somebody will wait; `changed` is held."""
        sleeper = Sleeper(self.now_ms + ms, who)
        self._sleepers.append(sleeper)
        return sleeper

    def wait_until_woken(self, sleeper: Sleeper) -> None:
        """Wait; `changed` is held."""
        self.changed.wait_for(lambda: sleeper.woken or self._over)

    def wake(self, sleeper: Sleeper) -> None:
        """Wake somebody early; `changed` is held."""
        if not sleeper.woken:
            sleeper.woken = True
            self._sleepers.remove(sleeper)
            self.changed.notify_all()

    def move(self, to: float | None = None) -> None:
        """Move on to the earliest moment that somebody waits for, `to` at the latest."""
        with self.changed:
            moments = [each.until for each in self._sleepers] + ([] if to is None else [to])
            moment = max(min(moments), self.now_ms)
            self._clock.advance(round(moment) - round(self.now_ms))
            self.now_ms = moment
            due = sorted((e for e in self._sleepers if e.until <= moment), key=lambda e: e.until)
            working = [each for each in due if each.who == HANDLERS]
            for each in working or due[:1]:  # handlers together, all others one after the other
                self.wake(each)

    def end(self) -> None:
        """Let nobody wait any more."""
        with self.changed:
            self._over = True
            self.changed.notify_all()


class SimulatedPace:
    """A worker's clock."""

    def __init__(self, simulated: SimulatedTime, who: str) -> None:
        self._time = simulated
        self._who = who

    def now_ms(self) -> float:
        return self._time.now_ms

    def pause(self, until: threading.Event, ms: float) -> bool:
        if not threading.current_thread().name.startswith("workhorse-intake"):
            # The monitor and the heartbeat look around; time does not wait for them.
            return until.wait(min(max(0.0, ms), 20) / 1000)
        if not until.is_set() and ms > 0:
            self._time.sleep(ms, self._who, until)
        return until.is_set()


@dataclass(eq=False)
class _Stored:
    body: str
    visible_at: float
    message_id: str
    receives: int = 0
    receipt: str = ""


@dataclass
class _Queue:
    messages: list[_Stored] = field(default_factory=list)
    polls: deque[tuple[Sleeper, int, list[dict[str, Any]]]] = field(default_factory=deque)


class Broker:
    """SQS in memory, with a clock of its own; counts the calls.

    Args:
        disorder: Draws which of the visible messages are received; None takes the oldest.
    """

    def __init__(self, simulated: SimulatedTime, disorder: random.Random | None = None) -> None:
        self.time = simulated
        self.counts: Counter[str] = Counter()
        self.by: dict[str, Counter[str]] = {}
        self.empty = 0
        """How many receives brought nothing."""
        self.receives_at: list[float] = []
        """When receives were asked for."""
        self.faults: dict[str, Exception] = {}
        """What is raised instead of an answer, by operation."""
        self.receives: Counter[str] = Counter()
        """How many receives were asked for, by queue."""
        self.broken: set[str] = set()
        """Queues from which nothing can be received."""
        self._disorder = disorder
        self._queues: dict[str, _Queue] = {}
        self._numbers = itertools.count(1)

    @property
    def calls(self) -> int:
        """All calls so far."""
        return self.counts.total()

    @property
    def messages(self) -> int:
        """How many messages there are."""
        with self.time.changed:
            return sum(len(queue.messages) for queue in self._queues.values())

    def call(self, who: str, operation: str, parameters: dict[str, Any]) -> Any:
        """Answer a call as SQS does."""
        with self.time.changed:
            self.counts[operation] += 1
            self.by.setdefault(who, Counter())[operation] += 1
            if operation == "receive_message":
                self.receives_at.append(self.time.now_ms)
            if operation in self.faults:
                raise self.faults[operation]
            if operation == "get_queue_url":
                return {"QueueUrl": f"https://sqs.invalid/1/{parameters['QueueName']}"}
            if operation == "receive_message":
                name = parameters["QueueUrl"].rpartition("/")[2]
                self.receives[name] += 1
                if name in self.broken:
                    raise ConnectionError("it cannot be received from")
            queue = self._queues.setdefault(parameters["QueueUrl"], _Queue())
            answer = getattr(self, f"_{operation}")(who, queue, parameters)
            self._serve_polls(queue)
            return answer

    def _send_message_batch(self, _who: str, queue: _Queue, parameters: dict[str, Any]) -> Any:
        for entry in parameters["Entries"]:
            delay_ms = entry.get("DelaySeconds", 0) * 1000
            visible_at = self.time.now_ms + delay_ms
            queue.messages.append(_Stored(entry["MessageBody"], visible_at, f"m{self._number()}"))
        return {}

    def _receive_message(self, who: str, queue: _Queue, parameters: dict[str, Any]) -> Any:
        limit, wait_ms = parameters["MaxNumberOfMessages"], parameters["WaitTimeSeconds"] * 1000
        found = self._take(queue, limit)
        if not found and wait_ms:
            sleeper = self.time.add(self._patience(queue, wait_ms), who)
            queue.polls.append((sleeper, limit, found))
            self.time.wait_until_woken(sleeper)
            if not found and sleeper.woken:
                found += self._take(queue, limit)
            queue.polls = deque(each for each in queue.polls if each[0] is not sleeper)
        self.empty += not found
        return {"Messages": found} if found else {}

    def _delete_message_batch(self, _who: str, queue: _Queue, parameters: dict[str, Any]) -> Any:
        gone = {entry["ReceiptHandle"] for entry in parameters["Entries"]}
        queue.messages = [each for each in queue.messages if each.receipt not in gone]
        return {}

    def _change_message_visibility_batch(
        self, _who: str, queue: _Queue, parameters: dict[str, Any]
    ) -> Any:
        seconds = {e["ReceiptHandle"]: e["VisibilityTimeout"] for e in parameters["Entries"]}
        for each in queue.messages:
            if each.receipt in seconds:
                each.visible_at = self.time.now_ms + seconds[each.receipt] * 1000
        return {}

    def _get_queue_attributes(self, _who: str, queue: _Queue, _parameters: dict[str, Any]) -> Any:
        visible = sum(each.visible_at <= self.time.now_ms for each in queue.messages)
        return {"Attributes": {"ApproximateNumberOfMessages": str(visible)}}

    def _number(self) -> int:
        return next(self._numbers)

    def _patience(self, queue: _Queue, wait_ms: float) -> float:
        """Return when a poll has something to look at: its end, or a message that was hidden."""
        hidden = (each.visible_at - self.time.now_ms for each in queue.messages)
        return min([wait_ms, *(ms for ms in hidden if ms > 0)])

    def _serve_polls(self, queue: _Queue) -> None:
        while queue.polls:
            sleeper, limit, found = queue.polls[0]
            if not sleeper.woken:
                found += self._take(queue, limit)
                if not found:
                    return
                self.time.wake(sleeper)
            queue.polls.popleft()

    def _take(self, queue: _Queue, limit: int) -> list[dict[str, Any]]:
        visible = [each for each in queue.messages if each.visible_at <= self.time.now_ms]
        if self._disorder is not None:
            self._disorder.shuffle(visible)
        taken = visible[:limit]
        for each in taken:
            each.receives += 1
            each.receipt = f"r{self._number()}"
            each.visible_at = self.time.now_ms + VISIBILITY_MS
        return [
            {
                "MessageId": each.message_id,
                "ReceiptHandle": each.receipt,
                "Body": each.body,
                "Attributes": {"ApproximateReceiveCount": str(each.receives)},
            }
            for each in taken
        ]


class BrokerCalls(Calls):
    """The lane's seam, over the broker in memory."""

    def __init__(self, endpoint: Endpoint, timing: Timing, broker: Broker, who: str) -> None:
        super().__init__(endpoint, timing)
        self._broker = broker
        self._who = who

    async def prepare(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def _call(self, operation: str, *, long: bool = False, **parameters: Any) -> Any:
        return self._broker.call(self._who, operation, parameters)


class Member:
    """A process of the fleet: a worker, with its own lane and connections."""

    def __init__(self, fleet: Fleet, number: int, queues: Sequence[str], concurrency: int) -> None:
        self.who = f"w{number}"
        self._time = fleet.time
        self.queues = queues
        self.lane = fleet.lane(self.who)
        self.store = FaultyStore(fleet.store)
        self._heartbeat = FaultyStore(fleet.store, connections=1)
        self.worker = Worker(
            queues,
            concurrency,
            self.who,
            store=self.store,
            heartbeat_store=self._heartbeat,
            lane=self.lane,
            registry=fleet.app.registry,
            publish=Publisher(lambda: self.lane, fleet.counters).publish,
            counters=fleet.counters,
            options=OPTIONS,
            pace=SimulatedPace(fleet.time, self.who),
        )

    @property
    def statements(self) -> list[str]:
        """The store's operations so far, renewals included, by name."""
        return self.store.calls + self._heartbeat.calls

    @property
    def held(self) -> int:
        return self.worker._parts.holdings.tally().held

    @property
    def quiet(self) -> bool:
        """Whether it waits, but for its handlers."""
        slots = self.worker._parts.slots
        waiting = self._time.sleeping(self.who)
        if slots.free == 0:
            waiting += sum(slots._interested.values())
        return (
            waiting == len(self.queues)
            and self.worker._parts.engine.publisher.flush(0)
            and all(settler.flush(0) for settler in self.lane._settlers.values())
        )

    def stop(self) -> None:
        self.worker.stop(0)
        self.lane.close()
        self.store.close()


class Fleet:
    """Workers, a producer and maintenance, on one store and one broker.

    The task `work` works for as many milliseconds as its payload says; `nap` sleeps (it waits) for
    so long.
    """

    def __init__(
        self,
        database_url: str,
        clock: ManualClock,
        *,
        hint_stride: int = 1,
        disorder: random.Random | None = None,
        fifo: bool = False,
    ) -> None:
        self.store = Store.open(database_url, clock=clock)
        self.time = SimulatedTime(clock)
        self.broker = Broker(self.time, disorder)
        self.counters = Counters()
        self.settings: Settings = load_settings(
            lane="sqs", aws_region="us-east-1", hint_stride=hint_stride, sqs_fifo=fifo
        )
        self.members: list[Member] = []
        self._lanes: list[SqsLane] = []
        self.app = Workhorse(
            lane=self.lane("producer"),
            clock=clock,
            hint_stride=hint_stride,
            database_url=database_url,
        )
        self._working = 0

        @self.app.task("work")
        def work(milliseconds: int) -> None:
            self.time.sleep(milliseconds, HANDLERS)

        @self.app.task("nap")
        def nap(ctx: Context, milliseconds: int) -> None:
            ctx.sleep("nap", duration_ms=milliseconds)

        self.work, self.nap = work, nap

    def lane(self, who: str) -> SqsLane:
        """Return a lane of its own, over the broker."""
        context = LaneContext(self.settings, self.counters)

        def calls(endpoint: Endpoint, timing: Timing) -> Calls:
            return BrokerCalls(endpoint, timing, self.broker, who)

        timing = Timing(clock=lambda: self.time.now_ms / 1000)
        lane = SqsLane(context, timing=timing, calls=calls)
        self._lanes.append(lane)
        return lane

    def start(self, workers: int, queues: Sequence[str] = ("default",), slots: int = 10) -> None:
        """Start workers, one after the other, so that they are at different moments."""
        for number in range(workers):
            member = Member(self, number, queues, slots)
            self.members.append(member)
            member.worker.start()
            self._settle_down()

    def maintenance(self) -> Maintenance:
        """Return the store's maintenance."""
        return Maintenance(
            store=self.store,
            lane=self.lane("maintenance"),
            publish=Publisher(lambda: self._lanes[-1], self.counters).publish,
            counters=self.counters,
            hint_stride=self.settings.hint_stride,
        )

    def enqueue(self, milliseconds: Sequence[int]) -> None:
        """Enqueue runs together."""
        self.app.enqueue_many([self.work.prepare(each) for each in milliseconds])

    @property
    def finished(self) -> int:
        """How many runs have succeeded."""
        return self.counters.get(Metric.RUNS_SETTLED, label=RunState.SUCCEEDED)

    def run(self, ms: float) -> None:
        """Let time go by."""
        end = self.time.now_ms + ms
        while True:
            self._settle_down()
            if self.time.now_ms >= end:
                return
            self.time.move(end)

    def close(self) -> None:
        self.time.end()
        for member in self.members:
            member.stop()
        for lane in self._lanes:
            with suppress(Exception):
                lane.close()
        self.app.close()
        self.store.close()

    def _settle_down(self) -> None:
        """Wait until everybody waits."""
        ends_at = time.monotonic() + PATIENCE_S
        while not self._quiet():
            assert time.monotonic() < ends_at, "the simulation has come to a stop"
            time.sleep(0.0002)  # real time: for the threads that are at work

    def _quiet(self) -> bool:
        def at_rest() -> bool:
            held = sum(member.held for member in self.members)
            return held == self.time.sleeping(HANDLERS) and all(m.quiet for m in self.members)

        return at_rest() and at_rest()


__all__ = ["Broker", "Fleet", "Member", "RunState", "SimulatedTime"]
