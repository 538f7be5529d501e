"""Explores farther than the tests do.

python -m tests.exploration --claims 4 --restores
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from tests.exploration.explorer import Explorer
from tests.exploration.steps import Bounds
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.base.migrating import migrate


def main() -> None:
    """Explore, and print how far it went, or a way that breaks a rule."""
    parser = argparse.ArgumentParser(prog="python -m tests.exploration", description=__doc__)
    parser.add_argument("--claims", type=int, default=3, help="the most claims (3)")
    parser.add_argument("--workers", type=int, default=2, help="how many workers (2)")
    parser.add_argument("--steps", type=int, help="the most steps; all that there are by default")
    parser.add_argument("--restores", action="store_true", help="the database may be set back once")
    parser.add_argument("--no-naps", action="store_true", help="without timers")
    given = parser.parse_args()
    bounds = Bounds(claims=given.claims, restores=given.restores, naps=not given.no_naps)
    clock = ManualClock()
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(f"sqlite:///{Path(folder) / 'explored.sqlite3'}", clock=clock)
        migrate(store)
        began = time.process_time()
        explored = Explorer(store, clock, bounds, workers=given.workers).explore(given.steps)
        print(f"{explored}; {time.process_time() - began:.1f} s of CPU time")
        for (kind, was, now), count in sorted(explored.changes.items()):
            print(f"  {kind}: {was} -> {now}: {count:,}")
        store.close()


if __name__ == "__main__":
    main()
