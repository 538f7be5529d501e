"""Looks at an SQS queue as an operator would, and says what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

from lanes.sqs.addresses import Address, Addresses, parse_address
from lanes.sqs.clients import Calls
from lanes.sqs.faults import (
    describe,
    is_denied,
    is_unreached,
    queue_is_gone,
    trouble_with_credentials,
)
from workhorse.errors import ConfigurationError
from workhorse.ports import NOTE

LEAST_VISIBILITY_S: Final = 30
LEAST_RECEIVES: Final = 5
PERMISSIONS: Final = (
    "sqs:GetQueueUrl, sqs:GetQueueAttributes, sqs:SendMessage, sqs:ReceiveMessage, "
    "sqs:DeleteMessage, sqs:ChangeMessageVisibility"
)


async def check(
    calls: Calls, addresses: Addresses, queue: str, *, region: str | None, emulated: bool
) -> list[str]:
    """Return sentences about what is wrong with a queue; see `workhorse.ports.NOTE`.

    Args:
        region: The one that the client speaks to; None when it is unknown.
        emulated: Whether an endpoint of its own is set, where regions mean nothing.
    """
    try:
        address = addresses.of(queue)
    except ConfigurationError as error:
        return [str(error)]
    if address.region and region and address.region != region and not emulated:
        elsewhere = (
            f"queue {queue}: its address names the region {address.region}, but the client speaks "
            f"to {region}; set WORKHORSE_AWS_REGION or AWS_REGION to {address.region}"
        )
        return [elsewhere]
    try:
        url = await addresses.url(calls, queue)
        attributes = await calls.attributes(url, "All")
    except Exception as error:  # noqa: BLE001  (whatever the SDK raises is the finding)
        if queue_is_gone(error):
            addresses.forget(queue)
        return [f"queue {queue}: {_sentence(error, address, region)}"]
    found = list(_settings(queue, attributes))
    found += await _dead_letters(calls, queue, attributes)
    return found


def _sentence(error: BaseException, address: Address, region: str | None) -> str:
    credentials = trouble_with_credentials(error)
    if credentials is not None:
        return f"{credentials}; renew them where this process gets them from"
    if queue_is_gone(error):
        where = f"in region {region}" if region else "there"
        return (
            f"SQS has no queue {address.name} {where}; create it, or set sqs_queue_urls or the "
            "region to where it is"
        )
    if is_denied(error):
        return f"access to {address.name} is denied; the role needs {PERMISSIONS} on it"
    if type(error).__name__ == "NoRegionError":
        return "no AWS region is set; set WORKHORSE_AWS_REGION or AWS_REGION"
    if is_unreached(error):
        return f"{describe(error)}; check the network, the endpoint and the region"
    return describe(error)


def _settings(queue: str, attributes: Mapping[str, str]) -> Iterator[str]:
    visibility_s = _number(attributes, "VisibilityTimeout", 30)
    if visibility_s < LEAST_VISIBILITY_S:
        yield (
            f"queue {queue}: its visibility time-out is {visibility_s} s, so wakeups come back "
            "while the store is slow, which costs receives and does no other harm; set "
            f"{LEAST_VISIBILITY_S} s or more, and for a Lambda function six times its time-out"
        )
    delay_s = _number(attributes, "DelaySeconds", 0)
    if delay_s:
        yield (
            f"queue {queue}: it delays every message by {delay_s} s, and so the start of every "
            "run; set its DelaySeconds to 0"
        )


async def _dead_letters(calls: Calls, queue: str, attributes: Mapping[str, str]) -> list[str]:
    try:
        policy = json.loads(attributes.get("RedrivePolicy") or "{}")
        target = policy.get("deadLetterTargetArn")
        receives = int(policy.get("maxReceiveCount", 0))
    except (ValueError, TypeError, AttributeError):
        return [f"queue {queue}: its redrive policy cannot be read"]
    if not target:
        none = (
            f"{NOTE}queue {queue} has no dead-letter queue; messages that nobody can settle come "
            "back until their retention ends. None is needed for the runs, which are in the store"
        )
        return [none]
    found = []
    if receives < LEAST_RECEIVES:
        found.append(
            f"queue {queue}: its maxReceiveCount is {receives}, so wakeups are dead-lettered after "
            "few receipts, though a receipt is no attempt; the nets still find their runs, only "
            "later. Set 10 or more"
        )
    try:
        address = parse_address(str(target))
        url = await calls.queue_url(address.name, address.owner)
        looked = await calls.attributes(url, "ApproximateNumberOfMessages")
        dead = int(looked.get("ApproximateNumberOfMessages", 0))
    except Exception as error:  # noqa: BLE001  (whatever the SDK raises is the finding)
        why = str(error) if isinstance(error, ConfigurationError) else describe(error)
        found.append(f"{NOTE}queue {queue}: its dead-letter queue cannot be looked at: {why}")
        return found
    if dead:
        found.append(
            f"{NOTE}queue {queue}: its dead-letter queue {address.name} holds about {dead} "
            "messages; dead-lettered wakeups are harmless, since their runs are in the store, "
            "where the nets find them. Purge that queue; a redrive is not needed"
        )
    return found


def _number(attributes: Mapping[str, str], name: str, default: int) -> int:
    try:
        return int(attributes.get(name, default))
    except ValueError:
        return default
