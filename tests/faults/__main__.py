"""`python -m tests.faults`: run a campaign, print what happens, and say whether all was kept."""

from __future__ import annotations

import argparse
import os
import random
import sys

from tests.faults import report
from tests.faults.campaign import Campaign
from tests.faults.faults import load
from tests.faults.fleet import Fleet
from tests.faults.plan import draw_plan, show


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="replays a plan")
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--times", type=int, default=None, help="how often each fault comes")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--bad", type=int, default=25, help="bad handlers in a thousand runs")
    parser.add_argument("--millis", type=int, default=300, help="the longest work of a handler")
    parser.add_argument("--only", default="", help="faults whose names hold one of these words (,)")
    parser.add_argument("--full", action="store_true", help="each fault at least 200 times")
    parser.add_argument("--plan", action="store_true", help="print the plan and end")
    parser.add_argument("--render", action="store_true", help="write docs/guarantees.md and end")
    parser.add_argument("--plant", default="", help="plant a bug of planted.py in the workers")
    given = parser.parse_args()
    if given.render:
        report.render_page()
        return 0
    seed = random.SystemRandom().randrange(1_000_000) if given.seed is None else given.seed
    words = [word.strip() for word in given.only.split(",") if word.strip()]
    faults = [fault for fault in load() if not words or any(word in fault.name for word in words)]
    times = given.times
    minutes, runs = given.minutes, given.runs
    if given.full:
        times = times or 200
        most = max(sum(each.kind == fault.kind for each in faults) for fault in faults)
        minutes = max(minutes, most * times * 7.5 / 60)
        runs = max(runs, int(minutes * 60 * 11))
    plan = draw_plan(seed, faults, seconds=minutes * 60, times=times)
    print(f"seed {seed}; again: python -m tests.faults {' '.join(_again(sys.argv[1:], seed))}")
    if given.plan:
        print(show(plan))
        return 0
    os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
    env = {"FAULTS_PLANTED": given.plant} if given.plant else {}
    with Fleet(
        seed=seed, runs=runs, rate=runs / (minutes * 60 * 0.95), workers=given.workers,
        bad=given.bad, millis=given.millis, env=env,
    ) as fleet:  # fmt: skip
        campaign = Campaign(
            fleet, plan, say=lambda line: print(line, flush=True), seconds=minutes * 60
        )
        result = campaign.run(seed)
        server = fleet.server.version
    kept = report.figures(result, server=server)
    report.write(kept, report.FULL if given.full else report.LATEST)
    print(report.render(kept))
    for overlap in result.verdict.overlaps:
        print(f"overlap: {overlap}")
    for finding in (*result.verdict.findings, *result.unhealed):
        print(f"NOT KEPT: {finding}")
    print("all promises were kept" if result.kept else f"NOT all promises were kept; seed {seed}")
    return 0 if result.kept else 1


def _again(words: list[str], seed: int) -> list[str]:
    return words if "--seed" in words else ["--seed", str(seed), *words]


if __name__ == "__main__":
    sys.exit(main())
