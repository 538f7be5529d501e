"""The PostgreSQL server of all benchmarks: a throw-away one, durable, set as in production."""

from __future__ import annotations

from pathlib import Path

from tests.support.postgres import PostgresServer

# Checkpoints in the midst of a workload are the noise, not the figure.
SETTINGS = {"shared_buffers": "1GB", "max_wal_size": "8GB", "checkpoint_timeout": "15min"}


def bench_server(*, tcp: bool = False) -> PostgresServer:
    """Start it; commits reach the disk.

    Args:
        tcp: Whether its URLs name 127.0.0.1, as some peers need, and not the socket.
    """
    return PostgresServer(durable=True, tcp=tcp, settings=SETTINGS)


def postmaster(server: PostgresServer) -> int:
    """Return the id of its first process."""
    return int((Path(server.data) / "postmaster.pid").read_text().splitlines()[0])
