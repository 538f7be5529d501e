"""An old snapshot is open, so nothing that was deleted can be cleaned up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest

from tests.runtime.rig import Rig
from tests.store.acting import LEASE_MS, an_entry, lease_of, put_many, reach, rows, take
from tests.store.planned import planned
from tests.support.eventually import eventually
from workhorse.domain.outcomes import Finish
from workhorse.domain.runs import RunState
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.lifecycle.cursors import Cursor, Head
from workhorse.store.lifecycle.settling import settle
from workhorse.store.live.leasing import Renewal, renew

ROUNDS = 25
A_ROUND = 100


@pytest.fixture
def store(postgresql_url: str, clock: ManualClock) -> Iterator[Store]:
    store = Store.open(postgresql_url, clock=clock)
    yield store
    store.close()


class _Load:
    """Enqueues, claims, renews and ends so many runs a round, as a steady worker does."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store, self.clock = store, clock
        self.head: Cursor | Head | None = None

    def round(self) -> int:
        """Return how many blocks the claim has asked for."""
        put_many(self.store, A_ROUND)
        self.clock.advance(2_000)
        with planned(self.store) as statements:
            claim = take(self.store, scan=True, free=A_ROUND, cursor=self.head)
        assert len(claim.runs) == A_ROUND
        self.head = claim.head
        for _ in range(3):
            leases = [lease_of(run) for run in claim.runs]
            answers = self.store.run(renew, leases, LEASE_MS)
            assert {*answers.values()} == {Renewal.RENEWED}
        done = Finish(RunState.SUCCEEDED, result="null")
        entries = [an_entry(run, done) for run in claim.runs]
        assert len(self.store.run(settle, entries, reach=reach).written) == A_ROUND
        return sum(statement.blocks for statement in statements)

    def in_vain(self, *, from_the_very_head: bool = False) -> int:
        """Return how many blocks a claim asks for where nothing is left to claim."""
        cursor = None if from_the_very_head else self.head
        with planned(self.store) as statements:
            assert take(self.store, scan=True, free=A_ROUND, cursor=cursor).runs == []
        return sum(statement.blocks for statement in statements)


def _live_bytes(store: Store) -> int:
    ((size,),) = rows(store, "select pg_total_relation_size('workhorse.live')")
    return int(size)


def _open(postgresql_url: str, stack: ExitStack) -> psycopg.Connection:
    connection = stack.enter_context(psycopg.connect(postgresql_url.replace("+psycopg", "")))
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.execute("select pg_current_xact_id(), count(*) from workhorse.live")
    return connection


def test_case_15_a_claim_stays_as_cheap_while_an_old_snapshot_is_open(
    store: Store, clock: ManualClock, postgresql_url: str
) -> None:
    """It passes by what is dead; what a run leaves is little, and its room is used again."""
    load = _Load(store, clock)
    at_first = max(load.round() for _ in range(3))
    in_vain = load.in_vain()
    with ExitStack() as stack:
        _open(postgresql_url, stack)
        costs = [load.round() for _ in range(ROUNDS)]
        assert max(costs) <= 2 * at_first
        assert load.in_vain() <= 1.5 * in_vain
        # Whoever remembers nothing is not spared what is dead, and cannot be cleaned up.
        before = load.in_vain(from_the_very_head=True)
        assert before > 3 * in_vain
        size = _live_bytes(store)
        assert size / (ROUNDS * A_ROUND) <= 2_000

    with psycopg.connect(postgresql_url.replace("+psycopg", ""), autocommit=True) as other:
        other.execute("vacuum workhorse.live")
        assert load.in_vain(from_the_very_head=True) < before / 2
        for _ in range(ROUNDS // 2):
            load.round()
            other.execute("vacuum workhorse.live")
    assert _live_bytes(store) <= size * 1.1


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_case_15_a_worker_works_and_ends_cleanly_beside_old_snapshots(
    store: Store, postgresql_url: str, kind: str
) -> None:
    """One with a transaction id, and four that read at repeatable read."""
    rig = Rig(store)

    def plain() -> None: ...

    async def async_() -> None: ...

    rig.task("t")(plain if kind == "plain" else async_)
    with ExitStack() as stack:
        for _ in range(5):
            _open(postgresql_url, stack)
        runs = rig.enqueue_many("t", 300)
        worker = rig.worker(concurrency=10)
        worker.start()
        eventually(lambda: rig.state(runs[-1]) is RunState.SUCCEEDED)

        assert worker.stop()
        rig.close()

        assert {rig.view(run_id).state for run_id in runs} == {RunState.SUCCEEDED}
