"""User code and its checkpoint in one transaction: both or neither, under the lease, once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, event, text
from sqlalchemy.exc import (
    IntegrityError,
)

from tests.store.acting import LEASE_MS, a_claimed, lease_of, recovered, take_one
from tests.store.rivals import Rival, blocked_sessions
from tests.store.transacting.paying import (
    a_record,
    carry_out,
    check_both,
    check_nothing,
    lease,
    lose_the_answer,
    paid,
    pay,
    refuse_connections,
    stored,
)
from tests.support.eventually import eventually
from workhorse.domain.recording import RecordAnswer, Recorded
from workhorse.errors import (
    StoreUnavailableError,
)
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.durable.boundaries import record as record_boundaries
from workhorse.store.durable.transacting import transact
from workhorse.store.live.leasing import Renewal, renew

# -- both, or neither ----------------------------------------------------------------------------


def test_the_writes_and_the_checkpoint_commit_together(store: Store, own: Store) -> None:
    held = lease(store)

    answer = carry_out(own, held, pay)

    assert answer.result is Recorded.STORED
    assert answer.boundary is not None
    assert answer.boundary.value == '{"paid":100}'
    check_both(store, held)


def test_nothing_is_seen_before_the_commit(store: Store, own: Store) -> None:
    held = lease(store)
    seen: list[Any] = []

    def look(conn: Connection) -> str:
        value = pay(conn)
        seen.append(store.read(lambda tx: tx.conn.execute(text("select 1 from accounts")).all()))
        return value

    carry_out(own, held, look)

    assert seen == [[]]
    check_both(store, held)


def test_an_error_rolls_everything_back_and_comes_as_it_is(store: Store, own: Store) -> None:
    held, error = lease(store), ValueError("no")

    def fail(conn: Connection) -> str:
        pay(conn)
        raise error

    with pytest.raises(ValueError, match="no") as caught:
        carry_out(own, held, fail)

    assert caught.value is error
    check_nothing(store, held)
    assert carry_out(own, held, pay).result is Recorded.STORED


def test_an_error_of_the_database_is_the_operations_and_not_repeated(
    store: Store, own: Store
) -> None:
    held, calls = lease(store), 0

    def twice(conn: Connection) -> str:
        nonlocal calls
        calls += 1
        pay(conn)
        return pay(conn)

    with pytest.raises(IntegrityError):
        carry_out(own, held, twice)

    assert calls == 1
    check_nothing(store, held)


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, SystemExit])
def test_what_is_no_exception_rolls_back_too(
    store: Store, own: Store, error: type[BaseException]
) -> None:
    held = lease(store)

    def leave(conn: Connection) -> str:
        pay(conn)
        raise error

    with pytest.raises(error):
        carry_out(own, held, leave)

    check_nothing(store, held)


def test_an_error_at_the_commit_is_the_operations(store: Store, own: Store) -> None:
    """A deferred constraint is looked at by COMMIT itself."""
    with own.engine.begin() as conn:
        conn.execute(
            text(
                "create table owed (id integer primary key, of integer"
                " references accounts (id) deferrable initially deferred)"
            )
        )
    if own.kind == "sqlite":
        event.listen(own.engine, "connect", lambda raw, _: raw.execute("pragma foreign_keys = on"))
        own.engine.dispose()
    held = lease(store)

    def owe(conn: Connection) -> str:
        conn.execute(text("insert into owed values (1, 7)"))
        return pay(conn)

    with pytest.raises(IntegrityError):
        carry_out(own, held, owe)

    check_nothing(store, held)


# -- the lease -----------------------------------------------------------------------------------


def test_a_taken_lease_stores_nothing(store: Store, own: Store, clock: ManualClock) -> None:
    stale = a_claimed(store)
    clock.advance(LEASE_MS + 1)
    recovered(store)
    clock.advance(3_600_000)
    current = take_one(store, stale.id)

    answer = carry_out(own, lease_of(stale), pay)

    assert answer == RecordAnswer(Recorded.LOST)
    check_nothing(store, lease_of(stale))
    assert carry_out(own, lease_of(current), pay).result is Recorded.STORED


def test_a_lease_that_is_taken_during_the_operation_stores_nothing(
    postgresql_store: Store, postgresql_own: Store, clock: ManualClock
) -> None:
    held = lease(postgresql_store)

    def slow(conn: Connection) -> str:
        value = pay(conn)
        clock.advance(LEASE_MS + 1)
        recovered(postgresql_store)
        return value

    assert carry_out(postgresql_own, held, slow) == RecordAnswer(Recorded.LOST)
    check_nothing(postgresql_store, held)


def test_an_expired_lease_that_nobody_took_still_counts(
    store: Store, own: Store, clock: ManualClock
) -> None:
    held = lease(store)
    clock.advance(LEASE_MS * 3)

    assert carry_out(own, held, pay).result is Recorded.STORED
    check_both(store, held)


def test_the_runs_row_is_free_while_the_operation_runs(
    postgresql_store: Store, postgresql_own: Store
) -> None:
    """So its lease is renewed, it can be cancelled, and values can be delivered to it."""
    held = lease(postgresql_store)
    answers: list[Any] = []

    def look(conn: Connection) -> str:
        answers.append(postgresql_store.try_once(renew, [held], LEASE_MS)[held])
        return pay(conn)

    carry_out(postgresql_own, held, look)

    assert answers == [Renewal.RENEWED]


def test_the_runs_row_is_locked_when_the_lease_is_checked(
    postgresql_store: Store, postgresql_own: Store
) -> None:
    """A takeover that is under way is waited for, and then seen."""
    held = lease(postgresql_store)
    with Rival(postgresql_store) as rival, ThreadPoolExecutor(1) as thread:
        rival.lock(held.run_id)
        rival.execute("update {s}live set token = 7 where id = :id", id=held.run_id)
        answer = thread.submit(carry_out, postgresql_own, held, pay)
        eventually(lambda: blocked_sessions(postgresql_store) == 1)
        rival.commit()

        assert answer.result(30) == RecordAnswer(Recorded.LOST)
    check_nothing(postgresql_store, held)


# -- once ----------------------------------------------------------------------------------------


def test_a_boundary_that_stands_undoes_the_operation(store: Store, own: Store) -> None:
    held = lease(store)
    carry_out(own, held, pay)

    def pay_more(conn: Connection) -> str:
        conn.execute(text("insert into accounts values (2, 200)"))
        return '{"paid":200}'

    answer = carry_out(own, held, pay_more)

    assert answer.result is Recorded.EXISTS
    assert answer.boundary is not None
    assert answer.boundary.value == '{"paid":100}'
    check_both(store, held)


def test_an_equal_boundary_that_stands_undoes_the_operation_too(store: Store, own: Store) -> None:
    """The same value says nothing of whether these writes are the ones that it came with."""
    held = lease(store)
    carry_out(own, held, pay)

    def pay_again(conn: Connection) -> str:
        conn.execute(text("insert into accounts values (2, 100)"))
        return '{"paid":100}'

    assert carry_out(own, held, pay_again).result is Recorded.EXISTS
    check_both(store, held)


def test_a_transaction_under_another_name_is_another_one(store: Store, own: Store) -> None:
    held = lease(store)
    carry_out(own, held, pay)

    def pay_more(conn: Connection) -> str:
        conn.execute(text("insert into accounts values (2, 200)"))
        return '{"paid":200}'

    answer = transact(own, a_record(held, "more", 2), pay_more, may_start=lambda: None)

    assert answer.result is Recorded.STORED
    assert paid(store) == 2
    assert sorted(stored(store, held)) == ['{"paid":100}', '{"paid":200}']


def test_a_boundary_that_is_just_being_committed_undoes_the_operation(
    postgresql_store: Store, postgresql_own: Store
) -> None:
    """An earlier commit may still be under way when its repetition gets to its end."""
    held = lease(postgresql_store)
    with Rival(postgresql_store) as rival, ThreadPoolExecutor(1) as thread:
        earlier = a_record(held)
        earlier = replace(earlier, boundary=replace(earlier.boundary, value='{"paid":100}'))
        rival.call(record_boundaries, [earlier], reach=lambda queue: 0)
        answer = thread.submit(carry_out, postgresql_own, held, pay)
        eventually(lambda: blocked_sessions(postgresql_store) == 1)
        rival.commit()

        assert answer.result(30).result is Recorded.EXISTS
    assert paid(postgresql_store) == 0
    assert stored(postgresql_store, held) == ['{"paid":100}']


@pytest.mark.parametrize("after", [False, True], ids=["not committed", "committed"])
def test_a_commit_whose_answer_is_lost_happens_once(store: Store, own: Store, after: bool) -> None:
    held, calls = lease(store), 0
    noted = lose_the_answer(own, after=after)

    def count(conn: Connection) -> str:
        nonlocal calls
        calls += 1
        return pay(conn)  # twice would break the primary key

    answer = carry_out(own, held, count)

    assert answer.result is Recorded.STORED
    assert answer.boundary is not None
    assert answer.boundary.value == '{"paid":100}'
    assert noted == ["lost"]
    assert calls == (1 if after else 2)
    check_both(store, held)


def test_a_lost_answer_is_looked_up_however_often_the_look_fails(
    store: Store, own: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until a look has passed, the operation's own writes may stand."""
    held, calls = lease(store), 0
    lose_the_answer(own, after=True)
    refused = refuse_connections(own, monkeypatch, times=2)

    def count(conn: Connection) -> str:
        nonlocal calls
        calls += 1
        return pay(conn)  # twice would break the primary key

    assert carry_out(own, held, count).result is Recorded.STORED
    assert (calls, len(refused)) == (1, 2)
    check_both(store, held)


def test_a_commit_that_never_gets_an_answer_is_given_up(
    store: Store, own: Store, caplog: pytest.LogCaptureFixture
) -> None:
    held = lease(store)
    noted = lose_the_answer(own, after=False, times=100)

    with pytest.raises(StoreUnavailableError, match="transaction 'pay' did not pass in 6 tries"):
        carry_out(own, held, pay)

    assert len(noted) == 6
    assert "waits for the store" not in caplog.text
    check_nothing(store, held)
