"""Receives and settlements over SQS: what they cost, what they survive, and how they end."""

from __future__ import annotations

import itertools
import json
import logging
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from lanes import wire
from lanes.sqs import SqsLane, Timing
from lanes.sqs.settling import MOST_WAITING
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
from workhorse.domain.sightings import DELETE, ShowAgain
from workhorse.ports import Message, Outgoing, Receiver, Unreadable, Wakeup
from workhorse.telemetry import Counters, Metric

SETTLES = ("DeleteMessageBatch", "ChangeMessageVisibilityBatch")


@pytest.fixture
def queue(endpoint: SqsEndpoint, prefix: str) -> SqsQueue:
    return endpoint.create_queue(f"{prefix}q")


def body() -> str:
    return wire.encode(Wakeup(new_run_id(), "q"))


def canned(count: int) -> Answer:
    """The answer of a receive that found `count` messages."""
    messages = [
        {"MessageId": f"m{i}", "ReceiptHandle": f"h{i}", "Body": body()} for i in range(count)
    ]
    return Answer(200, {"Messages": messages} if messages else {})


def full(call: Call) -> Answer | None:
    """Let every receive find as many messages as it asked for."""
    if call.operation != "ReceiveMessage":
        return None
    return canned(call.parameters["MaxNumberOfMessages"])


def take(receiver: Receiver, count: int = 1) -> list[Message]:
    """Receive until `count` messages are there."""
    taken: list[Message] = []

    def complete() -> bool:
        taken.extend(receiver.receive(count - len(taken), 1_000))
        return len(taken) == count

    eventually(complete)
    return taken


def messages(count: int) -> list[Message]:
    return [Message(f"m{i}", Unreadable.MALFORMED, handle=f"h{i}") for i in range(count)]


# -- what a receive asks for ---------------------------------------------------------------------


@pytest.mark.usefixtures("queue")
def test_a_wait_is_in_whole_seconds_and_at_least_one(lane: SqsLane, proxy: SqsProxy) -> None:
    proxy.fault = full
    receiver = lane.receiver("q")
    asked = {-1: 0, 0: 0, 1: 1, 999: 1, 1_400: 1, 2_500: 2, 20_000: 20, 10**9: 20}
    for wait_ms in asked:
        assert len(receiver.receive(3, wait_ms)) == 3
    calls = [call.parameters for call in proxy.made("ReceiveMessage")]
    assert [call["WaitTimeSeconds"] for call in calls] == list(asked.values())
    assert {call["MaxNumberOfMessages"] for call in calls} == {3}


@pytest.mark.usefixtures("queue")
def test_an_idle_receiver_polls_long_and_never_twice_at_a_time(
    open_lane: OpenLane, client: str, proxy: SqsProxy
) -> None:
    """Case 20: with five queues, 20 s a poll, so three receives a minute and queue."""
    lane = open_lane(client, sqs_queue_urls={f"q{i}": f"{proxy.url}/1/q{i}" for i in range(5)})
    answers = threading.Semaphore(0)

    def hold(call: Call) -> Answer:
        answers.acquire(timeout=30)
        return canned(0)

    proxy.fault = hold
    receivers = [lane.receiver(f"q{i}") for i in range(5)]
    with ThreadPoolExecutor(5) as pool:

        def loop(receiver: Receiver) -> int:
            rounds = 0
            while rounds < 2 and receiver.receive(100, 20_000) == []:
                rounds += 1
            return rounds

        loops = [pool.submit(loop, receiver) for receiver in receivers]
        eventually(lambda: proxy.outstanding("ReceiveMessage") == 5)
        answers.release(5)
        eventually(lambda: len(proxy.made("ReceiveMessage")) == 10, within=20)
        answers.release(5)
        assert [each.result(20) for each in loops] == [2] * 5

    assert proxy.counts() == {"ReceiveMessage": 10}
    assert proxy.most_at_once["ReceiveMessage"] == 5
    urls = [call.parameters["QueueUrl"] for call in proxy.made()]
    assert all(urls.count(url) == 2 for url in urls)
    assert {call.parameters["WaitTimeSeconds"] for call in proxy.made()} == {20}


@pytest.mark.usefixtures("queue")
def test_a_broker_that_does_not_hold_the_poll_is_asked_once_a_second(
    lane: SqsLane, proxy: SqsProxy
) -> None:
    """Neither that nor a short wait makes an idle worker spin."""
    proxy.always(canned(0), "ReceiveMessage")
    with closing(lane.receiver("q")) as receiver:
        receiver.receive(10, 50)
        began = time.monotonic()
        receiver.receive(10, 50)
        receiver.receive(10, 20_000)
        assert time.monotonic() - began >= 1.9


@pytest.mark.usefixtures("queue")
def test_more_receives_only_while_all_come_full(
    open_lane: OpenLane, client: str, proxy: SqsProxy
) -> None:
    lane = open_lane(client, timing=Timing(grace_s=20.0))  # nothing is given up: all are counted
    proxy.fault = full
    receiver = lane.receiver("q")

    rounds = []
    for _ in range(5):
        proxy.forget()
        got = receiver.receive(100, 20_000)
        calls = proxy.made("ReceiveMessage")
        assert len(got) == 10 * len(calls)
        waits = [call.parameters["WaitTimeSeconds"] for call in calls]
        assert waits == [20] + [0] * (len(calls) - 1)
        rounds.append(len(calls))
    assert rounds == [2, 3, 5, 9, 9]

    proxy.fault = lambda call: canned(7) if call.operation == "ReceiveMessage" else None
    proxy.forget()
    assert len(receiver.receive(100, 20_000)) == 7
    assert len(proxy.made("ReceiveMessage")) == 1


@pytest.mark.usefixtures("queue")
def test_a_short_round_ends_the_haste(lane: SqsLane, proxy: SqsProxy) -> None:
    receiver = lane.receiver("q")
    proxy.fault = full
    for _ in range(3):
        receiver.receive(100, 20_000)

    def thin(call: Call) -> Answer | None:
        return canned(1) if call.parameters.get("WaitTimeSeconds") == 0 else full(call)

    proxy.fault = thin
    receiver.receive(100, 20_000)
    proxy.forget()
    assert len(receiver.receive(100, 20_000)) == 11
    assert len(proxy.made("ReceiveMessage")) == 2


@pytest.mark.usefixtures("queue")
def test_the_limit_is_kept_over_several_receives(lane: SqsLane, proxy: SqsProxy) -> None:
    proxy.fault = full
    receiver = lane.receiver("q")
    for _ in range(4):
        assert len(receiver.receive(23, 20_000)) in (20, 23)
    proxy.forget()
    assert len(receiver.receive(23, 20_000)) == 23
    asked = sorted(call.parameters["MaxNumberOfMessages"] for call in proxy.made())
    assert asked == [3, 10, 10]


@pytest.mark.usefixtures("queue")
def test_a_further_receive_that_fails_costs_no_message(lane: SqsLane, proxy: SqsProxy) -> None:
    proxy.fault = lambda call: (
        UNAVAILABLE if call.parameters.get("WaitTimeSeconds") == 0 else full(call)
    )
    assert len(lane.receiver("q").receive(50, 20_000)) == 10


def test_the_receive_count_and_id_are_the_brokers(lane: SqsLane, queue: SqsQueue) -> None:
    queue.put(body())
    receiver = lane.receiver("q")
    (first,) = take(receiver)
    receiver.settle([(first, ShowAgain(0))])
    (second,) = take(receiver)
    assert (first.receive_count, second.receive_count) == (1, 2)
    assert first.message_id == second.message_id


# -- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault", [UNAVAILABLE, DENIED, GONE, HANG_UP], ids=["503", "denied", "gone", "hang up"]
)
def test_case_11_an_error_is_raised_and_the_receiver_heals(
    lane: SqsLane, proxy: SqsProxy, queue: SqsQueue, fault: Answer | str
) -> None:
    """Case 11: the caller backs off and calls again; nothing has to be made anew."""
    receiver = lane.receiver("q")
    assert receiver.receive(10, 0) == []
    proxy.always(fault)
    for _ in range(2):
        with pytest.raises(Exception, match=r".+") as raised:
            receiver.receive(10, 20_000)
        # The worker logs it.
        assert "secret" not in "".join(traceback.format_exception(raised.value))

    proxy.fault = None
    queue.put(body())
    assert len(take(receiver)) == 1


@pytest.mark.usefixtures("queue")
def test_one_receive_is_one_try(lane: SqsLane, proxy: SqsProxy) -> None:
    """The caller has the backoff; the SDK adds no tries and no pauses of its own."""
    receiver = lane.receiver("q")
    receiver.receive(10, 0)
    proxy.forget()
    proxy.always(UNAVAILABLE)
    with pytest.raises(Exception, match="ServiceUnavailable"):
        receiver.receive(10, 20_000)
    assert proxy.counts() == {"ReceiveMessage": 1}


def test_case_11_a_receive_whose_packets_are_dropped_ends(
    lane: SqsLane, proxy: SqsProxy, queue: SqsQueue
) -> None:
    """Case 11, a half-open connection: soon after its wait, not after a connection's lifetime."""
    receiver = lane.receiver("q")
    receiver.receive(10, 0)
    proxy.always(SWALLOW)
    began = time.monotonic()
    with pytest.raises(Exception, match=r".+"):
        receiver.receive(10, 1_000)
    assert 1 < time.monotonic() - began < 20
    proxy.fault = None
    queue.put(body())
    assert len(take(receiver)) == 1


def test_a_queue_that_was_deleted_and_made_anew_is_found(
    lane: SqsLane, queue: SqsQueue, endpoint: SqsEndpoint, proxy: SqsProxy
) -> None:
    receiver = lane.receiver("q")
    receiver.receive(10, 0)
    queue.delete()
    for _ in range(2):
        with pytest.raises(Exception, match="SQS has no queue"):
            receiver.receive(10, 0)
    endpoint.create_queue(queue.name).put(body())
    assert len(take(receiver)) == 1
    assert proxy.counts()["GetQueueUrl"] >= 2


# -- closing -------------------------------------------------------------------------------------


def test_a_message_that_comes_while_the_receiver_closes_is_shown_again(
    open_lane: OpenLane, client: str, queue: SqsQueue, proxy: SqsProxy
) -> None:
    """Nobody will look at it; another worker need not wait for its visibility time-out."""
    lane = open_lane(client)
    queue.put(body())
    receiver = lane.receiver("q")
    taken = threading.Event()
    closed = threading.Event()
    forward = proxy._forward

    def hold(headers: dict[str, str], body: bytes) -> bytes | str:
        answer = forward(headers, body)
        if b"WaitTimeSeconds" in body:
            taken.set()
            closed.wait(20)
        return answer

    proxy._forward = hold  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(receiver.receive, 10, 20_000)
        assert taken.wait(20)
        began = time.monotonic()
        receiver.close()
        assert waiting.result(20) == []
        assert time.monotonic() - began < 15  # not the 20 s that were asked for
    closed.set()
    if client == "boto3":
        queue.becomes("visible")
    else:
        # The request was cancelled, so its answer is lost; the message waits out its visibility.
        assert queue.fate() == "in flight"


def test_closing_during_further_receives_gives_back_what_came(
    lane: SqsLane, proxy: SqsProxy, queue: SqsQueue
) -> None:
    receiver = lane.receiver("q")
    ended = threading.Event()

    def fault(call: Call) -> Answer | None:
        if call.operation == "ReceiveMessage" and call.parameters["WaitTimeSeconds"] == 0:
            receiver.close()
            ended.wait(20)
        return full(call)

    proxy.fault = fault
    assert receiver.receive(100, 20_000) == []
    ended.set()
    eventually(lambda: proxy.made("ChangeMessageVisibilityBatch"))
    (call, *_) = proxy.made("ChangeMessageVisibilityBatch")
    assert [entry["VisibilityTimeout"] for entry in call.entries] == [0] * 10


def test_a_closed_lane_makes_no_more_calls(lane: SqsLane, proxy: SqsProxy, queue: SqsQueue) -> None:
    receiver = lane.receiver("q")
    receiver.receive(10, 0)
    lane.close()
    proxy.forget()
    assert receiver.receive(10, 20_000) == []
    assert lane.receiver("q").receive(10, 20_000) == []
    receiver.settle([(each, DELETE) for each in messages(3)])
    assert proxy.made() == []


def test_closing_the_lane_ends_its_threads(open_lane: OpenLane, client: str) -> None:
    others = set(threading.enumerate())

    def mine() -> set[threading.Thread]:
        started = set(threading.enumerate()) - others
        return {thread for thread in started if thread.name.startswith("workhorse-sqs")}

    lane = open_lane(client)
    receiver = lane.receiver("q")
    with pytest.raises(Exception, match=r".+"):
        receiver.receive(10, 0)
    assert mine()
    lane.close()
    eventually(lambda: not mine())


# -- settling ------------------------------------------------------------------------------------


@pytest.fixture
def receiver(lane: SqsLane, queue: SqsQueue) -> Receiver:
    return lane.receiver("q")


def settle(receiver: Receiver, many: Sequence[Message], fate: Any) -> None:
    receiver.settle([(message, fate) for message in many])


def test_the_fate_of_a_message_is_what_was_settled(receiver: Receiver, queue: SqsQueue) -> None:
    """Deleted, hidden, or shown, as the queue itself has it."""
    queue.put(body())
    (message,) = take(receiver)
    assert queue.fate() == "in flight"
    settle(receiver, [message], ShowAgain(0))
    queue.becomes("visible")
    (message,) = take(receiver)
    settle(receiver, [message], ShowAgain(60_000))
    eventually(lambda: queue.fate() == "in flight")
    settle(receiver, [message], DELETE)
    queue.becomes("gone")


@pytest.mark.usefixtures("queue")
def test_ten_fates_share_a_call(lane: SqsLane, receiver: Receiver, proxy: SqsProxy) -> None:
    proxy.always(Answer(200, {"Successful": [], "Failed": []}), *SETTLES)
    settle(receiver, messages(25), DELETE)
    settle(receiver, messages(3), ShowAgain(0))
    eventually(lambda: len(proxy.made(*SETTLES)) == 4)
    lane.close()
    assert [len(call.entries) for call in proxy.made("ChangeMessageVisibilityBatch")] == [3]
    deletes = sorted(len(call.entries) for call in proxy.made("DeleteMessageBatch"))
    assert deletes == [5, 10, 10]


def test_fates_of_several_settlements_share_a_call_under_load(
    lane: SqsLane, receiver: Receiver, proxy: SqsProxy
) -> None:
    go = threading.Event()

    def slow(call: Call) -> Answer | None:
        if call.operation in SETTLES:
            go.wait(20)
            return Answer(200, {"Successful": [], "Failed": []})
        return None

    proxy.fault = slow
    for message in messages(22):
        settle(receiver, [message], DELETE)
    eventually(lambda: proxy.outstanding("DeleteMessageBatch") == 2)
    go.set()
    eventually(lambda: sum(len(c.entries) for c in proxy.made("DeleteMessageBatch")) == 22)
    assert len(proxy.made("DeleteMessageBatch")) == 4
    assert proxy.most_at_once["DeleteMessageBatch"] == 2


def test_a_time_is_rounded_up_to_seconds_and_bounded(receiver: Receiver, proxy: SqsProxy) -> None:
    proxy.always(Answer(200, {"Successful": [], "Failed": []}), *SETTLES)
    hidden = {-1: 0, 0: 0, 1: 1, 1_000: 1, 1_001: 2, 43_200_000: 43_200, 10**12: 43_200}
    times = zip(messages(len(hidden)), hidden, strict=True)
    receiver.settle([(message, ShowAgain(after_ms)) for message, after_ms in times])
    (call,) = eventually(lambda: proxy.made("ChangeMessageVisibilityBatch"))
    assert [entry["VisibilityTimeout"] for entry in call.entries] == list(hidden.values())


def some_fail(*failing: str) -> Callable[[Call], Answer | None]:
    def fault(call: Call) -> Answer | None:
        if call.operation not in SETTLES:
            return None
        failed = [
            {"Id": e["Id"], "Code": "InternalError", "SenderFault": False, "Message": "secret"}
            for e in call.entries
            if e["ReceiptHandle"] in failing
        ]
        return Answer(200, {"Successful": [], "Failed": failed})

    return fault


@pytest.mark.parametrize("fate", [DELETE, ShowAgain(5_000)])
def test_failed_entries_are_tried_once_more_and_then_counted(
    lane: SqsLane,
    receiver: Receiver,
    proxy: SqsProxy,
    counters: Counters,
    fate: object,
    caplog: pytest.LogCaptureFixture,
) -> None:
    proxy.fault = some_fail("h2", "h5")
    settle(receiver, messages(10), fate)
    eventually(lambda: counters.get(Metric.MESSAGE_SETTLE_ERRORS) == 2)
    first, second = proxy.made(*SETTLES)
    assert len(first.entries) == 10
    assert second.entries == [first.entries[2], first.entries[5]]
    eventually(lambda: "InternalError" in caplog.text)  # counted first, then logged
    assert "secret" not in caplog.text
    assert "h2" not in caplog.text


@pytest.mark.parametrize(
    ("fault", "calls"),
    [(UNAVAILABLE, 2), (DENIED, 1), (HANG_UP, 2)],
    ids=["503", "denied", "hang up"],
)
def test_a_call_that_fails_is_counted_and_does_not_raise(
    receiver: Receiver, proxy: SqsProxy, counters: Counters, fault: Answer | str, calls: int
) -> None:
    proxy.always(fault, *SETTLES)
    settle(receiver, messages(7), DELETE)
    eventually(lambda: counters.get(Metric.MESSAGE_SETTLE_ERRORS) == 7)
    assert len(proxy.made(*SETTLES)) == calls


def test_settling_waits_for_nobody(receiver: Receiver, proxy: SqsProxy, lane: SqsLane) -> None:
    """Deletes are off the critical path, and closing waits for them a bounded time."""
    proxy.always(SWALLOW, *SETTLES)
    began = time.monotonic()
    for _ in range(10):
        settle(receiver, messages(100), DELETE)
    assert time.monotonic() - began < 20  # a call that waited would take 3 s, and there are 100
    began = time.monotonic()
    lane.close()
    assert 0.5 <= time.monotonic() - began < 15


def test_what_waits_to_be_settled_is_bounded(
    receiver: Receiver, proxy: SqsProxy, counters: Counters, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that is away for hours costs no memory without end; the dropped ones are counted."""
    proxy.always(SWALLOW, *SETTLES)
    with caplog.at_level(logging.CRITICAL):
        for _ in range(3):
            settle(receiver, messages(MOST_WAITING // 2), DELETE)
    assert 0 < counters.get(Metric.MESSAGE_SETTLE_ERRORS) <= MOST_WAITING // 2


def test_what_waits_is_counted_when_the_lane_closes(
    open_lane: OpenLane, queue: SqsQueue, proxy: SqsProxy, counters: Counters, client: str
) -> None:
    lane = open_lane(client, timing=Timing(close_s=0.2, read_s=0.5))
    receiver = lane.receiver("q")
    proxy.always(SWALLOW, *SETTLES)
    settle(receiver, messages(100), DELETE)
    lane.close()
    eventually(lambda: counters.get(Metric.MESSAGE_SETTLE_ERRORS) == 100)


# -- credentials ---------------------------------------------------------------------------------


def test_credentials_are_refreshed_while_the_lane_lives(
    open_lane: OpenLane,
    client: str,
    queue: SqsQueue,
    proxy: SqsProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A role's credentials last for hours, a worker for weeks."""
    with closing(ContainerCredentials()) as source:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", source.url)
        lane = open_lane(client)
        receiver = lane.receiver("q")
        for _ in range(3):
            receiver.receive(10, 0)
            lane.send([Outgoing(Wakeup(new_run_id(), "q"))])
        used = [call.access_key for call in proxy.made("ReceiveMessage")]
        assert len(set(used)) == 3
        assert used == sorted(used)
        assert len({call.access_key for call in proxy.made("SendMessageBatch")}) == 3


class ContainerCredentials:
    """Hands out credentials as ECS does: another key each time, about to expire."""

    def __init__(self) -> None:
        keys = itertools.count(1_000)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                expires = datetime.now(UTC) + timedelta(minutes=5)
                content = {
                    "AccessKeyId": f"KEY{next(keys)}",
                    "SecretAccessKey": "testing",
                    "Token": "testing",
                    "Expiration": expires.strftime("%Y-%m-%dT%H:%M:%SZ"),
                }
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(json.dumps(content).encode())

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the base's name)
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/credentials"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
