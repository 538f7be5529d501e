"""The page about costs says what the counted calls cost, and no other figures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import costs
from workhorse.maintenance import measuring

PAGE = (Path(__file__).parents[2] / "docs" / "cost.md").read_text()


@pytest.mark.parametrize("name", ["prices", "runs", "months"])
def test_a_table_is_what_the_counted_calls_cost(name: str) -> None:
    lines = dict(costs.tables())[name]
    found = re.search(rf"<!-- {name} -->\n((?:\|.*\n)+)", PAGE)
    assert found, f"docs/cost.md has no table '{name}'"
    assert found[1].splitlines() == lines, "python -m tests.support.costs prints it anew"


def test_the_metrics_of_a_queue_are_as_many_as_are_charged() -> None:
    assert len(measuring._UNITS) == costs.METRICS_A_QUEUE + 1  # the passes are the system's alone


def test_what_the_text_says_of_a_worker_and_a_task() -> None:
    assert f"{costs.fargate(0.25, 0.5):.0f} dollars" in PAGE
    assert f"{costs.IDLE_A_MINUTE:.0f} receives a minute" in PAGE
