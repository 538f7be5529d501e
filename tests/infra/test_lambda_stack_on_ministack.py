"""The Lambda stack's template, deployed to MiniStack, runs a run from its enqueue to its end.

What MiniStack does not take is left out by the names of the types, and what stood for the database
is replaced by a PostgreSQL here. All else is the template as it is committed: queues, roles, the
mapping, the functions, the schedule, the alarms.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import boto3
import psycopg
import pytest

from tests.support.emulators import Emulator, emulator, our_packages
from tests.support.eventually import eventually
from tests.support.postgres import PostgresServer
from workhorse import Workhorse
from workhorse.domain.runs import RunState

ROOT: Final = Path(__file__).parents[2]
TEMPLATE: Final = ROOT / "infra" / "templates" / "lambda.json"
NOT_TAKEN: Final = {
    "AWS::EC2::SecurityGroup",
    "AWS::EC2::SecurityGroupIngress",
    "AWS::RDS::DBCluster",
    "AWS::RDS::DBInstance",
    "AWS::RDS::DBSubnetGroup",
}
"""Types that MiniStack does not know, or that need a network that it does not have."""
BUCKET: Final = "packages"
WITHIN_S: Final = 60.0


@dataclass
class Deployed:
    """The stack, and clients of what it is deployed to."""

    it: Emulator
    app: Workhorse
    database_url: str

    def client(self, service: str) -> Any:
        return boto3.client(
            service,  # type: ignore[call-overload]
            endpoint_url=self.it.url,
            region_name=self.it.region,
            aws_access_key_id="test",
            aws_secret_access_key="test",  # noqa: S106 - no emulator checks it
        )

    def output(self, key: str) -> str:
        (stack,) = self.client("cloudformation").describe_stacks(StackName="workhorse")["Stacks"]
        return next(str(o["OutputValue"]) for o in stack["Outputs"] if o["OutputKey"] == key)

    def invoke(self, function: str, event: object) -> Any:
        answer = self.client("lambda").invoke(FunctionName=function, Payload=json.dumps(event))
        said = answer["Payload"].read().decode()
        assert "FunctionError" not in answer, said
        return json.loads(said)

    def state(self, run_id: str) -> RunState:
        return self.app.run(run_id).view().state


@pytest.fixture(scope="module")
def deployed() -> Iterator[Deployed]:
    with (
        emulator("ministack", python_path=our_packages()) as it,
        PostgresServer(tcp=True) as server,
    ):
        app = Workhorse(
            database_url=server.url(), lane="sqs", aws_endpoint_url=it.url, aws_region=it.region
        )
        app.migrate()
        deployed = Deployed(it, app, server.url())
        deploy(deployed)
        yield deployed
        app.close()


def test_a_run_goes_from_the_producer_to_its_end(deployed: Deployed) -> None:
    order = {"body": json.dumps({"number": 7, "item": "saddle"})}

    answer = deployed.invoke(deployed.output("ProducerFunction"), order)

    assert answer["statusCode"] == 202
    run_id = json.loads(answer["body"])["run_id"]
    # The mapping invokes the worker, which ships and then sleeps for a day.
    eventually(lambda: deployed.state(run_id) == RunState.SCHEDULED, within=WITHIN_S)
    a_day_goes_by(deployed.database_url)

    counts = run_the_schedules_target(deployed)

    # Maintenance promotes it and sends a wakeup; the mapping invokes the worker again.
    assert counts["failed"] == {}
    assert counts["counts"]["promote"] == 1, counts
    eventually(lambda: deployed.state(run_id) == RunState.SUCCEEDED, within=WITHIN_S)
    assert deployed.app.run(run_id).result() == "parcel of order-7 has arrived"
    sqs = deployed.client("sqs")
    left = ("workhorse-default", "workhorse-default-dlq")
    eventually(lambda: sum(messages(sqs, queue) for queue in left) == 0, within=WITHIN_S)


def test_the_mapping_the_queue_and_the_alarms_are_as_the_template_says(
    deployed: Deployed,
) -> None:
    (mapping,) = deployed.client("lambda").list_event_source_mappings()["EventSourceMappings"]
    assert mapping["EventSourceArn"] == deployed.it.arn("sqs", "workhorse-default")
    assert mapping["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    assert mapping["BatchSize"] == 10
    sqs = deployed.client("sqs")
    url = sqs.get_queue_url(QueueName="workhorse-default")["QueueUrl"]
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert found["VisibilityTimeout"] == "360"
    assert json.loads(found["RedrivePolicy"]) == {
        "deadLetterTargetArn": deployed.it.arn("sqs", "workhorse-default-dlq"),
        "maxReceiveCount": 10,
    }
    alarms = deployed.client("cloudwatch").describe_alarms()["MetricAlarms"]
    assert {alarm["MetricName"] for alarm in alarms} == {
        "OldestRunnableAge",
        "FailedRuns",
        "MaintenancePasses",
        "ApproximateNumberOfMessagesVisible",
    }


def a_day_goes_by(database_url: str) -> None:
    """Move what is due in a day to this moment."""
    with psycopg.connect(database_url) as conn:
        for table, column in (("live", "due_at"), ("boundaries", "wake_at")):
            moved = conn.execute(
                f"update workhorse.{table} set {column} = now() where {column} is not null"  # noqa: S608
            )
            assert moved.rowcount == 1, table


def run_the_schedules_target(deployed: Deployed) -> dict[str, Any]:
    """Do what the scheduler does each minute: what the schedule says."""
    client = deployed.client("scheduler")
    (listed,) = client.list_schedules()["Schedules"]
    schedule = client.get_schedule(Name=listed["Name"], GroupName=listed["GroupName"])
    assert schedule["ScheduleExpression"] == "rate(1 minute)"
    assert schedule["State"] == "ENABLED"
    target = schedule["Target"]
    counts: dict[str, Any] = deployed.invoke(target["Arn"], json.loads(target["Input"]))
    return counts


def messages(sqs: Any, queue: str) -> int:
    """Return how many messages a queue holds, visible or not."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    url = sqs.get_queue_url(QueueName=queue)["QueueUrl"]
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return sum(int(found[name]) for name in names)


def deploy(deployed: Deployed) -> None:
    """Put the example's package into a bucket, the password into a secret, and make the stack."""
    s3 = deployed.client("s3")
    s3.create_bucket(Bucket=BUCKET)
    s3.put_object(Bucket=BUCKET, Key="orders.zip", Body=package())
    secret = deployed.client("secretsmanager").create_secret(
        Name="database", SecretString=json.dumps({"username": "postgres", "password": "any"})
    )
    template = for_ministack(
        json.loads(TEMPLATE.read_text()),
        {
            "AWS_ENDPOINT_URL": deployed.it.url,
            "WORKHORSE_DATABASE_URL": deployed.database_url.replace("postgres@", ""),
            "WORKHORSE_DATABASE_SECRET": secret["ARN"],
        },
    )
    client = deployed.client("cloudformation")
    given = {"CodeBucket": BUCKET, "CodeKey": "orders.zip", "VpcId": "vpc-1"}
    given |= {"SubnetA": "subnet-a", "SubnetB": "subnet-b"}
    client.create_stack(
        StackName="workhorse",
        TemplateBody=json.dumps(template),
        Parameters=[{"ParameterKey": k, "ParameterValue": v} for k, v in given.items()],
        Capabilities=["CAPABILITY_IAM"],
    )

    def status() -> str:
        (stack,) = client.describe_stacks(StackName="workhorse")["Stacks"]
        return str(stack["StackStatus"])

    eventually(lambda: "PROGRESS" not in status(), within=WITHIN_S)
    assert status() == "CREATE_COMPLETE", client.describe_stack_events(StackName="workhorse")


def package() -> bytes:
    """Return the example as a package; what it needs is where MiniStack's functions look."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.write(ROOT / "examples" / "on_lambda.py", "on_lambda.py")
    return packed.getvalue()


def for_ministack(template: dict[str, Any], variables: dict[str, str]) -> dict[str, Any]:
    """Leave out what MiniStack does not take, and what only says something about that."""
    resources = template["Resources"]
    gone = {name for name, it in resources.items() if it["Type"] in NOT_TAKEN}
    for name in gone:
        del resources[name]
    for it in resources.values():
        it["DependsOn"] = [name for name in it.get("DependsOn", []) if name not in gone]
        if it["Type"] == "AWS::Lambda::Function":
            del it["Properties"]["VpcConfig"]
            it["Properties"]["Environment"]["Variables"].update(variables)
        if it["Type"] == "AWS::IAM::Policy":
            document = it["Properties"]["PolicyDocument"]
            document["Statement"] = [s for s in document["Statement"] if not names(s, gone)]
    template["Outputs"] = {k: o for k, o in template["Outputs"].items() if not names(o, gone)}
    assert not names(template, gone)
    return template


def names(value: object, gone: set[str]) -> bool:
    """Whether a part of the template refers to a resource that is not there."""
    if isinstance(value, dict):
        said = value.get("Ref"), *value.get("Fn::GetAtt", ())[:1]
        return bool(gone.intersection(said)) or any(names(part, gone) for part in value.values())
    return isinstance(value, list) and any(names(part, gone) for part in value)
