"""What a gate does to the bytes of a connection, each harm for itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from tests.faults.wires.tcp import ANSWER, ASK, CUT, DELAY, HALVE, SWALLOW, Gate, Harm
from tests.support.eventually import eventually_async

SAID = b"a word of sixteen"[:16]


class Rig:
    """A server that answers each word with itself, and a gate before it."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.heard = b""
        self.connected = 0
        self.gate = Gate(0)
        self.opened: list[asyncio.StreamWriter] = []

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.gate.port)
        self.opened.append(writer)
        return reader, writer

    async def close(self) -> None:
        await self.gate.close()
        for writer in self.opened:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connected += 1
        self.opened.append(writer)
        with contextlib.suppress(OSError):
            while data := await reader.read(1024):
                self.heard += data
                writer.write(data)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def rigged() -> AsyncIterator[Rig]:
    rig = Rig()
    server = await asyncio.start_server(rig.echo, "127.0.0.1", 0)
    rig.gate = Gate(server.sockets[0].getsockname()[1], rig.counts)
    await rig.gate.open()
    try:
        yield rig
    finally:
        server.close()
        await rig.close()


def with_rig(body: Callable[[Rig], Awaitable[None]]) -> None:
    async def run() -> None:
        async with rigged() as rig, asyncio.timeout(30):
            await body(rig)

    asyncio.run(run())


async def ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, said: bytes = SAID
) -> bytes:
    writer.write(said)
    return await reader.readexactly(len(said))


def test_a_whole_gate_forwards_both_ways_and_ends_with_either_side() -> None:
    async def body(rig: Rig) -> None:
        reader, writer = await rig.connect()
        big = SAID * 10_000
        assert await ask(reader, writer, big) == big
        writer.close()
        await eventually_async(lambda: rig.gate.connections == 0)
        assert not rig.counts

    with_rig(body)


def test_cut_ends_what_there_is_and_what_takes_its_place() -> None:
    async def body(rig: Rig) -> None:
        first = await rig.connect()
        assert await ask(*first) == SAID
        rig.gate.harm(Harm(CUT, least=0.01, most=0.01), seed=1)
        await _ends(first[0])
        second = await rig.connect()
        await _ends(second[0])
        rig.gate.heal()
        third = await rig.connect()
        assert await ask(*third) == SAID
        assert rig.counts[CUT] >= 2

    with_rig(body)


def test_delay_brings_each_chunk_late_and_whole() -> None:
    async def body(rig: Rig) -> None:
        reader, writer = await rig.connect()
        rig.gate.harm(Harm(DELAY, least=0.05, most=0.05), seed=1)
        began = asyncio.get_running_loop().time()
        assert await ask(reader, writer) == SAID
        assert asyncio.get_running_loop().time() - began >= 0.1  # there, and back
        assert rig.counts == {DELAY: 2}

    with_rig(body)


@pytest.mark.parametrize("way", [ASK, ANSWER])
def test_halve_forwards_half_of_a_chunk_and_then_the_end(way: str) -> None:
    async def body(rig: Rig) -> None:
        reader, writer = await rig.connect()
        rig.gate.harm(Harm(HALVE, ways=(way,)), seed=1)
        writer.write(SAID)
        got = await reader.read()
        await eventually_async(lambda: rig.gate.connections == 0)
        if way == ASK:
            assert (rig.heard, rig.counts) == (SAID[:8], {HALVE: 1})
        else:
            assert (rig.heard, got, rig.counts) == (SAID, SAID[:8], {HALVE: 1})

    with_rig(body)


@pytest.mark.parametrize("lasting", [True, False], ids=["for good", "for a time"])
def test_swallow_keeps_connections_open_and_silent(lasting: bool) -> None:
    async def body(rig: Rig) -> None:
        reader, writer = await rig.connect()
        assert await ask(reader, writer) == SAID
        rig.gate.harm(Harm(SWALLOW, lasting=lasting), seed=1)
        writer.write(SAID)
        late, late_writer = await rig.connect()
        late_writer.write(SAID)
        await eventually_async(lambda: rig.counts[SWALLOW] == 2)
        rig.gate.heal()
        if lasting:
            writer.write(SAID)
            assert await _silent(reader)
            assert await _silent(late)
            assert rig.gate.connections == 2
        else:
            await _ends(reader)
            await _ends(late)
        assert (rig.heard, rig.connected) == (SAID, 1)
        assert await ask(*await rig.connect()) == SAID

    with_rig(body)


def test_swallowed_answers_are_of_things_that_were_done() -> None:
    async def body(rig: Rig) -> None:
        reader, writer = await rig.connect()
        rig.gate.harm(Harm(SWALLOW, ways=(ANSWER,)), seed=1)
        writer.write(SAID)
        await eventually_async(lambda: rig.counts[SWALLOW] == 1)
        assert rig.heard == SAID
        assert await _silent(reader)

    with_rig(body)


def test_the_server_does_not_learn_that_a_swallowed_client_has_gone() -> None:
    async def body(rig: Rig) -> None:
        _, writer = await rig.connect()
        rig.gate.harm(Harm(SWALLOW, ways=(ANSWER,)), seed=1)
        writer.write(SAID)
        await eventually_async(lambda: rig.counts[SWALLOW] == 1)
        link = next(iter(rig.gate._links))
        writer.close()
        await eventually_async(lambda: rig.gate.connections == 0)
        assert link.server is not None
        assert not link.server.is_closing()
        link.give_up()  # as it does after a while
        assert link.server.is_closing()

    with_rig(body)


def test_chance_lets_some_through() -> None:
    async def body(rig: Rig) -> None:
        rig.gate.harm(Harm(HALVE, chance=0.3, ways=(ASK,)), seed=1)
        whole = 0
        for _ in range(40):
            reader, writer = await rig.connect()
            writer.write(SAID)
            with contextlib.suppress(asyncio.IncompleteReadError, OSError):
                whole += await reader.readexactly(len(SAID)) == SAID
            writer.close()
        assert 0 < rig.counts[HALVE] < 40
        assert whole == 40 - rig.counts[HALVE]

    with_rig(body)


def test_a_server_that_is_away_is_away_through_the_gate_and_back_behind_it() -> None:
    async def body(rig: Rig) -> None:
        target, rig.gate._target = rig.gate._target, 1
        reader, _ = await rig.connect()
        await _ends(reader)
        rig.gate._target = target
        assert await ask(*await rig.connect()) == SAID

    with_rig(body)


async def _ends(reader: asyncio.StreamReader) -> None:
    """See a connection end, by an end or an error."""
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""


async def _silent(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(0.05):
            await reader.read(1)
    except TimeoutError:
        return True
    return False
