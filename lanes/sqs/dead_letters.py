"""The dead-letter queue of an SQS queue, for an operator who looks through it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from lanes import wire
from lanes.sqs.addresses import Address, Addresses
from lanes.sqs.checks import redrive_of
from lanes.sqs.clients import BATCH, Calls, Entry, Timing
from lanes.sqs.explaining import SqsError, explain, unanswered
from lanes.sqs.faults import queue_is_gone
from lanes.sqs.runners import Runner
from workhorse.errors import ConfigurationError
from workhorse.ports import Message

T = TypeVar("T")

_WAIT_S = 1
"""A long poll asks all of SQS's servers, a short one only some of them."""


class SqsDeadLetters:
    """What was received too often. Each call blocks, and raises `LaneError` where it fails."""

    def __init__(
        self,
        queue: str,
        address: Address,
        url: str,
        *,
        calls: Calls,
        short: Runner,
        long: Runner,
        timing: Timing,
    ) -> None:
        self._queue = queue
        self._address = address
        self._url = url
        self._calls = calls
        self._short = short
        self._long = long
        self._timing = timing
        self.name = address.name

    def count(self) -> int:
        """Return about how many messages are visible in it."""
        return self._ask(self._short, self._timing.look_s, self._count)

    def receive(self, limit: int) -> Sequence[Message]:
        """Return up to ten messages; they stay hidden for its own visibility time-out."""
        timing = self._timing
        patience_s = _WAIT_S + timing.grace_s + timing.long_connect_s
        raws = self._ask(
            self._long, patience_s, self._calls.receive, self._url, min(limit, BATCH), _WAIT_S
        )
        return [
            Message(raw.message_id, wire.decode(raw.body), raw.receive_count, raw.receipt_handle)
            for raw in raws
        ]

    def delete(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Delete messages; returns those that were deleted."""
        return self._each(self._calls.delete_batch, messages, {})

    def show_again(self, messages: Sequence[Message]) -> None:
        """Make messages visible at once; what fails is visible again after its time."""
        self._each(self._calls.change_visibility_batch, messages, {"VisibilityTimeout": 0})

    # -- parts -----------------------------------------------------------------------------------

    async def _count(self) -> int:
        found = await self._calls.attributes(self._url, "ApproximateNumberOfMessages")
        return int(found["ApproximateNumberOfMessages"])

    def _each(
        self,
        call: Callable[[str, Sequence[Entry]], Coroutine[Any, Any, Sequence[Any]]],
        messages: Sequence[Message],
        more: Entry,
    ) -> list[Message]:
        done: list[Message] = []
        for start in range(0, len(messages), BATCH):
            part = messages[start : start + BATCH]
            entries = [
                {"Id": str(index), "ReceiptHandle": message.handle, **more}
                for index, message in enumerate(part)
            ]
            failures = self._ask(self._short, self._timing.look_s, call, self._url, entries)
            failed = {failure.entry_id for failure in failures}
            done += [each for index, each in enumerate(part) if str(index) not in failed]
        return done

    def _ask(
        self,
        runner: Runner,
        within_s: float,
        job: Callable[..., Coroutine[Any, Any, T]],
        *args: Any,
    ) -> T:
        future = runner.submit(job, *args)
        try:
            return future.result(within_s)
        except TimeoutError:
            raise SqsError(unanswered(self._queue, within_s)) from None
        except Exception as error:  # noqa: BLE001  (whatever the SDK raises)
            finding = explain(error, self._queue, self._address, self._calls.region)
            raise SqsError(finding) from None
        finally:
            future.cancel()


async def find(calls: Calls, addresses: Addresses, queue: str) -> tuple[Address, str] | None:
    """Return the address and the URL of a queue's dead-letter queue; None where it has none.

    Raises:
        SqsError: It cannot be found out, or the policy names none that can be.
    """
    address = addresses.of(queue)
    try:
        attributes = await calls.attributes(await addresses.url(calls, queue), "RedrivePolicy")
        redrive = redrive_of(attributes)
        if redrive is None:
            return None
        address = redrive.target
        return address, await calls.queue_url(address.name, address.owner)
    except (ConfigurationError, ValueError) as error:
        raise ConfigurationError(
            f"sqs lane: queue {queue}: its redrive policy leads nowhere: {error}; set it anew"
        ) from None
    except Exception as error:  # noqa: BLE001  (whatever the SDK raises)
        if queue_is_gone(error):
            addresses.forget(queue)
        raise SqsError(explain(error, queue, address, calls.region)) from None
