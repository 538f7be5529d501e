"""What a worker's log says at its start about each thing that keeps it from its SQS queue."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from lanes.sqs import Timing
from tests.lanes.conftest import OpenLane
from tests.runtime.rig import Rig
from tests.support.eventually import eventually
from tests.support.sqs import SqsEndpoint
from tests.support.sqs_proxy import DENIED, GONE, Answer, SqsProxy, error
from workhorse.domain.sightings import DELETE
from workhorse.ports import Outgoing, Wakeup
from workhorse.runtime.base.pace import SystemPace
from workhorse.store.base.database import Store
from workhorse.telemetry import Counters, Metric


class QuickPace(SystemPace):
    """Rests are short."""

    def pause(self, until: threading.Event, ms: float) -> bool:
        return super().pause(until, min(ms, 10))


@pytest.fixture
def rig(sqlite_url: str) -> Iterator[Rig]:
    store = Store.open(sqlite_url)
    rig = Rig(store)
    yield rig
    rig.close()
    store.close()


@pytest.fixture
def queue(endpoint: SqsEndpoint, prefix: str) -> str:
    return endpoint.create_queue(f"{prefix}q", dead_letters_after=10).name


EXPIRED = error("ExpiredToken", 403)
FAULTS: dict[str, tuple[Answer, tuple[str, ...], str, str]] = {
    "queue missing": (GONE, (), "SQS has no queue {name} in region us-east-1", "create it"),
    "may not receive": (
        DENIED,
        ("ReceiveMessage",),
        "no permission: sqs:ReceiveMessage on {name} is denied",
        "allow sqs:ReceiveMessage in the role",
    ),
    "may not delete": (
        DENIED,
        ("DeleteMessageBatch",),
        "no permission: sqs:DeleteMessage on {name} is denied",
        "allow sqs:DeleteMessage in the role",
    ),
    "may not change visibility": (
        DENIED,
        ("ChangeMessageVisibilityBatch",),
        "no permission: sqs:ChangeMessageVisibility on {name} is denied",
        "allow sqs:ChangeMessageVisibility in the role",
    ),
    "may not look the url up": (
        DENIED,
        ("GetQueueUrl",),
        "no permission: sqs:GetQueueUrl on {name} is denied",
        "allow sqs:GetQueueUrl in the role",
    ),
    "credentials expired": (EXPIRED, (), "the AWS credentials have expired", "renew them"),
    "credentials refused": (
        error("InvalidClientTokenId", 403),
        (),
        "SQS does not accept the AWS credentials (InvalidClientTokenId)",
        "renew them",
    ),
}


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def started(rig: Rig, lane: Any) -> None:
    rig.worker(["q"], lane=lane, pace=QuickPace(), scan_ms=20, scan_jitter_ms=0).start()


@pytest.mark.parametrize("fault", FAULTS)
def test_one_plain_line_for_each_trouble(
    rig: Rig,
    open_lane: OpenLane,
    client: str,
    proxy: SqsProxy,
    queue: str,
    fault: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once, however often the receives find it too; and the worker has started all the same."""
    answer, operations, what, advice = FAULTS[fault]
    proxy.always(answer, *operations)
    probing = operations in (("DeleteMessageBatch",), ("ChangeMessageVisibilityBatch",))

    started(rig, open_lane(client, timing=Timing(close_s=0.1)))

    if probing:
        eventually(lambda: warnings(caplog) and len(proxy.made(*operations)) >= 3)
    else:
        eventually(lambda: rig.counters.get(Metric.RECEIVE_ERRORS) >= 3 and warnings(caplog))
    (line,) = warnings(caplog)
    assert line.startswith(f"queue q: {what.format(name=queue)}")
    assert advice in line
    assert "secret" not in line


def test_no_credentials_at_all(
    rig: Rig,
    open_lane: OpenLane,
    client: str,
    queue: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    started(rig, open_lane(client))
    eventually(lambda: rig.counters.get(Metric.RECEIVE_ERRORS) >= 3)
    (line,) = warnings(caplog)
    assert line.startswith("queue q: there are no AWS credentials; give this process a role")


def test_an_address_in_another_region(
    rig: Rig, open_lane: OpenLane, client: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Found without a call: the name alone might stand for another queue there."""
    lane = open_lane(
        client,
        aws_endpoint_url="http://sqs.us-east-1.amazonaws.com",
        sqs_queue_urls={"q": "arn:aws:sqs:eu-west-1:123456789012:orders"},
    )
    (finding,) = lane.probe("q")
    rig.worker(["q"], lane=lane, can_claim=lambda: False).start()  # it receives nothing
    eventually(lambda: warnings(caplog) != [])
    assert warnings(caplog) == [finding.sentence]
    assert "names the region eu-west-1, but the client speaks to us-east-1" in finding.message
    assert finding.advice == "set WORKHORSE_AWS_REGION or AWS_REGION to eu-west-1"


def test_an_endpoint_where_nobody_listens(
    rig: Rig,
    open_lane: OpenLane,
    client: str,
    proxy: SqsProxy,
    caplog: pytest.LogCaptureFixture,
) -> None:
    proxy.close()
    started(rig, open_lane(client))
    eventually(lambda: rig.counters.get(Metric.RECEIVE_ERRORS) >= 3, within=60)
    (line,) = warnings(caplog)
    assert "SQS was not reached" in line
    assert "check the network, the endpoint and the region" in line


def test_a_trouble_that_changes_is_said_anew_and_its_end_too(
    rig: Rig,
    open_lane: OpenLane,
    client: str,
    proxy: SqsProxy,
    queue: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "workhorse.worker")
    proxy.always(DENIED, "ReceiveMessage")
    started(rig, open_lane(client))
    eventually(lambda: len(warnings(caplog)) == 1)
    proxy.always(EXPIRED, "ReceiveMessage")
    eventually(lambda: len(warnings(caplog)) == 2)
    assert "credentials have expired" in warnings(caplog)[1]

    proxy.fault = None
    eventually(lambda: "queue q: no longer credentials_expired" in caplog.messages)
    assert len(warnings(caplog)) == 2


def test_a_healthy_start_says_nothing_and_makes_two_calls_more(
    rig: Rig,
    open_lane: OpenLane,
    client: str,
    proxy: SqsProxy,
    queue: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    started(rig, open_lane(client))
    eventually(lambda: len(proxy.made("ChangeMessageVisibilityBatch")) == 1)
    eventually(lambda: len(proxy.made("ReceiveMessage")) >= 2)
    assert warnings(caplog) == []
    assert len(proxy.made("DeleteMessageBatch")) == 1
    assert len(proxy.made("ChangeMessageVisibilityBatch")) == 1


def test_a_start_does_not_wait_for_the_probe(
    rig: Rig, open_lane: OpenLane, client: str, proxy: SqsProxy, queue: str
) -> None:
    """Runs are executed while SQS is silent about deletes."""
    held = threading.Event()

    def hold(call: Any) -> None:
        if call.operation == "DeleteMessageBatch":
            assert held.wait(60)

    proxy.fault = hold
    lane = open_lane(client)

    @rig.task("work")
    def work(_payload: Any) -> None:
        pass

    started(rig, lane)
    eventually(lambda: proxy.outstanding("DeleteMessageBatch") >= 1, within=20)
    run_id = rig.enqueue("work", queue="q")
    lane.send([Outgoing(Wakeup(run_id, "q"))])
    eventually(lambda: rig.state(run_id) == "succeeded", within=20)
    assert proxy.outstanding("DeleteMessageBatch") >= 1
    held.set()


def test_settlements_that_are_refused_are_logged_once_with_the_permission(
    open_lane: OpenLane,
    client: str,
    counters: Counters,
    endpoint: SqsEndpoint,
    proxy: SqsProxy,
    queue: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each batch fails of it; how many messages it was is counted."""
    there = endpoint.queue(queue)
    for _ in range(4):
        there.put("a wakeup")
    receiver = open_lane(client).receiver("q")
    proxy.always(DENIED, "DeleteMessageBatch")
    for settled in range(1, 5):
        (message,) = receiver.receive(1, 1_000)
        receiver.settle([(message, DELETE)])
        eventually(lambda n=settled: counters.get(Metric.MESSAGE_SETTLE_ERRORS) == n)  # type: ignore[misc]
    (line,) = warnings(caplog)
    assert line.startswith("queue q: 1 messages were not settled and will come back: no permission")
    assert f"sqs:DeleteMessage on {queue} is denied; allow sqs:DeleteMessage" in line
