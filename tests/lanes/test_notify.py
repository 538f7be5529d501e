"""The lane over LISTEN and NOTIFY, on a real PostgreSQL: the suite, and what is its own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import create_engine, make_url
from sqlalchemy.ext.asyncio import create_async_engine

from lanes.notify import NotifyLane, Timing
from tests.runtime.proxy import Proxy
from tests.support.databases import Databases
from tests.support.eventually import eventually
from tests.support.postgres import PostgresServer
from workhorse import Workhorse
from workhorse.domain.findings import Code, Severity
from workhorse.domain.ids import new_run_id
from workhorse.domain.runs import RunState
from workhorse.errors import ConfigurationError
from workhorse.handlers.tasks import Task
from workhorse.ports import Bells, Lane, LaneContext, Outgoing, Wakeup
from workhorse.runtime.base.options import WorkerOptions
from workhorse.settings import load_settings
from workhorse.store.base.database import Store
from workhorse.store.fleet.notifying import PostgresLine, bells_of
from workhorse.telemetry import Counters, Metric
from workhorse.testing import LaneSuite

QUICK = Timing(first_rest_s=0.02, longest_rest_s=0.1, unheard_s=0.5)
# No scan of its own within a test: what runs in time, runs because a bell was heard.
NEVER = 3_600_000
ONLY_BELLS = WorkerOptions(idle_ms=NEVER)

_LISTENERS = (
    "select pid from pg_stat_activity "
    "where datname = current_database() and application_name = 'workhorse-listen'"
)


@pytest.fixture
def bells(postgresql_url: str) -> Iterator[Bells]:
    store = Store.open(postgresql_url)
    bells = bells_of(store, None)
    assert bells is not None
    yield bells
    store.close()


@pytest.fixture
def admin(postgresql_url: str) -> Iterator[psycopg.Connection[tuple[int]]]:
    with psycopg.connect(postgresql_url, autocommit=True) as connection:
        yield connection


def listeners(admin: psycopg.Connection[tuple[int]]) -> list[int]:
    return [row[0] for row in admin.execute(_LISTENERS).fetchall()]


class TestNotifyLane(LaneSuite):
    @pytest.fixture
    def lane(self, bells: Bells, postgresql_url: str, postgres: Databases) -> Iterator[Lane]:
        self._base_url = postgres.url()
        self._database = make_url(postgresql_url).database or ""
        with closing(NotifyLane(bells, Counters(), timing=QUICK)) as lane:
            yield lane

    @contextmanager
    def broker_away(self, lane: Lane) -> Iterator[None]:
        """The database lets nobody in any more."""
        database = sql.Identifier(self._database)
        with psycopg.connect(self._base_url, autocommit=True) as server:
            server.execute(sql.SQL("alter database {} allow_connections false").format(database))
            server.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s",
                [self._database],
            )
            yield
            server.execute(sql.SQL("alter database {} allow_connections true").format(database))


# -- through an app ------------------------------------------------------------------------------


@pytest.fixture
def app(postgresql_url: str) -> Iterator[Workhorse]:
    """A producer's app; the worker is another one's, as in another process."""
    with Workhorse(database_url=postgresql_url, lane="notify") as app:
        yield app


@pytest.fixture
def work(app: Workhorse) -> Task[Any, None]:
    return app.task("work")(nothing)


def nothing() -> None:
    """Do no work."""


@pytest.fixture
def fleet(postgresql_url: str) -> Iterator[Workhorse]:
    """An app whose worker is up, and scans only when it hears a bell."""
    with Workhorse(database_url=postgresql_url, lane="notify") as fleet:
        fleet.task("work")(nothing)
        with fleet.worker(["default", "other"], poll_ms=NEVER, options=ONLY_BELLS):
            eventually(lambda: rings(fleet, "heard") == 2)
            eventually(lambda: fleet.counters.get(Metric.SCAN_PAGES) >= 4)
            yield fleet


def rings(app: Workhorse, label: str) -> int:
    return app.counters.get(Metric.RINGS, label=label)


def has_run(app: Workhorse, run_id: str) -> Callable[[], bool]:
    return lambda: app.run(run_id).view().state is RunState.SUCCEEDED


def test_an_enqueue_in_another_process_wakes_the_worker(
    app: Workhorse, fleet: Workhorse, work: Task[Any, None]
) -> None:
    """One ring, within the transaction that stores the run; the lane itself opens nothing."""
    eventually(has_run(app, work.enqueue().id))
    assert (rings(app, "inside"), rings(app, "sent")) == (1, 0)
    assert app.counters.get(Metric.WAKEUPS_SENT) == 0


def test_an_asynchronous_enqueue_wakes_it_too(
    app: Workhorse, fleet: Workhorse, work: Task[Any, None]
) -> None:
    run = asyncio.run(work.enqueue_async())
    eventually(has_run(app, run.id))
    assert rings(app, "inside") == 1


def test_a_bulk_enqueue_wakes_all_its_queues(
    app: Workhorse, fleet: Workhorse, work: Task[Any, None]
) -> None:
    runs = app.enqueue_many([work.prepare(), *(work.prepare(queue="other") for _ in range(30))])
    eventually(lambda: all(has_run(app, run.id)() for run in runs))
    assert rings(app, "inside") == 2


def test_a_storm_of_enqueues_is_debounced(
    app: Workhorse, fleet: Workhorse, work: Task[Any, None]
) -> None:
    """And the last run of it is heard of, too."""
    runs = [work.enqueue() for _ in range(60)]
    eventually(lambda: all(has_run(app, run.id)() for run in runs))
    assert rings(app, "inside") + app.counters.get(Metric.WAKEUPS_SENT) == 60
    assert rings(app, "inside") + rings(app, "sent") < 60


_FULL = """
create function {schema}.full() returns trigger language plpgsql as $$
begin
  if exists (select from pg_locks where pid = pg_backend_pid() and locktype = 'advisory') then
    raise exception 'too many notifications in the NOTIFY queue' using errcode = '54000';
  end if;
  return null;
end $$;
create constraint trigger full_queue after insert on {schema}.live
  deferrable initially deferred for each row execute function {schema}.full()
"""
"""Refuses each commit that has rung, as PostgreSQL does where its queue of 8 GB is full."""


@pytest.mark.parametrize("count", [1, 3])
def test_where_no_notification_is_taken_runs_are_stored_without(
    app: Workhorse,
    work: Task[Any, None],
    caplog: pytest.LogCaptureFixture,
    count: int,
) -> None:
    with app.store.engine.begin() as connection:
        connection.exec_driver_sql(_FULL.format(schema=app.store.schema))

    for _ in range(2):
        runs = app.enqueue_many([work.prepare() for _ in range(count)])
        assert {run.view().state for run in runs} == {RunState.READY}

    assert work.enqueue().view().state is RunState.READY
    said = [each for each in caplog.records if "no notification" in each.getMessage()]
    assert len(said) == 1


def test_a_run_that_is_executed_here_rings_nobody(
    app: Workhorse, fleet: Workhorse, work: Task[Any, None]
) -> None:
    """The worker that heard it would be quicker."""
    assert has_run(app, work.run_now().id)()
    assert (rings(app, "inside"), rings(app, "sent")) == (0, 0)
    assert fleet.counters.get(Metric.RUNS_CLAIMED) == 0


def test_a_callers_transaction_rings_at_its_commit(
    app: Workhorse, fleet: Workhorse, work: Task[Any, None], postgresql_url: str
) -> None:
    engine = create_engine(make_url(postgresql_url).set(drivername="postgresql+psycopg"))
    with engine.connect() as connection:
        with connection.begin() as transaction:
            dropped = work.enqueue(connection=connection)
            transaction.rollback()
        with connection.begin():
            run = work.enqueue(connection=connection)
            other = work.enqueue(queue="other")
            eventually(has_run(app, other.id))
            assert app.run(other.id).view().queue == "other"
    # Where the second came within the gap after the first's ring, its own was sent just now.
    eventually(has_run(app, run.id))
    engine.dispose()
    with pytest.raises(LookupError):
        dropped.view()


def test_an_async_drivers_transaction_rings_at_its_commit(
    app: Workhorse, fleet: Workhorse, work: Task[Any, None], postgresql_url: str
) -> None:
    async def enqueue() -> str:
        url = make_url(postgresql_url).set(drivername="postgresql+asyncpg")
        engine = create_async_engine(url)
        async with engine.begin() as connection:
            run = await work.enqueue_async(connection=connection)
        await engine.dispose()
        return run.id

    eventually(has_run(app, asyncio.run(enqueue())))
    assert rings(app, "inside") == 1


def test_a_transaction_of_two_phases_rings_after_the_second() -> None:
    """PostgreSQL prepares none that has rung."""
    with PostgresServer(settings={"max_prepared_transactions": "4"}) as server:
        url = server.url()
        with Workhorse(database_url=url, lane="notify") as app:
            app.migrate()
            work = app.task("work")(nothing)
            engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"))
            with engine.connect() as connection, listening(app, "default") as line:
                transaction = connection.begin_twophase()
                work.enqueue(connection=connection)
                transaction.prepare()
                app.flush()
                assert (rings(app, "inside"), rings(app, "sent")) == (0, 0)
                transaction.commit()
                app.flush()
                assert (rings(app, "inside"), rings(app, "sent")) == (0, 1)
                assert line.hear(["default"], 20_000) == {"default"}
            engine.dispose()


def test_what_other_transactions_make_ready_is_rung_for(
    app: Workhorse, fleet: Workhorse, postgresql_url: str
) -> None:
    """A signal, here: its sender is another process than the worker."""

    def wait(ctx: object) -> str:
        return str(ctx.wait_for_signal("go"))  # type: ignore[attr-defined]

    with Workhorse(database_url=postgresql_url, lane="notify") as waiting:
        waiting.task("waits", queue="third")(wait)
        with waiting.worker(["third"], poll_ms=NEVER, options=ONLY_BELLS):
            run = app.task("waits", queue="third")(wait).enqueue()
            eventually(lambda: run.view().state is RunState.WAITING)
            app.send_signal(run.id, "go", "on")
            assert run.result(timeout=20) == "on"


@contextmanager
def listening(app: Workhorse, queue: str) -> Iterator[PostgresLine]:
    with closing(PostgresLine(app.store.target, app.store.schema)) as line:
        line.hear([queue], 0)
        yield line


# -- connections ---------------------------------------------------------------------------------


def test_a_process_has_one_connection_for_all_its_bells(
    app: Workhorse,
    fleet: Workhorse,
    work: Task[Any, None],
    admin: psycopg.Connection[tuple[int]],
) -> None:
    """However many workers and queues; a producer that enqueues now and then has none."""
    with fleet.worker(["third", "default"], poll_ms=NEVER, options=ONLY_BELLS):
        eventually(lambda: rings(fleet, "heard") >= 3)
        eventually(has_run(app, work.enqueue().id))
        assert len(listeners(admin)) == 1


def test_closing_ends_the_connection(app: Workhorse, admin: psycopg.Connection[tuple[int]]) -> None:
    receiver = app.lane.receiver("default")
    eventually(lambda: len(listeners(admin)) == 1)
    app.close()
    assert receiver.receive(1, 3_600_000) == []
    eventually(lambda: listeners(admin) == [])
    assert "workhorse-notify" not in {thread.name for thread in threading.enumerate()}


def test_case_11_killed_listeners_heal(
    app: Workhorse,
    fleet: Workhorse,
    work: Task[Any, None],
    admin: psycopg.Connection[tuple[int]],
) -> None:
    """What is enqueued meanwhile runs, since each queue is scanned when the line is back."""
    killed: set[int] = set()
    runs = []
    while len(killed) < 5:
        for pid in eventually(lambda: set(listeners(admin)) - killed, within=30):
            admin.execute("select pg_terminate_backend(%s)", [pid])
            killed.add(pid)
        runs.append(work.enqueue())
    eventually(lambda: all(has_run(app, run.id)() for run in runs), within=30)
    eventually(lambda: set(listeners(admin)) - killed, within=30)
    assert fleet.counters.get(Metric.RECEIVE_ERRORS) == 5

    heard = rings(fleet, "heard")
    eventually(has_run(app, work.enqueue().id))
    assert rings(fleet, "heard") > heard


def test_case_11_a_listener_that_goes_silent_heals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scans cover it, and it is replaced without a restart."""
    monkeypatch.setattr(PostgresLine.__init__, "__kwdefaults__", {"check_s": 0.1, "answer_s": 0.5})
    with PostgresServer(tcp=True) as server, Proxy(server.port) as proxy:
        url = server.url()
        through = make_url(url).set(port=proxy.port).render_as_string(hide_password=False)
        with (
            Workhorse(database_url=url, lane="notify") as app,
            Workhorse(database_url=url, lane="notify", listen_url=through) as fleet,
        ):
            app.migrate()
            work = app.task("work")(nothing)
            fleet.task("work")(nothing)
            with fleet.worker(options=WorkerOptions(idle_ms=100)):
                eventually(lambda: rings(fleet, "heard") == 1)
                proxy.swallow(True)
                eventually(lambda: fleet.counters.get(Metric.RECEIVE_ERRORS) >= 1, within=30)

                eventually(has_run(app, work.enqueue().id))

                proxy.swallow(False)
                eventually(lambda: rings(fleet, "heard") >= 2, within=60)
                heard = rings(fleet, "heard")
                eventually(has_run(app, work.enqueue().id))
                eventually(lambda: rings(fleet, "heard") > heard)


_FORKED = """
import os, sys, threading
from tests.support.eventually import eventually
from workhorse import Workhorse
from workhorse.telemetry import Metric

app = Workhorse(database_url=sys.argv[1], lane="notify")
work = app.task("work")(lambda: None)

def heard():
    return app.counters.get(Metric.RINGS, label="heard")

receiver = app.lane.receiver("default")
eventually(lambda: heard() == 1)
before = app.lane
child = os.fork()
if child == 0:
    code = 1
    try:
        assert app.lane is not before
        for _ in range(3):
            work.enqueue()
        own = app.lane.receiver("default")
        eventually(lambda: heard() >= 1)
        app.close()
        code = 0
    finally:
        os._exit(code)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0
assert app.counters.get(Metric.RECEIVE_ERRORS) == 0
eventually(lambda: heard() > 1)
before = heard()
work.enqueue()
eventually(lambda: heard() > before)
app.close()
print("both heard")
"""


def test_a_forked_process_has_a_line_of_its_own(postgresql_url: str) -> None:
    """Its parent hears on, over the line that it had."""
    done = subprocess.run(
        [
            sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning",
            "-c", textwrap.dedent(_FORKED), postgresql_url,
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert done.stdout == "both heard\n", done.stderr


def test_environments_do_not_hear_each_other(postgresql_url: str) -> None:
    with (
        Workhorse(database_url=postgresql_url, lane="notify") as one,
        Workhorse(database_url=postgresql_url, lane="notify", environment="two") as two,
    ):
        two.migrate()
        with listening(one, "default") as line, listening(two, "default") as other:
            two.task("work")(nothing).enqueue()
            assert other.hear(["default"], 20_000) == {"default"}
            one.task("work")(nothing).enqueue()
            assert line.hear(["default"], 20_000) == {"default"}
            assert other.hear(["default"], 0) == set()


# -- settings, and what is looked at -------------------------------------------------------------


def test_sqlite_has_no_bells_to_ring(sqlite_url: str) -> None:
    with (
        Workhorse(database_url=sqlite_url, lane="notify") as app,
        pytest.raises(ConfigurationError, match=r"needs a store on PostgreSQL.*'polling'"),
    ):
        _ = app.lane


def test_a_pooler_needs_a_way_past_it(postgresql_url: str) -> None:
    with (
        Workhorse(database_url=postgresql_url, lane="notify", pooler=True) as app,
        pytest.raises(ConfigurationError, match="listen_url"),
    ):
        _ = app.lane
    with Workhorse(
        database_url=postgresql_url, lane="notify", pooler=True, listen_url=postgresql_url
    ) as app:
        assert app.lane.check("default") == ()


def test_opening_the_lane_connects_to_nothing() -> None:
    settings = load_settings(database_url="postgresql://127.0.0.1:1/nowhere", lane="notify")
    store = Store.open(settings.database_url.get_secret_value())
    context = LaneContext(settings, Counters(), lambda: bells_of(store, None))
    with closing(NotifyLane.open(context)) as lane:
        assert lane.announce(["q"]) == {"q"}
        (found,) = lane.check("q")
        assert "127.0.0.1:1/nowhere cannot be listened to" in found.message


def test_a_process_that_cannot_start_a_thread_rings_once_it_can(
    bells: Bells, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it can be closed before."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    outgoing = [Outgoing(Wakeup(new_run_id(), "q"))]
    with closing(NotifyLane(bells, Counters())) as lane, monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="start new thread"):
            lane.send(outgoing)
        lane.close()
    with closing(NotifyLane(bells, Counters())) as lane:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="start new thread"):
                lane.send(outgoing)
        assert lane.send(outgoing).sent == 1


def test_doctor_says_where_nothing_is_heard(
    postgresql_url: str, postgres: Databases, migrated_postgresql: str
) -> None:
    """Another database answers as readily as the right one, and as a pooler's connection does."""
    name = postgres.create(template=migrated_postgresql)
    store = Store.open(postgresql_url)
    bells = bells_of(store, postgres.url(name))
    assert bells is not None
    with closing(NotifyLane(bells, Counters(), timing=QUICK)) as lane:
        (found,) = lane.check("q")
    assert (found.code, found.severity) == (Code.BELL_UNHEARD, Severity.WARNING)
    assert found.message.startswith("queue q: its bell was rung and not heard")
    assert "listen_url" in found.advice
    store.close()
    postgres.discard(name)
