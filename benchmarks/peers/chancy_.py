"""chancy: the asyncio executor, eager polling, notifications on; the concurrency matters."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import psycopg
from chancy import Chancy, Job, Queue, Worker

from benchmarks.compare.kit import Entrant, OnJob, Producer, main

_on_job: list[OnJob] = []


async def noop(*, number: int) -> None:
    _on_job[0](number)


def _job(number: int) -> Job:
    # By its path: as the main module it has another name here than in the worker.
    return Job(func="benchmarks.peers.chancy_.noop", kwargs={"number": number}, queue="default")


class _Producer(Producer):
    def __init__(self, chancy: Chancy) -> None:
        self._chancy = chancy

    async def one(self, number: int) -> None:
        await self._chancy.push(_job(number))

    async def many(self, numbers: Sequence[int]) -> None:
        async for _ in self._chancy.push_many([_job(number) for number in numbers]):
            pass


class ChancyEntrant(Entrant):
    def _chancy(self) -> Chancy:
        log = logging.getLogger("chancy")
        log.setLevel(logging.ERROR)
        return Chancy(self.url, log=log)

    async def setup(self) -> None:
        async with self._chancy() as chancy:
            await chancy.migrate()
            await chancy.declare(
                Queue(
                    "default",
                    concurrency=self.number("concurrency", 500),
                    executor=Chancy.Executor.Async,
                    eager_polling=True,
                    polling_interval=1,
                )
            )

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Producer]:
        async with self._chancy() as chancy:
            yield _Producer(chancy)

    async def work(self, on_job: OnJob) -> None:
        import benchmarks.peers.chancy_ as by_its_path

        by_its_path._on_job[:] = [on_job]
        async with (
            self._chancy() as chancy,
            Worker(chancy, register_signal_handlers=False) as worker,
        ):
            await worker.wait_for_shutdown()

    async def unfinished(self) -> int:
        if not hasattr(self, "_watch"):
            self._watch = await psycopg.AsyncConnection.connect(self.url, autocommit=True)
        rows = await self._watch.execute(
            "select count(*) from chancy_jobs where state in ('pending', 'running', 'retrying')"
        )
        return (await rows.fetchone())[0]


if __name__ == "__main__":
    main(ChancyEntrant)
