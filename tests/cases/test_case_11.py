"""Connections are killed one after the other while the broker refuses everything."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from lanes.memory import MemoryLane
from tests.cases.scene import Scene, Setting
from tests.runtime.rig import Rig
from tests.support.eventually import eventually
from workhorse.store.base.database import ManualClock, Store
from workhorse.telemetry import Metric

KILLS = 8


@pytest.fixture
def scene(postgresql_url: str, clock: ManualClock, setting: Setting) -> Iterator[Scene]:
    """On PostgreSQL alone: SQLite has no connection that somebody else could kill."""
    store = Store.open(postgresql_url, clock=clock)
    rig = Rig(store)
    yield Scene(rig, setting, clock)
    rig.close()
    store.close()


def test_case_11_killed_connections_and_a_broker_that_refuses_cost_time_alone(
    scene: Scene, postgresql_url: str
) -> None:
    """No loop dies, no attempt is spent, and both heal without a restart."""
    rig, lane = scene.rig, scene.rig.lane
    scene.task("t")
    worker = scene.worker(concurrency=3)
    scene.ended(rig.enqueue("t", wake=True))
    if isinstance(lane, MemoryLane):
        lane.set_outage(ConnectionError("AccessDenied"))
    killed = 0
    runs = []
    with psycopg.connect(postgresql_url.replace("+psycopg", ""), autocommit=True) as other:

        def kill_another() -> bool:
            nonlocal killed
            runs.extend(rig.enqueue_many("t", 5, wake=True))
            killed += len(
                other.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity where "
                    "datname = current_database() and pid <> pg_backend_pid() "
                    "and backend_type = 'client backend' order by random() limit 1"
                ).fetchall()
            )
            return killed >= KILLS

        eventually(kill_another, within=60)
    if isinstance(lane, MemoryLane):
        eventually(lambda: rig.count(Metric.RECEIVE_ERRORS) >= 1)
        lane.set_outage(None)

    views = scene.ended(*runs, within=60)

    assert {view.attempt for view in views} == {1}
    assert set(scene.starts.values()) == {1}
    scene.ended(*rig.enqueue_many("t", 5, wake=True))
    eventually(lambda: not worker._calls.away)
    assert not [name for name in rig.counters.snapshot() if Metric.LOOP_RESTARTS in name]
