"""One app for the whole session: building it and synthesizing takes seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import cdk_nag
import pytest
from aws_cdk.assertions import Template

from infra.app import build
from infra.plain import FILES

ECS, LAMBDA = FILES


class Synthesized:
    """What the app became, and what cdk-nag found on the way."""

    def __init__(self, folder: Path) -> None:
        app = build(str(folder))
        cdk.Validations.of(app).add_plugins(cdk_nag.AwsSolutionsChecks(app))
        self.failure: str | None = None
        try:
            app.synth()
        except Exception as error:  # noqa: BLE001 - a test says what it was
            self.failure = str(error)
        # Written in either case.
        self.report = json.loads((folder / "validation-report.json").read_text())
        self.raw: dict[str, dict[str, Any]] = {
            name: json.loads((folder / f"{name}.template.json").read_text()) for name in FILES
        }
        self.templates = {name: Template.from_json(raw) for name, raw in self.raw.items()}

    def found(self, kind: str) -> set[tuple[str, str]]:
        """Return findings of cdk-nag, `violations` or `suppressedViolations`: place and rule."""
        return {
            (construct["constructPath"], finding["ruleName"])
            for report in self.report["pluginReports"]
            for finding in report.get(kind, ())
            for construct in finding["violatingConstructs"]
        }

    def of_type(self, stack: str, kind: str) -> dict[str, dict[str, Any]]:
        """Return the resources of a type, by their logical ids."""
        resources = self.raw[stack]["Resources"]
        return {name: it for name, it in resources.items() if it["Type"] == kind}


@pytest.fixture(scope="session")
def synthesized(tmp_path_factory: pytest.TempPathFactory) -> Synthesized:
    """Both example stacks."""
    return Synthesized(tmp_path_factory.mktemp("cdk.out"))


@pytest.fixture
def ecs(synthesized: Synthesized) -> Template:
    """The stack with workers on ECS."""
    return synthesized.templates[ECS]


@pytest.fixture
def on_lambda(synthesized: Synthesized) -> Template:
    """The stack with workers on Lambda."""
    return synthesized.templates[LAMBDA]


@pytest.fixture
def stack(tmp_path: Path) -> cdk.Stack:
    """An empty stack, for constructs that are made for one test."""
    return cdk.Stack(cdk.App(outdir=str(tmp_path), analytics_reporting=False), "Test")
