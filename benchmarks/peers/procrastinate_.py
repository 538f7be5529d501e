"""procrastinate: the psycopg connector, LISTEN/NOTIFY on; the concurrency is what matters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import procrastinate
import psycopg

from benchmarks.compare.kit import Entrant, OnJob, Producer, main


class _Producer(Producer):
    def __init__(self, task) -> None:
        self._task = task

    async def one(self, number: int) -> None:
        await self._task.defer_async(number=number)

    async def many(self, numbers: Sequence[int]) -> None:
        await self._task.batch_defer_async(*({"number": number} for number in numbers))


class ProcrastinateEntrant(Entrant):
    def _app(self, on_job: OnJob | None = None):
        app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=self.url))

        @app.task(name="noop")
        async def noop(number: int) -> None:
            on_job(number)

        return app, noop

    async def setup(self) -> None:
        app, _ = self._app()
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Producer]:
        app, noop = self._app()
        async with app.open_async():
            yield _Producer(noop)

    async def work(self, on_job: OnJob) -> None:
        app, _ = self._app(on_job)
        async with app.open_async():
            await app.run_worker_async(
                concurrency=self.number("concurrency", 50), install_signal_handlers=False
            )

    async def unfinished(self) -> int:
        if not hasattr(self, "_watch"):
            self._watch = await psycopg.AsyncConnection.connect(self.url, autocommit=True)
        rows = await self._watch.execute(
            "select count(*) from procrastinate_jobs where status in ('todo', 'doing')"
        )
        return (await rows.fetchone())[0]


if __name__ == "__main__":
    main(ProcrastinateEntrant)
