"""Whose time is bounded: ours, for the row and for a look; an operation's on SQLite alone."""

from __future__ import annotations

import contextlib
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Connection, text

from tests.store.acting import LEASE_MS
from tests.store.rivals import Rival
from tests.store.transacting.paying import (
    carry_out,
    check_both,
    check_nothing,
    lease,
    lose_the_answer,
    pay,
)
from workhorse.domain.recording import Recorded
from workhorse.errors import (
    TransactionTimeoutError,
)
from workhorse.store.base.database import Store
from workhorse.store.durable import transacting
from workhorse.store.live.leasing import Renewal, renew


def test_the_stores_bounds_are_not_the_operations(postgresql_store: Store) -> None:
    for pooler in (False, True):
        own = Store.open(
            postgresql_store.target.url.render_as_string(hide_password=False), pooler=pooler
        ).sibling(connections=1, bounded=False)
        held = lease(postgresql_store)
        found: list[Any] = []

        def look(conn: Connection, found: list[Any] = found) -> str:
            found += [
                conn.execute(text(f"show {name}")).scalar_one()
                for name in (
                    "lock_timeout",
                    "idle_in_transaction_session_timeout",
                    "search_path",
                    "transaction_isolation",
                )
            ]
            return "null"

        assert carry_out(own, held, look).result is Recorded.STORED
        assert found == ["0", "0", '"$user", public', "read committed"]
        own.close()


def test_our_own_wait_for_the_row_is_bounded(
    postgresql_store: Store, postgresql_own: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is repeated, as all of the operation is: nothing that stands is lost by it."""
    monkeypatch.setattr(
        transacting, "_OWN_BOUNDS", transacting._OWN_BOUNDS.replace("'12s'", "'10ms'")
    )
    held, calls = lease(postgresql_store), 0

    def count(conn: Connection) -> str:
        nonlocal calls
        calls += 1
        if calls == 3:
            rival.commit()
        return pay(conn)

    with Rival(postgresql_store) as rival:
        rival.lock(held.run_id)
        assert carry_out(postgresql_own, held, count).result is Recorded.STORED

    assert calls == 3
    check_both(postgresql_store, held)


def test_the_look_for_a_lost_answer_is_bounded_too(
    postgresql_store: Store, postgresql_own: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        transacting, "_OWN_BOUNDS", transacting._OWN_BOUNDS.replace("'12s'", "'10ms'")
    )
    held, starts, calls = lease(postgresql_store), 0, 0
    lose_the_answer(postgresql_own, after=True)

    def may_start() -> None:
        nonlocal starts
        starts += 1
        if starts == 2:  # it is committed, and nobody has heard of it
            rival.lock(held.run_id)
        if starts == 4:
            rival.commit()

    def count(conn: Connection) -> str:
        nonlocal calls
        calls += 1
        return pay(conn)

    with ThreadPoolExecutor(1) as thread, Rival(postgresql_store) as rival:
        answer = thread.submit(carry_out, postgresql_own, held, count, may_start=may_start)
        assert answer.result(20).result is Recorded.STORED

    assert (starts, calls) == (4, 1)
    check_both(postgresql_store, held)


def test_on_sqlite_a_statement_that_takes_too_long_is_ended(sqlite_own: Store) -> None:
    held = lease(sqlite_own)
    endless = text(
        "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n"
    )

    def go_on(conn: Connection) -> str:
        pay(conn)
        conn.execute(endless)
        return "null"

    with pytest.raises(TransactionTimeoutError, match="a third of the lease"):
        carry_out(sqlite_own, held, go_on, bound_ms=50)

    check_nothing(sqlite_own, held)
    assert carry_out(sqlite_own, held, pay, bound_ms=60_000).result is Recorded.STORED


@pytest.mark.parametrize("swallows", [False, True], ids=["raises", "swallows"])
def test_on_sqlite_python_code_that_takes_too_long_lets_others_write(
    sqlite_own: Store, swallows: bool
) -> None:
    """The lock is gone while the operation still runs, and what it does then is refused."""
    own = sqlite_own.sibling(connections=1)
    held = lease(sqlite_own)
    renewed: list[Any] = []

    def go_on(conn: Connection) -> str:
        pay(conn)
        for _ in conn.execute(text("select 1 union all select 2")):  # a cursor stays open
            break
        renewed.append(sqlite_own.run(renew, [held], LEASE_MS)[held])
        raw: Any = conn.connection.driver_connection
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            raw.execute("insert into accounts values (2, 200)")
        if swallows:
            with contextlib.suppress(TransactionTimeoutError):
                pay(conn)
        else:
            pay(conn)
        return "null"

    with pytest.raises(TransactionTimeoutError, match="transaction 'pay'"):
        carry_out(own, held, go_on, bound_ms=50)

    assert renewed == [Renewal.RENEWED]
    check_nothing(sqlite_own, held)
    assert carry_out(own, held, pay, bound_ms=60_000).result is Recorded.STORED
    own.close()
