"""The disk is full: what does not fit is refused whole, and all goes on once there is room.

Docs: docs/guarantees.md.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import psycopg
import pytest
from sqlalchemy import event

from tests.store.acting import (
    a_claimed,
    a_run,
    end,
    live_row,
    put,
    put_many,
    reach,
    rows,
    seen,
    take,
)
from tests.store.invariants import check_invariants
from tests.support.eventually import eventually
from tests.support.postgres import PostgresServer
from tests.support.small_disk import SmallDisk, small_disk
from workhorse import AsyncContext, Workhorse
from workhorse.domain.outcomes import Finish
from workhorse.domain.runs import RunState
from workhorse.errors import StoreUnavailableError
from workhorse.runtime.base.options import WorkerOptions
from workhorse.store.base.database import Store
from workhorse.store.base.migrating import migrate
from workhorse.store.producing.enqueueing import enqueue

LARGE: Final = '"' + 20_000 * "x" + '"'
SAID: Final = "database or disk is full"
T = TypeVar("T")


def until_refused(call: Callable[[], T], said: str = SAID) -> list[T]:
    """Call again until the store has no room; return what the calls before have returned."""
    done: list[T] = []
    while len(done) < 1000:
        try:
            done.append(call())
        except StoreUnavailableError as error:
            if said not in str(error):
                raise
            return done
    raise AssertionError("the disk is not full")


@pytest.fixture
def disk() -> Iterator[SmallDisk]:
    with small_disk() as disk:
        yield disk


@pytest.fixture
def url(disk: SmallDisk, migrated_sqlite: Path) -> str:
    shutil.copyfile(migrated_sqlite, disk.folder / "workhorse.sqlite3")
    return f"sqlite:///{disk.folder / 'workhorse.sqlite3'}"


@pytest.fixture
def store(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr("workhorse.store.base.database._FIRST_REST", 0.0)
    store = Store.open(url)
    yield store
    check_invariants(store)
    store.close()


# -- the store -----------------------------------------------------------------------------------


def test_enqueues_that_do_not_fit_are_refused_whole(store: Store, disk: SmallDisk) -> None:
    """Some of a batch would have fitted: none of it is there."""
    first = put(store)
    disk.fill(leave=100_000)
    batch = [a_run(payload=LARGE) for _ in range(10)]

    with pytest.raises(StoreUnavailableError, match=SAID):
        store.run(enqueue, batch, reach=reach)

    assert rows(store, "select id from {s}runs") == [(first,)]
    disk.free()
    assert [each.run_id for each in store.run(enqueue, batch, reach=reach)] == [
        run.id for run in batch
    ]
    assert len(rows(store, "select id from {s}live")) == 11


def test_claims_and_settles_wait_for_room(store: Store, disk: SmallDisk) -> None:
    """What was claimed can be settled afterwards under the same lease, by the same store."""
    claimed = a_claimed(store)
    ready = put(store)
    disk.fill()

    until_refused(lambda: end(store, a_claimed(store)))
    with pytest.raises(StoreUnavailableError, match=SAID):
        end(store, claimed, Finish(RunState.SUCCEEDED, result=LARGE))
    assert seen(store, claimed.id).state is RunState.RUNNING  # what reads goes on
    assert live_row(store, claimed.id).token is not None

    disk.free()
    assert end(store, claimed, Finish(RunState.SUCCEEDED, result=LARGE)).written == {
        claimed.id: RunState.SUCCEEDED
    }
    assert [run.id for run in take(store, ready).runs] == [ready]


def test_a_process_that_starts_on_a_full_disk_is_told(
    url: str, disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no room for the log that every connection needs."""
    monkeypatch.setattr("workhorse.store.base.database._FIRST_REST", 0.0)
    disk.fill()
    store = Store.open(url)

    with pytest.raises(StoreUnavailableError, match="disk"):
        put(store)

    disk.free()
    run_id = put(store)
    assert seen(store, run_id).state is RunState.READY
    store.close()


def test_the_tables_cannot_be_made_on_a_full_disk(
    disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a migration had begun is not left behind; it is run again when there is room."""
    monkeypatch.setattr("workhorse.store.base.database._FIRST_REST", 0.0)
    disk.fill(leave=60_000)
    store = Store.open(f"sqlite:///{disk.folder / 'new.sqlite3'}")

    with pytest.raises(StoreUnavailableError, match="disk"):
        migrate(store)

    disk.free()
    migrate(store)
    put(store)
    check_invariants(store)
    store.close()


@pytest.mark.parametrize("batch", [1, 7])
def test_a_file_that_may_not_grow(
    sqlite_url: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit of the file's own says the same as a disk, on any machine."""
    monkeypatch.setattr("workhorse.store.base.database._FIRST_REST", 0.0)
    store = Store.open(sqlite_url)
    limit = [1 << 30]

    @event.listens_for(store.engine, "checkout")
    def bound(raw: Any, _record: object, _proxy: object) -> None:
        raw.execute(f"pragma max_page_count = {limit[0]}")

    limit[0] = rows(store, "pragma page_count")[0][0] + 40
    batches = until_refused(lambda: put_many(store, batch, payload=LARGE))
    kept = [run_id for each in batches for run_id in each]

    assert kept
    assert sorted(row[0] for row in rows(store, "select id from {s}live")) == sorted(kept)
    limit[0] = 1 << 30
    put(store, payload=LARGE)
    assert len(rows(store, "select id from {s}live")) == len(kept) + 1
    check_invariants(store)
    store.close()


# -- a worker ------------------------------------------------------------------------------------


@pytest.mark.parametrize("lane", ["memory", "polling"])
def test_a_worker_goes_on_when_there_is_room_again(url: str, disk: SmallDisk, lane: str) -> None:
    """Handlers that end, or store a checkpoint, while the disk is full are called once."""
    called: list[str] = []
    full = threading.Event()
    with Workhorse(database_url=url, lane=lane, lease_seconds=60) as app:

        @app.task("ends")
        def ends() -> str:
            called.append("ends")
            full.wait(60)
            return LARGE

        @app.task("stores")
        async def stores(ctx: AsyncContext) -> int:
            called.append("stores")
            await asyncio.to_thread(full.wait, 60)
            return len(await ctx.checkpoint("large", stage))

        async def stage() -> str:
            called.append("stage")
            return LARGE

        @app.task("short")
        def short() -> None:
            called.append("short")

        with app.worker(options=WorkerOptions(idle_ms=50)):
            ending, storing = ends.enqueue(), stores.enqueue()
            eventually(lambda: len(called) == 2)
            disk.fill()
            full.set()
            until_refused(short.enqueue)
            eventually(lambda: "stage" in called)
            assert rows(app.store, "select id from {s}outcomes") == []
            accepted = [row[0] for row in rows(app.store, "select id from {s}runs")]

            disk.free()

            assert (ending.result(timeout=60), storing.result(timeout=60)) == (LARGE, len(LARGE))
            short.enqueue().result(timeout=60)
            eventually(lambda: rows(app.store, "select id from {s}live") == [])
        assert Counter(called) == {"ends": 1, "stores": 1, "stage": 1, "short": len(accepted) - 1}
        assert rows(app.store, "select count(*) from {s}attempts") == [(0,)]
        check_invariants(app.store)


# -- PostgreSQL ----------------------------------------------------------------------------------


def test_a_full_tablespace_of_postgresql(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server says so (53100) and lives, since its own log lies elsewhere."""
    monkeypatch.setattr("workhorse.store.base.database._FIRST_REST", 0.0)
    with small_disk(megabytes=24) as disk, PostgresServer() as server:
        place = disk.folder / "tables"
        place.mkdir()
        os.chown(place, server.data.stat().st_uid, server.data.stat().st_gid)
        name = server.databases.create()
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute(f"create tablespace small location '{place}'")
            connection.execute(f"alter database {name} set default_tablespace to small")
        store = Store.open(server.url(name))
        migrate(store)
        claimed = a_claimed(store)
        disk.fill()
        draw = random.Random(1)

        kept = until_refused(
            lambda: put(store, payload=f'"{draw.randbytes(8_000).hex()}"'),
            "DiskFull, SQLSTATE 53100",
        )

        stored = {row[0] for row in rows(store, "select id::text from {s}live")}
        assert stored == {*kept, claimed.id}
        disk.free()
        put(store, payload=LARGE)
        assert end(store, claimed).written == {claimed.id: RunState.SUCCEEDED}
        check_invariants(store)
        store.close()
