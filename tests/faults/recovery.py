"""How soon a fleet is back to its speed after PostgreSQL was away, without a restart of anything.

    python -m tests.faults.recovery                 both ways, 5 repetitions each: 22 minutes
    python -m tests.faults.recovery --only away --repeat 1

Three workers are fed at half of what they were measured to take. The median of the finished runs of
each second in the minute before is the base; then PostgreSQL is away for 30 s, or loses five
sessions a second for a minute. It counts how long it takes until five seconds begin whose median is
at 95 % of the base: a median, since a burst that works off what has waited is no speed. That no
process was restarted is checked: the same ones are there at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import psycopg

from tests.faults.faults.postgres import kill_backends
from tests.faults.fleet import ROOT, Fleet
from workhorse.app import Workhorse
from workhorse.errors import StoreUnavailableError

RESULTS: Final = ROOT / "benchmarks" / "results" / "fault_recovery.json"
WITHIN_S: Final = 15.0
SHARE: Final = 0.95
_WINDOW_S: Final = 5
_MOST_S: Final = 90
SETTLES_S: Final = 10
"""Before the minute that the base is taken of: what waited is worked off, and the rate is even."""


@dataclass(frozen=True)
class Recovery:
    """One repetition."""

    way: str
    base: float
    """Finished runs a second: the median of the minute before."""
    seconds: float | None
    """From the heal until the speed was back; None where it did not come back in time."""
    restarts: int

    @property
    def good(self) -> bool:
        """Whether it is as it should be."""
        return self.seconds is not None and self.seconds <= WITHIN_S and self.restarts == 0


class Feed:
    """Enqueues at a steady rate, and makes up for nothing that an outage took from it."""

    def __init__(self, fleet: Fleet) -> None:
        self._app = Workhorse(
            database_url=fleet.url,
            lane="sqs",
            aws_endpoint_url=fleet.broker.url,
            aws_region="us-east-1",
        )

        @self._app.task("faults.bare", queue="work")
        def bare(payload: int) -> None:
            raise AssertionError("a worker runs it")

        self._task = bare
        self._rate = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._feed)

    def fill(self, count: int) -> None:
        """Enqueue so many at once."""
        self._app.enqueue_many([self._task.prepare(0) for _ in range(count)])

    def start(self, rate: float) -> None:
        """Enqueue so many a second from now on."""
        self._rate = rate
        self._thread.start()

    def close(self) -> None:
        """End it."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        self._app.close()

    def _feed(self) -> None:
        every, due = 0.1, time.monotonic()
        owed = 0.0
        while not self._over.is_set():
            due = max(due + every, time.monotonic() - every)
            owed += self._rate * every
            count, owed = int(owed), owed - int(owed)
            try:
                if count:
                    self.fill(count)
            except StoreUnavailableError:
                owed = 0.0
            self._over.wait(max(0.0, due - time.monotonic()))


def _finished(fleet: Fleet) -> int:
    with fleet.admin() as connection:
        row = connection.execute("select count(*) from workhorse.outcomes").fetchone()
    assert row is not None
    return int(row[0])


def _per_second(fleet: Fleet, since: float, seconds: int) -> list[int]:
    """Return how many runs ended in each whole second from an instant of the wall clock."""
    with fleet.admin() as connection:
        rows: list[Any] = connection.execute(
            "select floor(extract(epoch from finished_at) - %s)::int, count(*)"
            " from workhorse.outcomes where finished_at >= to_timestamp(%s) group by 1",
            [since, since],
        ).fetchall()
    found = dict(rows)
    return [int(found.get(second, 0)) for second in range(seconds)]


def capacity(fleet: Fleet, feed: Feed) -> float:
    """Return how many runs a second the fleet takes from a backlog."""
    feed.fill(500)  # warm
    while fleet.unfinished():
        time.sleep(0.1)
    count = 8000
    feed.fill(count)
    began, before = time.monotonic(), _finished(fleet)
    while time.monotonic() - began < 60 and fleet.unfinished():
        time.sleep(0.05)
    return (_finished(fleet) - before) / (time.monotonic() - began)


def away(fleet: Fleet) -> None:
    """PostgreSQL is stopped at once, and away for 30 s."""
    fleet.server.stop(how=signal.SIGQUIT)
    time.sleep(30)
    fleet.server.start()


def killed(fleet: Fleet) -> None:
    """Five sessions a second are killed for a minute."""
    kill_backends(fleet, random.Random(1), 60)


WAYS: Final[dict[str, Callable[[Fleet], None]]] = {"away": away, "killed": killed}


def measure(ways: Sequence[str], repeat: int, *, before_s: int = 60) -> Iterator[Recovery]:
    """Break one fleet in these ways in turn, again and again; its processes stay the same ones."""
    with Fleet(
        seed=1, runs=0, rate=1, producers=1, lease_s=30.0, bad=0, app="tests.faults.bare:app",
        quick_broker=True,
    ) as fleet:  # fmt: skip
        for member in fleet.producers:
            member.wanted = False
        fleet.producers.clear()
        fleet.start()
        feed = Feed(fleet)
        try:
            for member in fleet.workers:
                assert member.process is not None
                member.process.wait_for("1 worker, 8 slots", within=60)
            rate = capacity(fleet, feed) / 2
            feed.start(rate)
            print(f"fed with {rate:.0f} runs a second, half of what it takes", flush=True)
            for way in [way for _ in range(repeat) for way in ways]:
                time.sleep(SETTLES_S)
                since = time.time()
                time.sleep(before_s)
                base = statistics.median(_per_second(fleet, since, before_s))
                WAYS[way](fleet)
                seconds = _back(fleet, time.time(), SHARE * base)
                restarts = sum(member.starts - 1 for member in fleet.members)
                yield Recovery(way, base, seconds, restarts)
        finally:
            feed.close()


def _back(fleet: Fleet, healed: float, wanted: float) -> float | None:
    """Return after how many seconds five began whose median is at the wanted speed."""
    while (passed := time.time() - healed) < _MOST_S:
        time.sleep(1)
        try:
            each = _per_second(fleet, healed, int(passed))
        except psycopg.OperationalError:
            continue
        for start in range(len(each) - _WINDOW_S + 1):
            if statistics.median(each[start : start + _WINDOW_S]) >= wanted:
                return float(start)
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.recovery", description=__doc__)
    parser.add_argument("--only", choices=sorted(WAYS), default=None)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--before", type=int, default=60, help="seconds that the base is taken of")
    given = parser.parse_args()
    # No endpoint checks them; the members of the fleet have theirs.
    os.environ |= {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
    found: list[Recovery] = []
    ways = [given.only] if given.only else list(WAYS)
    for one in measure(ways, given.repeat, before_s=given.before):
        found.append(one)
        print(
            f"{one.way}: base {one.base:.0f}/s, back after {one.seconds} s,"
            f" {one.restarts} restarts: {'good' if one.good else 'NOT GOOD'}",
            flush=True,
        )
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps([asdict(one) for one in found], indent=2) + "\n")
    return 0 if all(one.good for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
