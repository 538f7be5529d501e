"""Locks in every order on the rows that claims, cancels, settles and prunes write."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from typing import TYPE_CHECKING, ClassVar

import psycopg

from tests.faults.faults import LOCKS, register

if TYPE_CHECKING:
    from tests.faults.fleet import Fleet

_LOCKERS = 3


@register
class Deadlocks:
    """Sessions lock live rows one by one in random order; PostgreSQL shoots whom it likes."""

    name: ClassVar[str] = "deadlocks provoked"
    kind: ClassVar[str] = LOCKS
    holds: ClassVar[tuple[float, float]] = (1.0, 4.0)

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._began = 0.0
        self.locked = 0

    def apply(self, fleet: Fleet, rng: random.Random) -> str:
        self._began = time.monotonic()
        for _ in range(_LOCKERS):
            draw = random.Random(rng.random())
            thread = threading.Thread(target=self._lock, args=(fleet, draw))
            self._threads.append(thread)
            thread.start()
        return f"{_LOCKERS} sessions"

    def heal(self, fleet: Fleet) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        fleet.note("deadlocks", self._began)

    def _lock(self, fleet: Fleet, draw: random.Random) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(psycopg.Error), fleet.admin() as connection:
                self._lock_some(connection, draw)

    def _lock_some(
        self, connection: psycopg.Connection[tuple[object, ...]], draw: random.Random
    ) -> None:
        ids = connection.execute("select id from workhorse.live limit 50").fetchall()
        draw.shuffle(ids)
        with connection.transaction():
            for row in ids[:8]:
                connection.execute(
                    "select 1 from workhorse.live where id = %s for no key update", row
                )
                self.locked += 1
                self._stop.wait(draw.uniform(0, 0.05))
        self._stop.wait(0.05)
