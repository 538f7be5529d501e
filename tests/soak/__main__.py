"""`python -m tests.soak`: let a fleet work, break it now and then, and say whether it grows."""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import psycopg

from tests.faults.campaign import Campaign
from tests.faults.evidence import Evidence
from tests.soak import report
from tests.soak.app import read_timings
from tests.soak.fleet import SoakFleet
from tests.soak.panels import picture_of
from tests.soak.plan import PARTS, draw_modest_plan, known_faults, part_of
from tests.soak.sampler import Sampler
from tests.soak.trends import (
    Check,
    Series,
    check_database,
    check_processes,
    check_rest,
    check_times,
)

AT_REST: Final = "at rest after"
"""What a campaign says when all runs have ended."""
_NAPS: Final = "select run_id, wake_at from workhorse.boundaries where name = 'nap'"
_AT_ONCE: Final = frozenset({"single", "keyed", "bulk", "async", "joined", "delayed"})
"""Ways whose runs are due when they are there, or by a delay that is noted."""


def main() -> int:
    given = _arguments()
    if given.render:
        report.render_files(report.load())
        return 0
    seed = random.SystemRandom().randrange(1_000_000) if given.seed is None else given.seed
    print(f"seed {seed}; again: python -m tests.soak --seed {seed} --minutes {given.minutes:g}")
    os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
    seconds = given.minutes * 60
    faults = known_faults()
    plan = draw_modest_plan(
        seed, faults, seconds=seconds, first_s=min(60.0, seconds / 5), every_s=given.every
    )
    runs = int(given.rate * seconds * 0.98)
    said: list[str] = []
    with SoakFleet(seed=seed, runs=runs, rate=given.rate, bad=given.bad) as fleet:
        sampler = Sampler(fleet)

        def say(line: str) -> None:
            print(line, flush=True)
            said.append(line)
            if AT_REST in line:
                sampler.stop()  # a last look, while all members are there and nothing is to do
                rest.append(sampler.take())
                naps.extend(_naps(fleet))

        rest: list[Any] = []
        naps: list[tuple[str, float]] = []
        sampler.start()
        try:
            result = Campaign(fleet, plan, say=say, faults=faults, seconds=seconds).run(seed)
        finally:
            sampler.stop()
        claims: Series = [(at, took) for at, took, _ in read_timings(fleet.claims)]
        spans = [(each.began, each.ended) for each in fleet.incidents]
        server = fleet.server.version
        starts = {member.name: member.starts for member in fleet.members}
    loaded = sampler.samples[:-1]
    latencies = latencies_of(result.evidence, naps)
    checks = [
        *check_rest(rest[0]),
        *check_processes(loaded),
        *check_database(loaded),
        *check_times(sorted(claims), latencies, spans),
        Check("samples", f"{len(loaded)}, {len(sampler.broken)} failed", not sampler.broken),
    ]
    began = loaded[0].at
    parts = {fault.name: part_of(fault) for fault in faults}
    picture = picture_of(
        loaded, [each for each in sorted(claims) if each[0] >= began], latencies,
        marks=_marks(said, parts, began), kinds=PARTS,
        title=f"{given.minutes:g} minutes of mixed load, broken every {given.every:g} s or so",
        subtitle=f"{len(result.evidence.runs):,} runs; {os.cpu_count()} cores for the fleet,"
        f" PostgreSQL {server}, the broker's emulator and all else on the machine; seed {seed}",
    )  # fmt: skip
    found = report.figures(
        result, checks, picture, server=server, minutes=given.minutes, starts=starts
    )
    if result.rest_s is None:
        found["findings"].append("the fleet never came to rest")
    found["findings"] += [f"sampling: {each}" for each in sampler.broken[:10]]
    report.write(found, given.out)
    if given.samples:
        given.samples.write_text(
            "".join(json.dumps(each.as_json()) + "\n" for each in sampler.samples)
        )
    print(report.render(found))
    if given.out == report.RESULTS:
        report.render_files(found)
    good = report.kept(found)
    print("all bounds and promises were kept" if good else f"NOT all was kept; seed {seed}")
    return 0 if good else 1


def latencies_of(found: Evidence, naps: Sequence[tuple[str, float]]) -> Series:
    """Return when runs started, or went on after a nap, and how many ms after they were due."""
    by_run = found.activations()
    due = {
        fields["run"]: found.runs[fields["run"]].created_at + fields["delay_ms"] / 1000
        for fields in found.asked
        if fields["what"] == "accepted" and fields["way"] in _AT_ONCE
        and fields["run"] in found.runs
    }  # fmt: skip
    series = [
        (by_run[run][0].started, 1000 * (by_run[run][0].started - at))
        for run, at in due.items()
        if run in by_run
    ]
    for run, at in naps:
        later = [one.started for one in by_run.get(run, ()) if one.started >= at]
        if later:
            series.append((later[0], 1000 * (later[0] - at)))
    return sorted((at, max(0.0, late)) for at, late in series)


def _naps(fleet: SoakFleet) -> list[tuple[str, float]]:
    offset = time.time() - time.monotonic()
    try:
        with fleet.admin() as connection:
            rows = connection.execute(_NAPS).fetchall()
    except psycopg.Error:
        return []
    return [(str(run), wake_at.timestamp() - offset) for run, wake_at in rows if wake_at]


def _marks(said: Sequence[str], kind_of: dict[str, int], began: float) -> list[tuple[float, int]]:
    """Return when faults were applied, by what was said: `  12.3 s  kind: name: ...`."""
    marks = []
    for line in said:
        at, _, rest = line.strip().partition(" s  ")
        words = rest.split(": ")
        if len(words) >= 3 and words[1] in kind_of:
            marks.append((began + float(at), kind_of[words[1]]))
    return marks


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=None, help="replays plan and load")
    parser.add_argument("--rate", type=float, default=10.0, help="enqueues a second")
    parser.add_argument("--every", type=float, default=15.0, help="seconds between two faults")
    parser.add_argument("--bad", type=int, default=8, help="bad handlers in a thousand runs")
    parser.add_argument("--out", type=Path, default=report.RESULTS, help="where figures go")
    parser.add_argument("--samples", type=Path, default=None, help="keep all samples, as lines")
    parser.add_argument("--render", action="store_true", help="write docs/soak.* and end")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
