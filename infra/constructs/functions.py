"""`WorkhorseFunction`: a function of Lambda with a role of its own, in the system's network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct

from infra.constructs.errors import ArgumentError, check_range, path_of
from infra.constructs.network import Network
from infra.constructs.rights import in_this_region
from infra.constructs.system import System, check_variables

RUNTIME: Final = lambda_.Runtime.PYTHON_3_13
"""The newest Python that Workhorse is tested on."""
_NETWORK_ACTIONS: Final = (
    "ec2:AssignPrivateIpAddresses",
    "ec2:CreateNetworkInterface",
    "ec2:DeleteNetworkInterface",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSubnets",
    "ec2:UnassignPrivateIpAddresses",
)


class WorkhorseFunction(Construct):
    """A function that knows the system's database and queues; what it may do there is added.

    For an image in place of a package: `code=Code.from_ecr_image(...)`,
    `handler=Handler.FROM_IMAGE`, `runtime=Runtime.FROM_IMAGE`.

    Args:
        system: What it belongs to.
        code: The package, with Workhorse and the app.
        handler: `module.function` in it.
        network: Where it runs; none only where the database can be reached from anywhere.
        runtime: The Python, or `Runtime.FROM_IMAGE`.
        memory: In MiB; a core comes with each 1,769.
        timeout_seconds: Lambda's own limit for an invocation.
        arm: Whether the package is built for ARM.
        reserved: Concurrent invocations that are kept for it, and that it never has more of.
        settings: Further settings, by the names of their variables.
        log_retention: How long logs are kept.

    Raises:
        ArgumentError: A number cannot work.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        system: System,
        code: lambda_.Code,
        handler: str,
        network: Network | None,
        runtime: lambda_.Runtime = RUNTIME,
        memory: int = 512,
        timeout_seconds: int = 60,
        arm: bool = False,
        reserved: int | None = None,
        settings: Mapping[str, str] | None = None,
        log_retention: logs.RetentionDays = logs.RetentionDays.ONE_MONTH,
    ) -> None:
        here = path_of(scope, construct_id)
        check_range(here, "timeout_seconds", timeout_seconds, 1, 900, "Lambda allows no other")
        check_range(here, "memory", memory, 256, 10_240, "Workhorse needs 256, Lambda has no more")
        if "." not in handler and runtime != lambda_.Runtime.FROM_IMAGE:
            raise ArgumentError(here, "handler", f"is {handler!r}; give module.function")
        check_variables(here, settings or {})
        super().__init__(scope, construct_id)
        group = logs.LogGroup(self, "Logs", retention=log_retention)
        role = iam.Role(
            self,
            "Role",
            # (No condition: Lambda names no source when it takes the role of a function.)
            assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"),
        )
        role.add_to_principal_policy(
            iam.PolicyStatement(
                sid="WriteLogs",
                actions=["logs:CreateLogStream", "logs:PutLogEvents"],
                resources=[group.log_group_arn],
            )
        )
        groups: list[ec2.ISecurityGroup] | None = None
        if network is not None:
            security_group = ec2.SecurityGroup(
                self, "SecurityGroup", vpc=network.vpc, description=f"Workhorse: {construct_id}"
            )
            system.database.allow_from(security_group)
            role.add_to_principal_policy(_join_network(self))
            groups = [security_group]
        system.database.grant_connect(role)
        self.role: Final[iam.IRole] = role
        self.timeout_seconds: Final = timeout_seconds
        self.function: Final = lambda_.Function(
            self,
            "Function",
            code=code,
            handler=handler,
            runtime=runtime,
            role=role,
            memory_size=memory,
            timeout=cdk.Duration.seconds(timeout_seconds),
            architecture=lambda_.Architecture.ARM_64 if arm else lambda_.Architecture.X86_64,
            reserved_concurrent_executions=reserved,
            vpc=network.vpc if network else None,
            vpc_subnets=network.selection if network else None,
            security_groups=groups,
            log_group=group,
            environment={**system.variables(), **(settings or {})},
        )
        # Lambda checks at once whether the role may join the network.
        self.function.node.add_dependency(role)
        if network is not None:
            _keep_code_off_the_network(self, role, self.function)


def _keep_code_off_the_network(
    scope: Construct, role: iam.IRole, function: lambda_.IFunction
) -> None:
    """Deny to the function's code what Lambda may do in its name.

    A policy apart from the role's own, on which the function depends while this names the function.
    """
    iam.Policy(
        scope,
        "CodeIsNotLambda",
        roles=[role],
        statements=[
            iam.PolicyStatement(
                sid="LeaveNetworkToLambda",
                effect=iam.Effect.DENY,
                actions=list(_NETWORK_ACTIONS),
                resources=["*"],
                conditions={"ArnEquals": {"lambda:SourceFunctionArn": function.function_arn}},
            )
        ],
    )


def _join_network(scope: Construct) -> iam.PolicyStatement:
    """Let Lambda put the function into a VPC.

    The interfaces have no ARNs before they are there, and the look-ups know no resources.
    """
    return iam.PolicyStatement(
        sid="JoinNetwork",
        actions=list(_NETWORK_ACTIONS),
        resources=["*"],
        conditions=in_this_region(scope),
    )
