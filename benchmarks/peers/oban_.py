"""oban: one queue; its limit is what matters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import psycopg
import uvloop
from oban import Oban, worker
from oban.schema import install

from benchmarks.compare.kit import Entrant, OnJob, Producer, main

_on_job: list[OnJob] = []


@worker(queue="default")
class Noop:
    async def process(self, job) -> None:
        _on_job[0](job.args["number"])


class _Producer(Producer):
    def __init__(self, oban: Oban) -> None:
        self._oban = oban

    async def one(self, number: int) -> None:
        await self._oban.enqueue(Noop.new({"number": number}))

    async def many(self, numbers: Sequence[int]) -> None:
        await self._oban.enqueue_many(Noop.new({"number": number}) for number in numbers)


class ObanEntrant(Entrant):
    event_loop = staticmethod(uvloop.new_event_loop)

    async def setup(self) -> None:
        pool = await Oban.create_pool(self.url)
        await install(pool)
        await pool.close()

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Producer]:
        pool = await Oban.create_pool(self.url)
        async with Oban(pool=pool) as oban:
            yield _Producer(oban)

    async def work(self, on_job: OnJob) -> None:
        _on_job[:] = [on_job]
        pool = await Oban.create_pool(self.url)
        async with Oban(pool=pool, queues={"default": self.number("limit", 500)}):
            await asyncio.Event().wait()

    async def unfinished(self) -> int:
        if not hasattr(self, "_watch"):
            self._watch = await psycopg.AsyncConnection.connect(self.url, autocommit=True)
        rows = await self._watch.execute(
            "select count(*) from oban_jobs where state not in ('completed', 'discarded')"
        )
        return (await rows.fetchone())[0]


if __name__ == "__main__":
    main(ObanEntrant)
