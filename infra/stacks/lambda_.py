"""`LambdaStack`: workers, maintenance and a producer as functions of Lambda."""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from infra.constructs import (
    Alarms,
    Database,
    LambdaWorkers,
    Maintenance,
    Network,
    OnLambda,
    Rights,
    System,
    WakeupQueue,
    WorkhorseFunction,
)
from infra.constructs.rights import grant
from infra.stacks.parts import alarm_topic, network_of_parameters

MODULE = "on_lambda"
"""examples/on_lambda.py, or a module of yours with the same three functions."""


class LambdaStack(cdk.Stack):
    """A whole deployment on Lambda: queue, Aurora, three functions, alarms.

    What is not given becomes a parameter of the stack.

    Args:
        environment: The setting.
        queue: The name of the queue.
        network: Where it runs.
        code: A package with Workhorse, and `module`.
        module: With the functions `handler`, `maintain` and `produce`.
        timeout_seconds: The worker's time-out; the queue's visibility is six times as long.
        proxy: Whether the functions go through RDS Proxy, see `Database`.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        environment: str = "",
        queue: str = "default",
        network: Network | None = None,
        code: lambda_.Code | None = None,
        module: str = MODULE,
        timeout_seconds: int = 60,
        proxy: bool = False,
        **stack: Any,
    ) -> None:
        super().__init__(
            scope,
            construct_id,
            description="Workhorse: durable background runs, with workers on Lambda",
            **stack,
        )
        network = network or network_of_parameters(self)
        code = code or self._code_of_parameters()

        database = Database(self, "Database", network=network, proxy=proxy)
        wakeups = WakeupQueue(
            self,
            "Queue",
            name=queue,
            environment=environment,
            visibility_seconds=6 * timeout_seconds,
        )
        system = System(database=database, queues=[wakeups], environment=environment, hint_stride=1)
        LambdaWorkers(
            self,
            "Workers",
            system=system,
            queue=wakeups,
            code=code,
            handler=f"{module}.handler",
            network=network,
            timeout_seconds=timeout_seconds,
        )
        Maintenance(
            self,
            "Maintenance",
            system=system,
            on=OnLambda(code=code, handler=f"{module}.maintain", network=network),
        )
        producer = WorkhorseFunction(
            self,
            "Producer",
            system=system,
            code=code,
            handler=f"{module}.produce",
            network=network,
            timeout_seconds=30,
        )
        grant(producer.role, Rights.producer(system.queues))
        Alarms(self, "Alarms", system=system, topic=alarm_topic(self))

        cdk.CfnOutput(self, "DatabaseUrl", value=database.url)
        cdk.CfnOutput(self, "DatabaseSecretArn", value=database.secret.secret_arn)
        cdk.CfnOutput(self, "ProducerFunction", value=producer.function.function_name)

    def _code_of_parameters(self) -> lambda_.Code:
        return lambda_.Code.from_cfn_parameters(
            bucket_name_param=cdk.CfnParameter(
                self, "CodeBucket", description="The bucket with the functions' package"
            ),
            object_key_param=cdk.CfnParameter(
                self, "CodeKey", description="The package's key in it, a .zip"
            ),
        )
