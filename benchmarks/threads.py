"""`python -m benchmarks.threads`: which thread of a worker spends the CPU of a run, and on what.

Drains no-op async runs, watches the CPU time of each thread, and prints it by the run, with the
server's beside it.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.cost import server_cpu_s
from benchmarks.server import bench_server, postmaster
from workhorse.app import Workhorse
from workhorse.runtime.base.garbage import tend_garbage

_TICKS = os.sysconf("SC_CLK_TCK")
_LOOK_S = 0.03


def main() -> None:
    """Drain, and print the shares."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.threads")
    parser.add_argument("--runs", type=int, default=40_000)
    parser.add_argument("--concurrency", type=int, default=400)
    told = parser.parse_args()
    with bench_server() as server:
        url = server.databases.url(server.databases.create())
        with Workhorse(
            database_url=url, lane="polling", queues=["bench"], concurrency=told.concurrency
        ) as app:
            app.migrate()

            @app.task("noop", queue="bench")
            async def noop(number: int) -> None: ...

            app.enqueue_many(noop.prepare(number) for number in range(told.runs))
            worker = app.worker()
            tend_garbage()
            server_s, own_s = server_cpu_s(postmaster(server)), time.process_time()
            started = time.perf_counter()
            with _watched() as by_thread:
                worker.drain()
            seconds = time.perf_counter() - started
            own_s = time.process_time() - own_s
            server_s = server_cpu_s(postmaster(server)) - server_s
    each = 1e6 / told.runs
    print(f"{told.runs / seconds:,.0f} runs/s, {seconds * each:.1f} us a run")
    print(f"{server_s * each:6.1f} us  the server")
    print(f"{own_s * each:6.1f} us  the worker, of these")
    for name, spent in sorted(by_thread.items(), key=lambda item: -item[1]):
        if spent * each >= 0.1:
            print(f"{spent * each:6.1f} us    {name}")


@contextmanager
def _watched() -> Iterator[dict[str, float]]:
    """Note the CPU seconds of each thread, by its name; threads that have ended keep theirs."""
    spent: dict[str, float] = {}
    before = dict(_cpu_s())
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(_LOOK_S):
            names = {each.native_id: each.name for each in threading.enumerate()}
            for thread, seconds in _cpu_s():
                if thread in names:
                    spent[names[thread]] = seconds - before.get(thread, 0.0)

    watcher = threading.Thread(target=look, name="this watch", daemon=True)
    watcher.start()
    try:
        yield spent
    finally:
        ended.set()
        watcher.join()


def _cpu_s() -> Iterator[tuple[int, float]]:
    for folder in Path("/proc/self/task").iterdir():
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        yield int(folder.name), (int(fields[11]) + int(fields[12])) / _TICKS


if __name__ == "__main__":
    main()
