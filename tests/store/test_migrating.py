"""The schema comes from nothing, once, whoever asks for it; and says whom it serves."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, event, inspect, make_url, text

from tests.store.acting import do, put, rows, seen
from tests.store.invariants import check_invariants
from workhorse.domain.ids import new_run_id
from workhorse.errors import ConfigurationError, SchemaMismatchError, StoreUnavailableError
from workhorse.store.base import migrating
from workhorse.store.base.connecting import parse_url
from workhorse.store.base.database import Store
from workhorse.store.base.migrating import SchemaVersion, check_schema, migrate, schema_version
from workhorse.store.base.schema import SERVES_FROM, VERSION, metadata

NOW = SchemaVersion(VERSION, SERVES_FROM, "")

RUN_OF_THE_FIRST_SCHEMA = """
insert into {s}runs (id, task, queue, payload, priority, created_at)
values (:id, 'mail', 'default', 'null', 50, :at)
"""
LIVE_ROW_OF_THE_FIRST_SCHEMA = """
insert into {s}live
  (id, queue, task, state, rank, wake_sent, attempt, fence, inbox, hand_backs, active_ms)
values (:id, 'default', 'mail', 'waiting', 50, false, 1, 1, 0, 0, 0)
"""


@pytest.fixture
def empty(empty_database_url: str) -> Iterator[Store]:
    store = Store.open(empty_database_url)
    yield store
    store.close()


def _tables(store: Store) -> set[str]:
    schema = store.schema if store.kind == "postgresql" else None
    with store.engine.connect() as conn:
        found = inspect(conn)
        return {*found.get_table_names(schema), *found.get_view_names(schema)}


def test_the_schema_comes_from_nothing(empty: Store) -> None:
    assert schema_version(empty) is None

    assert migrate(empty) == NOW

    assert (schema_version(empty), check_schema(empty)) == (NOW, NOW)
    assert _tables(empty) == {*metadata.tables, "run_view", "schema_migrations"}
    assert seen(empty, put(empty)).state == "ready"
    check_invariants(empty)


def test_a_second_migration_changes_nothing(empty: Store) -> None:
    migrate(empty)
    run_id = put(empty)

    assert migrate(empty) == NOW

    assert seen(empty, run_id).state == "ready"


def test_migrations_at_once_are_one(empty: Store) -> None:
    """A fleet is deployed, and each of its processes migrates first."""
    start = threading.Barrier(4)

    def deploy(_: int) -> SchemaVersion:
        mine = empty.sibling(connections=1)
        try:
            start.wait(30)
            return migrate(mine)
        finally:
            mine.close()

    with ThreadPoolExecutor(4) as fleet:
        assert list(fleet.map(deploy, range(4))) == [NOW] * 4

    assert rows(empty, "select count(*) from {s}meta") == [(1,)]


def test_the_migrations_make_what_the_tables_say(database_url: str) -> None:
    """What `schema.py` describes and what the migrations build are the same."""
    target = parse_url(database_url)
    # On PostgreSQL the tables' schema is made the default one, where the description has them.
    options = {"options": "-c search_path=workhorse"} if target.kind == "postgresql" else {}
    engine = create_engine(target.url, connect_args=options)
    try:
        with engine.connect() as conn:
            context = MigrationContext.configure(
                conn,
                opts={
                    "compare_type": True,
                    "compare_server_default": True,
                    "version_table": "schema_migrations",
                },
            )
            assert compare_metadata(context, metadata) == []
    finally:
        engine.dispose()


_IN_SQLITE = """
    select tbl_name, name, sql from sqlite_master
     where sql is not null and name not in ('run_view', 'schema_migrations')"""
_IN_POSTGRESQL = """
    select conrelid::regclass::text, conname, pg_get_constraintdef(oid) from pg_constraint
     where connamespace = 'workhorse'::regnamespace and contype <> 'n'
       and conrelid::regclass::text not like '%schema_migrations'
    union all
    select tablename, indexname, indexdef from pg_indexes
     where schemaname = 'workhorse' and tablename <> 'schema_migrations'"""


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_checks_and_conditions_are_those_of_the_description(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """Alembic does not compare checks and conditions of indexes: the databases tell them."""
    migrated = Store.open(request.getfixturevalue(f"{kind}_url"))
    made = Store.open(request.getfixturevalue(f"empty_{kind}_url"))
    with made.engine.begin() as conn:
        if kind == "postgresql":
            conn.execute(text('create schema "workhorse"'))
        translated = conn.execution_options(
            schema_translate_map={None: "workhorse" if kind == "postgresql" else None}
        )
        metadata.create_all(translated)

    def described(store: Store) -> set[tuple[str, ...]]:
        sql = _IN_SQLITE if kind == "sqlite" else _IN_POSTGRESQL
        return {
            # Columns and constraints may stand in another order.
            (table, name, *sorted(re.findall(r"[^\s,()\"]+", definition.lower())))
            for table, name, definition in rows(store, sql)
        }

    assert described(migrated) == described(made)
    migrated.close()
    made.close()


def test_the_table_of_live_rows_is_kept_small_by_an_early_vacuum(postgresql_store: Store) -> None:
    sql = "select reloptions from pg_class where oid = '{s}live'::regclass"

    ((options,),) = rows(postgresql_store, sql)

    assert {"fillfactor=70", "autovacuum_vacuum_scale_factor=0.02"} <= set(options)


def test_the_last_migration_is_the_version_that_the_code_writes() -> None:
    script = ScriptDirectory.from_config(migrating.alembic_config())

    assert script.get_current_head() == f"{VERSION:04}"
    assert len(script.get_bases()) == 1


def test_runs_of_the_first_schema_go_on_under_the_next(
    empty: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as as_it_was:
        upgrade = command.upgrade
        as_it_was.setattr(command, "upgrade", lambda config, _: upgrade(config, "0001"))
        as_it_was.setattr(migrating, "VERSION", 1)
        assert migrate(empty) == SchemaVersion(1, 1, "")
    run_id = new_run_id()
    at = empty.dialect.write_instant(datetime.now(UTC))
    do(empty, RUN_OF_THE_FIRST_SCHEMA, id=run_id, at=at)
    do(empty, LIVE_ROW_OF_THE_FIRST_SCHEMA, id=run_id)

    assert migrate(empty) == NOW

    assert seen(empty, run_id).state == "waiting"
    ((watched, blockers),) = rows(empty, "select watched, blockers from {s}live")
    assert (bool(watched), blockers) == (False, 0)
    check_invariants(empty)


# -- whom it serves ------------------------------------------------------------------------------


def test_a_database_without_tables_is_refused(empty: Store) -> None:
    where = " in the schema 'workhorse'" if empty.kind == "postgresql" else ""

    with pytest.raises(SchemaMismatchError, match=f"no Workhorse tables{where}; run `workhorse m"):
        check_schema(empty)


def test_a_schema_that_is_older_than_the_code_needs_is_refused(
    empty: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate(empty)
    monkeypatch.setattr(migrating, "VERSION", VERSION + 1)

    with pytest.raises(
        SchemaMismatchError, match=f"version {VERSION} and .* needs {VERSION + 1} or newer"
    ):
        check_schema(empty)


def test_a_schema_that_no_longer_serves_the_code_is_refused(empty: Store) -> None:
    migrate(empty)
    do(empty, "update {s}meta set version = 7, serves_from = 5")

    with pytest.raises(
        SchemaMismatchError, match=f"serves versions from 5 on, and .* writes {VERSION}"
    ):
        check_schema(empty)


def test_a_newer_schema_that_still_serves_the_code_is_worked_with(empty: Store) -> None:
    """Additive while older workers run: they go on."""
    migrate(empty)
    do(empty, "update {s}meta set version = 7, serves_from = 1")

    assert check_schema(empty) == SchemaVersion(7, 1, "")


def test_a_newer_schema_is_not_migrated_by_older_code(empty: Store) -> None:
    migrate(empty)
    do(empty, "update {s}meta set version = 7")

    with pytest.raises(SchemaMismatchError, match=f"version 7, which is newer than the {VERSION}"):
        migrate(empty)

    assert schema_version(empty) == SchemaVersion(7, SERVES_FROM, "")


# -- environments --------------------------------------------------------------------------------


def _in_environment(store: Store, environment: str) -> Store:
    url = store.target.url.render_as_string(hide_password=False)
    return Store.open(url, environment=environment, schema=store.schema)


def test_a_schema_belongs_to_the_environment_that_made_it(empty: Store) -> None:
    production = _in_environment(empty, "production")
    assert migrate(production) == SchemaVersion(VERSION, SERVES_FROM, "production")

    for name in ("", "staging"):
        other = _in_environment(empty, name)
        with pytest.raises(ConfigurationError, match=f"'production' and this process to '{name}'"):
            check_schema(other)
        with pytest.raises(ConfigurationError, match="environment 'production'"):
            migrate(other)
        other.close()
    assert check_schema(production).environment == "production"
    assert migrate(production).environment == "production"
    production.close()


def test_a_schema_without_an_environment_is_not_taken_over(
    empty: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers without one use it: a migration under a name must not lock them out."""
    migrate(empty)
    other = _in_environment(empty, "production")

    monkeypatch.setattr(migrating, "_upgrade", lambda *_: pytest.fail("it was migrated"))
    with pytest.raises(ConfigurationError, match="environment '' and this process"):
        migrate(other)

    assert check_schema(empty).environment == ""
    other.close()


def test_schemas_of_two_names_share_a_database(empty_postgresql_url: str) -> None:
    stores = [Store.open(empty_postgresql_url, schema=name) for name in ("jobs", "jobs_test")]
    for store in stores:
        migrate(store)
    ids = [put(store, payload=f'"{store.schema}"') for store in stores]

    for store, run_id in zip(stores, ids, strict=True):
        assert rows(store, "select id::text, payload from {s}runs") == [
            (run_id, f'"{store.schema}"')
        ]
        check_invariants(store)
        store.close()


def test_a_database_with_other_peoples_tables_is_left_as_it_is(empty: Store) -> None:
    do(empty, "create table orders (id int)")

    migrate(empty)

    assert rows(empty, "select count(*) from orders") == [(0,)]


# -- locks and failures --------------------------------------------------------------------------


def test_a_migration_that_fails_leaves_nothing_half_done(
    empty: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(tx: object, builder: object, *form: object, **params: object) -> int:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr("workhorse.store.base.database.Tx.write", fail)
        with pytest.raises(ZeroDivisionError):
            migrate(empty)

    assert _tables(empty) == set()
    assert migrate(empty) == NOW


@pytest.mark.parametrize("statement", ["CREATE TABLE live", "CREATE VIEW", "INSERT INTO"])
def test_a_migration_that_breaks_off_leaves_nothing_half_done(empty: Store, statement: str) -> None:
    broken: list[str] = []

    @event.listens_for(empty.engine, "before_cursor_execute")
    def break_off(*args: object) -> None:
        said = " ".join(str(args[2]).replace('"', "").replace("workhorse.", "").split())
        if said.lower().startswith(statement.lower()):
            broken.append(said)
            raise ConnectionAbortedError

    with pytest.raises(ConnectionAbortedError):
        migrate(empty)
    event.remove(empty.engine, "before_cursor_execute", break_off)

    assert len(broken) == 1
    assert _tables(empty) == set()
    assert migrate(empty) == NOW


def test_a_migration_rather_gives_up_than_stops_the_workers_behind_it(
    empty_postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody holds what it needs: it waits a bounded time, and has changed nothing."""
    store = Store.open(empty_postgresql_url, connections=1)
    blocker = Store.open(empty_postgresql_url, connections=1)
    monkeypatch.setattr(migrating, "_LOCK_WAIT", "50ms")
    monkeypatch.setattr("workhorse.store.base.database._FIRST_REST", 0.0)
    with blocker.engine.begin() as conn:
        conn.execute(text('create schema "workhorse"'))  # and has not committed
        with pytest.raises(StoreUnavailableError, match="SQLSTATE 55P03"):
            migrate(store)
        conn.rollback()

    assert _tables(store) == set()
    assert migrate(store) == NOW
    store.close()
    blocker.close()


def test_a_migration_waits_for_another_longer_than_for_a_row(
    empty_postgresql_url: str,
) -> None:
    store = Store.open(empty_postgresql_url, connections=1)
    said: list[str] = []
    event.listen(
        store.engine, "before_cursor_execute", lambda *args: said.append(str(args[2]).lower())
    )

    migrate(store)

    locked = next(at for at, sql in enumerate(said) if "pg_advisory_xact_lock" in sql)
    assert any("lock_timeout" in sql for sql in said[:locked])
    assert "lock_timeout" in said[locked + 1]
    store.close()


def test_the_url_of_a_migrated_store_may_name_its_schema(postgresql_url: str) -> None:
    store = Store.open(postgresql_url, schema="elsewhere")

    assert schema_version(store) is None
    assert make_url(postgresql_url).database
    store.close()
