"""pgqueuer: asyncpg and uvloop, as its documents advise; the batch is what matters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

from benchmarks.compare.kit import Entrant, OnJob, Producer, main


class _Producer(Producer):
    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    async def one(self, number: int) -> None:
        await self._queries.enqueue("noop", str(number).encode(), 0)

    async def many(self, numbers: Sequence[int]) -> None:
        payloads = [str(number).encode() for number in numbers]
        await self._queries.enqueue(["noop"] * len(payloads), payloads, [0] * len(payloads))


class PgQueuerEntrant(Entrant):
    event_loop = staticmethod(uvloop.new_event_loop)

    async def setup(self) -> None:
        connection = await asyncpg.connect(self.url)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Producer]:
        connection = await asyncpg.connect(self.url)
        yield _Producer(Queries(AsyncpgDriver(connection)))
        await connection.close()

    async def work(self, on_job: OnJob) -> None:
        queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(self.url)))

        @queuer.entrypoint("noop")
        async def noop(job) -> None:
            on_job(int(job.payload))

        await queuer.run(
            batch_size=self.number("batch", 1_000), dequeue_timeout=timedelta(seconds=30)
        )

    async def unfinished(self) -> int:
        if not hasattr(self, "_watch"):
            self._watch = await asyncpg.connect(self.url)
        return await self._watch.fetchval("select count(*) from pgqueuer")


if __name__ == "__main__":
    main(PgQueuerEntrant)
