"""What both loops share: where the database is, filling it, and what the server has spent."""

from __future__ import annotations

import json
import os
from typing import Any

import psycopg

from benchmarks.cost import server_cpu_s
from benchmarks.raw.schemas import Shape

URL = os.environ.get("RAW_DATABASE_URL", "")
POSTMASTER = int(os.environ.get("RAW_POSTMASTER_PID", "0"))
RESULT_TEXT = '{"ok": true}'
LEASE_S = 60.0
_CHUNK = 200_000


def emit(name: str, **figures: Any) -> None:
    """Print a result as one line of JSON."""
    print(json.dumps({"bench": name, **figures}), flush=True)


def server_cpu() -> float:
    """Return the CPU seconds that the server has used so far."""
    return server_cpu_s(POSTMASTER)


def connect() -> psycopg.Connection[tuple[Any, ...]]:
    """Open a connection that commits each statement."""
    return psycopg.connect(URL, autocommit=True)


def setup(shape: Shape, finished: int) -> None:
    """Make the tables anew, with so many finished rows in them."""
    with connect() as connection:
        connection.execute(shape.create().encode())
        for low in range(1, finished + 1, _CHUNK):
            connection.execute(shape.fill(True, low, min(low + _CHUNK - 1, finished)).encode())
        named = connection.execute(
            "select relname from pg_class where relkind='r'"
            " and relnamespace='public'::regnamespace"
            " and relname in ('runs','live','done','ready','leases','events')"
        )
        for (table,) in named.fetchall():
            connection.execute(f"vacuum (analyze) {table}".encode())
        connection.execute("checkpoint")


def topup(shape: Shape, wanted: int, highest: int) -> int:
    """Bring the pending rows up to so many again; return the highest number used."""
    with connect() as connection:
        counted = f"select count(*) from {shape.live_table} {shape.ready_where}"
        row = connection.execute(counted.encode()).fetchone()
        missing = wanted - (row[0] if row else 0)
        if missing > 0:
            connection.execute(shape.fill(False, highest + 1, highest + missing).encode())
            connection.execute(f"vacuum (analyze) {shape.live_table}".encode())
            highest += missing
        connection.execute("checkpoint")
    return highest


def pending(shape: Shape, limit: int) -> list[Any]:
    """Return the ids of pending rows, in the order of the ready index."""
    with connect() as connection:
        cursor = psycopg.RawCursor(connection)
        return [row[0] for row in cursor.execute(shape.pending_ids.encode(), (limit,)).fetchall()]


def wal_position() -> str:
    """Return where the write-ahead log stands."""
    with connect() as connection:
        row = connection.execute("select pg_current_wal_insert_lsn()::text").fetchone()
    return str(row[0]) if row else ""


def wal_since(position: str) -> int:
    """Return how many bytes of write-ahead log were written since."""
    with connect() as connection:
        row = connection.execute(
            "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), %s::pg_lsn)", (position,)
        ).fetchone()
    return int(row[0]) if row else 0
