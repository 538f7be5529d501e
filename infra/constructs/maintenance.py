"""`Maintenance`: one pass of maintenance each minute, on ECS or on Lambda."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import aws_scheduler as scheduler
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra.constructs.functions import RUNTIME, WorkhorseFunction
from infra.constructs.images import Image
from infra.constructs.network import Network
from infra.constructs.rights import Rights, grant
from infra.constructs.system import System
from infra.constructs.tasks import Task, make_task

_MEASURES: Final = {"WORKHORSE_METRICS": "emf"}
_LONGEST_PASS_S: Final = 60


@dataclass(frozen=True, kw_only=True)
class OnEcs:
    """Maintenance as a task: `workhorse maintain --once`. It needs no app, only the image.

    Args:
        cluster: The cluster of ECS.
        network: Where the task runs.
        image: With Workhorse.
        cpu: In units of which a core has 1024.
        memory: In MiB.
        arm: Whether the image is built for ARM.
    """

    cluster: ecs.ICluster
    network: Network
    image: Image | ecs.ContainerImage
    cpu: int = 256
    memory: int = 512
    arm: bool = False


@dataclass(frozen=True, kw_only=True)
class OnLambda:
    """Maintenance as a function, made by `workhorse.lambda_maintenance(app)`.

    Args:
        code: The package, with Workhorse and the app.
        handler: `module.function` in it.
        network: Where it runs; none only where the database can be reached from anywhere.
        runtime: The Python, or `Runtime.FROM_IMAGE`.
        memory: In MiB.
        arm: Whether the package is built for ARM.
    """

    code: lambda_.Code
    handler: str
    network: Network | None
    runtime: lambda_.Runtime = field(default=RUNTIME)
    memory: int = 512
    arm: bool = False


class Maintenance(Construct):
    """Recovers, promotes, tops up and measures, each minute, whatever the workers do.

    A start that fails is left to the next minute. What the scheduler could not start is kept in a
    queue for two weeks, for whoever asks why; the alarm is `Alarms`' silence of maintenance.

    Args:
        system: What it belongs to.
        on: Where it runs.
        settings: Further settings, by the names of their variables.
        log_retention: How long logs are kept.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        system: System,
        on: OnEcs | OnLambda,
        settings: Mapping[str, str] | None = None,
        log_retention: logs.RetentionDays = logs.RetentionDays.ONE_MONTH,
    ) -> None:
        super().__init__(scope, construct_id)
        variables = {**_MEASURES, **(settings or {})}
        self.task: Final[Task | None] = (
            _task(self, system, on, variables, log_retention) if isinstance(on, OnEcs) else None
        )
        self.function: Final[lambda_.Function | None] = (
            _function(self, system, on, variables, log_retention)
            if isinstance(on, OnLambda)
            else None
        )
        self.not_started: Final = sqs.Queue(
            self,
            "NotStarted",
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            enforce_ssl=True,
            retention_period=cdk.Duration.days(14),
        )
        self.security_group: ec2.ISecurityGroup | None = None
        """Of the task on ECS, which is let into the database."""
        group = scheduler.CfnScheduleGroup(self, "Group")
        starter = _starter(self, group)
        target: dict[str, Any]
        if isinstance(on, OnEcs):
            assert self.task is not None  # noqa: S101 - for the type checker
            self.security_group = ec2.SecurityGroup(
                self, "SecurityGroup", vpc=on.network.vpc, description="Maintenance of Workhorse"
            )
            system.database.allow_from(self.security_group)
            _allow_to_run(self.task, on, starter)
            target = _run_task(on, self.task, self.security_group)
        else:
            assert self.function is not None  # noqa: S101 - for the type checker
            starter.add_to_policy(
                iam.PolicyStatement(
                    sid="InvokeMaintenance",
                    actions=["lambda:InvokeFunction"],
                    resources=[self.function.function_arn],
                )
            )
            target = {"arn": self.function.function_arn, "input": "{}"}
        starter.add_to_policy(
            iam.PolicyStatement(
                sid="KeepWhatDidNotStart",
                actions=["sqs:SendMessage"],
                resources=[self.not_started.queue_arn],
            )
        )
        self.schedule: Final = scheduler.CfnSchedule(
            self,
            "EachMinute",
            group_name=group.ref,
            description="One pass of Workhorse's maintenance",
            schedule_expression="rate(1 minute)",
            flexible_time_window=scheduler.CfnSchedule.FlexibleTimeWindowProperty(mode="OFF"),
            state="ENABLED",
            target=scheduler.CfnSchedule.TargetProperty(
                role_arn=starter.role_arn,
                # The next minute is the better retry.
                retry_policy=scheduler.CfnSchedule.RetryPolicyProperty(
                    maximum_event_age_in_seconds=60, maximum_retry_attempts=0
                ),
                dead_letter_config=scheduler.CfnSchedule.DeadLetterConfigProperty(
                    arn=self.not_started.queue_arn
                ),
                **target,
            ),
        )
        self.schedule.node.add_dependency(starter)


def _task(
    scope: Construct,
    system: System,
    on: OnEcs,
    variables: Mapping[str, str],
    log_retention: logs.RetentionDays,
) -> Task:
    task = make_task(
        scope,
        system=system,
        image=on.image,
        command=["maintain", "--once"],
        variables=variables,
        secrets={},
        cpu=on.cpu,
        memory=on.memory,
        arm=on.arm,
        log_retention=log_retention,
        stop_seconds=30,
    )
    grant(task.role, Rights.maintenance(system.queues))
    return task


def _function(
    scope: Construct,
    system: System,
    on: OnLambda,
    variables: Mapping[str, str],
    log_retention: logs.RetentionDays,
) -> lambda_.Function:
    made = WorkhorseFunction(
        scope,
        "Pass",
        system=system,
        code=on.code,
        handler=on.handler,
        network=on.network,
        runtime=on.runtime,
        memory=on.memory,
        arm=on.arm,
        timeout_seconds=_LONGEST_PASS_S,
        settings=variables,
        log_retention=log_retention,
    )
    grant(made.role, Rights.maintenance(system.queues))
    return made.function


def _starter(scope: Construct, group: scheduler.CfnScheduleGroup) -> iam.Role:
    """Return the role that the scheduler takes, for schedules of this group alone."""
    return iam.Role(
        scope,
        "Starter",
        assumed_by=iam.ServicePrincipal(
            "scheduler.amazonaws.com",
            conditions={
                "StringEquals": {"aws:SourceAccount": cdk.Stack.of(scope).account},
                "ArnEquals": {"aws:SourceArn": group.attr_arn},
            },
        ),
    )


def _allow_to_run(task: Task, on: OnEcs, starter: iam.Role) -> None:
    starter.add_to_policy(
        iam.PolicyStatement(
            sid="RunMaintenance",
            actions=["ecs:RunTask"],
            resources=[task.definition.task_definition_arn],
            conditions={"ArnEquals": {"ecs:cluster": on.cluster.cluster_arn}},
        )
    )
    starter.add_to_policy(
        iam.PolicyStatement(
            sid="HandOverRoles",
            actions=["iam:PassRole"],
            resources=[task.role.role_arn, task.execution_role.role_arn],
            conditions={"StringEquals": {"iam:PassedToService": "ecs-tasks.amazonaws.com"}},
        )
    )


def _run_task(on: OnEcs, task: Task, security_group: ec2.ISecurityGroup) -> dict[str, Any]:
    network = scheduler.CfnSchedule.AwsVpcConfigurationProperty(
        subnets=[subnet.subnet_id for subnet in on.network.subnets],
        security_groups=[security_group.security_group_id],
        assign_public_ip="DISABLED",
    )
    return {
        "arn": on.cluster.cluster_arn,
        "ecs_parameters": scheduler.CfnSchedule.EcsParametersProperty(
            task_definition_arn=task.definition.task_definition_arn,
            launch_type="FARGATE",
            task_count=1,
            network_configuration=scheduler.CfnSchedule.NetworkConfigurationProperty(
                awsvpc_configuration=network
            ),
        ),
    }
