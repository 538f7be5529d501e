"""Each bound of a soak holds for a steady series, and is broken by one that grows."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.soak.procs import Usage
from tests.soak.sampler import Database, Sample, Seen, Table
from tests.soak.trends import (
    Check,
    Series,
    apart_from,
    check_database,
    check_processes,
    check_rest,
    check_times,
    rates,
    thirds,
)

COUNT = 240
"""Samples of 20 minutes."""
WORKER = "steady worker 0 (sqs)"


def steady() -> list[Sample]:
    """A soak in which a worker warms up and stays as it is, and tables breathe."""
    draw = random.Random(1)
    samples = []
    for nth in range(COUNT):
        warm = min(1.0, nth / 40)
        usage = Usage(
            rss_mb=80 + 20 * warm + draw.uniform(-0.5, 0.5), threads=round(10 + 8 * warm),
            fds=30 + draw.randint(0, 2), cpu_s=0.5 * nth, connections=4 + nth % 2, others=1,
            others_mb=60.0,
        )  # fmt: skip
        tables = {
            "live": Table(1.0 + 0.1 * (nth % 3), 0.5, 100, 900 + 100 * (nth % 12), nth // 12),
            "links": Table(0.1, 0.1, 5, 20, 1),
            "outcomes": Table(0.002 * nth * 50, 0.001 * nth * 50, nth * 50, 0, 0),
        }
        database = Database(
            tables, 30 + nth % 3, 0.2, {"ready": nth % 5}, nth * 50, nth % 2, nth % 3, nth * 0.3
        )
        gauges = {"slots": 8.0, "slots_free": 8.0, "runs_held": 0.0, "handlers_stuck": 0.0}
        seen = Seen(4711, 5.0 * nth, usage, gauges)
        samples.append(Sample(1000 + 5.0 * nth, {WORKER: seen}, database, {"Send": nth}, 1.0))
    return samples


def broken(checks: list[Check]) -> set[str]:
    return {check.name for check in checks if not check.kept}


def change_usage(samples: list[Sample], change: Callable[[int, Usage], Usage]) -> list[Sample]:
    for nth, sample in enumerate(samples):
        seen = sample.members[WORKER]
        sample.members[WORKER] = replace(seen, usage=change(nth, seen.usage))
    return samples


def test_a_steady_soak_keeps_all_bounds() -> None:
    samples = steady()
    checks = [*check_processes(samples), *check_database(samples)]
    assert broken(checks) == set()
    assert len(checks) >= 12


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda nth, usage: replace(usage, rss_mb=usage.rss_mb + nth * 0.12), "memory"),
        (
            lambda nth, usage: replace(usage, others_mb=usage.others_mb + nth * 0.12),
            "memory of handlers' processes",
        ),
        (lambda nth, usage: replace(usage, threads=usage.threads + nth // 20), "threads"),
        (lambda nth, usage: replace(usage, fds=usage.fds + nth // 20), "descriptors"),
        (lambda nth, usage: replace(usage, connections=1 + nth // 30), "connections"),
        (lambda nth, usage: replace(usage, cpu_s=0.003 * nth * nth), "processor time"),
    ],
    ids=["memory", "others", "threads", "descriptors", "connections", "processor"],
)
def test_what_grows_in_a_process_is_found(change: Callable[[int, Usage], Usage], name: str) -> None:
    checks = check_processes(change_usage(steady(), change))
    assert broken(checks) == {f"{name} of {WORKER}"}


def test_too_many_connections_are_found_though_they_do_not_grow() -> None:
    samples = change_usage(steady(), lambda _, usage: replace(usage, connections=11))
    assert broken(check_processes(samples)) == {"connections of any worker"}


def test_a_process_is_judged_by_its_own_age_and_not_when_it_is_young() -> None:
    samples = steady()
    for nth, sample in enumerate(samples):
        # Killed every two minutes, and larger each time: none lives long enough to be judged.
        seen = sample.members[WORKER]
        usage = replace(seen.usage, rss_mb=80.0 + nth)
        sample.members[WORKER] = replace(seen, pid=nth // 24, age_s=5.0 * (nth % 24), usage=usage)
    assert broken(check_processes(samples)) == set()


def test_processes_that_took_the_same_place_are_not_one_that_grew() -> None:
    samples = steady()
    for nth, sample in enumerate(samples):
        # Two of five and a half minutes, then a larger one of nine.
        life, age = (nth // 66, nth % 66) if nth < 132 else (2, nth - 132)
        seen = sample.members[WORKER]
        usage = replace(seen.usage, rss_mb=120.0 if life == 2 else 80.0)
        sample.members[WORKER] = replace(seen, pid=life, age_s=5.0 * age, usage=usage)
    checks = check_processes(samples)
    assert broken(checks) == set()
    assert [check.name for check in checks].count(f"memory of {WORKER}") == 3


def tables(samples: list[Sample], change: Callable[[int, Database], None]) -> list[Sample]:
    for nth, sample in enumerate(samples):
        assert sample.database is not None
        change(nth, sample.database)
    return samples


def _bloat(nth: int, database: Database) -> None:
    database.tables["live"].table_mb += nth * 0.02


def _dead(nth: int, database: Database) -> None:
    database.tables["live"].dead += nth * nth // 3


def _kept(nth: int, database: Database) -> None:
    database.tables["outcomes"].table_mb += 0.0005 * nth * nth


def _sessions(nth: int, database: Database) -> None:
    database.sessions += nth // 10


def _oldest(nth: int, database: Database) -> None:
    database.oldest_s = 20.0 if nth == 100 else 0.1


def _behind(nth: int, database: Database) -> None:
    database.states = {"ready": nth * nth // 50, "waiting": 3}


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (_bloat, "table live with its indexes"),
        (_dead, "dead rows of live, at most"),
        (_kept, "what is kept of an ended run"),
        (_sessions, "sessions"),
        (_oldest, "oldest transaction"),
        (_behind, "unfinished runs"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_grows_in_the_database_is_found(
    change: Callable[[int, Database], None], name: str
) -> None:
    assert broken(check_database(tables(steady(), change))) == {name}


def test_a_database_that_does_not_answer_is_left_out() -> None:
    samples = steady()
    for nth in range(50, 60):
        samples[nth].database = None
    assert broken(check_database(samples)) == set()


def times(of: Callable[[float], float]) -> Series:
    draw = random.Random(2)
    return [(at / 2, of(at / 2) * draw.uniform(0.8, 1.2)) for at in range(2400)]


def test_claims_and_latencies_that_take_longer_are_found() -> None:
    flat = times(lambda _: 5.0)
    assert broken(check_times(flat, flat, [])) == set()
    grown = times(lambda at: 5 + max(0, at - 800) * 0.4)
    assert broken(check_times(grown, flat, [])) == {"claims, p50", "claims, p99"}
    late = times(lambda at: 5 + max(0, at - 800) * 6)
    assert broken(check_times(flat, late, [])) == {"due to started, p50", "due to started, p99"}


def test_times_are_not_judged_while_something_is_broken() -> None:
    away = (900.0, 1000.0)
    slow = times(lambda at: 900.0 if away[0] <= at <= away[1] + 4 else 5.0)
    assert broken(check_times(slow, slow, [])) != set()
    assert broken(check_times(slow, slow, [away])) == set()
    assert apart_from([(1.0, 1), (9.5, 1), (14.9, 1), (15.1, 1)], [(10, 10)]) == [
        (1.0, 1), (15.1, 1)
    ]  # fmt: skip


def test_what_is_left_at_rest_is_found() -> None:
    rest = steady()[0]
    assert rest.database is not None
    rest.database.states, rest.database.noted, rest.database.linked = {}, 0, 0
    assert broken(check_rest(rest)) == set()
    rest.database.states, rest.database.noted, rest.database.linked = {"waiting": 1}, 1, 1
    rest.members[WORKER].gauges["slots_free"] = 7.0
    assert broken(check_rest(rest)) == {
        "rows of live at rest", "rows of freed at rest", "rows of links at rest",
        f"slots of {WORKER} at rest",
    }  # fmt: skip
    rest.database = None
    assert broken(check_rest(rest)) == {"at rest"}


def test_a_worker_that_does_not_answer_at_rest_is_found() -> None:
    rest = steady()[0]
    rest.members[WORKER].gauges.clear()
    assert f"slots of {WORKER} at rest" in broken(check_rest(rest))


def test_thirds_are_of_the_time_and_not_of_the_count() -> None:
    series: Series = [(0, 1), (10, 2), (11, 3), (12, 4), (20, 5), (30, 6)]
    assert thirds(series) == ([2, 3, 4], [5, 6])
    assert thirds([]) is None


def test_a_count_that_was_set_back_has_no_rate_there() -> None:
    samples = steady()[:5]
    for sample, count in zip(samples, (10.0, 20.0, 5.0, 15.0, 15.0), strict=True):
        sample.load = count
    assert rates(samples, lambda each: each.load) == [(1005, 2.0), (1015, 2.0), (1020, 0.0)]
