"""Workhorse itself, by the same rules: one process, its public API."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import psycopg

from benchmarks.compare.kit import Entrant, OnJob, Producer, main
from workhorse import AsyncContext, Workhorse
from workhorse.runtime.base.garbage import tend_garbage


class _Producer(Producer):
    def __init__(self, app: Workhorse, task: Any) -> None:
        self._app = app
        self._task = task

    async def one(self, number: int) -> None:
        self._task.enqueue(number)

    async def many(self, numbers: Sequence[int]) -> None:
        self._app.enqueue_many([self._task.prepare(number) for number in numbers])

    async def stream(self, numbers: Sequence[int]) -> None:
        self._app.enqueue_many(self._task.prepare(number) for number in numbers)


class WorkhorseEntrant(Entrant):
    def _app(self, on_job: OnJob | None = None) -> tuple[Workhorse, Any]:
        arguments: dict[str, Any] = {}
        if endpoint := self.settings.get("endpoint"):
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                os.environ.setdefault(name, "local")  # the endpoint takes any
            arguments |= {
                "aws_endpoint_url": endpoint,
                "aws_region": "us-east-1",
                "hint_stride": self.number("stride", 10),
            }
            if client := self.settings.get("client"):
                arguments["sqs_client"] = client
        app = Workhorse(
            database_url=self.url,
            lane=self.settings.get("lane", "polling"),
            queues=["bench"],
            concurrency=self.number("concurrency", 200),
            **arguments,
        )

        @app.task("noop", queue="bench")
        async def noop(number: int) -> None:
            if on_job is not None:
                on_job(number)

        @app.task("flow", queue="bench")
        async def flow(ctx: AsyncContext, number: int) -> int:
            charged = await ctx.checkpoint("charge", lambda: number)
            shipped = await ctx.checkpoint("ship", lambda: charged + 1)
            mailed = await ctx.checkpoint("mail", lambda: shipped + 1)
            if on_job is not None:
                on_job(number)
            return mailed

        return app, flow if self.flows else noop

    async def setup(self) -> None:
        app, _ = self._app()
        app.migrate()

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Producer]:
        app, task = self._app()
        with app:
            yield _Producer(app, task)

    async def work(self, on_job: OnJob) -> None:
        app, _ = self._app(on_job)
        tend_garbage()  # as `workhorse worker` does
        app.worker().start()
        await asyncio.Event().wait()

    async def unfinished(self) -> int:
        if not hasattr(self, "_watch"):
            self._watch = await psycopg.AsyncConnection.connect(self.url, autocommit=True)
        rows = await self._watch.execute("select count(*) from workhorse.live")
        row = await rows.fetchone()
        return int(row[0]) if row else 0


if __name__ == "__main__":
    main(WorkhorseEntrant)
