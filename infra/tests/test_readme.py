"""The example of infra/README.md makes what it says, for an app with a network of its own."""

from __future__ import annotations

import re
from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sns as sns
from aws_cdk.assertions import Template

import infra.constructs

README = Path(__file__).parents[1] / "README.md"


def test_the_readmes_constructs_make_a_stack(stack: cdk.Stack) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)
    vpc = ec2.Vpc(stack, "Vpc", max_azs=2)
    given = {
        **{name: getattr(infra.constructs, name) for name in infra.constructs.__all__},
        "self": stack,
        "vpc": vpc,
        "cluster": ecs.Cluster(stack, "Cluster", vpc=vpc, enable_fargate_capacity_providers=True),
        "repository": ecr.Repository(stack, "Images"),
        "spot": ecs.CapacityProviderStrategy(capacity_provider="FARGATE_SPOT", weight=1),
        "topic": sns.Topic(stack, "Topic"),
        "web_service_role": iam.Role(
            stack, "Web", assumed_by=iam.ServicePrincipal("ecs-tasks.amazonaws.com")
        ),
        "web_service": ec2.SecurityGroup(stack, "WebGroup", vpc=vpc),
    }

    exec(example, given)  # noqa: S102 - our own page

    template = Template.from_stack(stack)
    template.resource_count_is("AWS::ECS::Service", 2)
    template.resource_count_is("AWS::Scheduler::Schedule", 1)
    template.resource_count_is("AWS::CloudWatch::Alarm", 2 * 3 + 1 + 2)
    template.has_resource_properties(
        "AWS::SQS::Queue", {"QueueName": "workhorse-prod-orders", "VisibilityTimeout": 60}
    )
    template.has_resource_properties(
        "AWS::ApplicationAutoScaling::ScalableTarget", {"MinCapacity": 2, "MaxCapacity": 40}
    )


def test_each_construct_is_told_of() -> None:
    told = README.read_text()
    kinds = {"ArgumentError", "DatabaseAccess", "Network", "OnEcs", "OnLambda", "Image"}
    for name in set(infra.constructs.__all__) - kinds:
        assert f"`{name}`" in told
