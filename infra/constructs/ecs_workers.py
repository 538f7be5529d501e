"""`EcsWorkers`: long-running workers as a service on Fargate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import aws_cdk as cdk
from aws_cdk import aws_applicationautoscaling as autoscaling
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from constructs import Construct

from infra.constructs.errors import ArgumentError, check_range, path_of
from infra.constructs.images import Image
from infra.constructs.network import Network
from infra.constructs.queue import WakeupQueue
from infra.constructs.rights import Rights, grant
from infra.constructs.system import System
from infra.constructs.tasks import make_task

HEALTH_PORT: Final = 8080
_GRACE_S: Final = 5
"""From the end of the drain to SIGKILL: what was cut short is handed back meanwhile."""
_LONGEST_STOP_S: Final = 120


class EcsWorkers(Construct):
    """A service of `workhorse worker` tasks that grows with what waits.

    A task's container gets its drain and five seconds more when it is stopped; a busy task asks
    ECS not to be scaled in. It runs as an ordinary user on a file system that it cannot write to.
    The service grows by one or three tasks while a run of its queues waits for long, and follows
    the backlog per worker otherwise. Maintenance measures both.

    Args:
        system: What it belongs to.
        cluster: The cluster of ECS.
        network: Where the tasks run.
        image: With Workhorse and the app.
        app: `module:attribute` of the app in the image.
        queues: What it serves; all of the system's by default.
        sends_to: Queues that its runs enqueue to, or wake runs of; all of the system's by default.
        cpu: In units of which a core has 1024.
        memory: In MiB.
        arm: Whether the image is built for ARM.
        concurrency: Runs that one task has under way at once.
        drain_seconds: How long runs may go on after a stop signal, at most 115.
        workers: The least and the most tasks.
        backlog_per_worker: How many unfinished claimable or running runs each task should have;
            the concurrency by default, so that all slots are busy.
        oldest_runnable_seconds: How long a run may wait before the service grows at once.
        migrate: Whether each task runs `workhorse migrate` before its worker. Without tables a
            worker ends at once, so a service that comes before them fails its first deployment.
        build: The setting: what the image was built from, which rises with each deployment.
        newest_build_only: The setting.
        settings: Further settings, by the names of their variables.
        secrets: Variables that ECS fills from Secrets Manager or the parameter store, when a task
            starts.
        capacity_providers: E.g. for Spot; Fargate by default.
        log_retention: How long logs are kept.

    Raises:
        ArgumentError: A number cannot work, or a queue is not the system's.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        system: System,
        cluster: ecs.ICluster,
        network: Network,
        image: Image | ecs.ContainerImage,
        app: str,
        queues: Sequence[WakeupQueue] | None = None,
        sends_to: Sequence[WakeupQueue] | None = None,
        cpu: int = 512,
        memory: int = 1024,
        arm: bool = False,
        concurrency: int = 10,
        drain_seconds: int = 25,
        workers: tuple[int, int] = (1, 10),
        backlog_per_worker: int | None = None,
        oldest_runnable_seconds: int = 60,
        migrate: bool = True,
        build: str = "",
        newest_build_only: bool = False,
        settings: Mapping[str, str] | None = None,
        secrets: Mapping[str, ecs.Secret] | None = None,
        capacity_providers: Sequence[ecs.CapacityProviderStrategy] | None = None,
        log_retention: logs.RetentionDays = logs.RetentionDays.ONE_MONTH,
    ) -> None:
        here = path_of(scope, construct_id)
        served = list(system.queues if queues is None else queues)
        check_queues(here, "queues", system, served)
        check_queues(here, "sends_to", system, sends_to or system.queues)
        if ":" not in app and not cdk.Token.is_unresolved(app):
            raise ArgumentError(here, "app", f"is {app!r}; give module:attribute")
        check_range(here, "concurrency", concurrency, 1, 1000, "the setting allows no other")
        check_range(
            here, "drain_seconds", drain_seconds, 0, _LONGEST_STOP_S - _GRACE_S,
            f"ECS kills a task {_LONGEST_STOP_S} s after it was asked to stop, and handing back "
            f"takes up to {_GRACE_S}",
        )  # fmt: skip
        least, most = workers
        check_range(here, "workers", least, 0, 5000, "the least is no number of tasks")
        check_range(here, "workers", most, max(least, 1), 5000, "the most is below the least")
        check_range(
            here, "oldest_runnable_seconds", oldest_runnable_seconds, 1, 86_400,
            "less is measured by nobody, more is no help",
        )  # fmt: skip
        backlog = concurrency if backlog_per_worker is None else backlog_per_worker
        check_range(here, "backlog_per_worker", backlog, 1, 1_000_000, "it is a number of runs")
        super().__init__(scope, construct_id)

        self.task: Final = make_task(
            self,
            system=system,
            image=image,
            command=["worker"],
            variables={
                "WORKHORSE_APP": app,
                "WORKHORSE_QUEUES": ",".join(queue.name for queue in served),
                "WORKHORSE_CONCURRENCY": str(concurrency),
                "WORKHORSE_DRAIN_SECONDS": str(drain_seconds),
                "WORKHORSE_HEALTH_PORT": str(HEALTH_PORT),
                **({"WORKHORSE_BUILD": build} if build else {}),
                **({"WORKHORSE_NEWEST_BUILD_ONLY": "true"} if newest_build_only else {}),
                **(settings or {}),
            },
            secrets=secrets or {},
            cpu=cpu,
            memory=memory,
            arm=arm,
            log_retention=log_retention,
            stop_seconds=drain_seconds + _GRACE_S,
            health=ecs.HealthCheck(
                command=["CMD", "python", "-m", "workhorse.probe"],
                interval=cdk.Duration.seconds(15),
                timeout=cdk.Duration.seconds(5),
                retries=3,
                start_period=cdk.Duration.seconds(60),
            ),
            migrate=migrate,
        )
        self.role: Final[iam.IRole] = self.task.role
        grant(self.role, Rights.worker(served, sends_to or system.queues))
        grant(self.role, [_protect_itself(self, cluster)])

        self.security_group: Final = ec2.SecurityGroup(
            self, "SecurityGroup", vpc=network.vpc, description="Workers of Workhorse"
        )
        system.database.allow_from(self.security_group)
        self.service: Final = ecs.FargateService(
            self,
            "Service",
            cluster=cluster,
            task_definition=self.task.definition,
            vpc_subnets=network.selection,
            security_groups=[self.security_group],
            assign_public_ip=False,
            min_healthy_percent=100,
            max_healthy_percent=200,
            circuit_breaker=ecs.DeploymentCircuitBreaker(enable=True, rollback=True),
            capacity_provider_strategies=list(capacity_providers) if capacity_providers else None,
            enable_ecs_managed_tags=True,
            propagate_tags=ecs.PropagatedTagSource.SERVICE,
        )
        self.service.node.add_dependency(self.role)
        raw = self.service.node.default_child
        assert isinstance(raw, ecs.CfnService)  # noqa: S101 - for the type checker
        # The scaling's to say; each deployment would set it back.
        raw.add_property_deletion_override("DesiredCount")
        count = self.service.auto_scale_task_count(min_capacity=least, max_capacity=most)
        for queue in served:
            _grow_when_runs_wait(count, system, queue, oldest_runnable_seconds)
            _follow_the_backlog(count, system, queue, backlog)


def check_queues(
    construct: str, argument: str, system: System, queues: Sequence[WakeupQueue]
) -> None:
    """Refuse queues that the system does not know.

    Raises:
        ArgumentError: One is not its own, or there are none.
    """
    if not queues:
        raise ArgumentError(construct, argument, "is empty; give one WakeupQueue at least")
    foreign = [queue.name for queue in queues if queue not in system.queues]
    if foreign:
        raise ArgumentError(
            construct,
            argument,
            f"holds {', '.join(foreign)}, not of this system; maintenance would not look after "
            "them: add them to System(queues=...)",
        )


def _protect_itself(scope: Construct, cluster: ecs.ICluster) -> iam.PolicyStatement:
    """Let a task ask not to be scaled in.

    A task's id is not known before it runs, so the resource is any task of the cluster, and the
    condition says the cluster once more.
    """
    return iam.PolicyStatement(
        sid="ProtectBusyTasks",
        actions=["ecs:UpdateTaskProtection"],
        resources=[
            cdk.Stack.of(scope).format_arn(
                service="ecs", resource="task", resource_name=f"{cluster.cluster_name}/*"
            )
        ],
        conditions={"ArnEquals": {"ecs:cluster": cluster.cluster_arn}},
    )


def _grow_when_runs_wait(
    count: ecs.ScalableTaskCount, system: System, queue: WakeupQueue, seconds: int
) -> None:
    """Add tasks while a run waits for too long; taking them away is left to the other policy."""
    count.scale_on_metric(
        f"OldestRunnable-{queue.name}",
        metric=system.metric("OldestRunnableAge", queue=queue),
        scaling_steps=[
            autoscaling.ScalingInterval(lower=seconds, upper=5 * seconds, change=1),
            autoscaling.ScalingInterval(lower=5 * seconds, change=3),
        ],
        adjustment_type=autoscaling.AdjustmentType.CHANGE_IN_CAPACITY,
        cooldown=cdk.Duration.seconds(90),
        evaluation_periods=1,
    )


def _follow_the_backlog(
    count: ecs.ScalableTaskCount, system: System, queue: WakeupQueue, target: int
) -> None:
    count.scale_to_track_custom_metric(
        f"Backlog-{queue.name}",
        metric=system.metric("BacklogPerWorker", queue=queue, statistic="Average"),
        target_value=target,
        scale_out_cooldown=cdk.Duration.seconds(60),
        scale_in_cooldown=cdk.Duration.seconds(300),
    )
