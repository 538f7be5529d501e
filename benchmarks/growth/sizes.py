"""Case 16: the same calls on small tables and on large ones, alternating."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from benchmarks.growth.acts import Timings, end, lease_of, put, reach, take
from benchmarks.workloads import percentile
from workhorse.store.base.database import Store
from workhorse.store.lifecycle.sweeping import promote, recover
from workhorse.store.live.leasing import Renewal, renew

BATCH = 10
"""Runs a call: what a worker with a few free slots takes."""
WARM_UP = 20


@dataclass(frozen=True)
class Compared:
    """A call on small tables and on large ones, in ms."""

    name: str
    small_p50: float
    small_p99: float
    large_p50: float
    large_p99: float

    @property
    def ratio(self) -> float:
        """How many times as much it costs on large tables."""
        return self.large_p50 / self.small_p50


def compare(small: Store, large: Store, rounds: int) -> list[Compared]:
    """Do the same in turns on both, and compare what each call took."""
    _let_recovery_begin(small)
    timings = {small: Timings(), large: Timings()}
    for number in range(rounds + WARM_UP):
        if number == WARM_UP:  # caches are warm and statements prepared
            timings = {small: Timings(), large: Timings()}
        for store in (small, large) if number % 2 else (large, small):
            _round(store, timings[store])
    return [
        Compared(
            name,
            percentile(at_small, 0.5),
            percentile(at_small, 0.99),
            percentile(timings[large].by_name[name], 0.5),
            percentile(timings[large].by_name[name], 0.99),
        )
        for name, at_small in timings[small].by_name.items()
    ]


def _let_recovery_begin(store: Store) -> None:
    """Wait until the server is up for long enough: recovery leaves leases alone before."""
    if store.kind == "postgresql":
        with store.engine.connect() as conn:
            sql = "select extract(epoch from now() - pg_postmaster_start_time())::float"
            up = conn.exec_driver_sql(sql).scalar_one()
        time.sleep(max(0.0, 10.5 - up))


def _round(store: Store, timings: Timings) -> None:
    fresh = put(store, 2 * BATCH)[BATCH:]
    named = timings.measure("claim by ids", lambda: take(store, *fresh, free=BATCH))
    found = timings.measure("claim by scan", lambda: take(store, free=BATCH, scan=True))
    claimed = [*named.runs, *found.runs]
    leases = [lease_of(run) for run in claimed]
    answers = timings.measure("renew", lambda: store.run(renew, leases, 600_000))
    timings.measure("settle", lambda: end(store, claimed))

    put(store, BATCH, delay_ms=1)
    time.sleep(0.002)
    due = timings.measure("promote", lambda: store.run(promote))
    lost = take(store, *(hint.run_id for hint in due.hints), free=BATCH, lease_ms=1)
    time.sleep(0.002)
    again = timings.measure(
        "recover", lambda: store.run(recover, reach=reach, draw=random.Random(1))
    )

    done = (len(named.runs), len(found.runs), due.count, len(lost.runs), again.count)
    if done != (BATCH,) * 5 or set(answers.values()) != {Renewal.RENEWED}:
        raise RuntimeError(f"a round did not do what it is to do: {done}")
