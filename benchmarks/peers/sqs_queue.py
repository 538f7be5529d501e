"""A queue as the endpoint sees it, for peers whose broker is all there is."""

from __future__ import annotations

import json
import urllib.request

QUEUE = "bench"


def call(endpoint: str, operation: str, **asked: object) -> dict:
    """Call an SQS endpoint that checks no signature."""
    request = urllib.request.Request(  # noqa: S310 - a URL of this machine
        endpoint,
        json.dumps(asked).encode(),
        {"X-Amz-Target": f"AmazonSQS.{operation}", "Content-Type": "application/x-amz-json-1.0"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
        return json.loads(answer.read() or b"{}")


def create(endpoint: str) -> str:
    """Make the queue; return its URL."""
    return call(endpoint, "CreateQueue", QueueName=QUEUE)["QueueUrl"]


def left(endpoint: str) -> int:
    """Count the messages that are not deleted."""
    url = call(endpoint, "GetQueueUrl", QueueName=QUEUE)["QueueUrl"]
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    answer = call(endpoint, "GetQueueAttributes", QueueUrl=url, AttributeNames=names)
    return sum(int(answer["Attributes"][name]) for name in names)
