"""The program that the flow's processes run: an app, its tasks, and a hostile way for its wakeups.

    python -m tests.flow.fleet worker | maintenance

What it is told comes from WORKHORSE_* and FLOW_*; the test's own process imports `make_app` too, to
produce.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sys
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from lanes.sqs import SqsLane
from workhorse.app import Workhorse
from workhorse.domain.findings import Finding
from workhorse.domain.retry import RetryPolicy
from workhorse.handlers.context import AsyncContext, Context
from workhorse.ports import Lane, LaneContext, Outgoing, Receiver, SendReport
from workhorse.settings import load_settings
from workhorse.telemetry import Counters

QUICK_RETRY = RetryPolicy(max_attempts=100, first=timedelta(milliseconds=100), jitter=False)


class HostileSends:
    """A lane that loses and doubles what it is given to send; outside the product, and seeded."""

    def __init__(self, inner: Lane, *, drop: float, double: float, seed: int) -> None:
        self._inner = inner
        self._drop = drop
        self._double = double
        self._draw = random.Random(seed)
        self._lock = threading.Lock()
        self.carries_messages = inner.carries_messages

    def _twisted(self, outgoing: Sequence[Outgoing]) -> list[Outgoing]:
        kept: list[Outgoing] = []
        with self._lock:
            for wakeup in outgoing:
                if self._draw.random() < self._drop:
                    continue
                kept.append(wakeup)
                if self._draw.random() < self._double:
                    kept.append(wakeup)
        return kept

    def send(self, outgoing: Sequence[Outgoing]) -> SendReport:
        kept = self._twisted(outgoing)
        return self._inner.send(kept) if kept else SendReport()

    async def send_async(self, outgoing: Sequence[Outgoing]) -> SendReport:
        kept = self._twisted(outgoing)
        return await self._inner.send_async(kept) if kept else SendReport()

    def receiver(self, queue: str) -> Receiver:
        return self._inner.receiver(queue)

    def reach_ms(self, queue: str) -> int:
        return self._inner.reach_ms(queue)

    def backlog(self, queue: str) -> int | None:
        return self._inner.backlog(queue)

    def check(self, queue: str) -> Sequence[Finding]:
        return self._inner.check(queue)

    def close(self) -> None:
        self._inner.close()


class Ledger:
    """An independent account of what handlers did: one line each, on the disk before they go on."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, run_id: str, fence: int, what: str) -> None:
        os.write(self._file, f"{os.getpid()} {run_id} {fence} {what}\n".encode())
        os.fsync(self._file)


def make_app() -> Workhorse:
    """Return the app; the lane is the product's own behind the hostile wrapper."""
    counters = Counters()
    inner = SqsLane.open(LaneContext(load_settings(lane="sqs"), counters))
    lane = HostileSends(
        inner,
        drop=float(os.environ["FLOW_DROP"]),
        double=float(os.environ["FLOW_DOUBLE"]),
        seed=int(os.environ["FLOW_SEED"]),
    )
    app = Workhorse(lane=lane)
    ledger = Ledger(Path(os.environ["FLOW_LEDGER"]))

    @app.task("flow.async", queue="flow", retry=QUICK_RETRY)
    async def work_async(ctx: AsyncContext, millis: int) -> int:
        run_id, fence = ctx.run.id, ctx.lease.fence
        ledger.note(run_id, fence, "start")
        await asyncio.sleep(millis / 2000)
        ledger.note(run_id, fence, "effect")
        await asyncio.sleep(millis / 2000)
        ledger.note(run_id, fence, "end")
        return millis

    @app.task("flow.plain", queue="flow", retry=QUICK_RETRY)
    def work_plain(ctx: Context, millis: int) -> int:
        run_id, fence = ctx.run.id, ctx.lease.fence
        ledger.note(run_id, fence, "start")
        time.sleep(millis / 2000)  # the handler's work
        ledger.note(run_id, fence, "effect")
        time.sleep(millis / 2000)
        ledger.note(run_id, fence, "end")
        return millis

    return app


def main(role: str) -> int:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    app = make_app()
    if role == "worker":
        return app.worker().run()
    app.maintenance().run()
    app.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
