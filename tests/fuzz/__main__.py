"""`make fuzz`: a hundred thousand inputs, in bounded time; prints how many of each kind."""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
import traceback
from dataclasses import asdict
from typing import Any

from tests.fuzz.kind import FoundError, Kind, Tried, try_kind
from tests.fuzz.kinds import KINDS
from tests.fuzz.limits import DiedError, Note, apart

WHOLE = 100_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=WHOLE, help="how many, about")
    parser.add_argument("--seed", type=int, help="draws the same inputs as before")
    parser.add_argument("--kind", action="append", help="only this kind; may be repeated")
    parser.add_argument("--number", type=int, help="only the input of this number")
    parser.add_argument("--minutes", type=float, default=20, help="begin nothing after so long")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(10**9) if given.seed is None else given.seed
    logging.getLogger("workhorse").setLevel(logging.CRITICAL)
    print(f"seed {seed}", flush=True)
    began, count, bad = time.monotonic(), 0, 0

    for kind in KINDS:
        if given.kind and kind.name not in given.kind:
            continue

        def attempt(note: Note, kind: Kind = kind) -> dict[str, Any] | None:
            try:
                tried = try_kind(
                    kind,
                    inputs=max(1, kind.share * given.inputs // WHOLE),
                    of_seed=seed,
                    until=began + given.minutes * 60,
                    only=given.number,
                    note=note.write,
                )
            except FoundError as found:
                print(f"FOUND {found}", flush=True)
                traceback.print_exception(found.__cause__, limit=-8)
                return None
            return asdict(tried)

        try:
            answer = apart(attempt)
        except DiedError as error:
            print(f"FOUND kind {kind.name}: {error}", flush=True)
            answer = None
        if answer is None:
            bad += 1
            continue
        tried = Tried(**answer)
        count += tried.inputs
        print(
            f"{kind.name:12} {tried.inputs:7,} inputs, {tried.refused:7,} refused, "
            f"{tried.seconds:6.1f} s, the slowest {tried.slowest_s:6.3f} s",
            flush=True,
        )
    print(f"{count:,} inputs, {bad} kinds with findings, {time.monotonic() - began:.0f} s")
    if given.inputs >= WHOLE and not given.kind and count < WHOLE and not bad:
        print("that is less than was asked for: the time was over")
        return 3
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
