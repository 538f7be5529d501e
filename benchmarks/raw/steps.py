"""Runs of three checkpoints: where and how to store a step.

Each of N claimed runs does three steps, each durable before the next begins, then settles. One
process, asyncio, CONC runs at once.

    python -m benchmarks.raw steps WAY [--conns 1] [--conc 100] [--n 5000]

    row       one INSERT a step, fenced by a join to the live row, on CONNS connections
    row-coal  the same rows, but steps of different runs that wait together share a statement
    array     steps appended to a jsonb column of the live row (a HOT update), shared as well
    none      no steps at all: claim and settle alone
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import statistics
import time
from typing import Any

import psycopg

from benchmarks.raw.common import (
    LEASE_S,
    RESULT_TEXT,
    URL,
    connect,
    emit,
    pending,
    server_cpu,
    setup,
    topup,
    wal_position,
    wal_since,
)
from benchmarks.raw.schemas import SHAPES

parser = argparse.ArgumentParser()
parser.add_argument("way", choices=["row", "row-coal", "array", "none"])
parser.add_argument("--conns", type=int, default=1)
parser.add_argument("--conc", type=int, default=100)
parser.add_argument("--n", type=int, default=5000)
a = parser.parse_args()

SHAPE = SHAPES["v4_archive"]()
_GIVEN = "unnest($1::bigint[], $2::int[], $3::int[], $5::jsonb[]) u(id,attempt,seq,result)"
STEP_ROW = f"""with l as (select l.id, u.seq, u.result from {_GIVEN}
  join live l on l.id=u.id and l.attempt=u.attempt and l.owner=$4 for key share of l)
  insert into steps(run_id, seq, name, result)
  select id, seq, 's', result from l returning run_id"""
STEP_ARRAY = f"""update live l set steps = coalesce(l.steps,'[]'::jsonb) || u.result from {_GIVEN}
  where l.id=u.id and l.attempt=u.attempt and l.owner=$4 returning l.id"""


class Writer:
    """Puts whatever waits into one statement.

    Args:
        sql: The statement; takes arrays, and the owner before the last.
        most: The most rows of a statement.
    """

    def __init__(self, sql: str, most: int = 500) -> None:
        self.sql = sql
        self.most = most
        self.statements = 0
        self._waiting: collections.deque[tuple[tuple[Any, ...], asyncio.Future[None]]]
        self._waiting = collections.deque()
        self._some = asyncio.Event()
        self._end = False

    async def run(self) -> None:
        connection = await _connect()
        cursor = connection.cursor(binary=True)
        while True:
            await self._some.wait()
            if not self._waiting:
                if self._end:
                    break
                self._some.clear()
                continue
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), self.most))]
            columns = [list(column) for column in zip(*(row for row, _ in batch), strict=True)]
            await cursor.execute(self.sql, [*columns[:-1], 1, columns[-1]])
            written = len(await cursor.fetchall())
            if written != len(batch):
                raise RuntimeError(f"{written} of {len(batch)} were written")
            self.statements += 1
            for _, future in batch:
                future.set_result(None)
        await connection.close()

    def put(self, *row: Any) -> asyncio.Future[None]:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((row, future))
        self._some.set()
        return future

    def stop(self) -> None:
        self._end = True
        self._some.set()


async def _connect() -> psycopg.AsyncConnection[tuple[Any, ...]]:
    return await psycopg.AsyncConnection.connect(
        URL, autocommit=True, cursor_factory=psycopg.AsyncRawCursor, prepare_threshold=0
    )


async def flows(ids: list[Any]) -> tuple[int, int]:
    """Drain them; return how many there were and how many statements wrote their steps."""
    settle = Writer(SHAPE.settle)
    step = Writer(STEP_ARRAY if a.way == "array" else STEP_ROW, 1 if a.way == "row" else 500)
    writers = [asyncio.create_task(settle.run())]
    writers += [asyncio.create_task(step.run()) for _ in range(a.conns)]
    connection = await _connect()
    cursor = connection.cursor(binary=True)
    slots = asyncio.Semaphore(a.conc)

    async def flow(run: Any, attempt: int) -> None:
        if a.way != "none":
            for number in range(3):
                await step.put(run, attempt, number, '{"r": 12345, "s": "step result"}')
        await settle.put(run, attempt, RESULT_TEXT)
        slots.release()

    tasks: list[asyncio.Task[None]] = []
    position = 0
    while position < len(ids):
        await slots.acquire()
        free = 1
        while free < 100 and not slots.locked():
            await slots.acquire()
            free += 1
        part = ids[position : position + free]
        position += len(part)
        for _ in range(free - len(part)):
            slots.release()
        await cursor.execute(SHAPE.claim_ids, (part, 1, LEASE_S))
        tasks += [asyncio.create_task(flow(row[0], row[1])) for row in await cursor.fetchall()]
    await asyncio.gather(*tasks)
    settle.stop()
    step.stop()
    await asyncio.gather(*writers)
    await connection.close()
    return len(tasks), step.statements


def main() -> None:
    """Three rounds; print medians."""
    import uvloop

    setup(SHAPE, 100_000)
    highest = 100_000
    with connect() as connection:
        connection.execute(
            "alter table live set (fillfactor=70); alter table live add column steps jsonb;"
            " drop table if exists steps;"
            " create table steps(run_id bigint, seq int, name text not null, result jsonb,"
            " created_at timestamptz not null default now(), primary key(run_id, seq))"
        )
    measured: dict[str, list[float]] = {}
    for _ in range(3):
        highest = topup(SHAPE, 20_000, highest)
        ids = pending(SHAPE, a.n)
        wal, server, started = wal_position(), server_cpu(), time.perf_counter()
        cpu = time.process_time()
        done, statements = uvloop.run(flows(ids))
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        time.sleep(0.4)
        for name, value in {
            "flows_per_s": done / seconds,
            "client_cpu_us": cpu / done * 1e6,
            "server_cpu_us": (server_cpu() - server) / done * 1e6,
            "wal_bytes": wal_since(wal) / done,
            "rows_per_statement": 3 * done / max(1, statements),
        }.items():
            measured.setdefault(name, []).append(value)
    emit(
        "raw_steps",
        options=vars(a),
        rounds=[round(rate) for rate in measured["flows_per_s"]],
        **{name: round(statistics.median(values), 1) for name, values in measured.items()},
    )


if __name__ == "__main__":
    main()
