"""Connections that are killed or go silent: loops go on, and full speed returns by itself."""

from __future__ import annotations

import asyncio
import threading

import psycopg
import pytest
from sqlalchemy import make_url

from tests.runtime.proxy import Proxy
from tests.runtime.rig import Rig
from tests.support.eventually import eventually
from tests.support.postgres import PostgresServer
from workhorse.domain.runs import RunState
from workhorse.errors import StoreUnavailableError
from workhorse.runtime.base.calls import StoreCalls
from workhorse.runtime.base.loops import Loop
from workhorse.runtime.base.pace import SystemPace
from workhorse.store.base.database import Store
from workhorse.store.base.migrating import migrate
from workhorse.telemetry import Counters, Metric


def test_case_11_killed_connections_cost_no_attempt(
    postgresql_rig: Rig, postgresql_url: str
) -> None:
    """Each connection of the worker is terminated, again and again, while it works."""
    rig = postgresql_rig

    @rig.task("t")
    async def short() -> None:
        await asyncio.sleep(0.02)

    run_ids = rig.enqueue_many("t", 400)
    rig.store.close()
    store = Store.open(postgresql_url)
    worker = rig.worker(concurrency=5, store=store)
    killed = 0
    try:
        worker.start()
        with psycopg.connect(postgresql_url, autocommit=True) as other:

            def kill_another() -> bool:
                nonlocal killed
                rows = other.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity where "
                    "datname = current_database() and pid <> pg_backend_pid() "
                    "and backend_type = 'client backend' order by random() limit 1"
                ).fetchall()
                killed += len(rows)
                return killed >= 8

            eventually(kill_another, within=60, every=0.1)
        eventually(lambda: rig.count(Metric.RUNS_SETTLED, "succeeded") >= 390, within=60)
        eventually(
            lambda: all(rig.state(each) is RunState.SUCCEEDED for each in run_ids), within=60
        )
        assert {rig.view(each).attempt for each in run_ids} == {1}
        for loop in ("writer", "heartbeat", "monitor", "intake-default"):
            assert rig.count(Metric.LOOP_RESTARTS, loop) == 0
    finally:
        worker.stop()
        store.close()


def test_case_11_a_connection_that_goes_silent_is_thrown_away() -> None:
    """Half open: nothing arrives, and no error says so. The lease is renewed in time after it."""
    release = threading.Event()
    with PostgresServer(tcp=True) as server, Proxy(server.port) as proxy:
        name = server.databases.create()
        direct = server.databases.url(name)
        server.databases.disconnect()
        store = Store.open(direct, connections=1)
        migrate(store)
        through = make_url(direct).set(host="127.0.0.1", port=proxy.port)
        worker_store = Store.open(through.render_as_string(hide_password=False))
        rig = Rig(store)
        try:
            rig.task("slow")(lambda: release.wait(60) and None)
            rig.task("t")(lambda: None)
            slow = rig.enqueue("slow")
            worker = rig.worker(store=worker_store, lease_ms=9_000, store_call_ms=600)
            worker.start()
            eventually(lambda: rig.state(slow) is RunState.RUNNING)
            renewed = rig.view(slow).lease_expires_at
            # Idle connections are silent too; the renewals and scans run into it.
            proxy.swallow(True)
            eventually(lambda: worker._calls.away, within=30)
            eventually(lambda: rig.count(Metric.STORE_ERRORS) >= 2, within=30)

            proxy.swallow(False)

            other = rig.enqueue("t")
            eventually(lambda: rig.state(other) is RunState.SUCCEEDED, within=60)
            release.set()
            eventually(lambda: rig.state(slow) is RunState.SUCCEEDED, within=60)
            assert renewed is not None
            assert rig.view(slow).fence == 1
        finally:
            release.set()
            rig.close()
            store.close()
            worker_store.close()


def test_case_11_a_statement_that_hangs_is_broken_off(postgresql_url: str) -> None:
    store = Store.open(postgresql_url)
    calls = StoreCalls(store, pace=SystemPace(), counters=Counters(), hang_ms=100)
    failures: list[BaseException] = []

    def hang() -> None:
        try:
            calls.try_once(_sleep)
        except StoreUnavailableError as error:
            failures.append(error)

    hanging = threading.Thread(target=hang)
    hanging.start()

    eventually(calls.break_hung)

    hanging.join(10)
    assert not hanging.is_alive()
    assert failures
    seen = [(calls.away, calls.outages)]
    calls.run(_nothing)
    seen.append((calls.away, calls.outages))
    assert seen == [(True, 0), (False, 1)]
    store.close()


def _sleep(tx: object) -> None:
    tx.conn.exec_driver_sql("select pg_sleep(30)")  # type: ignore[attr-defined]


def _nothing(tx: object) -> None:
    """Find out whether it answers."""


@pytest.mark.parametrize("error", [RuntimeError("a bug"), SystemExit(1), KeyboardInterrupt()])
def test_case_11_a_loop_outlives_whatever_happens_in_it(error: BaseException) -> None:
    stopping, counters = threading.Event(), Counters()
    left = [error, error]
    came = threading.Event()

    def body() -> None:
        if left:
            raise left.pop()
        came.set()
        stopping.wait(20)

    loop = Loop("test", body, stopping=stopping, pace=SystemPace(), counters=counters)
    healthy = [loop.healthy]
    loop.start()

    assert came.wait(10)
    healthy.append(loop.healthy)
    assert counters.get(Metric.LOOP_RESTARTS, label="test") == 2
    stopping.set()
    assert loop.join(10)
    assert [*healthy, loop.healthy] == [False, True, False]


def test_case_11_a_loop_that_is_stopped_during_its_rest_ends() -> None:
    stopping = threading.Event()

    def body() -> None:
        stopping.set()
        raise RuntimeError("at the very end")

    loop = Loop("test", body, stopping=stopping, pace=SystemPace(), counters=Counters())
    loop.start()

    assert loop.join(10)
