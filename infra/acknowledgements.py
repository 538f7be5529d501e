"""What cdk-nag finds in the example stacks and what we say to it: one resource, one reason each.

A finding that is not here fails `make synth`, and so does an entry that nothing answers to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import aws_cdk as cdk
from constructs import IConstruct

PACK: Final = "AwsSolutions"


@dataclass(frozen=True)
class Acknowledgement:
    """A finding that stands, at one resource."""

    path: str
    rule: str
    reason: str


_LOG_IN: Final = (
    "ecr:GetAuthorizationToken belongs to no repository, so AWS knows no narrower resource; the "
    "condition holds it to this region"
)
_NETWORK: Final = (
    "a function's network interfaces have no ARNs before they are there, and Describe calls know "
    "no resources; the condition holds them to this region"
)
_PYTHON: Final = "3.13 is the newest Python that Workhorse is tested on"
_VARIABLES: Final = (
    "none of them is a secret: the database's password is read from Secrets Manager by its ARN"
)
_NOT_STARTED: Final = "it is itself the dead-letter queue, of the scheduler"

ACKNOWLEDGEMENTS: Final = (
    Acknowledgement(
        "WorkhorseEcs/Workers/TaskRole/DefaultPolicy/Resource",
        "AwsSolutions-IAM5[Resource::arn:<AWS::Partition>:ecs:<AWS::Region>:<AWS::AccountId>"
        ":task/<ClusterEB0386A7>/*]",
        "a task's id is not known before it runs; the resource is held to the cluster's tasks, "
        "and the condition to the cluster",
    ),
    Acknowledgement(
        "WorkhorseEcs/Workers/ExecutionRole/DefaultPolicy/Resource",
        "AwsSolutions-IAM5[Resource::*]",
        _LOG_IN,
    ),
    Acknowledgement(
        "WorkhorseEcs/Maintenance/ExecutionRole/DefaultPolicy/Resource",
        "AwsSolutions-IAM5[Resource::*]",
        _LOG_IN,
    ),
    Acknowledgement("WorkhorseEcs/Workers/Task/Resource", "AwsSolutions-ECS2", _VARIABLES),
    Acknowledgement("WorkhorseEcs/Maintenance/Task/Resource", "AwsSolutions-ECS2", _VARIABLES),
    Acknowledgement(
        "WorkhorseEcs/Maintenance/NotStarted/Resource", "AwsSolutions-SQS3", _NOT_STARTED
    ),
    Acknowledgement(
        "WorkhorseLambda/Workers/Worker/Role/DefaultPolicy/Resource",
        "AwsSolutions-IAM5[Resource::*]",
        _NETWORK,
    ),
    Acknowledgement(
        "WorkhorseLambda/Maintenance/Pass/Role/DefaultPolicy/Resource",
        "AwsSolutions-IAM5[Resource::*]",
        _NETWORK,
    ),
    Acknowledgement(
        "WorkhorseLambda/Producer/Role/DefaultPolicy/Resource",
        "AwsSolutions-IAM5[Resource::*]",
        _NETWORK,
    ),
    Acknowledgement("WorkhorseLambda/Workers/Worker/Function/Resource", "AwsSolutions-L1", _PYTHON),
    Acknowledgement(
        "WorkhorseLambda/Maintenance/Pass/Function/Resource", "AwsSolutions-L1", _PYTHON
    ),
    Acknowledgement("WorkhorseLambda/Producer/Function/Resource", "AwsSolutions-L1", _PYTHON),
    Acknowledgement(
        "WorkhorseLambda/Maintenance/NotStarted/Resource", "AwsSolutions-SQS3", _NOT_STARTED
    ),
)


def acknowledge(app: cdk.App) -> None:
    """Say to each finding that stands why it does."""
    for one in ACKNOWLEDGEMENTS:
        place: IConstruct = app
        for name in one.path.split("/"):
            place = place.node.find_child(name)
        cdk.Validations.of(place).acknowledge(
            cdk.Acknowledgment(id=f"{PACK}::{one.rule}", reason=one.reason)
        )
