"""Few connections, whatever the concurrency; a database that gives none costs time alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tests.runtime.faults import FaultyStore
from tests.runtime.rig import Gate, Rig
from tests.support.eventually import eventually
from tests.support.postgres import PostgresServer
from workhorse.domain.runs import RunState
from workhorse.store.base.database import Store, Tx
from workhorse.store.base.migrating import migrate
from workhorse.telemetry import Metric


def test_case_13_a_worker_has_four_connections_at_most(
    postgresql_rig: Rig, postgresql_url: str
) -> None:
    """Fifty handlers at once on four queues, renewed and settled all the time."""
    rig, most = postgresql_rig, [0]

    @rig.task("t")
    async def short() -> None:
        await asyncio.sleep(0.05)

    queues = ["a", "b", "c", "d"]
    for queue in queues:
        rig.enqueue_many("t", 400, queue=queue)
    with psycopg.connect(postgresql_url, autocommit=True) as watching:

        def done() -> bool:
            row = watching.execute(
                "select count(*) from pg_stat_activity where datname = current_database() "
                "and pid <> pg_backend_pid() and backend_type = 'client backend'"
            ).fetchone()
            assert row is not None
            most[0] = max(most[0], row[0])
            return rig.count(Metric.RUNS_SETTLED, "succeeded") == 1_600

        rig.store.close()  # what the test itself had open
        worker = rig.worker(queues, concurrency=50, lease_ms=600)
        worker.start()
        eventually(done, within=60, every=0.002)

    assert 1 <= most[0] <= 4


def test_case_13_a_settle_never_queues_behind_claims(postgresql_rig: Rig) -> None:
    """Four queues whose claims hang, each in a connection of the pool's three."""
    rig, gate, let_go = postgresql_rig, Gate(), threading.Event()
    faulty = FaultyStore(rig.store)
    rig.task("t")(gate.come)
    queues = ["a", "b", "c", "d"]
    # A claim reserves up to 200 slots: with so many, several hang at once.
    worker = rig.worker(queues, concurrency=900, store=faulty)
    worker.start()
    run_id = rig.enqueue("t", queue="a", wake=True)
    gate.wait()
    hanging: list[Tx] = []

    def hang(carry_out: Callable[[], Any]) -> Any:
        def hold(tx: Tx) -> None:
            hanging.append(tx)
            let_go.wait(20)

        Store.try_once(faulty, hold)
        return carry_out()

    faulty.faults["claim"] = hang
    # Two hang; the others wait for these, and not in a connection each.
    waiting: Any = worker._parts._gate._cond._waiters  # type: ignore[attr-defined]
    eventually(lambda: len(hanging) + len(waiting) == 4 or len(hanging) == 3)

    gate.open()

    try:
        eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED, within=8)
    finally:
        let_go.set()
        worker.stop()
        faulty.close()


@pytest.fixture
def small_server() -> Iterator[PostgresServer]:
    with PostgresServer(settings={"max_connections": "10"}) as server:
        yield server


def test_case_13_a_lack_of_connections_is_waited_out(small_server: PostgresServer) -> None:
    """Six workers start at once where seven connections are to be had; no attempt is spent."""
    name = small_server.databases.create()
    url = small_server.databases.url(name)
    small_server.databases.disconnect()
    producer = Store.open(url, connections=1)
    migrate(producer)
    rig = Rig(producer)
    rig.task("t")(lambda: None)
    stores = [Store.open(url) for _ in range(6)]
    try:
        run_ids = rig.enqueue_many("t", 60)
        workers = [rig.worker(concurrency=2, store=store) for store in stores]
        starts = [threading.Thread(target=worker.start) for worker in workers]
        for start in starts:
            start.start()
        for start in starts:
            start.join(60)

        eventually(
            lambda: all(rig.state(each) is RunState.SUCCEEDED for each in run_ids), within=60
        )
        assert {rig.view(each).attempt for each in run_ids} == {1}
        # The pressure ends: those that were shut out come in without a restart.
        shut_out = [worker for worker in workers if not worker._check.done]
        for worker, store in zip(workers, stores, strict=True):
            if worker not in shut_out:
                worker.stop()
                store.close()
        eventually(lambda: all(worker._check.done for worker in shut_out), within=60)
        rig.wake(more := rig.enqueue("t"))
        if shut_out:
            eventually(lambda: rig.state(more) is RunState.SUCCEEDED)
        assert rig.count(Metric.LOOP_RESTARTS, "intake-default") == 0
    finally:
        rig.close()
        for store in [*stores, producer]:
            store.close()
