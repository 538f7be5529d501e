"""Sends that fail in an outage are told of when it begins and when it is over, with counts."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.client.lanes import RecordingLane
from workhorse.client.outages import APART_S, Outages
from workhorse.client.publishing import Publisher
from workhorse.domain.hints import Hint
from workhorse.domain.ids import new_run_id
from workhorse.ports import SendReport
from workhorse.telemetry import Counters, Metric

DOWN = "SQS was not reached (EndpointConnectionError)"


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def outages(clock: Clock, caplog: pytest.LogCaptureFixture) -> Outages:
    caplog.set_level(logging.WARNING, "workhorse.wakeups")
    return Outages(clock)


def test_an_outage_is_told_once_when_it_begins_and_once_when_it_is_over(
    outages: Outages, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(500):
        outages.note({"mail"}, 2, DOWN)
        clock.now += 0.1
    outages.note({"mail"}, 0, "")
    outages.note({"mail"}, 0, "")

    begun, over = caplog.messages
    assert begun.startswith(f"2 wakeups were not sent ({DOWN}); a scan or the top-up finds")
    assert over == "wakeups are sent again; 1000 in 500 sends were not, in 50 s"


def test_an_outage_lasts_until_each_of_its_queues_is_served(
    outages: Outages, caplog: pytest.LogCaptureFixture
) -> None:
    """One queue that is missing at the broker, beside one that works, is one outage."""
    for _ in range(20):
        outages.note({"mail", "missing"}, 1, "queue missing: SQS has no such queue")
        outages.note({"mail"}, 0, "")
    assert len(caplog.messages) == 1

    outages.note({"missing"}, 0, "")

    assert caplog.messages[1].startswith("wakeups are sent again; 20 in 20 sends were not")


def test_each_cause_of_an_outage_is_told_once_and_a_few_at_most(
    outages: Outages, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        for number in range(100):
            outages.note({f"q{number}"}, 1, f"queue q{number}: no permission")

    assert [message.split(";")[0] for message in caplog.messages] == [
        f"1 wakeups were not sent (queue q{number}: no permission)" for number in range(5)
    ]


def test_a_broker_that_fails_now_and_then_is_told_of_once_a_minute(
    outages: Outages, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    began = clock.now
    while clock.now < began + APART_S:
        outages.note({"mail"}, 1, DOWN)
        outages.note({"mail"}, 0, "")
        clock.now += 1
    assert len(caplog.messages) == 2

    outages.note({"mail"}, 1, DOWN)
    outages.note({"mail"}, 0, "")

    assert len(caplog.messages) == 4


def test_a_publisher_tells_of_an_outage_and_counts_each_wakeup(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lane, counters = RecordingLane(lambda _run_id: True), Counters()
    publisher = Publisher(lambda: lane, counters)
    hints = [Hint(new_run_id(), "mail"), Hint(new_run_id(), "mail")]

    lane.error = ConnectionError("hunter2")
    publisher.publish(hints)
    asyncio.run(publisher.publish_async(hints))
    lane.error, lane.report = None, lambda count: SendReport(1, count - 1, "throttled")
    publisher.publish(hints)
    lane.report = lambda count: SendReport(sent=count)
    publisher.publish(hints)

    assert [message.split(";")[0] for message in caplog.messages] == [
        "2 wakeups were not sent (ConnectionError)",
        "1 wakeups were not sent (throttled)",
        "wakeups are sent again",
    ]
    assert counters.get(Metric.WAKEUPS_NOT_SENT) == 5
    assert counters.get(Metric.WAKEUPS_SENT) == 3
