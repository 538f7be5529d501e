"""What every entrant does, told by the command line, measured in one way.

    python -m benchmarks.peers.NAME ROLE --url URL --count N [--set name=value ...]

`setup` makes the tables. `single` and `bulk` enqueue; `drain` works until nothing is left; `serve`
works while another process enqueues: `call`, one job now and then; `feed`, at a steady rate. Each
prints a line of JSON. With `--flows`, jobs are flows of three steps.

This module runs in the peers' environments: standard library alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar

from benchmarks.cost import rss_mb, server_cpu_s

BULK = 1_000
"""Jobs a call of `many`."""
WARM_UP = 10
"""Calls before those whose latency counts."""
_IDLE_S = (0.08, 0.16)
"""Pauses between calls: drawn, so that they do not march with anybody's polls."""
_FEED_S = 0.02
"""How often `feed` enqueues, so many a call as the rate asks for."""

OnJob = Callable[[int], None]


class Producer(ABC):
    """Enqueues, with connections already open."""

    @abstractmethod
    async def one(self, number: int) -> None:
        """Enqueue one job; it is safe when this returns."""

    @abstractmethod
    async def many(self, numbers: Sequence[int]) -> None:
        """Enqueue jobs in the fastest documented way; they are safe when this returns."""

    async def stream(self, numbers: Sequence[int]) -> None:
        """Enqueue any number of jobs, a thousand a commit; all are safe when this returns.

        By calls of `many`, unless the library takes them one by one and does better with that.
        """
        for low in range(0, len(numbers), BULK):
            await self.many(numbers[low : low + BULK])


class Entrant(ABC):
    """One library.

    Args:
        url: Where its jobs are: a PostgreSQL URL, or an SQS endpoint's.
        flows: Whether jobs are flows of three steps.
        settings: What the sweep varies.
    """

    event_loop: ClassVar[Callable[[], asyncio.AbstractEventLoop] | None] = None
    """What makes the loop, where the library's documents say another than asyncio's own."""

    def __init__(self, url: str, *, flows: bool, settings: dict[str, str]) -> None:
        self.url = url
        self.flows = flows
        self.settings = settings

    def number(self, name: str, default: float) -> int:
        """Return a setting that is a number."""
        return int(float(self.settings.get(name, default)))

    @abstractmethod
    async def setup(self) -> None:
        """Make the tables or queues."""

    @abstractmethod
    def producer(self) -> AbstractAsyncContextManager[Producer]:
        """Open a producer."""

    @abstractmethod
    async def work(self, on_job: OnJob) -> None:
        """Work until cancelled; the handler of each job calls `on_job` with its number."""

    @abstractmethod
    async def unfinished(self) -> int:
        """Count the jobs that have not ended, as the store or the broker sees them."""


class _Counter:
    """Counts handled jobs, from any thread."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._seen = 0
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._all = asyncio.Event()

    def saw(self, _number: int) -> None:
        with self._lock:
            self._seen += 1
            last = self._seen == self._wanted
        if last:
            self._loop.call_soon_threadsafe(self._all.set)

    async def all(self, work: asyncio.Task[None]) -> None:
        """Wait for the last one; raises what ended the work before."""
        waiting = asyncio.create_task(self._all.wait())
        await asyncio.wait({waiting, work}, return_when=asyncio.FIRST_COMPLETED)
        if not self._all.is_set():
            work.result()
            raise RuntimeError(f"the worker ended after {self._seen} of {self._wanted} jobs")


async def _single(entrant: Entrant, count: int) -> dict[str, Any]:
    async with entrant.producer() as producer:
        await producer.one(0)
        started, cpu = time.perf_counter(), time.process_time()
        for number in range(count):
            await producer.one(number)
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    return {"per_s": count / seconds, "client_cpu_us": cpu / count * 1e6}


async def _bulk(entrant: Entrant, count: int) -> dict[str, Any]:
    async with entrant.producer() as producer:
        await producer.one(0)
        started, cpu = time.perf_counter(), time.process_time()
        await producer.stream(range(count))
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    return {"per_s": count / seconds, "client_cpu_us": cpu / count * 1e6}


async def _drain(entrant: Entrant, count: int, postmaster: int) -> dict[str, Any]:
    counter = _Counter(count)
    cpu, server = time.process_time(), server_cpu_s(postmaster)
    started = time.perf_counter()
    work = asyncio.create_task(entrant.work(counter.saw))
    await counter.all(work)
    await _settled(entrant)
    seconds = time.perf_counter() - started
    return {
        "per_s": count / seconds,
        "client_cpu_us": (time.process_time() - cpu) / count * 1e6,
        "server_cpu_us": (server_cpu_s(postmaster) - server) / count * 1e6,
        "rss_mb": rss_mb(),
    }


async def _settled(entrant: Entrant) -> None:
    while await entrant.unfinished():  # noqa: ASYNC110 - it is the database that is asked
        await asyncio.sleep(0.002)


async def _serve(entrant: Entrant, count: int) -> dict[str, Any]:
    started_ns: dict[int, int] = {}
    counter = _Counter(count)

    def arrived(number: int) -> None:
        # One clock for all processes of the machine.
        started_ns[number] = time.monotonic_ns()
        counter.saw(number)

    work = asyncio.create_task(entrant.work(arrived))
    await asyncio.wait({work}, timeout=2.0)
    print("ready", flush=True)
    await counter.all(work)
    await _settled(entrant)
    return {"started_ns": started_ns, "rss_mb": rss_mb()}


async def _call(entrant: Entrant, count: int) -> dict[str, Any]:
    draw = random.Random(11)
    called_ns: dict[int, int] = {}
    async with entrant.producer() as producer:
        for number in range(count):
            await asyncio.sleep(draw.uniform(*_IDLE_S))
            called_ns[number] = time.monotonic_ns()
            await producer.one(number)
    return {"called_ns": called_ns}


async def _feed(entrant: Entrant, count: int, rate: float) -> dict[str, Any]:
    """Enqueue at a rate, whatever it takes: who falls behind is late by that, and not spared."""
    called_ns: dict[int, int] = {}
    calls = 0
    async with entrant.producer() as producer:
        await producer.one(0)
        called_ns[0] = time.monotonic_ns()
        started_ns = time.monotonic_ns()
        number = 1
        while number < count:
            due_ns = started_ns + int(calls * _FEED_S * 1e9)
            if (wait_ns := due_ns - time.monotonic_ns()) > 0:
                await asyncio.sleep(wait_ns / 1e9)
            calls += 1
            high = min(count, max(number + 1, int(calls * _FEED_S * rate)))
            called_ns |= dict.fromkeys(range(number, high), due_ns)
            await producer.many(range(number, high))
            number = high
        seconds = (time.monotonic_ns() - started_ns) / 1e9
    return {"called_ns": called_ns, "per_s": count / seconds}


async def _role(told: argparse.Namespace, entrant: Entrant) -> dict[str, Any]:
    match told.role:
        case "setup":
            await entrant.setup()
            return {}
        case "single":
            return await _single(entrant, told.count)
        case "bulk":
            return await _bulk(entrant, told.count)
        case "drain":
            return await _drain(entrant, told.count, told.postmaster)
        case "serve":
            return await _serve(entrant, told.count)
        case "call":
            return await _call(entrant, told.count)
        case "feed":
            return await _feed(entrant, told.count, told.rate)
    raise ValueError(told.role)


def main(entrant_class: type[Entrant]) -> None:
    """Do what the command line says, print the answer, and leave at once."""
    parser = argparse.ArgumentParser()
    parser.add_argument("role")
    parser.add_argument("--url", required=True)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--postmaster", type=int, default=0)
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--flows", action="store_true")
    parser.add_argument("--set", action="append", default=[])
    told = parser.parse_args()
    settings = dict(each.split("=", 1) for each in told.set)
    entrant = entrant_class(told.url, flows=told.flows, settings=settings)
    with asyncio.Runner(loop_factory=entrant_class.event_loop) as runner:
        answer = runner.run(_role(told, entrant))
        print(json.dumps(answer), flush=True)
        sys.stderr.flush()
        # Workers, pools and threads of all kinds are still there: their ends are not measured.
        os._exit(0)
