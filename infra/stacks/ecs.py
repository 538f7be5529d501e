"""`EcsStack`: long-running workers on Fargate, maintenance as a scheduled task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_iam as iam
from constructs import Construct

from infra.constructs import (
    Alarms,
    Database,
    EcsWorkers,
    Image,
    Maintenance,
    Network,
    OnEcs,
    Rights,
    System,
    WakeupQueue,
)
from infra.stacks.parts import alarm_topic, network_of_parameters


class EcsStack(cdk.Stack):
    """A whole deployment on ECS: queue, Aurora, workers, maintenance, alarms.

    What is not given becomes a parameter of the stack.

    Args:
        environment: The setting.
        queues: The names of the queues.
        network: Where it runs.
        image: With Workhorse and the app.
        app: `module:attribute` of the app in the image.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        environment: str = "",
        queues: Sequence[str] = ("default",),
        network: Network | None = None,
        image: Image | ecs.ContainerImage | None = None,
        app: str | None = None,
        **stack: Any,
    ) -> None:
        super().__init__(
            scope,
            construct_id,
            description="Workhorse: durable background runs, with workers on ECS",
            **stack,
        )
        network = network or network_of_parameters(self)
        image = image or self._image_of_parameters()
        app = (
            app
            or cdk.CfnParameter(
                self,
                "App",
                description="The app in the image, module:attribute",
                allowed_pattern=r"[\w.]+:[\w.]+",
            ).value_as_string
        )

        database = Database(self, "Database", network=network)
        system = System(
            database=database,
            queues=[
                WakeupQueue(self, f"Queue-{name}", name=name, environment=environment)
                for name in queues
            ],
            environment=environment,
        )
        cluster = ecs.Cluster(
            self,
            "Cluster",
            vpc=network.vpc,
            container_insights_v2=ecs.ContainerInsights.ENABLED,
        )
        EcsWorkers(
            self,
            "Workers",
            system=system,
            cluster=cluster,
            network=network,
            image=image,
            app=app,
        )
        maintenance = Maintenance(
            self,
            "Maintenance",
            system=system,
            on=OnEcs(cluster=cluster, network=network, image=image),
        )
        Alarms(self, "Alarms", system=system, topic=alarm_topic(self))

        # For the roles of the services that enqueue.
        producer = iam.ManagedPolicy(
            self, "ProducerPolicy", statements=Rights.producer(system.queues)
        )
        cdk.CfnOutput(self, "ProducerPolicyArn", value=producer.managed_policy_arn)
        cdk.CfnOutput(self, "DatabaseUrl", value=database.url)
        cdk.CfnOutput(self, "DatabaseSecretArn", value=database.secret.secret_arn)
        cdk.CfnOutput(self, "ClusterName", value=cluster.cluster_name)
        assert maintenance.task is not None  # noqa: S101 - for the type checker
        assert maintenance.security_group is not None  # noqa: S101 - the same
        cdk.CfnOutput(
            self,
            "MaintenanceSecurityGroup",
            value=maintenance.security_group.security_group_id,
            description="Is let into the database",
        )
        cdk.CfnOutput(
            self,
            "MaintenanceTask",
            value=maintenance.task.definition.task_definition_arn,
            description="Also runs other commands, such as `migrate`, once",
        )

    def _image_of_parameters(self) -> Image:
        repository = cdk.CfnParameter(
            self, "ImageRepository", description="The image's repository in ECR, by its name"
        )
        tag = cdk.CfnParameter(self, "ImageTag", description="The image's tag", default="latest")
        return Image(
            ecr.Repository.from_repository_name(self, "Repository", repository.value_as_string),
            tag.value_as_string,
        )
