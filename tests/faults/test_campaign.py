"""A short campaign with every fault, and one with a planted bug, which it finds.

`make faults` takes a quarter of an hour for many of each; see docs/guarantees.md.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from typing import Any

import pytest

from tests.faults import ledger, report
from tests.faults.campaign import Campaign, Result
from tests.faults.faults import Fault, load
from tests.faults.faults.signals import Frozen
from tests.faults.fleet import Fleet, Member
from tests.faults.plan import draw_plan, show
from tests.faults.wires import APART
from tests.support.eventually import eventually
from tests.support.installations import CHOICE

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(
        os.environ.get(CHOICE) == "off",
        reason=f"PostgreSQL is left out by {CHOICE}=off; run them without that setting",
    ),
]
SEED = 20261130


class FrozenUntilFollowed(Frozen):
    """Until other workers have begun, under later leases, with runs that it holds."""

    name = "SIGSTOP until followed"

    def wait(self, fleet: Fleet, member: Member, rng: random.Random) -> float:
        began = time.monotonic()

        def followed() -> bool:
            lines = ledger.read(fleet.folder / ledger.HANDLERS)
            mine = {line.run: line.fence for line in lines if line.group == member.pid}
            later = {
                line.run
                for line in lines
                if line.what == ledger.START and line.fence > mine.get(line.run, line.fence)
            }
            return len(later) >= 2 or time.monotonic() > began + 20

        eventually(followed, within=30, every=0.1)
        return time.monotonic() - began


def run_campaign(
    faults: Sequence[type[Fault]], *, seconds: float, times: int, first_s: float = 3, **fleet: Any
) -> Result:
    plan = draw_plan(SEED, faults, seconds=seconds, times=times, first_s=first_s)
    with Fleet(seed=SEED, **fleet) as started:
        return Campaign(started, plan, say=print, faults=faults, seconds=seconds).run(SEED)


def test_a_plan_is_drawn_from_its_seed_alone() -> None:
    first = draw_plan(7, load(), seconds=60, times=3)
    assert show(first) == show(draw_plan(7, load(), seconds=60, times=3))
    assert show(first) != show(draw_plan(8, load(), seconds=60, times=3))
    names = [step.fault for step in first]
    assert {names.count(fault.name) for fault in load()} == {3}


def test_a_fleet_that_is_broken_in_every_way_keeps_all_promises() -> None:
    """Case 6, case 11, case 12, case 13 and case 14 at once, on one fleet."""
    result = run_campaign(
        [fault for fault in load() if fault.kind not in APART],
        seconds=45,
        times=1,
        runs=300,
        rate=7.5,
        wired=True,
    )
    kept = report.figures(result, server="")
    assert kept["findings"] == []
    assert kept["unhealed"] == []
    assert kept["misses"] == []
    assert result.rest_s is not None, "it never came to rest"
    assert set(result.times.values()) == {1}
    assert (
        kept["accepted"] >= 300 - 150
    )  # what is refused while the database is away is not repeated
    assert kept["states"]["succeeded"] >= 80


def test_a_campaign_finds_a_write_that_forgets_the_token() -> None:
    """Workers settle by the run's id alone: one that was frozen ends its successor's run."""
    result = run_campaign(
        [FrozenUntilFollowed], seconds=34, times=3, first_s=8, runs=140, rate=4, lease_s=2, bad=0,
        millis=6000, tasks=["faults.plain", "faults.batch"],
        env={"FAULTS_PLANTED": "settle without token"},
    )  # fmt: skip
    rules = {finding.rule for finding in result.verdict.findings}
    assert "results are of the last lease" in rules, report.figures(result, server="")
