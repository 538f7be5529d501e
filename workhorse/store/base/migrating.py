"""The schema's versions: forward only, additive while older workers run.

The database carries its version and the oldest code that it still serves. Code refuses only a
schema that is older than it needs, or one that no longer serves it, and says which.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from sqlalchemy import Text, bindparam, inspect, select, text, update
from sqlalchemy.sql.expression import Executable

from workhorse.errors import ConfigurationError, SchemaMismatchError
from workhorse.store.base.database import Store, Tx
from workhorse.store.base.dialect import Dialect
from workhorse.store.base.schema import VERSION, meta

if TYPE_CHECKING:
    from alembic.config import Config

_LOCK_KEY: Final = 0x776F726B686F7273  # "workhors"
_OTHERS_WAIT: Final = "60s"
_LOCK_WAIT: Final = "5s"


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """What a database says of its schema."""

    version: int
    serves_from: int
    environment: str


def schema_version(store: Store) -> SchemaVersion | None:
    """Return the schema's version; None where there are no tables yet."""
    return store.read(_version)


def check_schema(store: Store) -> SchemaVersion:
    """Return the schema's version, or refuse to work with it.

    Raises:
        SchemaMismatchError: It is missing, older than this version needs, or no longer serves it.
        ConfigurationError: The tables belong to another environment.
    """
    found = schema_version(store)
    if found is None:
        raise SchemaMismatchError(
            f"{store.description} has no Workhorse tables{_in_schema(store)}; "
            "run `workhorse migrate`"
        )
    if found.version < VERSION:
        raise SchemaMismatchError(
            f"{store.description} has schema version {found.version} and this version of "
            f"Workhorse needs {VERSION} or newer; run `workhorse migrate`"
        )
    if found.serves_from > VERSION:
        raise SchemaMismatchError(
            f"{store.description} has schema version {found.version}, which serves versions from "
            f"{found.serves_from} on, and this version of Workhorse writes {VERSION}; upgrade it"
        )
    _check_environment(store, found)
    return found


def migrate(store: Store) -> SchemaVersion:
    """Bring the schema to this version; any number of processes may do so at once.

    Raises:
        SchemaMismatchError: The schema is newer than this code.
        ConfigurationError: The tables belong to another environment.
        StoreUnavailableError: The database did not answer, or a lock was not got in time: nothing
            was changed, and it can be run again.
    """
    found = schema_version(store)
    if found is not None and found.version > VERSION:
        raise SchemaMismatchError(
            f"{store.description} has schema version {found.version}, which is newer than the "
            f"{VERSION} of this version of Workhorse; it was left as it is"
        )
    if found is not None:
        _check_environment(store, found)
    store.run(_upgrade, store)
    return check_schema(store)


def _check_environment(store: Store, found: SchemaVersion) -> None:
    if found.environment != store.environment:
        raise ConfigurationError(
            f"{store.description} belongs to the environment {found.environment!r} and this "
            f"process to {store.environment!r}; give it a database or a schema of its own"
        )


def alembic_config() -> Config:
    """Return Alembic's configuration; the migrations lie in the package."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(files("workhorse.store") / "migrations"))
    config.set_main_option("path_separator", "os")
    return config


def _in_schema(store: Store) -> str:
    return f" in the schema {store.schema!r}" if store.kind == "postgresql" else ""


def _upgrade(tx: Tx, store: Store) -> None:
    from alembic import command

    conn = tx.conn
    if store.kind == "postgresql":
        # One migration at a time; and rather none than one that stops the workers behind it.
        conn.execute(text(f"set local lock_timeout = '{_OTHERS_WAIT}'"))
        conn.execute(text("select pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})
        conn.execute(text(f"set local lock_timeout = '{_LOCK_WAIT}'"))
        conn.execute(text(f'create schema if not exists "{store.schema}"'))  # its name was checked
    config = alembic_config()
    config.attributes["connection"] = conn
    config.attributes["schema"] = store.schema if store.kind == "postgresql" else None
    fresh = _version(tx) is None
    command.upgrade(config, "head")
    if fresh:
        tx.write(_own_environment, environment=store.environment)


def _version(tx: Tx) -> SchemaVersion | None:
    conn = tx.conn
    schema = tx.schema
    if not inspect(conn).has_table(meta.name, schema=schema):
        return None
    row = tx.fetch(_meta)[0]
    return SchemaVersion(row.version, row.serves_from, row.environment)


def _meta(_d: Dialect) -> Executable:
    return select(meta)


def _own_environment(_d: Dialect) -> Executable:
    # Written once, by whoever made the tables; a later one under another name is refused.
    return update(meta).values(environment=bindparam("environment", type_=Text))
