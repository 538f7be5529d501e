"""What is set around a worker reaches its handlers, their steps and threads, and never leaks."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.cases.scene import Scene
from workhorse.handlers.context import AsyncContext, Context

WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")
RUNS = 8


class _Stamp(logging.Filter):
    """What middleware for logs does: each record says who it is about."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.who = WHO.get()
        return True


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    logger = logging.getLogger("tests.cases.case_18")
    stamp = _Stamp()
    logger.addFilter(stamp)
    yield logger
    logger.removeFilter(stamp)


def test_case_18_each_run_has_a_context_of_its_own_in_steps_threads_and_logs(
    scene: Scene, log: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    """Four at a time, which all change it; one started worker, and more runs than threads."""
    together = threading.Barrier(4, timeout=30)
    seen: dict[str, list[str]] = {}

    def step() -> str:
        together.wait()  # others are at their steps, too
        return WHO.get()

    if scene.setting.kind == "plain":

        @scene.rig.task("t")
        def plain(ctx: Context) -> None:
            mine = seen[ctx.run.id] = [WHO.get()]
            WHO.set(ctx.run.id)
            mine.append(ctx.checkpoint("step", step))
            with ThreadPoolExecutor(1) as own:
                mine.append(own.submit(contextvars.copy_context().run, WHO.get).result())
            log.warning("about %s", ctx.run.id)
    else:

        async def step_async() -> str:
            return await asyncio.to_thread(step)

        @scene.rig.task("t")
        async def async_(ctx: AsyncContext) -> None:
            mine = seen[ctx.run.id] = [WHO.get()]
            WHO.set(ctx.run.id)
            mine.append(await ctx.checkpoint("step", step_async))
            mine.append(await asyncio.to_thread(WHO.get))
            log.warning("about %s", ctx.run.id)

    runs = scene.rig.enqueue_many("t", RUNS, wake=True)
    WHO.set("the deployment")
    try:
        scene.worker(concurrency=4)
    finally:
        WHO.set("nobody")
    scene.ended(*runs)

    assert seen == {run_id: ["the deployment", run_id, run_id] for run_id in runs}
    said = {(each.getMessage(), each.who) for each in caplog.records if hasattr(each, "who")}
    assert said == {(f"about {run_id}", run_id) for run_id in runs}
