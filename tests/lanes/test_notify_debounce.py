"""When a bell is rung, and when two rings are heard as one; clocks that the test holds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing

import pytest

from lanes.bells import Belfry
from lanes.notify import NotifyLane, Timing
from lanes.notify.debounce import Debounce
from tests.support.eventually import eventually
from workhorse.domain.ids import new_run_id
from workhorse.errors import StoreUnavailableError
from workhorse.ports import Outgoing, SendReport, Wakeup
from workhorse.telemetry import Counters, Metric


class Clock:
    """Milliseconds, which the test moves."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Bells:
    """Bells without a database: what is rung on one line is heard on all."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.rung: list[str] = []
        self.away: Exception | None = None
        self.breaks: Exception | None = None
        """What the next ring raises."""
        self.opened = 0

    def ring(self, queues: Collection[str]) -> None:
        self.rung += queues
        for line in self.lines:
            line.came(queues)

    def open_line(self) -> Line:
        self.opened += 1
        if self.away is not None:
            raise self.away
        line = Line(self)
        self.lines.append(line)
        return line


class Line:
    def __init__(self, bells: Bells) -> None:
        self._bells = bells
        self._changed = threading.Condition()
        self._heard: set[str] = set()
        self._interrupted = False
        self.queues: frozenset[str] = frozenset()
        self.closed = False

    def hear(self, queues: Collection[str], wait_ms: float) -> Collection[str]:
        with self._changed:
            self._heard |= set(queues) - self.queues
            self.queues = frozenset(queues)
            self._changed.wait_for(
                lambda: self._heard or self._interrupted or self._bells.away, wait_ms / 1000
            )
            if self._bells.away is not None:
                raise self._bells.away
            heard, self._heard, self._interrupted = self._heard & self.queues, set(), False
            return heard

    def ring(self, queues: Collection[str]) -> None:
        error, self._bells.breaks = self._bells.breaks, None
        if error is not None:
            raise error
        self._bells.ring(queues)

    def came(self, queues: Collection[str]) -> None:
        with self._changed:
            self._heard |= self.queues.intersection(queues)
            self._changed.notify_all()

    def interrupt(self) -> None:
        with self._changed:
            self._interrupted = True
            self._changed.notify_all()

    def close(self) -> None:
        self.closed = True
        if self in self._bells.lines:
            self._bells.lines.remove(self)


def outgoing(*queues: str, delay_ms: int = 0) -> list[Outgoing]:
    return [Outgoing(Wakeup(new_run_id(), queue), delay_ms) for queue in queues]


OpenLane = Callable[..., NotifyLane]


@pytest.fixture
def bells() -> Bells:
    return Bells()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def counters() -> Counters:
    return Counters()


@pytest.fixture
def open_lane(bells: Bells, clock: Clock, counters: Counters) -> Iterator[OpenLane]:
    lanes: list[NotifyLane] = []

    def opened(**timing: float) -> NotifyLane:
        lane = NotifyLane(bells, counters, timing=Timing(**timing), clock=clock)
        lanes.append(lane)
        return lane

    yield opened
    for lane in lanes:
        lane.close()


# -- the decision --------------------------------------------------------------------------------


def test_after_a_rest_a_ring_is_due_at_once() -> None:
    debounce = Debounce(10)
    seen = [debounce.take("q", 0), debounce.take("q", 9), debounce.take("q", 10)]
    assert seen == [True, False, True]


def test_a_wish_within_the_gap_is_due_once_at_its_end() -> None:
    debounce = Debounce(10)
    assert debounce.take("q", 0)
    assert [debounce.wish("q", now) for now in (1, 2, 3)] == [False, False, False]
    assert debounce.due_in(4) == 6
    assert [debounce.due(9), debounce.due(10), debounce.due(11)] == [[], ["q"], []]
    assert debounce.due_in(11) is None


def test_queues_do_not_wait_for_each_other() -> None:
    debounce = Debounce(10)
    assert debounce.take("a", 0)
    assert debounce.take("b", 5)
    assert not debounce.wish("a", 6)
    assert not debounce.wish("b", 6)
    assert [debounce.due_in(6), debounce.due(12), debounce.due_in(12)] == [4, ["a"], 3]


def test_what_is_due_anyway_is_not_put_off_by_a_transaction() -> None:
    """It may take its time to commit, and may be rolled back."""
    debounce = Debounce(10)
    debounce.take("q", 0)
    debounce.wish("q", 1)
    assert not debounce.take("q", 20)
    assert debounce.due(20) == ["q"]


def test_what_could_not_be_rung_is_due_again() -> None:
    debounce = Debounce(10)
    debounce.wish("q", 0)
    debounce.again(debounce.due(0))
    assert debounce.due(0) == ["q"]


def test_a_storm_of_enqueues_rings_once_a_gap() -> None:
    """One inside a transaction, and then one in each gap; the last one follows the last enqueue."""
    debounce, rings = Debounce(10), []
    for now in range(1_000):
        rings += [now] * len(debounce.due(now))
        if debounce.take("q", now):
            rings.append(now)
        else:
            debounce.wish("q", now)
    assert len(rings) == 100
    assert debounce.due_in(999) == 1


# -- the lane ------------------------------------------------------------------------------------


def test_sends_within_a_gap_are_one_ring_at_its_end(
    open_lane: OpenLane, bells: Bells, clock: Clock, counters: Counters
) -> None:
    lane = open_lane()
    assert lane.announce(["q"]) == {"q"}

    for _ in range(100):
        assert lane.announce(["q"]) == frozenset()
        assert lane.send(outgoing("q")) == SendReport(sent=1)
    # Another queue is quiet: once its ring is out, the lane's thread has looked at this one too.
    assert lane.send(outgoing("other")) == SendReport(sent=1)
    assert bells.rung == ["other"]
    clock.now += 10

    eventually(lambda: bells.rung == ["other", "q"])
    clock.now += 1_000
    assert lane.send(outgoing("last")) == SendReport(sent=1)
    assert bells.rung == ["other", "q", "last"]
    assert counters.snapshot() == {"rings[inside]": 1, "rings[sent]": 3}


def test_a_send_in_quiet_has_been_rung_when_it_returns(open_lane: OpenLane, bells: Bells) -> None:
    lane = open_lane()
    assert lane.send(outgoing("q", "p", "q")) == SendReport(sent=3)
    assert bells.rung == ["p", "q"]


def test_a_wakeup_for_later_rings_nothing(open_lane: OpenLane, bells: Bells) -> None:
    lane = open_lane()
    assert lane.send(outgoing("q", delay_ms=1)) == SendReport(sent=1)
    assert bells.opened == 0


def test_one_line_serves_all_queues_and_is_opened_when_it_is_needed(
    open_lane: OpenLane, bells: Bells
) -> None:
    lane = open_lane()
    lane.announce(["a"])
    assert bells.opened == 0
    receivers = [lane.receiver(queue) for queue in ("a", "b", "b")]
    eventually(lambda: [line.queues for line in bells.lines] == [{"a", "b"}])
    lane.send(outgoing("c"))
    receivers[1].close()
    receivers[0].close()
    eventually(lambda: bells.lines[0].queues == {"b"})
    assert bells.opened == 1


def test_a_line_that_nobody_needs_is_let_go_of(open_lane: OpenLane, bells: Bells) -> None:
    """A producer's, after a while; the next ring opens another."""
    lane = open_lane(keep_s=0.0)
    receiver = lane.receiver("q")
    eventually(lambda: len(bells.lines) == 1)
    receiver.close()
    eventually(lambda: not bells.lines)
    lane.send(outgoing("q"))
    assert bells.opened == 2


def test_a_ring_that_failed_is_rung_when_the_line_is_back(
    open_lane: OpenLane, bells: Bells, clock: Clock
) -> None:
    lane = open_lane(first_rest_s=0.01, longest_rest_s=0.05)
    bells.away = StoreUnavailableError("the store is away")
    first = lane.send(outgoing("q"))
    second = lane.send(outgoing("q"))
    assert first == second == SendReport(failed=1, error="the store is away")

    bells.away = None

    eventually(lambda: bells.rung == ["q"])
    eventually(lambda: lane._keeper._trouble is None)
    clock.now += 10
    assert lane.send(outgoing("q")) == SendReport(sent=1)


def test_a_line_that_breaks_in_a_ring_is_rung_on_again(
    open_lane: OpenLane, bells: Bells, clock: Clock
) -> None:
    """Whether the bell was rung before it broke, nobody knows; twice does no harm."""
    lane = open_lane(first_rest_s=0.01, longest_rest_s=0.05)
    lane.send(outgoing("q"))
    clock.now += 10
    bells.breaks = StoreUnavailableError("it broke")
    assert lane.send(outgoing("q")) == SendReport(failed=1, error="it broke")
    eventually(lambda: bells.rung == ["q", "q"])
    assert bells.opened == 2


def test_a_line_that_breaks_scans_all_queues_when_it_is_back(
    open_lane: OpenLane, bells: Bells, counters: Counters
) -> None:
    """What was rung meanwhile went by unheard."""
    lane = open_lane(first_rest_s=0.01, longest_rest_s=0.05)
    receivers = [lane.receiver(queue) for queue in ("a", "b")]
    for receiver in receivers:
        receiver.receive(1, 20_000)
    (line,) = bells.lines
    bells.away = StoreUnavailableError("the store is away")
    line.came([])
    eventually(lambda: counters.get(Metric.RECEIVE_ERRORS) >= 3)
    before = counters.get(Metric.RINGS, label="heard")
    bells.away = None

    began = time.monotonic()
    for receiver in receivers:
        assert receiver.receive(1, 60_000) == []

    assert time.monotonic() - began < 50
    assert counters.get(Metric.RINGS, label="heard") == before + 2


def test_rests_between_lines_grow_to_a_bound(open_lane: OpenLane, bells: Bells) -> None:
    """A database that refuses is not asked in a tight circle."""
    lane = open_lane(first_rest_s=0.001, longest_rest_s=0.016)
    bells.away = StoreUnavailableError("the store is away")
    lane.send(outgoing("q"))
    rests = []

    def grown() -> bool:
        rests.append(lane._keeper._rest_s)
        return bells.opened >= 7

    eventually(grown, every=0.0005)
    assert max(rests) == 0.016
    assert rests == sorted(rests)


def test_whatever_a_line_raises_ends_no_thread(open_lane: OpenLane, bells: Bells) -> None:
    lane = open_lane(first_rest_s=0.01, longest_rest_s=0.05)
    bells.away = RuntimeError("a secret of the driver's")
    report = lane.send(outgoing("q"))
    assert report == SendReport(failed=1, error="RuntimeError")
    bells.away = None
    eventually(lambda: bells.rung == ["q"])


def test_closing_rings_what_is_still_to_be_rung(open_lane: OpenLane, bells: Bells) -> None:
    """A script that enqueues two runs and ends does not leave the second one to the next scan."""
    lane = open_lane()
    lane.announce(["q"])
    assert lane.send(outgoing("q")) == SendReport(sent=1)
    lane.close()
    assert bells.rung == ["q"]
    assert bells.lines == []
    assert lane.send(outgoing("q")).failed == 1


def test_closing_at_once_rings_too(open_lane: OpenLane, bells: Bells) -> None:
    """Before the lane's thread has come as far as to look."""
    keeper = open_lane()._keeper
    keeper._debounce.wish("q", keeper._now_ms())
    keeper._closed = True
    keeper._serve()
    assert bells.rung == ["q"]


def test_closing_does_not_wait_for_a_database_that_is_away(
    open_lane: OpenLane, bells: Bells
) -> None:
    lane = open_lane(first_rest_s=60.0, longest_rest_s=60.0)
    bells.away = StoreUnavailableError("the store is away")
    lane.send(outgoing("q"))
    thread = lane._keeper._thread
    assert thread is not None
    lane.close()
    thread.join(10)
    assert not thread.is_alive()


# -- rings that are heard ------------------------------------------------------------------------


def timed(receiver: object, wait_ms: int) -> float:
    began = time.monotonic()
    assert receiver.receive(1, wait_ms) == []  # type: ignore[attr-defined]
    return time.monotonic() - began


def test_rings_in_a_row_end_one_wait() -> None:
    """The second is heard at the end of the rest, which here is longer than the wait."""
    belfry = Belfry(rest_ms=60_000)
    with closing(belfry.receiver("q")) as receiver:
        belfry.ring("q")
        belfry.ring("q")
        assert timed(receiver, 20_000) < 10
        belfry.ring("q")
        assert timed(receiver, 60) >= 0.06


def test_a_ring_during_the_rest_is_heard_at_its_end() -> None:
    belfry = Belfry(rest_ms=80)
    with closing(belfry.receiver("q")) as receiver:
        belfry.ring("q")
        receiver.receive(1, 20_000)
        belfry.ring("q")
        assert timed(receiver, 20_000) < 10


def test_who_waits_is_told_of_as_it_changes() -> None:
    changes: list[int] = []
    belfry = Belfry(changed=lambda: changes.append(len(changes)))
    first, second = belfry.receiver("a"), belfry.receiver("b")
    assert belfry.awaited() == {"a", "b"}
    first.close()
    first.close()
    assert belfry.awaited() == {"b"}
    belfry.close()
    assert belfry.awaited() == frozenset()
    assert len(changes) == 4
    second.close()
    assert belfry.receiver("c").receive(1, 20_000) == []
    assert belfry.awaited() == frozenset()


def test_queues_that_have_rested_are_forgotten() -> None:
    """A program may make queues as it goes, and neither end keeps anything of each."""
    debounce, belfry = Debounce(10), Belfry()
    for number in range(20_000):
        belfry.ring(f"q{number}")
        assert debounce.take(f"q{number}", now=float(number))
        assert not debounce.take(f"q{number}", now=number + 9.0)

    assert len(debounce._rung_at) <= 1_000
    assert not belfry._bells


def test_queues_that_rest_at_once_are_all_remembered() -> None:
    """However many they are."""
    debounce = Debounce(10)
    for number in range(5_000):
        assert debounce.take(f"q{number}", now=0.0)

    assert not any(debounce.take(f"q{number}", now=9.0) for number in range(5_000))
    assert debounce.take("q", now=100.0)
