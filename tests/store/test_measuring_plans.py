"""Measuring reads little of tables that have grown, and by the indexes that are there for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.store.acting import rows
from tests.store.planned import nodes_of, planned
from tests.store.test_presence import A
from tests.support.crowd import crowd
from tests.support.databases import Databases
from workhorse.store.base.database import Store
from workhorse.store.fleet import measuring
from workhorse.store.fleet.measuring import COUNTED, measure
from workhorse.store.fleet.presence import beat_and_look, prune

COUNT = 100_000
RUNNING = 500
CROWDED = {"live", "runs", "outcomes"}
# A queue's runs of three states, each up to the bound, and what is found on the way to the oldest.
MOST_TOUCHED = 3 * COUNTED + 500

# A minute's ends among 30,000 others.
_FAILED = """
update {s}outcomes set state = 'failed', reason = 'error', finished_at = now() - interval '20 s'
 where id in (select id from {s}outcomes order by id limit 60)
"""


def _known(store: Store) -> None:
    crowd(store, COUNT, running=RUNNING)


def _looked_at_while_nearly_empty(store: Store) -> None:
    crowd(store, 0, running=RUNNING)
    crowd(store, COUNT, running=0, analyze=False)


@pytest.fixture(
    scope="module",
    params=[_known, _looked_at_while_nearly_empty],
    ids=["known", "looked-at-while-nearly-empty"],
)
def crowded(
    postgres: Databases, migrated_postgresql: str, request: pytest.FixtureRequest
) -> Iterator[Store]:
    """100,000 runs of all kinds, 60 of which failed just now."""
    name = postgres.create(template=migrated_postgresql)
    store = Store.open(postgres.url(name), connections=1)
    fill: Callable[[Store], None] = request.param
    with store.engine.begin() as conn:
        for table in CROWDED:
            conn.exec_driver_sql(f'alter table "workhorse".{table} set (autovacuum_enabled = off)')
    fill(store)
    with store.engine.begin() as conn:
        conn.exec_driver_sql(_FAILED.replace("{s}", '"workhorse".'))
    yield store
    store.close()
    postgres.drop(name)


@pytest.mark.parametrize("generic", [False, True], ids=["custom", "generic"])
def test_measuring_touches_no_more_than_it_counts(crowded: Store, *, generic: bool) -> None:
    with planned(crowded, generic=generic) as statements:
        found = crowded.read(measure, "measure")

    assert (found.all.failed, found.all.running) == (60, RUNNING)
    assert {each.queue: each.runnable for each in found.queues} == {"default": 10_000, "paused": 0}
    assert found.all.oldest_runnable_ms > 0
    assert statements
    for each in statements:
        assert not each.whole & CROWDED, each
        assert each.touched <= MOST_TOUCHED, each


@pytest.mark.parametrize("generic", [False, True], ids=["custom", "generic"])
def test_each_part_of_it_has_its_index(crowded: Store, *, generic: bool) -> None:
    with planned(crowded, generic=generic) as statements:
        crowded.read(measure, "measure")

    used = [
        {name for node in nodes_of(each.plan) if (name := node.get("Index Name"))}
        for each in statements
    ]
    of_runs = [each for each in used if any(name.startswith(("live", "outc")) for name in each)]
    assert {"live_running"} in of_runs
    assert {"outcomes_failed", "runs_pkey"} in of_runs
    assert {"live_ready", "live_parked"} in of_runs
    for each in of_runs:
        assert each <= {
            "live_ready", "live_parked", "live_pkey", "live_session", "live_turn", "live_running",
            "outcomes_failed", "runs_pkey",
        }  # fmt: skip


@pytest.mark.parametrize("generic", [False, True], ids=["custom", "generic"])
def test_the_oldest_runs_are_probed_for(
    crowded: Store, monkeypatch: pytest.MonkeyPatch, *, generic: bool
) -> None:
    """Of a hundred thousand runs a head for each task and priority, whatever the counts cost."""
    monkeypatch.setattr(measuring, "COUNTED", 1)
    crowded._statements._prepared.clear()

    with planned(crowded, generic=generic) as statements:
        crowded.read(measure, "measure")

    crowded._statements._prepared.clear()
    backlogs = [each for each in statements if "walk" in each.sql and "oldest_ms" in each.sql]
    assert backlogs
    for each in backlogs:
        assert each.touched <= 500, each


def test_beats_and_pruning_read_the_processes_alone(crowded: Store) -> None:
    with planned(crowded) as statements:
        crowded.run(beat_and_look, A, up_ms=0)
        crowded.run(prune)

    assert {table for each in statements for table in each.whole} <= {"processes"}
    ((listed,),) = rows(crowded, "select count(*) from {s}processes")
    assert listed == 1


def test_sqlite_measures_by_the_same_indexes(sqlite_url: str) -> None:
    """Its planner takes a partial index only where the condition is said in the same words."""
    store = Store.open(sqlite_url)
    crowd(store, 2_000, running=50)
    used: dict[str, str] = {}
    with store.engine.connect() as conn:
        for builder, form in (
            (measuring._queues, ()),
            (measuring._running, ()),
            (measuring._failed, ()),
            (measuring._backlog, (False,)),
        ):
            prepared = store._statements.prepare(builder, *form)
            values = {**prepared.defaults, "queue": "default", "since": 0, "until": 1}
            plan = conn.exec_driver_sql(
                f"explain query plan {prepared.sql}", {**values, "clock_now": 1}
            )
            used[builder.__name__] = "\n".join(row[3] for row in plan)

    store.close()
    for name, plan_text in used.items():
        for line in plan_text.splitlines():
            read = line.startswith("SCAN ") and line.split()[1] in {*CROWDED, "head", "following"}
            assert not read or "USING" in line, (name, plan_text)
    assert "live_parked (state=? AND queue=?)" in used["_backlog"]
    assert "live_ready (queue=?)" in used["_backlog"]
    assert "outcomes_failed (finished_at>? AND finished_at<?)" in used["_failed"]
    assert "USING INDEX live_running" in used["_running"]
