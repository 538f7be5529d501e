"""The suite of all lanes over SQS: each client, standard and FIFO queues, a real HTTP endpoint."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from lanes.sqs import SqsLane, Timing
from tests.support.sqs import REGION, SqsEndpoint
from tests.support.sqs_proxy import HANG_UP, SqsProxy
from workhorse.domain.sightings import DELETE, ShowAgain
from workhorse.ports import Lane, LaneContext, Outgoing, Receiver
from workhorse.settings import load_settings
from workhorse.telemetry import Counters
from workhorse.testing import LaneSuite

# A machine that is busy is no broker that is away: that one hangs up here.
PATIENT = Timing(send_s=20.0, connect_s=10.0, read_s=20.0, grace_s=20.0)
SHORT = {"SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"}


@pytest.fixture(scope="class")
def proxy(endpoint: SqsEndpoint) -> Iterator[SqsProxy]:
    with SqsProxy(endpoint.url) as proxy:
        yield proxy


@pytest.fixture(scope="class")
def kept(proxy: SqsProxy) -> Iterator[list[SqsLane]]:
    """The lane of the tests before, since making the clients costs more than most tests."""
    lanes: list[SqsLane] = []
    yield lanes
    for lane in lanes:
        lane.close()


class SqsSuite(LaneSuite):
    client = "boto3"
    fifo = False

    @pytest.fixture(autouse=True)
    def _parts(self, endpoint: SqsEndpoint, proxy: SqsProxy) -> None:
        self.endpoint, self.proxy, self.prefix = endpoint, proxy, "suite-"
        proxy.forget()

    @pytest.fixture
    def lane(self, kept: list[SqsLane]) -> Lane:
        if not kept or kept[-1]._closed:
            settings = load_settings(
                aws_endpoint_url=self.proxy.url,
                aws_region=REGION,
                sqs_queue_prefix=self.prefix,
                sqs_client=self.client,
                sqs_fifo=self.fifo,
            )
            kept.append(SqsLane(LaneContext(settings, Counters()), timing=PATIENT))
        return kept[-1]

    def name_of(self, queue: str) -> str:
        return f"{self.prefix}{queue}" + (".fifo" if self.fifo else "")

    @pytest.fixture
    def queue(self, request: pytest.FixtureRequest, endpoint: SqsEndpoint) -> str:
        # A visibility below 30 s is something that a check complains of.
        checked = "healthy" in request.node.name
        seconds = 30 if checked else self.visibility_ms // 1000
        queue = uuid.uuid4().hex
        endpoint.create_queue(self.name_of(queue), visibility_s=seconds)
        return queue

    @pytest.fixture
    def other_queue(self, endpoint: SqsEndpoint) -> str:
        queue = uuid.uuid4().hex
        endpoint.create_queue(self.name_of(queue), visibility_s=self.visibility_ms // 1000)
        return queue

    def put_body(self, lane: Lane, queue: str, body: str) -> None:
        self.endpoint.queue(self.name_of(queue)).put(body)

    def broker_away(self, lane: Lane) -> AbstractContextManager[None]:
        @contextmanager
        def away() -> Iterator[None]:
            self.proxy.always(HANG_UP)
            yield
            self.proxy.fault = None

        return away()

    def test_the_calls_were_made_by_the_client_that_was_asked_for(
        self, lane: Lane, queue: str, receiver: Receiver
    ) -> None:
        """All follow the setting, but synchronous sends where it is aioboto3: they are boto3's."""
        wakeup = self.wakeup(queue)
        lane.send([Outgoing(wakeup)])
        first = self.collect(receiver, 1)
        receiver.settle([(first[0], ShowAgain(0))])
        second = self.collect(receiver, 1)
        receiver.settle([(second[0], DELETE)])
        self._heals(lambda: bool(self.proxy.made("DeleteMessageBatch")))
        blocking = "lean" if self.client == "lean" else "boto3"
        assert {call.client for call in self.proxy.made("SendMessageBatch")} == {blocking}
        self.proxy.calls = [c for c in self.proxy.calls if c.operation != "SendMessageBatch"]

        asyncio.run(lane.send_async([Outgoing(wakeup)]))

        assert SHORT | {"ReceiveMessage"} <= set(self.proxy.counts())
        made = {c.client for c in self.proxy.made(*SHORT, "ReceiveMessage")}
        assert made == {self.client}


class TestSqsOverBoto3(SqsSuite):
    pass


class TestSqsOverAioboto3(SqsSuite):
    client = "aioboto3"


class TestSqsOverLean(SqsSuite):
    client = "lean"


class TestSqsFifoOverBoto3(SqsSuite):
    fifo = True
    volume = 200
    delays_messages = False


class TestSqsFifoOverAioboto3(SqsSuite):
    client = "aioboto3"
    fifo = True
    volume = 200
    delays_messages = False


class TestSqsFifoOverLean(SqsSuite):
    client = "lean"
    fifo = True
    volume = 200
    delays_messages = False
