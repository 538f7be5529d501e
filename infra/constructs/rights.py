"""What each part may do at SQS, and nothing beside it; docs/security.md says why.

Every statement names its actions one by one and the queues by their ARNs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from constructs import Construct

from infra.constructs.queue import WakeupQueue

SEND: Final = ("sqs:GetQueueUrl", "sqs:SendMessage")
"""Sending in batches is the same right as sending one."""
RECEIVE: Final = (
    "sqs:ChangeMessageVisibility",
    "sqs:DeleteMessage",
    "sqs:GetQueueAttributes",
    "sqs:GetQueueUrl",
    "sqs:ReceiveMessage",
)
LOOK: Final = ("sqs:GetQueueAttributes", "sqs:GetQueueUrl")


class Rights:
    """Statements for the roles of the parts, also for roles that are made elsewhere."""

    @staticmethod
    def producer(queues: Sequence[WakeupQueue]) -> list[iam.PolicyStatement]:
        """May send to the queues, and no more."""
        return [_allow("SendWakeups", SEND, _arns(queues)), *_keys(queues, sends=True)]

    @staticmethod
    def worker(
        receives: Sequence[WakeupQueue], sends: Sequence[WakeupQueue]
    ) -> list[iam.PolicyStatement]:
        """May receive, delete and delay on its queues, and send to those that its runs go to.

        A worker sends to its own queues too: timers, retries and runs that it hands back.
        """
        both = list(dict.fromkeys([*receives, *sends]))
        return [
            _allow("ReceiveWakeups", RECEIVE, _arns(receives)),
            _allow("SendWakeups", SEND, _arns(both)),
            *_keys(both, sends=True),
        ]

    @staticmethod
    def maintenance(queues: Sequence[WakeupQueue]) -> list[iam.PolicyStatement]:
        """May send, and read how many messages there are; dead letters are the operator's."""
        return [
            _allow("SendWakeups", SEND, _arns(queues)),
            _allow("CountWakeups", LOOK, _arns(queues)),
            *_keys(queues, sends=True),
        ]

    @staticmethod
    def operator(queues: Sequence[WakeupQueue]) -> list[iam.PolicyStatement]:
        """For people: `workhorse doctor`, `rehint`, `dlq list` and `dlq drain`.

        The queues themselves are not received from: an operator's look takes no wakeup away.
        """
        dead = [queue.dead_letters.queue_arn for queue in queues]
        return [
            _allow("SendWakeups", SEND, _arns(queues)),
            _allow("CountWakeups", LOOK, _arns(queues)),
            _allow("DrainDeadLetters", RECEIVE, dead),
            *_keys(queues, sends=True),
        ]


def grant(role: iam.IRole, statements: Iterable[iam.PolicyStatement]) -> None:
    """Give a role what the statements say."""
    for statement in statements:
        role.add_to_principal_policy(statement)


def in_this_region(scope: Construct) -> dict[str, dict[str, str]]:
    """Return the condition for the few actions for which AWS knows no narrower resource than `*`.

    The region is in every request, so nothing that has to work is kept from working.
    """
    return {"StringEquals": {"aws:RequestedRegion": cdk.Stack.of(scope).region}}


def _allow(sid: str, actions: Sequence[str], resources: Sequence[str]) -> iam.PolicyStatement:
    return iam.PolicyStatement(sid=sid, actions=list(actions), resources=list(resources))


def _arns(queues: Sequence[WakeupQueue]) -> list[str]:
    return [queue.queue.queue_arn for queue in queues]


def _keys(queues: Sequence[WakeupQueue], *, sends: bool) -> list[iam.PolicyStatement]:
    """Return what queues with keys of their own need: SQS asks for it on the caller's behalf."""
    arns = list(dict.fromkeys(q.encryption_key.key_arn for q in queues if q.encryption_key))
    if not arns:
        return []
    actions = ["kms:Decrypt", *(["kms:GenerateDataKey"] if sends else [])]
    return [_allow("UseQueueKeys", actions, arns)]
