"""A crowd of runs that cannot run now costs a claim next to nothing, on both databases.

The plans are looked at in tests/store/test_plans.py, and what each operation touches on PostgreSQL
in test_rows_touched.py; the millions are in `make bench-growth`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.store.acting import TASK, put_many, take
from tests.store.planned import planned
from tests.support.crowd import crowd
from workhorse.store.base.database import Store
from workhorse.store.operators.viewing import list_runs

COUNT = 20_000


def _steps(store: Store, act: Callable[[], object]) -> int:
    """Count what the database does: rows that are touched, or steps of SQLite's machine."""
    if store.kind == "postgresql":
        with planned(store) as statements:
            act()
        return sum(statement.touched for statement in statements)
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1

    raws = []
    for _ in range(2):
        with store.engine.connect() as connection:
            raw = connection.connection.driver_connection
            assert raw is not None
            raws.append(raw)
            raw.set_progress_handler(step, 10)
    act()
    for raw in raws:
        raw.set_progress_handler(None, 0)
    assert steps
    return steps


def _by_scan(store: Store) -> None:
    assert len(take(store, scan=True, free=100, tasks=[TASK]).runs) == 100


def _list(store: Store) -> None:
    assert len(store.run(list_runs, limit=50)) == 50


@pytest.mark.parametrize("act", [_by_scan, _list], ids=["claim", "list"])
def test_case_16_a_crowd_of_others_costs_no_more_than_half_again(
    real_clock_store: Store, act: Callable[[Store], None]
) -> None:
    """Of unknown tasks, of next year, finished, paused: beside them a hundred urgent runs."""
    store = real_clock_store
    put_many(store, 100, priority=100)
    alone = _steps(store, lambda: act(store))
    crowd(store, COUNT)
    put_many(store, 100, priority=100)

    assert _steps(store, lambda: act(store)) <= 1.5 * alone
