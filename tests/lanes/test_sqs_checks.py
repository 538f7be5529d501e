"""What a look at a queue finds, said so that an operator knows what to do."""

from __future__ import annotations

import json
import traceback
from typing import Any

import pytest

from lanes.sqs import SqsLane, Timing
from tests.lanes.conftest import OpenLane
from tests.support.eventually import eventually
from tests.support.sqs import SqsEndpoint
from tests.support.sqs_proxy import DENIED, SWALLOW, Answer, SqsProxy, error


@pytest.fixture(params=["boto3", "lean"])
def lane(request: pytest.FixtureRequest, open_lane: OpenLane) -> SqsLane:
    return open_lane(request.param, timing=Timing(look_s=3.0))


@pytest.fixture
def queue(endpoint: SqsEndpoint, prefix: str) -> str:
    return endpoint.create_queue(f"{prefix}q", dead_letters_after=10).name


def the_one(sentences: Any) -> str:
    (sentence,) = sentences
    return str(sentence)


@pytest.mark.usefixtures("queue")
def test_a_queue_as_the_docs_advise_it_has_nothing_wrong(lane: SqsLane) -> None:
    assert lane.check("q") == []


def test_a_missing_queue_is_named_with_its_region(lane: SqsLane, prefix: str) -> None:
    sentence = the_one(lane.check("q"))
    assert f"no queue {prefix}q in region us-east-1" in sentence
    assert "create it" in sentence


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (DENIED, "sqs:ReceiveMessage"),
        (error("AccessDeniedException", 400), "access to"),
        (error("ExpiredToken", 403), "credentials have expired"),
        (error("InvalidClientTokenId", 403), "does not accept the AWS credentials"),
        (error("SignatureDoesNotMatch", 403), "does not accept the AWS credentials"),
        (error("ThrottlingException", 400), "ThrottlingException"),
        (error("ServiceUnavailable", 503), "ServiceUnavailable"),
        (SWALLOW, "did not answer within 3 s"),
    ],
)
@pytest.mark.usefixtures("queue")
def test_an_error_is_told_as_what_to_do(
    lane: SqsLane, proxy: SqsProxy, answer: Answer | str, said: str
) -> None:
    proxy.always(answer)
    sentence = the_one(lane.check("q"))
    assert said in sentence
    assert sentence.startswith("queue q: ")
    assert "secret" not in sentence


def test_an_endpoint_where_nobody_listens(lane: SqsLane, proxy: SqsProxy) -> None:
    proxy.close()
    assert "check the network, the endpoint and the region" in the_one(lane.check("q"))


def test_credentials_that_are_absent(
    lane: SqsLane, monkeypatch: pytest.MonkeyPatch, queue: str
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert "there are no AWS credentials" in the_one(lane.check("q"))


def test_a_region_that_is_not_set(
    open_lane: OpenLane, monkeypatch: pytest.MonkeyPatch, queue: str
) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert "no AWS region is set" in the_one(open_lane(aws_region=None).check("q"))


def test_an_address_in_another_region(open_lane: OpenLane) -> None:
    url = "https://sqs.eu-central-1.amazonaws.com/123456789012/orders"
    lane = open_lane(aws_endpoint_url=None, sqs_queue_urls={"q": url})
    sentence = the_one(lane.check("q"))
    assert "eu-central-1" in sentence
    assert "us-east-1" in sentence


def test_a_name_that_sqs_does_not_allow(lane: SqsLane) -> None:
    assert "not a name" in the_one(lane.check("Not A Queue"))


def test_a_closed_lane_says_so(lane: SqsLane) -> None:
    lane.close()
    assert "closed" in the_one(lane.check("q"))


# -- settings of the queue -----------------------------------------------------------------------


def test_no_dead_letter_queue_is_a_note(lane: SqsLane, endpoint: SqsEndpoint, prefix: str) -> None:
    endpoint.create_queue(f"{prefix}q")
    assert the_one(lane.check("q")).startswith("Note: queue q has no dead-letter queue")


@pytest.mark.parametrize(("receives", "warned"), [(1, True), (4, True), (5, False)])
def test_a_low_receive_count_is_warned_of(
    lane: SqsLane, endpoint: SqsEndpoint, prefix: str, receives: int, warned: bool
) -> None:
    endpoint.create_queue(f"{prefix}q", dead_letters_after=receives)
    found = lane.check("q")
    assert bool(found) is warned
    if warned:
        assert f"maxReceiveCount is {receives}" in the_one(found)


@pytest.mark.parametrize(("seconds", "warned"), [(0, True), (29, True), (30, False)])
def test_a_low_visibility_is_warned_of(
    lane: SqsLane, endpoint: SqsEndpoint, prefix: str, seconds: int, warned: bool
) -> None:
    endpoint.create_queue(f"{prefix}q", visibility_s=seconds, dead_letters_after=10)
    found = lane.check("q")
    assert bool(found) is warned
    if warned:
        assert f"time-out is {seconds} s" in the_one(found)
        assert "six times" in the_one(found)


def test_a_queue_that_delays_everything_is_warned_of(
    lane: SqsLane, endpoint: SqsEndpoint, prefix: str
) -> None:
    endpoint.create_queue(f"{prefix}q", dead_letters_after=10, DelaySeconds="60")
    assert "delays every message by 60 s" in the_one(lane.check("q"))


def test_dead_lettered_wakeups_are_counted_and_called_harmless(
    lane: SqsLane, endpoint: SqsEndpoint, prefix: str
) -> None:
    """Case 5: received once too often without being looked at, and no run is lost by it."""
    queue = endpoint.create_queue(f"{prefix}q", dead_letters_after=1)
    for _ in range(3):
        queue.put("a wakeup")
    dead = endpoint.queue(f"dead-{queue.name}")

    def received_too_often() -> bool:
        queue._client.receive_message(
            QueueUrl=queue.url, MaxNumberOfMessages=10, VisibilityTimeout=0
        )
        return dead.counts().visible == 3

    eventually(received_too_often)

    low, note = lane.check("q")
    assert "maxReceiveCount is 1" in low
    assert note.startswith("Note: ")
    assert "holds about 3 messages" in note
    assert "dead-lettered wakeups are harmless" in note


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("not json", "redrive policy cannot be read"),
        ("[]", "redrive policy cannot be read"),
        (
            json.dumps(
                {
                    "deadLetterTargetArn": "arn:aws:sqs:us-east-1:123456789012:lost",
                    "maxReceiveCount": "10",
                }
            ),
            "cannot be looked at",
        ),
        (
            json.dumps({"deadLetterTargetArn": "not an arn!", "maxReceiveCount": 10}),
            "cannot be looked at",
        ),
    ],
)
def test_a_policy_that_leads_nowhere_is_said(
    lane: SqsLane, proxy: SqsProxy, queue: str, policy: str, said: str
) -> None:
    answer = Answer(200, {"Attributes": {"VisibilityTimeout": "30", "RedrivePolicy": policy}})
    proxy.always(answer, "GetQueueAttributes")
    assert said in the_one(lane.check("q"))


def test_a_backlog_that_cannot_be_read_raises(lane: SqsLane) -> None:
    with pytest.raises(Exception, match="QueueDoesNotExist|NonExistentQueue"):
        lane.backlog("q")


def test_a_backlog_that_is_refused_says_so_without_the_services_words(
    lane: SqsLane, proxy: SqsProxy, queue: str
) -> None:
    """Maintenance logs it."""
    proxy.always(DENIED, "GetQueueAttributes")
    with pytest.raises(Exception, match="AccessDenied") as raised:
        lane.backlog("q")
    assert "secret" not in "".join(traceback.format_exception(raised.value))
