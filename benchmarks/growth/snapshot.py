"""Case 15: a fleet at work while somebody holds a snapshot open, and nothing dead can go.

Time is scaled down: what counts is how many runs end under the snapshot. An hour at 200 runs a
second is 720,000 of them. One worker of the fleet is looked at, by its own clock: it claims every
50 ms, and looks at the head of the queue as often as a worker does.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sqlalchemy import text

from benchmarks.growth.acts import Timings, end, lease_of, put, reach, take
from workhorse.domain.runs import ClaimedRun
from workhorse.runtime.claims.sweep import Sweep
from workhorse.store.base.database import Store
from workhorse.store.lifecycle.sweeping import promote, recover
from workhorse.store.live.leasing import renew

OTHERS = 100
"""Runs that the rest of the fleet takes between two claims of the one that is looked at."""
OWN = 10
CLAIM_EACH_MS = 50.0
RENEW_EACH = 18
"""Claims between two heartbeats; so often that an hour's are made in the time of the snapshot."""
HELD = 50
"""Leases that are held all the time, and renewed."""
SWEEP_EACH = 10
"""Claims between two passes of maintenance."""
CLEAN_WITHIN_S = 90.0
FEW_DEAD = 1_500
"""Dead rows that autovacuum does not come for."""


@dataclass(frozen=True)
class Sizes:
    """What `live` takes, in MB, and the dead rows in it."""

    table_mb: float
    indexes_mb: float
    dead: int


@dataclass
class Phase:
    """A part of the workload: how long calls took in it, and the sizes at its end."""

    name: str
    timings: Timings = field(default_factory=Timings)
    sizes: Sizes = Sizes(0, 0, 0)


class Fleet:
    """One worker that is looked at, and the rest.

    Args:
        backlog: Runs that are always pending. With none, each scan comes to the queue's end.
    """

    def __init__(self, store: Store, backlog: int) -> None:
        self._store = store
        self._now = 0.0
        self._own = _sweep()
        self._rest = _sweep()
        self._cycles = 0
        put(store, max(backlog, HELD) + HELD)
        self._held: list[ClaimedRun] = take(store, free=HELD, scan=True).runs
        if not backlog:
            end(store, take(store, free=HELD, scan=True).runs)

    def work(self, runs: int, phase: Phase) -> None:
        """Let so many runs end."""
        for _ in range(runs // (OTHERS + OWN)):
            self._cycle(phase.timings)
        phase.sizes = sizes(self._store)

    def relieve(self) -> None:
        """End what was held all the time: new leases take their place."""
        put(self._store, HELD)
        held, self._held = self._held, take(self._store, free=HELD, scan=True).runs
        end(self._store, held)

    def _cycle(self, timings: Timings) -> None:
        store = self._store
        self._cycles += 1
        self._now += CLAIM_EACH_MS
        put(store, OTHERS)
        end(store, self._claim(self._rest, OTHERS, Timings()))
        put(store, OWN)
        end(store, self._claim(self._own, OWN, timings))
        if self._cycles % RENEW_EACH == 0:
            leases = [lease_of(run) for run in self._held]
            timings.measure("renew", lambda: store.run(renew, leases, 600_000))
        if self._cycles % SWEEP_EACH == 0:
            put(store, OWN, delay_ms=1)
            time.sleep(0.002)
            due = timings.measure("promote", lambda: store.run(promote))
            end(store, take(store, *(hint.run_id for hint in due.hints), free=OWN).runs)
            draw = random.Random(1)
            timings.measure("recover", lambda: store.run(recover, reach=reach, draw=draw))

    def _claim(self, sweep: Sweep, wanted: int, timings: Timings) -> list[ClaimedRun]:
        """Claim as a worker does, with a few slots more than there are new runs."""
        got: list[ClaimedRun] = []
        while len(got) < wanted:
            cursor = sweep.start(self._now)
            asked = wanted - len(got)
            with timings.timed("claim"):
                claim = take(self._store, free=asked, scan=True, cursor=cursor)
            took_ms = timings.by_name["claim"][-1]
            sweep.note(claim, asked=asked, now=self._now, took_ms=took_ms)
            got += claim.runs
            if not claim.runs:
                sweep.start_now()
        return got


def _sweep() -> Sweep:
    return Sweep(poll_ms=50, idle_ms=1_000, head_ms=1_000)


def under_a_snapshot(store: Store, runs: int, *, backlog: int) -> list[Phase]:
    """Work before, during and after an open snapshot; `runs` end during it.

    The table is cleaned by the server's autovacuum alone.
    """
    phases = [Phase("before"), Phase("during"), Phase("after")]
    fleet = Fleet(store, backlog)
    fleet.work(runs // 5, phases[0])
    with _snapshot(store):
        fleet.work(runs, phases[1])
    _wait_until_clean(store)
    # What stands at the table's end holds it up: pending runs have their turn, then held ones end.
    fleet.work(runs // 10, phases[2])
    fleet.relieve()
    fleet.work(runs // 10, phases[2])
    _wait_until_clean(store)
    phases[2].sizes = sizes(store)
    return phases


@contextmanager
def _snapshot(store: Store) -> Iterator[None]:
    """Hold a repeatable-read transaction open that has seen the tables, and has an id."""
    other = store.sibling(connections=1, bounded=False)
    with other.engine.connect() as conn:
        conn = conn.execution_options(isolation_level="REPEATABLE READ")
        with conn.begin():
            conn.execute(text("select pg_current_xact_id()"))
            conn.execute(text(f'select count(*) from "{store.schema}".live'))  # noqa: S608
            yield
    other.close()


def sizes(store: Store) -> Sizes:
    """Return what `live` takes now."""
    sql = text(
        "select pg_table_size(c.oid) / 1048576.0, pg_indexes_size(c.oid) / 1048576.0, n_dead_tup"
        "  from pg_class c join pg_stat_all_tables s on s.relid = c.oid"
        " where c.oid = (:name)::regclass"
    )
    with store.engine.connect() as conn:
        table, indexes, dead = conn.execute(sql, {"name": f'"{store.schema}".live'}).one()
    return Sizes(round(float(table), 2), round(float(indexes), 2), int(dead))


def _wait_until_clean(store: Store) -> None:
    """Wait until autovacuum has been there, a bounded time."""
    until = time.monotonic() + CLEAN_WITHIN_S
    while sizes(store).dead > FEW_DEAD and time.monotonic() < until:
        time.sleep(0.5)
