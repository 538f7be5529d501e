"""A proxy before an SQS endpoint: records each call, and answers some itself, badly on request."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit


@dataclass
class Call:
    """One HTTP request to SQS."""

    operation: str
    user_agent: str
    authorization: str
    parameters: dict[str, Any]
    began: float = field(default_factory=time.monotonic)

    @property
    def client(self) -> str:
        """Which client made it, by its name in the settings."""
        names = {"aiobotocore": "aioboto3", "aiohttp": "lean"}
        return names.get(self.user_agent.partition("/")[0], "boto3")

    @property
    def access_key(self) -> str:
        """Whose signature it bears."""
        return self.authorization.partition("Credential=")[2].partition("/")[0]

    @property
    def entries(self) -> list[dict[str, Any]]:
        """The entries of a batch."""
        return list(self.parameters.get("Entries", []))


@dataclass(frozen=True)
class Answer:
    """What the proxy answers by itself."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)


SWALLOW = "swallow"
"""Never answer, as a network that drops packets."""
HANG_UP = "hang up"
"""Close the connection without an answer."""

Fault = Callable[[Call], "Answer | str | None"]


def error(code: str, status: int = 400, query_code: str | None = None) -> Answer:
    """Return an error as SQS words it in its JSON protocol."""
    headers = {"x-amzn-query-error": f"{query_code};Sender"} if query_code else {}
    body = {"__type": f"com.amazonaws.sqs#{code}", "message": "a message with a secret in it"}
    return Answer(status, body, headers)


UNAVAILABLE = error("ServiceUnavailable", 503)
DENIED = error("AccessDenied", 403)
GONE = error("QueueDoesNotExist", 400, "AWS.SimpleQueueService.NonExistentQueue")


class SqsProxy:
    """Stands between a lane and an endpoint.

    `fault` is asked about each call: None passes it on, anything else is done instead.
    """

    def __init__(self, target: str | None = None) -> None:
        self.fault: Fault | None = None
        self.calls: list[Call] = []
        self.most_at_once: Counter[str] = Counter()
        self._target = urlsplit(target).netloc if target else None
        self._lock = threading.Lock()
        self._now: Counter[str] = Counter()
        self._ended = threading.Event()
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), name="sqs-proxy", daemon=True
        )
        self._thread.start()

    def always(self, answer: Answer | str, *operations: str) -> None:
        """Answer each call, or each of some operations, in the same way."""
        self.fault = lambda call: answer if not operations or call.operation in operations else None

    def made(self, *operations: str) -> list[Call]:
        """Return the calls so far, or those of some operations."""
        with self._lock:
            return [c for c in self.calls if not operations or c.operation in operations]

    def counts(self) -> dict[str, int]:
        """Return how often each operation was called."""
        with self._lock:
            return dict(Counter(call.operation for call in self.calls))

    def outstanding(self, operation: str) -> int:
        """Return how many calls of an operation wait for their answer now."""
        with self._lock:
            return self._now[operation]

    def forget(self) -> None:
        """Start counting anew."""
        with self._lock:
            self.calls.clear()
            self.most_at_once.clear()

    def close(self) -> None:
        self._ended.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def serve(self, call: Call, headers: dict[str, str], body: bytes) -> Answer | bytes | str:
        """Record a call and get its answer."""
        with self._lock:
            self.calls.append(call)
            self._now[call.operation] += 1
            at_once = self._now[call.operation]
            self.most_at_once[call.operation] = max(self.most_at_once[call.operation], at_once)
        try:
            answer = self.fault(call) if self.fault else None
            if answer == SWALLOW:
                self._ended.wait()
            if answer is not None:
                return answer
            return self._forward(headers, body)
        finally:
            with self._lock:
                self._now[call.operation] -= 1

    def _forward(self, headers: dict[str, str], body: bytes) -> bytes | str:
        if self._target is None:
            return HANG_UP
        connection = http.client.HTTPConnection(self._target, timeout=60)
        try:
            connection.request("POST", "/", body, headers)
            answer = connection.getresponse()
            content = answer.read()
            kept = "".join(
                f"{name}: {value}\r\n"
                for name, value in answer.getheaders()
                if name.lower() in ("content-type", "x-amzn-query-error", "x-amzn-requestid")
            )
            return _reply(answer.status, kept, content)
        except OSError:
            return HANG_UP
        finally:
            connection.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: SqsProxy

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        operation = self.headers.get("X-Amz-Target", "").rpartition(".")[2]
        call = Call(
            operation,
            self.headers.get("User-Agent", ""),
            self.headers.get("Authorization", ""),
            json.loads(body or b"{}"),
        )
        headers = {
            name: value for name, value in self.headers.items() if name.lower() != "connection"
        }
        answer = self.owner.serve(call, headers, body)
        if isinstance(answer, Answer):
            more = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items())
            kept = f"Content-Type: application/x-amz-json-1.0\r\n{more}"
            answer = _reply(answer.status, kept, json.dumps(answer.body).encode())
        if isinstance(answer, bytes):
            with suppress(OSError):  # the client may have gone
                self.wfile.write(answer)
                return
        self.close_connection = True

    def handle(self) -> None:
        with suppress(OSError):
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the base's name)
        pass


def _reply(status: int, headers: str, content: bytes) -> bytes:
    head = f"HTTP/1.1 {status} Whatever\r\n{headers}Content-Length: {len(content)}\r\n\r\n"
    return head.encode() + content
