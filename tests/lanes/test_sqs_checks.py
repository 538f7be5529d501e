"""What a look at a queue finds, said so that an operator knows what to do."""

from __future__ import annotations

import json
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from lanes.sqs import SqsLane, Timing
from lanes.sqs.explaining import explain
from lanes.sqs.translating import refusal
from tests.lanes.conftest import OpenLane
from tests.support.eventually import eventually
from tests.support.sqs import SqsEndpoint
from tests.support.sqs_proxy import DENIED, GONE, SWALLOW, Answer, SqsProxy, error
from workhorse.domain.findings import Code, Finding, Severity
from workhorse.ports import LaneError

PATIENT = Timing(look_s=60.0)  # what is asked here answers, however busy the machine is
HASTY = Timing(look_s=3.0)  # for what never answers


@pytest.fixture(params=["boto3", "lean"])
def lane(request: pytest.FixtureRequest, open_lane: OpenLane) -> SqsLane:
    return open_lane(request.param, timing=PATIENT)


@pytest.fixture
def queue(endpoint: SqsEndpoint, prefix: str) -> str:
    return endpoint.create_queue(f"{prefix}q", dead_letters_after=10).name


def the_one(found: Sequence[Finding], code: Code, severity: Severity = Severity.WARNING) -> str:
    """Return what the only finding says, and what is to be done."""
    (finding,) = found
    assert (finding.code, finding.severity, finding.queue) == (code, severity, "q")
    assert finding.message.startswith("queue q: ")
    return finding.sentence


@pytest.mark.usefixtures("queue")
def test_a_queue_as_the_docs_advise_it_has_nothing_wrong(lane: SqsLane) -> None:
    assert lane.check("q") == []


def test_a_missing_queue_is_named_with_its_region(lane: SqsLane, prefix: str) -> None:
    sentence = the_one(lane.check("q"), Code.QUEUE_MISSING)
    assert f"no queue {prefix}q in region us-east-1" in sentence
    assert "create it" in sentence


@pytest.mark.parametrize(("minutes", "said"), [(10, "10 min ahead of"), (-10, "10 min behind")])
@pytest.mark.parametrize("code", ["SignatureDoesNotMatch", "InvalidSignatureException"])
@pytest.mark.usefixtures("queue")
def test_case_10_a_wrong_clock_is_why_signatures_are_refused(
    lane: SqsLane, proxy: SqsProxy, code: str, minutes: int, said: str
) -> None:
    """SQS says what time it has, whichever client asks."""
    theirs = format_datetime(datetime.now(UTC) - timedelta(minutes=minutes), usegmt=True)
    refused = error(code, 403)
    proxy.always(Answer(refused.status, refused.body, {"Date": theirs}))
    sentence = the_one(lane.check("q"), Code.CLOCK_SKEW)
    assert f"clock is {said} SQS's" in sentence
    assert "NTP" in sentence


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (DENIED, Code.ACCESS_DENIED, "sqs:GetQueueUrl on"),
        (error("AccessDeniedException", 400), Code.ACCESS_DENIED, "allow sqs:GetQueueUrl"),
        (error("ExpiredToken", 403), Code.CREDENTIALS_EXPIRED, "have expired; renew them"),
        (error("InvalidClientTokenId", 403), Code.CREDENTIALS_REFUSED, "does not accept"),
        (error("SignatureDoesNotMatch", 403), Code.CREDENTIALS_REFUSED, "machine's clock"),
        (error("ThrottlingException", 400), Code.BROKER_FAILED, "ThrottlingException"),
        (error("ServiceUnavailable", 503), Code.BROKER_FAILED, "ServiceUnavailable"),
    ],
    ids=[
        "denied",
        "denied in the JSON protocol",
        "expired",
        "unknown key",
        "wrong signature",
        "throttled",
        "unavailable",
    ],
)
@pytest.mark.usefixtures("queue")
def test_an_error_is_told_as_what_to_do(
    lane: SqsLane, proxy: SqsProxy, answer: Answer, code: Code, said: str
) -> None:
    proxy.always(answer)
    sentence = the_one(lane.check("q"), code)
    assert said in sentence
    assert "secret" not in sentence


@pytest.mark.parametrize("client", ["boto3", "lean"])
@pytest.mark.usefixtures("queue")
def test_a_silent_endpoint_is_told_as_what_to_do(
    open_lane: OpenLane, client: str, proxy: SqsProxy
) -> None:
    proxy.always(SWALLOW)
    said = the_one(open_lane(client, timing=HASTY).check("q"), Code.ENDPOINT_UNREACHABLE)
    assert "did not answer within 3 s" in said
    assert "secret" not in said


@pytest.mark.usefixtures("queue")
def test_a_denied_action_is_named(lane: SqsLane, proxy: SqsProxy) -> None:
    proxy.always(DENIED, "GetQueueAttributes")
    (finding,) = lane.check("q")
    assert (finding.code, finding.action) == (Code.ACCESS_DENIED, "sqs:GetQueueAttributes")


def test_an_endpoint_where_nobody_listens(lane: SqsLane, proxy: SqsProxy) -> None:
    proxy.close()
    said = the_one(lane.check("q"), Code.ENDPOINT_UNREACHABLE)
    assert "check the network, the endpoint and the region" in said


def test_credentials_that_are_absent(
    lane: SqsLane, monkeypatch: pytest.MonkeyPatch, queue: str
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert "there are no AWS credentials" in the_one(lane.check("q"), Code.CREDENTIALS_MISSING)


def test_a_region_that_is_not_set(
    open_lane: OpenLane, monkeypatch: pytest.MonkeyPatch, queue: str
) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    found = open_lane(aws_region=None).check("q")
    assert "no AWS region is set" in the_one(found, Code.REGION_MISSING)


def test_an_address_in_another_region(open_lane: OpenLane) -> None:
    url = "https://sqs.eu-central-1.amazonaws.com/123456789012/orders"
    lane = open_lane(aws_endpoint_url=None, sqs_queue_urls={"q": url})
    sentence = the_one(lane.check("q"), Code.WRONG_REGION)
    assert "eu-central-1" in sentence
    assert "us-east-1" in sentence


def test_an_address_in_another_region_than_a_dual_stack_endpoint_s(
    open_lane: OpenLane, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_USE_DUALSTACK_ENDPOINT", "true")
    arn = "arn:aws:sqs:eu-central-1:123456789012:orders"
    lane = open_lane(client, aws_endpoint_url=None, sqs_queue_urls={"q": arn})
    the_one(lane.check("q"), Code.WRONG_REGION)


def test_regions_mean_nothing_at_an_emulator_that_the_environment_names(
    open_lane: OpenLane, client: str, proxy: SqsProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
    arn = "arn:aws:sqs:eu-central-1:123456789012:nowhere"
    lane = open_lane(client, aws_endpoint_url=None, sqs_queue_urls={"q": arn})
    the_one(lane.check("q"), Code.QUEUE_MISSING)
    the_one(lane.probe("q"), Code.QUEUE_MISSING)


def test_a_name_that_sqs_does_not_allow(lane: SqsLane) -> None:
    (finding,) = lane.check("Not A Queue")
    assert (finding.code, finding.severity) == (Code.LANE_MISCONFIGURED, Severity.ERROR)
    assert "not a name" in finding.message


def test_a_closed_lane_says_so(lane: SqsLane) -> None:
    lane.close()
    assert "closed" in the_one(lane.check("q"), Code.LANE_FAILED)
    assert "closed" in the_one(lane.probe("q"), Code.LANE_FAILED)


# -- settings of the queue -----------------------------------------------------------------------


def test_no_dead_letter_queue_is_a_note(lane: SqsLane, endpoint: SqsEndpoint, prefix: str) -> None:
    endpoint.create_queue(f"{prefix}q")
    said = the_one(lane.check("q"), Code.NO_DEAD_LETTER_QUEUE, Severity.NOTE)
    assert "no dead-letter queue" in said


@pytest.mark.parametrize(("receives", "warned"), [(1, True), (4, True), (5, False)])
def test_case_5_a_low_receive_count_is_warned_of(
    lane: SqsLane, endpoint: SqsEndpoint, prefix: str, receives: int, warned: bool
) -> None:
    endpoint.create_queue(f"{prefix}q", dead_letters_after=receives)
    found = lane.check("q")
    assert bool(found) is warned
    if warned:
        said = the_one(found, Code.LOW_MAX_RECEIVE_COUNT)
        assert f"maxReceiveCount is {receives}" in said


@pytest.mark.parametrize(("seconds", "warned"), [(0, True), (29, True), (30, False)])
def test_case_5_a_low_visibility_is_warned_of(
    lane: SqsLane, endpoint: SqsEndpoint, prefix: str, seconds: int, warned: bool
) -> None:
    endpoint.create_queue(f"{prefix}q", visibility_s=seconds, dead_letters_after=10)
    found = lane.check("q")
    assert bool(found) is warned
    if warned:
        said = the_one(found, Code.VISIBILITY_TOO_SHORT)
        assert f"time-out is {seconds} s" in said
        assert "six times" in said


@pytest.mark.parametrize(
    ("timeout_s", "visibility_s", "least"), [(20, 119, 120), (20, 120, None), (4, 30, None)]
)
def test_case_5_a_visibility_is_held_against_the_functions_timeout(
    open_lane: OpenLane,
    endpoint: SqsEndpoint,
    prefix: str,
    timeout_s: int,
    visibility_s: int,
    least: int | None,
) -> None:
    """A delivery that Lambda throttles is tried again by it for that long."""
    endpoint.create_queue(f"{prefix}q", visibility_s=visibility_s, dead_letters_after=10)
    found = open_lane(function_timeout_seconds=timeout_s).check("q")
    assert bool(found) is (least is not None)
    if least is not None:
        said = the_one(found, Code.VISIBILITY_TOO_SHORT)
        assert "less than six times the 20 s" in said
        assert f"set {least} s or more" in said


def test_a_queue_that_delays_everything_is_warned_of(
    lane: SqsLane, endpoint: SqsEndpoint, prefix: str
) -> None:
    endpoint.create_queue(f"{prefix}q", dead_letters_after=10, DelaySeconds="60")
    assert "delays every message by 60 s" in the_one(lane.check("q"), Code.QUEUE_DELAYS)


def test_case_5_dead_lettered_wakeups_are_counted_and_called_harmless(
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
    assert low.code is Code.LOW_MAX_RECEIVE_COUNT
    said = the_one([note], Code.DEAD_LETTERS, Severity.NOTE)
    assert "holds about 3 messages" in said
    assert "dead-lettered wakeups are harmless" in said
    assert "workhorse dlq drain --queue q" in said


@pytest.mark.parametrize(
    ("policy", "code"),
    [
        ("not json", Code.UNREADABLE_REDRIVE_POLICY),
        ("[]", Code.UNREADABLE_REDRIVE_POLICY),
        ("[" * 200_000, Code.UNREADABLE_REDRIVE_POLICY),
        ('{"maxReceiveCount": 1e999}', Code.UNREADABLE_REDRIVE_POLICY),
        (
            json.dumps(
                {
                    "deadLetterTargetArn": "arn:aws:sqs:us-east-1:123456789012:lost",
                    "maxReceiveCount": "10",
                }
            ),
            Code.DEAD_LETTERS_UNSEEN,
        ),
        (
            json.dumps({"deadLetterTargetArn": "not an arn!", "maxReceiveCount": 10}),
            Code.DEAD_LETTERS_UNSEEN,
        ),
    ],
    ids=["no json", "a list", "nested", "infinite", "to nowhere", "to no arn"],
)
def test_a_policy_that_leads_nowhere_is_said(
    lane: SqsLane, proxy: SqsProxy, queue: str, policy: str, code: Code
) -> None:
    answer = Answer(200, {"Attributes": {"VisibilityTimeout": "30", "RedrivePolicy": policy}})
    proxy.always(answer, "GetQueueAttributes")
    bad = code is Code.UNREADABLE_REDRIVE_POLICY
    the_one(lane.check("q"), code, Severity.WARNING if bad else Severity.NOTE)


# -- what a worker may do ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["q", "q.fifo"])
def test_a_probe_of_a_queue_that_is_well(
    open_lane: OpenLane, client: str, endpoint: SqsEndpoint, prefix: str, kind: str
) -> None:
    """And it touches no message, whether visible or in flight."""
    queue = endpoint.create_queue(f"{prefix}{kind}")
    for number in range(3):
        queue.put("a wakeup", **({"MessageGroupId": str(number)} if ".fifo" in kind else {}))
    queue.take(1)
    before = queue.counts()

    assert open_lane(client, sqs_queue_urls={"q": queue.name}).probe("q") == []

    assert queue.counts() == before
    assert (before.visible, before.in_flight) == (2, 1)


@pytest.mark.parametrize(
    ("denied", "actions"),
    [
        (("DeleteMessageBatch",), ["sqs:DeleteMessage"]),
        (("ChangeMessageVisibilityBatch",), ["sqs:ChangeMessageVisibility"]),
        (
            ("DeleteMessageBatch", "ChangeMessageVisibilityBatch"),
            ["sqs:DeleteMessage", "sqs:ChangeMessageVisibility"],
        ),
        (("GetQueueUrl",), ["sqs:GetQueueUrl"]),
    ],
    ids=["delete", "visibility", "both", "url"],
)
@pytest.mark.usefixtures("queue")
def test_a_probe_names_what_a_worker_may_not_do(
    open_lane: OpenLane,
    client: str,
    proxy: SqsProxy,
    denied: tuple[str, ...],
    actions: list[str],
) -> None:
    proxy.always(DENIED, *denied)
    found = open_lane(client).probe("q")
    assert {each.code for each in found} == {Code.ACCESS_DENIED}
    assert [each.action for each in found] == actions
    for each in found:
        assert f"no permission: {each.action} on" in each.message
        assert f"allow {each.action} in the role" in each.advice


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (GONE, Code.QUEUE_MISSING),
        (error("ExpiredToken", 403), Code.CREDENTIALS_EXPIRED),
        (SWALLOW, Code.ENDPOINT_UNREACHABLE),
    ],
    ids=["gone", "expired", "silent"],
)
@pytest.mark.usefixtures("queue")
def test_a_probe_tells_one_trouble_once(
    open_lane: OpenLane, client: str, proxy: SqsProxy, answer: Answer | str, code: Code
) -> None:
    proxy.always(answer)
    timing = HASTY if answer is SWALLOW else PATIENT
    (finding,) = open_lane(client, timing=timing).probe("q")
    assert finding.code is code


@pytest.mark.parametrize("answer", [error("ReceiptHandleIsInvalid", 400), error("Throttled", 400)])
@pytest.mark.usefixtures("queue")
def test_a_probe_takes_other_refusals_for_no_trouble(
    lane: SqsLane, proxy: SqsProxy, answer: Answer
) -> None:
    """The handle names no message, so it is to be refused."""
    proxy.always(answer, "DeleteMessageBatch", "ChangeMessageVisibilityBatch")
    assert lane.probe("q") == []


@pytest.mark.usefixtures("queue")
def test_a_receive_that_is_refused_says_which_permission_is_missing(
    open_lane: OpenLane, client: str, proxy: SqsProxy
) -> None:
    proxy.always(DENIED, "ReceiveMessage")
    with pytest.raises(LaneError, match="no permission: sqs:ReceiveMessage") as raised:
        open_lane(client).receiver("q").receive(1, 0)
    assert raised.value.finding.action == "sqs:ReceiveMessage"


@pytest.mark.parametrize(
    ("operation", "action"),
    [("ReceiveMessage", "kms:Decrypt"), ("SendMessageBatch", "kms:GenerateDataKey")],
)
def test_a_key_that_may_not_be_used_is_not_taken_for_the_queue(operation: str, action: str) -> None:
    """SQS says so under a code of its own."""
    refused = refusal(operation, 400, {}, b'{"__type": "com.amazonaws.sqs#KmsAccessDenied"}')
    finding = explain(refused, "q")
    assert (finding.code, finding.action) == (Code.ACCESS_DENIED, action)


def test_a_backlog_that_cannot_be_read_raises(lane: SqsLane) -> None:
    with pytest.raises(LaneError, match="has no queue") as raised:
        lane.backlog("q")
    assert raised.value.finding.code is Code.QUEUE_MISSING


@pytest.mark.parametrize(
    "attributes",
    [{}, {"ApproximateNumberOfMessages": "many"}, {"ApproximateNumberOfMessages": None}],
    ids=["none", "no number", "null"],
)
@pytest.mark.usefixtures("queue")
def test_a_backlog_that_is_no_number_is_an_answer_that_cannot_be_read(
    open_lane: OpenLane, proxy: SqsProxy, attributes: dict[str, object]
) -> None:
    proxy.always(Answer(200, {"Attributes": attributes}), "GetQueueAttributes")
    with pytest.raises(LaneError, match=r"^queue q: the answer of SQS cannot be read \("):
        open_lane("lean", timing=PATIENT).backlog("q")


@pytest.mark.usefixtures("queue")
def test_a_backlog_that_does_not_come_is_said_with_the_time_that_was_waited(
    open_lane: OpenLane, proxy: SqsProxy
) -> None:
    proxy.always(SWALLOW, "GetQueueAttributes")
    lane = open_lane("lean", timing=Timing(look_s=0.2, read_s=30))
    with pytest.raises(LaneError, match=r"queue q: SQS did not answer within 0\.2 s; check the"):
        lane.backlog("q")


def test_settings_that_are_no_numbers_are_taken_for_the_usual_ones(
    open_lane: OpenLane, proxy: SqsProxy, queue: str
) -> None:
    answer = Answer(200, {"Attributes": {"VisibilityTimeout": [], "DelaySeconds": "soon"}})
    proxy.always(answer, "GetQueueAttributes")
    the_one(open_lane("lean").check("q"), Code.NO_DEAD_LETTER_QUEUE, Severity.NOTE)


def test_a_backlog_that_is_refused_says_so_without_the_services_words(
    lane: SqsLane, proxy: SqsProxy, queue: str
) -> None:
    """Maintenance logs it."""
    proxy.always(DENIED, "GetQueueAttributes")
    with pytest.raises(LaneError, match="sqs:GetQueueAttributes") as raised:
        lane.backlog("q")
    assert "secret" not in "".join(traceback.format_exception(raised.value))
