"""A full run's parts hold each fault often enough, and their reports add up to one."""

from __future__ import annotations

from typing import Any

from tests.faults import report
from tests.faults.faults import load
from tests.faults.faults.setting_back import SetBack
from tests.faults.parts import TIMES, parts


def test_the_parts_of_a_full_run_hold_each_fault_often_enough() -> None:
    known = parts(load())
    times = {fault.name: sum(p.times.get(fault.name, 0) for p in known) for fault in load()}
    assert [name for name, count in times.items() if count < TIMES] == []
    assert len({part.name for part in known}) == len(known)


def test_what_set_backs_excuse_is_excused_in_their_own_part_alone() -> None:
    with_set_backs = [part.name for part in parts(load()) if SetBack.name in part.times]
    assert with_set_backs == ["set-backs"]


def part(name: str, **changed: Any) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "name": name, "at": "2026-11-30", "seed": 1, "minutes": 2.0, "python": "3", "cores": 2,
        "postgresql": "15", "runs": 5, "accepted": 4, "activations": 6, "handlers": {"plain": 5},
        "states": {"succeeded": 5}, "spent_attempts": {}, "process_ends": {"0": 3},
        "faults": {"SIGKILL": 2}, "under_way": {"SIGKILL": {"0": 1, "3": 1}},
        "overlapping_effects": {}, "set_backs_took": {}, "rest_s": 1.0, "findings": [],
        "unhealed": [], "oddities": [], "misses": [],
    }  # fmt: skip
    return figures | changed


def test_reports_of_parts_add_up() -> None:
    other = part("b", at="2026-12-01", rest_s=4.0, under_way={"SIGKILL": {"3": 2}}, findings=["x"])
    whole = report.merged([part("a"), other])
    assert (whole["runs"], whole["minutes"], whole["rest_s"]) == (10, 4.0, 4.0)
    assert whole["faults"] == {"SIGKILL": 4}
    assert whole["under_way"] == {"SIGKILL": {"0": 1, "3": 3}}
    assert whole["findings"] == ["b: x"]
    assert "| SIGKILL | 4 | 3, 3 | 1 |" in report.render(whole)


def test_a_part_that_never_came_to_rest_is_told() -> None:
    whole = report.merged([part("a"), part("b", rest_s=None)])
    assert whole["unhealed"] == ["b: it never came to rest"]
