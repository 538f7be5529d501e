"""What the demo does to the broker behind the fleet's back.

The messages are written by hand, from the documented format and over plain HTTP, as a producer in
another language would: the product's own code does not send them.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Sequence
from typing import Any, Final, Protocol

from workhorse.domain.ids import RunId

PREFIX: Final = "workhorse-"
REGION: Final = "us-east-1"
_BATCH: Final = 10
_DEPTHS: Final = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)


class Broker(Protocol):
    """Sends wakeups that nobody asked for."""

    def send(self, wakeups: Sequence[tuple[RunId, str]]) -> int:
        """Send a wakeup for each run id and queue; answer how many were taken."""
        ...

    def send_rubbish(self, queue: str) -> bool:
        """Send a message that names no run; answer whether the lane carries such a thing."""
        ...

    def depth(self) -> int:
        """Return how many messages there are: visible, in flight and delayed."""
        ...


class SqsBroker:
    """An SQS endpoint on a loopback port that checks no signatures."""

    def __init__(self, port: int, queues: Sequence[str]) -> None:
        self._port = port
        self._urls = {
            queue: str(
                self._call(
                    "CreateQueue",
                    QueueName=f"{PREFIX}{queue}",
                    # Short, so that what a killed worker had received is seen again in the demo.
                    Attributes={"VisibilityTimeout": "5"},
                )["QueueUrl"]
            )
            for queue in queues
        }

    def send(self, wakeups: Sequence[tuple[RunId, str]]) -> int:
        """Send wakeups, ten a call and queue."""
        taken = 0
        for queue, url in self._urls.items():
            bodies = [
                json.dumps({"workhorse": 1, "run_id": run_id, "queue": queue})
                for run_id, named in wakeups
                if named == queue
            ]
            for start in range(0, len(bodies), _BATCH):
                entries = [
                    {"Id": str(at), "MessageBody": body}
                    for at, body in enumerate(bodies[start : start + _BATCH])
                ]
                answer = self._call("SendMessageBatch", QueueUrl=url, Entries=entries)
                taken += len(answer.get("Successful", ()))
        return taken

    def send_rubbish(self, queue: str) -> bool:
        """Send a message that is no wakeup."""
        self._call("SendMessage", QueueUrl=self._urls[queue], MessageBody="is this thing on?")
        return True

    def depth(self) -> int:
        """Return how many messages all queues hold."""
        total = 0
        for url in self._urls.values():
            answer = self._call("GetQueueAttributes", QueueUrl=url, AttributeNames=list(_DEPTHS))
            total += sum(int(answer["Attributes"][name]) for name in _DEPTHS)
        return total

    def _call(self, action: str, **parameters: Any) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        try:
            connection.request(
                "POST",
                "/",
                json.dumps(parameters),
                {
                    "Content-Type": "application/x-amz-json-1.0",
                    "X-Amz-Target": f"AmazonSQS.{action}",
                    # The emulator reads service and region from it and checks nothing.
                    "Authorization": f"AWS4-HMAC-SHA256 Credential=demo/20260101/{REGION}/sqs/"
                    "aws4_request, SignedHeaders=host, Signature=0",
                },
            )
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise ConnectionError(f"the SQS endpoint answered {response.status} to {action}")
        answer: dict[str, Any] = json.loads(body)
        return answer


class LaneBroker:
    """A lane that carries no messages: what is sent wakes nobody in another process."""

    def __init__(self, name: str) -> None:
        from importlib.metadata import entry_points

        from workhorse.ports import LaneContext
        from workhorse.settings import Settings
        from workhorse.telemetry import Counters

        (entry,) = entry_points(group="workhorse.lanes", name=name)
        # Without the environment: that of whoever starts the demo has no say in it.
        self._lane = entry.load().open(LaneContext(Settings.model_construct(), Counters()))

    def send(self, wakeups: Sequence[tuple[RunId, str]]) -> int:
        """Send wakeups over the lane."""
        from workhorse.ports import Outgoing, Wakeup

        report = self._lane.send([Outgoing(Wakeup(run_id, queue)) for run_id, queue in wakeups])
        return int(report.sent)

    def send_rubbish(self, queue: str) -> bool:
        """Do nothing: there are no messages."""
        return False

    def depth(self) -> int:
        """Return 0: there are no messages."""
        return 0
