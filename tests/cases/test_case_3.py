"""Async callers with one key: by themselves, and in transactions of which some roll back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from tests.client.conftest import driver_url
from workhorse.app import Workhorse
from workhorse.errors import IdempotencyConflictError
from workhorse.handlers.tasks import Task

CALLERS = 50


def an_app(url: str) -> tuple[Workhorse, Task[int, int]]:
    app = Workhorse(database_url=url, lane="polling")

    @app.task("work")
    async def work(number: int) -> int:
        return number

    return app, work


async def _all_of(calls: list[Coroutine[Any, Any, str]]) -> Counter[str]:
    return Counter(await asyncio.gather(*calls))


def test_case_3_fifty_async_callers_race_for_a_key_that_is_free(database_url: str) -> None:
    """Half of them with another payload: one payload wins, and the others conflict."""
    app, work = an_app(database_url)

    async def enqueue(number: int) -> str:
        try:
            return (await work.enqueue_async(1 + number % 2, key="k")).id
        except IdempotencyConflictError:
            return "conflict"

    with app:
        told = asyncio.run(_all_of([enqueue(number) for number in range(CALLERS)]))
        (view,) = app.admin.list_runs()
    assert told == {view.id: CALLERS // 2, "conflict": CALLERS // 2}


def test_case_3_async_transactions_that_roll_back_leave_the_key_to_the_next(
    database_url: str,
) -> None:
    """Every third rolls back; all others are told of one run, which is there."""
    app, work = an_app(database_url)
    connections = 10

    async def enqueue(engine: AsyncEngine, number: int) -> str:
        async with engine.connect() as connection:
            run = await work.enqueue_async(1, key="k", connection=connection)
            if number % 3 == 0:
                await connection.rollback()
                return "rolled back"
            await connection.commit()
            return run.id

    async def act() -> Counter[str]:
        engine = create_async_engine(
            driver_url(database_url, asynchronous=True), pool_size=connections, max_overflow=0
        )
        try:
            return await _all_of([enqueue(engine, number) for number in range(CALLERS)])
        finally:
            await engine.dispose()

    with app:
        told = asyncio.run(act())
        (view,) = app.admin.list_runs()
    assert told == {view.id: 33, "rolled back": 17}
