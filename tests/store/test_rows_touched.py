"""However many runs there are, a call touches as many rows as it has to do with (case 16).

Each operation is called as a worker or maintenance calls it, on 100,000 runs; each statement that
it executes is looked at: no table is read whole, and the rows that it reads are few. Traps hide
where statistics are missing or old, and in plans that are made without looking at the values.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from tests.store.acting import (
    HAND_BACK,
    RETRY,
    SLEEP,
    SUCCEED,
    WAIT,
    a_checkpoint,
    a_claimed,
    a_run,
    an_entry,
    draw,
    lease_of,
    promoted,
    put,
    put_many,
    reach,
    rows,
    take,
    take_one,
)
from tests.store.planned import planned
from tests.store.waiting import a_family, a_ref, a_waiting, complete, freed, linked, send
from tests.support.crowd import TASK, crowd
from tests.support.databases import Databases
from workhorse.domain.ids import RunId
from workhorse.domain.outcomes import Settlement
from workhorse.domain.recording import Record
from workhorse.domain.runs import ClaimedRun
from workhorse.store.base.database import Store
from workhorse.store.base.dialect import PostgresDialect
from workhorse.store.base.statements import Statements
from workhorse.store.durable.boundaries import record
from workhorse.store.durable.freeing import arm
from workhorse.store.durable.tokens import expire_tokens
from workhorse.store.lifecycle.claiming import claimed_under
from workhorse.store.lifecycle.settling import settle
from workhorse.store.lifecycle.sighting import sight
from workhorse.store.lifecycle.sweeping import (
    end_overdue,
    far_timers,
    finish_cancelled,
    promote,
    recover,
)
from workhorse.store.live.leasing import renew
from workhorse.store.operators.operating import cancel
from workhorse.store.operators.viewing import (
    list_runs,
    open_queues,
    ready_to_top_up,
    show,
)
from workhorse.store.producing.enqueueing import enqueue

COUNT = 100_000
RUNNING = 500
MOST_TOUCHED = 1_200
"""A page of candidates, what is locked of it, its sessions; or what is counted for a top-up."""
MOST_BLOCKS = 12_000
"""Of 100 live rows that go, each with its entries in the indexes: 60 to 100 blocks a row."""
CROWDED = {"live", "runs", "outcomes"}

Act = Callable[[], object]
_some = itertools.count(1)


def _claimed(store: Store, count: int = 100) -> list[ClaimedRun]:
    return take(store, *put_many(store, count)).runs


def _enqueue(store: Store) -> Act:
    new = [a_run() for _ in range(100)]
    return lambda: store.run(enqueue, new, reach=reach)


def _enqueue_unlike(store: Store) -> Act:
    new = [a_run(priority=number % 9) for number in range(100)]
    return lambda: store.run(enqueue, new, reach=reach)


def _enqueue_all_kinds(store: Store) -> Act:
    first, some = put(store), next(_some)
    new = [
        a_run(
            key=f"k{some}.{n}", session=f"s{some}.{n % 9}", delay_ms=n % 2 * 60_000,
            deadline_ms=3_600_000, tags=("t",),
        )._replace(after=(first,) if n % 10 == 0 else ())
        for n in range(100)
    ]  # fmt: skip
    return lambda: store.run(enqueue, new, reach=reach)


def _claim_by_ids(store: Store) -> Act:
    ids = put_many(store, 100)
    return lambda: take(store, *ids)


def _claim_by_scan(store: Store) -> Act:
    return lambda: take(store, scan=True, free=100, tasks=[TASK, "other"])


def _claim_by_both(store: Store) -> Act:
    ids = put_many(store, 10)
    return lambda: take(store, *ids, scan=True, free=100, tasks=[TASK, "other"])


def _look_up(store: Store) -> Act:
    token = lease_of(_claimed(store)[0]).token
    return lambda: store.run(claimed_under, token)


def _sight(store: Store) -> Act:
    ids = [run.id for run in _claimed(store, 50)] + put_many(store, 50)
    return lambda: store.run(sight, ids)


def _renew(store: Store) -> Act:
    leases = [lease_of(run) for run in _claimed(store)]
    return lambda: store.run(renew, leases, 30_000)


def _settles(settlement: Settlement) -> Callable[[Store], Act]:
    def prepare(store: Store) -> Act:
        entries = [an_entry(run, settlement) for run in _claimed(store)]
        return lambda: store.run(settle, entries, reach=reach)

    return prepare


def _record(store: Store) -> Act:
    new = [Record(lease=lease_of(run), boundary=a_checkpoint()) for run in _claimed(store)]
    return lambda: store.run(record, new, reach=reach)


def _record_again(store: Store) -> Act:
    again = _record(store)
    again()
    return again


def _signal(store: Store) -> Act:
    run_id = a_waiting(store)
    return lambda: send(store, run_id)


def _token(store: Store) -> Act:
    ref = a_ref(store)
    linked(store, ref)
    return lambda: (complete(store, ref), freed(store))


def _children(store: Store) -> Act:
    _, children = a_family(store, 20)
    claimed = take(store, *children).runs
    entries = [an_entry(run, SUCCEED) for run in claimed]

    def act() -> object:
        store.run(settle, entries, reach=reach)
        return freed(store)

    return act


def _after(store: Store) -> Act:
    first = a_claimed(store)
    store.run(enqueue, [a_run()._replace(after=(first.id,)) for _ in range(20)], reach=reach)

    def act() -> object:
        store.run(arm)
        store.run(settle, [an_entry(first, SUCCEED)], reach=reach)
        return freed(store)

    return act


def _promote(store: Store) -> Act:
    _due(store)
    return lambda: promoted(store)


def _promote_in_place(store: Store) -> Act:
    ids = _due(store)
    return lambda: store.run(promote, ids=ids)


def _due(store: Store) -> list[RunId]:
    """Return runs that were scheduled and are due by now: the wait is for a clock's next tick."""
    return put_many(store, 90, delay_ms=1)


def _recover(store: Store) -> Act:
    runs = take(store, *put_many(store, 90), lease_ms=1).runs
    assert len(runs) == 90
    return lambda: store.run(recover, reach=reach, draw=draw())


def _overdue(store: Store) -> Act:
    put_many(store, 90, deadline_ms=1)
    return lambda: store.run(end_overdue)


def _far(store: Store) -> Act:
    put_many(store, 90, delay_ms=2_000_000)
    return lambda: store.run(far_timers, reach=reach)


def _cancelled(store: Store) -> Act:
    claimed = a_claimed(store)
    store.run(cancel, claimed.id, by="a test", why="to see", request_id=str(claimed.id))
    return lambda: store.run(finish_cancelled, reach=reach, draw=draw())


def _next_turn(store: Store) -> Act:
    session = f"turns {next(_some)}"
    ids = [put(store, session=session) for _ in range(5)]
    first = take_one(store, ids[0])
    return lambda: store.run(settle, [an_entry(first, SUCCEED)], reach=reach)


ACTS: dict[str, Callable[[Store], Act]] = {
    "enqueue": _enqueue,
    "enqueue unlike runs": _enqueue_unlike,
    "enqueue all kinds": _enqueue_all_kinds,
    "claim by ids": _claim_by_ids,
    "claim by scan": _claim_by_scan,
    "claim by ids, filled up": _claim_by_both,
    "look up a claim": _look_up,
    "sight": _sight,
    "renew": _renew,
    "succeed": _settles(SUCCEED),
    "try again": _settles(RETRY),
    "hand back": _settles(HAND_BACK),
    "sleep": _settles(SLEEP),
    "wait": _settles(WAIT),
    "next turn": _next_turn,
    "record": _record,
    "record again": _record_again,
    "signal": _signal,
    "token": _token,
    "children": _children,
    "after": _after,
    "promote": _promote,
    "promote in place": _promote_in_place,
    "recover": _recover,
    "deadlines": _overdue,
    "far timers": _far,
    "cancellations": _cancelled,
    "due tokens": lambda store: lambda: store.run(expire_tokens),
    "open queues": lambda store: lambda: store.run(open_queues),
    "top up": lambda store: lambda: store.run(ready_to_top_up, "default", 100),
    "show": lambda store: (lambda run_id: lambda: store.run(show, run_id))(put(store)),
    "list": lambda store: lambda: store.run(list_runs, limit=50),
}


def _known(store: Store) -> None:
    crowd(store, COUNT, running=RUNNING)


def _never_looked_at(store: Store) -> None:
    crowd(store, COUNT, running=RUNNING, analyze=False)


def _looked_at_while_nearly_empty(store: Store) -> None:
    """By the statistics there are few runs, and none but running ones."""
    crowd(store, 0, running=RUNNING)
    crowd(store, COUNT, running=0, analyze=False)


STATISTICS: dict[str, Callable[[Store], None]] = {
    "known": _known,
    "never looked at": _never_looked_at,
    "looked at while nearly empty": _looked_at_while_nearly_empty,
}


@pytest.fixture(scope="module", params=STATISTICS)
def crowded(
    postgres: Databases, migrated_postgresql: str, request: pytest.FixtureRequest
) -> Iterator[Store]:
    """100,000 runs of all kinds, and what the database knows of them."""
    name = postgres.create(template=migrated_postgresql)
    store = Store.open(postgres.url(name), connections=1)
    with store.engine.begin() as conn:
        for table in (*CROWDED, "boundaries", "deliveries", "links", "freed", "tokens"):
            # Nobody looks at them meanwhile.
            conn.exec_driver_sql(f'alter table "workhorse".{table} set (autovacuum_enabled = off)')
    STATISTICS[request.param](store)
    # Recovery leaves leases alone for a while after the server's start, which may be just now.
    store.dialect = PostgresDialect(own_clock=False, settle_down_ms=0)
    store._statements = Statements(store.dialect, store.schema)
    yield store
    store.close()
    postgres.drop(name)


# These look at all runs that are running: as many as a fleet has slots for.
OF_ALL_RUNNING = {"recover", "cancellations", "look up a claim"}


@pytest.mark.parametrize("generic", [False, True], ids=["custom", "generic"])
@pytest.mark.parametrize("what", ACTS)
def test_case_16_an_operation_touches_few_rows(crowded: Store, what: str, generic: bool) -> None:
    act = ACTS[what](crowded)
    most = MOST_TOUCHED
    if what in OF_ALL_RUNNING:
        ((running,),) = rows(crowded, "select count(*) from {s}live where state = 'running'")
        most += 2 * running

    with planned(crowded, generic=generic) as statements:
        act()

    assert statements
    for each in statements:
        assert not each.whole & CROWDED, each
        assert each.touched <= most, each
        assert each.blocks <= MOST_BLOCKS, each
