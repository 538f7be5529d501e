"""The code of a function, as somebody would deploy it; what its handlers do is seen in a file."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from workhorse import AsyncContext, BatchItem, Context, RetryPolicy, Workhorse
from workhorse import lambda_handler as handler_of
from workhorse import lambda_maintenance as maintenance_of

app = Workhorse(lane="sqs")
ONCE_AGAIN = RetryPolicy(first=timedelta(0))
_lock = threading.Lock()


def witness(what: str) -> None:
    with _lock, Path(os.environ["WITNESS"]).open("a") as file:
        file.write(what + "\n")


@app.task("quick")
def quick(name: str) -> str:
    witness(f"quick {name}")
    return name


@app.task("quick_async")
async def quick_async(ctx: AsyncContext, name: str) -> str:
    stored: str = await ctx.checkpoint("look", lambda: name)
    witness(f"quick_async {stored}")
    return stored


@app.task("many", batch=10)
async def many(items: list[BatchItem[str]]) -> list[str]:
    witness("many " + " ".join(sorted(item.payload for item in items)))
    return [item.payload for item in items]


@app.task("square", executor="process")
def square(number: int) -> int:
    witness(f"square in another process: {os.getpid() != _pid}")
    return number * number


_pid = int(os.environ.setdefault("FUNCTION_PID", str(os.getpid())))


@app.task("obedient", retry=ONCE_AGAIN)
async def obedient(ctx: AsyncContext, name: str) -> str:
    witness(f"obedient {name} begins, {ctx.attempt}")
    if ctx.lease.fence == 1:
        await ctx.stopping.wait()
        witness(f"obedient {name} is to stop")
        await ctx.cancelled.wait()
        witness(f"obedient {name} is cancelled")
        await asyncio.sleep(60)
    return name


@app.task("obstinate", retry=ONCE_AGAIN)
def obstinate(ctx: Context, name: str) -> str:
    fence = ctx.lease.fence
    if fence == 1:
        witness(f"obstinate {name} begins")
        while not Path(os.environ["WITNESS"] + ".open").exists():
            time.sleep(0.02)  # a handler that looks at nothing, as a call into a library
    witness(f"obstinate {name} ends, fence {fence}")
    return f"{name} under fence {fence}"


@app.task("short", min_time_left=timedelta(seconds=3))
def short(name: str) -> str:
    witness(f"short {name}")
    return name


@app.task("chain")
def chain(left: int) -> int:
    witness(f"chain {left}")
    return left


@app.task("late_sleeper")
async def late_sleeper(ctx: AsyncContext, name: str) -> str:
    await ctx.sleep("a minute", timedelta(seconds=20))
    return name


_serve = handler_of(app)
_maintain = maintenance_of(app)


def handler(event: Any, context: Any) -> Any:
    """Serve, and say what was counted."""
    try:
        answer = _serve(event, context)
    finally:
        counted = json.dumps(dict(app.counters.snapshot()))
        print(f"counted {counted}\n", end="", flush=True)  # one write: a log runs beside
    return answer


def maintain(event: Any, context: Any) -> Any:
    """Do one pass of maintenance."""
    return _maintain(event, context)
