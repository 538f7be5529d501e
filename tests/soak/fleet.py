"""The soak's fleet: that of the fault suite, and members that no fault is aimed at.

Faults of workers hit `workers`, `maintainers` and `producers`, as ever. `steady` ones see what
becomes of the database and the broker alone, and so grow as old as the soak: what leaks shows in
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.faults.fleet import LANES, Fleet, Member
from tests.soak.app import CLAIMS
from tests.soak.relay import Relay
from tools.emulators import free_port

_CLI: Final = ["-m", "workhorse.cli", "--app", "tests.soak.app:app"]
HEALTH: Final = "WORKHORSE_HEALTH_PORT"


class SoakFleet(Fleet):
    """Starts all of it; leaving it ends all of it.

    Args:
        seed: What the producers draw from.
        runs: How many enqueues all producers make together.
        rate: How many of them a second.
        hit: How many more workers there are, for faults to hit.
        bad: How many of a thousand runs are of handlers that misbehave.
        millis: How long a handler works at most.
        lease_s: The workers' lease.
    """

    def __init__(
        self,
        *,
        seed: int,
        runs: int,
        rate: float,
        hit: int = 2,
        bad: int = 8,
        millis: int = 200,
        lease_s: float = 3.0,
    ) -> None:
        self.steady: list[Member] = []
        self.relay: Relay | None = None
        super().__init__(
            seed=seed, runs=runs, rate=rate, workers=len(LANES) + hit, bad=bad, millis=millis,
            lease_s=lease_s, env={"WORKHORSE_METRICS": "emf"}, wires=self._count_calls,
        )  # fmt: skip
        for member in self.workers:
            member.arguments = [*_CLI, "worker"]
            member.env[HEALTH] = str(free_port())
        for at, member in enumerate(self.producers):
            member.arguments = ["-m", "tests.soak.producer", str(at)]
        old, self.workers = self.workers[: len(LANES)], self.workers[len(LANES) :]
        for member in old:
            member.name = f"steady {member.name}"
        (maintenance,) = self.maintainers
        self.steady = [
            *old, Member("steady maintenance", list(maintenance.arguments), dict(maintenance.env))
        ]  # fmt: skip

    @property
    def members(self) -> list[Member]:
        """All places of the fleet."""
        return [*self.steady, *super().members]

    @property
    def claims(self) -> Path:
        """What the claims of all workers took."""
        return self.folder / CLAIMS

    def close(self) -> None:
        """End all of it and remove its folder."""
        super().close()
        if self.relay is not None:
            self.relay.close()

    def _count_calls(self, fleet: Fleet) -> Mapping[str, str]:
        self.relay = Relay(fleet.broker.url)
        return {"WORKHORSE_AWS_ENDPOINT_URL": self.relay.url}
