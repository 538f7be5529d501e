"""As test_joining, for callers on an event loop: their own drivers, and sends that block nobody."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session

from tests.client.conftest import driver_url
from tests.client.lanes import RecordingLane
from tests.support.eventually import eventually_async
from workhorse.app import Workhorse
from workhorse.domain.runs import RunState
from workhorse.errors import ConfigurationError, IdempotencyConflictError, RunNotFoundError
from workhorse.handlers.tasks import Task
from workhorse.telemetry import Metric

Caller = Callable[[AsyncEngine], AbstractAsyncContextManager[Any]]


class _UndoError(Exception):
    """Raised to end a transaction by an error, as an application does."""


@asynccontextmanager
async def _engine(url: str) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(url)
    try:
        yield engine
    finally:
        await engine.dispose()


@asynccontextmanager
async def _engine_begin(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    async with engine.begin() as connection:
        yield connection


@asynccontextmanager
async def _commit_as_you_go(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    async with engine.connect() as connection:
        yield connection
        await connection.commit()


@asynccontextmanager
async def _session(engine: AsyncEngine) -> AsyncIterator[AsyncSession]:
    async with AsyncSession(engine) as session:
        yield session
        await session.commit()


@asynccontextmanager
async def _scoped(engine: AsyncEngine) -> AsyncIterator[async_scoped_session[AsyncSession]]:
    sessions = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
    try:
        yield sessions
        await sessions.commit()
    finally:
        await sessions.remove()


CALLERS = pytest.mark.parametrize(
    "caller",
    [_engine_begin, _commit_as_you_go, _session, _scoped],
    ids=lambda caller: caller.__name__.strip("_"),
)


@CALLERS
def test_a_commit_makes_the_run_and_then_wakes_it(
    caller: Caller, async_url: str, double: Task[int, int], lane: RecordingLane
) -> None:
    """The send happens on another thread, once the run can be seen over another connection."""

    async def main() -> None:
        async with _engine(async_url) as engine:
            async with caller(engine) as connection:
                run = await double.enqueue_async(1, connection=connection)
                assert lane.calls == []
            await eventually_async(lambda: lane.ids == [run.id])
            assert (await run.view_async()).state is RunState.READY

    asyncio.run(main())
    assert lane.sent[0].seen
    assert lane.sent[0].thread != threading.get_ident()


@CALLERS
def test_a_rollback_leaves_no_run_and_sends_nothing(
    caller: Caller, async_url: str, app: Workhorse, double: Task[int, int], lane: RecordingLane
) -> None:
    """An error in the caller's own work takes the run with it."""

    async def main() -> None:
        async with _engine(async_url) as engine:
            with suppress(_UndoError):
                async with caller(engine) as connection:
                    run = await double.enqueue_async(1, connection=connection)
                    raise _UndoError
            with pytest.raises(RunNotFoundError, match="has not committed, or was rolled back"):
                await run.result_async(timeout=0)

    asyncio.run(main())
    app.flush()
    assert lane.calls == []


def test_savepoints_and_outer_transactions_decide(
    async_url: str, app: Workhorse, double: Task[int, int], lane: RecordingLane
) -> None:
    """A rolled-back savepoint sends nothing, a session's commit in an outer one neither."""

    async def main() -> list[str]:
        async with _engine(async_url) as engine, engine.connect() as connection:
            outer = await connection.begin()
            async with AsyncSession(connection, join_transaction_mode="create_savepoint") as inner:
                kept = await double.enqueue_async(1, connection=inner)
                with suppress(_UndoError):
                    async with inner.begin_nested():
                        await double.enqueue_async(2, connection=inner)
                        raise _UndoError
                await inner.commit()
            app.flush()
            assert lane.calls == []
            await outer.commit()
            return [kept.id]

    kept = asyncio.run(main())
    app.flush()
    assert lane.ids == kept


def test_a_slow_lane_holds_up_nobody(
    async_url: str, app: Workhorse, double: Task[int, int], lane: RecordingLane
) -> None:
    """The commit returns and the loop goes on while the send still waits for its broker."""
    lane.gate = threading.Event()

    async def main() -> None:
        async with _engine(async_url) as engine:
            async with AsyncSession(engine) as session:
                await double.enqueue_async(1, connection=session)
                await session.commit()
            async with engine.connect() as connection:
                await connection.execute(text("select 1"))
            assert lane.sent == []

    asyncio.run(main())
    lane.gate.set()
    app.flush()
    assert len(lane.sent) == 1


def test_a_sync_call_inside_run_sync_joins_too(
    async_url: str, app: Workhorse, double: Task[int, int], lane: RecordingLane
) -> None:
    """There the session is a plain one, and still nothing may wait in this thread."""

    async def main() -> str:
        async with _engine(async_url) as engine, AsyncSession(engine) as session:

            def work(plain: Session) -> str:
                return str(double.enqueue(1, connection=plain).id)

            run_id = await session.run_sync(work)
            await session.commit()
            return run_id

    run_id = asyncio.run(main())
    app.flush()
    assert lane.ids == [run_id]
    assert lane.sent[0].thread != threading.get_ident()


def test_many_join_one_transaction(
    async_url: str, app: Workhorse, double: Task[int, int], lane: RecordingLane
) -> None:
    """From an async iterator too; and a conflict leaves the transaction usable."""

    async def requests() -> AsyncIterator[Any]:
        for number in range(12):
            yield double.prepare(number)

    async def main() -> list[str]:
        await double.enqueue_async(1, key="taken")
        lane.sent.clear()
        async with _engine(async_url) as engine, engine.begin() as connection:
            with pytest.raises(IdempotencyConflictError):
                await app.enqueue_many_async(
                    [double.prepare(1, key="free"), double.prepare(2, key="taken")],
                    connection=connection,
                )
            runs = await app.enqueue_many_async(requests(), connection=connection)
            assert await app.enqueue_many_async([], connection=connection) == []
        return [run.id for run in runs]

    ids = asyncio.run(main())
    app.flush()
    assert lane.ids == [ids[0], ids[10]]
    assert double.enqueue(5, key="free").created


def test_asyncpg_joins_too(postgresql_url: str) -> None:
    """Its parameters are numbered, so it is sent the statements in another form."""
    pytest.importorskip("asyncpg")

    async def main() -> tuple[str, str]:
        url = driver_url(postgresql_url).replace("+psycopg", "+asyncpg")
        async with _engine(url) as engine:
            automatic = engine.execution_options(isolation_level="AUTOCOMMIT")
            async with automatic.connect() as connection:
                with pytest.raises(ConfigurationError, match="autocommit"):
                    await work.enqueue_async("x", connection=connection)
            async with AsyncSession(engine) as session:
                run = await work.enqueue_async("100 % :x", key="k", connection=session)
                with suppress(_UndoError):
                    async with session.begin_nested():
                        await work.enqueue_async("gone", connection=session)
                        raise _UndoError
                await session.commit()
            app.flush()
            return run.id, run.view().payload

    with Workhorse(database_url=postgresql_url, lane="polling") as app:

        @app.task()
        def work(text: str) -> None:
            pass

        run_id, payload = asyncio.run(main())
        assert payload == '"100 % :x"'
        assert app.counters.get(Metric.WAKEUPS_SENT) == 1
        assert [view.id for view in app.admin.list_runs()] == [run_id]


def test_sync_and_async_are_not_mixed_up(
    async_url: str, engine: Engine, double: Task[int, int]
) -> None:
    """Each form says which one takes what it was given."""

    async def main() -> None:
        async with _engine(async_url) as ours, AsyncSession(ours) as session:
            given: Any = session
            with pytest.raises(ConfigurationError, match="await enqueue_async"):
                double.enqueue(1, connection=given)
        with engine.connect() as connection, Session(engine) as session:
            for given in (connection, session):
                with pytest.raises(ConfigurationError, match="would block the event loop"):
                    await double.enqueue_async(1, connection=given)
            given = "text"
            with pytest.raises(ConfigurationError, match="AsyncSession, async_scoped_session"):
                await double.enqueue_async(1, connection=given)

    asyncio.run(main())


def test_without_a_connection_nothing_blocks_the_loop(
    double: Task[int, int], lane: RecordingLane
) -> None:
    """The store is called on another thread, and the lane in its async form."""

    async def main() -> str:
        run = await double.enqueue_async(1)
        return run.id

    run_id = asyncio.run(main())
    assert [(each.run_id, each.form, each.seen) for each in lane.sent] == [
        (run_id, "send_async", True)
    ]
