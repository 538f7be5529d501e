"""Runs a raw loop in its environment, against a database of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.children import Answer, run
from benchmarks.environments import environment
from benchmarks.server import postmaster
from tests.support.postgres import PostgresServer

REQUIREMENTS = Path(__file__).parent / "requirements.txt"
LIMIT = ["--claim", "100", "--lit"]
"""The options of the loop that is the limit."""


def raw(server: PostgresServer, loop: str, options: Sequence[str]) -> Answer:
    """Run `loop` or `steps`; return what it printed.

    Raises:
        UnavailableError: Its environment cannot be made, or it failed.
    """
    python = environment("raw", REQUIREMENTS)
    told = {
        "RAW_DATABASE_URL": server.databases.url(server.databases.create()),
        "RAW_POSTMASTER_PID": str(postmaster(server)),
    }
    return run(python, f"benchmarks.raw.{loop}", options, within_s=300, environment=told)
