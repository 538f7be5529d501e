"""The suite of all lanes over SQS: both clients, standard and FIFO queues, a real HTTP endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from tests.lanes.conftest import OpenLane
from tests.support.sqs import SqsEndpoint
from tests.support.sqs_proxy import HANG_UP, SqsProxy
from workhorse.domain.sightings import DELETE, ShowAgain
from workhorse.ports import Lane, Outgoing, Receiver
from workhorse.testing import LaneSuite

SHORT = {"SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"}


class SqsSuite(LaneSuite):
    client = "boto3"
    fifo = False

    @pytest.fixture(autouse=True)
    def _kept(self, endpoint: SqsEndpoint, proxy: SqsProxy, prefix: str) -> None:
        self.endpoint, self.proxy, self.prefix = endpoint, proxy, prefix

    @pytest.fixture
    def lane(self, open_lane: OpenLane) -> Lane:  # type: ignore[override]
        return open_lane(self.client, sqs_fifo=self.fifo)

    def name_of(self, queue: str) -> str:
        return f"{self.prefix}{queue}" + (".fifo" if self.fifo else "")

    @pytest.fixture
    def queue(self, request: pytest.FixtureRequest, endpoint: SqsEndpoint) -> str:
        # A visibility below 30 s is something that a check complains of.
        checked = "healthy" in request.node.name
        seconds = 30 if checked else self.visibility_ms // 1000
        endpoint.create_queue(self.name_of("one"), visibility_s=seconds)
        return "one"

    @pytest.fixture
    def other_queue(self, endpoint: SqsEndpoint) -> str:
        endpoint.create_queue(self.name_of("two"), visibility_s=self.visibility_ms // 1000)
        return "two"

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
        """Synchronous sends are boto3's whatever is set; all else follows the setting."""
        wakeup = self.wakeup(queue)
        lane.send([Outgoing(wakeup)])
        first = self.collect(receiver, 1)
        receiver.settle([(first[0], ShowAgain(0))])
        second = self.collect(receiver, 1)
        receiver.settle([(second[0], DELETE)])
        self._heals(lambda: bool(self.proxy.made("DeleteMessageBatch")))
        assert {call.client for call in self.proxy.made("SendMessageBatch")} == {"boto3"}
        self.proxy.calls = [c for c in self.proxy.calls if c.operation != "SendMessageBatch"]

        asyncio.run(lane.send_async([Outgoing(wakeup)]))

        assert SHORT | {"ReceiveMessage"} <= set(self.proxy.counts())
        made = {c.client for c in self.proxy.made(*SHORT, "ReceiveMessage")}
        assert made == {self.client}


class TestSqsOverBoto3(SqsSuite):
    pass


class TestSqsOverAioboto3(SqsSuite):
    client = "aioboto3"


class TestSqsFifoOverBoto3(SqsSuite):
    fifo = True
    volume = 200
    delays_messages = False


class TestSqsFifoOverAioboto3(SqsSuite):
    client = "aioboto3"
    fifo = True
    volume = 200
    delays_messages = False
