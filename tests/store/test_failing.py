"""What does not pass by itself is one typed error, which says what now stands and what to do."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import event, make_url, text

from tests.store.acting import put
from workhorse.errors import SchemaMismatchError, StoreRefusedError, StoreUnavailableError
from workhorse.store.base import database
from workhorse.store.base.database import Store, Tx
from workhorse.store.base.failing import refusal


@pytest.fixture(autouse=True)
def no_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_FIRST_REST", 0.0)


@pytest.fixture
def open_store() -> Iterator[Callable[[str], Store]]:
    opened: list[Store] = []

    def open_it(url: str) -> Store:
        opened.append(Store.open(url))
        return opened[-1]

    yield open_it
    for store in opened:
        store.close()


def look(tx: Tx) -> None:
    tx.conn.execute(text("select 1"))


def test_a_file_that_cannot_be_written_is_said_and_can_be_used_once_it_can(
    sqlite_url: str, open_store: Callable[[str], Store]
) -> None:
    """A connection that was made meanwhile would never write; it is not kept."""
    store = open_store(sqlite_url)
    unwritable = True

    @event.listens_for(store.engine, "connect")
    def _as_where_there_is_no_right(raw: sqlite3.Connection, _record: object) -> None:
        if unwritable:
            raw.execute("pragma query_only = on")

    with pytest.raises(StoreRefusedError, match="cannot be used: attempt to write a readonly"):
        put(store)
    unwritable = False

    put(store)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.mkdir(), "cannot be used: unable to open database file; the folder has"),
        (lambda path: path.write_text("a letter " * 200), "cannot be used: file is not a database"),
    ],
    ids=["a folder", "a letter"],
)
@pytest.mark.parametrize("how", ["run", "run_once", "try_once", "read"])
def test_what_is_no_database_is_said(
    tmp_path: Path,
    open_store: Callable[[str], Store],
    make: Callable[[Path], object],
    said: str,
    how: str,
) -> None:
    make(tmp_path / "it")

    with pytest.raises(StoreRefusedError, match=f"SQLite at {tmp_path}/it {said}"):
        getattr(open_store(f"sqlite:///{tmp_path}/it"), how)(look)


def test_a_damaged_file_is_said(sqlite_url: str) -> None:
    error = refusal(sqlite3.DatabaseError("database disk image is malformed"), "SQLite at x")

    assert isinstance(error, StoreRefusedError)
    assert str(error).endswith("is malformed; the file is damaged: put a copy of it back")


@pytest.mark.parametrize("missing", ["table", "column"])
def test_what_is_missing_in_a_file_is_said(missing: str) -> None:
    error = refusal(sqlite3.OperationalError(f"no such {missing}: x"), "SQLite at x")

    assert isinstance(error, SchemaMismatchError)
    assert f"(a {missing} is missing)" in str(error)


def test_a_role_without_rights_is_told_what_to_do(
    postgresql_url: str, open_store: Callable[[str], Store]
) -> None:
    role = f"weak_{make_url(postgresql_url).database}"
    dsn = make_url(postgresql_url).render_as_string(hide_password=False)
    with psycopg.connect(dsn, autocommit=True) as own:
        own.execute(f"create role {role} login password 'hunter2'")
        try:
            url = make_url(postgresql_url).set(username=role, password="hunter2")  # noqa: S106
            store = open_store(url.render_as_string(hide_password=False))
            with pytest.raises(StoreRefusedError) as raised:
                put(store, payload='"private"')
            store.close()
        finally:
            own.execute(f"drop role {role}")

    said = str(raised.value)
    assert "refused: permission denied for schema workhorse (SQLSTATE 42501); nothing" in said
    assert "docs/security.md" in said
    assert "private" not in said + repr(raised.value.__cause__)


def test_tables_that_are_missing_are_made_by_a_migration(
    empty_database_url: str, open_store: Callable[[str], Store]
) -> None:
    """A producer that calls before anybody has migrated."""
    with pytest.raises(SchemaMismatchError, match=r"nothing was stored\. Run `workhorse migrate`"):
        put(open_store(empty_database_url))


# -- what now stands -----------------------------------------------------------------------------


def _says(stands: str) -> str:
    return f"did not answer .*; {stands}, and repeating it is safe$"


def _state(code: str) -> Callable[[Tx], object]:
    sql = f"do $$ begin raise exception 'x' using errcode = '{code}'; end $$"
    return lambda tx: tx.conn.execute(text(sql))


def _cut(tx: Tx) -> None:
    pid = tx.conn.exec_driver_sql("select pg_backend_pid()").scalar_one()
    raw = tx.conn.connection.driver_connection
    assert isinstance(raw, psycopg.Connection)
    with psycopg.connect(raw.info.dsn, password=raw.info.password or None) as other:
        other.execute("select pg_terminate_backend(%s, 5000)", (pid,))
    tx.conn.exec_driver_sql("select 1")


@pytest.mark.parametrize("how", ["run", "run_once", "try_once"])
def test_where_no_connection_was_made_nothing_was_sent(
    open_store: Callable[[str], Store], how: str
) -> None:
    store = open_store("postgresql://127.0.0.1:1/app?connect_timeout=2")

    with pytest.raises(StoreUnavailableError, match=_says("nothing was sent")):
        getattr(store, how)(look)


def test_what_was_rolled_back_each_time_is_not_stored(postgresql_store: Store) -> None:
    with pytest.raises(StoreUnavailableError, match=_says("nothing was stored")):
        postgresql_store.run(_state("40001"))


def test_what_was_lost_once_is_in_doubt_whatever_came_of_the_other_tries(
    postgresql_store: Store,
) -> None:
    tries: list[Tx] = []

    def op(tx: Tx) -> None:
        tries.append(tx)
        (_cut if len(tries) == 1 else _state("40001"))(tx)

    with pytest.raises(StoreUnavailableError, match=_says("the operation may have happened")):
        postgresql_store.run(op)
    assert len(tries) == database.TRIES


@pytest.mark.parametrize(
    ("code", "error"), [("42501", StoreRefusedError), ("42P01", SchemaMismatchError)]
)
def test_a_refusal_behind_a_loss_does_not_say_that_nothing_was_stored(
    postgresql_store: Store, code: str, error: type[Exception]
) -> None:
    """The try before it may have happened."""
    tries: list[Tx] = []

    def op(tx: Tx) -> None:
        tries.append(tx)
        (_cut if len(tries) == 1 else _state(code))(tx)

    with pytest.raises(error, match=r"; the operation may have happened\. (Grant|Run) "):
        postgresql_store.run(op)
    assert len(tries) == 2
    with pytest.raises(error, match="nothing was stored"):
        postgresql_store.run(op)


def test_what_only_looks_was_to_change_nothing(postgresql_store: Store) -> None:
    with pytest.raises(StoreUnavailableError, match="did not answer .*; nothing was to be changed"):
        postgresql_store.read(_state("40001"))
