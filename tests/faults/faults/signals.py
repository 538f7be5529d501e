"""Signals to processes: killed, frozen past the lease, told to stop in every phase."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import psycopg

from tests.faults.faults import FREEZES, KILLS, STOPS, register

if TYPE_CHECKING:
    from tests.faults.fleet import Fleet, Member
    from tests.support.processes import RunningProcess

_ENDS_WITHIN_S = 40.0
"""A worker's own backstop ends it 29 s after the first signal."""
_CLEAN = {0, 3, 4, 5}


@register
class Killed:
    """SIGKILL of a worker with all that it started; sometimes of maintenance, or a producer."""

    name: ClassVar[str] = "SIGKILL"
    kind: ClassVar[str] = KILLS
    holds: ClassVar[tuple[float, float]] = (0.2, 1.5)

    def apply(self, fleet: Fleet, rng: random.Random) -> str:
        whose = rng.choices([None, fleet.maintainers, fleet.producers], [8, 1, 1])[0]
        member = rng.choice(whose) if whose else None
        if member is None or not member.wanted:  # a producer that is done
            with fleet.taken_worker(rng) as worker:
                return self._kill(fleet, worker)
        return self._kill(fleet, member)

    def _kill(self, fleet: Fleet, member: Member) -> str:
        fleet.hold(member)
        fleet.hit(member)
        assert member.process is not None
        member.process.send_group(signal.SIGKILL)
        return member.name

    def heal(self, fleet: Fleet) -> None:
        """Do nothing: the supervisor starts another."""


@register
class Frozen:
    """SIGSTOP of a worker for longer than its lease, then SIGCONT."""

    name: ClassVar[str] = "SIGSTOP past the lease"
    kind: ClassVar[str] = FREEZES
    holds: ClassVar[tuple[float, float]] = (0.0, 0.5)
    leases: ClassVar[tuple[float, float]] = (1.3, 2.2)

    def __init__(self) -> None:
        self._stopped: Member | None = None

    def apply(self, fleet: Fleet, rng: random.Random) -> str:
        with fleet.taken_worker(rng) as member:
            fleet.hold(member)
            assert member.process is not None
            self._stopped, process = member, member.process
            with fleet.incident("frozen", member):
                fleet.hit(member)
                process.send_group(signal.SIGSTOP)
                seconds = self.wait(fleet, member, rng)
                process.send_group(signal.SIGCONT)
            return f"{member.name} for {seconds:.1f} s"

    def wait(self, fleet: Fleet, member: Member, rng: random.Random) -> float:
        """Wait past the lease; return how long."""
        seconds = rng.uniform(*self.leases) * fleet.lease_s
        time.sleep(seconds)
        return seconds

    def heal(self, fleet: Fleet) -> None:
        if self._stopped is not None and self._stopped.process is not None:
            self._stopped.process.send_group(signal.SIGCONT)


class _Terminated(ABC):
    """SIGTERM of a worker; it has to end by itself, with a code of its own."""

    kind: ClassVar[str] = STOPS
    holds: ClassVar[tuple[float, float]] = (0.0, 0.3)

    def apply(self, fleet: Fleet, rng: random.Random) -> str:
        with fleet.taken_worker(rng) as member:
            return self._end(fleet, member, rng)

    def _end(self, fleet: Fleet, member: Member, rng: random.Random) -> str:
        fleet.hold(member)
        fleet.hit(member)
        process = self.signal(member, rng)
        deadline = time.monotonic() + _ENDS_WITHIN_S
        while process.exit_code is None and time.monotonic() < deadline:
            time.sleep(0.05)
        code = process.exit_code
        if code is None:
            last = process.output()[-2000:]
            fleet.unhealed.append(f"{member.name} did not end after SIGTERM:\n{last}")
            process.send_group(signal.SIGKILL)
        elif code not in _CLEAN | {-signal.SIGTERM, -signal.SIGKILL, 77}:
            fleet.unhealed.append(f"{member.name} ended with {code} after SIGTERM")
        return f"{member.name}: exit code {code}"

    @abstractmethod
    def signal(self, member: Member, rng: random.Random) -> RunningProcess:
        """Send it, and return the process that is to end."""

    def heal(self, fleet: Fleet) -> None:  # noqa: B027 - a default, not a duty
        """Do nothing: the supervisor starts another."""


@register
class TerminatedAtWork(_Terminated):
    """SIGTERM to a worker that works."""

    name: ClassVar[str] = "SIGTERM at work"

    def signal(self, member: Member, rng: random.Random) -> RunningProcess:
        assert member.process is not None
        member.process.send(signal.SIGTERM)
        return member.process


@register
class TerminatedAtStart(_Terminated):
    """SIGTERM to a worker that is just starting."""

    name: ClassVar[str] = "SIGTERM at start"

    def signal(self, member: Member, rng: random.Random) -> RunningProcess:
        assert member.process is not None
        starts = member.starts
        member.process.send_group(signal.SIGKILL)
        deadline = time.monotonic() + 10
        while member.starts == starts and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(rng.uniform(0.0, 2.0))  # anywhere between its first import and its first claim
        member.process.send(signal.SIGTERM)
        return member.process


@register
class TerminatedTwice(_Terminated):
    """A second SIGTERM while it drains: it ends at once, its leases expire."""

    name: ClassVar[str] = "SIGTERM twice"

    def signal(self, member: Member, rng: random.Random) -> RunningProcess:
        process = member.process
        assert process is not None
        process.send(signal.SIGTERM)
        time.sleep(
            rng.uniform(0.1, 2.0)
        )  # before, or after, the second in which it is a repetition
        if process.exit_code is None:
            process.send(signal.SIGTERM)
        return process


@register
class TerminatedCutOff(_Terminated):
    """SIGTERM while its sessions are killed: what it hands back finds its way all the same."""

    name: ClassVar[str] = "SIGTERM while cut off"

    def signal(self, member: Member, rng: random.Random) -> RunningProcess:
        assert member.process is not None
        member.process.send(signal.SIGTERM)
        return member.process

    def apply(self, fleet: Fleet, rng: random.Random) -> str:
        with fleet.incident("backends killed"):
            over = threading.Event()
            thread = threading.Thread(target=self._cut, args=(fleet, over))
            thread.start()
            try:
                return super().apply(fleet, rng)
            finally:
                over.set()
                thread.join()

    def _cut(self, fleet: Fleet, over: threading.Event) -> None:
        until = time.monotonic() + 3.0
        while not over.is_set() and time.monotonic() < until:
            with contextlib.suppress(psycopg.Error), fleet.admin() as connection:
                fleet.end_sessions(connection)
            over.wait(0.2)
