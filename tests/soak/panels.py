"""Which plots a soak is shown by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from tests.soak.drawing import Line, Panel, Picture, thin
from tests.soak.sampler import Sample, Seen
from tests.soak.trends import Series, ended_runs, history_kb, of_database, p99, rates

_EACH_S: Final = 30.0
"""Percentiles are of so many seconds."""
_STARTED_S: Final = 20.0
"""Younger processes are still importing: their memory would stretch the plot."""
_ENOUGH: Final = 500
"""Ended runs, before what each takes is shown: at first it is the empty tables' pages."""
_FREE: Final = 1e12
"""A floor for plots that need not begin at zero."""
_CALLS: Final = {
    "receive": "ReceiveMessage", "send": "SendMessage", "delete": "DeleteMessage",
    "visibility": "ChangeMessageVisibility",
}  # fmt: skip

_Points = list[tuple[float, float | None]]


class _Plots:
    def __init__(self, samples: Sequence[Sample], began: float) -> None:
        self.samples = samples
        self.began = began

    def points(self, series: Series, of: Callable[[list[float]], float] | None = None) -> _Points:
        found: _Points = [(round(at - self.began, 1), value) for at, value in series]
        found = thin(found) if of is None else thin(found, of=of)
        return [(at, None if value is None else float(f"{value:.4g}")) for at, value in found]

    def line(
        self, label: str, series: Series, colour: int,
        of: Callable[[list[float]], float] | None = None,
    ) -> Line:  # fmt: skip
        return Line(label, self.points(series, of), colour)

    def of_members(
        self, names: Iterable[str], value: Callable[[Seen], float], age_s: float = 0.0
    ) -> list[Line]:
        return [
            Line(_brief(name), self._of_member(name, value, age_s), colour)
            for colour, name in enumerate(names)
        ]

    def _of_member(self, name: str, value: Callable[[Seen], float], age_s: float) -> _Points:
        """Return a line that breaks where another process has taken the place."""
        found: _Points = []
        pid: int | None = None
        for sample in self.samples:
            at, seen = round(sample.at - self.began, 1), sample.members.get(name)
            if seen is None or (pid is not None and seen.pid != pid):
                found.append((at, None))
            if seen is not None and seen.age_s >= age_s:
                found.append((at, round(value(seen), 2)))
            pid = None if seen is None else seen.pid
        size = -(-len(found) // 180)
        return [point for nth, point in enumerate(found) if point[1] is None or nth % size == 0]


def by_time(series: Series, of: Callable[[list[float]], float]) -> Series:
    """Return a percentile of each half minute, at its middle."""
    found: dict[int, list[float]] = {}
    for at, value in series:
        found.setdefault(int(at // _EACH_S), []).append(value)
    return [((nth + 0.5) * _EACH_S, of(values)) for nth, values in sorted(found.items())]


def p50(values: Sequence[float]) -> float:
    """Return the one in the middle."""
    return sorted(values)[len(values) // 2]


def picture_of(
    samples: Sequence[Sample],
    claims: Series,
    latencies: Series,
    *,
    marks: Sequence[tuple[float, int]],
    kinds: Sequence[str],
    title: str,
    subtitle: str,
) -> Picture:
    """Return all plots of a soak.

    Args:
        samples: In order; times count from the first.
        claims: When, and how many ms each took.
        latencies: When runs started, and how many ms after they were due.
        marks: When something was broken, and of which of `kinds`.
        kinds: Their names.
        title: What stands above it.
        subtitle: The conditions.
    """
    began = samples[0].at
    plots = _Plots(samples, began)
    names = list(dict.fromkeys(name for sample in samples for name in sample.members))
    steady = [name for name in names if name.startswith("steady")]
    workers = [name for name in steady if "worker" in name]
    others = [name for name in names if name not in steady]

    grown = [each for each in samples if (ended_runs(each) or 0) >= _ENOUGH]

    def database(value: Callable[..., float]) -> Series:
        return of_database(samples, value)

    def timing(series: Series) -> list[Line]:
        return [
            plots.line("p50", by_time(series, p50), 0), plots.line("p99", by_time(series, p99), 1)
        ]  # fmt: skip

    def logged(sample: Sample) -> float | None:
        return None if sample.database is None else sample.database.wal_mb

    def called(operation: str) -> Series:
        return rates(
            samples,
            lambda each: float(sum(n for name, n in each.calls.items() if operation in name)),
        )

    panels = [
        Panel("Memory, no fault aimed at them", "MB",
              plots.of_members(steady, lambda seen: seen.usage.rss_mb, _STARTED_S), floor=_FREE),
        Panel("Memory, killed now and then", "MB",
              plots.of_members(others, lambda seen: seen.usage.rss_mb, _STARTED_S), floor=_FREE),
        Panel("Memory of handlers' processes", "MB",
              plots.of_members(workers, lambda seen: seen.usage.others_mb)),
        Panel("Threads", "", plots.of_members(steady, lambda seen: seen.usage.threads)),
        Panel("Open descriptors", "", plots.of_members(steady, lambda seen: seen.usage.fds)),
        Panel("Connections to the database", "",
              plots.of_members(steady, lambda seen: seen.usage.connections)),
        Panel("Table live", "MB", [
            plots.line("rows", database(lambda db: db.tables["live"].table_mb), 0, max),
            plots.line("indexes", database(lambda db: db.tables["live"].indexes_mb), 1, max),
        ]),
        Panel("Rows of live, by the statistics", "", [
            plots.line("dead", database(lambda db: float(db.tables["live"].dead)), 1, max),
            plots.line("living", database(lambda db: float(db.tables["live"].live)), 0, max),
        ]),
        Panel("Kept of each ended run", "KB",
              [plots.line("all tables of the history", of_database(grown, history_kb), 0)]),
        Panel("Unfinished runs", "", [
            plots.line(state, database(lambda db, state=state: float(db.states.get(state, 0))),
                       colour, max)
            for colour, state in enumerate(("ready", "running", "scheduled", "waiting"))
        ]),
        Panel("Runs that end", "a second", [plots.line("all", rates(samples, ended_runs), 0)]),
        Panel("Oldest transaction", "s", [
            plots.line("of all sessions", database(lambda db: db.oldest_s), 0, max)]),
        Panel("A claim, as its worker sees it", "ms", timing(claims), log=True),
        Panel("From due to started", "ms", timing(latencies), log=True),
        Panel("Calls to SQS", "a second", [
            plots.line(label, called(operation), colour)
            for colour, (label, operation) in enumerate(_CALLS.items())
        ]),
        Panel("Processor time, of a core", "%", [
            plots.line(_brief(name), _busy(samples, name), colour)
            for colour, name in enumerate(steady)
        ]),
        Panel("Write-ahead log", "MB a second", [plots.line("all", rates(samples, logged), 0)]),
        Panel("Load of the machine", "", [
            plots.line("of a minute", [(each.at, each.load) for each in samples], 5)]),
    ]  # fmt: skip
    seconds = samples[-1].at - began
    return Picture(
        title, subtitle, seconds, panels, [(round(at - began, 1), kind) for at, kind in marks],
        list(kinds),
    )  # fmt: skip


def _busy(samples: Sequence[Sample], name: str) -> Series:
    seen = [(each.at, each.members[name]) for each in samples if name in each.members]
    return [
        (at, 100 * (now.usage.cpu_s - before.usage.cpu_s) / (at - since))
        for (since, before), (at, now) in zip(seen[::6], seen[6::6], strict=False)
        if before.pid == now.pid and at > since
    ]


def _brief(name: str) -> str:
    name = name.removeprefix("steady ")
    return name.partition("(")[2].rstrip(")") if name.startswith("worker") else name
