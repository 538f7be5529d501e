"""Who may do what: read from the synthesized policies, whoever wrote them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from infra.acknowledgements import ACKNOWLEDGEMENTS
from infra.tests.conftest import ECS, LAMBDA, Synthesized

BOTH = pytest.mark.parametrize("name", [ECS, LAMBDA])
SEND = {"sqs:GetQueueUrl", "sqs:SendMessage"}
RECEIVE = {
    "sqs:ReceiveMessage",
    "sqs:DeleteMessage",
    "sqs:ChangeMessageVisibility",
    "sqs:GetQueueAttributes",
    "sqs:GetQueueUrl",
}
LOOK = {"sqs:GetQueueAttributes", "sqs:GetQueueUrl"}
SECRET = "secretsmanager:GetSecretValue"  # noqa: S105 - an action's name


@BOTH
def test_no_statement_allows_a_wildcard_action(synthesized: Synthesized, name: str) -> None:
    statements = list(allowed(synthesized.raw[name]))
    assert len(statements) > 10
    assert [action for it in statements for action in listed(it["Action"]) if "*" in action] == []
    assert not any("NotAction" in it or "NotResource" in it for it in statements)


@BOTH
def test_no_role_takes_a_policy_of_somebody_else(synthesized: Synthesized, name: str) -> None:
    for role in synthesized.of_type(name, "AWS::IAM::Role").values():
        assert "ManagedPolicyArns" not in role["Properties"]


def test_each_wildcard_resource_is_one_for_which_aws_has_nothing_narrower(
    synthesized: Synthesized,
) -> None:
    """And has a condition; its reason stands with the acknowledgement of cdk-nag's finding."""
    found = {
        (name, holder, tuple(listed(statement["Action"])))
        for name in (ECS, LAMBDA)
        for holder, statement in held(synthesized.raw[name])
        if "*" in str(statement.get("Resource", ""))
    }
    network = (
        "ec2:AssignPrivateIpAddresses",
        "ec2:CreateNetworkInterface",
        "ec2:DeleteNetworkInterface",
        "ec2:DescribeNetworkInterfaces",
        "ec2:DescribeSubnets",
        "ec2:UnassignPrivateIpAddresses",
    )
    assert {(name, actions) for name, _, actions in found} == {
        (ECS, ("ecs:UpdateTaskProtection",)),
        (ECS, ("ecr:GetAuthorizationToken",)),
        (LAMBDA, network),
    }
    for name in (ECS, LAMBDA):
        for _, statement in held(synthesized.raw[name]):
            if "*" in str(statement.get("Resource", "")):
                assert statement["Condition"], statement["Sid"]
    wildcards = [one for one in ACKNOWLEDGEMENTS if "IAM5" in one.rule]
    assert len(wildcards) == len(found)


@pytest.mark.parametrize(
    ("name", "role", "sqs", "others"),
    [
        (ECS, "WorkersTaskRole", SEND | RECEIVE, {SECRET, "ecs:UpdateTaskProtection"}),
        (ECS, "MaintenanceTaskRole", SEND | LOOK, {SECRET}),
        (LAMBDA, "WorkersWorkerRole", SEND | RECEIVE, {SECRET}),
        (LAMBDA, "MaintenancePassRole", SEND | LOOK, {SECRET}),
        (LAMBDA, "ProducerRole", SEND, {SECRET}),
    ],
)
def test_a_part_may_do_what_it_does_and_no_more(
    synthesized: Synthesized, name: str, role: str, sqs: set[str], others: set[str]
) -> None:
    actions = {
        action
        for holder, statement in held(synthesized.raw[name])
        if holder.startswith(role)
        for action in listed(statement["Action"])
    }
    everywhere = {"logs:CreateLogStream", "logs:PutLogEvents"}  # of functions
    network = {action for action in actions if action.startswith("ec2:")}
    assert actions - everywhere - network == sqs | others
    assert bool(network) == (name == LAMBDA)


def test_a_producers_policy_may_send_and_no_more(synthesized: Synthesized) -> None:
    (policy,) = synthesized.of_type(ECS, "AWS::IAM::ManagedPolicy").values()
    (statement,) = policy["Properties"]["PolicyDocument"]["Statement"]
    assert set(statement["Action"]) == SEND


@BOTH
def test_nothing_that_runs_touches_dead_letters(synthesized: Synthesized, name: str) -> None:
    """They are counted by CloudWatch, and drained by an operator."""
    dead = next(i for i in synthesized.of_type(name, "AWS::SQS::Queue") if "DeadLetters" in i)
    touching = [
        holder
        for holder, statement in held(synthesized.raw[name])
        if dead in str(statement["Resource"])
    ]
    assert touching == []


def test_a_functions_code_may_not_do_what_lambda_does_in_its_name(
    synthesized: Synthesized,
) -> None:
    denied = {}
    for policy in synthesized.of_type(LAMBDA, "AWS::IAM::Policy").values():
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]:
            if (
                statement["Effect"] == "Deny"
                and "ec2:CreateNetworkInterface" in statement["Action"]
            ):
                (role,) = policy["Properties"]["Roles"]
                function = statement["Condition"]["ArnEquals"]["lambda:SourceFunctionArn"]
                denied[function["Fn::GetAtt"][0]] = role["Ref"]
    functions = synthesized.of_type(LAMBDA, "AWS::Lambda::Function")
    assert denied == {
        name: it["Properties"]["Role"]["Fn::GetAtt"][0] for name, it in functions.items()
    }


@BOTH
def test_the_scheduler_starts_maintenance_and_nothing_else(
    synthesized: Synthesized, name: str
) -> None:
    statements = [
        statement
        for holder, statement in held(synthesized.raw[name])
        if holder.startswith("MaintenanceStarter")
    ]
    actions = {action for it in statements for action in listed(it["Action"])}
    start = {"ecs:RunTask", "iam:PassRole"} if name == ECS else {"lambda:InvokeFunction"}
    assert actions == {*start, "sqs:SendMessage"}
    for statement in statements:
        if statement["Action"] in ("ecs:RunTask", "iam:PassRole"):
            assert statement["Condition"]
    (role,) = (
        it
        for i, it in synthesized.of_type(name, "AWS::IAM::Role").items()
        if i.startswith("MaintenanceStarter")
    )
    (trust,) = role["Properties"]["AssumeRolePolicyDocument"]["Statement"]
    # Nobody else's schedule can take the role: the confused deputy.
    assert trust["Condition"]["StringEquals"]["aws:SourceAccount"] == {"Ref": "AWS::AccountId"}
    assert "aws:SourceArn" in trust["Condition"]["ArnEquals"]


def held(template: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each statement that allows, with the logical id of a role that has it."""
    for name, resource in template["Resources"].items():
        if resource["Type"] in ("AWS::IAM::Policy", "AWS::IAM::ManagedPolicy"):
            for statement in listed(resource["Properties"]["PolicyDocument"]["Statement"]):
                if statement["Effect"] == "Allow":
                    for role in resource["Properties"].get("Roles", [{"Ref": name}]):
                        yield role["Ref"], statement


def allowed(value: Any) -> Iterator[dict[str, Any]]:
    """Yield each statement that allows, wherever in a template it stands."""
    if isinstance(value, dict):
        if value.get("Effect") == "Allow":
            yield value
        for part in value.values():
            yield from allowed(part)
    elif isinstance(value, list):
        for part in value:
            yield from allowed(part)


def listed(value: Any) -> list[Any]:
    """Return a list, also of what stands there without one."""
    return value if isinstance(value, list) else [value]
