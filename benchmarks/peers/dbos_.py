"""dbos: workflows on a queue without a limit; the poll interval is what matters.

It has no call for many: 1,000 calls in one transaction stand for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import sqlalchemy
from dbos import DBOS, DBOSClient

from benchmarks.compare.kit import Entrant, OnJob, Producer, main

QUEUE = "bench"
_on_job: list[OnJob] = []


@DBOS.workflow(name="noop")
async def noop(number: int) -> None:
    _on_job[0](number)


@DBOS.step()
async def step(number: int) -> int:
    return number


@DBOS.workflow(name="flow")
async def flow(number: int) -> int:
    charged = await step(number)
    shipped = await step(charged + 1)
    mailed = await step(shipped + 1)
    _on_job[0](number)
    return mailed


class _Producer(Producer):
    def __init__(self, client: DBOSClient, engine: sqlalchemy.Engine, workflow: str) -> None:
        self._client = client
        self._engine = engine
        self._options = {"workflow_name": workflow, "queue_name": QUEUE, "app_version": "1"}

    async def one(self, number: int) -> None:
        self._client.enqueue(self._options, number)

    async def many(self, numbers: Sequence[int]) -> None:
        with self._engine.begin() as connection:
            for number in numbers:
                self._client.enqueue_in_transaction(connection, self._options, number)


class DbosEntrant(Entrant):
    def _url(self) -> str:
        return self.url.replace("postgresql://", "postgresql+psycopg://")

    def _launch(self) -> None:
        DBOS(
            config={
                "name": "bench",
                "system_database_url": self._url(),
                "application_version": "1",
                "log_level": "ERROR",
                "console_log_level": "ERROR",
            }
        )
        DBOS.launch()

    async def setup(self) -> None:
        await asyncio.to_thread(self._launch)

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Producer]:
        client = DBOSClient(system_database_url=self._url())
        engine = sqlalchemy.create_engine(self._url())
        yield _Producer(client, engine, "flow" if self.flows else "noop")
        engine.dispose()

    async def work(self, on_job: OnJob) -> None:
        _on_job[:] = [on_job]
        await asyncio.to_thread(self._launch)
        limit = self.number("concurrency", 0)
        await DBOS.register_queue_async(
            QUEUE,
            worker_concurrency=limit or None,
            polling_interval_sec=float(self.settings.get("poll_s", 0.05)),
        )
        await asyncio.Event().wait()

    async def unfinished(self) -> int:
        if not hasattr(self, "_watch"):
            self._watch = sqlalchemy.create_engine(self._url(), isolation_level="AUTOCOMMIT")
        with self._watch.connect() as connection:
            return connection.scalar(
                sqlalchemy.text(
                    "select count(*) from dbos.workflow_status"
                    " where status in ('ENQUEUED', 'PENDING')"
                )
            )


if __name__ == "__main__":
    main(DbosEntrant)
