"""The files of localstack/: a compose file that can be read, and a script that makes queues."""

from __future__ import annotations

import json
import os
import re
import uuid
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.support import emulator_differences
from tests.support.emulator_differences import DIFFERENCES, on_page, table
from tests.support.emulators import chosen, sqs_endpoint

FOLDER = Path(__file__).parents[1] / "localstack"
SCRIPT = FOLDER / "init" / "queues.py"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def test_the_services() -> None:
    assert set(SERVICES) == {"postgres", "localstack", "ministack"}
    # Whoever asks for nothing gets LocalStack; MiniStack has its port, so it has a profile.
    assert {name for name, service in SERVICES.items() if "profiles" in service} == {"ministack"}


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_is_pinned_on_loopback_and_checked(name: str) -> None:
    service = SERVICES[name]
    assert re.fullmatch(r"[a-z/]+:\d+(\.\d+)+", service["image"])
    assert service["ports"]
    for port in service["ports"]:
        assert re.fullmatch(r"127\.0\.0\.1:\$\{[A-Z_]+:-\d+\}:\d+", port)
    assert service["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
    assert service["healthcheck"]["retries"] >= 10


def test_the_versions_are_those_that_the_page_names() -> None:
    assert SERVICES["localstack"]["image"] == "localstack/localstack:4.14.0"
    pins = (FOLDER.parent / "requirements" / "emulators" / "ministack.in").read_text()
    assert f"ministack=={SERVICES['ministack']['image'].partition(':')[2]}" in pins
    assert int(SERVICES["postgres"]["image"].partition(":")[2].partition(".")[0]) >= 15


def test_data_lies_in_a_volume_that_has_a_name() -> None:
    (mounted,) = SERVICES["postgres"]["volumes"]
    assert mounted.partition(":")[0] in COMPOSE["volumes"]


@pytest.mark.parametrize("name", ["localstack", "ministack"])
def test_the_script_is_where_the_emulators_look_for_it(name: str) -> None:
    (mounted,) = SERVICES[name]["volumes"]
    source, target, mode = mounted.split(":")
    assert (FOLDER / source).resolve() == SCRIPT.parent
    assert (target, mode) == ("/etc/localstack/init/ready.d", "ro")
    assert SERVICES[name]["environment"]["QUEUES"] == "${QUEUES:-default}"
    assert os.access(SCRIPT, os.X_OK)
    assert SCRIPT.read_text().startswith("#!/usr/bin/env python3\n")


def test_this_folder_is_no_package() -> None:
    assert not (FOLDER / "__init__.py").exists()


@pytest.mark.parametrize("emulator", chosen())
def test_the_script_makes_queues_with_dead_letter_queues(
    emulator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run twice, as LocalStack runs it: by `exec`, with nothing defined before."""
    prefix = f"p{uuid.uuid4().hex[:8]}-"
    with sqs_endpoint(emulator) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint.url)
        monkeypatch.setenv("QUEUES", " mails, orders,mails")
        monkeypatch.setenv("PREFIX", prefix)
        for _ in range(2):
            exec(compile(SCRIPT.read_text(), SCRIPT, "exec"), {})  # noqa: S102
        found = endpoint.client.list_queues(QueueNamePrefix=prefix)["QueueUrls"]
        names = sorted(url.rpartition("/")[2].removeprefix(prefix) for url in found)
        assert names == ["default", "default-dead", "mails", "mails-dead", "orders", "orders-dead"]
        attributes = endpoint.client.get_queue_attributes(
            QueueUrl=endpoint.queue(f"{prefix}mails").url, AttributeNames=["All"]
        )["Attributes"]
    policy = json.loads(attributes["RedrivePolicy"])
    assert policy["deadLetterTargetArn"].endswith(f":{prefix}mails-dead")
    assert int(policy["maxReceiveCount"]) == 10
    assert attributes["VisibilityTimeout"] == "60"


def test_the_page_has_the_table_of_differences() -> None:
    """`python -m tests.support.emulator_differences` writes it."""
    assert on_page() == table()


def test_each_difference_names_a_check() -> None:
    checks = set(re.findall(r"^def test_(\w+)", emulator_differences.CHECKS.read_text(), re.M))
    assert {difference.check.partition("[")[0] for difference in DIFFERENCES} <= checks
    assert len({(each.emulator, each.check) for each in DIFFERENCES}) == len(DIFFERENCES)
