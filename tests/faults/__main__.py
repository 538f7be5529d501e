"""`python -m tests.faults`: run a campaign, print what happens, and say whether all was kept."""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.faults import report
from tests.faults.campaign import Campaign, Result
from tests.faults.faults import Fault, load
from tests.faults.fleet import Fleet
from tests.faults.parts import TIMES, Part, parts, report_of, run_all
from tests.faults.plan import draw_plan, show
from tests.faults.wires import CLOCK, POOLER, WIRED
from tests.faults.wires.moving import MISSING as NO_CLOCKS
from tests.support.pgbouncer import MISSING as NO_POOLER
from tools.fault_tools import faketime_library, pgbouncer

FULL_RATE = 6.0
"""Enqueues a second of a part of a full run."""
FULL_MILLIS = 2400
"""The longest work of its handlers, so that several are under way when a fault strikes."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="replays a plan")
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--runs", type=int, default=10_000, help="that are accepted at least")
    parser.add_argument("--times", type=int, default=None, help="how often each fault comes")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--bad", type=int, default=25, help="bad handlers in a thousand runs")
    parser.add_argument("--millis", type=int, default=600, help="the longest work of a handler")
    parser.add_argument("--only", default="", help="faults whose names hold one of these words (,)")
    parser.add_argument("--full", action="store_true", help="each fault at least 200 times")
    parser.add_argument("--part", default="", help="of a full run: this part alone")
    parser.add_argument(
        "--anew", action="store_true", help="of a full run: parts that are done too"
    )
    parser.add_argument("--at-once", type=int, default=3, help="of a full run: parts at a time")
    parser.add_argument("--plan", action="store_true", help="print the plan and end")
    parser.add_argument("--render", action="store_true", help="write docs/guarantees.md and end")
    parser.add_argument("--pooler", action="store_true", help="a PgBouncer before the database")
    parser.add_argument("--plant", default="", help="plant a bug of planted.py in the workers")
    given = parser.parse_args()
    if given.render:
        report.render_page()
        return 0
    words = [word.strip() for word in given.only.split(",") if word.strip()]
    faults = [fault for fault in load() if not words or any(word in fault.name for word in words)]
    if not (given.pooler or given.full):
        faults = [fault for fault in faults if fault.kind != POOLER]
    for tool in left_out():
        print(f"left out: {tool}")
    seed = random.SystemRandom().randrange(1_000_000) if given.seed is None else given.seed
    print(f"seed {seed}; again: python -m tests.faults {' '.join(_again(sys.argv[1:], seed))}")
    os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
    if given.full:
        known = parts(faults, given.times or TIMES)
        if given.part:
            (part,) = [part for part in known if part.name == given.part]
            return _run_part(part, known.index(part), faults, seed, given)
        return _run_parts(known, seed, given)
    seconds = given.minutes * 60
    plan = draw_plan(seed, faults, seconds=seconds, times=given.times)
    if given.plan:
        print(show(plan))
        return 0
    # Some are refused while the database is away, and do not count.
    rate = 1.25 * given.runs / (seconds * 0.95)
    result, server = _run(plan, seed, rate, faults, given, seconds=seconds, runs=given.runs)
    kept = report.figures(result, server=server)
    report.write(kept, report.LATEST)
    _tell(kept, result, seed)
    return 0 if result.kept else 1


def _run(
    plan: Sequence[Any],
    seed: int,
    rate: float,
    faults: Sequence[type[Fault]],
    given: argparse.Namespace,
    *,
    seconds: float,
    runs: int,
    millis: int | None = None,
    fleet: Mapping[str, Any] | None = None,
) -> tuple[Result, str]:
    env = {"FAULTS_PLANTED": given.plant} if given.plant else {}
    more = {"workers": given.workers, **(fleet or {})}
    with Fleet(
        seed=seed, runs=10**7, rate=rate, producers=3, bad=given.bad,
        millis=millis or given.millis, env=env, wired=any(step.kind in WIRED for step in plan),
        pooler=given.pooler or any(step.kind == POOLER for step in plan),
        clocks=any(step.kind == CLOCK for step in plan), **more,
    ) as started:  # fmt: skip
        campaign = Campaign(
            started, plan, say=lambda line: print(line, flush=True), faults=faults,
            seconds=seconds, runs=runs,
        )  # fmt: skip
        return campaign.run(seed), started.server.version


def _run_part(
    part: Part, nth: int, faults: Sequence[type[Fault]], seed: int, given: argparse.Namespace
) -> int:
    seed += nth
    plan = draw_plan(seed, faults, seconds=part.seconds, times=part.times)
    if given.plan:
        print(show(plan))
        return 0
    result, server = _run(
        plan, seed, FULL_RATE, faults, given, seconds=part.seconds, runs=0, millis=FULL_MILLIS,
        fleet=part.fleet,
    )  # fmt: skip
    kept = {"name": part.name, **report.figures(result, server=server)}
    report.write(kept, report_of(report.PARTS, part))
    _tell(kept, result, seed)
    return 0 if result.kept else 1


def _run_parts(known: Sequence[Part], seed: int, given: argparse.Namespace) -> int:
    if given.plan:
        for part in known:
            print(f"{part.name}: about {part.seconds / 60:.0f} minutes, {part.times}")
        return 0
    logs = Path(tempfile.mkdtemp(prefix="wh-faults-full-"))
    run_all(known, seed, report.PARTS, logs, at_once=given.at_once, anew=given.anew)
    left = [part.name for part in known if not report_of(report.PARTS, part).exists()]
    if left:
        print(f"without a report: {', '.join(left)}; `--full` does these alone")
        return 1
    # Also those of parts that were done besides.
    done = sorted(report.PARTS.glob("*.json"))
    kept = report.merged([json.loads(path.read_text()) for path in done])
    report.write(kept, report.FULL)
    report.render_page()
    print(report.render(kept))
    found = [*kept["findings"], *kept["unhealed"]]
    for finding in found:
        print(f"NOT KEPT: {finding}")
    return 1 if found else 0


def _tell(kept: Mapping[str, Any], result: Result, seed: int) -> None:
    print(report.render(dict(kept)))
    for overlap in result.verdict.overlaps:
        print(f"overlap: {overlap}")
    for oddity in result.oddities:
        print(f"looked into: {oddity}")
    for miss in result.misses:
        print(f"not applied, or not undone at once: {miss}")
    for finding in (*result.verdict.findings, *result.unhealed):
        print(f"NOT KEPT: {finding}")
    if result.verdict.findings:
        path = Path(tempfile.gettempdir()) / f"wh-faults-{seed}-cases.json"
        path.write_text(json.dumps(report.cases(result), indent=1, default=str))
        print(f"all that is known of these runs: {path}")
    print("all promises were kept" if result.kept else f"NOT all promises were kept; seed {seed}")


def left_out() -> list[str]:
    """Return what is missing here for some of the faults, and how to get it."""
    return [
        *([] if pgbouncer() is not None else [NO_POOLER]),
        *([] if faketime_library() is not None else [NO_CLOCKS]),
    ]


def _again(words: list[str], seed: int) -> list[str]:
    return words if "--seed" in words else ["--seed", str(seed), *words]


if __name__ == "__main__":
    sys.exit(main())
