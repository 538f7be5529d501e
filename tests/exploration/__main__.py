"""Explores farther than the tests do; `make explore` calls it.

python -m tests.exploration                        # what CI explores, and then with a set-back
python -m tests.exploration --claims 4 --restores  # farther
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.exploration.explorer import Explorer, FoundError
from tests.exploration.steps import Bounds
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.base.migrating import migrate

USUAL: Final = (Bounds(claims=3), Bounds(claims=2, restores=True, naps=False))
"""Both are complete: a minute of CPU time."""


def main() -> int:
    """Explore, and print how far it went, or a way that breaks a rule."""
    parser = argparse.ArgumentParser(prog="python -m tests.exploration")
    parser.add_argument("--claims", type=int, help="the most claims (3)")
    parser.add_argument("--workers", type=int, default=2, help="how many workers (2)")
    parser.add_argument("--steps", type=int, help="the most steps; all that there are by default")
    parser.add_argument("--restores", action="store_true", help="the database may be set back once")
    parser.add_argument("--no-naps", action="store_true", help="without timers")
    given = parser.parse_args()
    chosen: Sequence[Bounds] = USUAL
    if given.claims or given.restores or given.no_naps:
        claims = given.claims or 3
        chosen = [Bounds(claims=claims, restores=given.restores, naps=not given.no_naps)]
    for bounds in chosen:
        print(f"{bounds}, {given.workers} workers", flush=True)
        try:
            _explore(bounds, given.workers, given.steps)
        except FoundError as found:
            print(f"a rule is broken {found}")
            return 1
    return 0


def _explore(bounds: Bounds, workers: int, steps: int | None) -> None:
    clock = ManualClock()
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(f"sqlite:///{Path(folder) / 'explored.sqlite3'}", clock=clock)
        migrate(store)
        began = time.process_time()
        try:
            explored = Explorer(store, clock, bounds, workers=workers).explore(steps)
        finally:
            store.close()
        print(f"  {explored}; {time.process_time() - began:.0f} s of CPU time")
        for (kind, was, now), count in sorted(explored.changes.items()):
            print(f"  {kind}: {was} -> {now}: {count:,}")


if __name__ == "__main__":
    sys.exit(main())
