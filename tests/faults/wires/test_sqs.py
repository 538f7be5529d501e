"""What the proxy does to calls, each trouble for itself, and what the lane makes of its answers."""

from __future__ import annotations

import asyncio
import functools
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, HTTPClientError

from lanes.sqs import faults
from tests.faults.wires.sqs import (
    DELAY,
    DOUBLE,
    DROP,
    RECEIVE,
    REFUSALS,
    REFUSE,
    REORDER,
    SETTLE,
    CallProxy,
    Trouble,
    _read_head,
)
from tests.support.eventually import eventually_async
from tests.support.sqs import REGION


class Endpoint:
    """Takes what is sent, in order, hands it out, and notes each call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.held: list[str] = []
        self.away = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, head = await _read_head(reader)
        body = await reader.readexactly(int(head["content-length"]))
        if not self.away:
            action = head["x-amz-target"].rpartition(".")[2]
            answer = json.dumps(self.answer(action, json.loads(body))).encode()
            kept = "content-type: application/x-amz-json-1.0\r\n"
            length = f"content-length: {len(answer)}\r\n"
            writer.write(f"HTTP/1.1 200 OK\r\n{kept}{length}\r\n".encode() + answer)
        writer.close()

    def answer(self, action: str, fields: dict[str, Any]) -> dict[str, Any]:
        self.calls.append((action, fields))
        if action == "SendMessageBatch":
            self.held += [each["MessageBody"] for each in fields["Entries"]]
            ids = [{"Id": each["Id"], "MessageId": "m"} for each in fields["Entries"]]
            return {"Successful": ids, "Failed": []}
        if action == RECEIVE:
            taken = self.held[: fields["MaxNumberOfMessages"]]
            del self.held[: len(taken)]
            return {"Messages": [_message(body) for body in taken]} if taken else {}
        return {"Successful": [], "Failed": []}


def _message(body: str) -> dict[str, Any]:
    return {"MessageId": f"id {body}", "ReceiptHandle": f"handle {body}", "Body": body}


class Rig:
    """A client of boto3, the proxy and an endpoint."""

    def __init__(self, proxy: CallProxy, endpoint: Endpoint, counts: Counter[str]) -> None:
        self.proxy, self.endpoint, self.counts = proxy, endpoint, counts
        self._client: Any = _session().client(
            "sqs",
            endpoint_url=f"http://127.0.0.1:{proxy.port}",
            config=Config(retries={"total_max_attempts": 1}),
        )

    async def call(self, name: str, **parameters: Any) -> Any:
        return await asyncio.to_thread(getattr(self._client, name), **parameters)

    async def send(self, *bodies: str) -> Any:
        entries = [{"Id": str(at), "MessageBody": body} for at, body in enumerate(bodies)]
        return await self.call("send_message_batch", QueueUrl="http://q", Entries=entries)

    async def receive(self, most: int = 10) -> list[str]:
        found = await self.call("receive_message", QueueUrl="http://q", MaxNumberOfMessages=most)
        return [message["Body"] for message in found.get("Messages", [])]


@functools.cache
def _session() -> boto3.session.Session:
    return boto3.session.Session(
        aws_access_key_id="testing",
        aws_secret_access_key="testing",  # noqa: S106  (no endpoint checks it)
        region_name=REGION,
    )


@asynccontextmanager
async def rigged() -> AsyncIterator[Rig]:
    endpoint, counts = Endpoint(), Counter[str]()
    server = await asyncio.start_server(endpoint.serve, "127.0.0.1", 0)
    proxy = CallProxy(server.sockets[0].getsockname()[1], counts)
    await proxy.open()
    try:
        yield Rig(proxy, endpoint, counts)
    finally:
        await proxy.close()
        server.close()


def with_rig(body: Callable[[Rig], Awaitable[None]]) -> None:
    async def run() -> None:
        async with rigged() as rig, asyncio.timeout(60):
            await body(rig)

    asyncio.run(run())


def test_without_trouble_calls_and_answers_go_through() -> None:
    async def body(rig: Rig) -> None:
        answer = await rig.send("a", "b")
        assert [each["Id"] for each in answer["Successful"]] == ["0", "1"]
        assert await rig.receive() == ["a", "b"]
        assert await rig.receive() == []
        assert not rig.counts

    with_rig(body)


def test_drop_confirms_a_send_that_never_comes() -> None:
    async def body(rig: Rig) -> None:
        rig.proxy.trouble("t", Trouble(DROP), seed=1)
        answer = await rig.send("a", "b")
        assert [each["Id"] for each in answer["Successful"]] == ["0", "1"]
        assert answer.get("Failed", []) == []
        assert rig.endpoint.calls == []
        rig.proxy.heal("t")
        await rig.send("c")
        assert rig.endpoint.held == ["c"]

    with_rig(body)


def test_drop_withholds_what_was_received() -> None:
    async def body(rig: Rig) -> None:
        await rig.send("a")
        rig.proxy.trouble("t", Trouble(DROP, actions=(RECEIVE,)), seed=1)
        assert await rig.receive() == []
        assert rig.endpoint.held == []  # the endpoint has handed it out

    with_rig(body)


def test_drop_confirms_deletes_that_never_come() -> None:
    async def body(rig: Rig) -> None:
        rig.proxy.trouble("t", Trouble(DROP, actions=SETTLE), seed=1)
        entries = [{"Id": "0", "ReceiptHandle": "h"}]
        answer = await rig.call("delete_message_batch", QueueUrl="http://q", Entries=entries)
        assert answer["Successful"] == [{"Id": "0"}]
        assert rig.endpoint.calls == []

    with_rig(body)


def test_double_sends_twice_and_hands_out_again_what_was_had() -> None:
    async def body(rig: Rig) -> None:
        rig.proxy.trouble("t", Trouble(DOUBLE), seed=1)
        await rig.send("a")
        assert rig.endpoint.held == ["a", "a"]
        rig.proxy.heal("t")
        assert await rig.receive() == ["a", "a"]
        rig.proxy.trouble("t", Trouble(DOUBLE), seed=1)
        assert set(await rig.receive()) == {"a"}
        assert len(await rig.receive(most=1)) == 1  # never more than was asked for

    with_rig(body)


def test_delay_confirms_at_once_and_does_it_later() -> None:
    async def body(rig: Rig) -> None:
        rig.proxy.trouble("t", Trouble(DELAY, least=0.2, most=0.2), seed=1)
        await rig.send("a")
        before = list(rig.endpoint.calls)
        rig.proxy.heal("t")  # what is on its way still comes
        await eventually_async(lambda: rig.endpoint.held == ["a"])
        assert before == []

    with_rig(body)


def test_delay_brings_what_was_received_late() -> None:
    async def body(rig: Rig) -> None:
        await rig.send("a")
        rig.proxy.trouble("t", Trouble(DELAY, least=0.2, most=0.2), seed=1)
        began = asyncio.get_running_loop().time()
        assert await rig.receive() == ["a"]
        assert asyncio.get_running_loop().time() - began >= 0.2

    with_rig(body)


def test_reorder_lets_entries_overtake_each_other() -> None:
    async def body(rig: Rig) -> None:
        rig.proxy.trouble("t", Trouble(REORDER, least=0.0, most=0.2), seed=1)
        sent = [str(at) for at in range(10)]
        await rig.send(*sent)
        await eventually_async(lambda: len(rig.endpoint.held) == 10)
        assert rig.endpoint.held != sent
        assert sorted(rig.endpoint.held) == sent

    with_rig(body)


def test_reorder_withholds_shuffles_and_brings_old_ones_and_loses_none() -> None:
    async def body(rig: Rig) -> None:
        sent = [str(at) for at in range(30)]
        for at in range(0, 30, 10):
            await rig.send(*sent[at : at + 10])
        rig.proxy.trouble("t", Trouble(REORDER), seed=1)
        got: list[str] = []
        for _ in range(40):
            some = await rig.receive()
            assert len(some) <= 10
            got += some
        assert set(got) == set(sent)
        assert len(got) > 30
        first = list(dict.fromkeys(got))
        assert first != sent

    with_rig(body)


@pytest.mark.parametrize("code", sorted(REFUSALS))
def test_refuse_answers_as_sqs_words_it(code: str) -> None:
    """So that the lane, which knows errors by their names, takes it for what it is."""

    async def body(rig: Rig) -> None:
        rig.proxy.trouble("t", Trouble(REFUSE, code=code, actions=("SendMessageBatch",)), seed=1)
        with pytest.raises(ClientError) as caught:
            await rig.send("a")
        error = caught.value
        assert rig.endpoint.calls == []
        assert await rig.receive() == []  # others go through
        assert rig.endpoint.calls != []
        assert {
            "503": error.response["ResponseMetadata"]["HTTPStatusCode"] == 503,
            "AccessDenied": faults.is_denied(error),
            "ExpiredToken": faults.credentials_have_expired(error),
            "NonExistentQueue": faults.queue_is_gone(error),
        }[code]

    with_rig(body)


def test_two_troubles_stand_beside_each_other() -> None:
    async def body(rig: Rig) -> None:
        rig.proxy.trouble("one", Trouble(DROP, actions=("SendMessageBatch",)), seed=1)
        rig.proxy.trouble("two", Trouble(DELAY, least=0.0, actions=(RECEIVE,)), seed=1)
        await rig.send("a")
        await rig.receive()
        assert rig.counts == {"drop SendMessageBatch": 1, "delay ReceiveMessage": 1}

    with_rig(body)


def test_an_endpoint_that_is_away_is_away_through_the_proxy() -> None:
    async def body(rig: Rig) -> None:
        rig.endpoint.away = True
        with pytest.raises(HTTPClientError):
            await rig.send("a")
        rig.endpoint.away = False
        await rig.send("a")
        assert rig.endpoint.held == ["a"]

    with_rig(body)
