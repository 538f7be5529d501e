"""Deadlocks and serialization failures between everybody at once (docs/cases.md, case 14)."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg
import pytest
from sqlalchemy import make_url
from sqlalchemy.exc import IntegrityError

from tests.store.acting import (
    BROKEN,
    HAND_BACK,
    RETRY_NOW,
    SUCCEED,
    TASK,
    a_run,
    a_token,
    do,
    lease_of,
    reach,
    rows,
    sleeping,
    waiting_at_most,
)
from tests.store.invariants import check_invariants
from tests.support.eventually import eventually
from workhorse.domain.ids import RunId
from workhorse.domain.outcomes import Retry, Settlement
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import ClaimedRun, Reason
from workhorse.errors import RunNotFinishedError
from workhorse.store.base.database import Store
from workhorse.store.lifecycle.claiming import claim
from workhorse.store.lifecycle.settling import Entry, settle
from workhorse.store.lifecycle.sighting import sight
from workhorse.store.lifecycle.sweeping import (
    end_overdue,
    far_timers,
    finish_cancelled,
    promote,
    recover,
)
from workhorse.store.live.leasing import renew
from workhorse.store.operators.operating import cancel, pause_queue, rerun, resume_queue
from workhorse.store.producing.enqueueing import enqueue

_SECONDS = 4.0
_AT_MOST_SECONDS = 90.0
"""On a busy machine it takes that long until each of these has happened."""
_WANTED = ("claimed", "settled", "recovered", "rerun", "came too late")
_LEASE_MS = 150
_QUEUE = "default"
_KINDS: list[Settlement] = [
    SUCCEED,
    RETRY_NOW,
    Retry(20, Reason.ERROR, BROKEN),
    HAND_BACK,
    HAND_BACK,
    sleeping(20),
    waiting_at_most(20),
    waiting_at_most(10),
]


class _Storm:
    """Threads that claim, settle, renew, cancel, rerun and sweep the same runs."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.ids: list[RunId] = []
        self.ends_at = time.monotonic() + _SECONDS
        self.done: Counter[str] = Counter()
        self.claims: Counter[tuple[RunId, int]] = Counter()
        self.newest: dict[RunId, int] = {}
        """The highest fence that somebody was told."""
        self.written: Counter[tuple[RunId, int]] = Counter()
        self.written_late: list[RunId] = []
        """By whom knew no better, although somebody else had been told of a claim before."""
        self._suspended: dict[Store, list[list[ClaimedRun]]] = {}
        self._lock = threading.Lock()

    def enqueue(self, store: Store) -> None:
        policy = RetryPolicy(max_attempts=9, first=timedelta(milliseconds=20))
        runs = [
            a_run(
                session=f"s{number % 7}" if number % 3 == 0 else None,
                deadline_ms=2_500 if number % 5 == 0 else None,
                key=f"k{number}",
                retry=policy,
            )
            for number in range(100)
        ]
        self.ids = [each.run_id for each in store.run(enqueue, runs, reach=reach)]

    def work(self, store: Store, draw: random.Random) -> None:
        suspended = self._suspended.setdefault(store, [])
        if suspended and draw.random() < 0.2:
            self._settle(store, draw, suspended.pop(0))
        named = draw.sample(self.ids, 10)
        claimed = self._claim(store, named, scan=draw.random() < 0.7)
        with self._lock:
            self.done["claimed"] += len(claimed)
            for run in claimed:
                fence = lease_of(run).fence
                self.claims[run.id, fence] += 1
                self.newest[run.id] = max(fence, self.newest.get(run.id, 0))
        if not claimed:
            store.run(sight, named)
            return
        draw.shuffle(claimed)
        store.run(renew, [lease_of(run) for run in claimed], _LEASE_MS)
        if draw.random() < 0.2:
            return  # this worker has died with all its leases
        if draw.random() < 0.2:
            # And this one comes back late, maybe too late.
            suspended.append(claimed)
            return
        self._settle(store, draw, claimed)

    def _claim(self, store: Store, named: list[RunId], *, scan: bool) -> list[ClaimedRun]:
        """As a worker does: where two saw one turn free, again, and then without sessions."""
        token = a_token()
        for trial in (1, 2, 3):
            try:
                return store.run(
                    claim,
                    queue=_QUEUE,
                    ids=named,
                    tasks=[TASK],
                    free=12,
                    token=token,
                    lease_ms=_LEASE_MS,
                    scan=scan,
                    sessions=trial < 3,
                ).runs
            except IntegrityError:
                assert trial < 3
        raise AssertionError

    def _settle(self, store: Store, draw: random.Random, claimed: list[ClaimedRun]) -> None:
        draw.shuffle(claimed)
        entries = [Entry(lease_of(run), draw.choice(_KINDS), queue=_QUEUE) for run in claimed]
        with self._lock:
            late = {run.id for run in claimed if lease_of(run).fence < self.newest[run.id]}
            self.done["came too late"] += len(late)
        written = store.run(settle, entries, reach=reach).written
        with self._lock:
            self.done["settled"] += len(written)
            self.written_late += late & {*written}
            for run in claimed:
                if run.id in written:
                    self.written[run.id, lease_of(run).fence] += 1

    def operate(self, store: Store, draw: random.Random) -> None:
        run_id, request = draw.choice(self.ids), f"r{draw.random()}"
        what = draw.random()
        if what < 0.3:
            store.run(cancel, run_id, by="ann", why="", request_id=request)
        elif what < 0.6:
            with contextlib.suppress(RunNotFinishedError):
                again = store.run(rerun, run_id, by="ann", why="", request_id=request, reach=reach)
                with self._lock:
                    self.ids.append(again.run_id)
                    self.done["rerun"] += 1
        elif what < 0.65:
            store.run(pause_queue, _QUEUE, by="ann", why="")
            store.run(resume_queue, _QUEUE, by="ann", why="")
        else:
            keys = draw.sample(range(100), 5)
            store.run(enqueue, [a_run(key=f"k{number}") for number in keys], reach=reach)

    def sweep(self, store: Store, draw: random.Random) -> None:
        recovered = store.run(recover, reach=reach, draw=draw).count
        store.run(recover, reach=reach, draw=draw, ids=draw.sample(self.ids, 5))
        store.run(promote)
        store.run(promote, ids=draw.sample(self.ids, 5))
        store.run(end_overdue)
        store.run(finish_cancelled, reach=reach, draw=draw)
        store.run(far_timers, reach=reach)
        with self._lock:
            self.done["recovered"] += recovered

    def _goes_on(self) -> bool:
        now = time.monotonic()
        with self._lock:
            wanting = not all(self.done[what] for what in _WANTED)
        return now < (self.ends_at + _AT_MOST_SECONDS if wanting else self.ends_at)

    def run(self, act: Callable[[Store, random.Random], None], seed: int) -> None:
        store, draw = self.store.sibling(connections=1), random.Random(seed)
        try:
            while self._goes_on():
                act(store, draw)
        finally:
            store.close()


def _rage(store: Store) -> None:
    storm = _Storm(store)
    storm.enqueue(store)
    acts = [storm.work] * 6 + [storm.operate] * 2 + [storm.sweep] * 2
    with ThreadPoolExecutor(len(acts)) as threads:
        futures = [threads.submit(storm.run, act, seed) for seed, act in enumerate(acts)]
        for future in futures:
            future.result(120)  # nobody has seen 40001, 40P01, 23505 or a busy file

    check_invariants(store)
    assert max(storm.claims.values()) == 1  # no (run, fence) twice
    assert max(storm.written.values()) == 1
    assert storm.written_late == []
    for what in _WANTED:
        assert storm.done[what] > 0, storm.done
    ended = rows(store, "select id, count(*) from {s}outcomes group by id having count(*) > 1")
    assert ended == []


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_case_14_everybody_at_once_on_the_same_runs(postgresql_url: str, level: str) -> None:
    first = Store.open(postgresql_url)
    name = make_url(postgresql_url).database
    do(first, f"alter database \"{name}\" set default_transaction_isolation to '{level}'")
    first.close()
    with psycopg.connect(postgresql_url.replace("+psycopg", "")) as plain:
        assert plain.execute("show default_transaction_isolation").fetchone() == (level,)
    store = Store.open(postgresql_url)
    up = "select clock_timestamp() - pg_postmaster_start_time() > interval '10 seconds'"
    eventually(lambda: rows(store, up) == [(True,)], within=30)  # recovery waits for that

    _rage(store)
    store.close()


def test_case_14_everybody_at_once_on_one_file(sqlite_url: str) -> None:
    store = Store.open(sqlite_url)

    _rage(store)
    store.close()
