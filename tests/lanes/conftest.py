"""What the tests of the SQS lane share: an endpoint, a proxy before it, lanes over each client."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lanes.sqs import SqsLane, Timing
from tests.support.emulators import chosen, sqs_endpoint
from tests.support.sqs import REGION, SqsEndpoint
from tests.support.sqs_proxy import SqsProxy
from workhorse.ports import LaneContext
from workhorse.settings import load_settings
from workhorse.telemetry import Counters

OpenLane = Callable[..., SqsLane]


@pytest.fixture(scope="session", params=chosen())
def endpoint(request: pytest.FixtureRequest) -> Iterator[SqsEndpoint]:
    """Each emulator that was chosen, moto's server alone by default; tests share it."""
    with sqs_endpoint(request.param) as endpoint:
        yield endpoint


@pytest.fixture
def proxy(endpoint: SqsEndpoint) -> Iterator[SqsProxy]:
    """A proxy before the endpoint."""
    with SqsProxy(endpoint.url) as proxy:
        yield proxy


@pytest.fixture
def prefix() -> str:
    """A prefix that keeps this test's queues apart from all others'."""
    return f"t{uuid.uuid4().hex[:8]}-"


@pytest.fixture
def counters() -> Counters:
    return Counters()


@pytest.fixture
def open_lane(prefix: str, proxy: SqsProxy, counters: Counters) -> Iterator[OpenLane]:
    """Opens lanes that reach the endpoint through the proxy; closes them afterwards."""
    lanes: list[SqsLane] = []

    def opened(client: str = "boto3", *, timing: Timing | None = None, **more: Any) -> SqsLane:
        given = {
            "lane": "sqs",
            "aws_endpoint_url": proxy.url,
            "aws_region": REGION,
            "sqs_queue_prefix": prefix,
            "sqs_client": client,
        }
        lane = SqsLane(LaneContext(load_settings(**given | more), counters), timing=timing)
        lanes.append(lane)
        return lane

    yield opened
    proxy.fault = None
    for lane in lanes:
        lane.close()


@pytest.fixture(params=["boto3", "aioboto3", "lean"])
def client(request: pytest.FixtureRequest) -> str:
    """Each client, by its name in the settings."""
    return str(request.param)


@pytest.fixture
def lane(open_lane: OpenLane, client: str) -> SqsLane:
    """A lane over each client, with shortened time-outs."""
    return open_lane(client, timing=Timing(grace_s=2.5, long_connect_s=2.0, close_s=0.5))
