"""`LambdaWorkers`: a function that SQS calls with the wakeups of one queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct

from infra.constructs.ecs_workers import check_queues
from infra.constructs.errors import ArgumentError, check_range, path_of
from infra.constructs.functions import RUNTIME, WorkhorseFunction
from infra.constructs.network import Network
from infra.constructs.queue import WakeupQueue
from infra.constructs.rights import Rights, grant
from infra.constructs.system import System

VISIBILITY_FACTOR: Final = 6
"""AWS's own advice: throttled invocations are tried again until the message is visible."""
_BATCH_WITHOUT_WINDOW: Final = 10


class LambdaWorkers(Construct):
    """A function that works off one queue: partial batch responses, and bounded concurrency.

    Args:
        system: What it belongs to.
        queue: What it serves.
        code: The package, with Workhorse and the app.
        handler: `module.function`, made by `workhorse.lambda_handler(app)`.
        network: Where it runs; none only where the database can be reached from anywhere.
        sends_to: Queues that its runs enqueue to, or wake runs of; all of the system's by default.
        runtime: The Python, or `Runtime.FROM_IMAGE`.
        memory: In MiB.
        arm: Whether the package is built for ARM.
        timeout_seconds: Lambda's own limit; a run is claimed only while enough of it is left. The
            queue's visibility time-out has to be six times as long, and the batching window more.
        concurrency: Runs that one invocation has under way at once.
        batch_size: Messages in one invocation, at most the concurrency.
        batching_window_seconds: How long SQS waits for a batch to fill; 0 is for the least delay.
        max_concurrency: The most invocations at once, 2 to 1000; each holds connections to the
            database.
        settings: Further settings, by the names of their variables.
        log_retention: How long logs are kept.

    Raises:
        ArgumentError: A number cannot work, or numbers do not fit together.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        system: System,
        queue: WakeupQueue,
        code: lambda_.Code,
        handler: str,
        network: Network | None,
        sends_to: Sequence[WakeupQueue] | None = None,
        runtime: lambda_.Runtime = RUNTIME,
        memory: int = 512,
        arm: bool = False,
        timeout_seconds: int = 60,
        concurrency: int = 10,
        batch_size: int = 10,
        batching_window_seconds: int = 0,
        max_concurrency: int = 10,
        settings: Mapping[str, str] | None = None,
        log_retention: logs.RetentionDays = logs.RetentionDays.ONE_MONTH,
    ) -> None:
        here = path_of(scope, construct_id)
        check_queues(here, "queue", system, [queue])
        check_queues(here, "sends_to", system, sends_to or system.queues)
        check_range(here, "concurrency", concurrency, 1, 1000, "the setting allows no other")
        check_range(here, "batch_size", batch_size, 1, 10_000, "SQS gives Lambda no other")
        check_range(here, "max_concurrency", max_concurrency, 2, 1000, "Lambda allows no other")
        check_range(
            here, "batching_window_seconds", batching_window_seconds, 0, 300,
            "Lambda allows no other",
        )  # fmt: skip
        if batch_size > concurrency:
            raise ArgumentError(
                here,
                "batch_size",
                f"is {batch_size}, more than the {concurrency} runs that an invocation has under "
                "way at once; the rest of a batch would have to be sent again: lower it, or raise "
                "concurrency",
            )
        if batch_size > _BATCH_WITHOUT_WINDOW and (queue.fifo or not batching_window_seconds):
            raise ArgumentError(
                here,
                "batch_size",
                f"is {batch_size}; more than {_BATCH_WITHOUT_WINDOW} need a batching window of "
                "1 s at least, and a standard queue",
            )
        if queue.fifo and batching_window_seconds:
            raise ArgumentError(
                here, "batching_window_seconds", "has to be 0: FIFO queues have no such window"
            )
        needed = VISIBILITY_FACTOR * timeout_seconds + batching_window_seconds
        if queue.visibility_seconds < needed:
            raise ArgumentError(
                here,
                "timeout_seconds",
                f"is {timeout_seconds}, and the visibility time-out of queue {queue.name!r} is "
                f"{queue.visibility_seconds} s; wakeups would come back while their invocation "
                f"may still run: give the WakeupQueue visibility_seconds={needed} or more",
            )
        super().__init__(scope, construct_id)
        if system.hint_stride > 1:
            cdk.Annotations.of(self).add_warning_v2(
                "workhorse:hint-stride",
                f"hint_stride is {system.hint_stride}: bulk enqueue wakes one invocation for so "
                "many runs. Where Lambda alone serves the queue, give System(hint_stride=1).",
            )
        self.worker: Final = WorkhorseFunction(
            self,
            "Worker",
            system=system,
            code=code,
            handler=handler,
            network=network,
            runtime=runtime,
            memory=memory,
            timeout_seconds=timeout_seconds,
            arm=arm,
            settings={
                "WORKHORSE_QUEUES": queue.name,
                "WORKHORSE_CONCURRENCY": str(concurrency),
                **(settings or {}),
            },
            log_retention=log_retention,
        )
        self.function: Final = self.worker.function
        self.role: Final[iam.IRole] = self.worker.role
        grant(self.role, Rights.worker([queue], sends_to or system.queues))
        self.mapping: Final = lambda_.EventSourceMapping(
            self,
            "Mapping",
            target=self.function,
            event_source_arn=queue.queue.queue_arn,
            batch_size=batch_size,
            max_batching_window=cdk.Duration.seconds(batching_window_seconds)
            if batching_window_seconds
            else None,
            max_concurrency=max_concurrency,
            report_batch_item_failures=True,
        )
        # Lambda checks at once whether the role may receive.
        self.mapping.node.add_dependency(self.role)
