"""A TCP proxy that can swallow packets: connections stay open, and nothing arrives any more."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Final, Self

READY_FOR_QUERY: Final = b"Z\x00\x00\x00\x05I"
"""The end of what PostgreSQL says to a new connection."""


class Proxy:
    """Forwards to a port of 127.0.0.1, until told to swallow."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._swallowing = threading.Event()
        self._marker: bytes | None = None
        self.swallowed = threading.Event()
        """Whether anything was lost so far."""
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    def swallow(self, on: bool) -> None:
        """Lose what is sent from now on, or forward again what is sent from now on."""
        if on:
            self._swallowing.set()
        else:
            self._swallowing.clear()

    def swallow_behind(self, marker: bytes) -> None:
        """Lose what is sent once these bytes were forwarded in one piece."""
        self._marker = marker

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
        for each in self._sockets:
            each.close()

    def _start(self, body: object, *arguments: object) -> None:
        thread = threading.Thread(target=body, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            self._sockets += [client, server]
            self._start(self._forward, client, server)
            self._start(self._forward, server, client)

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not self._swallowing.is_set():
                    target.sendall(data)
                    if self._marker is not None and self._marker in data:
                        self._marker = None
                        self._swallowing.set()
                else:
                    self.swallowed.set()
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
