"""An operation ends no transaction: whatever way it takes, it is refused, or found out."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, event, text
from sqlalchemy.exc import (
    IntegrityError,
    InvalidRequestError,
    ResourceClosedError,
    SQLAlchemyError,
)
from sqlalchemy.orm import Session

from tests.store.transacting.paying import (
    carry_out,
    check_both,
    check_nothing,
    lease,
    paid,
    pay,
    stored,
)
from workhorse.domain.recording import Recorded
from workhorse.errors import (
    TransactionMisuseError,
)
from workhorse.store.base.database import Store, Tx
from workhorse.store.base.wording import ending_in
from workhorse.store.durable import transacting
from workhorse.store.durable.boundaries import record as record_boundaries


def _commit(conn: Connection) -> None:
    conn.commit()


def _of_the_transaction(conn: Connection) -> None:
    transaction = conn.get_transaction()
    assert transaction is not None
    transaction.commit()


def _close_it(conn: Connection) -> None:
    transaction = conn.get_transaction()
    assert transaction is not None
    transaction.close()


def _of_a_session(conn: Connection) -> None:
    session = Session(conn, join_transaction_mode="control_fully")
    session.execute(text("select 1"))
    session.commit()


def _roll_back_a_session(conn: Connection) -> None:
    session = Session(conn)
    session.execute(text("select 1"))
    session.rollback()


ENDINGS: dict[str, Callable[[Connection], object]] = {
    "commit()": _commit,
    "rollback()": lambda conn: conn.rollback(),
    "close()": lambda conn: conn.close(),
    "the transaction's commit()": _of_the_transaction,
    "the transaction's close()": _close_it,
    "a session's commit()": _of_a_session,
    "a session's rollback()": _roll_back_a_session,
    "COMMIT": lambda conn: conn.execute(text("COMMIT")),
    "rollback": lambda conn: conn.execute(text("  -- so\n rollback")),
    "END": lambda conn: conn.exec_driver_sql("/* so */ end"),
    "BEGIN": lambda conn: conn.exec_driver_sql("begin immediate"),
    "autocommit": lambda conn: conn.execution_options(isolation_level="AUTOCOMMIT"),
    "invalidate()": lambda conn: conn.invalidate(),
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("swallows", [False, True], ids=["raises", "swallows"])
def test_an_end_of_its_own_is_refused(
    store: Store, own: Store, ending: str, swallows: bool
) -> None:
    held = lease(store)

    def end(conn: Connection) -> str:
        pay(conn)
        try:
            ENDINGS[ending](conn)
        except (TransactionMisuseError, SQLAlchemyError):
            if not swallows:
                raise
            with contextlib.suppress(TransactionMisuseError, SQLAlchemyError):
                conn.execute(text("insert into accounts values (2, 200)"))
            with contextlib.suppress(TransactionMisuseError, SQLAlchemyError):
                conn.commit()
        return "null"

    with pytest.raises(TransactionMisuseError, match="its checkpoint is not stored"):
        carry_out(own, held, end)

    check_nothing(store, held)
    assert carry_out(own, held, pay).result is Recorded.STORED


def test_several_statements_at_once_are_looked_through(
    postgresql_store: Store, postgresql_own: Store
) -> None:
    held = lease(postgresql_store)

    def end(conn: Connection) -> str:
        conn.exec_driver_sql("insert into accounts values (1, 1); commit; begin")
        return "null"

    with pytest.raises(TransactionMisuseError, match="called for COMMIT"):
        carry_out(postgresql_own, held, end)

    check_nothing(postgresql_store, held)


@pytest.mark.parametrize("way", ["commit", "rollback", "execute"])
def test_an_end_on_the_drivers_connection_is_refused_on_sqlite(sqlite_own: Store, way: str) -> None:
    held = lease(sqlite_own)

    def end(conn: Connection) -> str:
        pay(conn)
        raw: Any = conn.connection.driver_connection
        with contextlib.suppress(sqlite3.DatabaseError):
            if way == "execute":
                raw.executescript("select 1; select 2")  # it commits first
            else:
                getattr(raw, way)()
        return "null"

    with pytest.raises(TransactionMisuseError, match="on the driver's connection"):
        carry_out(sqlite_own, held, end)

    check_nothing(sqlite_own, held)


@pytest.mark.parametrize("chained", [False, True], ids=["ended", "begun anew"])
def test_an_end_on_the_drivers_connection_is_found_out_on_postgresql(
    postgresql_store: Store, postgresql_own: Store, chained: bool
) -> None:
    """Nothing can refuse it; the error says that what was committed stands."""
    held = lease(postgresql_store)

    def end(conn: Connection) -> str:
        pay(conn)
        raw: Any = conn.connection.driver_connection
        raw.commit()
        if chained:
            conn.execute(text("insert into accounts values (2, 200)"))
        return "null"

    with pytest.raises(TransactionMisuseError, match="a commit of its own took in stands"):
        carry_out(postgresql_own, held, end)

    assert (paid(postgresql_store), stored(postgresql_store, held)) == (1, [])


def test_a_connection_whose_end_went_past_us_is_nobodys_again(postgresql_store: Store) -> None:
    """What was set on it there is not seen from here: it would commit each statement by itself."""
    single = postgresql_store.sibling(connections=1, bounded=False)
    held = lease(postgresql_store)

    def end(conn: Connection) -> str:
        raw: Any = conn.connection.driver_connection
        raw.commit()
        raw.autocommit = True
        return "null"

    def fail(conn: Connection) -> str:
        pay(conn)
        raise ZeroDivisionError

    with pytest.raises(TransactionMisuseError):
        carry_out(single, held, end)
    with pytest.raises(ZeroDivisionError):
        carry_out(single, held, fail)

    check_nothing(postgresql_store, held)
    single.close()


def test_a_failed_statement_that_is_passed_over_is_said(
    postgresql_store: Store, postgresql_own: Store
) -> None:
    """PostgreSQL takes nothing more in that transaction: its COMMIT would be a roll-back."""
    held = lease(postgresql_store)

    def go_on(conn: Connection) -> str:
        pay(conn)
        with contextlib.suppress(IntegrityError):
            pay(conn)
        return "null"

    with pytest.raises(TransactionMisuseError, match="begin_nested"):
        carry_out(postgresql_own, held, go_on)

    check_nothing(postgresql_store, held)


def test_a_statement_that_rolls_back_on_sqlite_is_said(sqlite_own: Store) -> None:
    """What came after it would be committed statement by statement."""
    held = lease(sqlite_own)

    def go_on(conn: Connection) -> str:
        pay(conn)
        with contextlib.suppress(IntegrityError):
            conn.execute(text("insert or rollback into accounts values (1, 1)"))
        with contextlib.suppress(TransactionMisuseError):
            conn.execute(text("insert into accounts values (2, 200)"))
        return "null"

    with pytest.raises(TransactionMisuseError, match="has rolled all of it back"):
        carry_out(sqlite_own, held, go_on)

    check_nothing(sqlite_own, held)


def test_savepoints_are_fine(store: Store, own: Store) -> None:
    held = lease(store)

    def nest(conn: Connection) -> str:
        value = pay(conn)
        with contextlib.suppress(IntegrityError), conn.begin_nested():
            pay(conn)
        with conn.begin_nested() as inner:
            conn.execute(text("insert into accounts values (2, 200)"))
            inner.rollback()
        conn.execute(text("savepoint mine"))
        conn.execute(text("insert into accounts values (3, 300)"))
        conn.execute(text("rollback to savepoint mine"))
        return value

    assert carry_out(own, held, nest).result is Recorded.STORED
    check_both(store, held)


def test_options_that_end_nothing_are_fine(store: Store, own: Store) -> None:
    held = lease(store)

    def in_pages(conn: Connection) -> str:
        conn.execution_options(insertmanyvalues_page_size=50)
        return pay(conn)

    assert carry_out(own, held, in_pages).result is Recorded.STORED
    check_both(store, held)


@pytest.mark.parametrize("options", [{"stream_results": True}, {"yield_per": 10}])
def test_rows_may_be_read_by_a_cursor(store: Store, own: Store, options: dict[str, Any]) -> None:
    """SQLAlchemy keeps these options on the connection; our statements are no queries."""
    held = lease(store)

    def stream(conn: Connection) -> str:
        value = pay(conn)
        assert len(conn.execution_options(**options).execute(text("select 1")).all()) == 1
        return value

    assert carry_out(own, held, stream).result is Recorded.STORED
    check_both(store, held)


def test_a_session_may_be_bound_to_the_connection(store: Store, own: Store) -> None:
    held = lease(store)

    def work(conn: Connection) -> str:
        with Session(conn) as session:
            session.execute(text("insert into accounts values (1, 100)"))
            session.commit()  # of the session alone: the transaction is not its own
        return '{"paid":100}'

    assert carry_out(own, held, work).result is Recorded.STORED
    check_both(store, held)


def test_the_connection_is_of_no_use_afterwards(store: Store, own: Store) -> None:
    held = lease(store)
    kept: list[Connection] = []

    def keep(conn: Connection) -> str:
        kept.append(conn)
        return pay(conn)

    carry_out(own, held, keep)

    with pytest.raises((ResourceClosedError, InvalidRequestError)):
        kept[0].execute(text("select 1"))


def test_a_thread_that_goes_on_cannot_write_while_the_lease_is_checked(
    store: Store, own: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = lease(store)
    kept: list[Connection] = []
    refused: list[BaseException | None] = []

    def keep(conn: Connection) -> str:
        kept.append(conn)
        return pay(conn)

    def write_late(tx: Tx, *args: Any, **kwargs: Any) -> Any:
        late = text("insert into accounts values (2, 200)")
        with ThreadPoolExecutor(1) as thread:
            refused.append(thread.submit(kept[0].execute, late).exception(20))
        return record_boundaries(tx, *args, **kwargs)

    monkeypatch.setattr(transacting, "write_boundary", write_late)
    carry_out(own, held, keep)

    assert [type(each) for each in refused] == [TransactionMisuseError]
    check_both(store, held)


def test_a_connection_goes_back_as_it_came(store: Store, own: Store) -> None:
    """The next one that has it can end its transactions, also after one that failed."""
    single = own.sibling(connections=1, bounded=False)
    held = lease(store)
    made: list[Any] = []
    event.listen(single.engine, "connect", lambda raw, _: made.append(raw))

    def fail(conn: Connection) -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        carry_out(single, held, fail)
    carry_out(single, held, pay)

    def write() -> None:
        with single.engine.begin() as conn:
            conn.execute(text("insert into accounts values (2, 200)"))

    with ThreadPoolExecutor(1) as another:
        another.submit(write).result(20)

    assert paid(store) == 2
    assert single.engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    assert len(made) == 1
    single.close()


def test_a_connection_whose_store_is_closed_meanwhile_is_closed(store: Store, own: Store) -> None:
    """Its pool has been left, and nobody would look there again."""
    held = lease(store)
    kept: list[Any] = []

    def close(conn: Connection) -> str:
        kept.append(conn.connection.driver_connection)
        own.close()
        return pay(conn)

    assert carry_out(own, held, close).result is Recorded.STORED

    with pytest.raises((psycopg.OperationalError, sqlite3.ProgrammingError), match="closed"):
        kept[0].execute("select 1")
    check_both(store, held)


@pytest.mark.parametrize(
    ("sql", "ending"),
    [
        ("commit", "COMMIT"),
        ("  COMMIT AND CHAIN", "COMMIT"),
        ("commit prepared 'x'", "COMMIT"),
        ("/* a */ -- b\n rollback ;", "ROLLBACK"),
        ("rollback work", "ROLLBACK"),
        ("rollback to savepoint a", None),
        ("ROLLBACK WORK TO a", None),
        ("rollback transaction to a", None),
        ("rollback /* x */ to a", None),
        ("release savepoint a", None),
        ("start  transaction", "START TRANSACTION"),
        ("prepare transaction 'a'", "PREPARE TRANSACTION"),
        ("prepare p as select 1", None),
        ("select 1; end", "END"),
        ("select 1;", None),
        ("select 'a; commit'", None),
        ("select 'it''s; commit'", None),
        (r"select E'\'; commit; --'", None),
        ("select $a$ ; commit; $a$", None),
        ("select $$ ; commit; $$; abort", "ABORT"),
        ('select 1 as "; commit"', None),
        ("select 1 -- ; commit", None),
        ("create trigger t after insert on a begin select 1; end", None),
        ("create function f() returns int begin atomic select 1; end", None),
        ("create function f() returns int begin atomic select 1; end; commit", "COMMIT"),
        ("commitment", None),
        ("", None),
    ],
)
def test_what_ends_a_transaction_is_recognised(sql: str, ending: str | None) -> None:
    assert ending_in(sql) == ending
