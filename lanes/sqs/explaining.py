"""What an error of the SDK means for a queue: a finding that says what is wrong and what to do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from lanes.sqs.addresses import Address
from lanes.sqs.faults import (
    LaneClosedError,
    code_of,
    credentials_have_expired,
    describe,
    is_denied,
    is_unreached,
    operation_of,
    queue_is_gone,
    trouble_with_credentials,
)
from lanes.sqs.translating import WRONG_CLOCK, sqs_clock
from workhorse.domain.findings import Code, Finding, Severity
from workhorse.errors import ConfigurationError
from workhorse.ports import LaneError

_RENEW: Final = "renew them where this process gets them from"


class SqsError(LaneError):
    """A call failed; the text is the finding's, since whoever asked will log it."""


def explain(
    error: BaseException, queue: str, address: Address | None = None, region: str | None = None
) -> Finding:
    """Return what an error of a call means.

    Args:
        error: What the call raised.
        queue: The queue's name, as runs carry it.
        address: The SQS queue that it stands for, as far as it is known.
        region: The region that the call went to; None when it is unknown.
    """

    def found(code: Code, what: str, advice: str = "", *, action: str | None = None) -> Finding:
        return Finding(
            code,
            Severity.WARNING,
            f"queue {queue}: {what}",
            advice,
            queue=queue,
            action=action,
        )

    if isinstance(error, LaneError):
        return error.finding
    if isinstance(error, ConfigurationError):
        return misnamed(queue, error)
    name = f"workhorse's queue {queue}" if address is None else address.name
    credentials = trouble_with_credentials(error)
    if credentials is not None:
        if code_of(error) is None and not credentials_have_expired(error):
            advice = "give this process a role, a profile or AWS_ACCESS_KEY_ID and its secret"
            return found(Code.CREDENTIALS_MISSING, credentials, advice)
        if credentials_have_expired(error):
            return found(Code.CREDENTIALS_EXPIRED, credentials, _RENEW)
        said = sqs_clock(error)
        if said is not None and abs(ours := datetime.now(UTC) - said) >= WRONG_CLOCK:
            return found(
                Code.CLOCK_SKEW,
                f"this machine's clock is {_apart(ours)} SQS's, which refuses what is signed by it",
                "set this machine's clock, and keep it by NTP",
            )
        advice = f"{_RENEW}, and look at this machine's clock"
        return found(Code.CREDENTIALS_REFUSED, credentials, advice)
    if queue_is_gone(error):
        where = f" in region {region}" if region else ""
        return found(
            Code.QUEUE_MISSING,
            f"SQS has no queue {name}{where}, or the role may not see it",
            "create it, or set sqs_queue_urls or the region to where it is, and allow "
            "sqs:GetQueueUrl on it",
        )
    operation = operation_of(error)
    if is_denied(error):
        action = _action(error, operation)
        return found(
            Code.ACCESS_DENIED,
            f"no permission: {action} on {name} is denied",
            f"allow {action} in the role of this process"
            + (" for the queue's key" if action.startswith("kms:") else " and the queue's policy"),
            action=action,
        )
    if type(error).__name__ == "NoRegionError":
        advice = "set WORKHORSE_AWS_REGION or AWS_REGION"
        return found(Code.REGION_MISSING, "no AWS region is set", advice)
    if isinstance(error, LaneClosedError):
        return found(Code.LANE_FAILED, describe(error), "open another one")
    if is_unreached(error):
        advice = "check the network, the endpoint and the region"
        return found(Code.ENDPOINT_UNREACHABLE, describe(error), advice)
    advice = "it may pass by itself; if it stays, look at the service's status and quotas"
    return found(Code.BROKER_FAILED, describe(error), advice)


def _apart(ours: timedelta) -> str:
    minutes = round(abs(ours) / timedelta(minutes=1))
    return f"{minutes} min {'ahead of' if ours > timedelta() else 'behind'}"


def unanswered(queue: str, seconds: float) -> Finding:
    """Return the finding that SQS did not answer in time."""
    return Finding(
        Code.ENDPOINT_UNREACHABLE,
        Severity.WARNING,
        f"queue {queue}: SQS did not answer within {seconds:g} s",
        "check the network, the endpoint and the region",
        queue=queue,
    )


def misnamed(queue: str, error: ConfigurationError) -> Finding:
    """Return the finding that a queue's name stands for no SQS queue."""
    return Finding(
        Code.LANE_MISCONFIGURED,
        Severity.ERROR,
        f"queue {queue}: {error}",
        "correct the lane's settings",
        queue=queue,
    )


def _action(error: BaseException, operation: str | None) -> str:
    """Return what IAM calls the permission; those of batches are the single calls'."""
    if (code_of(error) or "").startswith("Kms"):
        return "kms:GenerateDataKey" if (operation or "").startswith("Send") else "kms:Decrypt"
    return f"sqs:{operation.removesuffix('Batch')}" if operation else "an action of SQS"
