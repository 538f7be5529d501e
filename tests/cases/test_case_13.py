"""A pool of two for fifty slots, and a server whose connections are all taken."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import psycopg
import pytest

from tests.runtime.rig import Rig
from tests.support.eventually import eventually
from tests.support.postgres import PostgresServer
from workhorse.domain.runs import RunState
from workhorse.store.base.database import Store
from workhorse.store.base.migrating import migrate
from workhorse.telemetry import Metric

AT_MOST = 30
"""What the server gives, all told."""


@pytest.fixture
def small_server() -> Iterator[PostgresServer]:
    settings = {"max_connections": str(AT_MOST), "superuser_reserved_connections": "0"}
    with PostgresServer(settings=settings) as server:
        yield server


def _take_all(url: str, held: list[psycopg.Connection]) -> None:
    """Hold connections until the server refuses one."""
    with contextlib.suppress(psycopg.OperationalError):
        while True:
            held.append(psycopg.connect(url))


def _end_all(held: list[psycopg.Connection]) -> None:
    while held:
        held.pop().close()


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_case_13_a_lack_of_connections_is_no_failed_attempt(
    small_server: PostgresServer, kind: str
) -> None:
    """Handlers use connections of their own; then idle ones take all that the server has.

    The worker's own are killed meanwhile. It waits, spends nothing, and goes on by itself.
    """
    name = small_server.databases.create()
    url = small_server.databases.url(name)
    small_server.databases.disconnect()
    producer, own = Store.open(url, connections=1), Store.open(url, connections=2)
    migrate(producer)
    rig = Rig(producer)
    gate, own_place = threading.Event(), threading.Semaphore(AT_MOST // 2)

    def work() -> None:
        """Wait for a connection of its own, as a handler's pool does."""
        gate.wait(60)
        with own_place:
            eventually(query, within=60, every=0.3)

    def query() -> bool:
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(url) as connection:
            return connection.execute("select true").fetchone() == (True,)
        return False

    rig.task("light")(lambda: gate.wait(60) and None)

    if kind == "plain":
        rig.task("t")(work)
    else:

        @rig.task("t")
        async def work_async() -> None:
            await asyncio.to_thread(work)

    held: list[psycopg.Connection] = []
    try:
        # The light one is settled while the server has no connection to give.
        runs = [*rig.enqueue_many("t", 49), rig.enqueue("light")]
        worker = rig.worker(concurrency=50, store=own)
        worker.start()
        eventually(lambda: len(worker._parts.holdings.all()) == 50)
        with psycopg.connect(url, autocommit=True) as watching:
            ((open_ones,),) = watching.execute(
                "select count(*) from pg_stat_activity where datname = current_database() "
                "and pid <> pg_backend_pid() and backend_type = 'client backend'"
            ).fetchall()
            assert open_ones <= 1 + 3  # the producer's own, and the worker's few: not one a slot
            later = rig.enqueue_many("t", 10)

            def only_idle_ones_are_left() -> bool:
                """Take what there is, and what others have too, before they are back."""
                _take_all(url, held)
                others = watching.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity where pid <> all(%s) "
                    "and pid <> pg_backend_pid() and backend_type = 'client backend'",
                    [[each.info.backend_pid for each in held]],
                ).fetchall()
                return not others and len(held) == AT_MOST - 1

            eventually(only_idle_ones_are_left, within=60)
            before = rig.count(Metric.STORE_ERRORS)
            gate.set()
            eventually(lambda: rig.count(Metric.STORE_ERRORS) >= before + 2)
            assert worker._calls.away

            _end_all(held)
        eventually(
            lambda: all(rig.state(each) is RunState.SUCCEEDED for each in [*runs, *later]),
            within=60,
        )
        views = [rig.view(each) for each in [*runs, *later]]
        assert {(view.attempt, view.fence) for view in views} == {(1, 1)}
        assert not [name for name in rig.counters.snapshot() if Metric.LOOP_RESTARTS in name]
    finally:
        gate.set()
        _end_all(held)
        rig.close()
        own.close()
        producer.close()
