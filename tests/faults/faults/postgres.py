"""PostgreSQL goes away, comes back, loses its sessions or has no more to give."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from typing import TYPE_CHECKING, Any, ClassVar

import psycopg

from tests.faults.faults import DEFAULTS, SERVER, SESSIONS, register
from tests.faults.fleet import DRIVER

if TYPE_CHECKING:
    from tests.faults.fleet import Fleet


class _Away:
    """The server stops, and is away until it is healed."""

    kind: ClassVar[str] = SERVER
    holds: ClassVar[tuple[float, float]] = (0.2, 2.5)
    how: ClassVar[signal.Signals]

    def __init__(self) -> None:
        self._began = 0.0

    def apply(self, fleet: Fleet, rng: random.Random) -> str:
        self._began = time.monotonic()
        fleet.server.stop(how=self.how)
        return "the server"

    def heal(self, fleet: Fleet) -> None:
        fleet.server.start()
        fleet.note("database away", self._began)


@register
class StoppedAtOnce(_Away):
    """Immediate stop: it leaves without a word, and recovers from its log."""

    name: ClassVar[str] = "PostgreSQL stopped at once"
    how: ClassVar[signal.Signals] = signal.SIGQUIT


@register
class Restarted(_Away):
    """Fast stop, and a start at once, as in a minor upgrade."""

    name: ClassVar[str] = "PostgreSQL restarted"
    holds: ClassVar[tuple[float, float]] = (0.0, 0.5)
    how: ClassVar[signal.Signals] = signal.SIGINT


@register
class BackendsKilled:
    """Five sessions a second are terminated, whatever they do."""

    name: ClassVar[str] = "backends killed, 5 a second"
    kind: ClassVar[str] = SESSIONS
    holds: ClassVar[tuple[float, float]] = (0.0, 0.0)

    def apply(self, fleet: Fleet, rng: random.Random) -> str:
        count = rng.randint(5, 15)
        with fleet.incident("backends killed"):
            kill_backends(fleet, rng, count / 5)
        return f"{count} of them"

    def heal(self, fleet: Fleet) -> None:
        """Do nothing: whoever lost a session opens another."""


def kill_backends(fleet: Fleet, rng: random.Random, seconds: float) -> int:
    """Terminate five sessions a second for a time; return how many."""
    killed = 0
    until = time.monotonic() + seconds
    with fleet.admin() as connection:
        while time.monotonic() < until:
            found = fleet.sessions(connection)
            if found:
                fleet.end_sessions(connection, [rng.choice(found)])
                killed += 1
            time.sleep(0.2)
    return killed


@register
class Exhausted:
    """All connections that the server has are taken by somebody else, and held."""

    name: ClassVar[str] = "connections exhausted"
    kind: ClassVar[str] = SESSIONS
    holds: ClassVar[tuple[float, float]] = (1.0, 4.0)

    def __init__(self) -> None:
        self._taken: list[psycopg.Connection[Any]] = []
        self._began = 0.0

    def apply(self, fleet: Fleet, rng: random.Random) -> str:
        self._began = time.monotonic()
        killed = 0
        with fleet.admin() as connection:
            # Taken while others lose theirs, so that who comes back finds none.
            for _ in range(200):
                try:
                    self._taken.append(
                        psycopg.connect(
                            fleet.url, autocommit=True, connect_timeout=5, application_name=DRIVER
                        )
                    )
                except psycopg.OperationalError:
                    if killed >= 10:
                        break
                    killed += 1
                    found = fleet.sessions(connection)
                    fleet.end_sessions(connection, rng.sample(found, min(3, len(found))))
        return f"{len(self._taken)} connections held"

    def heal(self, fleet: Fleet) -> None:
        for each in self._taken:
            with contextlib.suppress(psycopg.Error):
                each.close()
        fleet.note("connections exhausted", self._began)


class _Isolation:
    """The database's default isolation is another for a time, and its sessions begin anew."""

    kind: ClassVar[str] = DEFAULTS
    holds: ClassVar[tuple[float, float]] = (1.0, 5.0)
    level: ClassVar[str]

    def apply(self, fleet: Fleet, rng: random.Random) -> str:
        began = time.monotonic()
        with fleet.admin() as connection:
            name = connection.info.dbname
            connection.execute(
                f"alter database {name} set default_transaction_isolation = '{self.level}'"
            )
            fleet.end_sessions(connection)
        fleet.note("backends killed", began)
        return f"{self.level} by default"

    def heal(self, fleet: Fleet) -> None:
        began = time.monotonic()
        with fleet.admin() as connection:
            name = connection.info.dbname
            connection.execute(f"alter database {name} reset default_transaction_isolation")
            fleet.end_sessions(connection)
        fleet.note("backends killed", began)


@register
class Serializable(_Isolation):
    """Serializable by default."""

    name: ClassVar[str] = "serializable by default"
    level: ClassVar[str] = "serializable"


@register
class RepeatableRead(_Isolation):
    """Repeatable read by default."""

    name: ClassVar[str] = "repeatable read by default"
    level: ClassVar[str] = "repeatable read"
