"""The lane as a whole: what it imports when, its clients' options, its entry points, its cost."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from lanes.sqs import SqsLane, Timing
from lanes.sqs.clients import Boto3Calls, Endpoint
from lanes.sqs.faults import LaneClosedError, describe
from lanes.sqs.runners import LoopRunner, Runner, ThreadRunner
from tests.lanes.conftest import OpenLane
from tests.support.eventually import eventually
from tests.support.sqs import SqsEndpoint
from tests.support.sqs_proxy import SqsProxy
from workhorse.domain.ids import new_run_id
from workhorse.domain.sightings import DELETE
from workhorse.errors import ConfigurationError
from workhorse.ports import Lane, LaneContext, Outgoing, Wakeup
from workhorse.settings import load_settings
from workhorse.telemetry import Counters

PAGE = Path(__file__).parents[2] / "docs" / "wakeups.md"


@pytest.mark.parametrize("name", ["memory", "polling", "sqs"])
def test_a_lane_is_found_by_its_name(name: str) -> None:
    (entry,) = entry_points(group="workhorse.lanes", name=name)
    lane = entry.load().open(LaneContext(load_settings(), Counters()))
    assert isinstance(lane, Lane)
    lane.close()


def test_opening_a_lane_imports_no_sdk() -> None:
    """Each costs a second, which a process that sends nothing does not pay."""
    program = """
import sys
import workhorse.testing
from lanes.sqs import SqsLane
from workhorse.ports import LaneContext
from workhorse.settings import load_settings
from workhorse.telemetry import Counters
lane = SqsLane.open(LaneContext(load_settings(), Counters()))
receiver = lane.receiver("default")
lane.reach_ms("default")
receiver.close()
lane.close()
heavy = {"boto3", "botocore", "aioboto3", "aiobotocore", "aiohttp", "pytest"}
sys.exit(", ".join(sorted(heavy & set(sys.modules))) or 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_process_that_forgets_to_close_ends_without_a_word(
    proxy: SqsProxy, endpoint: SqsEndpoint, prefix: str
) -> None:
    """A script that enqueues asynchronously and ends, with a receive still under way."""
    for client in ("boto3", "aioboto3"):
        endpoint.create_queue(f"{prefix}{client}")
    program = f"""
import asyncio, threading
from lanes.sqs import SqsLane
from workhorse.domain.ids import new_run_id
from workhorse.ports import LaneContext, Outgoing, Wakeup
from workhorse.settings import load_settings
from workhorse.telemetry import Counters
for client in ("boto3", "aioboto3"):
    lane = SqsLane.open(LaneContext(load_settings(aws_endpoint_url="{proxy.url}",
        sqs_queue_prefix="{prefix}", sqs_client=client), Counters()))
    receiver = lane.receiver(client)
    wakeups = [Outgoing(Wakeup(new_run_id(), client))]
    assert asyncio.run(lane.send_async(wakeups)).sent == 1
    assert len(receiver.receive(10, 20_000)) == 1
    threading.Thread(target=receiver.receive, args=(10, 20_000), daemon=True).start()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_client_that_is_not_installed_is_refused(
    open_lane: OpenLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"workhorse-lanes\[aio\]"):
        open_lane("aioboto3")
    with pytest.raises(ConfigurationError, match=r"workhorse-lanes\[lean\]"):
        open_lane("lean")
    lane = open_lane("auto")
    assert lane._async is lane._sync


def test_auto_takes_aioboto3_where_it_is_installed(
    open_lane: OpenLane, proxy: SqsProxy, endpoint: SqsEndpoint, prefix: str
) -> None:
    endpoint.create_queue(f"{prefix}q")
    lane = open_lane("auto")
    lane.receiver("q").receive(10, 0)
    lane.send([Outgoing(Wakeup(new_run_id(), "q"))])
    assert {call.client for call in proxy.made("ReceiveMessage")} == {"aioboto3"}
    assert {call.client for call in proxy.made("SendMessageBatch")} == {"boto3"}


def test_sends_and_receives_have_clients_of_their_own() -> None:
    """Long polls take neither a send's time-outs nor its connections."""
    calls = Boto3Calls(Endpoint("http://127.0.0.1:1", "us-east-1"), Timing())
    short, long = calls._both()
    assert short is not long
    assert (short.meta.config.connect_timeout, short.meta.config.read_timeout) == (1, 3)
    assert short.meta.config.retries["total_max_attempts"] == 2
    assert long.meta.config.read_timeout == 25
    assert Timing().long_poll_s == 20
    assert calls._both() == (short, long)
    asyncio.run(calls.close())
    with pytest.raises(LaneClosedError):
        calls._both()


def test_a_lane_is_used_by_many_threads_from_its_first_call_on(
    open_lane: OpenLane, client: str, endpoint: SqsEndpoint, prefix: str
) -> None:
    """Making a client is not safe in threads; the lane sees to it."""
    queue = endpoint.create_queue(f"{prefix}q")
    lane = open_lane(client)
    start = threading.Barrier(8)
    failed: list[object] = []

    def send(number: int) -> None:
        start.wait(20)
        outgoing = [Outgoing(Wakeup(new_run_id(), "q"))]
        report = lane.send(outgoing) if number % 2 else asyncio.run(lane.send_async(outgoing))
        if report.sent != 1:
            failed.append(report)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert queue.counts().visible == 8


# -- runners -------------------------------------------------------------------------------------


@pytest.fixture(params=["threads", "loop"])
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    made = ThreadRunner("test", most=2) if request.param == "threads" else LoopRunner("test")
    yield made
    made.close()


async def double(number: int) -> int:
    return 2 * number


async def fail() -> None:
    raise KeyError("x")


def test_a_job_gives_its_result_or_its_error(runner: Runner) -> None:
    assert [runner.submit(double, n).result(10) for n in range(20)] == [2 * n for n in range(20)]
    with pytest.raises(KeyError):
        runner.submit(fail).result(10)


def test_a_closed_runner_takes_no_job(runner: Runner) -> None:
    runner.submit(double, 1).result(10)
    runner.close()
    runner.close()
    with pytest.raises(LaneClosedError):
        runner.submit(double, 1).result(10)


def test_threads_are_bounded_and_what_waits_is_cancelled_at_the_end() -> None:
    runner = ThreadRunner("bounded", most=2)
    go = threading.Event()
    ran: list[int] = []

    async def block(number: int) -> None:
        ran.append(number)
        go.wait(20)

    futures = [runner.submit(block, number) for number in range(5)]
    eventually(lambda: len(ran) == 2)
    assert sum(t.name.startswith("workhorse-sqs-bounded") for t in threading.enumerate()) == 2
    runner.close()
    assert [future.cancelled() for future in futures] == [False, False, True, True, True]
    go.set()
    assert [future.result(10) for future in futures[:2]] == [None, None]


def test_a_waiting_job_can_be_cancelled() -> None:
    runner = ThreadRunner("cancelled", most=1)
    go = threading.Event()

    async def block() -> None:
        go.wait(20)

    first = runner.submit(block)
    second = runner.submit(double, 1)
    third = runner.submit(double, 2)
    assert second.cancel()
    go.set()
    assert first.result(10) is None
    assert third.result(10) == 4
    runner.close()


def test_a_job_for_threads_that_suspends_is_an_error_and_not_a_hang() -> None:
    runner = ThreadRunner("suspended", most=1)

    async def suspends() -> None:
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="suspended"):
        runner.submit(suspends).result(10)
    runner.close()


def test_cancelling_a_task_of_the_loop_ends_it() -> None:
    runner = LoopRunner("cancelled")
    ended = threading.Event()
    started = threading.Event()

    async def wait() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    future = runner.submit(wait)
    assert started.wait(10)
    future.cancel()
    assert ended.wait(10)
    runner.close()


# -- errors --------------------------------------------------------------------------------------


def test_a_description_holds_no_message_of_the_service() -> None:
    """For a bad signature it repeats the signed headers, the session token among them."""

    answer: Any = {
        "Error": {"Code": "SignatureDoesNotMatch", "Message": "x-amz-security-token:SECRET"},
        "ResponseMetadata": {"HTTPStatusCode": 403},
    }
    said = describe(ClientError(answer, "SendMessageBatch"))
    assert said == "SQS answered SendMessageBatch with SignatureDoesNotMatch (HTTP 403)"
    assert describe(ValueError("SECRET")) == "the answer of SQS cannot be read (ValueError)"


def test_a_code_that_is_none_is_shown_as_text() -> None:
    answer: Any = {"Error": {"Code": "\x1b[2J\nforged line \U000c3aa0" + "x" * 500}}

    said = describe(ClientError(answer, "ReceiveMessage"))

    assert said.isprintable()
    assert said.isascii()
    assert said.startswith(r"SQS answered ReceiveMessage with '\x1b[2J\nforged line ")
    assert len(said) < 150


# -- cost ----------------------------------------------------------------------------------------


def documented() -> dict[str, int]:
    """The cost table of the docs: calls by what is done."""
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\| (\d+) \|$", PAGE.read_text(), re.MULTILINE)
    return {name: int(count) for name, count in rows}


def test_the_cost_table_of_the_docs_is_true(
    open_lane: OpenLane, client: str, proxy: SqsProxy, endpoint: SqsEndpoint, prefix: str
) -> None:
    """Case 20: 100 wakeups sent by one process, received and deleted by another."""
    endpoint.create_queue(f"{prefix}q")
    producer, worker = open_lane(client), open_lane(client)
    receiver = worker.receiver("q")
    for _ in range(10):
        outgoing = [Outgoing(Wakeup(new_run_id(), "q")) for _ in range(10)]
        assert producer.send(outgoing).sent == 10
        receiver.settle([(message, DELETE) for message in receiver.receive(10, 20_000)])
    worker.close()

    assert proxy.counts() == documented()
    polls = proxy.made("ReceiveMessage")
    a_minute = {60 // call.parameters["WaitTimeSeconds"] for call in polls}
    assert f"{a_minute.pop()} receives a minute" in PAGE.read_text()


def test_the_type_of_the_lane_is_the_entry_points() -> None:
    (entry,) = entry_points(group="workhorse.lanes", name="sqs")
    assert entry.load() is SqsLane
