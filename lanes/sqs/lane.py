"""The lane over Amazon SQS: one SQS queue per queue name, standard or FIFO."""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar

from lanes.sqs.addresses import Address, Addresses
from lanes.sqs.checks import check, probe
from lanes.sqs.clients import AioCalls, Boto3Calls, Calls, Endpoint, Timing
from lanes.sqs.dead_letters import SqsDeadLetters, find
from lanes.sqs.explaining import SqsError, explain, unanswered
from lanes.sqs.faults import queue_is_gone
from lanes.sqs.lean import LeanCalls
from lanes.sqs.receiving import SqsReceiver
from lanes.sqs.runners import LoopRunner, Runner, ThreadRunner
from lanes.sqs.sending import MAX_DELAY_S, Sender
from lanes.sqs.settling import Settler
from workhorse.domain.findings import Finding
from workhorse.errors import ConfigurationError
from workhorse.ports import LaneContext, Outgoing, SendReport

REACH_MS: Final = MAX_DELAY_S * 1000
_SEND_THREADS: Final = 8

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Backend:
    """A client, and where its calls run."""

    calls: Calls
    short: Runner
    long: Runner

    def close(self) -> None:
        self.short.close(self.calls.close)
        self.long.close()


class SqsLane:
    """Carries wakeups over SQS.

    Synchronous sends go over boto3; receives, what settles them, and asynchronous sends over
    aioboto3 where it is installed (the extra `aio`), else over boto3 as well; or all of them over
    the lean client, where `sqs_client` asks for it. What is used is imported at the first call.
    Credentials come from the SDK's usual chain, which also refreshes them.

    A process that forks makes its first call after the fork, or opens another lane in the child:
    the lane's threads and connections do not cross it.

    Args:
        context: What every lane is handed.
        timing: How long to wait for what.
        calls: For tests: makes what the calls go over, and blocks; instead of a client.

    Source: docs/wakeups.md
    """

    carries_messages = True

    def __init__(
        self,
        context: LaneContext,
        *,
        timing: Timing | None = None,
        calls: Callable[[Endpoint, Timing], Calls] | None = None,
    ) -> None:
        settings = context.settings
        self._timing = timing or Timing()
        self._counters = context.counters
        self._addresses = Addresses(settings)
        self._function_timeout_s = settings.function_timeout_seconds
        endpoint = Endpoint(settings.aws_endpoint_url, settings.aws_region)
        client = _client(settings.sqs_client) if calls is None else "given"
        self._async = self._sync = _backend(client, endpoint, self._timing, calls)
        if client == "aioboto3":
            # A caller that blocks anyway needs no event loop.
            self._sync = _backend("boto3", endpoint, self._timing)
        self._backends = [self._async] if client != "aioboto3" else [self._async, self._sync]
        self._sender = self._sender_over(self._sync)
        self._async_sender = self._sender_over(self._async)
        self._lock = threading.Lock()
        self._settlers: dict[str, Settler] = {}
        self._receivers: set[SqsReceiver] = set()
        self._closed = False

    @classmethod
    def open(cls, context: LaneContext) -> Self:
        """Open the lane; neither SDK is imported and no call is made yet.

        Raises:
            ConfigurationError: A queue's prefix, URL, ARN or name is not of the right form, or
                `sqs_client` asks for a client that is not installed.
        """
        return cls(context)

    def send(self, outgoing: Sequence[Outgoing]) -> SendReport:
        """Send wakeups, ten a call; failed entries once more; 2 s in all. Never raises."""
        return self._sender.send(outgoing)

    async def send_async(self, outgoing: Sequence[Outgoing]) -> SendReport:
        """As `send`, without blocking the event loop. A cancelled caller's sends go on."""
        return await self._async_sender.send_async(outgoing)

    def warm_up(self) -> None:
        """Load the SDK and make its client, in the background: a first send waits for both."""
        self._sync.short.submit(self._sync.calls.prepare)

    def receiver(self, queue: str) -> SqsReceiver:
        """Return a receiver; a worker makes one per queue.

        Raises:
            ConfigurationError: The queue's name is not allowed, or too long for SQS.
        """
        self._addresses.of(queue)
        backend = self._async
        with self._lock:
            settler = self._settlers.get(queue)
            if settler is None:
                settler = self._settlers[queue] = Settler(
                    queue, backend.calls, backend.short, self._addresses, self._counters
                )
            receiver = SqsReceiver(
                queue,
                backend.calls,
                backend.long,
                self._addresses,
                self._timing,
                settler,
                self._receivers.discard,
            )
            self._receivers.add(receiver)
            closed = self._closed
        if closed:
            receiver.close()
        return receiver

    def reach_ms(self, queue: str) -> int:
        """Return 15 minutes, or 0 on a FIFO queue, which delays no single message."""
        try:
            return 0 if self._addresses.of(queue).fifo else REACH_MS
        except ConfigurationError:
            # Enqueuing asks too, and must not fail for the lane: the send reports what is wrong.
            return 0

    def backlog(self, queue: str) -> int | None:
        """Return ApproximateNumberOfMessages: those visible, not those in flight or delayed."""
        try:
            return self._look(self._backlog, queue, self._sync)
        except TimeoutError:
            raise SqsError(unanswered(queue, self._timing.look_s)) from None

    def check(self, queue: str) -> Sequence[Finding]:
        """Return what is wrong with a queue's settings, and what its dead-letter queue holds."""
        return self._findings(self._check, queue, self._sync)

    def probe(self, queue: str) -> Sequence[Finding]:
        """Try whether messages may be deleted and shown again; see `ports.Probe`."""
        return self._findings(self._probe, queue, self._async)

    def dead_letters(self, queue: str) -> SqsDeadLetters | None:
        """Return a queue's dead-letter queue; None where it has none. See `ports.DeadLetters`.

        Raises:
            LaneError: SQS did not say.
            ConfigurationError: The queue's name, or its redrive policy, leads nowhere.
        """
        try:
            found = self._look(self._dead_letters, queue, self._sync)
        except TimeoutError:
            raise SqsError(unanswered(queue, self._timing.look_s)) from None
        if found is None:
            return None
        address, url = found
        over = self._sync
        return SqsDeadLetters(
            queue,
            address,
            url,
            calls=over.calls,
            short=over.short,
            long=over.long,
            timing=self._timing,
        )

    def close(self) -> None:
        """Close the receivers, give what is to be settled 2 s, and let go of the connections."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            receivers, settlers = list(self._receivers), list(self._settlers.values())
        for receiver in receivers:
            receiver.close()
        deadline = time.monotonic() + self._timing.close_s
        for settler in settlers:
            settler.flush(deadline - time.monotonic())
        for backend in self._backends:
            backend.close()

    def _sender_over(self, backend: _Backend) -> Sender:
        return Sender(backend.calls, backend.short, self._addresses, self._timing)

    def _findings(
        self, job: Callable[[str], Coroutine[Any, Any, list[Finding]]], queue: str, over: _Backend
    ) -> list[Finding]:
        try:
            return self._look(job, queue, over)
        except TimeoutError:
            return [unanswered(queue, self._timing.look_s)]
        except Exception as error:  # noqa: BLE001  (the lane is closed, or the SDK is broken)
            return [explain(error, queue)]

    def _look(self, job: Callable[[str], Coroutine[Any, Any, T]], queue: str, over: _Backend) -> T:
        future = over.short.submit(job, queue)
        try:
            return future.result(self._timing.look_s)
        finally:
            future.cancel()

    async def _backlog(self, queue: str) -> int:
        try:
            calls = self._sync.calls
            url = await self._addresses.url(calls, queue)
            found = await calls.attributes(url, "ApproximateNumberOfMessages")
            return int(found["ApproximateNumberOfMessages"])
        except Exception as error:  # noqa: BLE001  (whatever the SDK raises)
            if queue_is_gone(error):
                self._addresses.forget(queue)
            finding = explain(error, queue, self._addresses.of(queue), self._sync.calls.region)
            raise SqsError(finding) from None

    async def _check(self, queue: str) -> list[Finding]:
        calls = self._sync.calls
        with suppress(Exception):  # the first call says it again, and is explained
            await calls.prepare()
        return await check(
            calls, self._addresses, queue, function_timeout_s=self._function_timeout_s
        )

    async def _dead_letters(self, queue: str) -> tuple[Address, str] | None:
        return await find(self._sync.calls, self._addresses, queue)

    async def _probe(self, queue: str) -> list[Finding]:
        calls = self._async.calls
        with suppress(Exception):  # as above
            await calls.prepare()
        return await probe(calls, self._addresses, queue)


def _client(asked: str) -> str:
    """Return which client is to be used; it is not imported yet."""
    if asked == "auto":
        return "aioboto3" if importlib.util.find_spec("aioboto3") else "boto3"
    library, extra = {"aioboto3": ("aioboto3", "aio"), "lean": ("aiohttp", "lean")}.get(
        asked, ("boto3", "")
    )
    if importlib.util.find_spec(library) is None:
        raise ConfigurationError(
            f"sqs lane: sqs_client is {asked}, which needs {library}, which is not installed; "
            f"install the extra `workhorse-lanes[{extra}]`, or set sqs_client to auto or boto3"
        )
    return asked


def _backend(
    client: str,
    endpoint: Endpoint,
    timing: Timing,
    given: Callable[[Endpoint, Timing], Calls] | None = None,
) -> _Backend:
    if client == "boto3" or given is not None:
        return _Backend(
            (given or Boto3Calls)(endpoint, timing),
            short=ThreadRunner("calls", most=_SEND_THREADS),
            long=ThreadRunner("receives", most=None),
        )
    loop = LoopRunner("loop")
    calls = AioCalls(endpoint, timing) if client == "aioboto3" else LeanCalls(endpoint, timing)
    return _Backend(calls, short=loop, long=loop)
