"""celery on SQS: a pool of threads in one process; concurrency and prefetch are what matters.

It has no call for many: single calls stand for it. No result backend is set: it keeps no outcome.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from celery import Celery

from benchmarks.compare.kit import Entrant, OnJob, Producer, main
from benchmarks.peers.sqs_queue import QUEUE, create, left


class _Producer(Producer):
    def __init__(self, task) -> None:
        self._task = task

    async def one(self, number: int) -> None:
        self._task.delay(number)

    async def many(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._task.delay(number)


class CeleryEntrant(Entrant):
    def _app(self, on_job: OnJob | None = None):
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            os.environ.setdefault(name, "local")  # the endpoint takes any
        app = Celery("bench", broker=f"sqs://local:local@{self.url.removeprefix('http://')}//")
        app.conf.update(
            task_default_queue=QUEUE,
            worker_prefetch_multiplier=self.number("prefetch", 10),
            worker_enable_remote_control=False,
            task_ignore_result=True,
            worker_send_task_events=False,
            broker_transport_options={
                "region": "us-east-1",
                "is_secure": False,
                "wait_time_seconds": 20,
                "polling_interval": float(self.settings.get("poll_s", 0.1)),
                "predefined_queues": {QUEUE: {"url": f"{self.url}/000000000000/{QUEUE}"}},
            },
        )

        @app.task(name="noop")
        def noop(number: int) -> None:
            on_job(number)

        return app, noop

    async def setup(self) -> None:
        create(self.url)

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Producer]:
        _, noop = self._app()
        yield _Producer(noop)

    async def work(self, on_job: OnJob) -> None:
        app, _ = self._app(on_job)
        # What `celery worker` runs, less its handlers of signals, which need the main thread.
        worker = app.WorkController(
            hostname="bench@localhost",
            pool=self.settings.get("pool", "threads"),
            concurrency=self.number("concurrency", 8),
            loglevel="ERROR",
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
        )
        await asyncio.to_thread(worker.start)

    async def unfinished(self) -> int:
        return left(self.url)


if __name__ == "__main__":
    main(CeleryEntrant)
