"""A relay before the SQS endpoint that counts calls and changes nothing."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

_CALL: Final = re.compile(rb"x-amz-target: *AmazonSQS\.(\w+)\r", re.IGNORECASE)
_TAIL: Final = 80
"""What is kept of a piece: a header may lie across two."""


class CallCounter:
    """Counts the calls of one connection's bytes, in whatever pieces they come."""

    def __init__(self, count: Callable[[str], None]) -> None:
        self._count = count
        self._tail = b""

    def feed(self, piece: bytes) -> None:
        """Look at the next piece."""
        text = self._tail + piece
        end = 0
        for found in _CALL.finditer(text):
            self._count(found[1].decode())
            end = found.end()
        self._tail = text[max(end, len(text) - _TAIL) :]


class Relay:
    """Passes connections on to an endpoint, from a port of its own; ends with `close`.

    Args:
        target: The endpoint's URL.
    """

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._loop = asyncio.new_event_loop()
        self._began = threading.Event()
        self.url = ""
        self._thread = threading.Thread(target=self._serve, name="soak-relay", daemon=True)
        self._thread.start()
        self._began.wait()

    def counts(self) -> Counter[str]:
        """Return how often each call was made so far."""
        with self._lock:
            return Counter(self._counts)

    def close(self) -> None:
        """End all connections."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _count(self, call: str) -> None:
        with self._lock:
            self._counts[call] += 1

    def _serve(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        server = loop.run_until_complete(asyncio.start_server(self._pass, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._began.set()
        loop.run_forever()
        server.close()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, out = await asyncio.open_connection(*self._target)
        except OSError:  # the endpoint is away: so is this
            writer.close()
            return
        counter = CallCounter(self._count)
        ways = (self._pump(reader, out, counter.feed), self._pump(there, writer, None))
        tasks = [asyncio.ensure_future(way) for way in ways]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            writer.close()
            out.close()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        look: Callable[[bytes], None] | None,
    ) -> None:
        try:
            while piece := await reader.read(65536):
                if look is not None:
                    look(piece)
                writer.write(piece)
                await writer.drain()
        except OSError:
            return
