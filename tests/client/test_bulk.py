"""Many at once: a list whole or not at all, an iterator in thousands, wakeups for some."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event

from tests.client.lanes import RecordingLane
from workhorse.app import Workhorse
from workhorse.client import bulk
from workhorse.errors import ConfigurationError, IdempotencyConflictError
from workhorse.handlers.producing import Request
from workhorse.handlers.tasks import Task
from workhorse.store.producing import enqueueing


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits of five runs, so that a few make several."""
    monkeypatch.setattr(bulk, "COMMIT_EACH", 5)


def requests(task: Task[int, int], count: int) -> Iterator[Request[int]]:
    return (task.prepare(number) for number in range(count))


def payloads(app: Workhorse) -> list[str]:
    return sorted((view.payload for view in app.admin.list_runs(limit=1000)), key=int)


def test_a_list_is_one_transaction(
    app: Workhorse, double: Task[int, int], lane: RecordingLane
) -> None:
    """In order, with one wakeup for ten."""
    commits: list[int] = []
    event.listen(app.store.engine, "commit", lambda _connection: commits.append(1))
    told: list[int] = []

    runs = app.enqueue_many(list(requests(double, 25)), progress=told.append)

    assert len(commits) == 1
    assert [run.view().payload for run in runs] == [str(number) for number in range(25)]
    assert lane.ids == [runs[0].id, runs[10].id, runs[20].id]
    assert told == [25]


def test_a_list_is_stored_whole_or_not_at_all(
    app: Workhorse, double: Task[int, int], lane: RecordingLane
) -> None:
    """A conflict of one takes all of them, and the keys that they took."""
    double.enqueue(1, key="taken")
    lane.sent.clear()
    given = [double.prepare(5, key="free"), double.prepare(2, key="taken"), double.prepare(3)]
    with pytest.raises(IdempotencyConflictError) as raised:
        app.enqueue_many(given)

    assert payloads(app) == ["1"]
    assert lane.calls == [1]
    assert not hasattr(raised.value, "__notes__")
    assert double.enqueue(6, key="free").created


def test_an_empty_bulk_asks_nobody(app: Workhorse, lane: RecordingLane) -> None:
    """Neither form opens a transaction."""
    told: list[int] = []
    assert app.enqueue_many([], progress=told.append) == []
    assert app.enqueue_many(iter([])) == []
    assert asyncio.run(app.enqueue_many_async([])) == []
    assert (told, lane.calls) == ([], [])


@pytest.mark.usefixtures("small")
def test_an_iterator_is_committed_on_the_way(
    app: Workhorse, double: Task[int, int], lane: RecordingLane
) -> None:
    """Each commit is told, and one's runs can be claimed before the next but one is read."""
    told: list[int] = []
    seen: list[int] = []

    def given() -> Iterator[Request[int]]:
        for number in range(12):
            if number % 5 == 0:
                seen.append(len(payloads(app)))
            yield double.prepare(number)

    runs = app.enqueue_many(given(), progress=told.append)

    assert told == [5, 10, 12]
    assert seen[0] == 0
    assert seen[1] in (0, 5)
    assert seen[2] in (5, 10)
    assert len(runs) == 12
    assert lane.ids == [runs[0].id, runs[5].id, runs[10].id]


@pytest.mark.usefixtures("small")
def test_while_one_part_is_committed_the_next_is_read(
    app: Workhorse, double: Task[int, int]
) -> None:
    """In the caller's thread, as ever, and never two parts at once."""
    read_on = threading.Event()
    waited: list[bool] = []
    readers: set[int] = set()

    def commit(_connection: Connection) -> None:
        if not waited:
            waited.append(read_on.wait(10))

    def given() -> Iterator[Request[int]]:
        for number in range(12):
            readers.add(threading.get_ident())
            if number == 9:
                read_on.set()
            yield double.prepare(number)

    event.listen(app.store.engine, "commit", commit)
    app.enqueue_many(given())

    assert waited == [True]
    assert readers == {threading.get_ident()}
    assert payloads(app) == [str(number) for number in range(12)]


@pytest.mark.usefixtures("small")
def test_a_part_that_fails_while_the_next_is_read_ends_it_there(
    app: Workhorse, double: Task[int, int]
) -> None:
    """What was read behind it is not stored."""
    double.enqueue(99, key="taken")

    def given() -> Iterator[Request[int]]:
        for number in range(20):
            yield double.prepare(number, key="taken" if number == 7 else None)

    with pytest.raises(IdempotencyConflictError) as raised:
        app.enqueue_many(given())

    (note,) = raised.value.__notes__
    assert note.startswith("enqueue_many: the first 5 runs are committed and stand; ")
    assert payloads(app) == [*(str(number) for number in range(5)), "99"]


@pytest.mark.usefixtures("small")
def test_an_iterator_that_fails_says_how_far_it_came(
    app: Workhorse, double: Task[int, int]
) -> None:
    """Its own error passes, with a note; what was committed stands."""

    def given() -> Iterator[Request[int]]:
        yield from requests(double, 12)
        raise LookupError("the file ends here")

    with pytest.raises(LookupError) as raised:
        app.enqueue_many(given())

    (note,) = raised.value.__notes__
    assert note.startswith("enqueue_many: the first 10 runs are committed and stand; ")
    assert payloads(app) == [str(number) for number in range(10)]


@pytest.mark.usefixtures("small")
def test_the_async_form_takes_both_kinds_of_iterators(
    app: Workhorse, double: Task[int, int], lane: RecordingLane
) -> None:
    """And says how far it came, too."""

    async def given(count: int) -> AsyncIterator[Request[int]]:
        for request in requests(double, count):
            yield request

    async def failing() -> AsyncIterator[Request[int]]:
        async for request in given(7):
            yield request
        raise LookupError

    async def main() -> list[int]:
        told: list[int] = []
        await app.enqueue_many_async(list(requests(double, 3)), progress=told.append)
        await app.enqueue_many_async(requests(double, 6), progress=told.append)
        await app.enqueue_many_async(given(10), progress=told.append)
        with pytest.raises(LookupError) as raised:
            await app.enqueue_many_async(failing(), progress=told.append)
        assert "the first 5 runs" in raised.value.__notes__[0]
        return told

    assert asyncio.run(main()) == [3, 5, 6, 5, 10, 5]
    assert len(payloads(app)) == 3 + 6 + 10 + 5
    assert {each.form for each in lane.sent} == {"send_async"}


def test_the_stride_counts_by_queue_and_leaves_timers_out(
    app: Workhorse, double: Task[int, int], lane: RecordingLane
) -> None:
    """A delayed run has a wakeup of its own: nobody scans for it when it is due."""
    given = [
        double.prepare(number, queue="a" if number % 2 else "b", delay=delay)
        for number in range(22)
        for delay in (None, timedelta(seconds=5), timedelta(hours=1))
    ]

    app.enqueue_many(given)

    sent = [(each.outgoing.wakeup.queue, each.outgoing.delay_ms) for each in lane.sent]
    assert sent.count(("a", 0)) == sent.count(("b", 0)) == 2
    assert sum(delay == 5_000 for _queue, delay in sent) == 22
    assert len(sent) == 26


def test_one_key_twice_in_a_bulk_is_one_run(app: Workhorse, double: Task[int, int]) -> None:
    """The second is answered with the first."""
    runs = app.enqueue_many([double.prepare(1, key="k"), double.prepare(1, key="k")])

    assert (runs[0].id, runs[1].created) == (runs[1].id, False)


def test_large_payloads_and_long_lists_are_cut_into_statements(
    app: Workhorse, double: Task[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Still one transaction, and still in order."""
    monkeypatch.setattr(enqueueing, "_MOST_ROWS", 4)
    monkeypatch.setattr(enqueueing, "_MOST_CHARS", 10)
    given = [double.prepare(10**size) for size in (0, 1, 2, 3, 4, 11, 1, 5, 5)]

    runs = app.enqueue_many([*given, double.prepare(1, key="k"), double.prepare(1, key="k")])

    assert [run.view().payload for run in runs[:9]] == [request.run.payload for request in given]
    assert runs[9].id == runs[10].id


def test_the_keys_of_a_list_are_taken_in_one_order(
    app: Workhorse, double: Task[int, int], engine: Engine
) -> None:
    """By one statement, however long the list: else two with keys in common could deadlock.

    In a caller's transaction nothing is tried again, so the caller would get to see it.
    """
    taken: list[str] = []

    def note(_conn: Any, _cursor: Any, sql: str, *_more: Any) -> None:
        if sql.lower().startswith("insert into") and "fingerprint" in sql:
            taken.append(sql)

    event.listen(engine, "before_cursor_execute", note)
    with engine.begin() as connection:
        given = [double.prepare(number, key=f"k{number}") for number in range(1_001)]
        runs = app.enqueue_many(given, connection=connection)

    assert len(taken) == 1
    assert all(run.created for run in runs)


@pytest.mark.parametrize("given", [["double"], [7], [None]])
def test_what_was_not_prepared_is_refused(given: list[Any], app: Workhorse) -> None:
    """The error names what is missing."""
    with pytest.raises(ConfigurationError, match=r"task\.prepare"):
        app.enqueue_many(given)
    assert app.admin.list_runs() == []
