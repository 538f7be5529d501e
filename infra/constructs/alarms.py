"""`Alarms`: what somebody has to look at, and nothing that heals by itself."""

from __future__ import annotations

from typing import Final

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_sns as sns
from constructs import Construct

from infra.constructs.errors import check_range, path_of
from infra.constructs.system import System

_SILENT_MINUTES: Final = 5


class Alarms(Construct):
    """Four alarms: runs wait too long, runs fail, maintenance is silent, wakeups are dead.

    Args:
        system: What it belongs to; each queue has alarms of its own.
        topic: Whom to tell; without it, alarms are seen in CloudWatch alone.
        oldest_runnable_seconds: How long a run that could be claimed may wait, for five minutes.
        failed_runs: How many runs may fail in five minutes.

    Raises:
        ArgumentError: A number cannot work.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        system: System,
        topic: sns.ITopic | None = None,
        oldest_runnable_seconds: int = 300,
        failed_runs: int = 0,
    ) -> None:
        here = path_of(scope, construct_id)
        check_range(
            here, "oldest_runnable_seconds", oldest_runnable_seconds, 10, 604_800,
            "it is measured once a minute",
        )  # fmt: skip
        check_range(here, "failed_runs", failed_runs, 0, 1_000_000_000, "it is a number of runs")
        super().__init__(scope, construct_id)
        self.all: Final[list[cloudwatch.Alarm]] = []
        self._action = actions.SnsAction(topic) if topic else None

        for queue in system.queues:
            self._add(
                f"OldestRunnable-{queue.name}",
                system.metric("OldestRunnableAge", queue=queue),
                f"Runs of queue {queue.name!r} could be claimed, and wait: workers are missing, "
                "too few, or do not know their task. `workhorse doctor` says which.",
                threshold=oldest_runnable_seconds,
                periods=5,
            )
            self._add(
                f"FailedRuns-{queue.name}",
                system.metric("FailedRuns", queue=queue, statistic="Sum", period_minutes=5),
                f"Runs of queue {queue.name!r} failed for good: `workhorse runs list --state "
                f"failed --queue {queue.name}`.",
                threshold=failed_runs,
            )
            self._add(
                f"DeadLetters-{queue.name}",
                queue.dead_letters.metric_approximate_number_of_messages_visible(
                    statistic="Maximum", period=cdk.Duration.minutes(1)
                ),
                f"Wakeups of queue {queue.name!r} were dead-lettered. Their runs are in the "
                "store and are found there; look why: `workhorse doctor`.",
                threshold=0,
            )
        self._add(
            "MaintenanceSilent",
            system.metric("MaintenancePasses", statistic="Sum"),
            f"No pass of maintenance has been measured for {_SILENT_MINUTES} minutes: crashed "
            "workers' runs are not recovered, and nothing is promoted.",
            threshold=1,
            periods=_SILENT_MINUTES,
            below=True,
            # No word of it is the very thing that is looked for.
            missing=cloudwatch.TreatMissingData.BREACHING,
        )

    def _add(
        self,
        name: str,
        metric: cloudwatch.IMetric,
        description: str,
        *,
        threshold: float,
        periods: int = 1,
        below: bool = False,
        missing: cloudwatch.TreatMissingData = cloudwatch.TreatMissingData.NOT_BREACHING,
    ) -> None:
        alarm = cloudwatch.Alarm(
            self,
            name,
            metric=metric,
            alarm_description=description,
            threshold=threshold,
            evaluation_periods=periods,
            comparison_operator=cloudwatch.ComparisonOperator.LESS_THAN_THRESHOLD
            if below
            else cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD,
            treat_missing_data=missing,
        )
        if self._action is not None:
            alarm.add_alarm_action(self._action)
            alarm.add_ok_action(self._action)
        self.all.append(alarm)
