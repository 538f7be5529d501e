"""A broker that throttles or fails is asked less and less, ends no loop, and delays runs alone.

On simulated time, so that an hour's calls can be counted; see `simulation`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from tests.lanes.simulation import Fleet
from workhorse.store.base.database import ManualClock
from workhorse.telemetry import Metric

MINUTE_MS = 60_000


def refusal(code: str, status: int) -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": ""}, "ResponseMetadata": {"HTTPStatusCode": status}},  # type: ignore[typeddict-item]
        "an operation",
    )


FAULTS: dict[str, Exception] = {
    "throttling": refusal("ThrottlingException", 400),
    "request-throttled": refusal("RequestThrottled", 400),
    "over-limit": refusal("OverLimit", 403),
    "unavailable": refusal("ServiceUnavailable", 503),
    "internal": refusal("InternalFailure", 500),
    "expired": refusal("ExpiredToken", 403),
    "unreached": EndpointConnectionError(endpoint_url="https://sqs.invalid"),
}


@pytest.fixture
def fleet(sqlite_url: str, clock: ManualClock) -> Iterator[Fleet]:
    fleet = Fleet(sqlite_url, clock)
    yield fleet
    fleet.close()


@pytest.mark.parametrize("fault", list(FAULTS.values()), ids=list(FAULTS))
def test_case_11_receives_back_off_and_runs_go_on_by_scans(fleet: Fleet, fault: Exception) -> None:
    fleet.start(1)
    fleet.run(MINUTE_MS)
    fleet.broker.faults["receive_message"] = fault
    before = len(fleet.broker.receives_at)

    fleet.run(10 * MINUTE_MS)

    at = fleet.broker.receives_at[before + 1 :]  # the first was under way
    gaps = [later - earlier for earlier, later in pairwise(at)]
    assert len(at) <= 45  # 0.5 s, 1 s, 2 s ... 30 s, with jitter, in ten minutes
    assert all(gap >= 250 for gap in gaps)
    assert all(gap >= 15_000 for gap in gaps[10:])

    fleet.enqueue([0])
    fleet.run(MINUTE_MS)
    assert fleet.finished == 1  # found by a scan
    assert not [name for name in fleet.counters.snapshot() if Metric.LOOP_RESTARTS in name]

    fleet.broker.faults.clear()
    fleet.run(MINUTE_MS)
    assert fleet.broker.messages == 0  # the first receive that succeeds clears it away


@pytest.mark.parametrize("fault", list(FAULTS.values()), ids=list(FAULTS))
def test_case_11_sends_are_made_once_and_left_to_the_nets(fleet: Fleet, fault: Exception) -> None:
    """Of what is below the seam there are two tries; above it no more are added to them."""
    fleet.start(1)
    fleet.broker.faults["send_message_batch"] = fault
    fleet.enqueue([0] * 10)

    fleet.run(MINUTE_MS)

    assert fleet.broker.counts["send_message_batch"] == 1
    assert fleet.app.counters.get(Metric.WAKEUPS_NOT_SENT) == 10
    assert fleet.finished == 10


@pytest.mark.parametrize("fault", list(FAULTS.values()), ids=list(FAULTS))
def test_case_20_deletes_that_fail_are_made_again_with_the_message(
    fleet: Fleet, fault: Exception
) -> None:
    fleet.start(1)
    before = fleet.broker.counts["delete_message_batch"]
    fleet.broker.faults["delete_message_batch"] = fault
    fleet.enqueue([0] * 10)

    fleet.run(10 * MINUTE_MS)

    made = fleet.broker.counts["delete_message_batch"] - before
    assert fleet.finished == 10
    assert 2 <= made <= 45  # when they are visible again, each 30 s, and not in a circle
    assert fleet.broker.messages == 10

    fleet.broker.faults.clear()
    fleet.run(MINUTE_MS)
    assert fleet.broker.messages == 0
    assert fleet.finished == 10
