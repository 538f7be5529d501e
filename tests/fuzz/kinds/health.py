"""Raw bytes to the health server: it answers or hangs up, keeps no thread, and goes on."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from tests.fuzz.evil import TEXTS, texts
from tests.fuzz.kind import Check, Kind
from tests.fuzz.source import Source
from workhorse.runtime.process.health import HealthServer, Report
from workhorse.telemetry import Counters

_PATIENCE_S: Final = 10.0


@contextmanager
def _serving() -> Iterator[Check]:
    hooked: list[object] = []
    report = Report(live=True, ready=True, details={"slots": 1}, gauges={"slots": 1.0})
    server = HealthServer("127.0.0.1", 0, lambda: report, Counters())
    before, threading.excepthook = threading.excepthook, lambda args: hooked.append(args.exc_value)

    def check(sent: bytes) -> bool:
        with socket.create_connection(server.address, _PATIENCE_S) as line:
            with suppress(OSError):  # it hangs up before it has read all
                line.sendall(sent)
                line.shutdown(socket.SHUT_WR)
            with suppress(ConnectionError):
                while line.recv(65_536):  # a server that keeps the line is a TimeoutError
                    pass
        assert not hooked, f"a thread of the server ended by {hooked[0]!r}"
        return False

    try:
        yield check
        asked = http.client.HTTPConnection(*server.address, timeout=_PATIENCE_S)
        asked.request("GET", "/livez")
        assert asked.getresponse().status == 200
        asked.close()
        until = time.monotonic() + _PATIENCE_S
        while kept := [t for t in threading.enumerate() if "process_request" in t.name]:
            assert time.monotonic() < until, f"{len(kept)} threads of the server go on"
            kept[0].join(0.1)
    finally:
        threading.excepthook = before
        server.close()


def _draw(source: Source) -> bytes:
    if source.maybe(4):
        return bytes(source.below(256) for _ in range(source.below(200)))
    method = source.pick(["GET", "GET", "GET", "POST", "HEAD", "", texts(source)])
    path = source.pick(["/livez", "/readyz", "/metrics", "/metrics?x", "*", texts(source)])
    version = source.pick(["HTTP/1.1", "HTTP/1.0", "HTTP/9.9", "HTTP/x", "", texts(source)])
    header = source.pick(
        ["Host: x", "Connection: close", "Content-Length: 99999999", "Expect: 100-continue",
         "Transfer-Encoding: chunked", texts(source), "x" * 70_000, "A: b\r\n" * 200]
    )  # fmt: skip
    end = source.pick(["\r\n\r\n", "\n\n", "\r\n", ""])
    text = f"{method} {path} {version}\r\n{header}{end}"
    return text.encode("utf-8", "surrogatepass")[: 200_000 if source.maybe() else 100]


KINDS: Final = (
    Kind(
        name="health",
        share=1_500,
        draw=_draw,
        corpus=[
            b"", b"\r\n", b"\0" * 1_000, b"GET", b"GET /livez", b"GET /livez HTTP/1.1\r\n",
            b"x" * 200_000,
            b"GET " + b"/" * 70_000 + b" HTTP/1.1\r\n\r\n",
            b"GET /livez HTTP/1.1\r\n" + b"a: b\r\n" * 500,
            *(f"GET /{each} HTTP/1.1\r\n\r\n".encode("utf-8", "surrogatepass") for each in TEXTS),
        ],
        rig=_serving,
    ),
)  # fmt: skip
