"""Sends over SQS: what is asked of it, and that nothing it does reaches the one who enqueues."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from lanes import wire
from lanes.sqs import SqsLane, Timing
from lanes.sqs.clients import Calls
from tests.lanes.conftest import OpenLane
from tests.support.eventually import eventually
from tests.support.sqs import SqsEndpoint, SqsQueue
from tests.support.sqs_proxy import (
    DENIED,
    GONE,
    HANG_UP,
    SWALLOW,
    UNAVAILABLE,
    Answer,
    Call,
    SqsProxy,
)
from workhorse.domain.ids import new_run_id
from workhorse.ports import Outgoing, SendReport, Wakeup

Send = Callable[[SqsLane, list[Outgoing]], SendReport]


@pytest.fixture(params=["send", "send_async over boto3", "send_async over aioboto3"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


PATIENT = Timing(connect_s=5.0, read_s=10.0, send_s=20.0)
"""An endpoint on a busy machine may take longer to answer than the lane's own bounds."""


@pytest.fixture
def lane(open_lane: OpenLane, way: str) -> SqsLane:
    return open_lane("aioboto3" if "aioboto3" in way else "boto3", timing=PATIENT)


@pytest.fixture
def bounded_lane(open_lane: OpenLane, way: str) -> SqsLane:
    return open_lane("aioboto3" if "aioboto3" in way else "boto3")


@pytest.fixture
def send(way: str) -> Send:
    if way == "send":
        return lambda lane, outgoing: lane.send(outgoing)
    return lambda lane, outgoing: asyncio.run(lane.send_async(outgoing))


@pytest.fixture
def queue(endpoint: SqsEndpoint, prefix: str) -> SqsQueue:
    return endpoint.create_queue(f"{prefix}q")


def outgoing(count: int, queue: str = "q", delay_ms: int = 0) -> list[Outgoing]:
    return [Outgoing(Wakeup(new_run_id(), queue), delay_ms) for _ in range(count)]


def entries(proxy: SqsProxy) -> list[dict[str, Any]]:
    return [entry for call in proxy.made("SendMessageBatch") for entry in call.entries]


def some_fail(*failing: str) -> Callable[[Call], Answer | None]:
    """Let entries of a batch fail by their ids, while the call itself succeeds."""

    def fault(call: Call) -> Answer | None:
        if call.operation != "SendMessageBatch":
            return None
        failed = [e["Id"] for e in call.entries if e["Id"] in failing]
        taken = [e["Id"] for e in call.entries if e["Id"] not in failing]
        return Answer(
            200,
            {
                "Successful": [
                    {"Id": i, "MessageId": f"m{i}", "MD5OfMessageBody": "-"} for i in taken
                ],
                "Failed": [
                    {"Id": i, "Code": "InternalError", "SenderFault": False, "Message": "secret"}
                    for i in failed
                ],
            },
        )

    return fault


# -- what is sent --------------------------------------------------------------------------------


@pytest.mark.usefixtures("queue")
def test_ten_wakeups_share_a_call(lane: SqsLane, send: Send, proxy: SqsProxy) -> None:
    sent = outgoing(25)

    assert send(lane, sent) == SendReport(sent=25)

    calls = proxy.made("SendMessageBatch")
    assert sorted(len(call.entries) for call in calls) == [5, 10, 10]
    found = {wire.decode(entry["MessageBody"]) for entry in entries(proxy)}
    assert found == {each.wakeup for each in sent}


def test_queues_do_not_share_a_call(
    lane: SqsLane, send: Send, proxy: SqsProxy, endpoint: SqsEndpoint, prefix: str
) -> None:
    made = [endpoint.create_queue(f"{prefix}{name}") for name in ("a", "b")]
    mixed = [each for pair in zip(outgoing(3, "a"), outgoing(3, "b"), strict=True) for each in pair]

    assert send(lane, mixed) == SendReport(sent=6)

    assert len(proxy.made("SendMessageBatch")) == 2
    assert [queue.counts().visible for queue in made] == [3, 3]


@pytest.mark.usefixtures("queue")
def test_a_url_is_looked_up_once(lane: SqsLane, send: Send, proxy: SqsProxy) -> None:
    for _ in range(3):
        send(lane, outgoing(1))
    assert proxy.counts() == {"GetQueueUrl": 1, "SendMessageBatch": 3}


@pytest.mark.usefixtures("queue")
def test_a_delay_is_rounded_up_to_whole_seconds_and_bounded(
    open_lane: OpenLane, proxy: SqsProxy
) -> None:
    """Rounded down it would be early; more than SQS takes would fail the whole entry."""
    delays = {0: None, -5: None, 1: 1, 1_000: 1, 1_001: 2, 900_000: 900, 10**12: 900}
    sent = [each for delay_ms in delays for each in outgoing(1, delay_ms=delay_ms)]
    assert open_lane().send(sent).failed == 0
    assert [entry.get("DelaySeconds") for entry in entries(proxy)] == list(delays.values())


def test_a_delayed_wakeup_is_held_by_the_queue(open_lane: OpenLane, queue: SqsQueue) -> None:
    open_lane().send(outgoing(1, delay_ms=60_000))
    assert queue.fate() == "delayed"


def test_a_fifo_queue_gets_a_group_per_run_and_an_id_per_send(
    open_lane: OpenLane, proxy: SqsProxy, endpoint: SqsEndpoint, prefix: str
) -> None:
    """A second wakeup of a run within five minutes is not taken for a copy of the first."""
    queue = endpoint.create_queue(f"{prefix}q.fifo")
    lane = open_lane(sqs_fifo=True)
    (one,) = outgoing(1, delay_ms=5_000)

    assert lane.send([one, one]).sent == 2
    assert lane.send([one]).sent == 1

    assert {entry["MessageGroupId"] for entry in entries(proxy)} == {one.wakeup.run_id}
    assert len({entry["MessageDeduplicationId"] for entry in entries(proxy)}) == 3
    assert not any("DelaySeconds" in entry for entry in entries(proxy))
    assert queue.counts().visible == 3
    assert lane.reach_ms("q") == 0


@pytest.mark.usefixtures("queue")
def test_a_body_holds_the_wakeup_and_nothing_else(open_lane: OpenLane, proxy: SqsProxy) -> None:
    open_lane().send(outgoing(1))
    (entry,) = entries(proxy)
    assert set(entry) == {"Id", "MessageBody"}
    assert set(json.loads(entry["MessageBody"])) == {"workhorse", "run_id", "queue"}


# -- what fails ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("queue")
def test_failed_entries_are_sent_once_more_and_alone(
    lane: SqsLane, send: Send, proxy: SqsProxy
) -> None:
    proxy.fault = some_fail("3", "7")

    report = send(lane, outgoing(10))

    assert (report.sent, report.failed) == (8, 2)
    first, second = proxy.made("SendMessageBatch")
    assert len(first.entries) == 10
    assert [entry["Id"] for entry in second.entries] == ["3", "7"]
    assert second.entries == [first.entries[3], first.entries[7]]
    assert report.error is not None
    assert "InternalError" in report.error
    assert "secret" not in report.error


@pytest.mark.usefixtures("queue")
def test_entries_that_succeed_at_the_second_try_are_sent(
    lane: SqsLane, send: Send, proxy: SqsProxy
) -> None:
    def fault(call: Call) -> Answer | None:
        return some_fail("0")(call) if len(proxy.made("SendMessageBatch")) == 1 else None

    proxy.fault = fault

    assert send(lane, outgoing(10)) == SendReport(sent=10)


@pytest.mark.parametrize(
    ("fault", "tries", "said"),
    [
        (UNAVAILABLE, 2, "ServiceUnavailable"),
        (DENIED, 1, "allow sqs:SendMessage in the role"),
        (HANG_UP, 2, "not reached"),
        (SWALLOW, 1, "did not answer within 2 s"),
    ],
    ids=["503", "denied", "hang up", "swallowed"],
)
@pytest.mark.usefixtures("queue")
def test_a_broker_that_fails_costs_two_tries_and_two_seconds(
    bounded_lane: SqsLane,
    send: Send,
    proxy: SqsProxy,
    fault: Answer | str,
    tries: int,
    said: str,
) -> None:
    lane = bounded_lane
    assert send(lane, outgoing(1)).sent == 1
    proxy.always(fault, "SendMessageBatch")
    proxy.forget()
    began = time.monotonic()

    report = send(lane, outgoing(10))

    assert time.monotonic() - began < 5.5  # two tries of 3 s each would take six
    assert (report.sent, report.failed) == (0, 10)
    assert report.error is not None
    assert said in report.error
    assert "secret" not in report.error
    assert proxy.counts()["SendMessageBatch"] == tries
    proxy.fault = None
    assert send(lane, outgoing(1)).sent == 1


def test_an_endpoint_where_nobody_listens(
    bounded_lane: SqsLane, send: Send, proxy: SqsProxy
) -> None:
    proxy.close()
    began = time.monotonic()
    report = send(bounded_lane, outgoing(3))
    assert report.failed == 3
    assert report.error is not None
    assert time.monotonic() - began < 15  # the first send also makes the clients


def test_a_thousand_wakeups_are_bounded_as_one_is(
    bounded_lane: SqsLane, send: Send, proxy: SqsProxy, queue: SqsQueue
) -> None:
    """A bulk enqueue does not wait 2 s for each of its hundred calls."""
    send(bounded_lane, outgoing(1))
    proxy.always(SWALLOW, "SendMessageBatch")
    began = time.monotonic()
    assert send(bounded_lane, outgoing(1_000)).failed == 1_000
    assert time.monotonic() - began < 20


def test_a_missing_queue_is_said(lane: SqsLane, send: Send) -> None:
    report = send(lane, outgoing(2, "nowhere"))
    assert report.failed == 2
    assert report.error is not None
    assert report.error.startswith("queue nowhere: SQS has no queue ")
    assert "in region us-east-1" in report.error


def test_a_queue_that_was_made_anew_is_found(
    lane: SqsLane, send: Send, proxy: SqsProxy, queue: SqsQueue
) -> None:
    """Within the same send: what SQS said about the old address is not the last word."""
    assert send(lane, outgoing(1)).sent == 1
    proxy.fault = lambda call: (
        GONE
        if call.operation == "SendMessageBatch" and len(proxy.made("SendMessageBatch")) == 2
        else None
    )
    assert send(lane, outgoing(1)) == SendReport(sent=1)
    assert proxy.counts()["GetQueueUrl"] == 2


def test_a_name_that_sqs_does_not_allow_is_a_failed_send(lane: SqsLane, send: Send) -> None:
    """Enqueue raises for the store, never for the lane."""
    report = send(lane, [*outgoing(1, "q" * 60), *outgoing(1, "q" * 60)])
    assert (report.sent, report.failed) == (0, 2)
    assert lane.reach_ms("Not A Queue") == 0


def test_a_name_that_sqs_does_not_allow_spoils_no_other(
    open_lane: OpenLane, queue: SqsQueue
) -> None:
    lane = open_lane(sqs_queue_urls={"q": queue.name}, sqs_queue_prefix="p" * 60)
    report = lane.send([*outgoing(1, "x" * 60), *outgoing(2)])
    assert (report.sent, report.failed) == (2, 1)


@pytest.mark.usefixtures("queue")
def test_the_event_loop_goes_on_while_the_broker_does_not_answer(
    open_lane: OpenLane, client: str, proxy: SqsProxy
) -> None:
    lane = open_lane(client)
    assert asyncio.run(lane.send_async(outgoing(1))).sent == 1
    proxy.always(SWALLOW)

    async def main() -> int:
        sending = asyncio.ensure_future(lane.send_async(outgoing(1)))
        turns = 0
        while not sending.done():
            await asyncio.wait([sending], timeout=0.01)
            turns += 1
        assert sending.result().failed == 1
        return turns

    assert asyncio.run(main()) > 5


def test_a_cancelled_caller_does_not_take_its_wakeups_back(
    open_lane: OpenLane, client: str, queue: SqsQueue, proxy: SqsProxy
) -> None:
    """Its run is in the store by then; a request that a web server cancels is an everyday event."""
    lane = open_lane(client)
    asyncio.run(lane.send_async(outgoing(1)))

    async def main() -> None:
        sending = asyncio.ensure_future(lane.send_async(outgoing(1)))
        await asyncio.sleep(0)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending

    asyncio.run(main())
    eventually(lambda: queue.counts().visible == 2)


@pytest.mark.usefixtures("queue")
def test_time_to_make_the_clients_is_not_the_brokers(
    open_lane: OpenLane, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cold process needs seconds before its first call, and sends all the same."""
    options = Calls._options

    def slow(calls: Calls, user_agent: str, *, long: bool) -> dict[str, Any]:
        threading.Event().wait(0.7)
        return options(calls, user_agent, long=long)

    monkeypatch.setattr(Calls, "_options", slow)
    lane = open_lane(client, timing=Timing(send_s=1.2))
    assert asyncio.run(lane.send_async(outgoing(1))).sent == 1


@pytest.mark.usefixtures("queue")
def test_the_clients_say_who_they_are(
    open_lane: OpenLane, client: str, proxy: SqsProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library, Workhorse and the application's own id, where it has one."""
    monkeypatch.setenv("AWS_SDK_UA_APP_ID", "billing")
    lane = open_lane(client)

    asyncio.run(lane.send_async(outgoing(1)))

    names = {call.user_agent for call in proxy.made("SendMessageBatch")}
    library = {"boto3": "Boto3/", "aioboto3": "aiobotocore/", "lean": "aiohttp/"}[client]
    assert [name.startswith(library) for name in names] == [True], names
    assert all(" app/billing workhorse" in name for name in names)
