"""The app object: what it opens, when, how often, and what it says when it cannot."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from datetime import timedelta
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

import workhorse
from lanes.memory import MemoryLane
from lanes.polling import PollingLane
from tests.support.eventually import eventually
from tests.support.postgres import PostgresServer
from workhorse.app import SettingsArguments, Workhorse
from workhorse.client import discovery
from workhorse.domain.runs import RunState
from workhorse.errors import ConfigurationError, SchemaMismatchError, StoreUnavailableError
from workhorse.handlers.tasks import Task
from workhorse.maintenance import Pass
from workhorse.ports import LaneContext
from workhorse.settings import Settings
from workhorse.store.base.database import Store


@pytest.fixture
def app(database_url: str) -> Iterator[Workhorse]:
    """An app on SQLite and then on PostgreSQL, without a broker."""
    with Workhorse(database_url=database_url, lane="polling") as app:
        yield app


@pytest.fixture
def double(app: Workhorse) -> Task[int, int]:
    """A task."""

    @app.task("double")
    def double(number: int) -> int:
        return number * 2

    return double


# -- opening -------------------------------------------------------------------------------------


def test_making_an_app_and_its_tasks_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that is not there is no trouble yet."""
    monkeypatch.setattr(Store, "open", _never)
    with Workhorse(database_url="postgresql://nowhere.invalid/x", lane="carrier-pigeon") as app:

        @app.task("double")
        def double(number: int) -> int:
            return number * 2

        assert double(2) == 4
        assert double.prepare(2).run.task == "double"
        assert app.run("0197c5a0-7b5e-7c7b-9f5d-1d4c3a1b2c3d").created is False
        assert repr(app) == "<Workhorse with 1 tasks, lane carrier-pigeon>"
        with pytest.raises(ConfigurationError, match="memory, notify, polling, sqs"):
            _ = app.lane


def _never(*_arguments: object, **_options: object) -> None:
    raise AssertionError("it was opened")


def test_threads_that_come_together_open_one_store(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one lane; the schema is looked at once."""
    opened: list[str] = []
    open_store, make_lane = Store.open, PollingLane.__init__

    def open_and_tell(*given: Any, **options: Any) -> Store:
        opened.append("store")
        return open_store(*given, **options)

    def make_and_tell(lane: PollingLane) -> None:
        opened.append("lane")
        make_lane(lane)

    monkeypatch.setattr(Store, "open", open_and_tell)
    monkeypatch.setattr(PollingLane, "__init__", make_and_tell)
    together = threading.Barrier(8, timeout=10)
    with Workhorse(database_url=database_url, lane="polling") as app:
        got: list[tuple[Store, object]] = []

        def use() -> None:
            together.wait()
            got.append((app.store, app.lane))

        threads = [threading.Thread(target=use) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)

        assert len(set(got)) == 1
        assert len(got) == 8
    assert sorted(opened) == ["lane", "store"]


def test_tables_are_made_on_request_only(empty_database_url: str) -> None:
    """On SQLite too; who forgot is told what to do, and can do it in the same process."""
    with Workhorse(database_url=empty_database_url, lane="polling") as app:

        @app.task()
        def work() -> int:
            return 1

        for call in (work.enqueue, app.worker, app.maintenance, app.admin.list_queues):
            with pytest.raises(SchemaMismatchError, match="run `workhorse migrate`"):
                call()
        first, second = app.migrate(), app.migrate()
        assert first == second
        assert work.run_now().result(timeout=0) == 1


def test_a_closed_app_opens_again_when_it_is_used(app: Workhorse, double: Task[int, int]) -> None:
    """Closing is for letting go, any number of times."""
    first = double.enqueue(1)
    store, lane = app.store, app.lane
    app.close()
    app.close()

    assert first.view().state is RunState.READY
    assert double.run_now(2).result(timeout=0) == 4
    assert app.store is not store
    assert app.lane is not lane


def test_closing_lets_go_of_everything_that_was_opened(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of what workers had; a lane of the caller's own stays open."""
    own = MemoryLane()
    closed: list[object] = []
    close_store = Store.close

    def close_and_tell(store: Store) -> None:
        closed.append(store)
        close_store(store)

    monkeypatch.setattr(own, "close", lambda: closed.append(own))
    monkeypatch.setattr(Store, "close", close_and_tell)
    app = Workhorse(database_url=database_url, lane=own)

    @app.task()
    def work() -> int:
        return 1

    work.run_now()
    app.worker()
    app.close()

    assert own not in closed
    assert len({id(store) for store in closed}) >= 3
    assert threading.active_count() < 10
    assert app.lane_name == "MemoryLane"


def test_processes_that_start_during_an_outage_wait_for_its_end(
    own_postgres: PostgresServer,
) -> None:
    """Nobody has to start them again."""
    url = own_postgres.url(own_postgres.databases.create())
    with Workhorse(database_url=url, lane="polling") as before:
        before.migrate()
    own_postgres.stop()

    with Workhorse(database_url=url, lane="polling") as app:
        echo = app.task("echo")(lambda: "heard")
        maintenance, worker = app.maintenance(), app.worker()
        passes: list[Pass] = []
        thread = threading.Thread(target=maintenance.run, kwargs={"on_pass": passes.append})
        try:
            thread.start()
            worker.start()
            own_postgres.start()
            assert echo.enqueue(delay=timedelta(milliseconds=1)).result(60) == "heard"
            eventually(lambda: any(done.counts for done in passes), within=60)
        finally:
            worker.stop(0)
            maintenance.stop()
            thread.join(60)
    assert not thread.is_alive()


def test_a_pass_by_hand_waits_for_no_database(tmp_path: Path) -> None:
    """A scheduled task has an exit code to tell it by."""
    url = f"sqlite:///{tmp_path}/later/x.sqlite3"
    with Workhorse(database_url=url, lane="polling") as app:
        maintenance = app.maintenance()
        with pytest.raises(StoreUnavailableError):
            maintenance.run_once()
        (tmp_path / "later").mkdir()
        with pytest.raises(SchemaMismatchError):
            maintenance.run()


def test_a_workers_connections_go_with_it(
    app: Workhorse, double: Task[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may make one worker after the other, and each has a few."""
    closed: list[Store] = []
    close = Store.close

    def close_and_tell(store: Store) -> None:
        closed.append(store)
        close(store)

    monkeypatch.setattr(Store, "close", close_and_tell)
    for number in range(2):
        double.enqueue(number)
        worker = app.worker()
        assert worker.drain() == 1
        worker.stop(0)
        closed.clear()
        del worker
        gc.collect()
        assert len(closed) == 1
        assert closed[0] is not app.store


def test_a_worker_opens_no_connections_but_its_own(database_url: str) -> None:
    """What checks the schema goes on as the worker's; the pool of producers stays empty."""
    opened: list[Store] = []
    with Workhorse(database_url=database_url, lane="polling") as app:
        double = app.task("double")(lambda: 2)
        producers = app._resources.store()
        event.listen(producers.engine, "connect", lambda *_: opened.append(producers))
        worker = app.worker()
        with worker:
            pass
        assert opened == []

        double.enqueue()
        assert opened, "whoever enqueues has a pool of its own"


def test_a_single_enqueue_is_one_transaction(app: Workhorse, double: Task[int, int]) -> None:
    """The schema is looked at before the first one, and never again."""
    double.enqueue(0)
    begun: list[str] = []
    event.listen(app.store.engine, "begin", lambda _connection: begun.append("begin"))

    double.enqueue(1)
    double.enqueue(2, key="k", session="s")

    assert begun == ["begin", "begin"]


# -- settings ------------------------------------------------------------------------------------


def test_arguments_are_the_settings_fields() -> None:
    """Every field can be an argument but the one that names the app, and nothing else can."""
    fields = set(Settings.model_fields) - {"schema_name", "lane", "app"} | {"schema"}
    assert set(SettingsArguments.__annotations__) == fields


def test_arguments_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """And None leaves a setting to it."""
    monkeypatch.setenv("WORKHORSE_QUEUES", "a,b")
    monkeypatch.setenv("WORKHORSE_CONCURRENCY", "3")
    monkeypatch.setenv("WORKHORSE_LANE", "memory")
    monkeypatch.setenv("WORKHORSE_SCHEMA", "theirs")
    app = Workhorse(queues=["c"], concurrency=None, schema="ours")

    assert app.settings.queues == ("c",)
    assert app.settings.concurrency == 3
    assert app.settings.schema_name == "ours"
    assert app.lane_name == "memory"


@pytest.mark.parametrize("arguments", [{"queue": "a"}, {"concurrency": 0}, {"queues": ["A B"]}])
def test_a_wrong_setting_is_named(arguments: dict[str, Any]) -> None:
    """When the app is made, not when it is used."""
    (name,) = arguments
    with pytest.raises(ConfigurationError, match=name):
        Workhorse(**arguments)


def test_an_environment_scopes_the_schema(postgres: Any, empty_postgresql_url: str) -> None:
    """Two environments share a database and see nothing of each other."""
    runs = {}
    for environment in ("", "staging"):
        with Workhorse(
            database_url=empty_postgresql_url, lane="polling", environment=environment
        ) as app:
            app.migrate()

            @app.task("work")
            def work() -> None:
                pass

            runs[environment] = work.enqueue().id
            assert [view.id for view in app.admin.list_runs()] == [runs[environment]]
    assert len(set(runs.values())) == 2


# -- lanes ---------------------------------------------------------------------------------------


def _offer(monkeypatch: pytest.MonkeyPatch, *entries: tuple[str, str]) -> None:
    offered = EntryPoints(EntryPoint(name, value, discovery.GROUP) for name, value in entries)
    monkeypatch.setattr(discovery, "entry_points", lambda **wanted: offered.select(**wanted))


def test_the_lanes_that_are_installed_are_found_by_name() -> None:
    """The three that come with this package, at least."""
    assert {"memory", "polling", "sqs"} <= set(discovery.lane_names())
    with Workhorse(database_url="sqlite:///none.sqlite3", lane="memory") as app:
        assert isinstance(app.lane, MemoryLane)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("no_such_module:Lane", "cannot be loaded from no_such_module:Lane"),
        ("lanes.polling:NoSuchLane", "cannot be loaded from lanes.polling:NoSuchLane"),
        ("lanes.wire:VERSION_OR_NONE", "cannot be loaded"),
        ("tests.app.test_app:_never", r"no class method open\(context\)"),
        ("tests.app.test_app:NoLane", "NoLane is no lane"),
    ],
)
def test_a_lane_that_is_none_is_refused(
    value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says which one it is and where it came from."""
    _offer(monkeypatch, ("odd", value))
    with (
        Workhorse(database_url="sqlite:///none.sqlite3", lane="odd") as app,
        pytest.raises(ConfigurationError, match=message),
    ):
        _ = app.lane


class NoLane:
    """Has an `open`, and nothing else that a lane has."""

    @classmethod
    def open(cls, context: LaneContext) -> NoLane:
        assert context.settings.lane == "odd"
        return cls()


def test_two_packages_with_one_lane_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which one would win depends on nothing that anybody sees; the same one twice is fine."""
    polling, memory = ("same", "lanes.polling:PollingLane"), ("same", "lanes.memory:MemoryLane")
    _offer(monkeypatch, polling, memory)
    app = Workhorse(database_url="sqlite:///none.sqlite3", lane="same")
    with pytest.raises(ConfigurationError, match="offered by several packages"):
        _ = app.lane
    _offer(monkeypatch, polling, polling)
    assert isinstance(app.lane, PollingLane)
    app.close()


def test_no_package_with_lanes_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a checkout that was never installed."""
    _offer(monkeypatch)
    with pytest.raises(ConfigurationError, match=r"no package offers 'workhorse\.lanes'"):
        _ = Workhorse(database_url="sqlite:///none.sqlite3", lane="polling").lane


# -- parts ---------------------------------------------------------------------------------------


def test_a_worker_takes_its_numbers_from_the_settings(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its arguments win."""
    made: list[dict[str, Any]] = []

    class Recorded:
        def __init__(self, *arguments: Any, **options: Any) -> None:
            made.append({"arguments": arguments, **options})

    monkeypatch.setattr("workhorse.runtime.process.worker.Worker", Recorded)
    with Workhorse(
        database_url=database_url,
        lane="polling",
        queues="a,b",
        concurrency=7,
        poll_ms=70,
        lease_seconds=2.5,
        drain_seconds=9,
        health_port=0,
    ) as app:
        app.worker()
        app.worker("c", 2, worker_id="w-1", poll_ms=5)

        assert made[0]["arguments"][:4] == (("a", "b"), 7, None, 70)
        assert made[1]["arguments"][:4] == (("c",), 2, "w-1", 5)
        options = made[0]["options"]
        assert (options.lease_ms, options.shutdown.drain_ms) == (2500, 9000)
        assert (options.health_port, options.lane_name) == (0, "polling")
        assert len({id(one["store"]) for one in made} | {id(app.store)}) == 3, (
            "connections of its own"
        )


def test_a_worker_runs_what_was_enqueued(app: Workhorse, double: Task[int, int]) -> None:
    """From the app alone: producer, worker, result."""
    run = double.enqueue(21)
    worker = app.worker()
    worker.start()
    try:
        assert run.result(timeout=20) == 42
    finally:
        assert worker.stop()


# -- processes -----------------------------------------------------------------------------------


_FORK = """
    import os, sys
    from workhorse.app import Workhorse

    app = Workhorse(database_url=sys.argv[1], lane="polling")

    @app.task("double")
    def double(number: int) -> int:
        return number * 2

    double.run_now(1)
    before = app.lane
    child = os.fork()
    if child == 0:
        try:
            assert app.lane is not before
            run = double.run_now(2)
            print("child", run.result(timeout=0), flush=True)
            app.close()
            os._exit(0)
        except BaseException as error:
            print("child failed", repr(error), flush=True)
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert app.lane is before
    for number in range(3):
        print("parent", status, double.run_now(number).result(timeout=0), flush=True)
    app.close()
"""


def test_a_forked_process_has_connections_of_its_own(database_url: str) -> None:
    """It works on after its parent opened, and its end closes nothing of the parent's."""
    program = textwrap.dedent(_FORK)
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program, database_url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.stdout.splitlines() == ["child 4", "parent 0 0", "parent 0 2", "parent 0 4"], (
        done.stderr
    )


def _loaded_by(program: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{program}\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(done.stdout.split())


def test_importing_the_package_alone_loads_next_to_nothing() -> None:
    """So that a command which only prints its help is quick."""
    loaded = _loaded_by("import workhorse")
    heavy = {"sqlalchemy", "pydantic", "psycopg", "boto3", "alembic", "asyncio", "workhorse.app"}
    assert heavy.isdisjoint(loaded)


def test_a_lane_without_a_broker_loads_no_broker(sqlite_url: str) -> None:
    """Half a second of boto3 is spared whoever does not use it."""
    loaded = _loaded_by(
        "from workhorse import Workhorse\n"
        f"app = Workhorse(database_url={sqlite_url!r}, lane='polling')\n"
        "app.task('work')(lambda: None).enqueue()\n"
        "app.close()"
    )
    assert "lanes.polling" in loaded
    assert {"boto3", "botocore", "aioboto3", "lanes.sqs", "lanes.memory"}.isdisjoint(loaded)


@pytest.mark.parametrize("name", workhorse.__all__)
def test_every_public_name_is_there(name: str) -> None:
    """Each is found where it lives, and kept."""
    value = getattr(workhorse, name)
    assert getattr(workhorse, name) is value
    assert name in dir(workhorse)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    """As for any module."""
    with pytest.raises(AttributeError, match="Pony"):
        _ = workhorse.Pony
