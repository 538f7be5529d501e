"""The tables of README.md and docs/performance.md are written from results, between marks."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import table

ROOT = Path(__file__).parent.parent
CONDITIONS = {"date": "2026-01-02", "cpus": 2, "python": "3.11.7", "postgresql": "15.18"}


@pytest.mark.parametrize(
    ("name", "mark"),
    [
        ("README.md", "figures"),
        ("docs/performance.md", "figures"),
        ("docs/performance.md", "peers"),
    ],
)
def test_each_page_has_its_marks(name: str, mark: str) -> None:
    text = (ROOT / name).read_text()
    written = table.between(text, mark, "| a table |")
    assert f"<!-- {mark}: begin -->\n| a table |\n<!-- {mark}: end -->" in written
    assert table.between(written, mark, "| a table |") == written


def test_a_page_without_marks_is_left_alone() -> None:
    with pytest.raises(ValueError, match="figures: begin"):
        table.between("# A page\n", "figures", "| a table |")


def test_a_row_without_figures_is_left_out() -> None:
    half = {"latency_notify_p50_ms": 4.1}
    found = table.ours({"flows3_per_s": 2202.0, **half, "conditions": CONDITIONS})
    assert "| three-step flows | 2,202 flows/s |" in found
    assert "SQLite" not in found
    assert "notify" not in found


def test_a_peer_that_failed_is_named_with_the_reason() -> None:
    entrants = {
        "ours": {"drain_per_s": 11_970.0, "settings": {"taken": {"concurrency": "200"}}},
        "theirs": {"settings": {}, "gaps": {"all": "not installed: no such version"}},
    }
    found = table.peers({"entrants": entrants, "conditions": CONDITIONS})
    assert "| ours (concurrency 200) | - | - | 11,970 |" in found
    assert "- Not measured: theirs, all: not installed: no such version" in found
