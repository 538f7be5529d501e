"""`WakeupQueue`: the SQS queue of one queue of Workhorse, with its dead-letter queue."""

from __future__ import annotations

import re
from typing import Final

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra.constructs.errors import ArgumentError, check_range, path_of

DEFAULT_PREFIX: Final = "workhorse-"
_NAME: Final = re.compile(r"[a-z0-9_-]{1,60}\Z")
_LONGEST: Final = 80
_DAY_S: Final = 86_400


class WakeupQueue(Construct):
    """One queue's wakeups: SQS queue, dead-letter queue, and the policies of both.

    Both have the names that Workhorse looks for (prefix, environment, name), so no process has to
    be told a URL.

    Args:
        name: The queue's name in Workhorse: 1 to 60 characters of `a-z0-9_-`.
        environment: The setting `environment`, as the processes have it.
        prefix: The setting `sqs_queue_prefix`.
        visibility_seconds: How long a received message is hidden. With Lambda, six times the
            function's time-out at least, which `LambdaWorkers` checks.
        retention_days: How long SQS keeps a wakeup; older ones are stale anyway.
        max_receive_count: How often a wakeup is looked at before it is dead-lettered, at least 5:
            it may be early, or its run another's turn.
        encryption_key: A key of yours; by default SQS encrypts with its own, which costs nothing.
        fifo: Whether the queues are FIFO queues, which Workhorse does not need.

    Raises:
        ArgumentError: A name or number cannot work.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        name: str,
        environment: str = "",
        prefix: str = DEFAULT_PREFIX,
        visibility_seconds: int = 60,
        retention_days: int = 4,
        max_receive_count: int = 10,
        encryption_key: kms.IKey | None = None,
        fifo: bool = False,
    ) -> None:
        here = path_of(scope, construct_id)
        if not _NAME.match(name):
            raise ArgumentError(here, "name", f"is {name!r}; give 1 to 60 characters of a-z0-9_-")
        full = f"{prefix}{environment}{'-' if environment else ''}{name}"
        suffix = ".fifo" if fifo else ""
        if len(f"{full}-dlq{suffix}") > _LONGEST:
            raise ArgumentError(
                here,
                "name",
                f"is too long: {full}-dlq{suffix} has more than the {_LONGEST} characters "
                "that SQS allows; shorten prefix or environment",
            )
        check_range(
            here, "visibility_seconds", visibility_seconds, 30, 43_200,
            "with less, a slow store costs receives, and SQS allows no more",
        )  # fmt: skip
        check_range(here, "retention_days", retention_days, 1, 14, "SQS keeps no message longer")
        check_range(
            here, "max_receive_count", max_receive_count, 5, 1000,
            "a wakeup may be received several times before it is its run's turn",
        )  # fmt: skip
        super().__init__(scope, construct_id)
        self.name: Final = name
        self.environment: Final = environment
        self.prefix: Final = prefix
        self.fifo: Final = fifo
        self.visibility_seconds: Final = visibility_seconds
        self.encryption_key: Final = encryption_key

        encryption = (
            sqs.QueueEncryption.SQS_MANAGED if encryption_key is None else sqs.QueueEncryption.KMS
        )
        self.dead_letters: Final = sqs.Queue(
            self,
            "DeadLetters",
            queue_name=f"{full}-dlq{suffix}",
            fifo=True if fifo else None,  # false is refused for a standard queue
            retention_period=cdk.Duration.days(14),
            encryption=encryption,
            encryption_master_key=encryption_key,
        )
        self.queue: Final = sqs.Queue(
            self,
            "Queue",
            queue_name=f"{full}{suffix}",
            fifo=True if fifo else None,
            visibility_timeout=cdk.Duration.seconds(visibility_seconds),
            retention_period=cdk.Duration.seconds(retention_days * _DAY_S),
            receive_message_wait_time=cdk.Duration.seconds(20),
            encryption=encryption,
            encryption_master_key=encryption_key,
            dead_letter_queue=sqs.DeadLetterQueue(
                queue=self.dead_letters, max_receive_count=max_receive_count
            ),
        )
        # By the name and not by the resource: each of the two would otherwise wait for the other.
        source = cdk.Stack.of(self).format_arn(service="sqs", resource=f"{full}{suffix}")
        policy = {"redrivePermission": "byQueue", "sourceQueueArns": [source]}
        raw = self.dead_letters.node.default_child
        assert isinstance(raw, sqs.CfnQueue)  # noqa: S101 - for the type checker
        raw.redrive_allow_policy = policy
        for part in (self.queue, self.dead_letters):
            _only_over_tls(part)


def _only_over_tls(queue: sqs.Queue) -> None:
    queue.add_to_resource_policy(
        iam.PolicyStatement(
            sid="OnlyOverTls",
            effect=iam.Effect.DENY,
            principals=[iam.AnyPrincipal()],
            actions=["sqs:*"],  # whatever it is, it is denied
            resources=[queue.queue_arn],
            conditions={"Bool": {"aws:SecureTransport": "false"}},
        )
    )
