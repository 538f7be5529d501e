"""The lane inside one process: the suite by a clock that stands still, and its hostile mode."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager

import pytest

from lanes.memory import Hostility, MemoryLane
from tests.support.eventually import eventually
from workhorse.domain.ids import new_run_id
from workhorse.domain.sightings import DELETE, ShowAgain
from workhorse.errors import ConfigurationError
from workhorse.ports import Lane, LaneContext, Message, Outgoing, Wakeup
from workhorse.settings import load_settings
from workhorse.telemetry import Counters
from workhorse.testing import LaneSuite


class HandClock:
    """Milliseconds that pass when the test says so."""

    def __init__(self) -> None:
        self.ms = 0.0

    def __call__(self) -> float:
        return self.ms


@pytest.fixture
def hands() -> HandClock:
    return HandClock()


class MemorySuite(LaneSuite):
    def put_body(self, lane: Lane, queue: str, body: str) -> None:
        assert isinstance(lane, MemoryLane)
        lane.put_body(queue, body)

    def broker_away(self, lane: Lane) -> AbstractContextManager[None]:
        assert isinstance(lane, MemoryLane)

        @contextmanager
        def away() -> Iterator[None]:
            lane.set_outage(ConnectionError("taken away"))
            yield
            lane.set_outage(None)

        return away()


class TestMemoryLane(MemorySuite):
    real_time = False

    @pytest.fixture
    def lane(self, hands: HandClock) -> Iterator[Lane]:
        self.hands = hands
        with closing(MemoryLane(clock=hands, visibility_ms=self.visibility_ms)) as lane:
            yield lane

    def pass_time(self, lane: Lane, ms: int) -> None:
        self.hands.ms += ms


class TestMemoryLaneInRealTime(MemorySuite):
    visibility_ms = 500

    @pytest.fixture
    def lane(self) -> Iterator[Lane]:
        with closing(MemoryLane(visibility_ms=self.visibility_ms)) as lane:
            yield lane


def outgoing(count: int, queue: str = "q", delay_ms: int = 0) -> list[Outgoing]:
    return [Outgoing(Wakeup(new_run_id(), queue), delay_ms) for _ in range(count)]


def drained(lane: MemoryLane, hands: HandClock, queue: str = "q") -> list[Message]:
    """What is visible now, and then what becomes visible when a minute passes; deleted."""
    with closing(lane.receiver(queue)) as receiver:
        taken = list(receiver.receive(100_000, 0))
        receiver.settle([(message, DELETE) for message in taken])
        hands.ms += 60_000
        later = receiver.receive(100_000, 0)
        receiver.settle([(message, DELETE) for message in later])
        return [*taken, *later]


def runs(messages: list[Message]) -> list[str]:
    return [m.content.run_id for m in messages if isinstance(m.content, Wakeup)]


def test_it_is_opened_by_its_name_and_needs_no_setting() -> None:
    lane = MemoryLane.open(LaneContext(load_settings(lane="memory"), Counters()))
    assert lane.check("q") == ()
    lane.close()


def test_waking_a_receiver_by_moving_the_clock(hands: HandClock) -> None:
    """A delayed message ends the wait of a receiver when a hand-moved clock reaches it."""
    lane = MemoryLane(clock=hands)
    lane.send(outgoing(1, delay_ms=500_000))
    got: list[Message] = []
    receiver = lane.receiver("q")
    thread = threading.Thread(target=lambda: got.extend(receiver.receive(1, 20_000)))
    thread.start()
    hands.ms += 499_999
    thread.join(0.05)
    assert not got
    hands.ms += 1
    thread.join(10)
    assert len(got) == 1
    lane.close()


def test_the_lane_is_in_order_when_nothing_is_hostile(hands: HandClock) -> None:
    lane = MemoryLane(clock=hands)
    sent = outgoing(500)
    lane.send(sent)
    assert runs(drained(lane, hands)) == [each.wakeup.run_id for each in sent]


def test_a_lapsed_receipt_settles_nothing(hands: HandClock) -> None:
    """Whoever received the message in the meantime has it now."""
    lane = MemoryLane(clock=hands, visibility_ms=1_000)
    lane.send(outgoing(1))
    receiver = lane.receiver("q")
    (first,) = receiver.receive(1, 0)
    hands.ms += 1_000
    (second,) = receiver.receive(1, 0)

    receiver.settle([(first, DELETE), (first, ShowAgain(0))])
    assert receiver.receive(1, 0) == []
    hands.ms += 1_000
    assert len(receiver.receive(1, 0)) == 1
    receiver.settle([(second, DELETE)])


def test_an_outage_is_told_to_those_who_wait() -> None:
    lane = MemoryLane()
    receiver = lane.receiver("q")
    caught: list[Exception] = []

    def receive() -> None:
        try:
            receiver.receive(1, 20_000)
        except ConnectionError as error:
            caught.append(error)

    thread = threading.Thread(target=receive)
    thread.start()

    def ended() -> bool:
        lane.set_outage(ConnectionError("away"))
        return not thread.is_alive()

    eventually(ended)
    with pytest.raises(ConnectionError):
        lane.backlog("q")
    assert len(caught) == 1


def test_what_was_deleted_is_not_kept(hands: HandClock) -> None:
    """A busy lane does not hold on to each message until its visibility would have ended."""
    lane = MemoryLane(clock=hands, visibility_ms=3_600_000)
    receiver = lane.receiver("q")
    for _ in range(100):
        lane.send(outgoing(100))
        receiver.settle([(message, DELETE) for message in receiver.receive(100, 0)])
    assert len(lane._queues["q"].hidden) < 500


# -- hostile mode --------------------------------------------------------------------------------


def hostile(hands: HandClock, **mishaps: float) -> MemoryLane:
    return MemoryLane(clock=hands, hostility=Hostility(seed=7, **mishaps))  # type: ignore[arg-type]


def test_dropped_wakeups_are_reported_as_sent(hands: HandClock) -> None:
    lane = hostile(hands, drop=0.5)
    assert lane.send(outgoing(1_000)).sent == 1_000
    assert 400 < len(drained(lane, hands)) < 600


def test_every_wakeup_can_be_dropped(hands: HandClock) -> None:
    lane = hostile(hands, drop=1)
    lane.send(outgoing(1_000))
    assert drained(lane, hands) == []


def test_doubled_wakeups_are_two_messages(hands: HandClock) -> None:
    lane = hostile(hands, double=1)
    sent = outgoing(10)
    lane.send(sent)
    messages = drained(lane, hands)
    assert sorted(runs(messages)) == sorted(2 * [each.wakeup.run_id for each in sent])
    assert len({message.message_id for message in messages}) == 20


def test_delayed_wakeups_come_late_and_within_the_bound(hands: HandClock) -> None:
    lane = hostile(hands, delay=1)
    lane.send(outgoing(100))
    receiver = lane.receiver("q")
    assert receiver.receive(100, 0) == []
    hands.ms += 2_000
    assert len(receiver.receive(100, 0)) == 100


def test_a_hostile_delay_adds_to_the_delay_that_was_asked_for(hands: HandClock) -> None:
    lane = hostile(hands, delay=1)
    lane.send(outgoing(100, delay_ms=1_000))
    receiver = lane.receiver("q")
    hands.ms += 999
    assert receiver.receive(100, 0) == []
    hands.ms += 2_001
    assert len(receiver.receive(100, 0)) == 100


def test_reordered_wakeups_all_come_in_another_order(hands: HandClock) -> None:
    lane = hostile(hands, reorder=1)
    sent = outgoing(100)
    lane.send(sent)
    order = [each.wakeup.run_id for each in sent]
    came = runs(drained(lane, hands))
    assert came != order
    assert sorted(came) == sorted(order)


def test_a_seed_gives_the_same_mishaps_again() -> None:
    sent = outgoing(200)

    def once(seed: int) -> list[str]:
        hands = HandClock()
        lane = MemoryLane(clock=hands, hostility=Hostility(0.3, 0.3, 0.3, 0.3, seed=seed))
        lane.send(sent)
        return runs(drained(lane, hands))

    assert once(1) == once(1)
    assert once(1) != once(2)


@pytest.mark.parametrize("mishap", ["drop", "double", "delay", "reorder"])
@pytest.mark.parametrize("probability", [-0.1, 1.1, float("nan")])
def test_a_probability_is_from_0_to_1(mishap: str, probability: float) -> None:
    with pytest.raises(ConfigurationError, match=mishap):
        Hostility(**{mishap: probability})  # type: ignore[arg-type]


def test_a_delay_is_not_negative() -> None:
    with pytest.raises(ConfigurationError, match="max_delay_ms"):
        Hostility(max_delay_ms=-1)
