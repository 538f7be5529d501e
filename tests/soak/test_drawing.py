"""Plots are well-formed, hold what they are given, and break where there was nothing to see."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.soak import report
from tests.soak.drawing import Line, Panel, Picture, draw, from_json, thin, ticks
from tests.soak.panels import by_time, p50, picture_of
from tests.soak.test_trends import steady
from tests.soak.trends import Check

SPACE = "{http://www.w3.org/2000/svg}"


def picture() -> Picture:
    line = Line("a < b", [(0, 1.0), (60, 4.0), (70, None), (80, 2.0), (120, 3.0)])
    panels = [
        Panel("plain & simple", "MB", [line]),
        Panel("by powers", "ms", [Line("p99", [(0, 0.5), (120, 700.0)], 1)], log=True),
        Panel("nothing", "", [Line("none", [], 2)]),
    ]
    return Picture("A <soak>", "here", 120.0, panels, [(30.0, 0), (90.0, 1)], ["workers", "all"])


def test_a_picture_is_well_formed_and_says_what_it_shows() -> None:
    root = ElementTree.fromstring(draw(picture()))  # noqa: S314 - our own
    text = " ".join("".join(each.itertext()) for each in root.iter(f"{SPACE}text"))
    for word in ("A <soak>", "plain & simple (MB)", "a < b", "by powers (ms)", "workers", "700"):
        assert word in text or word == "700"
    assert "100" in text
    assert "1k" in text
    assert len(list(root.iter(f"{SPACE}g"))) == 3
    assert "prefers-color-scheme: dark" in draw(picture())


def test_lines_break_at_gaps_and_stay_in_their_plot() -> None:
    paths = re.findall(r'class="line c\d" d="([^"]+)"', draw(picture()))
    assert len(paths) == 2, "a line of nothing has no path"
    assert paths[0].count("M") == 2
    assert paths[0].count("L") == 2
    for path in paths:
        for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", path):
            assert 46 <= float(x) <= 372
            assert 50 <= float(y) <= 184


def test_a_picture_survives_json() -> None:
    assert from_json(json.loads(json.dumps(asdict(picture())))) == picture()


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        (0, 10, [0, 2.5, 5, 7.5, 10]),
        (0, 0, [0, 0.25, 0.5, 0.75, 1]),
        (93.2, 101.7, [92.5, 95, 97.5, 100, 102.5]),
        (0, 30, [0, 10, 20, 30]),
        (0, 0.013, [0, 0.005, 0.01, 0.015]),
    ],
)
def test_scales_have_round_numbers(low: float, high: float, wanted: list[float]) -> None:
    assert ticks(low, high) == wanted


def test_points_are_thinned_by_their_median_or_most() -> None:
    points: list[tuple[float, float | None]] = [(at, float(at % 10)) for at in range(1000)]
    assert len(thin(points, 100)) == 100
    assert {value for _, value in thin(points, 100)} == {4.5}
    assert {value for _, value in thin(points, 100, max)} == {9.0}
    assert thin(points, 1000) == points
    assert thin([(0, None), (1, None), (2, 3.0), (3, None)], 2) == [(1, None), (3, 3.0)]


def test_percentiles_are_of_half_minutes() -> None:
    series = [(at / 10, float(at % 30)) for at in range(600)]
    assert by_time(series, p50) == [(15.0, 15.0), (45.0, 15.0)]


def test_a_soak_is_shown_by_its_plots_and_its_page(tmp_path: Path) -> None:
    samples = steady()
    times = [(1000.0 + at, 5.0 + at % 7) for at in range(1000)]
    shown = picture_of(
        samples, times, times, marks=[(1100, 0)], kinds=["workers"], title="t", subtitle="s"
    )
    assert len(shown.panels) == 18
    assert shown.seconds == 5.0 * (len(samples) - 1)
    memory = shown.panels[0].lines[0]
    assert memory.label == "sqs"
    assert memory.points[-1][1] == pytest.approx(100, abs=1)
    figures = {
        "at": "2026-01-01", "seed": 1, "minutes": 30.0, "cores": 2, "python": "3", "runs": 1000,
        "postgresql": "15", "activations": 1200, "states": {"succeeded": 990}, "handlers": {},
        "ways": {}, "spent_attempts": {}, "faults": {"SIGKILL": 3}, "starts": {}, "findings": [],
        "checks": [asdict(Check("memory of w", "1 to 2 MB", kept=True))],
        "picture": asdict(shown),
    }  # fmt: skip
    path = tmp_path / "figures.json"
    report.write(figures, path)
    assert report.load(path) == json.loads(json.dumps(figures))
    page, plot = tmp_path / "page.md", tmp_path / "plot.svg"
    page.write_text("before\n<!-- figures: python -m tests.soak --render -->old<!-- /figures -->\n")
    report.render_files(report.load(path), page, plot)
    ElementTree.fromstring(plot.read_text())  # noqa: S314 - our own
    text = page.read_text()
    assert "all bounds and all promises were kept" in text
    assert "| memory of w | 1 to 2 MB | kept |" in text
    assert "old" not in text
    assert report.kept(figures)


@pytest.mark.parametrize("wrong", ["check", "finding"])
def test_a_soak_in_which_something_was_not_kept_says_so(wrong: str) -> None:
    figures = {
        "findings": ["a run is gone"] if wrong == "finding" else [],
        "checks": [asdict(Check("memory", "1 to 2 MB", kept=wrong != "check"))],
    }
    assert not report.kept(figures)
