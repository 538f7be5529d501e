"""taskiq on SQS: ten messages a receive, sends in batches; the tasks at once are what matters.

It keeps no outcome (no result backend is set).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from taskiq.api import run_receiver_task
from taskiq_aio_sqs import SQSBroker

from benchmarks.compare.kit import Entrant, OnJob, Producer, main
from benchmarks.peers.sqs_queue import QUEUE, create, left


class _Producer(Producer):
    def __init__(self, task, at_once: int) -> None:
        self._task = task
        self._at_once = at_once

    async def one(self, number: int) -> None:
        await self._task.kiq(number)

    async def many(self, numbers: Sequence[int]) -> None:
        for low in range(0, len(numbers), self._at_once):
            part = numbers[low : low + self._at_once]
            await asyncio.gather(*(self._task.kiq(number) for number in part))


class TaskiqEntrant(Entrant):
    def _broker(self, on_job: OnJob | None = None):
        broker = SQSBroker(
            sqs_queue_name=QUEUE,
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id="local",
            aws_secret_access_key="local",  # noqa: S106 - the endpoint takes any
            max_number_of_messages=10,
            wait_time_seconds=10,
            enable_batching=bool(self.number("batching", 0)),
        )

        @broker.task(task_name="noop")
        async def noop(number: int) -> None:
            on_job(number)

        return broker, noop

    async def setup(self) -> None:
        create(self.url)

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Producer]:
        broker, noop = self._broker()
        await broker.startup()
        yield _Producer(noop, self.number("at_once", 20))
        await broker.shutdown()

    async def work(self, on_job: OnJob) -> None:
        broker, _ = self._broker(on_job)
        broker.is_worker_process = True
        await broker.startup()
        await run_receiver_task(
            broker,
            max_async_tasks=self.number("concurrency", 100),
            max_prefetch=self.number("prefetch", 10),
        )

    async def unfinished(self) -> int:
        return left(self.url)


if __name__ == "__main__":
    main(TaskiqEntrant)
