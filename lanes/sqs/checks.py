"""Looks at an SQS queue: as an operator would, and with the rights that a worker has."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from lanes.sqs.addresses import Address, Addresses, parse_address
from lanes.sqs.clients import Calls
from lanes.sqs.explaining import explain, misnamed
from lanes.sqs.faults import queue_is_gone
from workhorse.domain.findings import Code, Finding, Severity
from workhorse.errors import ConfigurationError

LEAST_VISIBILITY_S: Final = 30
LEAST_RECEIVES: Final = 5
TIMES_THE_TIMEOUT: Final = 6
"""What AWS asks of the visibility time-out of a queue that a function is called for."""
NO_MESSAGE: Final = "workhorse-probe"
"""A receipt handle that is none: a call with it changes nothing, and is refused for it alone."""


@dataclass(frozen=True, slots=True)
class Redrive:
    """Where a queue's messages go that were received too often."""

    target: Address
    receives: int


async def check(
    calls: Calls, addresses: Addresses, queue: str, *, function_timeout_s: float | None = None
) -> list[Finding]:
    """Return what is wrong with a queue's settings and what its dead-letter queue holds.

    Args:
        function_timeout_s: The time-out of the Lambda function that serves the queue, if one does.
    """
    try:
        address = addresses.of(queue)
    except ConfigurationError as error:
        return [misnamed(queue, error)]
    elsewhere = _elsewhere(calls, queue, address)
    if elsewhere is not None:
        return [elsewhere]
    try:
        url = await addresses.url(calls, queue)
        attributes = await calls.attributes(url, "All")
    except Exception as error:  # noqa: BLE001  (whatever the SDK raises is the finding)
        if queue_is_gone(error):
            addresses.forget(queue)
        return [explain(error, queue, address, calls.region)]
    found = list(_settings(queue, attributes, function_timeout_s))
    found += await _dead_letters(calls, queue, attributes)
    return found


async def probe(calls: Calls, addresses: Addresses, queue: str) -> list[Finding]:
    """Return what keeps a worker from deleting messages and from changing their visibility.

    SQS looks at permissions before it looks at receipt handles, so one that is none tells them
    apart without any effect. Whether messages may be received, the first receive says.
    """
    try:
        address = addresses.of(queue)
    except ConfigurationError as error:
        return [misnamed(queue, error)]
    elsewhere = _elsewhere(calls, queue, address)
    if elsewhere is not None:
        return [elsewhere]
    try:
        url = await addresses.url(calls, queue)
    except Exception as error:  # noqa: BLE001  (as above)
        return [explain(error, queue, address, calls.region)]
    entry = {"Id": "0", "ReceiptHandle": NO_MESSAGE}
    found: list[Finding] = []
    for call, entries in (
        (calls.delete_batch, [entry]),
        (calls.change_visibility_batch, [entry | {"VisibilityTimeout": 0}]),
    ):
        try:
            await call(url, entries)
        except Exception as error:  # noqa: BLE001  (as above)
            finding = explain(error, queue, address, calls.region)
            if finding.code is Code.BROKER_FAILED:
                continue  # refused for the handle, or passing: no statement about a permission
            if queue_is_gone(error):
                addresses.forget(queue)
            found.append(finding)
            if finding.code is not Code.ACCESS_DENIED:
                break  # the second call would find the same
    return found


def redrive_of(attributes: Mapping[str, str]) -> Redrive | None:
    """Return where a queue's messages go that were received too often; None where nowhere.

    Raises:
        ValueError: The policy is none that SQS writes.
        ConfigurationError: Its target is no queue's ARN.
    """
    try:
        policy = json.loads(attributes.get("RedrivePolicy") or "{}")
        target = policy.get("deadLetterTargetArn")
        receives = int(policy.get("maxReceiveCount", 0))
    except (TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError("no redrive policy") from error
    return Redrive(parse_address(str(target)), receives) if target else None


def _elsewhere(calls: Calls, queue: str, address: Address) -> Finding | None:
    """Return the finding that the address names another region than the client speaks to."""
    if not address.region or not calls.region or address.region == calls.region or calls.emulated:
        return None
    return Finding(
        Code.WRONG_REGION,
        Severity.WARNING,
        f"queue {queue}: its address names the region {address.region}, but the client speaks to "
        f"{calls.region}",
        f"set WORKHORSE_AWS_REGION or AWS_REGION to {address.region}",
        queue=queue,
    )


def _settings(
    queue: str, attributes: Mapping[str, str], function_timeout_s: float | None
) -> Iterator[Finding]:
    visibility_s = _number(attributes, "VisibilityTimeout", 30)
    least_s = LEAST_VISIBILITY_S
    why = "so wakeups come back while the store is slow, which costs receives and no more harm"
    if function_timeout_s is not None and TIMES_THE_TIMEOUT * function_timeout_s > least_s:
        least_s = math.ceil(TIMES_THE_TIMEOUT * function_timeout_s)
        why = (
            f"less than six times the {function_timeout_s:g} s that its function may take, so "
            "deliveries that were throttled come back too early, and wakeups are dead-lettered"
        )
    if visibility_s < least_s:
        yield Finding(
            Code.VISIBILITY_TOO_SHORT,
            Severity.WARNING,
            f"queue {queue}: its visibility time-out is {visibility_s} s, {why}",
            f"set {least_s} s or more"
            + ("" if function_timeout_s else ", and for a Lambda function six times its time-out"),
            queue=queue,
        )
    delay_s = _number(attributes, "DelaySeconds", 0)
    if delay_s:
        yield Finding(
            Code.QUEUE_DELAYS,
            Severity.WARNING,
            f"queue {queue}: it delays every message by {delay_s} s, and so the start of every run",
            "set its DelaySeconds to 0",
            queue=queue,
        )


async def _dead_letters(calls: Calls, queue: str, attributes: Mapping[str, str]) -> list[Finding]:
    def note(code: Code, what: str, advice: str = "") -> Finding:
        return Finding(code, Severity.NOTE, f"queue {queue}: {what}", advice, queue=queue)

    try:
        redrive = redrive_of(attributes)
    except ValueError:
        unreadable = Finding(
            Code.UNREADABLE_REDRIVE_POLICY,
            Severity.WARNING,
            f"queue {queue}: its redrive policy cannot be read",
            "set it anew: deadLetterTargetArn, and maxReceiveCount 10 or more",
            queue=queue,
        )
        return [unreadable]
    except ConfigurationError as error:
        return [note(Code.DEAD_LETTERS_UNSEEN, f"its dead-letter queue is none: {error}")]
    if redrive is None:
        return [
            note(
                Code.NO_DEAD_LETTER_QUEUE,
                "it has no dead-letter queue, so messages that nobody can settle come back until "
                "their retention ends; the runs need none, since they are in the store",
            )
        ]
    found = []
    if redrive.receives < LEAST_RECEIVES:
        found.append(
            Finding(
                Code.LOW_MAX_RECEIVE_COUNT,
                Severity.WARNING,
                f"queue {queue}: its maxReceiveCount is {redrive.receives}, so wakeups are "
                "dead-lettered after few receipts, though a receipt is no attempt; the nets still "
                "find their runs, only later",
                "set its maxReceiveCount to 10 or more",
                queue=queue,
            )
        )
    address = redrive.target
    try:
        url = await calls.queue_url(address.name, address.owner)
        looked = await calls.attributes(url, "ApproximateNumberOfMessages")
        dead = int(looked.get("ApproximateNumberOfMessages", 0))
    except Exception as error:  # noqa: BLE001  (whatever the SDK raises is the finding)
        why = explain(error, queue, address, calls.region).sentence
        why = why.removeprefix(f"queue {queue}: ")
        found.append(
            note(Code.DEAD_LETTERS_UNSEEN, f"its dead-letter queue cannot be looked at: {why}")
        )
        return found
    if dead:
        found.append(
            note(
                Code.DEAD_LETTERS,
                f"its dead-letter queue {address.name} holds about {dead} messages; dead-lettered "
                "wakeups are harmless, since their runs are in the store, where the nets find them",
                f"`workhorse dlq drain --queue {queue}` looks at each and empties it",
            )
        )
    return found


def _number(attributes: Mapping[str, str], name: str, default: int) -> int:
    try:
        return int(attributes.get(name, default))
    except (ValueError, TypeError, OverflowError):  # an emulator's; SQS writes digits
        return default
