"""A campaign's figures as JSON, and what docs/guarantees.md shows of them."""

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

KEPT: Final = ROOT / "tests" / "faults" / "results" / "kept.json"
LATEST: Final = ROOT / "tests" / "faults" / "results" / "latest.json"
FULL: Final = ROOT / "tests" / "faults" / "results" / "full.json"
PARTS: Final = ROOT / "tests" / "faults" / "results" / "full"
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
        "under_way": {
            name: {str(calls): often for calls, often in sorted(counted.items())}
            for name, counted in sorted(result.under_way.items())
        },
        "overlapping_effects": dict(sorted(overlaps.items())),
        "set_backs_took": dict(sorted(verdict.set_back.items())),
        "rest_s": None if result.rest_s is None else round(result.rest_s, 1),
        "findings": [str(finding) for finding in verdict.findings],
        # What they said last is told where the campaign runs: it is full of places of that machine.
        "unhealed": [_first(text) for text in result.unhealed],
        "oddities": [_first(text) for text in result.oddities],
        "misses": [_first(text) for text in result.misses],
    }


def _first(text: str) -> str:
    return text.partition("\n")[0]


def cases(result: Result) -> list[dict[str, Any]]:
    """Return all that is known of each run that a finding names, to look into."""
    found, shown = result.evidence, []
    for finding in result.verdict.findings:
        run = finding.run
        shown.append(
            {
                "finding": str(finding),
                "run": found.runs.get(run),
                "live": found.live.get(run),
                "outcome": found.outcomes.get(run),
                "attempts": [each for each in found.attempts if each.run == run],
                "boundaries": [each for each in found.boundaries if each.run == run],
                "lines": [asdict(line) for line in found.lines if line.run == run],
                "gaps": [asdict(gap) for gap in found.gaps()],
                "asked": [fields for fields in found.asked if fields.get("run") == run],
                "seen": [each for each in found.seen if each[1] == run],
                "spans": [asdict(span) for span in found.spans],
            }
        )
    return shown


_SUMS: Final = (
    "runs", "accepted", "activations", "handlers", "states", "spent_attempts", "process_ends",
    "faults", "overlapping_effects", "set_backs_took",
)  # fmt: skip


def merged(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of campaigns as those of one."""
    first = parts[0]
    whole: dict[str, Any] = {
        "at": max(part["at"] for part in parts),
        "parts": len(parts),
        **{name: first[name] for name in ("seed", "python", "postgresql", "cores")},
        "minutes": round(sum(part["minutes"] for part in parts), 1),
        "rest_s": max(
            (part["rest_s"] for part in parts if part["rest_s"] is not None), default=None
        ),
    }
    for name in _SUMS:
        each = [part[name] for part in parts]
        whole[name] = sum(each) if isinstance(each[0], int) else _added(each)
    names = {name for part in parts for name in part["under_way"]}
    whole["under_way"] = {
        name: _added([part["under_way"].get(name, {}) for part in parts]) for name in sorted(names)
    }
    for name in ("findings", "unhealed", "oddities", "misses"):
        whole[name] = [f"{part['name']}: {text}" for part in parts for text in part[name]]
    whole["unhealed"] += [
        f"{part['name']}: it never came to rest" for part in parts if part["rest_s"] is None
    ]
    return whole


def _added(counts: Sequence[dict[str, int]]) -> dict[str, int]:
    whole: Counter[str] = Counter()
    for each in counts:
        whole.update(each)
    return dict(sorted(whole.items()))


def write(kept: dict[str, Any], path: Path = LATEST) -> None:
    """Write figures to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kept, indent=2) + "\n")


def render(kept: dict[str, Any]) -> str:
    """Return figures as Markdown."""
    found = kept["findings"] + kept["unhealed"]
    lines = [
        (
            f"{kept['at']}, seed {kept['seed']}: {_length(kept)} on {kept['cores']} cores,"
            f" Python {kept['python']}, PostgreSQL {kept['postgresql']}."
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
        *(
            [f"| faults that the driver itself could not apply, or undo at once | {len(misses)} |"]
            if (misses := kept.get("misses", []))
            else []
        ),
        f"| **promises that were not kept** | **{len(found)}** |",
        "",
        "| fault | times | calls under way when it struck: median, most | struck with none |",
        "| --- | --- | --- | --- |",
        *(
            f"| {name} | {count} | {_spread(kept.get('under_way', {}).get(name, {}))} |"
            for name, count in kept["faults"].items()
        ),
    ]
    if kept.get("note"):  # written by hand, beside a finding that was looked into
        lines += ["", kept["note"]]
    return "\n".join(lines)


def _length(kept: dict[str, Any]) -> str:
    if "parts" not in kept:
        return f"{kept['minutes']} minutes"
    return f"{kept['parts']} campaigns of {kept['minutes']} minutes together, several at a time"


def _spread(counts: dict[str, int]) -> str:
    """Return the median and the most of counted numbers, and how often it was zero."""
    each = sorted(Counter({int(calls): often for calls, often in counts.items()}).elements())
    if not each:
        return "? | ?"
    return f"{each[len(each) // 2]}, {each[-1]} | {counts.get('0', 0)}"


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
