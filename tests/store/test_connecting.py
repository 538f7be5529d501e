"""Which URLs name a database, how it is described, and what each connection is told."""

from __future__ import annotations

import json
import os
import traceback
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url
from sqlalchemy.exc import DataError, IntegrityError

from tests.store.acting import do, put, put_many, rows, take
from workhorse.domain.ids import new_run_id
from workhorse.errors import ConfigurationError
from workhorse.store.base.connecting import parse_url
from workhorse.store.base.database import Store, Tx, writes_once
from workhorse.store.base.poolers import LENT, Opener


@pytest.mark.parametrize(
    ("url", "description"),
    [
        ("postgresql://u:secret@db.example.com/app", "PostgreSQL at db.example.com/app"),
        ("postgresql+psycopg://u:secret@db:6432/app", "PostgreSQL at db:6432/app"),
        ("postgres://u:secret@db/app?sslmode=require", "PostgreSQL at db/app"),
        ("postgresql://u:secret@/app?host=/run/pg", "PostgreSQL at /run/pg/app"),
        ("postgresql:///app", "PostgreSQL at local socket/app"),
        ("postgresql://u:secret@db", "PostgreSQL at db/"),
    ],
)
def test_a_postgresql_url_is_described_without_credentials(url: str, description: str) -> None:
    target = parse_url(url)

    assert (target.kind, target.description) == ("postgresql", description)
    assert "secret" not in repr(target)
    assert target.url.drivername == "postgresql+psycopg"


@pytest.mark.parametrize("url", ["sqlite:///{}", "sqlite+pysqlite:///{}"])
def test_an_sqlite_url_is_described_by_its_path(url: str, tmp_path: Path) -> None:
    target = parse_url(url.format(tmp_path / "a.sqlite3"))

    assert (target.kind, target.description) == ("sqlite", f"SQLite at {tmp_path / 'a.sqlite3'}")


def test_a_relative_path_stays_what_it_was_when_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    target = parse_url("sqlite:///a.sqlite3")
    monkeypatch.chdir("/")

    assert target.url.database == os.fspath(tmp_path / "a.sqlite3")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("no url with secret", "is not a URL"),
        ("postgresql://u:secret@db:port/app", "is not a URL"),
        ("", "is not a URL"),
        ("mysql://u:secret@db/app", "'mysql'; Workhorse runs on PostgreSQL and on SQLite"),
        ("postgresql+asyncpg://u:secret@db/app", "the driver 'postgresql\\+asyncpg'"),
        ("postgresql+psycopg2://u:secret@db/app", "the driver 'postgresql\\+psycopg2'"),
        ("sqlite+aiosqlite:///secret", "the driver 'sqlite\\+aiosqlite'"),
        ("sqlite://", "without a file of its own"),
        ("sqlite:///:memory:", "without a file of its own"),
        ("sqlite:///file:secret?mode=memory&uri=true", "without a file of its own"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_and_not_shown(url: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told) as refusal:
        Store.open(url)

    assert "secret" not in str(refusal.value)


def test_a_store_says_what_and_where_it_is(store: Store, database_url: str) -> None:
    database = make_url(database_url).database
    assert database is not None

    assert store.kind in ("sqlite", "postgresql")
    assert store.description.endswith(database)


def test_nothing_is_connected_to_before_it_is_needed() -> None:
    store = Store.open("postgresql://u:secret@nowhere.invalid/app")

    assert store.description == "PostgreSQL at nowhere.invalid/app"
    store.close()


def test_what_a_session_is_told_on_postgresql(postgresql_store: Store) -> None:
    """A worker that was frozen in a transaction must not block its successor."""

    def look(tx: Tx) -> list[str]:
        names = ("lock_timeout", "idle_in_transaction_session_timeout", "transaction_isolation")
        return [tx.conn.exec_driver_sql(f"show {name}").scalar_one() for name in names]

    assert postgresql_store.run(look) == ["2s", "10s", "read committed"]


def test_options_of_the_url_stand(postgresql_url: str) -> None:
    store = Store.open(f"{postgresql_url}&options=-c%20lock_timeout%3D77")

    assert rows(store, "show lock_timeout") == [("77ms",)]
    assert rows(store, "show idle_in_transaction_session_timeout") == [("10s",)]
    store.close()


def test_an_error_of_the_server_shows_no_values(postgresql_store: Store) -> None:
    """It says which row or parameter is wrong, and that has a payload in it."""
    store = postgresql_store
    do(store, "alter table {s}runs add constraint small check (length(payload) < 9)")

    with pytest.raises(IntegrityError, match="violates check constraint") as raised:
        put(store, payload=json.dumps("z" * 20))

    assert "z" * 20 not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_the_isolation_is_said_in_each_transaction_and_session(
    postgresql_url: str, level: str
) -> None:
    """In the session for statements without a transaction around; a pooler's sessions have none."""
    first = Store.open(postgresql_url)
    first.run(
        lambda tx: tx.conn.exec_driver_sql(
            f'alter database "{make_url(postgresql_url).database}"'
            f" set default_transaction_isolation to '{level}'"
        )
    )
    first.close()

    def look(tx: Tx) -> tuple[str, str]:
        show = tx.conn.exec_driver_sql
        return (
            show("show default_transaction_isolation").scalar_one(),
            show("show transaction_isolation").scalar_one(),
        )

    for pooler, session in ((False, "read committed"), (True, level)):
        store = Store.open(postgresql_url, pooler=pooler)
        assert store.run(look) == (session, "read committed")
        assert store.run(writes_once(_level)) == "read committed"
        store.close()


def _level(tx: Tx) -> str:
    return tx.conn.exec_driver_sql("show transaction_isolation").scalar_one()  # type: ignore[no-any-return]


@pytest.mark.parametrize("how", ["run", "run_once", "try_once"])
def test_what_writes_by_one_statement_is_a_transaction_by_itself(
    postgresql_store: Store, how: str
) -> None:
    """What fails behind it takes nothing back; anything else is one transaction."""

    def writes(tx: Tx) -> None:
        tx.conn.exec_driver_sql("create table kept (id int)")
        raise LookupError

    with pytest.raises(LookupError):
        getattr(postgresql_store, how)(writes)
    assert rows(postgresql_store, "select to_regclass('kept') is null") == [(True,)]

    with pytest.raises(LookupError):
        getattr(postgresql_store, how)(writes_once(writes))
    assert rows(postgresql_store, "select to_regclass('kept') is null") == [(False,)]


@pytest.mark.parametrize("how", ["run", "run_once", "try_once"])
def test_what_writes_by_one_statement_is_a_transaction_like_any_other_on_sqlite(
    sqlite_url: str, how: str
) -> None:
    """Claims take several statements there."""

    def writes(tx: Tx) -> None:
        tx.conn.exec_driver_sql("create table kept (id int)")
        raise LookupError

    with closing(Store.open(sqlite_url)) as store:
        with pytest.raises(LookupError):
            getattr(store, how)(writes_once(writes))
        assert rows(store, "select name from sqlite_master where name = 'kept'") == []


def test_an_operation_that_fails_costs_no_connection(postgresql_store: Store) -> None:
    def fails(tx: Tx) -> None:
        tx.conn.exec_driver_sql("select 1 / 0")

    before = postgresql_store.run(_pid)
    with pytest.raises(DataError):
        postgresql_store.run(fails)

    assert postgresql_store.run(_pid) == before


def _pid(tx: Tx) -> int:
    return tx.conn.exec_driver_sql("select pg_backend_pid()").scalar_one()  # type: ignore[no-any-return]


def test_what_a_connection_is_told_on_sqlite(empty_sqlite_url: str) -> None:
    """Also in a file that nobody has told anything yet."""

    def look(tx: Tx) -> list[object]:
        names = ("journal_mode", "synchronous", "busy_timeout")
        return [tx.conn.exec_driver_sql(f"pragma {name}").scalar_one() for name in names]

    store = Store.open(empty_sqlite_url)
    assert store.run(look) == ["wal", 2, 10_000]
    store.close()


# -- a pooler in transaction mode ----------------------------------------------------------------


def test_behind_a_pooler_no_state_of_a_session_is_used(postgresql_url: str) -> None:
    """After each transaction everything is discarded, as if the next got another session."""
    from sqlalchemy import event

    store = Store.open(postgresql_url, pooler=True, connections=1)

    @event.listens_for(store.engine, "checkin")
    def discard(raw: object, record: object) -> None:
        raw.autocommit = True  # type: ignore[attr-defined]
        raw.execute("discard all")  # type: ignore[attr-defined]
        raw.autocommit = False  # type: ignore[attr-defined]

    prepared, bounds = [], []
    for _ in range(20):  # named statements would be prepared at the sixth time
        put_many(store, 2)
        take(store, new_run_id(), scan=True, free=1)

        def look(tx: Tx) -> None:
            show = tx.conn.exec_driver_sql
            prepared.append(show("select count(*) from pg_prepared_statements").scalar_one())
            bounds.append(show("show lock_timeout").scalar_one())
            bounds.append(show("show idle_in_transaction_session_timeout").scalar_one())

        store.run(look)

    assert set(prepared) == {0}
    assert set(bounds) == {"2s", "10s"}
    assert len(rows(store, "select * from {s}live where state = 'running'")) == 20
    assert rows(store, "show lock_timeout") == [("0",)]
    store.close()


def test_without_a_pooler_hot_statements_are_prepared(postgresql_url: str) -> None:
    store = Store.open(postgresql_url, connections=1)
    for _ in range(8):
        put(store)

    assert rows(store, "select count(*) > 0 from pg_prepared_statements") == [(True,)]
    store.close()


def test_straight_to_the_server_nothing_is_lent(postgresql_url: str) -> None:
    store = Store.open(postgresql_url)
    assert not store.run(_is_lent)
    other = store.sibling(connections=1, bounded=False)
    assert not other.run(_is_lent)
    store.close()
    other.close()


def _is_lent(tx: Tx) -> bool:
    return LENT in tx.conn.info


def test_nothing_is_said_of_a_session_again_once_it_was_refused() -> None:
    given: list[dict[str, object]] = []

    def connect(**how: object) -> str:
        given.append(how)
        if "options" in how:
            raise psycopg.OperationalError("FATAL:  unsupported startup parameter: options")
        return "connected"

    opener = Opener("-c a=b")
    assert [opener.open(connect, {"host": "h"}) for _ in range(3)] == ["connected"] * 3
    assert given == [{"host": "h", "options": "-c a=b"}, *3 * [{"host": "h"}]]


@pytest.mark.parametrize(
    "said",
    [
        "FATAL:  unsupported startup parameter: options",
        "FATAL:  unsupported startup parameter in options: lock_timeout",
        "Feature not supported: RDS Proxy currently doesn\u2019t support command-line options.",
    ],
)
def test_whose_refusals_are_known(said: str) -> None:
    def connect(**how: object) -> str:
        if "options" in how:
            raise psycopg.OperationalError(said)
        return "connected"

    assert Opener("-c a=b").open(connect, {}) == "connected"


def test_another_failure_is_no_refusal() -> None:
    """And options of the URL are its owner's: without them nothing is connected to."""

    def connect(**how: object) -> str:
        raise psycopg.OperationalError(str(how.get("options")))

    with pytest.raises(psycopg.OperationalError, match="-c a=b"):
        Opener("-c a=b").open(connect, {})
    with pytest.raises(psycopg.OperationalError, match="-c a=b -c startup parameter=c"):
        Opener("-c a=b").open(connect, {"options": "-c startup parameter=c"})


def test_what_no_url_may_change_stands_behind_its_options() -> None:
    given: list[object] = []

    opener = Opener("-c a=b", "-c c=d")
    for own in ({}, {"options": "-c c=e"}):
        opener.open(lambda **how: given.append(how["options"]), own)

    assert given == ["-c a=b -c c=d", "-c a=b -c c=e -c c=d"]


def test_a_statement_that_is_a_transaction_is_never_serializable(postgresql_url: str) -> None:
    own = "options=-c%20default_transaction_isolation%3Dserializable%20-c%20work_mem%3D77MB"
    with closing(Store.open(f"{postgresql_url}&{own}", connections=1)) as store:

        @writes_once
        def settings(tx: Tx) -> list[str]:
            asked = ("transaction_isolation", "work_mem")
            return [str(tx.conn.exec_driver_sql(f"show {name}").scalar()) for name in asked]

        assert store.run(settings) == ["read committed", "77MB"]
