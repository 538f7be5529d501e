"""A campaign's figures as JSON, and what docs/guarantees.md shows of them."""

from __future__ import annotations

import json
import os
import platform
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tests.faults.campaign import Result
from tests.faults.fleet import ROOT

KEPT: Final = ROOT / "tests" / "faults" / "results" / "kept.json"
LATEST: Final = ROOT / "tests" / "faults" / "results" / "latest.json"
FULL: Final = ROOT / "tests" / "faults" / "results" / "full.json"
PAGE: Final = ROOT / "docs" / "guarantees.md"
_BEGIN, _END = "<!-- figures: python -m tests.faults --render -->", "<!-- /figures -->"


def figures(result: Result, *, server: str) -> dict[str, Any]:
    """Return all that is worth keeping of a campaign."""
    verdict, found = result.verdict, result.evidence
    overlaps: Counter[str] = Counter(overlap.why for overlap in verdict.overlaps)
    return {
        "at": datetime.now(UTC).date().isoformat(),
        "seed": result.seed,
        "minutes": round(result.seconds / 60, 1),
        "python": platform.python_version(),
        "postgresql": server,
        "cores": os.cpu_count(),
        "runs": len(found.runs),
        "accepted": sum(fields["what"] == "accepted" for fields in found.asked),
        "activations": verdict.activations,
        "handlers": dict(
            sorted(Counter(run.task.removeprefix("faults.") for run in found.runs.values()).items())
        ),
        "states": dict(sorted(verdict.states.items())),
        "spent_attempts": dict(sorted(verdict.reasons.items())),
        "process_ends": {str(code): count for code, count in sorted(result.exits.items())},
        "faults": dict(sorted(result.times.items())),
        "overlapping_effects": dict(sorted(overlaps.items())),
        "set_backs_took": dict(sorted(verdict.set_back.items())),
        "rest_s": None if result.rest_s is None else round(result.rest_s, 1),
        "findings": [str(finding) for finding in verdict.findings],
        "unhealed": result.unhealed,
    }


def write(kept: dict[str, Any], path: Path = LATEST) -> None:
    """Write figures to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kept, indent=2) + "\n")


def render(kept: dict[str, Any]) -> str:
    """Return figures as Markdown."""
    found = kept["findings"] + kept["unhealed"]
    lines = [
        (
            f"{kept['at']}, seed {kept['seed']}: {kept['minutes']} minutes on {kept['cores']}"
            f" cores, Python {kept['python']}, PostgreSQL {kept['postgresql']}."
        ),
        "",
        "| what | |",
        "| --- | --- |",
        f"| runs in the store at the end | {kept['runs']:,} |",
        f"| of them accepted by a producer's own record | {kept['accepted']:,} |",
        f"| calls of handlers | {kept['activations']:,} |",
        *([f"| runs by handler | {_list(kept['handlers'])} |"] if "handlers" in kept else []),
        f"| how the runs ended | {_list(kept['states'])} |",
        f"| attempts spent | {_list(kept['spent_attempts'])} |",
        f"| ends of processes, by exit code | {_list(kept['process_ends'])} |",
        f"| all at rest after the last fault | {kept['rest_s']} s |",
        f"| effects after a successor's start | {_list(kept['overlapping_effects'])} |",
        f"| what set-backs took | {_list(kept['set_backs_took'])} |",
        f"| **promises that were not kept** | **{len(found)}** |",
        "",
        "| fault | times |",
        "| --- | --- |",
        *(f"| {name} | {count} |" for name, count in kept["faults"].items()),
    ]
    if kept.get("note"):  # written by hand, beside a finding that was looked into
        lines += ["", kept["note"]]
    return "\n".join(lines)


def _list(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "none"


def render_page() -> None:
    """Put the figures that are kept into docs/guarantees.md: those of a full campaign, if any."""
    source = next(path for path in (FULL, KEPT, LATEST) if path.exists())
    text = PAGE.read_text()
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    shown = render(json.loads(source.read_text()))
    PAGE.write_text(f"{before}{_BEGIN}\n\n{shown}\n\n{_END}{after}")
