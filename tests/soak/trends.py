"""What must not grow: series of a soak, held against bounds.

A trend is told by thirds: the first one warms up, and the median of the last is compared with that
of the second. A process is judged by its own age, and only when it grew old.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.soak.sampler import Database, Sample, Seen

Series = list[tuple[float, float]]
"""When, and how much."""

OLD_S: Final = 300.0
"""A process that is younger says nothing of trends."""
WORKING: Final = ("live", "links", "freed", "steps", "processes", "queues")
"""Tables that hold what is unfinished: they come back to their size."""
MOST_CONNECTIONS: Final = 10
"""Of a worker: 4, one that listens, and 5 for `ctx.transaction`."""
MOST_OLDEST_S: Final = 15.0
"""A session that holds a transaction and says nothing is ended after 10 s."""


@dataclass(frozen=True, slots=True)
class Check:
    """Something that was held against its bound."""

    name: str
    text: str
    kept: bool


@dataclass(frozen=True, slots=True)
class Bound:
    """How far the last third may lie above the second."""

    factor: float
    slack: float

    def holds(self, second: float, last: float) -> bool:
        return last <= second * self.factor + self.slack


MEMORY: Final = Bound(1.05, 2.0)
COUNT: Final = Bound(1.0, 2.0)
SESSIONS: Final = Bound(1.1, 3.0)
TABLE: Final = Bound(1.2, 0.5)
DEAD: Final = Bound(1.5, 500)
HISTORY: Final = Bound(1.05, 0.05)
CLAIM: Final = Bound(2.0, 20.0)
LATENCY: Final = Bound(2.0, 100.0)
LATE: Final = Bound(2.0, 1000.0)
BUSY: Final = Bound(1.3, 3.0)
BEHIND: Final = Bound(1.5, 20)


def thirds(series: Series) -> tuple[list[float], list[float]] | None:
    """Return the values of the second and the last third of its time; None where one is empty."""
    if not series:
        return None
    began, ended = series[0][0], series[-1][0]
    part = (ended - began) / 3
    second = [value for at, value in series if began + part <= at < began + 2 * part]
    last = [value for at, value in series if at >= began + 2 * part]
    return (second, last) if second and last else None


def trend(
    name: str,
    series: Series,
    bound: Bound,
    unit: str,
    of: Callable[[list[float]], float] = statistics.median,
) -> Check | None:
    """Compare the last third with the second; None where there is too little."""
    parts = thirds(series)
    if parts is None:
        return None
    second, last = of(parts[0]), of(parts[1])
    text = f"{second:,.4g} to {last:,.4g} {unit}".rstrip()
    return Check(name, text, bound.holds(second, last))


def p99(values: Sequence[float]) -> float:
    """Return the value below which 99 of a hundred lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]


def lives(
    samples: Iterable[Sample], value: Callable[[Seen], float]
) -> dict[tuple[str, int], Series]:
    """Return a series of each process, by member and process id, over its age."""
    found: dict[tuple[str, int], Series] = defaultdict(list)
    for sample in samples:
        for name, seen in sample.members.items():
            found[name, seen.pid].append((seen.age_s, value(seen)))
    return found


def of_database(samples: Iterable[Sample], value: Callable[[Database], float]) -> Series:
    """Return a series of what the database said, where it answered."""
    return [
        (sample.at, value(sample.database)) for sample in samples if sample.database is not None
    ]


def rates(samples: Sequence[Sample], total: Callable[[Sample], float | None]) -> Series:
    """Return how much a count grew a second; nothing where it went back: it was set back."""
    found: Series = []
    before: tuple[float, float] | None = None
    for sample in samples:
        now = total(sample)
        if now is None:
            continue
        if before is not None and now >= before[1] and sample.at > before[0]:
            found.append((sample.at, (now - before[1]) / (sample.at - before[0])))
        before = (sample.at, now)
    return found


def apart_from(
    series: Series, spans: Sequence[tuple[float, float]], lead_s: float = 1.0, tail_s: float = 5.0
) -> Series:
    """Leave out what was seen while something was broken, and shortly after."""
    return [
        (at, value)
        for at, value in series
        if not any(began - lead_s <= at <= ended + tail_s for began, ended in spans)
    ]


def sizes_mb(database: Database, tables: Iterable[str]) -> float:
    """Return what tables take with their indexes."""
    found = (database.tables.get(name) for name in tables)
    return sum(each.table_mb + each.indexes_mb for each in found if each is not None)


def ended_runs(sample: Sample) -> float | None:
    """Return how many runs have ended so far, where the database answered."""
    return None if sample.database is None else float(sample.database.outcomes)


def history_kb(database: Database) -> float:
    """Return what is kept of an ended run, in KB."""
    kept = [name for name in database.tables if name not in WORKING]
    return sizes_mb(database, kept) * 1024 / max(1, database.outcomes)


def check_processes(samples: Sequence[Sample]) -> list[Check]:
    """Memory, threads, descriptors, connections and processor time of each process that is old."""
    checks: list[Check | None] = []

    def ask(what: str, value: Callable[[Seen], float], bound: Bound, unit: str) -> None:
        for (member, _), series in lives(samples, value).items():
            if series[-1][0] - series[0][0] >= OLD_S:
                checks.append(trend(f"{what} of {member}", series, bound, unit))

    ask("memory", lambda seen: seen.usage.rss_mb, MEMORY, "MB")
    ask("memory of handlers' processes", lambda seen: seen.usage.others_mb, MEMORY, "MB")
    ask("threads", lambda seen: seen.usage.threads, COUNT, "")
    ask("descriptors", lambda seen: seen.usage.fds, COUNT, "")
    ask("connections", lambda seen: seen.usage.connections, COUNT, "")
    for (member, _), series in lives(samples, lambda seen: seen.usage.cpu_s).items():
        if series[-1][0] - series[0][0] >= OLD_S:
            checks.append(trend(f"processor time of {member}", _shares(series), BUSY, "%"))
    most = max(
        (seen.usage.connections for sample in samples for name, seen in sample.members.items()
         if "worker" in name), default=0,
    )  # fmt: skip
    text = f"{most} at most, of {MOST_CONNECTIONS}"
    checks.append(Check("connections of any worker", text, most <= MOST_CONNECTIONS))
    return [check for check in checks if check is not None and not _trivial(check)]


def check_database(samples: Sequence[Sample]) -> list[Check]:
    """Sizes, dead rows, sessions and transactions."""
    checks = [
        trend(
            f"table {name} with its indexes",
            of_database(samples, lambda db, name=name: sizes_mb(db, [name])),  # type: ignore[misc]
            TABLE,
            "MB",
        )
        for name in WORKING
    ]
    dead = of_database(samples, lambda db: float(db.tables["live"].dead))
    checks.append(trend("dead rows of live, at most", dead, DEAD, "", max))
    checks.append(
        trend("what is kept of an ended run", of_database(samples, history_kb), HISTORY, "KB")
    )
    checks.append(
        trend("sessions", of_database(samples, lambda db: float(db.sessions)), SESSIONS, "")
    )
    oldest = max((value for _, value in of_database(samples, lambda db: db.oldest_s)), default=0.0)
    checks.append(Check("oldest transaction", f"{oldest:.1f} s at most", oldest <= MOST_OLDEST_S))
    unfinished = of_database(samples, lambda db: float(sum(db.states.values())))
    checks.append(trend("unfinished runs", unfinished, BEHIND, ""))
    return [check for check in checks if check is not None]


def check_times(
    claims: Series, latencies: Series, spans: Sequence[tuple[float, float]]
) -> list[Check]:
    """Claims and latencies, in ms, where nothing was broken."""
    claims, latencies = apart_from(claims, spans), apart_from(latencies, spans)
    checks = [
        trend("claims, p50", claims, CLAIM, "ms"),
        trend("claims, p99", claims, CLAIM, "ms", p99),
        trend("due to started, p50", latencies, LATENCY, "ms"),
        trend("due to started, p99", latencies, LATE, "ms", p99),
    ]
    return [check for check in checks if check is not None]


def check_rest(rest: Sample) -> list[Check]:
    """When all has ended nothing is left: no rows, no leases, no slots that were not given back."""
    database = rest.database
    if database is None:
        return [Check("at rest", "the database does not answer", kept=False)]
    left = {
        "live": sum(database.states.values()), "freed": database.noted, "links": database.linked,
    }  # fmt: skip
    checks = [
        Check(f"rows of {name} at rest", f"{count}", count == 0) for name, count in left.items()
    ]
    for name, seen in rest.members.items():
        if "worker" in name:
            checks.append(_slots(name, seen.gauges))
    return checks


def _slots(name: str, gauges: Mapping[str, float]) -> Check:
    slots, free = gauges.get("slots"), gauges.get("slots_free")
    held, stuck = gauges.get("runs_held"), gauges.get("handlers_stuck")
    text = f"{free} of {slots} free, {held} held, {stuck} stuck"
    kept = slots is not None and slots == free and held == 0 and stuck == 0
    return Check(f"slots of {name} at rest", text, kept)


def _shares(series: Series) -> Series:
    """Return processor time as percents of a core, by minutes: by seconds it jumps."""
    found: Series = []
    began = series[0]
    for at, cpu_s in series:
        if at - began[0] >= 60:
            found.append((at, 100 * (cpu_s - began[1]) / (at - began[0])))
            began = (at, cpu_s)
    return found


def _trivial(check: Check) -> bool:
    """Whether there is nothing to tell: a process without handlers' processes, or connections."""
    return check.text.startswith("0 to 0")
