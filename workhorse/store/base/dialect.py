"""What differs between PostgreSQL and SQLite; everything else in `store/` is written once.

PostgreSQL takes row locks and judges time by the server's clock. SQLite takes one write lock at
BEGIN, so it needs no row locks, and the host's clock is the only one there is; it is handed to each
statement as a parameter, as a test's clock is on both.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import psycopg
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    LargeBinary,
    Select,
    Table,
    Text,
    bindparam,
    cast,
    column,
    func,
    literal_column,
    select,
    true,
    type_coerce,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import psycopg as psycopg_dialect
from sqlalchemy.engine import Dialect as SqlalchemyDialect
from sqlalchemy.sql.expression import any_

from workhorse.domain.instants import from_micros, to_micros

CLOCK: Final = "clock_now"
"""The parameter that carries the time where the database's own clock is not asked."""

Columns = Mapping[str, Any]
"""Names and types of the columns of a batch."""


def array_text(values: Sequence[str]) -> str:
    """Return texts as PostgreSQL reads a list of them; the driver's own way costs far more."""
    if not values:
        return "{}"
    together = "".join(values)
    if "\\" in together or '"' in together:
        values = [v.replace("\\", "\\\\").replace('"', '\\"') for v in values]
    return '{"' + '","'.join(values) + '"}'


def upsert(d: Dialect, table: Table) -> Any:
    """Return the dialect's insert that knows ON CONFLICT."""
    return (postgresql.insert if d.name == "postgresql" else sqlite.insert)(table)


class Dialect(ABC):
    """The differences. `own_clock` says that time comes as a parameter."""

    name: str
    sqlalchemy: SqlalchemyDialect
    own_clock: bool
    one_statement: bool
    """Whether several tables can be written by one statement (CTEs that write)."""

    @property
    @abstractmethod
    def now(self) -> ColumnElement[Any]:
        """The statement's start; may stand in an index condition."""

    @property
    @abstractmethod
    def clock(self) -> ColumnElement[Any]:
        """The time as it is: for what is judged after a lock, and for every instant written."""

    @abstractmethod
    def rows(self, param: str, columns: Columns, name: str = "u") -> FromClause:
        """Return the rows of a parameter: a JSON list of objects, one per row."""

    def arrays(self, columns: Mapping[str, tuple[str, Any]], name: str = "u") -> FromClause:
        """Return parameters of `array_text`, one a column, as rows: name, parameter and type."""
        raise NotImplementedError(f"{self.name} has no arrays")

    @abstractmethod
    def each(self, param: str) -> FromClause:
        """Return the texts of a parameter, a JSON list, as rows with one column `value`."""

    @abstractmethod
    def elements(self, col: ColumnElement[Any]) -> FromClause:
        """Return the texts of a column, a JSON list, as rows with one column `value`."""

    @abstractmethod
    def one_of(self, col: ColumnElement[Any], param: str) -> ColumnElement[bool]:
        """Say that a column is in a parameter: a JSON list of texts."""

    @abstractmethod
    def among(self, col: ColumnElement[Any], chosen: Select[Any]) -> ColumnElement[bool]:
        """Say that a column is in a sub-select, found through the column's index."""

    @abstractmethod
    def after(self, base: ColumnElement[Any], millis: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return an instant so many milliseconds later."""

    @abstractmethod
    def millis(self, start: ColumnElement[Any], end: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return the milliseconds from one instant to another, as a whole number."""

    @abstractmethod
    def micros(self, col: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return an instant as microseconds since 1970."""

    @abstractmethod
    def instant_of(self, micros: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return the instant of a count of microseconds since 1970."""

    @abstractmethod
    def octets(self, col: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return how many bytes a text takes as UTF-8."""

    @abstractmethod
    def json_list(self, *parts: ColumnElement[Any]) -> ColumnElement[str]:
        """Return the text of a JSON list."""

    @abstractmethod
    def settled_down(self) -> ColumnElement[bool]:
        """Say that the database has been up for a while: what was finished has had time to land."""

    @abstractmethod
    def read_instant(self, raw: Any) -> datetime:
        """Return what the driver gave for an instant."""

    @abstractmethod
    def read_aware(self, raw: Any) -> datetime:
        """As `read_instant`, but in whichever time zone the driver gave it: for hot reads."""

    @abstractmethod
    def write_instant(self, instant: datetime) -> Any:
        """Return what the driver takes for an instant."""

    @abstractmethod
    def is_transient(self, error: BaseException) -> bool:
        """Say whether a driver's error passes when the transaction is tried again."""

    @abstractmethod
    def is_lost(self, error: BaseException) -> bool:
        """Say whether a driver's error means that the connection is gone, or never was."""

    @abstractmethod
    def leads_astray(self, error: BaseException) -> bool:
        """Say whether a connection must not be used again: it leads to where nothing is written."""


class PostgresDialect(Dialect):
    """PostgreSQL 15 and newer, through psycopg 3."""

    name = "postgresql"
    one_statement = True

    def __init__(self, *, own_clock: bool, settle_down_ms: int = 10_000) -> None:
        self.own_clock = own_clock
        self.sqlalchemy = psycopg_dialect.PGDialect_psycopg()  # type: ignore[no-untyped-call]
        self._settle_down_ms = settle_down_ms

    @property
    def now(self) -> ColumnElement[Any]:
        return self._given() if self.own_clock else func.statement_timestamp()

    @property
    def clock(self) -> ColumnElement[Any]:
        return self._given() if self.own_clock else func.clock_timestamp()

    def _given(self) -> ColumnElement[Any]:
        return cast(bindparam(CLOCK), postgresql.TIMESTAMP(timezone=True))

    def rows(self, param: str, columns: Columns, name: str = "u") -> FromClause:
        return (
            func.json_to_recordset(cast(bindparam(param), postgresql.JSON))
            .table_valued(*(column(key, kind) for key, kind in columns.items()))
            .render_derived(name=name, with_types=True)
        )

    def arrays(self, columns: Mapping[str, tuple[str, Any]], name: str = "u") -> FromClause:
        given = (
            cast(bindparam(param, type_=Text), postgresql.ARRAY(kind))
            for param, kind in columns.values()
        )
        names = (column(key, kind) for key, (_, kind) in columns.items())
        return func.unnest(*given).table_valued(*names).render_derived(name=name)

    def each(self, param: str) -> FromClause:
        texts = func.json_array_elements_text(cast(bindparam(param), postgresql.JSON))
        return texts.table_valued(column("value", Text())).render_derived(name=f"each_{param}")

    def elements(self, col: ColumnElement[Any]) -> FromClause:
        texts = func.json_array_elements_text(cast(col, postgresql.JSON))
        return texts.table_valued(column("value", Text())).render_derived(name="elements")

    def one_of(self, col: ColumnElement[Any], param: str) -> ColumnElement[bool]:
        return self.among(col, select(cast(self.each(param).c.value, col.type)))

    def among(self, col: ColumnElement[Any], chosen: Select[Any]) -> ColumnElement[bool]:
        # An IN invites a hash join over the whole table; an array is probed through the index.
        found = func.array(chosen.scalar_subquery())
        return col == any_(type_coerce(found, postgresql.ARRAY(col.type)))

    def after(self, base: ColumnElement[Any], millis: ColumnElement[Any]) -> ColumnElement[Any]:
        return base + millis * literal_column("interval '1 millisecond'")

    def millis(self, start: ColumnElement[Any], end: ColumnElement[Any]) -> ColumnElement[Any]:
        return cast(
            func.ceil(func.extract("epoch", end - start) * literal_column("1000")), BigInteger
        )

    def micros(self, col: ColumnElement[Any]) -> ColumnElement[Any]:
        return cast(func.extract("epoch", col) * literal_column("1000000"), BigInteger)

    def instant_of(self, micros: ColumnElement[Any]) -> ColumnElement[Any]:
        epoch: ColumnElement[Any] = literal_column("'epoch'::timestamptz")
        return epoch + cast(micros, BigInteger) * literal_column("interval '1 microsecond'")

    def octets(self, col: ColumnElement[Any]) -> ColumnElement[Any]:
        return func.octet_length(col)

    def json_list(self, *parts: ColumnElement[Any]) -> ColumnElement[str]:
        return cast(func.json_build_array(*parts), Text)

    def settled_down(self) -> ColumnElement[bool]:
        if self.own_clock:
            return true()
        quiet: ColumnElement[Any] = literal_column(
            f"interval '{self._settle_down_ms} milliseconds'"
        )
        return func.pg_postmaster_start_time() + quiet <= func.statement_timestamp()

    def read_instant(self, raw: Any) -> datetime:
        instant: datetime = raw
        return instant.astimezone(UTC)

    def read_aware(self, raw: Any) -> datetime:
        instant: datetime = raw
        return instant

    def write_instant(self, instant: datetime) -> Any:
        return instant

    def is_transient(self, error: BaseException) -> bool:
        state = (isinstance(error, psycopg.Error) and error.sqlstate) or ""
        # serialization failure, deadlock, lock not available, cancelled by an administrator or a
        # time-out of his, starting up; 53: out of connections, memory or disk
        passing = state in {"40001", "40P01", "55P03", "57014", "57P03"} or state[:2] == "53"
        return passing or self.leads_astray(error)

    def leads_astray(self, error: BaseException) -> bool:
        # After a failover, pooled connections may lead to a server that has become a standby.
        return isinstance(error, psycopg.errors.ReadOnlySqlTransaction)

    def is_lost(self, error: BaseException) -> bool:
        state = error.sqlstate if isinstance(error, psycopg.Error) else None
        if state is not None:
            # ended by an administrator, by a crash, or by one of the server's three time-outs for
            # sessions: the driver's classes differ
            return state[:2] == "08" or state in {"57P01", "57P02", "57P05", "25P03", "25P04"}
        # Internal, without a state: an answer that the driver cannot make out. A pooler whose
        # server is ended at a COMMIT answers twice, with the commit and with the server's end.
        lost = (psycopg.InterfaceError, psycopg.OperationalError, psycopg.InternalError)
        return isinstance(error, lost)


class SqliteDialect(Dialect):
    """SQLite 3.35 and newer, with a write-ahead log."""

    name = "sqlite"
    one_statement = False
    own_clock = True

    def __init__(self) -> None:
        self.sqlalchemy = sqlite.dialect(paramstyle="named")

    @property
    def now(self) -> ColumnElement[Any]:
        return bindparam(CLOCK, type_=BigInteger)

    @property
    def clock(self) -> ColumnElement[Any]:
        return bindparam(CLOCK, type_=BigInteger)

    def rows(self, param: str, columns: Columns, name: str = "u") -> FromClause:
        each = func.json_each(bindparam(param, type_=Text)).table_valued(
            "value", name=f"{name}_json"
        )
        return select(
            *(
                type_coerce(
                    func.json_extract(each.c.value, literal_column(f"'$.{key}'")), kind
                ).label(key)
                for key, kind in columns.items()
            )
        ).subquery(name)

    def each(self, param: str) -> FromClause:
        texts = func.json_each(bindparam(param, type_=Text))
        return texts.table_valued(column("value", Text()), name=f"each_{param}")

    def elements(self, col: ColumnElement[Any]) -> FromClause:
        return func.json_each(col).table_valued(column("value", Text()), name="elements")

    def one_of(self, col: ColumnElement[Any], param: str) -> ColumnElement[bool]:
        return col.in_(select(self.each(param).c.value))

    def among(self, col: ColumnElement[Any], chosen: Select[Any]) -> ColumnElement[bool]:
        return col.in_(chosen)

    def after(self, base: ColumnElement[Any], millis: ColumnElement[Any]) -> ColumnElement[Any]:
        thousand = literal_column("1000", BigInteger)
        return type_coerce(base, BigInteger) + type_coerce(millis, BigInteger) * thousand

    def millis(self, start: ColumnElement[Any], end: ColumnElement[Any]) -> ColumnElement[Any]:
        gap = type_coerce(end, BigInteger) - type_coerce(start, BigInteger)
        return (gap + literal_column("999", BigInteger)) // literal_column("1000", BigInteger)

    def micros(self, col: ColumnElement[Any]) -> ColumnElement[Any]:
        return col

    def instant_of(self, micros: ColumnElement[Any]) -> ColumnElement[Any]:
        return micros

    def octets(self, col: ColumnElement[Any]) -> ColumnElement[Any]:
        return func.length(cast(col, LargeBinary))

    def json_list(self, *parts: ColumnElement[Any]) -> ColumnElement[str]:
        return func.json_array(*parts)

    def settled_down(self) -> ColumnElement[bool]:
        return true()  # the database is in this process: it does not come back before its users

    def read_instant(self, raw: Any) -> datetime:
        return from_micros(raw)

    def read_aware(self, raw: Any) -> datetime:
        return from_micros(raw)

    def write_instant(self, instant: datetime) -> Any:
        return to_micros(instant)

    def is_transient(self, error: BaseException) -> bool:
        return isinstance(error, sqlite3.OperationalError) and any(
            word in str(error) for word in ("locked", "busy", "disk is full")
        )

    def leads_astray(self, error: BaseException) -> bool:
        return False

    def is_lost(self, error: BaseException) -> bool:
        # "interrupted" is what `Store.abort` does to a statement.
        return isinstance(error, sqlite3.OperationalError) and any(
            words in str(error) for words in ("unable to open", "disk I/O", "interrupted")
        )
