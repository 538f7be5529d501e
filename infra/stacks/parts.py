"""What both stacks have: parameters, queues, the topic of the alarms."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_sns as sns
from constructs import Construct

from infra.constructs import Network


def network_of_parameters(scope: Construct) -> Network:
    """Return a VPC and two private subnets that are named when the stack is deployed."""
    vpc = cdk.CfnParameter(
        scope, "VpcId", type="AWS::EC2::VPC::Id", description="The VPC that everything runs in"
    )
    ids = [
        cdk.CfnParameter(
            scope,
            f"Subnet{letter}",
            type="AWS::EC2::Subnet::Id",
            description="A private subnet with a way to AWS's APIs, in a zone of its own",
        ).value_as_string
        for letter in "AB"
    ]
    zones = [cdk.Fn.select(index, cdk.Fn.get_azs()) for index in range(2)]
    imported = ec2.Vpc.from_vpc_attributes(
        scope,
        "Vpc",
        vpc_id=vpc.value_as_string,
        availability_zones=zones,
        private_subnet_ids=ids,
    )
    return Network(imported, imported.private_subnets)


def alarm_topic(scope: Construct) -> sns.Topic:
    """Return a topic for whoever is to be told; subscribe to it after the deployment."""
    topic = sns.Topic(scope, "AlarmTopic", enforce_ssl=True)
    cdk.CfnOutput(scope, "AlarmTopicArn", value=topic.topic_arn, description="Subscribe here")
    return topic
