"""Producers that are no Python programs of ours: over HTTP, and with the command line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.client import HTTPConnection, RemoteDisconnected
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from workhorse import Workhorse

EXAMPLES = Path(__file__).parents[2] / "examples"


class Front:
    """Stands for a function URL: hands requests to `produce` of the example as AWS does."""

    def __init__(self, produce: Any) -> None:
        self.lost = 0
        """How many answers are lost, once the request was done."""
        self.requests = 0
        front = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                front.requests += 1
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                answer = produce({"headers": dict(self.headers), "body": body}, None)
                if front.lost:
                    front.lost -= 1
                    self.close_connection = True
                    return
                self.send_response(answer["statusCode"])
                self.send_header("Content-Length", str(len(answer["body"])))
                self.end_headers()
                self.wfile.write(answer["body"].encode())

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the base's name)
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def shop(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Workhorse, Front]]:
    """The example's app on a database of the test's, and its producer behind HTTP."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import on_lambda  # type: ignore[import-not-found]  # from examples/

    here = Workhorse(database_url=sqlite_url, lane="memory", registry=on_lambda.app.registry)
    with on_lambda.app.replaced_by(here):
        front = Front(on_lambda.produce)
        yield here, front
        front.close()
    here.close()


def stored(app: Workhorse) -> list[str]:
    return [run.id for run in app.admin.list_runs()]


def post(host: str, body: str, headers: dict[str, str]) -> tuple[int, Any]:
    connection = HTTPConnection(host, timeout=10)
    try:
        connection.request("POST", "/", body, headers)
        answer = connection.getresponse()
        return answer.status, json.load(answer)
    finally:
        connection.close()


def test_plain_http_enqueues_once_whatever_is_lost(shop: tuple[Workhorse, Front]) -> None:
    app, front = shop
    host = front.url.split("/")[2]
    body, key = '{"number": 7, "item": "saddle"}', {"Idempotency-Key": "order-7"}
    front.lost = 1
    with pytest.raises(RemoteDisconnected):
        post(host, body, key)
    status, told = post(host, body, key)

    assert status == 202
    assert stored(app) == [told["run_id"]]


@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed; install it")
def test_the_example_in_javascript(shop: tuple[Workhorse, Front]) -> None:
    app, front = shop
    front.lost = 2

    def order(item: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["node", str(EXAMPLES / "other_producer.mjs"), front.url, "7", item],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    done = order("saddle")
    assert done.returncode == 0, done.stderr
    assert (stored(app), front.requests) == ([done.stdout.strip()], 3)

    refused = order("bell")  # the same key, and another order
    assert refused.returncode != 0
    assert "belongs to another order" in refused.stderr
    assert front.requests == 4  # a refusal is final


def test_the_command_line_enqueues_for_a_program(sqlite_url: str) -> None:
    """Its options stand above what the app says in code."""

    def enqueued() -> Any:
        program = Path(sys.executable).parent / "workhorse"
        app = ["--app", "web_producer:app", "--database-url", sqlite_url]
        done = subprocess.run(
            [str(program), "--json", *app, "enqueue", "orders.fulfil", "-", "--key", "7"],
            cwd=EXAMPLES,
            input='{"number": 7, "item": "saddle"}',
            env={},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["id"]

    assert enqueued() == enqueued()
