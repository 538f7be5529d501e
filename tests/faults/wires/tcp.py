"""A TCP proxy that breaks what goes through it: it cuts, delays, halves and swallows.

A gate listens on a free port of the loopback address and forwards to one server. What a harm does
to a connection for good is remembered by the connection: one whose bytes were swallowed never
speaks again, also when the gate is whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final

CUT: Final = "cut"
DELAY: Final = "delay"
HALVE: Final = "halve"
SWALLOW: Final = "swallow"
ASK: Final = "ask"
"""The way of what a client says."""
ANSWER: Final = "answer"
"""The way of what the server says."""

_CHUNK: Final = 65536
_GIVEN_UP_S: Final = 12.0
"""After so long a server gives a silent client up, as its keepalives would; until then it holds
the locks of what that client had begun."""
_CLOSES_WITHIN_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Harm:
    """What a gate does to what goes through it.

    Args:
        how: CUT: connections are ended, those that there are at once, and all of them again and
            again; DELAY: each chunk is late; HALVE: half of a chunk goes through, and then the end;
            SWALLOW: what is said goes nowhere, and nobody is told.
        least: CUT: how many seconds go by between two cuts, DELAY: how late a chunk is, at least.
        most: The same, at most.
        chance: Of a connection to be cut, or of a chunk to be delayed, halved or swallowed.
        ways: Which ways are harmed.
        lasting: SWALLOW: connections stay silent when the gate is whole again; else they end then.
    """

    how: str
    least: float = 0.0
    most: float = 0.0
    chance: float = 1.0
    ways: tuple[str, ...] = (ASK, ANSWER)
    lasting: bool = True


class Gate:
    """Forwards to a port of the loopback address, and breaks what it is told to.

    Args:
        port: Where the server listens.
        counts: Is told how often each harm was done.
        label: What the counts call this gate.
    """

    def __init__(self, port: int, counts: Counter[str] | None = None, label: str = "") -> None:
        self._target = port
        self._counts: Counter[str] = Counter() if counts is None else counts
        self._label = label
        self._harm: Harm | None = None
        self._draw = random.Random(0)
        self._links: set[_Link] = set()
        self._orphans: set[_Link] = set()
        """Those whose client has gone, and whose server has not learned of it."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._cutting: asyncio.Task[None] | None = None
        self._server: asyncio.Server | None = None
        self.port = 0

    async def open(self) -> int:
        """Listen; return the port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self.port

    async def close(self) -> None:
        """End all connections, and listen no more."""
        self.heal()
        if self._server is not None:
            self._server.close()
        for link in [*self._links, *self._orphans]:
            link.cut()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def harm(self, harm: Harm, seed: int) -> None:
        """Begin to break what goes through."""
        self.heal()
        self._harm, self._draw = harm, random.Random(seed)
        if harm.how == CUT:
            self._cutting = self._start(self._cut(harm))

    def heal(self) -> None:
        """Be whole again."""
        before, self._harm = self._harm, None
        if self._cutting is not None:
            self._cutting.cancel()
            self._cutting = None
        if before is not None and before.how == SWALLOW and not before.lasting:
            for link in list(self._links):
                if link.silent:
                    link.cut()

    @property
    def connections(self) -> int:
        """How many connections there are."""
        return len(self._links)

    async def _cut(self, harm: Harm) -> None:
        while True:
            for link in list(self._links):
                if self._draw.random() < harm.chance:
                    link.cut(reset=self._draw.random() < 0.5)
                    self._count(CUT)
            await asyncio.sleep(self._draw.uniform(harm.least, harm.most))

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._start(self._serve(reader, writer))

    def _start(self, job: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(writer)
        self._links.add(link)
        try:
            if self._swallows(ASK):
                # What is to be said to a server that never hears it needs no server.
                await self._swallow(link, reader)
                return
            try:
                answers, asks = await asyncio.open_connection("127.0.0.1", self._target)
            except OSError:
                link.cut()
                return
            link.server = asks
            pumps = [
                self._start(self._pump(link, ASK, reader, asks)),
                self._start(self._pump(link, ANSWER, answers, writer)),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            if link.silent and not pumps[0].done():
                # The server is gone, or has given up; the client does not learn of it.
                await pumps[0]
            for pump in pumps:
                pump.cancel()
        finally:
            self._links.discard(link)
            if link.silent and link.server is not None and not link.server.is_closing():
                self._orphans.add(link)
            await link.end()

    async def _pump(
        self, link: _Link, way: str, source: asyncio.StreamReader, target: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(_CHUNK):
                if link.silent:
                    continue
                harm = self._strikes(way)
                if harm is not None:
                    self._count(harm.how)
                    if harm.how == SWALLOW:
                        link.silent = True
                        loop = asyncio.get_running_loop()
                        loop.call_later(_GIVEN_UP_S, self._give_up, link)
                        continue
                    if harm.how == HALVE:
                        target.write(data[: len(data) // 2])
                        await target.drain()
                        return
                    await asyncio.sleep(self._draw.uniform(harm.least, harm.most))
                target.write(data)
                await target.drain()

    async def _swallow(self, link: _Link, reader: asyncio.StreamReader) -> None:
        link.silent = True
        self._count(SWALLOW)
        with contextlib.suppress(OSError):
            while await reader.read(_CHUNK):
                pass

    def _count(self, how: str) -> None:
        self._counts[f"{self._label}{how}"] += 1

    def _give_up(self, link: _Link) -> None:
        link.give_up()
        self._orphans.discard(link)

    def _strikes(self, way: str) -> Harm | None:
        harm = self._harm
        if harm is None or harm.how == CUT or way not in harm.ways:
            return None
        return harm if self._draw.random() < harm.chance else None

    def _swallows(self, way: str) -> bool:
        harm = self._strikes(way)
        return harm is not None and harm.how == SWALLOW


class _Link:
    """A client's connection, and the one to the server that belongs to it."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.client = client
        self.server: asyncio.StreamWriter | None = None
        self.silent = False
        """Whether bytes were swallowed: from then on nothing that is said goes through."""

    def cut(self, *, reset: bool = True) -> None:
        """End both sides at once; what is on its way is lost."""
        for side in (self.client, self.server):
            if side is not None:
                _abort(side, reset=reset)

    def give_up(self) -> None:
        """End the server's side."""
        if self.server is not None:
            _abort(self.server, reset=True)

    async def end(self) -> None:
        """Close both sides; what was written is sent. A server does not learn of a silent end."""
        sides = (self.client, None if self.silent else self.server)
        for side in sides:
            if side is not None:
                side.close()
        for side in sides:
            if side is not None:
                with contextlib.suppress(OSError, TimeoutError):
                    await asyncio.wait_for(side.wait_closed(), _CLOSES_WITHIN_S)


def _abort(writer: asyncio.StreamWriter, *, reset: bool) -> None:
    if reset:
        raw: socket.socket | None = writer.get_extra_info("socket")
        if raw is not None:
            with contextlib.suppress(OSError):
                # Closed with no time to linger, a socket tells the other side of an error.
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
