"""A server on loopback that answers each connection with whatever bytes it was told to."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.fuzz.evil import just, texts
from tests.fuzz.source import Draw, Source

_PATIENCE_S = 10.0


class Server:
    """Reads what a request begins with, answers, and hangs up."""

    def __init__(self) -> None:
        self.answer = b""
        self._line = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._line.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, name="fuzz-server", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                line, _ = self._line.accept()
            except OSError:
                return  # closed
            with line, suppress(OSError):
                line.settimeout(_PATIENCE_S)
                line.recv(65_536)
                line.sendall(self.answer)
                line.shutdown(socket.SHUT_WR)
                while line.recv(65_536):  # a reset in the place of an end would lose the answer
                    pass

    def close(self) -> None:
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)
        self._line.close()
        self._thread.join(_PATIENCE_S)


@contextmanager
def server() -> Iterator[Server]:
    made = Server()
    try:
        yield made
    finally:
        made.close()


def http(body: Draw) -> Draw:
    """Draw answers of HTTP, most of them whole ones."""
    statuses = just("HTTP/1.1 200 OK", "HTTP/1.1 200 OK", "HTTP/1.0 500 ", "HTTP/1.1 400 Bad",
                    "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/", "HTTP/1.1 204 x",
                    "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK", "HTTP/1.1 999 x",
                    "HTTP/1.1 -1 x", "HTTP/9.9 200 OK", "HTTP/1.1", "", "220 smtp ESMTP",
                    f"HTTP/1.1 {'9' * 5_000} OK")  # fmt: skip
    extras = just("", "", "Content-Type: text/html", "Transfer-Encoding: chunked",
                  "Content-Encoding: gzip", "Content-Length: -1", "Content-Length: 99999999",
                  "Content-Length: 1e9", "Date: Thu, 99 Foo 2026 25:61:00 GMT",
                  "Date: Thu, 01 Jan 1970 00:00:00 GMT", "x-amzn-errortype: \xff\xfe:x",
                  "a: b\r\n" * 200, "x" * 70_000, "no colon", ": empty",
                  "Connection: keep-alive")  # fmt: skip

    def draw(source: Source) -> bytes:
        said = body(source)
        content = said if isinstance(said, bytes) else str(said).encode("utf-8", "surrogatepass")
        if source.maybe(12):
            return content
        if source.maybe(12):
            return bytes(source.below(256) for _ in range(source.below(200)))
        head = source.one(statuses, statuses, statuses, texts)
        extra = source.one(extras, extras, extras, texts)
        lines = [head, *([extra] if extra else [])]
        if not source.maybe(8):
            lines.append(f"Content-Length: {len(content)}")
        whole = "\r\n".join(lines).encode("utf-8", "surrogatepass") + b"\r\n\r\n" + content
        return whole[: source.below(len(whole) + 1)] if source.maybe(10) else whole

    return draw


RAW = (
    b"", b"\r\n", b"\r\n\r\n", b"\0" * 100, b"HTTP/1.1 200 OK", b"HTTP/1.1 200 OK\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 60_000,
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffffff\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nab",
    b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n\xff\xfe\xfd\xfc",
    b"HTTP/1.1 200 " + b"x" * 70_000, b"HTTP/1.1 200 OK\r\n" + b"a: " + b"x" * 70_000 + b"\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n" * 100, b"\x16\x03\x01\x00\xa5", b"x" * 200_000,
    b"HTTP/1.1 200 OK\r\n\r\n" + b"1" * 9_000,
    b'HTTP/1.1 200 OK\r\n\r\n{"a":' + b"9" * 5_000 + b"}",
)  # fmt: skip
"""Answers made by hand."""
