"""Tasks of ECS, as workers and maintenance both need them: nothing to write to, nobody's root."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import aws_cdk as cdk
from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from constructs import Construct

from infra.constructs.images import Image
from infra.constructs.system import System, check_variables

USER: Final = "10001:10001"
"""The user of infra/image/Dockerfile."""
CONTAINER: Final = "workhorse"
MIGRATION: Final = "migrate"


@dataclass(frozen=True)
class Task:
    """A task definition, with what others have to be told of it."""

    definition: ecs.FargateTaskDefinition
    role: iam.Role
    execution_role: iam.Role
    log_group: logs.LogGroup


def make_task(
    scope: Construct,
    *,
    system: System,
    image: Image | ecs.ContainerImage,
    command: Sequence[str],
    variables: Mapping[str, str],
    secrets: Mapping[str, ecs.Secret],
    cpu: int,
    memory: int,
    arm: bool,
    log_retention: logs.RetentionDays,
    stop_seconds: int,
    health: ecs.HealthCheck | None = None,
    migrate: bool = False,
) -> Task:
    """Return a task definition with roles of its own, which may log, pull, and know the database.

    Args:
        migrate: Whether `workhorse migrate` runs before it, in a container of its own that ends.

    Raises:
        ArgumentError: A variable has no name, or looks like a secret.
    """
    check_variables(scope.node.path, variables)
    group = logs.LogGroup(scope, "Logs", retention=log_retention)
    role = iam.Role(scope, "TaskRole", assumed_by=_tasks_of(scope))
    execution_role = iam.Role(scope, "ExecutionRole", assumed_by=_tasks_of(scope))
    definition = ecs.FargateTaskDefinition(
        scope,
        "Task",
        cpu=cpu,
        memory_limit_mib=memory,
        task_role=role,
        execution_role=execution_role,
        runtime_platform=ecs.RuntimePlatform(
            cpu_architecture=ecs.CpuArchitecture.ARM64 if arm else ecs.CpuArchitecture.X86_64,
            operating_system_family=ecs.OperatingSystemFamily.LINUX,
        ),
    )
    common: dict[str, Any] = {
        "image": image.container() if isinstance(image, Image) else image,
        "user": USER,
        "readonly_root_filesystem": True,
        "environment": {**system.variables(), **variables},
        "secrets": dict(secrets),
    }
    main = definition.add_container(
        CONTAINER,
        command=list(command),
        # `workhorse` is process 1 itself: it takes the signals and collects its own children.
        linux_parameters=_without_powers(scope, "Linux"),
        stop_timeout=cdk.Duration.seconds(stop_seconds),
        health_check=health,
        logging=ecs.LogDrivers.aws_logs(stream_prefix=CONTAINER, log_group=group),
        **common,
    )
    if migrate:
        before = definition.add_container(
            MIGRATION,
            command=["migrate"],
            essential=False,
            linux_parameters=_without_powers(scope, "MigrationLinux"),
            logging=ecs.LogDrivers.aws_logs(stream_prefix=MIGRATION, log_group=group),
            **common,
        )
        # Not its success: it refuses a schema that is newer than the image, which still serves it
        # when a deployment is rolled back, and a user of the database may be denied to make
        # tables. Whether the schema fits, the process itself looks.
        main.add_container_dependencies(
            ecs.ContainerDependency(
                container=before, condition=ecs.ContainerDependencyCondition.COMPLETE
            )
        )
    if isinstance(image, Image):
        image.grant_pull(scope, execution_role)
    system.database.grant_connect(role)
    return Task(definition, role, execution_role, group)


def _tasks_of(scope: Construct) -> iam.IPrincipal:
    """Return ECS's tasks as who may take a role, and those of this account alone."""
    stack = cdk.Stack.of(scope)
    return iam.ServicePrincipal(
        "ecs-tasks.amazonaws.com",
        conditions={"StringEquals": {"aws:SourceAccount": stack.account}},
    )


def _without_powers(scope: Construct, construct_id: str) -> ecs.LinuxParameters:
    parameters = ecs.LinuxParameters(scope, construct_id, init_process_enabled=False)
    parameters.drop_capabilities(ecs.Capability.ALL)
    return parameters
