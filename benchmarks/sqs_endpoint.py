"""An SQS endpoint in memory, for benchmarks: `python -m benchmarks.sqs_endpoint [PORT]`.

moto's server makes some hundred calls a second and would be all that is measured. This one speaks
the JSON protocol over HTTP/1.1 on loopback, checks no signature, and keeps standard queues: delays,
visibility time-outs, receive counts, long polls, batches with an outcome per entry. A message's
attributes are kept and given back. It has no FIFO queues, no redrive and no older (query) protocol.

It prints `port N` once it listens, and ends with SIGTERM.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import itertools
import json
import signal
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, cast

from tests.support.processes import RunningProcess

ACCOUNT: Final = "000000000000"
_BATCH: Final = 10
_GONE: Final = ("QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue")

Answer = dict[str, Any]


class RefusedError(Exception):
    """An error of the API: its code, and how the older protocol spells it."""

    def __init__(self, code: str, query_code: str | None = None) -> None:
        super().__init__(code)
        self.code = code
        self.query_code = query_code or code


@dataclass(slots=True, eq=False)
class _Message:
    body: str
    more: Answer
    """What else is given back as it came."""
    message_id: str
    md5: str
    sent_ms: int
    receipt: str = ""
    """The handle of the latest receive; empty until there is one."""
    receives: int = 0
    hidden_until: float = 0.0
    gone: bool = False


@dataclass(slots=True, eq=False)
class _Poll:
    queue: Queue
    most: int
    hide_s: float
    reply: Callable[[Answer], None]
    timer: asyncio.TimerHandle | None = None
    done: bool = False

    def end(self, messages: list[Answer]) -> None:
        """Answer it."""
        self.done = True
        if self.timer is not None:
            self.timer.cancel()
        self.reply({"Messages": messages} if messages else {})


@dataclass(slots=True, eq=False)
class Queue:
    """A standard queue."""

    name: str
    loop: asyncio.AbstractEventLoop
    attributes: dict[str, str]
    visible: deque[_Message] = field(default_factory=deque)
    flying: dict[str, _Message] = field(default_factory=dict)
    """By the part of the handle that stays the same, the message's id."""
    hidden: list[tuple[float, int, _Message]] = field(default_factory=list)
    delayed: int = 0
    polls: deque[_Poll] = field(default_factory=deque)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    alarm: asyncio.TimerHandle | None = None

    def seconds(self, name: str, default: str) -> float:
        """Return an attribute that is a number of seconds."""
        return float(self.attributes.get(name, default))

    def put(self, entry: Answer) -> Answer:
        """Take a message in."""
        body = entry["MessageBody"]
        delay = float(entry.get("DelaySeconds", self.attributes.get("DelaySeconds", "0")))
        if not 0 <= delay <= 900:
            raise RefusedError("InvalidParameterValue")
        kept = ("MessageAttributes", "MessageSystemAttributes")
        more: Answer = {name: entry[name] for name in kept if name in entry}
        md5 = hashlib.md5(body.encode(), usedforsecurity=False).hexdigest()
        message = _Message(body, more, str(uuid.uuid4()), md5, int(time.time() * 1000))
        if delay:
            self.delayed += 1
            self._hide(message, self.loop.time() + delay)
        else:
            self.visible.append(message)
        return {"MessageId": message.message_id, "MD5OfMessageBody": md5}

    def take(self, most: int, hide_s: float) -> list[Answer]:
        """Hand out visible messages."""
        taken: list[Answer] = []
        now = self.loop.time()
        while self.visible and len(taken) < most:
            message = self.visible.popleft()
            if message.gone:
                continue
            message.receives += 1
            message.receipt = f"{message.message_id}#{message.receives}"
            if hide_s > 0:
                self.flying[message.message_id] = message
                self._hide(message, now + hide_s)
            else:
                self.visible.append(message)
            taken.append(
                {
                    "MessageId": message.message_id,
                    "ReceiptHandle": message.receipt,
                    "MD5OfBody": message.md5,
                    "Body": message.body,
                    "Attributes": {
                        "ApproximateReceiveCount": str(message.receives),
                        "SentTimestamp": str(message.sent_ms),
                    },
                    **message.more,
                }
            )
        return taken

    def delete(self, handle: str) -> None:
        """Delete a message by its latest handle; an older one does nothing."""
        message = self._by(handle)
        if message is not None and message.receipt == handle:
            message.gone = True
            del self.flying[message.message_id]

    def change(self, handle: str, seconds: float) -> None:
        """Set when a message in flight is visible again."""
        if not 0 <= seconds <= 43_200:
            raise RefusedError("InvalidParameterValue")
        message = self._by(handle)
        if message is None or message.receipt != handle:
            raise RefusedError("MessageNotInflight", "AWS.SimpleQueueService.MessageNotInflight")
        if seconds:
            self._hide(message, self.loop.time() + seconds)
        else:
            self._show(message)

    def serve(self) -> None:
        """Answer polls that wait, the oldest first, while there are messages."""
        while self.polls and self.visible:
            poll = self.polls.popleft()
            if not poll.done and (messages := self.take(poll.most, poll.hide_s)):
                poll.end(messages)

    def count(self, name: str) -> int:
        """Return one of the counts of messages."""
        match name.removeprefix("ApproximateNumberOfMessages"):
            case "":
                return sum(not message.gone for message in self.visible)
            case "NotVisible":
                return len(self.flying)
            case _:
                return self.delayed

    def _by(self, handle: str) -> _Message | None:
        message_id, mark, _ = handle.partition("#")
        if not mark:
            raise RefusedError("ReceiptHandleIsInvalid")
        return self.flying.get(message_id)

    def _hide(self, message: _Message, until: float) -> None:
        message.hidden_until = until
        heapq.heappush(self.hidden, (until, next(self.numbers), message))
        # Entries of messages that have gone would keep their bodies until their time is over.
        if (
            self.hidden[0][2] is message
            or len(self.hidden) > 2 * (len(self.flying) + self.delayed) + 10_000
        ):
            self._look()

    def _show(self, message: _Message) -> None:
        message.hidden_until = 0.0
        if self.flying.pop(message.message_id, None) is None:
            self.delayed -= 1
        self.visible.append(message)

    def _look(self) -> None:
        """Show what is due, and set the alarm for what is due next."""
        if len(self.hidden) > 2 * (len(self.flying) + self.delayed) + 10_000:
            self.hidden = [each for each in self.hidden if each[0] == each[2].hidden_until]
            self.hidden = [each for each in self.hidden if not each[2].gone]
            heapq.heapify(self.hidden)
        now = self.loop.time()
        while self.hidden and (
            self.hidden[0][0] <= now
            or self.hidden[0][2].gone
            or self.hidden[0][0] != self.hidden[0][2].hidden_until
        ):
            until, _, message = heapq.heappop(self.hidden)
            if not message.gone and message.hidden_until == until:
                self._show(message)
        if self.alarm is not None:
            self.alarm.cancel()
            self.alarm = None
        if self.hidden:
            self.alarm = self.loop.call_at(self.hidden[0][0], self._ring)

    def _ring(self) -> None:
        self._look()
        self.serve()


class Broker:
    """All queues, and the calls."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.url = ""
        self._loop = loop
        self._queues: dict[str, Queue] = {}

    def call(self, operation: str, asked: Answer, reply: Callable[[Answer], None]) -> _Poll | None:
        """Do one call; answers by `reply`, at once or, for a poll that is returned, later.

        Raises:
            RefusedError: The call is answered with an error.
        """
        match operation:
            case "ReceiveMessage":
                return self._receive(asked, reply)
            case "SendMessageBatch":
                queue = self._queue(asked)
                reply(_each(asked, queue.put))
                queue.serve()
            case "SendMessage":
                queue = self._queue(asked)
                reply(queue.put(asked))
                queue.serve()
            case "DeleteMessageBatch":
                queue = self._queue(asked)
                reply(_each(asked, lambda entry: queue.delete(entry["ReceiptHandle"])))
            case "DeleteMessage":
                self._queue(asked).delete(asked["ReceiptHandle"])
                reply({})
            case "ChangeMessageVisibilityBatch":
                queue = self._queue(asked)
                reply(_each(asked, lambda entry: _change(queue, entry)))
                queue.serve()
            case "ChangeMessageVisibility":
                queue = self._queue(asked)
                _change(queue, asked)
                reply({})
                queue.serve()
            case _:
                reply(self._manage(operation, asked))
        return None

    def _receive(self, asked: Answer, reply: Callable[[Answer], None]) -> _Poll | None:
        queue = self._queue(asked)
        most = int(asked.get("MaxNumberOfMessages", 1))
        if not 1 <= most <= _BATCH:
            raise RefusedError("InvalidParameterValue")
        hide_s = float(asked.get("VisibilityTimeout", queue.seconds("VisibilityTimeout", "30")))
        wait_s = float(
            asked.get("WaitTimeSeconds", queue.seconds("ReceiveMessageWaitTimeSeconds", "0"))
        )
        poll = _Poll(queue, most, hide_s, reply)
        messages = queue.take(most, hide_s)
        if messages or not wait_s:
            poll.end(messages)
            return None
        poll.timer = self._loop.call_later(wait_s, poll.end, [])
        queue.polls.append(poll)
        return poll

    def _manage(self, operation: str, asked: Answer) -> Answer:
        match operation:
            case "CreateQueue":
                name = asked["QueueName"]
                if name not in self._queues:
                    attributes = dict(asked.get("Attributes", {}))
                    self._queues[name] = Queue(name, self._loop, attributes)
                return {"QueueUrl": f"{self.url}/{ACCOUNT}/{name}"}
            case "GetQueueUrl":
                return {"QueueUrl": f"{self.url}/{ACCOUNT}/{self._named(asked['QueueName']).name}"}
            case "ListQueues":
                prefix = asked.get("QueueNamePrefix", "")
                found = [name for name in self._queues if name.startswith(prefix)]
                return {"QueueUrls": [f"{self.url}/{ACCOUNT}/{name}" for name in found]}
            case "GetQueueAttributes":
                queue = self._queue(asked)
                counts = ("", "NotVisible", "Delayed")
                found = [f"ApproximateNumberOfMessages{each}" for each in counts]
                known = {name: str(queue.count(name)) for name in found}
                known |= {"VisibilityTimeout": "30", "DelaySeconds": "0"} | queue.attributes
                known["QueueArn"] = f"arn:aws:sqs:us-east-1:{ACCOUNT}:{queue.name}"
                names = asked.get("AttributeNames", ())
                if "All" not in names:
                    known = {name: known[name] for name in names if name in known}
                return {"Attributes": known}
            case "SetQueueAttributes":
                self._queue(asked).attributes.update(asked["Attributes"])
                return {}
            case "PurgeQueue" | "DeleteQueue":
                queue = self._queue(asked)
                del self._queues[queue.name]
                if operation == "PurgeQueue":
                    self._queues[queue.name] = Queue(queue.name, self._loop, queue.attributes)
                return {}
            case _:
                raise RefusedError("InvalidAction")

    def _queue(self, asked: Answer) -> Queue:
        return self._named(asked["QueueUrl"].rpartition("/")[2])

    def _named(self, name: str) -> Queue:
        queue = self._queues.get(name)
        if queue is None:
            raise RefusedError(*_GONE)
        return queue


class _Connection(asyncio.Protocol):
    """HTTP/1.1, as much of it as the SDKs speak: one request after the other, with a length."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._transport: asyncio.Transport
        self._data = bytearray()
        self._poll: _Poll | None = None
        self._busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        # Whoever hung up must not be handed messages.
        if self._poll is not None and not self._poll.done:
            self._poll.done = True
            if self._poll.timer is not None:
                self._poll.timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._data += data
        while not self._busy:
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                return
            headers = _headers(self._data[:end])
            start = end + 4
            length = int(headers.get(b"content-length", b"0"))
            if headers.get(b"expect", b"").lower() == b"100-continue":
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            if len(self._data) < start + length:
                return
            body = bytes(self._data[start : start + length])
            del self._data[: start + length]
            self._serve(headers, body)

    def _serve(self, headers: dict[bytes, bytes], body: bytes) -> None:
        operation = headers.get(b"x-amz-target", b"").rpartition(b".")[2].decode()
        self._busy = True
        try:
            self._poll = self._broker.call(operation, json.loads(body or b"{}"), self._reply)
        except RefusedError as refused:
            self._write(
                400,
                {"__type": f"com.amazonaws.sqs#{refused.code}", "message": refused.code},
                f"x-amzn-query-error: {refused.query_code};Sender\r\n",
            )

    def _reply(self, answer: Answer) -> None:
        self._write(200, answer)

    def _write(self, status: int, answer: Answer, more: str = "") -> None:
        body = json.dumps(answer).encode()
        head = (
            f"HTTP/1.1 {status} Done\r\nContent-Type: application/x-amz-json-1.0\r\n"
            f"x-amzn-RequestId: 0\r\n{more}Content-Length: {len(body)}\r\n\r\n"
        )
        self._transport.write(head.encode() + body)
        self._busy = False
        if self._poll is not None:
            self._poll = None
            if self._data:
                self.data_received(b"")


def _headers(head: bytearray) -> dict[bytes, bytes]:
    lines = (line.partition(b":") for line in bytes(head).split(b"\r\n")[1:])
    return {name.lower(): value.strip() for name, _, value in lines}


def _each(asked: Answer, do: Callable[[Answer], Answer | None]) -> Answer:
    entries: Iterable[Answer] = asked["Entries"]
    names = [entry["Id"] for entry in entries]
    if not names:
        raise RefusedError("EmptyBatchRequest", "AWS.SimpleQueueService.EmptyBatchRequest")
    if len(names) > _BATCH:
        raise RefusedError(
            "TooManyEntriesInBatchRequest", "AWS.SimpleQueueService.TooManyEntriesInBatchRequest"
        )
    if len(set(names)) < len(names):
        raise RefusedError(
            "BatchEntryIdsNotDistinct", "AWS.SimpleQueueService.BatchEntryIdsNotDistinct"
        )
    taken, failed = [], []
    for entry in entries:
        try:
            taken.append({"Id": entry["Id"], **(do(entry) or {})})
        except RefusedError as refused:
            failed.append({"Id": entry["Id"], "Code": refused.code, "SenderFault": True})
    return {"Successful": taken, "Failed": failed}


def _change(queue: Queue, entry: Answer) -> None:
    queue.change(entry["ReceiptHandle"], float(entry["VisibilityTimeout"]))


async def _serve(port: int) -> None:
    loop = asyncio.get_running_loop()
    broker = Broker(loop)
    server = await loop.create_server(lambda: _Connection(broker), "127.0.0.1", port)
    port = server.sockets[0].getsockname()[1]
    broker.url = f"http://127.0.0.1:{port}"
    print("port", port, flush=True)
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()


@contextmanager
def sqs_endpoint() -> Iterator[str]:
    """Run the endpoint in a process of its own for the time of the context; gives its URL."""
    with RunningProcess([sys.executable, "-m", "benchmarks.sqs_endpoint"]) as process:
        yield f"http://127.0.0.1:{process.wait_for(r'^port ([0-9]+)$', within=30)[1]}"


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
