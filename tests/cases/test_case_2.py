"""A wakeup overtakes the transaction that makes its run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine

from lanes import wire
from lanes.memory import MemoryLane
from tests.cases.scene import HOSTILITY, HostileLane, Setting
from tests.client.conftest import driver_url
from tests.support.eventually import eventually
from workhorse.app import Workhorse
from workhorse.domain.runs import RunState
from workhorse.handlers.context import AsyncContext, Context
from workhorse.handlers.tasks import Task
from workhorse.ports import Wakeup
from workhorse.telemetry import Metric


class _Place:
    """An app on PostgreSQL, where others can work while a producer's transaction is open."""

    def __init__(self, url: str, setting: Setting) -> None:
        self.now_ms = 0.0
        self.messages = setting.wakeups != "off"
        lane: Any = "polling"
        if self.messages:
            clock = lambda: self.now_ms  # noqa: E731
            hostile = setting.wakeups == "hostile"
            lane = HostileLane(clock=clock, hostility=HOSTILITY) if hostile else None
            lane = lane or MemoryLane(clock=clock)
        self.app = Workhorse(database_url=url, lane=lane)
        self.starts: Counter[str] = Counter()
        self.task: Task[int, int] = self._task(setting.kind)

    def _task(self, kind: str) -> Task[int, int]:
        if kind == "plain":

            @self.app.task("work")
            def plain(ctx: Context, number: int) -> int:
                self.starts[ctx.run.id] += 1
                return number

            return plain

        @self.app.task("work")
        async def async_(ctx: AsyncContext, number: int) -> int:
            self.starts[ctx.run.id] += 1
            return number

        return async_

    def wake(self, run_id: Any) -> None:
        """Have a wakeup arrive: before its time, and twice."""
        if self.messages:
            lane: Any = self.app.lane
            for _ in range(2):
                lane.put_body("default", wire.encode(Wakeup(run_id, "default")))

    def noted(self, note: str) -> int:
        return self.app.counters.get(Metric.MESSAGES, label=note)


@pytest.fixture
def place(postgresql_url: str, setting: Setting) -> Iterator[_Place]:
    place = _Place(postgresql_url, setting)
    yield place
    place.app.close()


@pytest.fixture
def callers(postgresql_url: str) -> Iterator[Engine]:
    engine = create_engine(driver_url(postgresql_url))
    yield engine
    engine.dispose()


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_case_2_a_wakeup_that_overtakes_its_transaction_harms_nothing(
    place: _Place, callers: Engine, ends: str
) -> None:
    """It is looked at twice and dropped; after the commit the run is run once, else never."""
    options = replace(place.app._worker_options(), scan_ms=100, scan_jitter_ms=0)
    with place.app.worker(options=options), callers.connect() as connection:
        run = place.task.enqueue(7, connection=connection)
        place.wake(run.id)
        if place.messages:
            eventually(lambda: place.noted("unseen") >= 2)
            place.now_ms += 30_001
            eventually(lambda: place.noted("missing") >= 1)
        assert not place.starts

        getattr(connection, ends)()

        other = place.task.enqueue(8)
        place.now_ms += 30_001
        assert other.result(timeout=30) == 8
        if ends == "commit":
            assert run.result(timeout=30) == 7
        for run_id in (run.id, other.id):  # whatever is still on its way
            place.wake(run_id)
        place.now_ms += 30_001
        third = place.task.enqueue(9)
        assert third.result(timeout=30) == 9

    expected = {run.id, other.id, third.id} if ends == "commit" else {other.id, third.id}
    assert place.starts == dict.fromkeys(expected, 1)
    views = place.app.admin.list_runs()
    assert {view.id for view in views} == expected
    assert {(view.state, view.attempt) for view in views} == {(RunState.SUCCEEDED, 1)}
    assert place.noted("malformed") == 0
