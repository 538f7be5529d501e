"""Everybody at once: runs wait for signals, tokens, children and each other, and all of them end.

Each is freed by whoever comes first: a sender, a time-out, a pass, a cancel, an end. None may be
forgotten, and no two may wait for each other.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.store.acting import BROKEN, FAIL, SUCCEED, TASK, a_run, a_token, lease_of, reach, rows
from tests.store.invariants import check_invariants
from workhorse.domain.boundaries import BoundaryKind, NewBoundary, Wait
from workhorse.domain.ids import RunId
from workhorse.domain.outcomes import Retry, Settlement, Suspend
from workhorse.domain.recording import NewChild, NewToken, Record
from workhorse.domain.runs import ClaimedRun, OnFailure, Reason
from workhorse.errors import RunNotFoundError
from workhorse.store.base.database import Store
from workhorse.store.durable.boundaries import record
from workhorse.store.durable.delivering import deliver
from workhorse.store.durable.freeing import arm, free, free_noted
from workhorse.store.durable.tokens import complete_token, create_token, expire_tokens
from workhorse.store.lifecycle.claiming import claim
from workhorse.store.lifecycle.settling import Entry, settle
from workhorse.store.lifecycle.sweeping import finish_cancelled, promote, recover
from workhorse.store.operators.operating import cancel
from workhorse.store.producing.enqueueing import enqueue

_SECONDS = 3.0
_RUNS = 150
_TIMEOUT_MS = 400
_LEASE_MS = 300
_ENDS: list[Settlement] = [SUCCEED, SUCCEED, FAIL, Retry(10, Reason.ERROR, BROKEN)]
_SIGNAL, _TOKEN, _CHILD = BoundaryKind.SIGNAL, BoundaryKind.TOKEN, BoundaryKind.CHILD


class _Storm:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.refs = [f"tok_{n}" for n in range(30)]
        for ref in self.refs:
            store.run(create_token, ref, timeout_ms=_TIMEOUT_MS * 3)
        done = store.run(enqueue, [a_run() for _ in range(_RUNS)], reach=reach)
        self.ids = [each.run_id for each in done]
        self.ends_at = time.monotonic() + _SECONDS
        self.words: list[tuple[RunId, str]] = []
        self.done: Counter[str] = Counter()
        self._lock = threading.Lock()

    def work(self, store: Store, draw: random.Random) -> None:
        claimed = store.run(
            claim, queue="default", ids=draw.sample(self.ids, 10), tasks=[TASK], free=8,
            token=a_token(), lease_ms=_LEASE_MS,
        ).runs  # fmt: skip
        if draw.random() < 0.05:
            return  # this worker has died
        entries = [
            Entry(lease_of(run), self._ends(store, draw, run), "default", inbox=run.inbox)
            for run in claimed
        ]
        draw.shuffle(entries)
        settled = store.run(settle, entries, reach=reach).written
        self.count("settled", len(settled))

    def _ends(self, store: Store, draw: random.Random, run: ClaimedRun) -> Settlement:
        passed = {each.name: each for each in run.history.boundaries}
        came = {each.name for each in run.history.deliveries}
        open_ones = [
            Wait(kind=each.kind, name=name, token=json.loads(each.detail or "null"))
            for name, each in passed.items()
            if each.kind in (_SIGNAL, _TOKEN, _CHILD) and name not in came
        ]
        if open_ones:
            return Suspend(tuple(open_ones))
        what = draw.random()
        if time.monotonic() >= self.ends_at:
            return SUCCEED
        if len(passed) > 3 or what < 0.4:
            return draw.choice(_ENDS)
        at = len(passed)
        if what < 0.6:
            word = NewBoundary(
                name=f"word {at}", kind=_SIGNAL, seq=at, delay_ms=draw.choice([50, _TIMEOUT_MS])
            )
            self.words = [*self.words[-20:], (run.id, word.name)]
            return Suspend((Wait(kind=_SIGNAL, name=word.name, new=word),))
        if what < 0.8:
            refs = draw.sample(self.refs, 2)
            new = [
                NewBoundary(name=f"t {at} {ref}", kind=_TOKEN, seq=at, detail=json.dumps(ref))
                for ref in refs
            ]
            return Suspend(
                tuple(
                    Wait(kind=_TOKEN, name=each.name, new=each, token=ref)
                    for ref, each in zip(refs, new, strict=True)
                )
            )
        return self._with_children(store, draw, run, at)

    def _with_children(
        self, store: Store, draw: random.Random, run: ClaimedRun, at: int
    ) -> Settlement:
        names = [f"part {at} {n}" for n in range(2)]
        children = [a_run()._replace(parent=run.id, keep=draw.random() < 0.2) for _ in names]
        records = [
            Record(
                lease=lease_of(run),
                boundary=NewBoundary(name=name, kind=_CHILD, seq=at, detail=json.dumps(child.id)),
                child=NewChild(run=child),
                token=NewToken(ref=child.id[::-1], timeout_ms=_TIMEOUT_MS),
            )
            for name, child in zip(names, children, strict=True)
        ]
        if draw.random() < 0.2:
            group = NewBoundary(name=f"all {at}", kind=BoundaryKind.GROUP, seq=at, value="1")
            ended = tuple(child.id for child in children)
            records.append(Record(lease=lease_of(run), boundary=group, cancels=ended))
        store.run(record, records, reach=reach)
        self.count("children", len(children))
        self.learn([child.id for child in children])
        return Suspend(tuple(Wait(kind=_CHILD, name=name) for name in names))

    def send(self, store: Store, draw: random.Random) -> None:
        run_id, what = draw.choice(self.ids), draw.random()
        if what < 0.5:
            with contextlib.suppress(RunNotFoundError):  # its lease was lost before it was started
                run_id, name = draw.choice(self.words or [(run_id, "word 0")])
                result, _ = store.run(deliver, run_id, _SIGNAL, name, "1", key=None)
                self.count(result)
        elif what < 0.6:
            ref = draw.choice(self.refs)
            self.count(f"token {store.run(complete_token, ref, '1', key=None)}")
            store.run(free, ref, limit=20)
        elif what < 0.7:
            with contextlib.suppress(RunNotFoundError):
                store.run(cancel, run_id, by="ann", why="", request_id=f"r{draw.random()}")
        else:
            time.sleep(0.005)
            after = tuple(draw.sample(self.ids, 2))
            new = a_run()._replace(after=after, on_failure=draw.choice([None, *OnFailure]))
            with contextlib.suppress(RunNotFoundError):
                store.run(enqueue, [new], reach=reach)
                self.learn([new.id])
                self.count("after")
                if draw.random() < 0.7:
                    store.run(arm, sources=after)

    def sweep(self, store: Store, draw: random.Random) -> None:
        store.run(recover, reach=reach, draw=draw)
        store.run(finish_cancelled, reach=reach, draw=draw)
        store.run(promote, ids=draw.sample(self.ids, 10))
        self.count("promoted", store.run(promote).count)
        self.count("expired", store.run(expire_tokens).count)
        self.count("armed", store.run(arm).count)
        self.count("freed", store.run(free_noted).count)

    def count(self, what: str, n: int = 1) -> None:
        with self._lock:
            self.done[what] += n

    def learn(self, ids: list[RunId]) -> None:
        with self._lock:
            self.ids = [*self.ids, *ids]

    def run(self, act: Callable[[Store, random.Random], None], seed: int) -> None:
        store, draw = self.store.sibling(connections=1), random.Random(seed)
        try:
            while time.monotonic() < self.ends_at:
                act(store, draw)
        finally:
            store.close()

    def run_out(self) -> None:
        """Let everything come to its end, with nobody who sends anything."""
        draw, stop = random.Random(1), time.monotonic() + 60
        while rows(self.store, "select count(*) from {s}live")[0][0]:
            assert time.monotonic() < stop, rows(
                self.store, "select state, blockers, due_at, count(*) from {s}live group by 1, 2, 3"
            )
            self.sweep(self.store, draw)
            self.work(self.store, draw)
        while rows(self.store, "select count(*) from {s}freed")[0][0]:
            assert time.monotonic() < stop
            self.sweep(self.store, draw)


def _rage(store: Store) -> None:
    storm = _Storm(store)
    acts = [storm.work] * 5 + [storm.send] * 3 + [storm.sweep] * 2
    with ThreadPoolExecutor(len(acts)) as threads:
        futures = [threads.submit(storm.run, act, seed) for seed, act in enumerate(acts)]
        for future in futures:
            future.result(120)
    check_invariants(store)
    storm.run_out()
    check_invariants(store)
    assert rows(store, "select * from {s}links where kind <> 'token'") == []
    # Whoever waits for the lock of a file may wait for long: who gets it is not the same each time.
    met = ["settled", "children", "promoted", "freed"]
    if store.kind == "postgresql":
        met += ["delivered", "after", "armed"]
    assert all(storm.done[what] > 0 for what in met), storm.done


def test_everything_ends_whoever_frees_it(postgresql_url: str) -> None:
    store = Store.open(postgresql_url)

    _rage(store)

    # They are tried again where they happen, so nobody sees them; but each costs a second.
    met = rows(store, "select deadlocks from pg_stat_database where datname = current_database()")
    assert [row.deadlocks for row in met] == [0]
    store.close()


def test_everything_ends_on_one_file(sqlite_url: str) -> None:
    store = Store.open(sqlite_url)

    _rage(store)
    store.close()
