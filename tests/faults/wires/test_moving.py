"""A process's clock is moved while it runs, the monotonic one is not; docs/cases.md, case 10."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.faults.wires import moving
from tests.faults.wires.moving import FAR_S, Clocks
from tests.store.acting import rows
from tests.support.eventually import eventually
from tests.support.processes import Processes
from workhorse import Workhorse

pytestmark = moving.needed()
ROOT = Path(__file__).parents[3]
_CLOCKS = """
import time
while True:
    print(int(time.time()), int(time.monotonic()), flush=True)
    time.sleep(0.05)
"""
_WORKER = """
import sys, time
from datetime import timedelta
from workhorse import Context, Workhorse

app = Workhorse(database_url=sys.argv[1], lane="polling", lease_seconds=2)

@app.task("sleeps")
def sleeps(ctx: Context) -> list:
    ctx.sleep("for a moment", timedelta(seconds=2))
    return [ctx.attempt, time.time()]

@app.task("works")
def works(ctx: Context) -> list:
    began = time.monotonic()
    while time.monotonic() < began + 5:  # two leases and a half
        time.sleep(0.05)
    return [ctx.attempt, time.time()]

app.worker().run()
"""


def nothing() -> Any:
    """Stand for a handler that another process has."""


@pytest.mark.parametrize("by_s", [FAR_S, -FAR_S])
def test_a_clock_is_moved_while_its_process_runs(
    processes: Processes, tmp_path: Path, by_s: int
) -> None:
    clocks = Clocks(tmp_path, ["one"])
    process = processes.python("-c", _CLOCKS, env=clocks.env("one"))
    process.wait_for(r"^\d+ \d+$")
    clocks.move("one", by_s)

    def moved() -> bool:
        wall, monotonic = map(int, process.output().split("\n")[-2].split())
        assert abs(monotonic - time.monotonic()) < 60
        return abs(wall - time.time() - by_s) < 60

    eventually(moved)
    process.kill()
    moving.forget([process.pid])


@pytest.mark.parametrize("by_s", [FAR_S, -FAR_S])
def test_case_10_a_worker_with_a_wrong_clock_judges_nothing_by_it(
    processes: Processes, tmp_path: Path, postgresql_url: str, by_s: int
) -> None:
    """Its leases are renewed, its sleep is as long as it said, and no attempt is spent."""
    clocks = Clocks(tmp_path, ["one"])
    clocks.move("one", by_s)
    with Workhorse(database_url=postgresql_url, lane="polling") as app:
        sleeps = app.task("sleeps")(nothing).enqueue()
        works = app.task("works")(nothing).enqueue()
        began = time.monotonic()
        process = processes.python(
            "-c", _WORKER, postgresql_url, env={**clocks.env("one"), "PYTHONPATH": str(ROOT)}
        )
        attempt, wall = sleeps.result(timeout=120)
        assert attempt == 1
        assert abs(wall - time.time() - by_s) < 120, "the clock was not moved"
        assert time.monotonic() - began >= 2
        attempt, _ = works.result(timeout=120)
        assert attempt == 1
        assert rows(app.store, "select count(*) from {s}attempts") == [(0,)]
    process.kill()
    moving.forget([process.pid])
