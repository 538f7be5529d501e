"""What the product relies on in SQS, asked of each emulator by a client of the tests' own.

The first line of each test says what SQS does. Where an emulator does otherwise, it stands in
tests/support/emulator_differences.py, and the test is then expected to fail there.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.support.sqs import Counts, SqsEndpoint, SqsQueue, raw_client

Create = Callable[..., SqsQueue]


@pytest.fixture
def create(endpoint: SqsEndpoint) -> Iterator[Create]:
    """Makes queues with names of their own, and deletes them afterwards."""
    made: list[SqsQueue] = []

    def create(suffix: str = "", **options: Any) -> SqsQueue:
        made.append(endpoint.create_queue(f"f{uuid.uuid4().hex[:12]}{suffix}", **options))
        return made[-1]

    yield create
    for queue in made:
        queue.delete()


@pytest.fixture
def queue(create: Create) -> SqsQueue:
    return create()


class Batches:
    """The three calls of ten, by what each makes of its entries."""

    def __init__(self, endpoint: SqsEndpoint, queue: SqsQueue) -> None:
        self._client: Any = endpoint.client
        self._url = queue.url

    def send(self, *entries: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
        return self._made("send_message_batch", entries)

    def delete(self, *entries: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
        return self._made("delete_message_batch", entries)

    def show_again(self, *entries: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
        return self._made("change_message_visibility_batch", entries)

    def _made(self, call: str, entries: Any) -> tuple[list[str], dict[str, str]]:
        answer = getattr(self._client, call)(QueueUrl=self._url, Entries=list(entries))
        failed = {entry["Id"]: entry["Code"] for entry in answer.get("Failed", ())}
        return [entry["Id"] for entry in answer.get("Successful", ())], failed


@pytest.fixture
def batches(endpoint: SqsEndpoint, queue: SqsQueue) -> Batches:
    return Batches(endpoint, queue)


def _code(call: Callable[..., Any], **parameters: Any) -> str:
    """Return the code that a call is refused with, without its namespace."""
    return _whole_code(call, **parameters).rpartition(".")[2]


def _whole_code(call: Callable[..., Any], **parameters: Any) -> str:
    with pytest.raises(ClientError) as refused:
        call(**parameters)
    return str(refused.value.response["Error"]["Code"])


def _received(queue: SqsQueue) -> dict[str, Any]:
    """Wait for a message and receive it."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        taken = queue.take(1, wait_s=5)
        if taken:
            return taken[0]
    raise AssertionError(f"nothing came, {queue.name} holds {queue.counts()}")


# -- receiving -----------------------------------------------------------------------------------


def test_a_long_poll_waits(queue: SqsQueue) -> None:
    """A long poll of an empty queue waits as long as it was told, and answers nothing."""
    began = time.monotonic()
    assert queue.take(wait_s=2) == []
    assert time.monotonic() - began > 1.5


def test_a_message_ends_a_long_poll(endpoint: SqsEndpoint, queue: SqsQueue) -> None:
    """A message that comes ends a long poll."""
    other = raw_client(endpoint.url)
    with ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        waiting = pool.submit(other.receive_message, QueueUrl=queue.url, WaitTimeSeconds=20)
        queue.put("come")
        (message,) = waiting.result(60)["Messages"]
    assert message["Body"] == "come"
    assert time.monotonic() - began < 15
    other.close()


def test_long_polls_do_not_stand_in_the_way(endpoint: SqsEndpoint, create: Create) -> None:
    """Long polls that are open keep no other call waiting."""
    busy, other = create(), create()
    polls, begun = 20, threading.Barrier(21)
    client = boto3.client(
        "sqs", endpoint_url=endpoint.url, config=Config(max_pool_connections=polls)
    )

    def poll() -> None:
        begun.wait(60)
        client.receive_message(QueueUrl=busy.url, WaitTimeSeconds=4)

    with ThreadPoolExecutor(polls) as pool:
        waiting = [pool.submit(poll) for _ in range(polls)]
        begun.wait(60)
        other.put("x")
        assert _received(other)["Body"] == "x"
        still = [one for one in waiting if not one.done()]
    assert still, "the other calls had to wait for the long polls"
    client.close()


def test_a_wait_beyond_20_s_is_refused(endpoint: SqsEndpoint, queue: SqsQueue) -> None:
    """A wait of more than 20 s is refused with InvalidParameterValue."""
    # A message is there, so that who does not refuse it answers at once.
    queue.put("x")
    code = _code(endpoint.client.receive_message, QueueUrl=queue.url, WaitTimeSeconds=21)
    assert code == "InvalidParameterValue"


def test_more_than_ten_messages_at_once_are_refused(endpoint: SqsEndpoint, queue: SqsQueue) -> None:
    """A receive of more than 10 messages is refused with InvalidParameterValue."""
    code = _code(endpoint.client.receive_message, QueueUrl=queue.url, MaxNumberOfMessages=11)
    assert code == "InvalidParameterValue"


# -- visibility ----------------------------------------------------------------------------------


def test_a_received_message_is_hidden_and_comes_back(create: Create) -> None:
    """A received message is hidden for the queue's visibility time-out, then comes back."""
    queue = create(visibility_s=2)
    queue.put("x")
    began = time.monotonic()
    first = _received(queue)
    assert first["Attributes"]["ApproximateReceiveCount"] == "1"
    assert queue.take() == []
    second = _received(queue)
    assert time.monotonic() - began > 1
    assert second["MessageId"] == first["MessageId"]
    assert second["Attributes"]["ApproximateReceiveCount"] == "2"


def test_a_message_is_given_back_at_once(queue: SqsQueue, batches: Batches) -> None:
    """A visibility of 0 gives a message back at once."""
    queue.put("x")
    handle = _received(queue)["ReceiptHandle"]
    entry = {"Id": "a", "ReceiptHandle": handle, "VisibilityTimeout": 0}
    assert batches.show_again(entry) == (["a"], {})
    assert _received(queue)["Body"] == "x"


def test_a_message_is_hidden_for_longer(endpoint: SqsEndpoint, create: Create) -> None:
    """A change of visibility hides a message for longer than its queue does."""
    queue = create(visibility_s=1)
    queue.put("x")
    handle = _received(queue)["ReceiptHandle"]
    entry = {"Id": "a", "ReceiptHandle": handle, "VisibilityTimeout": 4}
    began = time.monotonic()
    assert Batches(endpoint, queue).show_again(entry) == (["a"], {})
    assert queue.take(wait_s=2) == []
    assert _received(queue)["Body"] == "x"
    assert time.monotonic() - began > 3


def test_a_made_up_handle_fails_alone_when_shown_again(queue: SqsQueue, batches: Batches) -> None:
    """Among changes of visibility, an entry with a made-up handle fails alone."""
    queue.put("x")
    good = {"ReceiptHandle": _received(queue)["ReceiptHandle"], "VisibilityTimeout": 0}
    made_up = {"ReceiptHandle": "made-up", "VisibilityTimeout": 0}
    well, failed = batches.show_again({"Id": "good", **good}, {"Id": "bad", **made_up})
    assert (well, list(failed)) == (["good"], ["bad"])


def test_a_deleted_message_cannot_be_shown_again(queue: SqsQueue, batches: Batches) -> None:
    """A change of visibility of a deleted message fails."""
    queue.put("x")
    handle = _received(queue)["ReceiptHandle"]
    batches.delete({"Id": "a", "ReceiptHandle": handle})
    entry = {"Id": "a", "ReceiptHandle": handle, "VisibilityTimeout": 0}
    well, failed = batches.show_again(entry)
    assert (well, list(failed)) == ([], ["a"])


def test_a_visibility_beyond_12_h_is_refused(queue: SqsQueue, batches: Batches) -> None:
    """A visibility of more than 12 h is refused."""
    queue.put("x")
    handle = _received(queue)["ReceiptHandle"]
    entry = {"Id": "a", "ReceiptHandle": handle, "VisibilityTimeout": 43_201}
    try:
        well, failed = batches.show_again(entry)
    except ClientError as refused:
        well, failed = [], {"a": refused.response["Error"]["Code"]}
    assert (well, list(failed)) == ([], ["a"])


# -- deleting ------------------------------------------------------------------------------------


def test_deleting_twice(queue: SqsQueue, batches: Batches) -> None:
    """A message may be deleted twice."""
    queue.put("x")
    entry = {"Id": "a", "ReceiptHandle": _received(queue)["ReceiptHandle"]}
    assert batches.delete(entry) == (["a"], {})
    assert batches.delete(entry) == (["a"], {})
    assert queue.fate() == "gone"


def test_a_made_up_handle_fails_alone_when_deleted(queue: SqsQueue, batches: Batches) -> None:
    """Among deletes, an entry with a made-up handle fails alone, with ReceiptHandleIsInvalid."""
    queue.put("x")
    good = {"Id": "good", "ReceiptHandle": _received(queue)["ReceiptHandle"]}
    made_up = {"Id": "bad", "ReceiptHandle": "made-up"}
    assert batches.delete(good, made_up) == (["good"], {"bad": "ReceiptHandleIsInvalid"})
    assert queue.fate() == "gone"


# -- sending -------------------------------------------------------------------------------------


def test_a_delay_of_one_message(queue: SqsQueue, batches: Batches) -> None:
    """A delay hides one message of a batch until it has passed, and not the others."""
    began = time.monotonic()
    now = {"Id": "now", "MessageBody": "now"}
    later = {"Id": "later", "MessageBody": "later", "DelaySeconds": 3}
    assert batches.send(later, now) == (["later", "now"], {})
    assert _received(queue)["Body"] == "now"
    assert queue.take() == []
    assert _received(queue)["Body"] == "later"
    assert time.monotonic() - began > 2


def test_a_delay_beyond_15_min_fails_alone(queue: SqsQueue, batches: Batches) -> None:
    """Among sends, an entry with a delay of more than 15 min fails alone."""
    good = {"Id": "good", "MessageBody": "good"}
    bad = {"Id": "bad", "MessageBody": "bad", "DelaySeconds": 901}
    assert batches.send(good, bad) == (["good"], {"bad": "InvalidParameterValue"})


def test_a_body_with_characters_that_are_none_is_refused(
    endpoint: SqsEndpoint, queue: SqsQueue
) -> None:
    """A body with control characters is refused with InvalidMessageContents."""
    send = endpoint.client.send_message
    assert _code(send, QueueUrl=queue.url, MessageBody="a\x01b") == "InvalidMessageContents"


@pytest.mark.parametrize(
    ("ids", "code"),
    [
        ([str(number) for number in range(11)], "TooManyEntriesInBatchRequest"),
        ([], "EmptyBatchRequest"),
        (["a", "a"], "BatchEntryIdsNotDistinct"),
    ],
    ids=["eleven", "empty", "doubled"],
)
def test_a_batch_that_is_none_is_refused(
    endpoint: SqsEndpoint, queue: SqsQueue, ids: list[str], code: str
) -> None:
    """A batch of none, of more than 10, or with an id twice is refused, with a code for each."""
    entries = [{"Id": entry_id, "MessageBody": "x"} for entry_id in ids]
    send = endpoint.client.send_message_batch
    assert _code(send, QueueUrl=queue.url, Entries=entries) == code


def test_bodies_up_to_1_mib(queue: SqsQueue, endpoint: SqsEndpoint) -> None:
    """A body of 300 KB is taken, and one of more than 1 MiB is refused."""
    queue.put("x" * 300_000)
    send = endpoint.client.send_message
    assert _code(send, QueueUrl=queue.url, MessageBody="x" * 1_100_000) == "InvalidParameterValue"


# -- dead letters --------------------------------------------------------------------------------


def test_a_message_received_too_often_is_a_dead_letter(
    endpoint: SqsEndpoint, create: Create
) -> None:
    """What was received maxReceiveCount times goes to the dead-letter queue, and keeps its id."""
    queue = create(visibility_s=1, dead_letters_after=2)
    queue.put("poison")
    first, second = _received(queue), _received(queue)
    assert queue.take(wait_s=3) == []
    dead = endpoint.queue(f"dead-{queue.name}")
    letter = _received(dead)
    assert first["MessageId"] == second["MessageId"] == letter["MessageId"]
    assert letter["Body"] == "poison"
    assert queue.counts() == Counts(0, 0, 0)
    dead.delete()


def test_a_dead_letter_says_where_it_comes_from(endpoint: SqsEndpoint, create: Create) -> None:
    """A dead letter names the queue that it comes from, in DeadLetterQueueSourceArn."""
    queue = create(visibility_s=1, dead_letters_after=1)
    queue.put("poison")
    _received(queue)
    assert queue.take(wait_s=3) == []
    dead = endpoint.queue(f"dead-{queue.name}")
    source = _received(dead)["Attributes"].get("DeadLetterQueueSourceArn", "")
    dead.delete()
    assert source.endswith(f":{queue.name}")


def test_a_queue_tells_its_redrive_policy(endpoint: SqsEndpoint, create: Create) -> None:
    """A queue's attributes tell its dead-letter queue, maxReceiveCount and time-outs."""
    queue = create(visibility_s=45, dead_letters_after=7)
    found = endpoint.client.get_queue_attributes(QueueUrl=queue.url, AttributeNames=["All"])
    policy = json.loads(found["Attributes"]["RedrivePolicy"])
    endpoint.queue(f"dead-{queue.name}").delete()
    assert policy["deadLetterTargetArn"].endswith(f":dead-{queue.name}")
    assert int(policy["maxReceiveCount"]) == 7
    assert found["Attributes"]["VisibilityTimeout"] == "45"
    assert found["Attributes"]["DelaySeconds"] == "0"


# -- FIFO ----------------------------------------------------------------------------------------


def test_fifo_order(create: Create) -> None:
    """A FIFO queue gives a group's messages in order, and none while one of them is received."""
    queue = create(".fifo")
    for body in ("1", "2"):
        queue.put(body, MessageGroupId="a")
    queue.put("other", MessageGroupId="b")
    assert _received(queue)["Body"] == "1"
    assert [message["Body"] for message in queue.take()] == ["other"]


def test_fifo_deduplication(create: Create) -> None:
    """A FIFO queue takes a message once for each deduplication id."""
    queue = create(".fifo")
    for dedup in ("one", "one", "two"):
        queue.put("x", MessageDeduplicationId=dedup)
    assert queue.counts().total == 2


def test_fifo_takes_no_delay(create: Create, endpoint: SqsEndpoint) -> None:
    """A FIFO queue refuses a delay of one message."""
    queue = create(".fifo")
    entry = {"Id": "a", "MessageBody": "x", "DelaySeconds": 5}
    entry |= {"MessageGroupId": "g", "MessageDeduplicationId": "d"}
    try:
        _, failed = Batches(endpoint, queue).send(entry)
    except ClientError as refused:
        failed = {"a": refused.response["Error"]["Code"]}
    assert list(failed) == ["a"]


# -- looking -------------------------------------------------------------------------------------


def test_the_counts(queue: SqsQueue, batches: Batches) -> None:
    """The attributes count what is visible, in flight and delayed, each by itself."""
    batches.send(*({"Id": str(number), "MessageBody": "x"} for number in range(4)))
    batches.send({"Id": "d", "MessageBody": "x", "DelaySeconds": 600})
    _received(queue)
    assert queue.counts() == Counts(visible=3, in_flight=1, delayed=1)


def test_a_purge(endpoint: SqsEndpoint, queue: SqsQueue) -> None:
    """A purge takes all messages."""
    queue.put("x")
    endpoint.client.purge_queue(QueueUrl=queue.url)
    queue.becomes("gone", within=60)


def test_a_queue_that_is_not_there(endpoint: SqsEndpoint) -> None:
    """A queue that is not there is NonExistentQueue to all calls."""
    client, code = endpoint.client, "NonExistentQueue"
    assert _code(client.get_queue_url, QueueName="nowhere") == code
    made = endpoint.create_queue(f"f{uuid.uuid4().hex[:12]}")
    made.delete()
    assert _code(client.send_message, QueueUrl=made.url, MessageBody="x") == code
    assert _code(client.receive_message, QueueUrl=made.url) == code
    assert _code(client.get_queue_attributes, QueueUrl=made.url) == code


@pytest.mark.parametrize("call", ["queue", "batch", "parameter"])
def test_codes_and_their_namespace(endpoint: SqsEndpoint, queue: SqsQueue, call: str) -> None:
    """A code has the namespace `AWS.SimpleQueueService` for queues and batches, and else none."""
    client, service = endpoint.client, "AWS.SimpleQueueService"
    if call == "queue":
        assert _whole_code(client.get_queue_url, QueueName="no") == f"{service}.NonExistentQueue"
    elif call == "batch":
        code = _whole_code(client.send_message_batch, QueueUrl=queue.url, Entries=[])
        assert code == f"{service}.EmptyBatchRequest"
    else:
        code = _whole_code(client.receive_message, QueueUrl=queue.url, MaxNumberOfMessages=11)
        assert code == "InvalidParameterValue"


def test_a_queue_that_is_not_there_is_the_sdk_s_own_error(endpoint: SqsEndpoint) -> None:
    """A queue that is not there is the SDK's own exception QueueDoesNotExist."""
    with pytest.raises(endpoint.client.exceptions.QueueDoesNotExist):
        endpoint.client.get_queue_url(QueueName="nowhere")


def test_a_queue_that_is_there_may_be_made_again(endpoint: SqsEndpoint, queue: SqsQueue) -> None:
    """A queue may be made again with the same attributes, and has the same URL."""
    assert endpoint.create_queue(queue.name).url == queue.url
