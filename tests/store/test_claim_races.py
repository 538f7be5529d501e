"""Claims side by side: no run twice, nobody waits for a locked row (PostgreSQL's row locks)."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.store.acting import (
    LEASE_MS,
    QUEUE,
    TASK,
    a_token,
    do,
    end,
    ids_of,
    lease_of,
    put,
    put_many,
    state_of,
    take,
)
from tests.store.rivals import Rival
from workhorse.domain.ids import RunId
from workhorse.domain.runs import RunState
from workhorse.store.base.database import Store
from workhorse.store.lifecycle.claiming import claim
from workhorse.store.operators.operating import pause_queue


def test_two_claims_at_once_get_different_runs(store: Store) -> None:
    """Six workers, two batches each, from one start: each run goes to exactly one of them."""
    ids = put_many(store, 60)
    start = threading.Barrier(6)

    def work(_: int) -> list[RunId]:
        mine = store.sibling(connections=1)
        try:
            start.wait(30)
            named = ids_of(take(mine, *ids, free=5))
            return named + ids_of(take(mine, scan=True, free=5))
        finally:
            mine.close()

    with ThreadPoolExecutor(6) as workers:
        taken = [run_id for part in workers.map(work, range(6)) for run_id in part]

    assert sorted(taken) == sorted(ids)


def test_runs_of_a_claim_that_has_not_committed_are_passed_by(postgresql_store: Store) -> None:
    store = postgresql_store
    ids = put_many(store, 6)
    with Rival(store) as other:
        theirs = other.call(
            claim, queue=QUEUE, ids=ids[:2], tasks=[TASK], free=3, token=a_token(),
            lease_ms=LEASE_MS,
        )  # fmt: skip
        assert ids_of(theirs) == ids[:3]

        assert ids_of(take(store, *ids, free=2)) == ids[3:5]
        assert ids_of(take(store, scan=True)) == ids[5:]
        other.commit()

    assert all(end(store, run).written for run in theirs.runs)


def test_a_claim_that_is_rolled_back_leaves_the_runs_ready(postgresql_store: Store) -> None:
    store = postgresql_store
    ids = put_many(store, 2)
    with Rival(store) as other:
        other.call(
            claim, queue=QUEUE, ids=ids, tasks=[TASK], free=2, token=a_token(), lease_ms=LEASE_MS
        )
        other.rollback()

    again = take(store, *ids).runs
    assert [lease_of(run).fence for run in again] == [1, 1]


def test_a_locked_row_delays_nobody_and_hides_nothing(postgresql_store: Store) -> None:
    """A cancel that is under way holds one row; the others are taken, by id and by scan."""
    store = postgresql_store
    ids = put_many(store, 5)
    with Rival(store) as other:
        other.lock(ids[0])
        other.lock(ids[3])

        assert ids_of(take(store, ids[0], ids[1])) == [ids[1]]
        assert ids_of(take(store, scan=True)) == [ids[2], ids[4]]

    assert ids_of(take(store, scan=True)) == [ids[0], ids[3]]


def _look_slowly(store: Store) -> None:
    """Make each look at the paused queues wait, in the middle of its statement, for a lock."""
    do(store, "alter table {s}queues rename to queues_there")
    do(
        store,
        "create function {s}there() returns setof {s}queues_there language sql as"
        " $$ select pg_advisory_xact_lock_shared(1); select * from {s}queues_there $$",
    )
    do(store, "create view {s}queues as select * from {s}there()")


@pytest.mark.parametrize("named", [True, False], ids=["by id", "by scan"])
def test_a_run_that_is_put_off_while_it_is_looked_at_is_not_taken(
    postgresql_store: Store, named: bool
) -> None:
    """The lock reads the newest row: what the statement saw before does not count."""
    store = postgresql_store
    first, second = put(store), put(store)
    _look_slowly(store)
    with Rival(store) as other, Rival(store) as worker:
        other.execute("select pg_advisory_xact_lock(1)")
        answer = worker.start(
            claim, queue=QUEUE, ids=[first] if named else [], tasks=[TASK], free=5,
            token=a_token(), lease_ms=LEASE_MS,
        )  # fmt: skip
        worker.wait_until_blocked()
        other.execute(
            "update {s}live set state = 'scheduled', ready_at = null,"
            " due_at = timestamptz '2100-01-01Z' where id = :id",
            id=first,
        )
        other.commit()

        assert ids_of(answer.result(10)) == [second]
        worker.commit()
    assert state_of(store, first) is RunState.SCHEDULED


def test_a_pause_does_not_wait_for_claims(postgresql_store: Store) -> None:
    store = postgresql_store
    ids = put_many(store, 2)
    with Rival(store) as other:
        taken = other.call(
            claim, queue=QUEUE, ids=ids[:1], tasks=[TASK], free=1, token=a_token(),
            lease_ms=LEASE_MS,
        )  # fmt: skip
        assert store.run(pause_queue, QUEUE, by="ann", why="broken")
        other.commit()

    assert take(store, *ids, scan=True).runs == []
    assert end(store, taken.runs[0]).written == {ids[0]: RunState.SUCCEEDED}
