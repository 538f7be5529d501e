"""The app of workers that are frozen: handlers that wait until a test lets them on, lease by lease.

The payload is a folder. There a handler of fence N writes `begun-N`, waits for `go-N`, goes on, and
leaves in `ended-N` what became of each thing that it tried to store.
"""

from __future__ import annotations

import asyncio
import json
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from workhorse import AsyncContext, Context, RetryPolicy, Workhorse

app = Workhorse()

QUEUE = "frozen"
AT_ONCE = RetryPolicy(max_attempts=10, first=timedelta(0))


@app.task("frozen.plain", queue=QUEUE, retry=AT_ONCE)
def plain(ctx: Context, folder: str) -> str:
    return _plain(ctx, folder)


@app.task("frozen.process", queue=QUEUE, retry=AT_ONCE, executor="process")
def process(ctx: Context, folder: str) -> str:
    return _plain(ctx, folder)


@app.task("frozen.async", queue=QUEUE, retry=AT_ONCE)
async def asynchronous(ctx: AsyncContext, folder: str) -> str:
    fence, diary = ctx.lease.fence, Diary(Path(folder), ctx.lease.fence)
    diary.first = await ctx.checkpoint("first", lambda: f"of {fence}")
    diary.begun()
    try:
        while not diary.may_go:  # noqa: ASYNC110 - another process says so, by a file
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:  # it is told that its lease is gone, and does not listen
        diary.note("wait", "cancelled")
    try:
        diary.note("second", await ctx.checkpoint("second", lambda: f"of {fence}"))
    except BaseException as error:  # noqa: BLE001 - it goes on, as a bad handler would
        diary.note("second", type(error).__name__)
    try:
        await ctx.progress(f"of {fence}")
    except BaseException as error:  # noqa: BLE001
        diary.note("progress", type(error).__name__)
    diary.ended()
    return f"of {fence}"


@app.task("frozen.light", queue=QUEUE)
def light() -> str:
    return "done"


def _plain(ctx: Context, folder: str) -> str:
    fence, diary = ctx.lease.fence, Diary(Path(folder), ctx.lease.fence)
    diary.first = ctx.checkpoint("first", lambda: f"of {fence}")
    diary.begun()
    while not diary.may_go:
        time.sleep(0.02)
    try:
        diary.note("second", ctx.checkpoint("second", lambda: f"of {fence}"))
    except BaseException as error:  # noqa: BLE001 - it goes on, as a bad handler would
        diary.note("second", type(error).__name__)
    try:
        ctx.progress(f"of {fence}")
    except BaseException as error:  # noqa: BLE001
        diary.note("progress", type(error).__name__)
    diary.ended()
    return f"of {fence}"


class Diary:
    """What a handler of one lease tells the test, and is told."""

    def __init__(self, folder: Path, fence: int) -> None:
        self._folder = folder
        self._fence = fence
        self._notes: dict[str, Any] = {}
        self.first: object = None

    def begun(self) -> None:
        self._write("begun", {"first": self.first})

    def ended(self) -> None:
        self._write("ended", self._notes)

    def note(self, what: str, came: object) -> None:
        self._notes[what] = came

    @property
    def may_go(self) -> bool:
        return (self._folder / f"go-{self._fence}").exists()

    def _write(self, what: str, notes: object) -> None:
        path = self._folder / f"{what}-{self._fence}"
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(notes))
        fresh.rename(path)
