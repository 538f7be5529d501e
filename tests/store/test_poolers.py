"""Behind a PgBouncer: that it is found without a setting, and what works there.

Its sessions go from hand to hand (`server_round_robin`), so whatever relies on one of them fails.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest
from sqlalchemy import Connection

from tests.store.acting import (
    a_checkpoint,
    a_claimed,
    do,
    end,
    lease_of,
    put,
    put_many,
    rows,
    take,
)
from tests.store.invariants import check_invariants
from tests.support.databases import Databases
from tests.support.eventually import eventually
from tests.support.pgbouncer import PgBouncer, needed
from workhorse import Workhorse
from workhorse.domain.findings import Code, Severity
from workhorse.domain.ids import new_run_id
from workhorse.domain.recording import Record, Recorded
from workhorse.domain.runs import RunState
from workhorse.errors import StoreUnavailableError
from workhorse.runtime.base.options import WorkerOptions
from workhorse.store.base.connecting import parse_url
from workhorse.store.base.credentials import Credentials
from workhorse.store.base.database import Store, Tx, writes_once
from workhorse.store.base.migrating import migrate
from workhorse.store.base.poolers import LENT
from workhorse.store.durable.transacting import transact
from workhorse.store.fleet.notifying import PostgresBells, PostgresLine
from workhorse.store.producing.ringing import ring
from workhorse.telemetry import Metric

pytestmark = needed()
BOUND = ["2s", "10s", "read committed", "off"]


@pytest.fixture(scope="module", params=["refusing", "ignoring"])
def pooler(request: pytest.FixtureRequest, postgres: Databases) -> Iterator[PgBouncer]:
    """One that refuses a session's options, and one that forgets them."""
    with PgBouncer(postgres.url(), ignores_options=request.param == "ignoring") as pooler:
        yield pooler


@pytest.fixture
def database(postgres: Databases, migrated_postgresql: str) -> Iterator[str]:
    name = postgres.create(template=migrated_postgresql)
    yield name
    postgres.discard(name)


@pytest.fixture
def store(pooler: PgBouncer, database: str) -> Iterator[Store]:
    store = Store.open(pooler.url(database))
    yield store
    check_invariants(store)
    store.close()


def look(tx: Tx) -> list[str]:
    names = (
        "lock_timeout", "idle_in_transaction_session_timeout", "transaction_isolation",
        "enable_seqscan",
    )  # fmt: skip
    return [tx.conn.exec_driver_sql(f"show {name}").scalar_one() for name in names]


def is_lent(tx: Tx) -> bool:
    return LENT in tx.conn.info


def test_each_transaction_is_bounded_without_a_setting(store: Store) -> None:
    assert [store.run(look) for _ in range(8)] == [BOUND] * 8
    assert store.run(writes_once(look)) == BOUND
    assert store.read(look) == BOUND
    assert store.run(is_lent)


def test_a_store_without_bounds_finds_it_too(store: Store) -> None:
    """It says nothing of a session that could be refused."""
    other = store.sibling(connections=1, bounded=False)
    assert other.run(is_lent)
    other.close()


def test_options_of_the_url_are_not_left_out(pooler: PgBouncer, database: str) -> None:
    store = Store.open(f"{pooler.url(database)}?options=-c%20lock_timeout%3D77", connections=1)
    if pooler.ignores_options:
        assert store.run(look) == BOUND
    else:
        with pytest.raises(StoreUnavailableError, match="unsupported startup parameter: options"):
            store.try_once(look)
    store.close()


def test_a_login_from_a_secret_gets_through(pooler: PgBouncer, database: str) -> None:
    url = pooler.url(database).replace("postgres@", "")
    read = Credentials(lambda: '{"username": "postgres", "password": "x"}', "the secret")
    store = Store.open(url, credentials=read)
    assert store.run(look) == BOUND
    store.close()


def test_the_tables_are_made_through_it(pooler: PgBouncer, postgres: Databases) -> None:
    name = postgres.create()
    store = Store.open(pooler.url(name))
    migrate(store)
    put(store)
    check_invariants(store)
    store.close()
    postgres.discard(name)


def test_no_statement_is_prepared(store: Store) -> None:
    """At the sixth time a driver would, in whatever session it has then."""
    for _ in range(12):
        put_many(store, 2)
        claimed = take(store, new_run_id(), scan=True, free=1).runs
        assert end(store, claimed[0]).written == {claimed[0].id: RunState.SUCCEEDED}
    found = "select count(*) from pg_prepared_statements"
    assert [rows(store, found) for _ in range(8)] == [[(0,)]] * 8


def test_more_clients_than_sessions_take_turns(pooler: PgBouncer, database: str) -> None:
    """20 stores, and five sessions."""

    def work(_: int) -> int:
        store = Store.open(pooler.url(database), connections=3)
        ends = [end(store, a_claimed(store)).written for _ in range(5)]
        store.close()
        return len(ends)

    with ThreadPoolExecutor(20) as threads:
        assert sum(threads.map(work, range(20))) == 100
    (pool,) = [each for each in pooler.show("pools") if each["database"] == database]
    assert pool["sv_idle"] + pool["sv_used"] + pool["sv_tested"] <= pooler.sessions


def test_a_store_goes_on_when_its_pooler_is_back(database: str, postgres: Databases) -> None:
    with PgBouncer(postgres.url()) as pooler:
        store = Store.open(pooler.url(database))
        claimed = a_claimed(store)
        pooler.stop(signal.SIGKILL)
        with pytest.raises(StoreUnavailableError):
            store.try_once(look)
        pooler.start()
        assert end(store, claimed).written == {claimed.id: RunState.SUCCEEDED}
        assert store.run(look) == BOUND
        store.close()


def test_a_session_that_is_kept_for_long_is_waited_for(database: str, postgres: Databases) -> None:
    """All sessions are lent to somebody else, who does not give them back in time."""
    with PgBouncer(postgres.url(), sessions=1, settings={"query_wait_timeout": "1"}) as pooler:
        store = Store.open(pooler.url(database))
        with psycopg.connect(pooler.url(database)) as other:
            other.execute("select 1")
            with pytest.raises(StoreUnavailableError):
                store.try_once(look)
        assert store.run(look) == BOUND
        store.close()


# -- bells ---------------------------------------------------------------------------------------


def test_a_line_through_it_says_that_it_hears_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workhorse.store.fleet.notifying.UNHEARD_S", 0.3)
    with (
        closing(PostgresBells(store, store.target).open_line()) as line,
        pytest.raises(StoreUnavailableError, match="no bell is heard: listen_url must be"),
    ):
        line.hear(["a"], 0)


def test_who_only_rings_may_do_so_through_it(
    store: Store, database: str, postgres: Databases
) -> None:
    direct = parse_url(postgres.url(database))
    with (
        closing(PostgresLine(direct, store.schema)) as listener,
        closing(PostgresLine(store.target, store.schema)) as line,
    ):
        assert listener.hear(["a"], 0) == {"a"}
        line.ring(["a"])
        assert line.hear([], 0) == set()
        assert listener.hear(["a"], 20_000) == {"a"}
        store.run(ring, ["a"])
        assert listener.hear(["a"], 20_000) == {"a"}


def test_a_session_of_its_own_is_heard_over(database: str, postgres: Databases) -> None:
    """A pooler in session mode is as good as none, once a bell was heard over it."""
    with PgBouncer(postgres.url(), mode="session") as pooler:
        store = Store.open(pooler.url(database))
        with closing(PostgresLine(store.target, store.schema)) as line:
            assert line.hear(["a"], 0) == {"a"}
            store.run(ring, ["a"])
            assert line.hear(["a"], 20_000) == {"a"}
        assert store.run(look) == BOUND
        store.close()


def test_doctor_and_the_log_say_that_nothing_is_heard(
    pooler: PgBouncer,
    database: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And runs go on, by scans."""
    monkeypatch.setattr("workhorse.store.fleet.notifying.UNHEARD_S", 0.3)
    with Workhorse(database_url=pooler.url(database), lane="notify") as app:
        work = app.task("work")(lambda: None)
        (found,) = app.lane.check("default")
        assert (found.code, found.severity) == (Code.BELL_UNHEARD, Severity.WARNING)
        assert "pooler in transaction mode" in found.message
        with app.worker():
            said = "the notify lane hears nothing: .* pooler in transaction mode"
            eventually(lambda: re.search(said, caplog.text))
            work.enqueue().result(timeout=60)


def test_past_it_bells_are_heard(pooler: PgBouncer, database: str, postgres: Databases) -> None:
    with Workhorse(
        database_url=pooler.url(database), listen_url=postgres.url(database), lane="notify"
    ) as app:
        work = app.task("work")(lambda: None)
        assert app.lane.check("default") == ()
        with app.worker(options=WorkerOptions(idle_ms=3_600_000)):
            eventually(lambda: app.counters.get(Metric.RINGS, label="heard") >= 1)
            heard = app.counters.get(Metric.RINGS, label="heard")
            work.enqueue().result(timeout=60)
            assert app.counters.get(Metric.RINGS, label="heard") > heard


# -- a handler's own transaction -----------------------------------------------------------------


def test_a_handlers_transaction_is_one_through_it(store: Store) -> None:
    claimed = a_claimed(store)
    own = store.sibling(connections=2, bounded=False)
    do(store, "create table kept (id int)")

    def operation(conn: Connection) -> str:
        conn.exec_driver_sql("insert into kept values (1)")
        return "1"

    record = Record(lease=lease_of(claimed), boundary=a_checkpoint())
    assert transact(own, record, operation, may_start=lambda: None).result is Recorded.STORED
    assert transact(own, record, operation, may_start=lambda: None).result is Recorded.EXISTS
    assert rows(store, "select count(*) from kept") == [(1,)]
    own.close()
