"""The seam to SQS: four calls and two look-ups, over boto3, over aioboto3, or leanly (lean.py).

The SDK's clients take the same parameters and give the same answers; the one difference is that
aioboto3's are awaited. So all that is above the seam is written once, as coroutines. Over boto3
they never suspend, they block, and a thread runs them from start to end (see runners.py).

boto3 and aioboto3 are imported at the first call, since each costs a second.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from lanes.sqs.faults import LaneClosedError

BATCH: Final = 10
"""The most entries that SQS takes, and the most messages that it gives, in one call."""
_AWS: Final = (".amazonaws.com", ".api.aws", ".amazonaws.com.cn", ".amazonaws.eu")


@dataclass(frozen=True, slots=True)
class Timing:
    """How long to wait for what, in seconds."""

    connect_s: float = 1.0
    read_s: float = 3.0
    attempts: int = 2
    """Of one call, the repeats of the SDK included; receives are repeated by their caller."""
    send_s: float = 2.0
    """The most that one `send` takes, whatever its calls do."""
    long_poll_s: int = 20
    long_connect_s: float = 3.0
    long_read_s: float = 25.0
    grace_s: float = 5.0
    """How much longer than asked for a receive may take before it is given up."""
    close_s: float = 2.0
    """The most that closing waits for what is under way."""
    look_s: float = 10.0
    """The most that a look at a queue's attributes takes, and the making of a client."""
    clock: Callable[[], float] = time.monotonic
    """What long polls are measured by, in seconds; another one is for tests."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where SQS is; None leaves it to the SDK's own configuration."""

    url: str | None
    region: str | None


@dataclass(frozen=True, slots=True)
class Failure:
    """An entry of a batch that SQS did not take, while the call itself succeeded."""

    entry_id: str
    code: str


@dataclass(frozen=True, slots=True)
class Raw:
    """A message as SQS gives it."""

    message_id: str
    body: object
    receive_count: int
    receipt_handle: str


Entry = Mapping[str, Any]


class Calls(ABC):
    """What the lane asks of SQS. Every call may raise whatever the SDK raises.

    Operations and parameters are named as in botocore.
    """

    def __init__(self, endpoint: Endpoint, timing: Timing) -> None:
        self._endpoint = endpoint
        self._timing = timing
        self._closed = False
        self.region: str | None = None
        """The region that the calls go to, once the clients are there."""
        self.emulated = False
        """Whether they go elsewhere than to AWS, where regions mean nothing."""

    async def receive(self, url: str, limit: int, wait_s: int) -> list[Raw]:
        """Return up to `limit` (at most 10) messages, waiting up to `wait_s` for the first."""
        answer = await self._call(
            "receive_message",
            long=True,
            QueueUrl=url,
            MaxNumberOfMessages=limit,
            WaitTimeSeconds=wait_s,
            MessageSystemAttributeNames=["ApproximateReceiveCount"],
        )
        return [
            Raw(
                message["MessageId"],
                message.get("Body"),
                int(message.get("Attributes", {}).get("ApproximateReceiveCount", 1)),
                message["ReceiptHandle"],
            )
            for message in answer.get("Messages", ())
        ]

    async def send_batch(self, url: str, entries: Sequence[Entry]) -> list[Failure]:
        """Send up to 10 messages; returns those that were not taken."""
        return await self._batch("send_message_batch", url, entries)

    async def delete_batch(self, url: str, entries: Sequence[Entry]) -> list[Failure]:
        """Delete up to 10 messages; returns those that were not deleted."""
        return await self._batch("delete_message_batch", url, entries)

    async def change_visibility_batch(self, url: str, entries: Sequence[Entry]) -> list[Failure]:
        """Set when up to 10 messages are visible again; returns those that were not changed."""
        return await self._batch("change_message_visibility_batch", url, entries)

    async def queue_url(self, name: str, owner: str | None) -> str:
        """Return the URL of a queue, of another account where `owner` is given."""
        parameters: dict[str, Any] = {"QueueName": name}
        if owner:
            parameters["QueueOwnerAWSAccountId"] = owner
        answer = await self._call("get_queue_url", **parameters)
        return str(answer["QueueUrl"])

    async def attributes(self, url: str, *names: str) -> dict[str, str]:
        """Return attributes of a queue."""
        answer = await self._call("get_queue_attributes", QueueUrl=url, AttributeNames=list(names))
        return dict(answer.get("Attributes", {}))

    @abstractmethod
    async def prepare(self) -> None:
        """Make the clients, which takes a second the first time and calls no broker."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of the connections."""

    @abstractmethod
    async def _call(self, operation: str, *, long: bool = False, **parameters: Any) -> Any: ...

    async def _batch(self, operation: str, url: str, entries: Sequence[Entry]) -> list[Failure]:
        answer = await self._call(operation, QueueUrl=url, Entries=list(entries))
        return [
            Failure(failed["Id"], failed.get("Code", "unknown"))
            for failed in answer.get("Failed", ())
        ]

    def _goes_to(self, url: str, region: str) -> None:
        """Note where the clients that were made speak to."""
        host = urlsplit(url).hostname or ""
        self.region = region
        self.emulated = not host.endswith(_AWS)

    def _options(self, user_agent: str, *, long: bool) -> dict[str, Any]:
        """Return the options of the client for short calls, or of that for receives.

        They are two so that long polls never stand in the way of a send: neither their time-outs
        nor their connections.
        """
        timing = self._timing
        return {
            "connect_timeout": timing.long_connect_s if long else timing.connect_s,
            "read_timeout": timing.long_read_s if long else timing.read_s,
            "retries": {"mode": "standard", "total_max_attempts": 1 if long else timing.attempts},
            "max_pool_connections": 256 if long else 10,
            "tcp_keepalive": True,
            # Both are a tenth of a call's CPU: what we ask is built here and right, and botocore
            # would put the same long user agent together anew for each request.
            "parameter_validation": False,
            "user_agent": user_agent,
        }


class Boto3Calls(Calls):
    """Over boto3: each call blocks its thread."""

    def __init__(self, endpoint: Endpoint, timing: Timing) -> None:
        super().__init__(endpoint, timing)
        self._lock = threading.Lock()
        self._clients: tuple[Any, Any] | None = None

    async def prepare(self) -> None:
        """Make the clients."""
        self._both()

    async def close(self) -> None:
        """Let go of the connections; a call under way goes on to its end."""
        with self._lock:
            self._closed = True
            clients, self._clients = self._clients, None
        for client in clients or ():
            client.close()

    async def _call(self, operation: str, *, long: bool = False, **parameters: Any) -> Any:
        return getattr(self._both()[long], operation)(**parameters)

    def _both(self) -> tuple[Any, Any]:
        # Clients may be shared by threads; making one may not.
        with self._lock:
            if self._closed:
                raise LaneClosedError
            if self._clients is None:
                import boto3
                import botocore.session
                from botocore.config import Config

                # A session of its own, with the usual chain of credentials, which refreshes them.
                core = botocore.session.get_session()
                session = boto3.session.Session(
                    botocore_session=core, region_name=self._endpoint.region
                )
                user_agent = user_agent_of(core, f"Boto3/{boto3.__version__}")

                def make(*, long: bool) -> Any:
                    config = Config(**self._options(user_agent, long=long))
                    return session.client("sqs", endpoint_url=self._endpoint.url, config=config)

                self._clients = make(long=False), make(long=True)
                meta = self._clients[0].meta
                self._goes_to(meta.endpoint_url, meta.region_name)
            return self._clients


class AioCalls(Calls):
    """Over aioboto3, on one event loop."""

    def __init__(self, endpoint: Endpoint, timing: Timing) -> None:
        super().__init__(endpoint, timing)
        self._lock = asyncio.Lock()
        self._stack: AsyncExitStack | None = None
        self._clients: tuple[Any, Any] | None = None

    async def prepare(self) -> None:
        """Make the clients."""
        await self._both()

    async def close(self) -> None:
        """Let go of the connections."""
        async with self._lock:
            self._closed = True
            stack, self._stack, self._clients = self._stack, None, None
            if stack is not None:
                await stack.aclose()

    async def _call(self, operation: str, *, long: bool = False, **parameters: Any) -> Any:
        return await getattr((await self._both())[long], operation)(**parameters)

    async def _both(self) -> tuple[Any, Any]:
        async with self._lock:
            if self._closed:
                raise LaneClosedError
            if self._clients is None:
                import aioboto3
                import aiobotocore  # type: ignore[import-untyped]  # has none
                from aiobotocore.config import AioConfig  # type: ignore[import-untyped]
                from aiobotocore.session import get_session  # type: ignore[import-untyped]

                core = get_session()
                session = aioboto3.Session(botocore_session=core, region_name=self._endpoint.region)
                user_agent = user_agent_of(core, f"aiobotocore/{aiobotocore.__version__}")
                async with AsyncExitStack() as stack:

                    async def make(*, long: bool) -> Any:
                        config = AioConfig(**self._options(user_agent, long=long))
                        return await stack.enter_async_context(
                            session.client("sqs", endpoint_url=self._endpoint.url, config=config)
                        )

                    self._clients = await make(long=False), await make(long=True)
                    self._stack = stack.pop_all()
                meta = self._clients[0].meta
                self._goes_to(meta.endpoint_url, meta.region_name)
            return self._clients


def user_agent_of(session: Any, client: str) -> str:
    """Return what names the client to AWS, the application's id with it where one is set.

    Args:
        session: A session of botocore's.
        client: The library's name and version.
    """
    application = session.get_config_variable("user_agent_appid")
    return f"{client} app/{application} workhorse" if application else f"{client} workhorse"
