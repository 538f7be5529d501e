"""The lane without a broker: it carries nothing, and rings a bell inside the process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from lanes.polling import PollingLane
from workhorse.domain.ids import new_run_id
from workhorse.domain.sightings import DELETE
from workhorse.ports import Lane, LaneContext, Message, Outgoing, Unreadable, Wakeup
from workhorse.settings import load_settings
from workhorse.telemetry import Counters
from workhorse.testing import LaneSuite


class TestPollingLane(LaneSuite):
    @pytest.fixture
    def lane(self) -> Iterator[Lane]:
        with closing(PollingLane.open(LaneContext(load_settings(), Counters()))) as lane:
            yield lane


@pytest.fixture
def lane() -> Iterator[PollingLane]:
    with closing(PollingLane()) as lane:
        yield lane


def outgoing(queue: str, delay_ms: int = 0) -> list[Outgoing]:
    return [Outgoing(Wakeup(new_run_id(), queue), delay_ms)]


def waited_s(lane: PollingLane, receiver_queue: str, wait_ms: int) -> float:
    with closing(lane.receiver(receiver_queue)) as receiver:
        return timed(receiver, wait_ms)


def timed(receiver: object, wait_ms: int) -> float:
    began = time.monotonic()
    assert receiver.receive(10, wait_ms) == []  # type: ignore[attr-defined]
    return time.monotonic() - began


def test_it_carries_nothing_and_reaches_nowhere(lane: PollingLane) -> None:
    assert not lane.carries_messages
    assert lane.reach_ms("q") == 0
    assert lane.backlog("q") is None
    assert lane.check("q") == ()


def test_a_receiver_waits_for_as_long_as_it_is_told(lane: PollingLane) -> None:
    assert waited_s(lane, "q", 60) >= 0.06


def test_a_send_between_two_receives_is_not_missed(lane: PollingLane) -> None:
    """Else a run enqueued while the worker claims waits for the next poll."""
    with closing(lane.receiver("q")) as receiver:
        lane.send(outgoing("q"))
        assert timed(receiver, 20_000) < 10
        assert timed(receiver, 60) >= 0.06


def test_a_send_wakes_every_receiver_of_its_queue_and_no_other(lane: PollingLane) -> None:
    receivers = [lane.receiver("q") for _ in range(3)]
    threads = [threading.Thread(target=r.receive, args=(1, 20_000)) for r in receivers]
    for thread in threads:
        thread.start()
    lane.send(outgoing("other"))
    threads[0].join(0.05)
    assert all(thread.is_alive() for thread in threads)
    lane.send(outgoing("q"))
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)


def test_a_wakeup_for_later_rings_no_bell(lane: PollingLane) -> None:
    with closing(lane.receiver("q")) as receiver:
        assert lane.send(outgoing("q", delay_ms=1)).sent == 1
        assert timed(receiver, 60) >= 0.06


def test_settling_has_nothing_to_do(lane: PollingLane) -> None:
    lane.receiver("q").settle([(Message("m", Unreadable.MALFORMED), DELETE)])


def test_a_receiver_of_a_closed_lane_does_not_wait(lane: PollingLane) -> None:
    lane.close()
    assert waited_s(lane, "q", 20_000) < 10
