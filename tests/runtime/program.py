"""A worker's process for tests of signals: `python -m tests.runtime.program URL DRAIN_MS [...]`.

It prints `started RUN ATTEMPT` from each handler, and exits with the code that `run` returns.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import sys
import threading
import time
from typing import NoReturn

from lanes.polling import PollingLane
from tests.support.saying import say
from workhorse.handlers.context import AsyncContext, Context
from workhorse.handlers.registry import TaskRegistry
from workhorse.runtime.base.options import Shutdown, WorkerOptions
from workhorse.runtime.process.worker import Worker
from workhorse.store.base.database import Store

registry = TaskRegistry()


@registry.task("plain.deaf")
def plain_deaf(ctx: Context) -> None:
    _say("started", ctx)
    threading.Event().wait(60)


@registry.task("plain.listens")
def plain_listens(ctx: Context) -> None:
    _say("started", ctx)
    ctx.cancelled.wait(60)
    _say("cancelled", ctx)
    ctx.cancelled.raise_if_set()


@registry.task("plain.ends")
def plain_ends(ctx: Context) -> str:
    _say("started", ctx)
    ctx.stopping.wait(60)
    _say("stopping", ctx)
    return "by itself"


@registry.task("async.waits")
async def async_waits(ctx: AsyncContext) -> None:
    _say("started", ctx)
    try:
        await asyncio.sleep(60)
    finally:
        _say("cancelled", ctx)


@registry.task("async.deaf")
async def async_deaf(ctx: AsyncContext) -> None:
    _say("started", ctx)
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            _say("deaf", ctx)


@registry.task("async.blocks")
async def async_blocks(ctx: AsyncContext) -> None:
    _say("started", ctx)
    time.sleep(60)  # noqa: ASYNC251 - that is what it is for


@registry.task("async.thread")
async def async_thread(ctx: AsyncContext) -> None:
    """Leaves a thread of the standard library's executor, which joins it when Python ends."""
    _say("started", ctx)
    await asyncio.to_thread(threading.Event().wait, 60)


@registry.task("kills")
def kills(ctx: Context) -> NoReturn:
    _say("started", ctx)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("it is dead")


@registry.task("async.kills")
async def async_kills(ctx: AsyncContext) -> NoReturn:
    _say("started", ctx)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("it is dead")


@registry.task("holds the interpreter")
def holds_the_interpreter(ctx: Context, payload: float) -> str:
    """Match in C for so many seconds at least: no other thread of the process runs meanwhile."""
    _say("started", ctx)
    length, took = 16, 0.0
    while took < 0.02:
        length += 1
        took = _match(length)
    while took < payload:
        length += 1
        took *= 2
    # What the other threads have begun meanwhile comes to its end: one that holds SQLite's write
    # lock would keep it, and everybody else waiting, for as long.
    time.sleep(0.2)
    _match(length)
    _say("let go", ctx)
    return "late"


def _match(length: int) -> float:
    began = time.perf_counter()
    re.match("(a+)+b", "a" * length)
    return time.perf_counter() - began


@registry.task("light")
def light() -> str:
    return "done"


def _say(word: str, ctx: Context | AsyncContext) -> None:
    say(word, ctx.run.id, ctx.attempt)


def main(url: str, drain_ms: str, lease_ms: str = "30000") -> int:
    logging.basicConfig(level="INFO", format="%(message)s")
    store = Store.open(url)
    worker = Worker(
        ["default"],
        4,
        store=store,
        lane=PollingLane(),
        registry=registry,
        publish=lambda hints: say("published", *(hint.run_id for hint in hints)),
        options=WorkerOptions(
            lease_ms=int(lease_ms),
            idle_ms=100,
            shutdown=Shutdown(
                drain_ms=int(drain_ms), cancel_grace_ms=300, hand_back_ms=3_000, backstop_ms=6_000
            ),
        ),
    )
    code = worker.run()
    say("exit", code)
    store.close()
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
