"""Arguments that cannot work are refused when the app is built, with what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aws_cdk as cdk
import pytest
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk.assertions import Match, Template

from infra.constructs import (
    Alarms,
    ArgumentError,
    Database,
    EcsWorkers,
    ExistingDatabase,
    LambdaWorkers,
    Network,
    Rights,
    System,
    WakeupQueue,
    WorkhorseFunction,
)

DATABASE = ExistingDatabase(
    url="postgresql://db.internal:5432/workhorse?sslmode=require",
    secret_arn="arn:aws:secretsmanager:eu-central-1:111122223333:secret:db-AbCdEf",  # noqa: S106 - an ARN
)
CODE = lambda_.Code.from_inline("def handler(event, context): ...")


def queue(stack: cdk.Stack, name: str = "default", **more: Any) -> WakeupQueue:
    return WakeupQueue(stack, f"Queue-{name}", name=name, **more)


def a_system(stack: cdk.Stack, **queue_more: Any) -> System:
    return System(database=DATABASE, queues=[queue(stack, **queue_more)], hint_stride=1)


def a_network(stack: cdk.Stack) -> Network:
    vpc = ec2.Vpc.from_vpc_attributes(
        stack, "Vpc", vpc_id="vpc-1", availability_zones=["a"], private_subnet_ids=["subnet-1"]
    )
    return Network(vpc, vpc.private_subnets)


def ecs_workers(stack: cdk.Stack, **more: Any) -> EcsWorkers:
    network = a_network(stack)
    given: dict[str, Any] = {
        "system": a_system(stack),
        "cluster": ecs.Cluster(stack, "Cluster", vpc=network.vpc),
        "network": network,
        "image": ecs.ContainerImage.from_registry("shop"),
        "app": "shop.jobs:app",
    }
    return EcsWorkers(stack, "Workers", **{**given, **more})


def lambda_workers(stack: cdk.Stack, **more: Any) -> LambdaWorkers:
    system = a_system(
        stack,
        **{"visibility_seconds": 360, **more.pop("queue_more", {})},
    )
    given: dict[str, Any] = {
        "system": system,
        "queue": system.queues[0],
        "code": CODE,
        "handler": "index.handler",
        "network": None,
    }
    return LambdaWorkers(stack, "Workers", **{**given, **more})


def database(stack: cdk.Stack, **more: Any) -> Database:
    return Database(stack, "Database", network=a_network(stack), **more)


REFUSED: dict[str, tuple[Callable[[cdk.Stack], object], str, str]] = {
    "queue: bad name": (lambda s: queue(s, "Mail"), "name", "a-z0-9_-"),
    "queue: too long": (lambda s: queue(s, "q" * 60, prefix="p" * 20), "name", "80 characters"),
    "queue: visibility": (
        lambda s: queue(s, visibility_seconds=29),
        "visibility_seconds",
        "30 to 43200",
    ),
    "queue: few receives": (
        lambda s: queue(s, max_receive_count=4),
        "max_receive_count",
        "before it is its run's turn",
    ),
    "queue: retention": (lambda s: queue(s, retention_days=15), "retention_days", "1 to 14"),
    "system: no queue": (lambda s: System(database=DATABASE, queues=[]), "queues", "one Wakeup"),
    "system: queue twice": (
        lambda s: System(
            database=DATABASE, queues=[queue(s), WakeupQueue(s, "Again", name="default")]
        ),
        "queues",
        "twice: default, default",
    ),
    "system: another environment": (
        lambda s: System(database=DATABASE, queues=[queue(s, environment="test")]),
        "queues",
        "'test'",
    ),
    "system: two prefixes": (
        lambda s: System(database=DATABASE, queues=[queue(s), queue(s, "mail", prefix="x-")]),
        "queues",
        "differ in prefix",
    ),
    "system: standard and fifo": (
        lambda s: System(database=DATABASE, queues=[queue(s), queue(s, "mail", fifo=True)]),
        "queues",
        "differ in fifo",
    ),
    "system: environment": (
        lambda s: System(database=DATABASE, queues=[queue(s)], environment="Prod"),
        "environment",
        "a-z0-9_",
    ),
    "system: a variable's name": (
        lambda s: System(database=DATABASE, queues=[queue(s)], settings={"poll ms": "1"}),
        "settings",
        "'poll ms'",
    ),
    "system: a secret": (
        lambda s: System(database=DATABASE, queues=[queue(s)], settings={"API_KEY": "x"}),
        "settings",
        "looks like a secret",
    ),
    "system: a URL with a password": (
        lambda s: System(
            database=DATABASE,
            queues=[queue(s)],
            settings={"WORKHORSE_LISTEN_URL": "postgresql://me:hunter2@db/x"},
        ),
        "settings",
        "'WORKHORSE_LISTEN_URL', which looks like a secret",
    ),
    "database: url with a password": (
        lambda s: ExistingDatabase(url="postgresql://u:hunter2@h/d", secret_arn="x"),  # noqa: S106
        "url",
        "leave them to the secret",
    ),
    "database: kind": (lambda s: database(s, kind="mysql"), "kind", "'aurora' or 'instance'"),
    "database: pauses": (lambda s: database(s, capacity=(0, 8)), "capacity", "0.5 to 256"),
    "database: capacity": (lambda s: database(s, capacity=(8, 4)), "capacity", "below the least"),
    "database: backup": (lambda s: database(s, backup_days=0), "backup_days", "1 to 35"),
    "ecs: drain": (lambda s: ecs_workers(s, drain_seconds=116), "drain_seconds", "120 s"),
    "ecs: app": (lambda s: ecs_workers(s, app="shop.jobs"), "app", "module:attribute"),
    "ecs: workers": (lambda s: ecs_workers(s, workers=(5, 4)), "workers", "below the least"),
    "ecs: concurrency": (lambda s: ecs_workers(s, concurrency=0), "concurrency", "1 to 1000"),
    "ecs: backlog": (lambda s: ecs_workers(s, backlog_per_worker=0), "backlog_per_worker", "runs"),
    "ecs: no queues": (lambda s: ecs_workers(s, queues=[]), "queues", "one WakeupQueue"),
    "ecs: foreign queue": (
        lambda s: ecs_workers(s, queues=[queue(s, "mail")]),
        "queues",
        "mail, not of this system",
    ),
    "ecs: age": (
        lambda s: ecs_workers(s, oldest_runnable_seconds=0),
        "oldest_runnable_seconds",
        "1 to 86400",
    ),
    "lambda: batch above concurrency": (
        lambda s: lambda_workers(s, concurrency=5),
        "batch_size",
        "more than the 5 runs",
    ),
    "lambda: visibility": (
        lambda s: lambda_workers(s, timeout_seconds=61),
        "timeout_seconds",
        "visibility_seconds=366",
    ),
    "lambda: visibility and window": (
        lambda s: lambda_workers(s, batching_window_seconds=1),
        "timeout_seconds",
        "visibility_seconds=361",
    ),
    "lambda: large batch, no window": (
        lambda s: lambda_workers(s, concurrency=20, batch_size=11),
        "batch_size",
        "batching window",
    ),
    "lambda: window of fifo": (
        lambda s: lambda_workers(
            s, batching_window_seconds=1, queue_more={"fifo": True, "visibility_seconds": 400}
        ),
        "batching_window_seconds",
        "FIFO",
    ),
    "lambda: one at once": (
        lambda s: lambda_workers(s, max_concurrency=1),
        "max_concurrency",
        "2 to 1000",
    ),
    "lambda: foreign queue": (
        lambda s: lambda_workers(s, queue=queue(s, "mail", visibility_seconds=360)),
        "queue",
        "mail, not of this system",
    ),
    "function: time-out": (
        lambda s: lambda_workers(s, timeout_seconds=901, queue_more={"visibility_seconds": 43_200}),
        "timeout_seconds",
        "1 to 900",
    ),
    "function: handler": (lambda s: lambda_workers(s, handler="handler"), "handler", "module.func"),
    "function: memory": (lambda s: lambda_workers(s, memory=128), "memory", "256 to 10240"),
    "alarms: age": (
        lambda s: Alarms(s, "Alarms", system=a_system(s), oldest_runnable_seconds=5),
        "oldest_runnable_seconds",
        "once a minute",
    ),
    "alarms: failed": (
        lambda s: Alarms(s, "Alarms", system=a_system(s), failed_runs=-1),
        "failed_runs",
        "number of runs",
    ),
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_what_cannot_work_is_refused(stack: cdk.Stack, case: str) -> None:
    make, argument, problem = REFUSED[case]
    with pytest.raises(ArgumentError) as refused:
        make(stack)
    assert refused.value.argument == argument
    assert problem in str(refused.value)
    assert str(refused.value).startswith(f"{refused.value.construct}: {argument} ")
    assert "hunter2" not in str(refused.value)


def test_constructs_name_where_they_are(stack: cdk.Stack) -> None:
    with pytest.raises(ArgumentError, match=rf"^{stack.node.id}/Queue-Mail: name is 'Mail'"):
        queue(stack, "Mail")


def test_the_longest_drain_ends_when_ecs_would_kill(stack: cdk.Stack) -> None:
    ecs_workers(stack, drain_seconds=115)
    Template.from_stack(stack).has_resource_properties(
        "AWS::ECS::TaskDefinition",
        {"ContainerDefinitions": Match.array_with([Match.object_like({"StopTimeout": 120})])},
    )


def test_a_migration_may_be_a_step_of_its_own(stack: cdk.Stack) -> None:
    ecs_workers(stack, migrate=False)
    (task,) = Template.from_stack(stack).find_resources("AWS::ECS::TaskDefinition").values()
    assert len(task["Properties"]["ContainerDefinitions"]) == 1


def test_a_key_of_ones_own_gives_rights_to_it_and_no_more(stack: cdk.Stack) -> None:
    key = kms.Key.from_key_arn(stack, "Key", "arn:aws:kms:eu-central-1:111122223333:key/abc")
    own = queue(stack, encryption_key=key)
    statements = [
        statement.to_statement_json()
        for rights in (Rights.producer([own]), Rights.worker([own], [own]))
        for statement in rights
        if statement.sid == "UseQueueKeys"
    ]
    assert len(statements) == 2
    for statement in statements:
        assert set(statement["Action"]) == {"kms:Decrypt", "kms:GenerateDataKey"}
        assert statement["Resource"] == key.key_arn
    Template.from_stack(stack).all_resources_properties(
        "AWS::SQS::Queue", {"KmsMasterKeyId": key.key_arn}
    )


def test_a_worker_of_one_queue_receives_from_it_alone(stack: cdk.Stack) -> None:
    mail, default = queue(stack, "mail"), queue(stack)
    receive, send = Rights.worker([mail], [default])
    assert receive.resources == [mail.queue.queue_arn]
    # Its own too: timers, retries and runs handed back.
    assert send.resources == [mail.queue.queue_arn, default.queue.queue_arn]


def test_an_operator_drains_dead_letters_and_receives_nothing_else(stack: cdk.Stack) -> None:
    mail, default = queue(stack, "mail"), queue(stack)
    send, look, drain = Rights.operator([mail, default])
    assert set(drain.resources) == {q.dead_letters.queue_arn for q in (mail, default)}
    assert "sqs:ReceiveMessage" in drain.actions
    for statement in (send, look):
        assert set(statement.resources) == {q.queue.queue_arn for q in (mail, default)}
        assert "sqs:ReceiveMessage" not in statement.actions


def test_fifo_queues_are_told_to_processes(stack: cdk.Stack) -> None:
    system = a_system(stack, fifo=True, prefix="shop-")
    assert system.variables()["WORKHORSE_SQS_FIFO"] == "true"
    assert system.variables()["WORKHORSE_SQS_QUEUE_PREFIX"] == "shop-"
    Template.from_stack(stack).has_resource_properties(
        "AWS::SQS::Queue", {"QueueName": "shop-default-dlq.fifo", "FifoQueue": True}
    )


def test_an_environment_is_in_names_variables_and_metrics(stack: cdk.Stack) -> None:
    system = System(
        database=DATABASE, queues=[queue(stack, environment="stage")], environment="stage"
    )
    assert system.variables()["WORKHORSE_ENVIRONMENT"] == "stage"
    assert system.dimensions == {"Environment": "stage"}
    Template.from_stack(stack).has_resource_properties(
        "AWS::SQS::Queue", {"QueueName": "workhorse-stage-default"}
    )


def test_a_wide_stride_before_lambda_is_warned_of(stack: cdk.Stack) -> None:
    system = System(database=DATABASE, queues=[queue(stack, visibility_seconds=360)])
    workers = lambda_workers(cdk.Stack(stack, "Other"), system=system, queue=system.queues[0])
    said = [entry.data for entry in workers.node.metadata if "warn" in entry.type]
    assert any("hint_stride is 10" in str(text) for text in said)


def test_an_instance_of_rds_is_as_safe_as_a_cluster(stack: cdk.Stack) -> None:
    made = database(stack, kind="instance", ca_bundle="/etc/ssl/rds.pem")
    assert made.url.endswith(":5432/workhorse?sslmode=verify-full&sslrootcert=/etc/ssl/rds.pem")
    assert "WORKHORSE_POOLER" not in made.variables()
    Template.from_stack(stack).has_resource(
        "AWS::RDS::DBInstance",
        {
            "DeletionPolicy": "Snapshot",
            "Properties": {
                "StorageEncrypted": True,
                "PubliclyAccessible": False,
                "DeletionProtection": True,
                "BackupRetentionPeriod": 7,
                "ManageMasterUserPassword": True,
                "MultiAZ": True,
            },
        },
    )


def test_a_proxy_is_what_processes_reach_and_a_pooler(stack: cdk.Stack) -> None:
    made = database(stack, proxy=True)
    template = Template.from_stack(stack)
    template.has_resource_properties("AWS::RDS::DBProxy", {"RequireTLS": True})
    (proxy,) = template.find_resources("AWS::RDS::DBProxy")
    (cluster,) = template.find_resources("AWS::RDS::DBCluster")
    assert made.variables()["WORKHORSE_POOLER"] == "true"
    url = stack.resolve(made.url)["Fn::Join"][1]
    assert {"Fn::GetAtt": [proxy, "Endpoint"]} in url
    assert cluster not in str(url)
    assert "sslmode=require" in str(url)


def test_a_function_outside_of_a_network_asks_for_no_rights_to_one(stack: cdk.Stack) -> None:
    WorkhorseFunction(
        stack, "Fn", system=a_system(stack), code=CODE, handler="index.h", network=None
    )
    template = Template.from_stack(stack)
    assert "ec2:" not in str(template.to_json())
    template.has_resource_properties("AWS::Lambda::Function", {"VpcConfig": Match.absent()})
