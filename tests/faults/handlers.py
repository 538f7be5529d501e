"""The tasks of the workload, good ones and bad ones: the app that all processes of a fleet run.

    python -m workhorse.cli --app tests.faults.handlers:app worker

Each activation draws a nonce, says in the ledger what it does, and returns nonce and fence: so the
judge can tell whose result the store has kept. WORKHORSE_* and FAULTS_* say the rest.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, text

from tests.faults import ledger as said
from tests.faults.ledger import Ledger, Pulse
from workhorse import AsyncContext, BatchItem, Context, RetryPolicy, Workhorse
from workhorse.store.base import hanging

app = Workhorse()

FOLDER: Final = Path(os.environ.get("FAULTS_FOLDER", "."))
LEASE_S: Final = app.settings.lease_seconds
# In proportion to the leases: who waits for a silent connection does nothing else meanwhile.
vars(hanging).update(HANGS_AFTER_S=LEASE_S * 2, LOOKS_EVERY_S=LEASE_S / 3)
WORK, BATCH, PROCESS, BAD = "work", "batch", "process", "bad"
QUEUES: Final = (WORK, BATCH, PROCESS, BAD)

# What faults cost is no reason to give up: the judge counts attempts, it does not run out of them.
PATIENT: Final = RetryPolicy(max_attempts=1000, first=timedelta(milliseconds=100), factor=1)
WAIT: Final = timedelta(seconds=20)
THREE: Final = RetryPolicy(max_attempts=3, first=timedelta(milliseconds=100), factor=1)


class PlannedError(Exception):
    """An error that a handler raises because it is there to."""


class PlannedExit(BaseException):
    """The same, and no Exception."""


if os.environ.get("FAULTS_ROLE") == "worker":
    ledger = Ledger(FOLDER / said.HANDLERS)
    Pulse(ledger, gap_s=LEASE_S / 3)
    if planted := os.environ.get("FAULTS_PLANTED"):
        from tests.faults import planted as bugs

        bugs.plant(planted)
else:  # who only produces, or maintains, runs no handler
    ledger = Ledger(Path(os.devnull))


class Activation:
    """One activation's voice in the ledger."""

    def __init__(self, ctx: Context | AsyncContext | BatchItem[Any]) -> None:
        self.run = str(ctx.run.id)
        self.fence = ctx.lease.fence
        self.nonce = uuid.uuid4().hex[:12]
        self._task = ctx.run.task

    def say(self, what: str, **more: Any) -> None:
        ledger.write(
            what, run=self.run, fence=self.fence, nonce=self.nonce, task=self._task, **more
        )

    @property
    def mark(self) -> dict[str, Any]:
        """What is stored, so that the judge knows who stored it."""
        return {"fence": self.fence, "nonce": self.nonce}

    def end(self, **more: Any) -> dict[str, Any]:
        self.say(said.END)
        return {**self.mark, **more}


@contextmanager
def activation(ctx: Context | AsyncContext) -> Iterator[Activation]:
    """Say `start` now; `error` or `pause` where the handler is left by an exception."""
    one = Activation(ctx)
    one.say(said.START)
    try:
        yield one
    except Exception as error:
        one.say(said.ERROR, why=type(error).__name__)
        raise
    except BaseException as error:
        one.say(said.PAUSE, why=type(error).__name__)
        raise


# -- good ones -----------------------------------------------------------------------------------


@app.task("faults.plain", queue=WORK, retry=PATIENT)
def plain(ctx: Context, millis: int) -> dict[str, Any]:
    with activation(ctx) as one:
        time.sleep(millis / 2000)
        one.say(said.EFFECT)
        time.sleep(millis / 2000)
        return one.end()


@app.task("faults.async", queue=WORK, retry=PATIENT)
async def asynchronous(ctx: AsyncContext, millis: int) -> dict[str, Any]:
    with activation(ctx) as one:
        await asyncio.sleep(millis / 2000)
        one.say(said.EFFECT)
        await asyncio.sleep(millis / 2000)
        return one.end()


@app.task("faults.steps", queue=WORK, retry=PATIENT)
def steps(ctx: Context, millis: int) -> dict[str, Any]:
    with activation(ctx) as one:
        kept = [ctx.checkpoint(f"step {each}", lambda: one.mark) for each in range(3)]
        time.sleep(millis / 1000)
        one.say(said.EFFECT)
        return one.end(kept=kept)


@app.task("faults.steps_async", queue=WORK, retry=PATIENT)
async def steps_async(ctx: AsyncContext, millis: int) -> dict[str, Any]:
    with activation(ctx) as one:
        kept = []
        for each in range(3):
            kept.append(await ctx.checkpoint(f"step {each}", lambda: one.mark))
            await asyncio.sleep(millis / 3000)
        one.say(said.EFFECT)
        await ctx.progress(one.mark)
        return one.end(kept=kept)


@app.task("faults.batch", queue=BATCH, retry=PATIENT, batch=10)
def batch(items: list[BatchItem[int]]) -> list[dict[str, Any]]:
    each = [Activation(item) for item in items]
    for one in each:
        one.say(said.START)
    time.sleep(max(item.payload for item in items) / 1000)
    for one in each:
        one.say(said.EFFECT)
    return [one.end() for one in each]


@app.task("faults.process", queue=PROCESS, retry=PATIENT, executor="process")
def process(ctx: Context, millis: int) -> dict[str, Any]:
    with activation(ctx) as one:
        kept = ctx.checkpoint("step", lambda: one.mark)
        time.sleep(millis / 1000)
        one.say(said.EFFECT)
        return one.end(kept=[kept])


@app.task("faults.sleeper", queue=WORK, retry=PATIENT)
async def sleeper(ctx: AsyncContext, millis: int) -> dict[str, Any]:
    with activation(ctx) as one:
        await ctx.checkpoint("before", lambda: one.mark)
        await ctx.sleep("nap", timedelta(milliseconds=millis))
        one.say(said.EFFECT)
        return one.end()


@app.task("faults.signal", queue=WORK, retry=PATIENT)
def signalled(ctx: Context, millis: int) -> dict[str, Any]:
    with activation(ctx) as one:
        got = ctx.wait_for_signal("go", timeout=WAIT, default="timed out")
        one.say(said.EFFECT)
        return one.end(got=got)


@app.task("faults.human", queue=WORK, retry=PATIENT)
async def human(ctx: AsyncContext, millis: int) -> dict[str, Any]:
    with activation(ctx) as one:
        got = await ctx.wait_for_human("desk", context=millis, timeout=WAIT, default="timed out")
        one.say(said.EFFECT)
        return one.end(got=got)


@app.task("faults.parent", queue=WORK, retry=PATIENT)
def parent(ctx: Context, millis: int) -> dict[str, Any]:
    with activation(ctx) as one:
        results = ctx.children("parts", plain, [millis, millis, millis], max_parallel=2)
        one.say(said.EFFECT)
        return one.end(children=len(results))


@app.task("faults.token", queue=WORK, retry=PATIENT)
async def token(ctx: AsyncContext, ref: str) -> dict[str, Any]:
    with activation(ctx) as one:
        got = await ctx.wait_for_token("gate", ref, default="timed out")
        one.say(said.EFFECT)
        return one.end(got=got)


@app.task("faults.book", queue=WORK, retry=PATIENT)
def book(ctx: Context, millis: int) -> dict[str, Any]:
    with activation(ctx) as one:

        def write(connection: Connection) -> dict[str, Any]:
            connection.execute(
                text(
                    "insert into faults_book (run_id, fence, nonce) values (:run, :fence, :nonce)"
                ),
                {"run": one.run, "fence": one.fence, "nonce": one.nonce},
            )
            return one.mark

        kept = ctx.transaction("book", write)
        time.sleep(millis / 1000)
        return one.end(kept=[kept])


@app.task("faults.flaky", queue=WORK, retry=PATIENT)
def flaky(ctx: Context, millis: int) -> dict[str, Any]:
    with activation(ctx) as one:
        tried = ctx.checkpoint("step", lambda: one.mark)
        if ctx.attempt <= 2:
            raise PlannedError(f"attempt {ctx.attempt}")
        return one.end(kept=[tried])


@app.task("faults.hopeless", queue=WORK, retry=THREE)
async def hopeless(ctx: AsyncContext, millis: int) -> None:
    with activation(ctx):
        raise PlannedError(f"attempt {ctx.attempt}")


# -- bad ones ------------------------------------------------------------------------------------


@app.task("faults.blocks_loop", queue=BAD, retry=PATIENT)
async def blocks_loop(ctx: AsyncContext, millis: int) -> dict[str, Any]:
    with activation(ctx) as one:
        time.sleep(LEASE_S * 1.3)  # noqa: ASYNC251 - what is not to be done
        one.say(said.EFFECT)
        return one.end()


@app.task("faults.holds_gil", queue=BAD, retry=PATIENT)
def holds_gil(ctx: Context, millis: int) -> dict[str, Any]:
    with activation(ctx) as one:
        if ctx.attempt == 1:  # else its own worker would never settle it
            ctypes.PyDLL(None).usleep(int(LEASE_S * 1.3e6))
        one.say(said.EFFECT)
        return one.end()


@app.task("faults.ignores_cancel", queue=BAD, retry=PATIENT, timeout=timedelta(milliseconds=400))
async def ignores_cancel(ctx: AsyncContext, millis: int) -> dict[str, Any]:
    with activation(ctx) as one:
        until = time.monotonic() + (1.5 if ctx.attempt == 1 else 0)
        while (left := until - time.monotonic()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                continue
        return one.end()


@app.task("faults.swallows", queue=BAD, retry=PATIENT)
async def swallows(ctx: AsyncContext, millis: int) -> dict[str, Any]:
    with activation(ctx) as one:
        try:
            await ctx.sleep("nap", timedelta(milliseconds=200 + millis))
        except BaseException:  # noqa: BLE001 - it goes on, as a bad handler would
            return {"swallowed": True, **one.mark}
        return one.end()


_RAISED: Final[tuple[type[BaseException], ...]] = (
    KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration, PlannedExit, MemoryError,
    asyncio.CancelledError,
)  # fmt: skip


@app.task("faults.raises_plain", queue=BAD, retry=PATIENT)
def raises_plain(ctx: Context, which: int) -> dict[str, Any]:
    with activation(ctx) as one:
        if ctx.attempt == 1:
            raise _RAISED[which % len(_RAISED)]("planned")
        return one.end()


@app.task("faults.raises_async", queue=BAD, retry=PATIENT)
async def raises_async(ctx: AsyncContext, which: int) -> dict[str, Any]:
    with activation(ctx) as one:
        if ctx.attempt == 1:
            raise _RAISED[which % len(_RAISED)]("planned")
        return one.end()


@app.task("faults.exits", queue=BAD, retry=PATIENT)
def exits(ctx: Context, millis: int) -> dict[str, Any]:
    with activation(ctx) as one:
        if ctx.attempt == 1:
            os._exit(77)
        return one.end()


@app.task("faults.exits_apart", queue=PROCESS, retry=PATIENT, executor="process")
def exits_apart(ctx: Context, millis: int) -> dict[str, Any]:
    with activation(ctx) as one:
        if ctx.attempt == 1:
            os._exit(77)
        return one.end()


@app.task("faults.huge_error", queue=BAD, retry=THREE)
def huge_error(ctx: Context, millis: int) -> None:
    with activation(ctx):
        raise PlannedError("x" * 50_000_000)


@app.task("faults.unstorable", queue=BAD, retry=PATIENT)
def unstorable(ctx: Context, which: int) -> object:
    with activation(ctx):
        return [{1, 2}, float("nan"), object(), "\x00", b"bytes", {1: "a"}][which % 6]


@app.task("faults.forks", queue=BAD, retry=PATIENT)
def forks(ctx: Context, which: int) -> dict[str, Any]:
    with activation(ctx) as one:
        child = os.fork()
        if child == 0:
            if which % 2:
                os._exit(0)
            return {
                **one.mark,
                "forked": True,
            }  # on in the copy of the worker, which has no threads
        if which % 2:
            os.waitpid(child, 0)
        one.say(said.EFFECT)
        return one.end()


@app.task("faults.leaves_thread", queue=BAD, retry=PATIENT)
def leaves_thread(ctx: Context, millis: int) -> dict[str, Any]:
    returned, held = threading.Event(), _Held()
    weakref.finalize(held, returned.set)  # goes with this call's frame, when it has returned
    with activation(ctx) as one:
        threading.Thread(target=partial(_late, ctx, one, returned), daemon=True).start()
        return one.end()


class _Held:
    """What only a call's frame holds."""


def _late(ctx: Context, one: Activation, returned: threading.Event) -> None:
    returned.wait()
    time.sleep(0.5)
    acts: list[Callable[[], object]] = [
        lambda: ctx.checkpoint("late", lambda: one.mark),
        lambda: ctx.sleep("late nap", timedelta(seconds=1)),
    ]
    for act in acts:
        try:
            act()
        except BaseException:  # noqa: BLE001, S112 - refused, as it should be
            continue
        one.say(said.WRONG, why="a thread that outlived its handler stored a boundary")
