"""A soak's figures as JSON, and docs/soak.md and docs/soak.svg, which are made of them."""

from __future__ import annotations

import json
import os
import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tests.faults.campaign import Result
from tests.faults.fleet import ROOT
from tests.soak.drawing import Picture, draw, from_json
from tests.soak.trends import Check

RESULTS: Final = ROOT / "tests" / "soak" / "results" / "latest.json"
PAGE: Final = ROOT / "docs" / "soak.md"
PLOT: Final = ROOT / "docs" / "soak.svg"
_BEGIN, _END = "<!-- figures: python -m tests.soak --render -->", "<!-- /figures -->"


def figures(
    result: Result,
    checks: Sequence[Check],
    picture: Picture,
    *,
    server: str,
    minutes: float,
    starts: dict[str, int],
) -> dict[str, Any]:
    """Return all that is worth keeping of a soak."""
    found = result.evidence
    return {
        "at": datetime.now(UTC).date().isoformat(),
        "seed": result.seed,
        "minutes": minutes,
        "python": platform.python_version(),
        "postgresql": server,
        "cores": os.cpu_count(),
        "runs": len(found.runs),
        "activations": result.verdict.activations,
        "states": dict(sorted(result.verdict.states.items())),
        "handlers": dict(
            sorted(Counter(run.task.removeprefix("faults.") for run in found.runs.values()).items())
        ),
        "ways": dict(
            sorted(
                Counter(
                    fields["way"] for fields in found.asked if fields["what"] == "accepted"
                ).items()
            )
        ),
        "spent_attempts": dict(sorted(result.verdict.reasons.items())),
        "faults": dict(sorted(result.times.items())),
        "starts": starts,
        "findings": [str(each) for each in (*result.verdict.findings, *result.unhealed)],
        "checks": [asdict(check) for check in checks],
        "picture": asdict(picture),
    }


def kept(figures: dict[str, Any]) -> bool:
    """Whether all bounds were kept, and all promises."""
    return not figures["findings"] and all(check["kept"] for check in figures["checks"])


def write(figures: dict[str, Any], path: Path = RESULTS) -> None:
    """Write figures to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, separators=(",", ":")).replace('},{"', '},\n{"') + "\n")


def render(figures: dict[str, Any]) -> str:
    """Return figures as Markdown."""
    bad = [check for check in figures["checks"] if not check["kept"]]
    verdict = (
        "all bounds and all promises were kept"
        if kept(figures)
        else f"{len(bad)} bounds and {len(figures['findings'])} promises were not kept"
    )
    lines = [
        (
            f"{figures['at']}, seed {figures['seed']}: {figures['minutes']:g} minutes on"
            f" {figures['cores']} cores, Python {figures['python']}, PostgreSQL"
            f" {figures['postgresql']}: **{verdict}**."
        ),
        "",
        "| what | |",
        "| --- | --- |",
        f"| runs in the store at the end | {figures['runs']:,} |",
        f"| calls of handlers | {figures['activations']:,} |",
        f"| how the runs ended | {_list(figures['states'])} |",
        f"| runs by handler | {_list(figures['handlers'])} |",
        f"| runs by the way they were enqueued | {_list(figures['ways'])} |",
        f"| attempts spent | {_list(figures['spent_attempts'])} |",
        f"| faults | {_list(figures['faults'])} |",
        f"| starts of processes | {_list(figures['starts'])} |",
        "",
        "| bound | second third to last third | |",
        "| --- | --- | --- |",
        *(
            f"| {check['name']} | {check['text']} | {'kept' if check['kept'] else '**broken**'} |"
            for check in figures["checks"]
        ),
    ]
    if figures["findings"]:
        lines += ["", *(f"- **not kept**: {finding}" for finding in figures["findings"])]
    if figures.get("note"):  # written by hand, beside what was looked into
        lines += ["", figures["note"]]
    return "\n".join(lines)


def render_files(figures: dict[str, Any], page: Path = PAGE, plot: Path = PLOT) -> None:
    """Write the plot, and the figures into the page."""
    plot.write_text(draw(from_json(figures["picture"])))
    text = page.read_text()
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    page.write_text(f"{before}{_BEGIN}\n\n{render(figures)}\n\n{_END}{after}")


def load(path: Path = RESULTS) -> dict[str, Any]:
    """Return the figures of the last soak."""
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _list(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "none"
