"""Two callers with the same key (docs/cases.md, case 3), as the store keeps it."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from tests.store.acting import (
    FAIL,
    SUCCEED,
    WAIT,
    a_run,
    end,
    put,
    reach,
    rows,
    seen,
    state_of,
    take_one,
)
from tests.store.rivals import Rival
from workhorse.domain.outcomes import Settlement
from workhorse.domain.runs import Enqueued, NewRun, RunState
from workhorse.errors import IdempotencyConflictError
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.operators.operating import cancel
from workhorse.store.producing.enqueueing import enqueue
from workhorse.store.producing.idempotency import KeysHeldError, reset_key


def _enqueue(store: Store, *runs: NewRun) -> list[Enqueued]:
    return store.run(enqueue, runs, reach=reach)


def _count(store: Store) -> int:
    return len(rows(store, "select id from {s}runs"))


@pytest.mark.parametrize(
    "state", ["ready", "running", "waiting", "succeeded", "failed", "cancelled"]
)
def test_a_key_names_its_run_whatever_became_of_it(store: Store, state: str) -> None:
    owner = put(store, key="k", payload="1")
    if state == "cancelled":
        store.run(cancel, owner, by="ann", why="no", request_id="r")
    elif state != "ready":
        claimed = take_one(store, owner)
        settlements: dict[str, Settlement] = {"waiting": WAIT, "succeeded": SUCCEED, "failed": FAIL}
        if state in settlements:
            end(store, claimed, settlements[state])
    assert state_of(store, owner) == state

    (again,) = _enqueue(store, a_run(key="k", payload="1"))

    assert (again.run_id, again.created, again.due_in_ms) == (owner, False, None)
    with pytest.raises(IdempotencyConflictError, match=f"'k' belongs to run {owner}"):
        _enqueue(store, a_run(key="k", payload="2"))
    assert _count(store) == 1


def test_a_key_is_the_tasks_own(store: Store) -> None:
    first = put(store, key="k", task="a")

    assert put(store, key="k", task="b") != first
    assert put(store, key="k", task="a") == first


def test_runs_without_a_key_are_never_the_same(store: Store) -> None:
    assert put(store, payload="1") != put(store, payload="1")


def test_a_conflict_shows_no_payload(store: Store) -> None:
    put(store, key="k", payload='"secret one"')

    with pytest.raises(IdempotencyConflictError) as conflict:
        put(store, key="k", payload='"secret two"')

    assert "secret" not in str(conflict.value)


def test_a_conflict_leaves_nothing_of_its_batch(store: Store) -> None:
    put(store, key="k", payload="1")

    with pytest.raises(IdempotencyConflictError):
        _enqueue(store, a_run(key="new"), a_run(key="k", payload="2"), a_run())

    assert _count(store) == 1
    assert len(rows(store, "select * from {s}keys")) == 1


def test_a_key_twice_in_a_batch_is_one_run(store: Store) -> None:
    first, second, other = a_run(key="k"), a_run(key="k"), a_run(key="k2")

    answers = _enqueue(store, first, second, other)

    assert [(each.run_id, each.created) for each in answers] == [
        (first.id, True),
        (first.id, False),
        (other.id, True),
    ]


def test_a_key_twice_in_a_batch_with_other_payloads_is_a_conflict(store: Store) -> None:
    with pytest.raises(IdempotencyConflictError):
        _enqueue(store, a_run(key="k", payload="1"), a_run(key="k", payload="2"))

    assert _count(store) == 0


def test_a_key_lives_for_30_days(store: Store, clock: ManualClock) -> None:
    owner = put(store, key="k", payload="1")
    clock.advance(timedelta(days=30) - timedelta(microseconds=1))
    assert put(store, key="k", payload="1") == owner
    clock.advance(timedelta(microseconds=1))

    (new,) = _enqueue(store, a_run(key="k", payload="2"))

    assert new.created
    assert new.run_id != owner
    assert put(store, key="k", payload="2") == new.run_id
    clock.advance(timedelta(days=30) - timedelta(microseconds=1))
    assert put(store, key="k", payload="2") == new.run_id


def test_a_key_that_was_reset_is_free(store: Store) -> None:
    owner = put(store, key="k", payload="1")

    assert store.run(reset_key, "orders.ship", "k")
    assert not store.run(reset_key, "orders.ship", "k")

    assert put(store, key="k", payload="2") != owner
    assert seen(store, owner).key == "k"
    assert state_of(store, owner) is RunState.READY


def test_a_reset_leaves_every_other_key(store: Store) -> None:
    run_id, other = put(store, key="other"), put(store, key="k", task="another")
    put(store, key="k")

    assert store.run(reset_key, "orders.ship", "k")

    assert put(store, key="other") == run_id
    assert put(store, key="k", task="another") == other


def test_a_repeated_enqueue_is_its_own_owner(store: Store) -> None:
    run = a_run(key="k")
    first = _enqueue(store, run)

    assert _enqueue(store, run) == first
    assert first[0].created


# -- callers side by side ------------------------------------------------------------------------


def test_a_caller_waits_for_an_owner_that_has_not_committed(postgresql_store: Store) -> None:
    store = postgresql_store
    with Rival(store) as first, Rival(store) as second:
        (owner,) = first.call(enqueue, [a_run(key="k")], reach=reach)
        answer = second.start(enqueue, [a_run(key="k")], reach=reach)
        second.wait_until_blocked()
        first.commit()

        (told,) = answer.result(10)
        second.commit()
    assert (told.run_id, told.created) == (owner.run_id, False)
    assert _count(store) == 1


def test_the_store_itself_waits_longer_than_for_other_locks(postgresql_store: Store) -> None:
    """An owner's transaction may take its time; two seconds are no reason to give up."""
    store = postgresql_store
    with Rival(store) as first, ThreadPoolExecutor(1) as thread:
        (owner,) = first.call(enqueue, [a_run(key="k")], reach=reach)
        limits: list[str] = []

        def limited(tx: object) -> list[Enqueued]:
            done = enqueue(tx, [a_run(key="k")], reach=reach)  # type: ignore[arg-type]
            limits.append(
                tx.conn.exec_driver_sql("show lock_timeout").scalar_one()  # type: ignore[attr-defined]
            )
            return done

        answer = thread.submit(store.try_once, limited)
        first.commit()
        (told,) = answer.result(10)

    assert told.run_id == owner.run_id
    assert limits == ["0"]
    assert store.run(lambda tx: tx.conn.exec_driver_sql("show lock_timeout").scalar_one()) == "2s"


def test_who_is_not_patient_gives_an_owner_a_moment(postgresql_store: Store) -> None:
    """Others share his transaction; nothing else bounds this one, nor those of a caller."""
    store = postgresql_store
    with Rival(store) as second, Rival(store) as first:
        first.call(enqueue, [a_run(key="k")], reach=reach)
        answer = second.start(enqueue, [a_run(key="k")], reach=reach, patient=False)

        with pytest.raises(KeysHeldError):
            answer.result(10)


def test_an_owner_that_rolled_back_does_not_block_the_next(postgresql_store: Store) -> None:
    store = postgresql_store
    with Rival(store) as first, Rival(store) as second:
        first.call(enqueue, [a_run(key="k", payload="1")], reach=reach)
        answer = second.start(enqueue, [a_run(key="k", payload="2")], reach=reach)
        second.wait_until_blocked()
        first.rollback()

        (told,) = answer.result(10)
        second.commit()
    assert told.created
    assert _count(store) == 1


def test_another_payload_is_refused_once_its_owner_has_committed(postgresql_store: Store) -> None:
    store = postgresql_store
    with Rival(store) as first, Rival(store) as second:
        first.call(enqueue, [a_run(key="k", payload="1")], reach=reach)
        answer = second.start(enqueue, [a_run(key="k", payload="2")], reach=reach)
        second.wait_until_blocked()
        first.commit()

        with pytest.raises(IdempotencyConflictError):
            answer.result(10)


def test_a_reset_waits_for_a_caller_that_was_told_the_owner(postgresql_store: Store) -> None:
    """So a key cannot vanish between the statement that takes it and the one that reads it."""
    store = postgresql_store
    owner = put(store, key="k")
    with Rival(store) as caller, Rival(store) as operator:
        (told,) = caller.call(enqueue, [a_run(key="k")], reach=reach)
        answer = operator.start(reset_key, "orders.ship", "k")
        operator.wait_until_blocked()
        caller.commit()
        assert answer.result(10)
        operator.commit()

    assert told.run_id == owner


def test_bulk_enqueues_with_keys_in_common_do_not_deadlock(postgresql_store: Store) -> None:
    """Both take the keys in one order, whatever order they come in."""
    store = postgresql_store
    keys = [f"k{number:02}" for number in range(20)]
    with Rival(store) as holder, Rival(store) as one, Rival(store) as two:
        holder.call(enqueue, [a_run(key="k10")], reach=reach)
        first = one.start(enqueue, [a_run(key=key) for key in keys], reach=reach)
        one.wait_until_blocked()
        second = two.start(enqueue, [a_run(key=key) for key in reversed(keys)], reach=reach)
        two.wait_until_blocked()
        holder.rollback()

        owners = {each.run_id for each in first.result(10)}
        one.commit()
        assert {each.run_id for each in second.result(10)} == owners
        two.commit()
    assert _count(store) == 20


def test_50_callers_at_once_make_one_run(store: Store) -> None:
    """Half of them with another payload: they are refused, and nothing else leaks out."""
    callers = 50
    start = threading.Barrier(callers)
    stores = [store.sibling(connections=1) for _ in range(10)]

    def call(number: int) -> tuple[str, bool] | None:
        run = a_run(key="k", payload=str(number % 2))
        start.wait(60)
        try:
            (told,) = stores[number % 10].run(enqueue, [run], reach=reach)
        except IdempotencyConflictError:
            return None
        return told.run_id, told.created

    with ThreadPoolExecutor(callers) as threads:
        answers = list(threads.map(call, range(callers)))
    for each in stores:
        each.close()

    told = [answer for answer in answers if answer is not None]
    assert len(told) == callers // 2
    assert len({run_id for run_id, _ in told}) == 1
    assert sum(created for _, created in told) == 1
    assert _count(store) == 1


def test_callers_of_which_every_third_rolls_back_get_one_answer(postgresql_store: Store) -> None:
    store = postgresql_store
    draw = random.Random(3)

    def call(number: int) -> str | None:
        with Rival(store) as producer:
            runs = [a_run(key=key) for key in draw.sample(["a", "b", "c"], 3)]
            told = producer.call(enqueue, runs, reach=reach)
            if number % 3 == 0:
                producer.rollback()
                return None
            producer.commit()
            by_key = {run.key: each.run_id for run, each in zip(runs, told, strict=True)}
            return ",".join(by_key[key] for key in ("a", "b", "c"))

    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(call, range(30)))

    assert len([answer for answer in answers if answer]) == 20
    assert len({answer for answer in answers if answer}) == 1
    assert _count(store) == 3
