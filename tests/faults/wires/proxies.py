"""The process of the proxies, and the driver's hold on it.

    python -m tests.faults.wires.proxies

Each of a fleet's members has gates of its own, one to the database and one to the broker, so that a
harm can be done to one of them, and the judge knows to whom. Commands come as lines of JSON, each
answered by one; the process ends with its input.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

from tests.faults.wires.sqs import CallProxy, Trouble
from tests.faults.wires.tcp import Gate, Harm
from tests.support.guardian import guardian

DATABASE: Final = "database"
BROKER: Final = "broker"
_ROOT: Final = Path(__file__).parents[3]


class Wires:
    """Starts the proxies of a fleet, and tells them what to break.

    Args:
        database_url: Where the members' gates to the database lead; by TCP on the loopback address.
        broker_url: The same for the broker.
        members: Whose gates there are.
    """

    def __init__(self, database_url: str, broker_url: str, members: Sequence[str]) -> None:
        self.members = tuple(members)
        self._database = urlsplit(database_url)
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.wires.proxies"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=_ROOT,
            start_new_session=True,
        )
        guardian().watch_group(self._process.pid)
        self._ports: dict[str, int] = self._tell(
            do="open",
            database=self._database.port or 5432,
            broker=urlsplit(broker_url).port,
            members=list(members),
        )

    def database_url(self, member: str) -> str:
        """Return the URL by which a member reaches the database."""
        login, at, _ = self._database.netloc.rpartition("@")
        place = f"{login}{at}127.0.0.1:{self._ports[_gate(DATABASE, member)]}"
        return self._database._replace(netloc=place).geturl()

    def broker_url(self, member: str) -> str:
        """Return the URL by which a member reaches the broker."""
        return f"http://127.0.0.1:{self._ports[_gate(BROKER, member)]}"

    def env(self, member: str) -> dict[str, str]:
        """Return what a member's environment says of both."""
        return {
            "WORKHORSE_DATABASE_URL": self.database_url(member),
            "WORKHORSE_AWS_ENDPOINT_URL": self.broker_url(member),
        }

    def harm(self, to: str, members: Iterable[str], harm: Harm, seed: int) -> None:
        """Break what members say to the database, or to the broker, and hear from there."""
        gates = [_gate(to, member) for member in members]
        self._tell(do="harm", gates=gates, harm=asdict(harm), seed=seed)

    def heal(self, to: str, members: Iterable[str]) -> None:
        """Break it no more."""
        self._tell(do="heal", gates=[_gate(to, member) for member in members])

    def trouble(self, key: str, trouble: Trouble, seed: int) -> None:
        """Break the calls of all members to the broker."""
        self._tell(do="trouble", key=key, trouble=asdict(trouble), seed=seed)

    def untrouble(self, key: str) -> None:
        """Break them no more."""
        self._tell(do="untrouble", key=key)

    def counts(self) -> Counter[str]:
        """Return how often what was done so far."""
        return Counter(self._tell(do="counts"))

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        if self._process.stdout is not None:
            self._process.stdout.close()
        guardian().release_group(self._process.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _tell(self, **command: Any) -> Any:
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise RuntimeError("the proxies were not started")
        with self._lock:
            stdin.write(json.dumps(command).encode() + b"\n")
            stdin.flush()
            answer = stdout.readline()
        if not answer:
            raise RuntimeError("the proxies have ended")
        return json.loads(answer)


def _gate(to: str, member: str) -> str:
    return f"{member}/{to}"


class _Commanded:
    """The process's side."""

    def __init__(self) -> None:
        self._gates: dict[str, Gate] = {}
        self._calls: CallProxy | None = None
        self._counts: Counter[str] = Counter()

    async def do(self, command: dict[str, Any]) -> Any:
        match command:
            case {"do": "open", "database": database, "broker": broker, "members": members}:
                return await self._open(database, broker, members)
            case {"do": "harm", "gates": gates, "harm": harm, "seed": seed}:
                for nth, name in enumerate(gates):
                    self._gates[name].harm(Harm(**harm), seed + nth)
            case {"do": "heal", "gates": gates}:
                for name in gates:
                    self._gates[name].heal()
            case {"do": "trouble", "key": key, "trouble": trouble, "seed": seed} if self._calls:
                self._calls.trouble(key, Trouble(**trouble), seed)
            case {"do": "untrouble", "key": key} if self._calls:
                self._calls.heal(key)
            case {"do": "counts"}:
                return self._counts
            case _:
                raise ValueError(f"unknown: {command}")
        return None

    async def _open(self, database: int, broker: int, members: list[str]) -> dict[str, int]:
        self._calls = CallProxy(broker, self._counts)
        calls = await self._calls.open()
        for member in members:
            for to, port in ((DATABASE, database), (BROKER, calls)):
                self._gates[_gate(to, member)] = Gate(port, self._counts, f"{to} ")
        return {name: await gate.open() for name, gate in self._gates.items()}


async def _main() -> None:
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(commands), sys.stdin
    )
    commanded = _Commanded()
    while line := await commands.readline():
        answer = await commanded.do(json.loads(line))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(_main())
