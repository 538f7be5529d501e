"""`/livez`, `/readyz` and `/metrics` of a worker, over HTTP on the loopback interface.

Source: docs/design.md, section 6.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from workhorse.errors import ConfigurationError
from workhorse.telemetry import Counters, get_logger

_log = get_logger("worker")

_LOOK_S: Final = 0.1
"""How long a stop may go unnoticed: the time for a shutdown is short."""
_LABELLED: Final = re.compile(r"(\w+)\[(.*)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """How a worker is; `gauges` are numbers that go up and down."""

    live: bool
    ready: bool
    details: Mapping[str, object]
    gauges: Mapping[str, float]


class HealthServer:
    """Answers until closed.

    Args:
        port: 0 picks a free one; `address` says which.
        report: Called for each request; it must be quick.

    Raises:
        ConfigurationError: The address cannot be opened.
    """

    def __init__(
        self, host: str, port: int, report: Callable[[], Report], counters: Counters
    ) -> None:
        class Handler(_Handler):
            pass

        Handler.report = staticmethod(report)
        Handler.counters = counters
        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except OSError as error:  # it is taken, needs rights, or the host is none of this machine
            raise ConfigurationError(
                f"health_port: {host}:{port} cannot be opened: {error.strerror or error}; set "
                "another health_port (0 takes a free one) or health_host"
            ) from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            args=(_LOOK_S,),
            name="workhorse-health",
            daemon=True,
        )
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    report: Callable[[], Report]
    counters: Counters
    timeout = 5  # a client that says nothing does not keep a thread

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path not in ("/livez", "/readyz", "/metrics"):
            self._answer(404, "text/plain", "there are /livez, /readyz and /metrics\n")
            return
        report = self.report()
        if path == "/metrics":
            self._answer(200, "text/plain; version=0.0.4", _metrics(report, self.counters))
            return
        good = report.live if path == "/livez" else report.ready
        body = json.dumps({"ok": good, **report.details}) + "\n"
        self._answer(200 if good else 503, "application/json", body)

    def _answer(self, status: int, kind: str, body: str) -> None:
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
        _log.debug("health: " + format, *args)


def _metrics(report: Report, counters: Counters) -> str:
    """Return Prometheus' text format."""
    lines = []
    for name, value in report.gauges.items():
        lines += [f"# TYPE workhorse_{name} gauge", f"workhorse_{name} {value:g}"]
    typed: set[str] = set()
    for full, count in counters.snapshot().items():
        labelled = _LABELLED.fullmatch(full)
        name = f"workhorse_{labelled[1] if labelled else full}_total"
        if name not in typed:
            typed.add(name)
            lines.append(f"# TYPE {name} counter")
        label = f'{{label="{labelled[2]}"}}' if labelled else ""
        lines.append(f"{name}{label} {count}")
    return "\n".join(lines) + "\n"
