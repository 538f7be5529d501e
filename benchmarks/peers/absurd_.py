"""absurd: the asynchronous client; concurrency and the poll interval are what matters.

It has no call for many: 1,000 calls in one transaction stand for it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import psycopg
from absurd_sdk import AsyncAbsurd
from absurdctl import BUNDLED_SCHEMA_SQL

from benchmarks.compare.kit import Entrant, OnJob, Producer, main


class _Producer(Producer):
    def __init__(self, client: AsyncAbsurd, connection, task: str) -> None:
        self._client = client
        self._connection = connection
        self._task = task

    async def one(self, number: int) -> None:
        await self._client.spawn(self._task, {"number": number}, queue="default")

    async def many(self, numbers: Sequence[int]) -> None:
        async with self._connection.transaction():
            for number in numbers:
                await self._client.spawn(self._task, {"number": number}, queue="default")


class AbsurdEntrant(Entrant):
    async def setup(self) -> None:
        async with await psycopg.AsyncConnection.connect(self.url, autocommit=True) as connection:
            await connection.execute(BUNDLED_SCHEMA_SQL)
        client = AsyncAbsurd(self.url)
        await client.create_queue("default")
        await client.close()

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Producer]:
        async with await psycopg.AsyncConnection.connect(self.url, autocommit=True) as connection:
            task = "flow" if self.flows else "noop"
            yield _Producer(AsyncAbsurd(connection), connection, task)

    async def work(self, on_job: OnJob) -> None:
        client = AsyncAbsurd(self.url)

        @client.register_task("noop")
        async def noop(params, ctx) -> None:
            on_job(params["number"])

        @client.register_task("flow")
        async def flow(params, ctx) -> int:
            async def charge() -> int:
                return params["number"]

            async def more() -> int:
                return 1

            charged = await ctx.step("charge", charge)
            shipped = charged + await ctx.step("ship", more)
            mailed = shipped + await ctx.step("mail", more)
            on_job(params["number"])
            return mailed

        await client.start_worker(
            concurrency=self.number("concurrency", 100),
            poll_interval=float(self.settings.get("poll_s", 0.02)),
        )

    async def unfinished(self) -> int:
        if not hasattr(self, "_watch"):
            self._watch = await psycopg.AsyncConnection.connect(self.url, autocommit=True)
        rows = await self._watch.execute(
            "select count(*) from absurd.t_default"
            " where state not in ('completed', 'failed', 'cancelled')"
        )
        return (await rows.fetchone())[0]


if __name__ == "__main__":
    main(AbsurdEntrant)
