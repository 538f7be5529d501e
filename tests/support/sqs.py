"""A throw-away SQS endpoint, its queues as the broker sees them, and a proxy that records calls.

The endpoint is moto's server in a process of its own on a free loopback port. What became of a
message is read from the queue's attributes by a client of the test's own, never from the lane.
"""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.support.eventually import eventually
from tests.support.processes import RunningProcess

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.literals import QueueAttributeFilterType

REGION = "us-east-1"

_SERVE = """
import logging, signal, sys
from moto.server import ThreadedMotoServer
from moto.sqs.models import Queue
look_s, wait_for_messages = float(sys.argv[1]), Queue.wait_for_messages
Queue.wait_for_messages = lambda queue, timeout: wait_for_messages(queue, min(timeout, look_s))
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("port", server.get_host_and_port()[1], flush=True)
signal.pause()
"""


@dataclass(frozen=True)
class Counts:
    """How many messages a queue holds, by what a receiver could do with them."""

    visible: int
    in_flight: int
    delayed: int

    @property
    def total(self) -> int:
        return self.visible + self.in_flight + self.delayed


class SqsQueue:
    """A queue as the broker sees it."""

    def __init__(self, client: SQSClient, name: str, url: str) -> None:
        self._client = client
        self.name = name
        self.url = url

    def counts(self) -> Counts:
        names: list[QueueAttributeFilterType] = [
            "ApproximateNumberOfMessages",
            "ApproximateNumberOfMessagesNotVisible",
            "ApproximateNumberOfMessagesDelayed",
        ]
        answer = self._client.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)
        return Counts(*(int(answer["Attributes"][name]) for name in names))  # type: ignore[index]

    def fate(self) -> str:
        """Return what became of the queue's only message: visible, in flight, delayed or gone."""
        counts = self.counts()
        assert counts.total <= 1, f"{self.name} holds {counts}"
        names = ("visible", "in flight", "delayed")
        found = (counts.visible, counts.in_flight, counts.delayed)
        return next((name for name, count in zip(names, found, strict=True) if count), "gone")

    def becomes(self, fate: str, *, within: float = 10.0) -> None:
        """Wait until the queue's only message is visible, in flight, delayed or gone."""
        eventually(lambda: self.fate() == fate, within=within, what=f"the message is {fate}")

    def put(self, body: str, **options: Any) -> None:
        """Send a message of any body, as a producer in another language would."""
        if self.name.endswith(".fifo"):
            options = {"MessageGroupId": "g", "MessageDeduplicationId": uuid.uuid4().hex} | options
        self._client.send_message(QueueUrl=self.url, MessageBody=body, **options)

    def take(self, limit: int = 10, wait_s: int = 0) -> list[dict[str, Any]]:
        """Receive messages, whole, without deleting them."""
        answer = self._client.receive_message(
            QueueUrl=self.url,
            MaxNumberOfMessages=limit,
            WaitTimeSeconds=wait_s,
            MessageSystemAttributeNames=["All"],
        )
        return list(answer.get("Messages", []))  # type: ignore[arg-type]

    def let_go(self, message: dict[str, Any]) -> None:
        """Delete a message that was received."""
        self._client.delete_message(QueueUrl=self.url, ReceiptHandle=message["ReceiptHandle"])

    def delete(self) -> None:
        """Delete the queue itself."""
        self._client.delete_queue(QueueUrl=self.url)


class SqsEndpoint:
    """An SQS endpoint, with a client of the tests' own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = raw_client(url)

    def create_queue(
        self,
        name: str,
        *,
        visibility_s: int = 30,
        dead_letters_after: int | None = None,
        **attributes: str,
    ) -> SqsQueue:
        """Create a queue; FIFO where the name ends in `.fifo`.

        Args:
            name: Its whole name, prefix and all.
            visibility_s: Its visibility time-out.
            dead_letters_after: Its maxReceiveCount, with a queue `dead-<name>` beside it.
            attributes: Further attributes, as the API spells them.
        """
        fifo = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
        given = {"VisibilityTimeout": str(visibility_s), **fifo, **attributes}
        if dead_letters_after is not None:
            made = self.client.create_queue(QueueName=f"dead-{name}", Attributes=fifo)  # type: ignore[arg-type]
            found = self.client.get_queue_attributes(
                QueueUrl=made["QueueUrl"], AttributeNames=["QueueArn"]
            )
            arn = found["Attributes"]["QueueArn"]
            policy = {"deadLetterTargetArn": arn, "maxReceiveCount": dead_letters_after}
            given["RedrivePolicy"] = json.dumps(policy)
        made = self.client.create_queue(QueueName=name, Attributes=given)  # type: ignore[arg-type]
        return SqsQueue(self.client, name, made["QueueUrl"])

    def queue(self, name: str) -> SqsQueue:
        """Return a queue that exists."""
        return SqsQueue(self.client, name, self.client.get_queue_url(QueueName=name)["QueueUrl"])

    def close(self) -> None:
        self.client.close()


@contextmanager
def moto_server(look_s: float = 1.0) -> Iterator[SqsEndpoint]:
    """Run moto's server for the time of the context.

    Args:
        look_s: How often a long poll looks for messages whose delay has ended. moto does so once a
            second, and is late by that; SQS is not.
    """
    with RunningProcess(moto_command(look_s)) as process:
        port = process.wait_for(r"^port (\d+)$", within=60)[1]
        endpoint = SqsEndpoint(f"http://127.0.0.1:{port}")
        try:
            yield endpoint
        finally:
            endpoint.close()


def moto_command(look_s: float = 1.0) -> list[str]:
    """Return the command that runs moto's server; it writes `port N` when it answers."""
    return [sys.executable, "-c", _SERVE, str(look_s)]


def raw_client(url: str) -> SQSClient:
    """Return a client of the test's own, that no lane shares."""
    import boto3

    session = boto3.session.Session(
        aws_access_key_id="testing",
        aws_secret_access_key="testing",  # noqa: S106  (no endpoint checks it)
        region_name=REGION,
    )
    return session.client("sqs", endpoint_url=url)
