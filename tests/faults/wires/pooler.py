"""A pooler in transaction mode between a fleet and its database, which goes away too.

It comes as a package: `python -m tools.fault_tools install pgbouncer`.
"""

from __future__ import annotations

import contextlib
import random
import signal
import time
from typing import TYPE_CHECKING, Any, ClassVar, Final

import psycopg

from tests.faults.faults import register
from tests.faults.fleet import DATABASE, DRIVER
from tests.faults.wires import POOLER
from tools.fault_tools import pgbouncer

if TYPE_CHECKING:
    from tests.faults.fleet import Fleet

NO_POOLER: Final = "the fleet has no pooler: start it with Fleet(pooler=True)"


class _Gone:
    """The pooler ends; everybody's connection with it. It is back when it is healed."""

    kind: ClassVar[str] = POOLER
    holds: ClassVar[tuple[float, float]] = (0.0, 2.0)
    how: ClassVar[signal.Signals]

    def __init__(self) -> None:
        self._began = 0.0

    def apply(self, fleet: Fleet, rng: random.Random) -> str:
        if fleet.pooler is None:
            raise RuntimeError(NO_POOLER)
        self._began = time.monotonic()
        fleet.pooler.stop(self.how)
        return "the pooler"

    def heal(self, fleet: Fleet) -> None:
        if fleet.pooler is not None:
            fleet.pooler.start()
            fleet.note("database away", self._began)


class Killed(_Gone):
    """At once, as its machine would: transactions that were under way are rolled back."""

    name: ClassVar[str] = "pooler killed"
    how: ClassVar[signal.Signals] = signal.SIGKILL


class Restarted(_Gone):
    """As an upgrade does."""

    name: ClassVar[str] = "pooler restarted"
    holds: ClassVar[tuple[float, float]] = (0.0, 0.3)
    how: ClassVar[signal.Signals] = signal.SIGTERM


class AllLent:
    """All sessions that the pooler may open are lent to somebody else, who keeps them a while."""

    name: ClassVar[str] = "pooler's sessions all lent"
    kind: ClassVar[str] = POOLER
    holds: ClassVar[tuple[float, float]] = (0.5, 2.5)

    def __init__(self) -> None:
        self._kept: list[psycopg.Connection[Any]] = []
        self._began = 0.0

    def apply(self, fleet: Fleet, rng: random.Random) -> str:
        if fleet.pooler is None:
            raise RuntimeError(NO_POOLER)
        self._began = time.monotonic()
        for _ in range(fleet.pooler.sessions):
            connection = psycopg.connect(
                fleet.pooler.url(DATABASE), connect_timeout=5, application_name=DRIVER
            )
            self._kept.append(connection)
            connection.execute("select 1")  # in a transaction, which stays open
        return f"{len(self._kept)} of them"

    def heal(self, fleet: Fleet) -> None:
        for each in self._kept:
            with contextlib.suppress(psycopg.Error):
                each.close()
        fleet.note("connections exhausted", self._began)


if pgbouncer() is not None:
    register(Killed)
    register(Restarted)
    register(AllLent)
