"""What the example stacks hold once they are synthesized."""

from __future__ import annotations

from typing import Any

import pytest
from aws_cdk.assertions import Match, Template

from infra.tests.conftest import ECS, LAMBDA, Synthesized

BOTH = pytest.mark.parametrize("name", [ECS, LAMBDA])


@BOTH
def test_queues_are_encrypted_and_redrive_to_a_queue_that_takes_from_nobody_else(
    synthesized: Synthesized, name: str
) -> None:
    template = synthesized.templates[name]
    template.has_resource_properties(
        "AWS::SQS::Queue",
        {
            "QueueName": "workhorse-default",
            "RedrivePolicy": {"maxReceiveCount": 10, "deadLetterTargetArn": Match.any_value()},
            "MessageRetentionPeriod": 4 * 86_400,
        },
    )
    template.has_resource_properties(
        "AWS::SQS::Queue",
        {
            "QueueName": "workhorse-default-dlq",
            "RedriveAllowPolicy": {
                "redrivePermission": "byQueue",
                "sourceQueueArns": [
                    {"Fn::Join": ["", Match.array_with([Match.string_like_regexp(":sqs:")])]}
                ],
            },
            "MessageRetentionPeriod": 14 * 86_400,
        },
    )
    template.all_resources_properties("AWS::SQS::Queue", {"SqsManagedSseEnabled": True})
    queues = synthesized.of_type(name, "AWS::SQS::Queue")
    dead = next(i for i, it in queues.items() if "DeadLetters" in i)
    live = next(it for it in queues.values() if "RedrivePolicy" in it["Properties"])
    target = live["Properties"]["RedrivePolicy"]["deadLetterTargetArn"]
    assert target == {"Fn::GetAtt": [dead, "Arn"]}


@BOTH
def test_each_queue_refuses_what_is_not_encrypted_on_its_way(
    synthesized: Synthesized, name: str
) -> None:
    policies = synthesized.of_type(name, "AWS::SQS::QueuePolicy").values()
    refusing = {
        queue["Ref"]
        for policy in policies
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]
        if statement["Effect"] == "Deny"
        and statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
        for queue in policy["Properties"]["Queues"]
    }
    assert refusing == set(synthesized.of_type(name, "AWS::SQS::Queue"))


def test_sqs_calls_the_function_with_partial_batch_responses(on_lambda: Template) -> None:
    on_lambda.resource_count_is("AWS::Lambda::EventSourceMapping", 1)
    on_lambda.has_resource_properties(
        "AWS::Lambda::EventSourceMapping",
        {
            "FunctionResponseTypes": ["ReportBatchItemFailures"],
            "ScalingConfig": {"MaximumConcurrency": 10},
            "BatchSize": 10,
        },
    )


def test_wakeups_stay_hidden_for_six_time_outs_of_the_function(on_lambda: Template) -> None:
    on_lambda.has_resource_properties(
        "AWS::SQS::Queue", {"QueueName": "workhorse-default", "VisibilityTimeout": 6 * 60}
    )
    on_lambda.has_resource_properties(
        "AWS::Lambda::Function", {"Handler": "on_lambda.handler", "Timeout": 60}
    )


@BOTH
def test_maintenance_runs_each_minute(synthesized: Synthesized, name: str) -> None:
    synthesized.templates[name].has_resource_properties(
        "AWS::Scheduler::Schedule",
        {
            "ScheduleExpression": "rate(1 minute)",
            "FlexibleTimeWindow": {"Mode": "OFF"},
            "State": "ENABLED",
            "Target": {
                "RetryPolicy": {"MaximumRetryAttempts": 0, "MaximumEventAgeInSeconds": 60},
                "DeadLetterConfig": {"Arn": Match.any_value()},
            },
        },
    )


def test_maintenance_is_a_task_on_ecs_and_a_function_on_lambda(
    synthesized: Synthesized, ecs: Template
) -> None:
    ecs.has_resource_properties(
        "AWS::ECS::TaskDefinition",
        {"ContainerDefinitions": [Match.object_like({"Command": ["maintain", "--once"]})]},
    )
    ecs.has_resource_properties(
        "AWS::Scheduler::Schedule",
        {
            "Target": {
                "Arn": {"Fn::GetAtt": [Match.string_like_regexp("^Cluster"), "Arn"]},
                "EcsParameters": {
                    "LaunchType": "FARGATE",
                    "NetworkConfiguration": {
                        "AwsvpcConfiguration": {
                            "AssignPublicIp": "DISABLED",
                            "Subnets": [{"Ref": "SubnetA"}, {"Ref": "SubnetB"}],
                        }
                    },
                },
            }
        },
    )
    target = only(synthesized.of_type(LAMBDA, "AWS::Scheduler::Schedule"))["Target"]
    function = synthesized.raw[LAMBDA]["Resources"][target["Arn"]["Fn::GetAtt"][0]]
    assert function["Properties"]["Handler"] == "on_lambda.maintain"


def test_a_worker_is_given_its_drain_and_five_seconds(
    synthesized: Synthesized, ecs: Template
) -> None:
    container = worker_container(synthesized)
    assert variables_of(container)["WORKHORSE_DRAIN_SECONDS"] == "25"
    assert container["StopTimeout"] == 30


def test_containers_can_write_nowhere_and_are_nobodys_root(synthesized: Synthesized) -> None:
    tasks = synthesized.of_type(ECS, "AWS::ECS::TaskDefinition")
    containers = [
        container
        for task in tasks.values()
        for container in task["Properties"]["ContainerDefinitions"]
    ]
    assert sorted(container["Command"] for container in containers) == [
        ["maintain", "--once"],
        ["migrate"],
        ["worker"],
    ]
    for container in containers:
        assert container["ReadonlyRootFilesystem"] is True
        assert container["User"].split(":")[0] not in ("", "0", "root")
        assert container["LinuxParameters"]["Capabilities"] == {"Drop": ["ALL"]}
        # `workhorse` is process 1: it has to get the signals itself.
        assert container["LinuxParameters"]["InitProcessEnabled"] is False
        assert not container.get("Privileged")


def test_a_worker_starts_behind_a_migration_whatever_came_of_it(synthesized: Synthesized) -> None:
    """Without tables the first deployment would fail, and with its success the way back."""
    worker = worker_container(synthesized)
    (task,) = (
        task["Properties"]["ContainerDefinitions"]
        for task in synthesized.of_type(ECS, "AWS::ECS::TaskDefinition").values()
        if worker in task["Properties"]["ContainerDefinitions"]
    )
    (migration,) = (container for container in task if container is not worker)
    assert migration["Command"] == ["migrate"]
    assert migration["Image"] == worker["Image"]
    assert (migration["Essential"], worker["Essential"]) == (False, True)
    assert worker["DependsOn"] == [{"ContainerName": migration["Name"], "Condition": "COMPLETE"}]


def test_a_worker_is_asked_for_its_health_and_rolled_back_where_it_has_none(
    synthesized: Synthesized, ecs: Template
) -> None:
    check = worker_container(synthesized)["HealthCheck"]
    assert check["Command"] == ["CMD", "python", "-m", "workhorse.probe"]
    # It asks where the worker answers, and gives up before ECS does.
    assert variables_of(worker_container(synthesized))["WORKHORSE_HEALTH_PORT"] == "8080"
    assert check["Timeout"] > 2
    ecs.has_resource_properties(
        "AWS::ECS::Service",
        {
            "DeploymentConfiguration": {
                "DeploymentCircuitBreaker": {"Enable": True, "Rollback": True},
                "MinimumHealthyPercent": 100,
            },
            "DesiredCount": Match.absent(),  # the scaling's to say
            "NetworkConfiguration": {
                "AwsvpcConfiguration": Match.object_like({"AssignPublicIp": "DISABLED"})
            },
        },
    )


def test_a_worker_may_protect_tasks_of_its_cluster_alone(
    synthesized: Synthesized, ecs: Template
) -> None:
    cluster = only_id(synthesized.of_type(ECS, "AWS::ECS::Cluster"))
    ecs.has_resource_properties(
        "AWS::IAM::Policy",
        {
            "PolicyDocument": {
                "Statement": Match.array_with(
                    [
                        Match.object_like(
                            {
                                "Action": "ecs:UpdateTaskProtection",
                                "Condition": {
                                    "ArnEquals": {"ecs:cluster": {"Fn::GetAtt": [cluster, "Arn"]}}
                                },
                            }
                        )
                    ]
                )
            },
            "Roles": [{"Ref": Match.string_like_regexp("^WorkersTaskRole")}],
        },
    )


def test_workers_scale_on_what_maintenance_measures(
    synthesized: Synthesized, ecs: Template
) -> None:
    dimensions = [
        {"Name": "Environment", "Value": "default"},
        {"Name": "Queue", "Value": "default"},
    ]
    ecs.has_resource_properties(
        "AWS::ApplicationAutoScaling::ScalingPolicy",
        {
            "PolicyType": "TargetTrackingScaling",
            "TargetTrackingScalingPolicyConfiguration": {
                "TargetValue": 10,
                "CustomizedMetricSpecification": {
                    "Namespace": "Workhorse",
                    "MetricName": "BacklogPerWorker",
                    "Dimensions": dimensions,
                    "Statistic": "Average",
                },
            },
        },
    )
    policy = only_id(
        {
            name: it
            for name, it in synthesized.of_type(
                ECS, "AWS::ApplicationAutoScaling::ScalingPolicy"
            ).items()
            if it["Properties"]["PolicyType"] == "StepScaling"
        }
    )
    ecs.has_resource_properties(
        "AWS::ApplicationAutoScaling::ScalingPolicy",
        {
            "PolicyType": "StepScaling",
            "StepScalingPolicyConfiguration": {
                "AdjustmentType": "ChangeInCapacity",
                "StepAdjustments": [
                    {
                        "MetricIntervalLowerBound": 0,
                        "MetricIntervalUpperBound": 240,
                        "ScalingAdjustment": 1,
                    },
                    {"MetricIntervalLowerBound": 240, "ScalingAdjustment": 3},
                ],
            },
        },
    )
    ecs.has_resource_properties(
        "AWS::CloudWatch::Alarm",
        {
            "MetricName": "OldestRunnableAge",
            "Namespace": "Workhorse",
            "Dimensions": dimensions,
            "Threshold": 60,
            "AlarmActions": [{"Ref": policy}],
        },
    )


@BOTH
def test_alarms_watch_what_does_not_heal_by_itself(synthesized: Synthesized, name: str) -> None:
    template = synthesized.templates[name]
    topic = only_id(synthesized.of_type(name, "AWS::SNS::Topic"))
    system = [{"Name": "Environment", "Value": "default"}]
    queue = [*system, {"Name": "Queue", "Value": "default"}]
    dead = next(i for i in synthesized.of_type(name, "AWS::SQS::Queue") if "DeadLetters" in i)
    wanted: list[dict[str, Any]] = [
        {
            "MetricName": "OldestRunnableAge",
            "Namespace": "Workhorse",
            "Dimensions": queue,
            "Threshold": 300,
            "EvaluationPeriods": 5,
            "Statistic": "Maximum",
            "ComparisonOperator": "GreaterThanThreshold",
        },
        {
            "MetricName": "FailedRuns",
            "Namespace": "Workhorse",
            "Dimensions": queue,
            "Threshold": 0,
            "Statistic": "Sum",
            "ComparisonOperator": "GreaterThanThreshold",
        },
        {
            "MetricName": "MaintenancePasses",
            "Namespace": "Workhorse",
            "Dimensions": system,
            "Threshold": 1,
            "EvaluationPeriods": 5,
            "ComparisonOperator": "LessThanThreshold",
            "TreatMissingData": "breaching",
        },
        {
            "MetricName": "ApproximateNumberOfMessagesVisible",
            "Namespace": "AWS/SQS",
            "Dimensions": [{"Name": "QueueName", "Value": {"Fn::GetAtt": [dead, "QueueName"]}}],
            "Threshold": 0,
            "ComparisonOperator": "GreaterThanThreshold",
        },
    ]
    for alarm in wanted:
        template.has_resource_properties(
            "AWS::CloudWatch::Alarm",
            {**alarm, "AlarmActions": [{"Ref": topic}], "OKActions": [{"Ref": topic}]},
        )


def test_maintenance_alone_measures(synthesized: Synthesized) -> None:
    told = {
        function["Properties"]["Handler"]
        for function in synthesized.of_type(LAMBDA, "AWS::Lambda::Function").values()
        if "WORKHORSE_METRICS" in function["Properties"]["Environment"]["Variables"]
    }
    assert told == {"on_lambda.maintain"}
    commands = [
        container["Command"]
        for task in synthesized.of_type(ECS, "AWS::ECS::TaskDefinition").values()
        for container in task["Properties"]["ContainerDefinitions"]
        if variables_of(container).get("WORKHORSE_METRICS") == "emf"
    ]
    assert commands == [["maintain", "--once"]]


@BOTH
def test_the_database_is_encrypted_kept_and_reached_from_inside_alone(
    synthesized: Synthesized, name: str
) -> None:
    template = synthesized.templates[name]
    template.has_resource(
        "AWS::RDS::DBCluster",
        {
            "DeletionPolicy": "Snapshot",
            "Properties": {
                "StorageEncrypted": True,
                "DeletionProtection": True,
                "BackupRetentionPeriod": 7,
                # RDS makes the password and rotates it.
                "ManageMasterUserPassword": True,
                "MasterUserPassword": Match.absent(),
                "ServerlessV2ScalingConfiguration": {"MinCapacity": 0.5, "MaxCapacity": 8},
            },
        },
    )
    template.all_resources_properties("AWS::RDS::DBInstance", {"PubliclyAccessible": False})
    for rule in synthesized.of_type(name, "AWS::EC2::SecurityGroupIngress").values():
        assert "CidrIp" not in rule["Properties"]
        assert "SourceSecurityGroupId" in rule["Properties"]


@BOTH
def test_no_process_is_given_a_password(synthesized: Synthesized, name: str) -> None:
    """They are told where it is, and read it themselves."""
    holders = [
        *(
            function["Properties"]["Environment"]["Variables"]
            for function in synthesized.of_type(name, "AWS::Lambda::Function").values()
        ),
        *(
            variables_of(container)
            for task in synthesized.of_type(name, "AWS::ECS::TaskDefinition").values()
            for container in task["Properties"]["ContainerDefinitions"]
        ),
    ]
    assert holders
    for variables in holders:
        assert "@" not in str(variables["WORKHORSE_DATABASE_URL"])
        assert (
            variables["WORKHORSE_DATABASE_SECRET"]["Fn::GetAtt"][1] == "MasterUserSecret.SecretArn"
        )
    assert "{{resolve:secretsmanager" not in str(synthesized.raw[name])


def test_lambda_alone_wants_a_wakeup_for_each_run(synthesized: Synthesized) -> None:
    for function in synthesized.of_type(LAMBDA, "AWS::Lambda::Function").values():
        variables = function["Properties"]["Environment"]["Variables"]
        assert variables["WORKHORSE_HINT_STRIDE"] == "1"
    assert variables_of(worker_container(synthesized))["WORKHORSE_HINT_STRIDE"] == "10"


def test_logs_are_not_kept_for_ever(synthesized: Synthesized) -> None:
    for name, count in ((ECS, 2), (LAMBDA, 3)):
        groups = synthesized.of_type(name, "AWS::Logs::LogGroup").values()
        assert len(groups) == count
        assert all(group["Properties"]["RetentionInDays"] == 30 for group in groups)


def worker_container(synthesized: Synthesized) -> dict[str, Any]:
    """Return the container of the workers on ECS."""
    (found,) = (
        container
        for task in synthesized.of_type(ECS, "AWS::ECS::TaskDefinition").values()
        for container in task["Properties"]["ContainerDefinitions"]
        if container["Command"] == ["worker"]
    )
    container: dict[str, Any] = found
    return container


def variables_of(container: dict[str, Any]) -> dict[str, Any]:
    """Return a container's environment variables."""
    return {pair["Name"]: pair["Value"] for pair in container["Environment"]}


def only(resources: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the properties of the one resource there is."""
    ((_, resource),) = resources.items()
    properties: dict[str, Any] = resource["Properties"]
    return properties


def only_id(resources: dict[str, dict[str, Any]]) -> str:
    """Return the logical id of the one resource there is."""
    ((name, _),) = resources.items()
    return name
