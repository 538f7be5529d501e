"""A fake of the ECS agent's endpoint for task protection: a real HTTP server on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

TASK = "arn:aws:ecs:us-east-1:111122223333:task/fleet/0123456789abcdef"

Answer = tuple[int, bytes]
Fault = Callable[["FakeAgent", dict[str, Any]], Answer | None]
"""Gets the request; answers in its own way, or None, which breaks the connection off."""


@dataclass
class FakeAgent:
    """What it was asked, in order, and what it made of it."""

    uri: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    protected: bool = False
    fault: Fault | None = None
    busy: int = 0
    most_busy: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def states(self) -> list[bool]:
        """What it was asked for."""
        return [request["ProtectionEnabled"] for request in self.asked]

    def answer(self, request: dict[str, Any]) -> Answer | None:
        with self.lock:
            self.asked.append(request)
            self.busy += 1
            self.most_busy = max(self.most_busy, self.busy)
            fault = self.fault
        try:
            return self.carry_out(request) if fault is None else fault(self, request)
        finally:
            with self.lock:
                self.busy -= 1

    def carry_out(self, request: dict[str, Any]) -> Answer:
        """Do as the agent does when all is well; it is strict about what it is sent."""
        enabled = request["ProtectionEnabled"]
        known = {"ProtectionEnabled", "ExpiresInMinutes"}
        minutes = request.get("ExpiresInMinutes", 120)
        if type(enabled) is not bool or set(request) - known or type(minutes) is not int:
            return error(400, "InvalidParameterException")
        if not 1 <= minutes <= 2_880:
            return error(400, "InvalidParameterException")
        self.protected = enabled
        expires = {"ExpirationDate": "2026-11-30T12:00:00Z"} if enabled else {}
        return told({"protection": {"ProtectionEnabled": enabled, "TaskArn": TASK} | expires})


def told(body: object, status: int = 200) -> Answer:
    return status, json.dumps(body).encode()


def error(status: int, code: str) -> Answer:
    return told({"requestID": "1", "error": {"Arn": TASK, "Code": code, "Message": "m"}}, status)


def failure(reason: str) -> Answer:
    """As ECS refuses: with the status 200."""
    return told({"failure": {"Arn": TASK, "Detail": None, "Reason": reason}})


def port_of(uri: str) -> int:
    port = urlsplit(uri).port
    assert port is not None
    return port


@contextmanager
def fake_agent(port: int = 0) -> Iterator[FakeAgent]:
    """Serve for the time of the context, on any port, or on that of one who is gone."""
    agent = FakeAgent()

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            length = int(self.headers["Content-Length"])
            body = json.loads(self.rfile.read(length))
            assert self.path == "/api/0a1b/task-protection/v1/state", self.path
            answer = agent.answer(body)
            if answer is None:
                self.close_connection = True
                return
            status, data = answer
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *arguments: object) -> None:
            """A client that gave up is no news."""

    server = Server(("127.0.0.1", port), Handler)
    agent.uri = f"http://127.0.0.1:{server.server_address[1]}/api/0a1b"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield agent
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
