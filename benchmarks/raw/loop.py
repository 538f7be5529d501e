"""The shortest data path there is: ids -> claimer -> handler tasks -> settler, natural batching.

One process, asyncio; every handler is a task of its own; fenced by (attempt, owner).

    python -m benchmarks.raw loop [--style engine|fused] [--driver psycopg|asyncpg]
        [--claim 100] [--lanes 1] [--procs 1] [--conc 400] [--id bigint|uuid] [--lit] ...
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import multiprocessing
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from multiprocessing.synchronize import Event
from typing import Any, Self

from benchmarks.raw.common import (
    LEASE_S,
    RESULT_TEXT,
    URL,
    emit,
    pending,
    server_cpu,
    setup,
    topup,
)
from benchmarks.raw.schemas import SHAPES

parser = argparse.ArgumentParser()
parser.add_argument("--style", default="engine")
parser.add_argument("--driver", default="psycopg")
parser.add_argument("--claim", type=int, default=100)
parser.add_argument("--lanes", type=int, default=1, help="connections to claim and to settle, each")
parser.add_argument("--procs", type=int, default=1)
parser.add_argument("--conc", type=int, default=400)
parser.add_argument("--n", type=int, default=40_000)
parser.add_argument("--finished", type=int, default=200_000)
parser.add_argument("--pending", type=int, default=100_000)
parser.add_argument("--id", default="bigint")
parser.add_argument("--mode", default="ids")
parser.add_argument("--claim-async", action="store_true", help="synchronous_commit=off for claims")
parser.add_argument("--repeat", type=int, default=3)
parser.add_argument("--variant", default="v4_archive")
parser.add_argument(
    "--lit", action="store_true", help="array literals of our own, orjson for payloads (psycopg)"
)
a = parser.parse_args()

SHAPE = SHAPES[a.variant](a.id)
FUSED = f"""with s as (delete from live r
    using unnest($1::{a.id}[], $2::int[], $4::jsonb[]) u(id,attempt,result)
    where r.id=u.id and r.attempt=u.attempt and r.owner=$3 returning r.*, u.result),
  ins as (insert into done(id,queue,state,attempt,created_at,finished_at,payload,result)
    select id,queue,2,attempt,created_at,now(),payload,result from s returning id),
  c as (select id from live where id = any($5::{a.id}[]) and state=0 and run_at<=now()
    order by id for update skip locked),
  up as (update live r set state=1, attempt=attempt+1, owner=$3,
    lease_expires_at=now()+make_interval(secs=>$6) from c where r.id=c.id
    returning r.id, r.attempt, r.payload)
  select id, -1, null::jsonb from ins union all select id, attempt, payload from up"""


def literal(values: Sequence[Any]) -> str:
    """Return an array literal; strings are quoted."""
    if values and type(values[0]) is str:
        escaped = (value.replace("\\", "\\\\").replace('"', '\\"') for value in values)
        return "{" + ",".join([f'"{value}"' for value in escaped]) + "}"
    return "{" + ",".join(map(str, values)) + "}"


class Psycopg:
    async def open(self, commit_async: bool = False) -> Self:
        import psycopg

        if a.lit:
            import orjson
            from psycopg.types.json import set_json_loads

            set_json_loads(orjson.loads)
        self.connection = await psycopg.AsyncConnection.connect(
            URL, autocommit=True, cursor_factory=psycopg.AsyncRawCursor, prepare_threshold=0
        )
        if commit_async:
            await self.connection.execute("set synchronous_commit=off")
        self.cursor = self.connection.cursor(binary=True)
        return self

    async def query(self, sql: str, *values: Any) -> Sequence[Sequence[Any]]:
        given = list(values)
        if a.lit:
            sql = sql.replace("any($1)", f"any($1::{a.id}[])")
            given = [literal(value) if type(value) is list else value for value in given]
        await self.cursor.execute(sql, given)
        return await self.cursor.fetchall()

    async def close(self) -> None:
        await self.connection.close()


class Asyncpg:
    async def open(self, commit_async: bool = False) -> Self:
        import asyncpg  # type: ignore[import-untyped]

        self.connection = await asyncpg.connect(URL)
        await self.connection.set_type_codec(
            "jsonb",
            schema="pg_catalog",
            encoder=lambda value: b"\x01" + value.encode(),
            decoder=lambda value: json.loads(bytes(value[1:])),
            format="binary",
        )
        if commit_async:
            await self.connection.execute("set synchronous_commit=off")
        self.prepared: dict[str, Any] = {}
        return self

    async def query(self, sql: str, *values: Any) -> Sequence[Sequence[Any]]:
        statement = self.prepared.get(sql)
        if statement is None:
            statement = self.prepared[sql] = await self.connection.prepare(sql)
        rows: Sequence[Sequence[Any]] = await statement.fetch(*values)
        return rows

    async def close(self) -> None:
        await self.connection.close()


DRIVERS: dict[str, type[Psycopg | Asyncpg]] = {"psycopg": Psycopg, "asyncpg": Asyncpg}
DRIVER = DRIVERS[a.driver]


async def handler(_payload: Any) -> str:
    return RESULT_TEXT


async def engine(feed: list[Any], owner: int) -> int:
    """Claimer, a task for each run, settler: each on connections of its own."""
    total, position, inflight, done = len(feed), 0, 0, 0
    finished: collections.deque[tuple[Any, int, str]] = collections.deque()
    some, room, end = asyncio.Event(), asyncio.Event(), asyncio.Event()
    room.set()

    async def one(run: Any, attempt: int, payload: Any) -> None:
        finished.append((run, attempt, await handler(payload)))
        some.set()

    async def claimer() -> None:
        nonlocal position, inflight
        driver = await DRIVER().open(a.claim_async)
        while position < total:
            while inflight >= a.conc:
                room.clear()
                await room.wait()
            ids = feed[position : position + min(a.claim, a.conc - inflight)]
            if not ids:
                break
            position += len(ids)
            inflight += len(ids)
            if a.mode == "ids":
                rows = await driver.query(SHAPE.claim_ids, ids, owner, LEASE_S)
            else:
                rows = await driver.query(SHAPE.claim_scan, len(ids), owner, LEASE_S)
            inflight -= len(ids) - len(rows)
            for row in rows:
                asyncio.create_task(one(row[0], row[1], row[2]))  # noqa: RUF006 - it cannot wait
        await driver.close()

    async def settler() -> None:
        nonlocal inflight, done
        driver = await DRIVER().open()
        while not end.is_set():
            await some.wait()
            if not finished:
                some.clear()
                continue
            batch = [finished.popleft() for _ in range(min(len(finished), 500))]
            if not finished:
                some.clear()
            settled = await driver.query(
                SHAPE.settle,
                [run[0] for run in batch],
                [run[1] for run in batch],
                owner,
                [run[2] for run in batch],
            )
            if len(settled) != len(batch):
                raise RuntimeError(f"{len(settled)} of {len(batch)} were settled")
            done += len(batch)
            inflight -= len(batch)
            room.set()
            if done >= total:
                end.set()
                some.set()
        await driver.close()

    await asyncio.gather(*(claimer() for _ in range(a.lanes)), *(settler() for _ in range(a.lanes)))
    return done


async def fused(feed: list[Any], owner: int) -> int:
    """One statement settles what has ended and claims what comes next."""
    position, done = 0, 0

    async def one(out: list[tuple[Any, int, str]], run: Any, attempt: int, payload: Any) -> None:
        out.append((run, attempt, await handler(payload)))

    async def lane() -> None:
        nonlocal position, done
        driver = await DRIVER().open()
        ended: list[tuple[Any, int, str]] = []
        while True:
            ids = feed[position : position + a.claim]
            position += len(ids)
            if not ids and not ended:
                break
            rows = await driver.query(
                FUSED,
                [run[0] for run in ended],
                [run[1] for run in ended],
                owner,
                [run[2] for run in ended],
                ids,
                LEASE_S,
            )
            settled = sum(1 for row in rows if row[1] == -1)
            if settled != len(ended):
                raise RuntimeError(f"{settled} of {len(ended)} were settled")
            done += settled
            ended = []
            await asyncio.gather(
                *(one(ended, row[0], row[1], row[2]) for row in rows if row[1] != -1)
            )
        await driver.close()

    await asyncio.gather(*(lane() for _ in range(a.lanes)))
    return done


STYLES: dict[str, Callable[[list[Any], int], Awaitable[int]]] = {"engine": engine, "fused": fused}


def drain(feed: list[Any], owner: int, results: Any, start: Event) -> None:
    """What each process does: wait for the start, drain its share, say what it cost."""
    import uvloop

    start.wait()
    before = time.process_time()
    done = uvloop.run(STYLES[a.style](feed, owner))
    results.put((done, time.process_time() - before))


def main() -> None:
    """Drain as often as asked; print medians."""
    setup(SHAPE, a.finished)
    highest = a.finished
    rates: list[float] = []
    client: list[float] = []
    server: list[float] = []
    for _ in range(a.repeat):
        highest = topup(SHAPE, a.pending, highest)
        ids = pending(SHAPE, a.n)
        results: Any = multiprocessing.Queue()
        start = multiprocessing.Event()
        share = len(ids) // a.procs
        processes = [
            multiprocessing.Process(
                target=drain, args=(ids[n * share : (n + 1) * share], n + 1, results, start)
            )
            for n in range(a.procs)
        ]
        for process in processes:
            process.start()
        time.sleep(0.7)
        server_before, started = server_cpu(), time.perf_counter()
        start.set()
        answers = [results.get() for _ in processes]
        seconds = time.perf_counter() - started
        for process in processes:
            process.join()
        time.sleep(0.4)
        done = sum(answer[0] for answer in answers)
        rates.append(done / seconds)
        client.append(sum(answer[1] for answer in answers) / done * 1e6)
        server.append((server_cpu() - server_before) / done * 1e6)
    emit(
        "raw_loop",
        options={name: value for name, value in vars(a).items() if name != "repeat"},
        per_s=round(statistics.median(rates)),
        rounds=[round(rate) for rate in rates],
        client_cpu_us=round(statistics.median(client), 1),
        server_cpu_us=round(statistics.median(server), 1),
    )


if __name__ == "__main__":
    main()
