"""Runs come in: as they were given, in one transaction, and once, however often it is repeated."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import event

from tests.store.acting import (
    QUEUE,
    REACH_MS,
    a_claimed,
    a_run,
    an_entry,
    end,
    ids_of,
    live_row,
    promoted,
    put,
    put_many,
    reach,
    rows,
    seen,
    state_of,
    take,
    take_one,
)
from tests.store.rivals import Rival
from workhorse.domain.hints import no_reach
from workhorse.domain.ids import RunId
from workhorse.domain.outcomes import Finish
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import Enqueued, NewRun, RunState
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.lifecycle.settling import settle
from workhorse.store.producing.enqueueing import enqueue, hints_of


def _enqueue(store: Store, *runs: NewRun) -> list[Enqueued]:
    return store.run(enqueue, runs, reach=reach)


def test_nothing_to_enqueue_asks_nothing(store: Store) -> None:
    assert _enqueue(store) == []


def test_a_batch_is_answered_in_its_order(store: Store) -> None:
    runs = [a_run(delay_ms=delay) for delay in (0, 5_000, 0, 10**9)]

    answers = _enqueue(store, *runs)

    assert answers == [
        Enqueued(run_id=run.id, queue=QUEUE, created=True, due_in_ms=run.delay_ms or None)
        for run in runs
    ]


def test_all_or_none_of_a_batch_come_in(store: Store) -> None:
    bad = a_run(priority=101)  # checked at the call in a producer; the table refuses it too

    with pytest.raises(Exception, match="live_counts"):
        _enqueue(store, a_run(), bad, a_run())

    assert rows(store, "select * from {s}runs") == []


def test_1000_runs_come_in_at_once(store: Store) -> None:
    ids = put_many(store, 1_000, payload='{"a":1}', tags=("t",))

    assert len(rows(store, "select id from {s}live where state = 'ready'")) == 1_000
    assert ids == sorted(ids)


@pytest.mark.parametrize(
    ("size", "parts"), [(1_000_000, [9, 9, 7]), (10, [1_000, 1_000, 300])], ids=["chars", "rows"]
)
def test_a_large_batch_comes_in_by_parts_and_in_its_order(
    store: Store, size: int, parts: list[int]
) -> None:
    """As one statement, a thousand payloads of a mebibyte are more than a database takes."""
    batches: dict[str, int] = {}  # SQLite is handed each twice

    @event.listens_for(store.engine, "before_cursor_execute")
    def measure(*args: Any) -> None:
        batch = args[3].get("batch", "[]") if isinstance(args[3], dict) else "[]"
        batches.setdefault(batch, len(json.loads(batch)))

    payload, count = '"' + "x" * size + '"', sum(parts)
    runs = [a_run(payload=payload, delay_ms=number) for number in range(count)]
    answers = _enqueue(store, *runs)

    assert [answer.run_id for answer in answers] == [run.id for run in runs]
    assert [answer.due_in_ms for answer in answers] == [None, *range(1, count)]
    assert [each for each in batches.values() if each] == parts
    assert max(map(len, batches)) < 10_000_000
    assert rows(store, "select count(*) from {s}live") == [(count,)]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"session": "s", "priority": 7, "queue": "q", "task": "t"},
        {"key": "k", "tags": ("a", "b"), "timeout_ms": 5, "traceparent": "x"},
        {"retry": RetryPolicy(max_attempts=3)},
        {"retry": RetryPolicy()},
    ],
    ids=["nothing", "session", "key", "retry", "default retry"],
)
def test_a_run_is_stored_the_same_whatever_comes_beside_it(
    store: Store, fields: dict[str, Any]
) -> None:
    """Runs that are ready at once, and those of them that are alike, have statements of their own.

    Without its key a run is alike.
    """
    own, keyless = iter(range(9)), {name: fields[name] for name in fields if name != "key"}

    def one() -> NewRun:
        return a_run(**fields | ({"key": f"k{next(own)}"} if "key" in fields else {}))

    alone, beside, unlike, alike = one(), one(), one(), a_run(**keyless)
    _enqueue(store, alone)
    _enqueue(store, beside, a_run(delay_ms=1))
    _enqueue(store, a_run(priority=99), unlike)
    _enqueue(store, alike, a_run(**keyless))

    first, *others = (
        rows(
            store,
            "select r.*, l.* from {s}runs r join {s}live l on l.id = r.id where r.id = :id",
            id=run.id,
        )[0]
        for run in (alone, beside, unlike, alike)
    )
    for other in others:
        differs = {name for name, a, b in zip(first._fields, first, other, strict=True) if a != b}
        assert differs <= {"id", "key"}


def test_a_plain_batch_is_answered_without_a_row(postgresql_store: Store) -> None:
    """All of them are ready: that they were inserted is all there is to know."""
    store = postgresql_store
    answered: list[tuple[int, bool]] = []

    @event.listens_for(store.engine, "after_cursor_execute")
    def note(_conn: Any, cursor: Any, *_more: Any) -> None:
        answered.append((cursor.rowcount, cursor.description is not None))

    _enqueue(store, *(a_run(key=None) for _ in range(3)))

    assert answered == [(3, False)]


TEXTS = [
    "",
    "it's",
    'say "ok"',
    "100% %s %(batch)s %%",
    ":name ::text :batch",
    "back\\slash\\n \\u0041",
    "{curly} [square]",
    "tab\tline\nend\r",
    "\u00e9\u4e2d\u6587\u200f\U0001f40e\ufffd\u0001",
    "$1 ? --; drop table live",
]


@pytest.mark.parametrize("text", TEXTS)
def test_text_makes_the_trip_unchanged(store: Store, text: str) -> None:
    payload = json.dumps({text: text}, ensure_ascii=False)
    plain = "".join(letter for letter in text if letter.isprintable()) or "x"
    run_id = put(
        store,
        payload=payload,
        session=plain,
        key=plain,
        tags=(plain, "b"),
        task=plain,
        traceparent=plain,
    )

    claimed = take_one(store, run_id, tasks=[plain])

    assert claimed.payload == payload
    assert (claimed.task, claimed.session, claimed.key) == (plain, plain, plain)
    assert (claimed.tags, claimed.traceparent) == ((plain, "b"), plain)
    assert (seen(store, run_id).payload, seen(store, run_id).tags) == (payload, (plain, "b"))


def test_texts_make_the_trip_unchanged_beside_each_other(store: Store) -> None:
    """Batches of runs that are alike, and of results, are handed over as lists of texts."""
    texts = [json.dumps({text: text}, ensure_ascii=False) for text in TEXTS]
    texts += ["null", "[1,2]", "{}", '"a,b"', '"NULL"', '""']
    runs = [a_run(payload=text) for text in texts]
    _enqueue(store, *runs)

    claimed = take(store, *(run.id for run in runs)).runs
    entries = [an_entry(run, Finish(RunState.SUCCEEDED, result=run.payload)) for run in claimed]
    store.run(settle, entries, reach=reach)

    assert [run.payload for run in claimed] == texts
    assert [seen(store, run.id).result for run in runs] == texts


def test_plain_texts_make_the_trip_beside_each_other(store: Store) -> None:
    texts = ["null", "[1,2]", "{}", "5", "true", "-0.0"]
    runs = [a_run(payload=text) for text in texts]
    _enqueue(store, *runs)

    assert [run.payload for run in take(store, *(run.id for run in runs)).runs] == texts


def test_numbers_in_a_payload_stay_as_they_were_written(store: Store) -> None:
    payload = "[1,1.0,-0.0,1e400,9007199254740993,123456789012345678901234567890,0.1e-7]"

    assert a_claimed(store, payload=payload).payload == payload


@pytest.mark.parametrize("priority", [0, 1, 50, 99, 100])
def test_a_priority_makes_the_trip(store: Store, priority: int) -> None:
    assert a_claimed(store, priority=priority).priority == priority


def test_durations_up_to_years_make_the_trip(store: Store, clock: ManualClock) -> None:
    year = 365 * 24 * 3_600_000
    run_id = put(store, deadline_ms=year, timeout_ms=2**53, delay_ms=year)

    run = seen(store, run_id)
    assert run.deadline_at == run.due_at == clock.now + timedelta(days=365)
    clock.advance(year)
    assert take_one(store, run_id).timeout_ms == 2**53


# -- when a run is due ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ahead",
    [
        timedelta(microseconds=1),
        timedelta(milliseconds=1, microseconds=1),
        timedelta(hours=5, minutes=30, microseconds=123_456),
        timedelta(days=365),
    ],
)
def test_an_instant_makes_the_trip_to_the_microsecond(
    store: Store, clock: ManualClock, ahead: timedelta
) -> None:
    clock.advance(timedelta(microseconds=777_001))
    run_at = (clock.now + ahead).astimezone(timezone(timedelta(hours=-9, minutes=-30)))

    (answer,) = _enqueue(store, a_run(run_at=run_at))

    run = seen(store, answer.run_id)
    assert (run.state, run.due_at) == (RunState.SCHEDULED, run_at)
    assert run.due_at is not None
    assert run.due_at.utcoffset() == timedelta(0)
    assert answer.due_in_ms == -(-ahead // timedelta(milliseconds=1))  # rounded up
    clock.advance(ahead - timedelta(microseconds=1))
    assert promoted(store).count == 0
    clock.advance(timedelta(microseconds=1))
    assert promoted(store).count == 1


@pytest.mark.parametrize(
    "run_at",
    [
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(1, 1, 1, 23, 59, 59, 999_999, tzinfo=timezone(timedelta(hours=23))),
        datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(2025, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(2026, 1, 1, tzinfo=UTC),
    ],
)
def test_a_time_that_has_passed_is_due_now(
    store: Store, clock: ManualClock, run_at: datetime
) -> None:
    assert run_at <= clock.now

    (answer,) = _enqueue(store, a_run(run_at=run_at))

    assert answer.due_in_ms is None
    assert ids_of(take(store, scan=True)) == [answer.run_id]


def test_a_time_far_beyond_what_is_allowed_breaks_nothing(store: Store) -> None:
    """Producers refuse it; should one not, neither a claim nor maintenance stumbles over it."""
    run_at = datetime(9999, 12, 30, tzinfo=UTC)
    far = put(store, run_at=run_at)
    near = put(store)

    assert ids_of(take(store, far, scan=True)) == [near]
    assert promoted(store).count == 0
    assert seen(store, far).due_at == run_at


@pytest.mark.parametrize(("delay_ms", "sent"), [(1, True), (REACH_MS, True), (REACH_MS + 1, False)])
def test_a_due_time_within_reach_is_noted_as_sent(store: Store, delay_ms: int, sent: bool) -> None:
    """The producer sends the delayed wakeup after its commit."""
    assert bool(live_row(store, put(store, delay_ms=delay_ms)).wake_sent) is sent


def test_a_queue_that_delays_nothing_leaves_its_timers_to_maintenance(store: Store) -> None:
    (answer,) = store.run(enqueue, [a_run(delay_ms=1)], reach=no_reach)

    assert not live_row(store, answer.run_id).wake_sent


# -- an answer that was lost ---------------------------------------------------------------------


def test_an_enqueue_that_is_repeated_does_not_double(store: Store, clock: ManualClock) -> None:
    runs = [a_run(), a_run(delay_ms=5_000), a_run(key="k"), a_run(key="k2", delay_ms=10**8)]
    first = _enqueue(store, *runs)

    assert _enqueue(store, *runs) == first

    assert len(rows(store, "select * from {s}runs")) == 4


def test_an_enqueue_that_is_repeated_late_does_not_bring_a_run_back(store: Store) -> None:
    run = a_run()
    _enqueue(store, run)
    end(store, take_one(store, run.id))

    (again,) = _enqueue(store, run)

    assert (again.run_id, again.created) == (run.id, True)
    assert state_of(store, run.id) is RunState.SUCCEEDED


def test_a_repeated_part_of_a_batch_does_not_keep_the_rest_out(store: Store) -> None:
    old, new = a_run(), a_run()
    _enqueue(store, old)

    answers = _enqueue(store, old, new)

    assert [answer.run_id for answer in answers] == [old.id, new.id]
    assert state_of(store, new.id) is RunState.READY


def test_two_repetitions_at_once_do_not_double(postgresql_store: Store) -> None:
    store = postgresql_store
    run = a_run()
    with Rival(store) as one, Rival(store) as two:
        one.call(enqueue, [run], reach=reach)
        answer = two.start(enqueue, [run], reach=reach)
        two.wait_until_blocked()
        one.commit()
        assert [each.run_id for each in answer.result(10)] == [run.id]
        two.commit()

    assert len(rows(store, "select * from {s}live")) == 1


def _rolled_back(store: Store, run: NewRun) -> RunId:
    with Rival(store) as producer:
        (answer,) = producer.call(enqueue, [run], reach=reach)
        producer.rollback()
        if store.kind == "sqlite":
            producer.commit_and_rest()
    return answer.run_id


def test_a_rolled_back_enqueue_leaves_nothing(store: Store) -> None:
    _rolled_back(store, a_run(key="k", session="s"))

    for sql in ("select * from {s}runs", "select * from {s}live", "select * from {s}keys"):
        assert rows(store, sql) == []


# -- wakeups -------------------------------------------------------------------------------------


def _woken(*pairs: tuple[NewRun, Enqueued], stride: int = 1) -> list[tuple[RunId, int]]:
    new, done = zip(*pairs, strict=True)
    hints = hints_of(new, done, reach=reach, stride=stride)
    return [(hint.run_id, hint.delay_ms) for hint in hints]


def _answered(due_in_ms: int | None = None, **fields: Any) -> tuple[NewRun, Enqueued]:
    run = a_run(**fields)
    return run, Enqueued(run.id, run.queue, created=True, due_in_ms=due_in_ms)


def test_a_wakeup_follows_for_each_run_that_is_ready_or_due_within_reach() -> None:
    ready, past, near, far = map(_answered, (None, -1, REACH_MS, REACH_MS + 1))

    assert _woken(ready, past, near, far) == [
        (ready[0].id, 0),
        (past[0].id, 0),
        (near[0].id, REACH_MS),
    ]


def test_no_wakeup_follows_for_what_was_there_or_comes_after_others() -> None:
    run, known = _answered()
    there = a_run(), Enqueued(known.run_id, QUEUE, created=False)
    after = run._replace(after=(known.run_id,)), known

    assert _woken(there, after) == []


def test_one_wakeup_in_so_many_follows_for_each_queue() -> None:
    ready = [_answered(queue=queue) for queue in "abaaabaa"]

    woken = _woken(*ready, stride=3)

    assert woken == [(ready[at][0].id, 0) for at in (0, 1, 4)]


def test_a_wakeup_bears_what_its_run_is_traced_by() -> None:
    (run, now), (other, later) = _answered(traceparent="a"), _answered(5, traceparent="b")

    hints = hints_of([run, other], [now, later], reach=reach)

    assert [(hint.queue, hint.traceparent) for hint in hints] == [(QUEUE, "a"), (QUEUE, "b")]
