"""Callers at once share a commit and a send; errors, waits and ends stay their own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import OperationalError

from tests.client.lanes import RecordingLane
from tests.store.acting import reach
from tests.store.rivals import Rival
from tests.support.eventually import eventually, eventually_async
from workhorse.app import Workhorse
from workhorse.domain.ids import new_run_id
from workhorse.domain.runs import NewRun
from workhorse.errors import (
    IdempotencyConflictError,
    RunNotFoundError,
    StoreUnavailableError,
)
from workhorse.handlers.tasks import Task
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.producing.enqueueing import enqueue

MANY = 64


@pytest.fixture
def app(database_url: str, lane: RecordingLane, clock: ManualClock) -> Iterator[Workhorse]:
    """An app whose callers share commits."""
    with Workhorse(database_url=database_url, lane=lane, clock=clock, share_commits=True) as app:
        yield app


@pytest.fixture
def postgresql_store(postgresql_url: str, clock: ManualClock) -> Iterator[Store]:
    """The store of another process, on PostgreSQL alone: for what row locks decide."""
    store = Store.open(postgresql_url, clock=clock)
    yield store
    store.close()


class Crowd:
    """Callers in threads of their own, who come while a commit is under way.

    They are let in one after the other, so that their order is known.
    """

    def __init__(self, app: Workhorse, lane: RecordingLane) -> None:
        self._app = app
        self._lane = lane
        self._threads = ThreadPoolExecutor(MANY + 1)
        self._under_way: Future[Any] | None = None

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_error: object) -> None:
        self.let_go()
        self._threads.shutdown()

    def begin(self, first: Callable[[], object]) -> None:
        """Hold the thread that commits: it sends the wakeup of a first run, and cannot end that."""
        self._lane.gate = threading.Event()
        known = self._lane.at_gate
        self._under_way = self._threads.submit(first)
        eventually(lambda: self._lane.at_gate > known)

    def come(self, calls: Sequence[Callable[[], Any]]) -> list[Future[Any]]:
        """Have callers wait behind what is under way."""
        before = waiting(self._app)
        futures = []
        for at, call in enumerate(calls):
            futures.append(self._threads.submit(call))
            until_waiting(self._app, before + at + 1)
        return futures

    def let_go(self) -> None:
        """Let the first send end, and with it everything else begin."""
        if self._lane.gate is not None:
            self._lane.gate.set()
        if self._under_way is not None:
            self._under_way.result(10)


@pytest.fixture
def crowd(app: Workhorse, lane: RecordingLane) -> Iterator[Crowd]:
    """Callers, and somebody whose commit is under way."""
    with Crowd(app, lane) as crowd:
        yield crowd


@pytest.fixture
def held(crowd: Crowd, double: Task[int, int]) -> Crowd:
    """Callers, and a commit that is under way."""
    crowd.begin(lambda: double.enqueue(-1))
    return crowd


def waiting(app: Workhorse) -> int:
    shared = app._client._shared
    assert shared is not None
    return shared.waiting


def until_waiting(app: Workhorse, count: int) -> None:
    eventually(lambda: waiting(app) == count)


def count_commits(app: Workhorse) -> list[int]:
    commits: list[int] = []
    event.listen(app.store.engine, "commit", lambda _connection: commits.append(1))
    return commits


def payloads(app: Workhorse) -> list[int]:
    return sorted(int(view.payload) for view in app.admin.list_runs(limit=1000))


# -- sharing -------------------------------------------------------------------------------------


def test_threads_at_once_share_a_commit_and_a_send(
    held: Crowd, app: Workhorse, double: Task[int, int], lane: RecordingLane
) -> None:
    """Each gets his own run, when it can be seen and somebody was told of it."""
    commits = count_commits(app)

    futures = held.come([partial(double.enqueue, n) for n in range(MANY)])
    held.let_go()
    runs = [future.result(10) for future in futures]

    assert len(commits) == 1
    assert lane.calls == [1, MANY]
    assert all(each.seen for each in lane.sent)
    assert lane.ids[1:] == [run.id for run in runs]
    assert [run.view().payload for run in runs] == [str(n) for n in range(MANY)]
    assert {(run.created, run.queue) for run in runs} == {(True, "default")}


def test_tasks_at_once_share_a_commit_a_send_and_a_thread(
    held: Crowd, app: Workhorse, double: Task[int, int], lane: RecordingLane
) -> None:
    """None takes a thread of its own, and the loop is never blocked."""
    commits = count_commits(app)

    async def main() -> list[Any]:
        calls = asyncio.gather(*(double.enqueue_async(n) for n in range(MANY)))
        await eventually_async(lambda: waiting(app) == MANY)
        held.let_go()
        return await calls

    runs = asyncio.run(main())

    assert lane.calls == [1, MANY]
    assert len(commits) == 1
    assert lane.ids[1:] == [run.id for run in runs]
    assert len({each.thread for each in lane.sent}) == 1
    assert app._background._pool is None
    assert payloads(app) == list(range(-1, MANY))


def _in_a_loop(task: Task[int, int], number: int) -> Any:
    return asyncio.run(task.enqueue_async(number))


def test_threads_and_loops_share_too(
    held: Crowd, app: Workhorse, double: Task[int, int], lane: RecordingLane
) -> None:
    """Two loops and a thread, in one commit."""
    loops = held.come([partial(_in_a_loop, double, n) for n in range(2)])
    threads = held.come([lambda: double.enqueue(2)])
    held.let_go()

    assert [future.result(10).created for future in loops + threads] == [True] * 3
    assert lane.calls == [1, 3]


def test_a_caller_alone_waits_for_nobody(
    app: Workhorse, double: Task[int, int], lane: RecordingLane
) -> None:
    """A commit each, by one thread, in the order of the calls."""
    double.enqueue(0)
    commits = count_commits(app)

    runs = [double.enqueue(n) for n in range(1, 6)]

    assert len(commits) == 5
    assert lane.ids[1:] == [run.id for run in runs]
    assert len({each.thread for each in lane.sent}) == 1


def test_a_crowd_that_comes_and_goes_loses_nothing(app: Workhorse, double: Task[int, int]) -> None:
    """Threads and tasks that enqueue one after the other, with nothing to keep them in step."""
    commits = count_commits(app)

    def thread(start: int) -> list[str]:
        return [double.enqueue(start + n).id for n in range(10)]

    async def task(start: int) -> list[str]:
        return [(await double.enqueue_async(start + n)).id for n in range(10)]

    async def loop(start: int) -> list[list[str]]:
        return await asyncio.gather(*(task(start + 10 * n) for n in range(16)))

    with ThreadPoolExecutor(17) as threads:
        in_threads = [threads.submit(thread, 10 * n) for n in range(16)]
        in_loop = threads.submit(lambda: asyncio.run(loop(160)))
        ids = [future.result(30) for future in in_threads] + in_loop.result(30)

    assert payloads(app) == list(range(320))
    assert all(mine == sorted(mine) for mine in ids)
    assert len(commits) < 320


def test_runs_of_a_callers_transaction_are_never_shared(
    held: Crowd, app: Workhorse, double: Task[int, int], engine: Engine
) -> None:
    """They come and go with that, whatever is under way beside it."""
    held.let_go()
    with engine.connect() as connection:
        double.enqueue(1, connection=connection)
        connection.rollback()
        double.enqueue(2, connection=connection)
        connection.commit()

    assert payloads(app) == [-1, 2]


def test_options_travel_in_a_shared_commit(
    held: Crowd, app: Workhorse, double: Task[int, int], lane: RecordingLane
) -> None:
    """Runs that are due later, or come after others, beside those that are ready."""
    first = held.come([lambda: double.enqueue(1, delay=timedelta(seconds=5), session="s")])
    held.let_go()
    run = first[0].result(10)
    held.begin(lambda: double.enqueue(-2))
    futures = held.come(
        [
            lambda: double.enqueue(2, after=[run]),
            lambda: double.enqueue(3, delay=timedelta(seconds=7)),
            lambda: double.enqueue(4),
        ]
    )
    held.let_go()

    states = [str(future.result(10).view().state) for future in futures]
    assert states == ["waiting", "scheduled", "ready"]
    assert [each.outgoing.delay_ms for each in lane.sent] == [0, 5_000, 0, 7_000, 0]


# -- errors --------------------------------------------------------------------------------------


def test_a_conflict_is_its_own_callers_alone(
    held: Crowd, app: Workhorse, double: Task[int, int], lane: RecordingLane
) -> None:
    """Half of a batch conflicts; the other half is stored and woken."""
    held.let_go()
    taken = [double.enqueue(100 + n, key=f"k{n}") for n in range(0, 8, 2)]
    held.begin(lambda: double.enqueue(-2))
    futures = held.come([partial(double.enqueue, n, key=f"k{n}") for n in range(8)])
    held.let_go()

    for n, future in enumerate(futures):
        if n % 2:
            assert future.result(10).created
        else:
            with pytest.raises(IdempotencyConflictError, match=f"'k{n}' belongs to run") as raised:
                future.result(10)
            assert taken[n // 2].id in str(raised.value)
    assert payloads(app) == [-2, -1, 1, 3, 5, 7, 100, 102, 104, 106]
    assert len(lane.ids) == 10


def test_of_two_with_one_key_the_first_stands(
    held: Crowd, app: Workhorse, double: Task[int, int]
) -> None:
    """The same payload finds the first one's run, another one conflicts with it."""
    futures = held.come([partial(double.enqueue, n, key="k") for n in (7, 7, 8, 7)])
    held.let_go()

    first, same, also = (futures[at].result(10) for at in (0, 1, 3))
    assert (first.created, same.created, also.created) == (True, False, False)
    assert same.id == also.id == first.id
    with pytest.raises(IdempotencyConflictError, match=first.id):
        futures[2].result(10)
    assert payloads(app) == [-1, 7]


def test_a_run_after_one_that_is_not_there_is_refused_alone(
    held: Crowd, app: Workhorse, double: Task[int, int]
) -> None:
    """The others of its batch go through."""
    missing = new_run_id()
    futures = held.come(
        [
            lambda: double.enqueue(1),
            lambda: double.enqueue(2, after=[missing]),
            lambda: double.enqueue(3),
        ]
    )
    held.let_go()

    with pytest.raises(RunNotFoundError, match=missing):
        futures[1].result(10)
    assert [futures[at].result(10).created for at in (0, 2)] == [True, True]
    assert payloads(app) == [-1, 1, 3]


def test_a_store_that_does_not_answer_is_everybodys_error(
    held: Crowd, app: Workhorse, double: Task[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked once for all, and each gets an error of his own."""
    asked: list[int] = []

    def refuse(_op: object, runs: Sequence[NewRun], **_options: object) -> None:
        asked.append(len(runs))
        raise StoreUnavailableError("no answer; repeating is safe")

    futures = held.come([partial(double.enqueue, n) for n in range(3)])
    monkeypatch.setattr(app.store, "run", refuse)
    held.let_go()

    errors = [future.exception(10) for future in futures]
    assert asked == [3]
    assert {(type(error), str(error)) for error in errors} == {
        (StoreUnavailableError, "no answer; repeating is safe")
    }
    assert len({id(error) for error in errors}) == 3


def test_a_lane_that_fails_is_nobodys_error(
    held: Crowd, app: Workhorse, double: Task[int, int], lane: RecordingLane
) -> None:
    """The runs are committed; scans find them."""
    futures = held.come([partial(double.enqueue, n) for n in range(3)])
    lane.error = RuntimeError("no broker")
    held.let_go()

    assert [future.result(10).created for future in futures] == [True] * 3
    assert payloads(app) == [-1, 0, 1, 2]


def test_a_commit_whose_answer_was_lost_makes_one_run_each(
    held: Crowd, app: Workhorse, double: Task[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is repeated, and finds its own runs."""
    store = app.store
    lost: list[str] = []

    def lose(connection: Any) -> None:
        if not lost:
            lost.append("once")
            connection.connection.driver_connection.commit()
            raise OperationalError("commit", None, ConnectionError("gone"))

    futures = held.come([partial(double.enqueue, n, key=f"k{n}") for n in range(4)])
    monkeypatch.setattr(store.dialect, "is_lost", lambda _error: True)
    event.listen(store.engine, "commit", lose)
    held.let_go()

    runs = [future.result(10) for future in futures]
    assert lost
    assert [run.created for run in runs] == [True] * 4
    assert payloads(app) == [-1, 0, 1, 2, 3]


def test_a_connection_that_is_killed_in_the_middle_costs_a_try(
    postgresql_url: str, clock: ManualClock, postgresql_store: Store
) -> None:
    """The server ends the session that inserts; the batch comes in over another one."""
    lane = RecordingLane(lambda _run_id: True)
    with (
        Workhorse(database_url=postgresql_url, lane=lane, clock=clock, share_commits=True) as app,
        Crowd(app, lane) as crowd,
    ):
        double = app.task("double")(_double)
        crowd.begin(lambda: double.enqueue(-1))
        futures = crowd.come([partial(double.enqueue, n) for n in range(4)])
        killed: list[int] = []

        def kill(conn: Any, _cursor: Any, _sql: str, *_more: Any) -> None:
            if not killed:
                killed.append(conn.connection.driver_connection.info.backend_pid)
                with postgresql_store.engine.connect() as other:
                    other.exec_driver_sql(f"select pg_terminate_backend({killed[0]}, 5000)")

        event.listen(app.store.engine, "before_cursor_execute", kill)
        crowd.let_go()

        assert [future.result(10).created for future in futures] == [True] * 4
        assert killed
        assert payloads(app) == [-1, 0, 1, 2, 3]


def _double(number: int) -> int:
    return number * 2


def test_who_waits_for_anothers_transaction_waits_alone(
    postgresql_url: str, clock: ManualClock, postgresql_store: Store
) -> None:
    """A key that somebody has taken and not committed keeps no one else waiting."""
    lane = RecordingLane(lambda _run_id: True)
    with (
        Workhorse(database_url=postgresql_url, lane=lane, clock=clock, share_commits=True) as app,
        Crowd(app, lane) as crowd,
        Rival(postgresql_store) as rival,
    ):
        double = app.task("double")(_double)
        crowd.begin(lambda: double.enqueue(-1))
        owner = double.prepare(5, key="k").run
        rival.call(enqueue, [owner], reach=reach)

        futures = crowd.come(
            [
                lambda: double.enqueue(1),
                lambda: double.enqueue(5, key="k"),
                lambda: double.enqueue(6, key="k"),
                lambda: double.enqueue(2, key="free"),
                lambda: double.enqueue(3),
            ]
        )
        crowd.let_go()

        assert [futures[at].result(10).created for at in (0, 3, 4)] == [True] * 3
        assert double.enqueue(4).created, "and the next batch is not held up either"
        assert not futures[1].done()
        assert not futures[2].done()
        rival.commit()
        assert futures[1].result(10).id == owner.id
        with pytest.raises(IdempotencyConflictError):
            futures[2].result(10)


def test_a_moment_for_keys_is_not_one_for_other_locks(
    postgresql_url: str, clock: ManualClock, postgresql_store: Store
) -> None:
    """Who shares a commit with a key waits for a lock as long as everybody else."""
    seen: list[str] = []

    def look(connection: Connection) -> None:
        seen.append(connection.exec_driver_sql("show lock_timeout").scalar_one())

    lane = RecordingLane(lambda _run_id: True)
    with Workhorse(database_url=postgresql_url, lane=lane, clock=clock, share_commits=True) as app:
        double = app.task("double")(_double)
        event.listen(app._resources.store().engine, "commit", look)
        assert double.enqueue(1, key="k").created
        assert double.enqueue(2).created

    assert seen[-2:] == ["2s", "2s"]


# -- the life of the thread ----------------------------------------------------------------------


def test_close_waits_for_what_is_under_way(
    held: Crowd, app: Workhorse, double: Task[int, int]
) -> None:
    """And for those who have come before; the app can be used again afterwards."""
    futures = held.come([partial(double.enqueue, n) for n in range(3)])
    closing = threading.Thread(target=app.close)
    closing.start()
    shared = app._client._shared
    assert shared is not None
    eventually(lambda: shared._committer._closed)
    assert not any(future.done() for future in futures)
    assert closing.is_alive()
    held.let_go()
    closing.join(10)

    assert not closing.is_alive()
    assert [future.result(10).created for future in futures] == [True] * 3
    assert double.enqueue(3).created
    assert payloads(app) == [-1, 0, 1, 2, 3]


def test_a_caller_that_is_cancelled_before_its_commit_stores_nothing(
    held: Crowd, app: Workhorse, double: Task[int, int]
) -> None:
    """The others of its batch are stored."""

    async def main() -> None:
        tasks = [asyncio.create_task(double.enqueue_async(n)) for n in range(3)]
        await eventually_async(lambda: waiting(app) == 3)
        tasks[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[1]
        held.let_go()
        await asyncio.gather(tasks[0], tasks[2])

    asyncio.run(main())

    assert payloads(app) == [-1, 0, 2]


def test_a_caller_that_is_cancelled_during_its_commit_may_have_stored_its_run(
    held: Crowd, app: Workhorse, double: Task[int, int], lane: RecordingLane
) -> None:
    """Nobody is hurt: what it was told comes to nobody, and the others of its batch hear."""
    first, second = lane.gate, threading.Event()
    assert first is not None

    async def main() -> None:
        tasks = [asyncio.create_task(double.enqueue_async(n)) for n in range(3)]
        await eventually_async(lambda: waiting(app) == 3)
        lane.gate = second
        first.set()
        await eventually_async(lambda: payloads(app) == [-1, 0, 1, 2])
        tasks[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[1]
        second.set()
        assert [(await tasks[at]).created for at in (0, 2)] == [True, True]

    asyncio.run(asyncio.wait_for(main(), 20))

    assert payloads(app) == [-1, 0, 1, 2]


def test_a_loop_that_has_gone_takes_nobody_along(
    held: Crowd, app: Workhorse, double: Task[int, int]
) -> None:
    """Its callers are not told; the others of the batch are."""

    async def leave() -> None:
        pending = asyncio.ensure_future(double.enqueue_async(1))
        await eventually_async(lambda: waiting(app) == 1)
        left.append(pending)

    left: list[asyncio.Future[Any]] = []
    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave())
    loop.close()
    futures = held.come([lambda: double.enqueue(2)])
    held.let_go()

    assert futures[0].result(10).created
    assert payloads(app) == [-1, 1, 2]
    left[0].get_loop()  # the task is kept until here
    left[0]._log_destroy_pending = False  # type: ignore[attr-defined]


_FORK = """
    import os, sys, threading
    from workhorse.app import Workhorse

    def threads():
        # PostgreSQL has one that looks for connections that hang.
        names = [each.name for each in threading.enumerate()]
        return len([name for name in names if name != "workhorse-store-watch"])

    app = Workhorse(database_url=sys.argv[1], lane="memory", share_commits=True)

    @app.task()
    def double(number: int) -> int:
        return number * 2

    double.enqueue(1)
    child = os.fork()
    if child == 0:
        try:
            print("child", double.enqueue(2).created, threads(), flush=True)
            app.close()
            print("child", threads(), flush=True)
            os._exit(0)
        except BaseException as error:
            print("child failed", repr(error), flush=True)
            os._exit(1)
    _, status = os.waitpid(child, 0)
    print("parent", status, double.enqueue(3).created, flush=True)
    app.close()
    print(sorted(view.payload for view in app.admin.list_runs()), threads())
    app.close()
"""


def test_a_forked_process_has_a_thread_of_its_own(database_url: str) -> None:
    """The parent's does not go along; its callers' runs are not stored twice."""
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore::DeprecationWarning",
            "-c",
            textwrap.dedent(_FORK),
            database_url,
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.stdout.splitlines() == [
        "child True 2",
        "child 1",
        "parent 0 True",
        "['1', '2', '3'] 1",
    ], done.stderr


_AT_THE_END = """
    import os, sys
    from workhorse.app import Workhorse

    app = Workhorse(database_url=sys.argv[1], lane="memory", share_commits=True)

    @app.task()
    def double(number: int) -> int:
        return number * 2

    class Last:
        def __del__(self, enqueue=double.enqueue, close=app.close, write=os.write):
            if sys.is_finalizing():
                write(1, b"at the end ")
            if enqueue(2).created:
                write(1, b"stored ")
            close()
            write(1, b"closed")

    double.enqueue(1)
    sys.modules["last"] = Last()  # modules go when the threads are stopped
"""


def test_who_enqueues_when_the_interpreter_has_stopped_the_thread_does_not_wait_for_it(
    database_url: str,
) -> None:
    """In a destructor, say: the process would never end."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_AT_THE_END), database_url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.stdout == "at the end stored closed", done.stderr


def test_sharing_is_off_unless_asked_for() -> None:
    """And its thread is not there before it is needed."""
    assert Workhorse()._client._shared is None
    shared = Workhorse(share_commits=True)._client._shared
    assert shared is not None
    assert not shared._committer._serving
