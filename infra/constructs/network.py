"""`Network`: the VPC and the subnets that everything runs in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aws_cdk import aws_ec2 as ec2


@dataclass(frozen=True)
class Network:
    """A VPC and private subnets of it, with a way to AWS's APIs: a NAT gateway or endpoints.

    Needed are SQS, Secrets Manager and CloudWatch Logs, and for tasks of ECS the registry, with S3
    for its layers.
    """

    vpc: ec2.IVpc
    subnets: Sequence[ec2.ISubnet]

    @property
    def selection(self) -> ec2.SubnetSelection:
        """The subnets as CDK wants them."""
        return ec2.SubnetSelection(subnets=list(self.subnets))
