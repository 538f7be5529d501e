"""An HTTP proxy before an SQS endpoint that breaks calls: it loses, doubles, delays, reorders and
refuses them. It understands the JSON protocol of SQS, and looks at no signature.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import uuid
from collections import Counter, defaultdict, deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

DROP: Final = "drop"
DOUBLE: Final = "double"
DELAY: Final = "delay"
REORDER: Final = "reorder"
REFUSE: Final = "refuse"

SEND: Final = ("SendMessage", "SendMessageBatch")
RECEIVE: Final = "ReceiveMessage"
SETTLE: Final = (
    "DeleteMessage", "DeleteMessageBatch", "ChangeMessageVisibility",
    "ChangeMessageVisibilityBatch",
)  # fmt: skip
_KEPT: Final = 200
"""How many messages that were received are remembered, of each queue."""
_FROM_SERVER: Final = ("content-type", "x-amzn-query-error", "x-amzn-requestid")


@dataclass(frozen=True, slots=True)
class Trouble:
    """What becomes of calls.

    Args:
        how: DROP: what is sent or settled is confirmed and not done, what was received is withheld;
            DOUBLE: what is sent is sent twice, what was received comes again; DELAY: all that is
            done is done late, and what is received comes late; REORDER: what is sent overtakes what
            was sent before, what is received comes in another order, with older messages;
            REFUSE: calls are answered with an error.
        chance: Of a call to be broken.
        least: DELAY, REORDER: how many seconds it takes, at least.
        most: The same, at most.
        actions: Which actions; by default all that `how` can be done to.
        code: REFUSE: one of REFUSALS.
    """

    how: str
    chance: float = 1.0
    least: float = 0.0
    most: float = 0.0
    actions: tuple[str, ...] = ()
    code: str = ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error as SQS words it in its JSON protocol."""

    status: int
    type: str
    query: str = ""


REFUSALS: Final = {
    "503": Refusal(503, "com.amazon.coral.availability#ServiceUnavailableException"),
    "AccessDenied": Refusal(403, "com.amazon.coral.service#AccessDeniedException", "AccessDenied"),
    "ExpiredToken": Refusal(400, "com.amazon.coral.service#ExpiredTokenException", "ExpiredToken"),
    "NonExistentQueue": Refusal(
        400, "com.amazonaws.sqs#QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue"
    ),
}


@dataclass(frozen=True, slots=True)
class _Call:
    action: str
    head: tuple[tuple[str, str], ...]
    body: bytes
    fields: dict[str, Any]

    @property
    def queue(self) -> str:
        return str(self.fields.get("QueueUrl", ""))


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes
    head: tuple[tuple[str, str], ...] = (("content-type", "application/x-amz-json-1.0"),)

    def as_bytes(self) -> bytes:
        lines = [f"HTTP/1.1 {self.status} -", f"content-length: {len(self.body)}"]
        lines += [f"{name}: {value}" for name, value in self.head]
        return "\r\n".join([*lines, "", ""]).encode() + self.body


class CallProxy:
    """Forwards calls to an endpoint on the loopback address, and breaks what it is told to.

    Several troubles may stand at once, each under a key of its own; the first one that strikes a
    call has it.
    """

    def __init__(self, port: int, counts: Counter[str] | None = None) -> None:
        self._target = port
        self._counts: Counter[str] = Counter() if counts is None else counts
        self._troubles: dict[str, tuple[Trouble, random.Random]] = {}
        self._handed_out: dict[str, deque[dict[str, Any]]] = defaultdict(
            lambda: deque(maxlen=_KEPT)
        )
        self._withheld: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def open(self) -> int:
        """Listen; return the port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self.port

    async def close(self) -> None:
        """Listen no more; what was to be done later is not done."""
        if self._server is not None:
            self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def trouble(self, key: str, trouble: Trouble, seed: int) -> None:
        """Begin to break calls."""
        self._troubles[key] = (trouble, random.Random(seed))

    def heal(self, key: str) -> None:
        """Break them no more; what was delayed is still done when it is due."""
        self._troubles.pop(key, None)

    # -- a connection ----------------------------------------------------------------------------

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._start(self._serve(reader, writer))

    def _start(self, job: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                call = await _read_call(reader)
                answer = await self._answer(call)
                if answer is None:
                    break
                writer.write(answer.as_bytes())
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client has gone
        finally:
            writer.close()

    async def _answer(self, call: _Call) -> _Answer | None:
        struck = self._strikes(call)
        if struck is None:
            return self._remember(call, await self._forward(call))
        trouble, draw = struck
        self._counts[f"{trouble.how} {call.action}"] += 1
        if trouble.how == REFUSE:
            return _refuse(REFUSALS[trouble.code])
        if call.action == RECEIVE:
            return await self._receive(call, trouble, draw)
        if trouble.how == DOUBLE:
            await self._forward(call)
            return await self._forward(call)
        if trouble.how != DROP:
            self._do_later(self._split(call, draw, trouble))
        return _confirm(call)

    def _strikes(self, call: _Call) -> tuple[Trouble, random.Random] | None:
        for trouble, draw in self._troubles.values():
            if trouble.how == REFUSE:
                may = trouble.actions
            elif trouble.how == DOUBLE or trouble.how == REORDER:
                may = trouble.actions or (*SEND, RECEIVE)
            else:
                may = trouble.actions or (*SEND, *SETTLE, RECEIVE)
            if (not may or call.action in may) and draw.random() < trouble.chance:
                return trouble, draw
        return None

    # -- what is sent and settled ----------------------------------------------------------------

    def _split(self, call: _Call, draw: random.Random, trouble: Trouble) -> list[_Late]:
        """Return what is to be done, and in how many seconds."""

        def due() -> float:
            return draw.uniform(trouble.least, trouble.most)

        entries = call.fields.get("Entries")
        if trouble.how != REORDER or not entries:
            return [_Late(due(), call)]
        return [_Late(due(), _with(call, {**call.fields, "Entries": [each]})) for each in entries]

    def _do_later(self, late: list[_Late]) -> None:
        for each in late:
            self._start(self._do(each))

    async def _do(self, late: _Late) -> None:
        await asyncio.sleep(late.seconds)
        await self._forward(late.call)

    # -- what is received ------------------------------------------------------------------------

    async def _receive(self, call: _Call, trouble: Trouble, draw: random.Random) -> _Answer | None:
        answer = self._remember(call, await self._forward(call))
        if answer is None or answer.status != 200:
            return answer
        found = json.loads(answer.body or b"{}").get("Messages", [])
        most = int(call.fields.get("MaxNumberOfMessages", 1))
        old, withheld = self._handed_out[call.queue], self._withheld[call.queue]
        if trouble.how == DROP:
            found = []
        elif trouble.how == DELAY:
            await asyncio.sleep(draw.uniform(trouble.least, trouble.most))
        elif trouble.how == DOUBLE:
            found = [*found, *found, *_some(old, most, draw)]
        else:
            # Some of what is new comes with a later call, perhaps when it was handed out again.
            kept = [each for each in found if draw.random() < 0.5]
            found = [each for each in found if each not in kept]
            found += [withheld.pop() for _ in range(min(len(withheld), most))]
            found += _some(old, most // 2, draw)
            withheld += kept
            draw.shuffle(found)
            withheld += found[most:]
        body = json.dumps({"Messages": found[:most]} if found else {}).encode()
        return _Answer(200, body, answer.head)

    def _remember(self, call: _Call, answer: _Answer | None) -> _Answer | None:
        if call.action == RECEIVE and answer is not None and answer.status == 200:
            self._handed_out[call.queue] += json.loads(answer.body or b"{}").get("Messages", [])
        return answer

    # -- the endpoint ----------------------------------------------------------------------------

    async def _forward(self, call: _Call) -> _Answer | None:
        """Return the endpoint's answer; None where there was none."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            return None
        try:
            kept = [f"{name}: {value}" for name, value in call.head]
            lines = ["POST / HTTP/1.1", *kept, "connection: close"]
            lines += [f"content-length: {len(call.body)}", "", ""]
            writer.write("\r\n".join(lines).encode() + call.body)
            await writer.drain()
            first, head = await _read_head(reader)
            length = head.get("content-length")
            body = await (reader.read() if length is None else reader.readexactly(int(length)))
            named = tuple((name, head[name]) for name in _FROM_SERVER if name in head)
            return _Answer(int(first.split()[1]), body, named)
        except (OSError, ValueError, IndexError, asyncio.IncompleteReadError):
            return None
        finally:
            writer.close()


@dataclass(frozen=True, slots=True)
class _Late:
    seconds: float
    call: _Call = field(repr=False)


def _with(call: _Call, fields: dict[str, Any]) -> _Call:
    return _Call(call.action, call.head, json.dumps(fields).encode(), fields)


def _some(old: deque[dict[str, Any]], most: int, draw: random.Random) -> list[dict[str, Any]]:
    return draw.sample(list(old), min(most, len(old)))


def _refuse(refusal: Refusal) -> _Answer:
    head: tuple[tuple[str, str], ...] = (("content-type", "application/x-amz-json-1.0"),)
    if refusal.query:
        head = (*head, ("x-amzn-query-error", f"{refusal.query};Sender"))
    body = json.dumps({"__type": refusal.type, "message": "refused by the proxy"}).encode()
    return _Answer(refusal.status, body, head)


def _confirm(call: _Call) -> _Answer:
    """Return what SQS says when it has done what was asked."""

    def taken(fields: dict[str, Any]) -> dict[str, Any]:
        md5 = hashlib.md5(str(fields.get("MessageBody", "")).encode()).hexdigest()  # noqa: S324
        return {"MessageId": str(uuid.uuid4()), "MD5OfMessageBody": md5}

    done: dict[str, Any] = {}
    if call.action == "SendMessage":
        done = taken(call.fields)
    elif call.action == "SendMessageBatch":
        entries = call.fields.get("Entries", [])
        done = {"Successful": [{"Id": each["Id"], **taken(each)} for each in entries], "Failed": []}
    elif call.action.endswith("Batch"):
        ids = [{"Id": each["Id"]} for each in call.fields.get("Entries", [])]
        done = {"Successful": ids, "Failed": []}
    return _Answer(200, json.dumps(done).encode())


async def _read_call(reader: asyncio.StreamReader) -> _Call:
    _, head = await _read_head(reader)
    body = await reader.readexactly(int(head.get("content-length", "0")))
    action = head.get("x-amz-target", "").rpartition(".")[2]
    passed = tuple(
        (name, value)
        for name, value in head.items()
        if name not in ("connection", "content-length", "expect", "accept-encoding")
    )
    fields = json.loads(body or b"{}")
    return _Call(action, passed, body, fields if isinstance(fields, dict) else {})


async def _read_head(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]]:
    """Return the first line, and the headers by their names in small letters."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    named = (line.partition(":") for line in lines[1:] if line)
    return lines[0], {name.strip().lower(): value.strip() for name, _, value in named}
