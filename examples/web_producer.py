"""A web application that enqueues: a WSGI one, with the standard library alone.

`application` is what gunicorn, uWSGI or mod_wsgi would serve (`gunicorn web_producer:application`).
Opening nothing at import, it may be loaded before the server forks its workers (`--preload`). Run
as a program it serves itself, orders twice over HTTP, and then as a server does that forks.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from workhorse import Workhorse
from workhorse.errors import IdempotencyConflictError, StoreUnavailableError

folder = Path(tempfile.mkdtemp(prefix="workhorse-example-"))
# Many requests at once share a commit, and a send of their wakeups.
app = Workhorse(database_url=f"sqlite:///{folder / 'shop.sqlite3'}", share_commits=True)


@dataclass(frozen=True)
class Order:
    """What a customer has ordered."""

    number: int
    item: str


@app.task("orders.fulfil")
def fulfil(order: Order) -> str:
    """See an order through; it runs in a worker, not here."""
    return f"{order.item} is on its way"


def application(environ: dict[str, Any], start: Callable[..., object]) -> Iterable[bytes]:
    """Enqueue an order, and answer 202 with its run's id."""
    try:
        order = Order(**json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"] or 0))))
        # Who sends the same request again, since the answer was lost, gets the same run.
        run = fulfil.enqueue(order, key=environ.get("HTTP_IDEMPOTENCY_KEY"))
    except IdempotencyConflictError:
        return _answer(start, "409 Conflict", {"error": "that key belongs to another order"})
    except StoreUnavailableError:
        return _answer(start, "503 Service Unavailable", {"error": "send it again"})
    except (ValueError, TypeError):
        return _answer(start, "400 Bad Request", {"error": 'send {"number": 1, "item": "saddle"}'})
    return _answer(start, "202 Accepted", {"run_id": run.id})


def _answer(start: Callable[..., object], status: str, body: dict[str, str]) -> Iterable[bytes]:
    start(status, [("Content-Type", "application/json")])
    return [json.dumps(body).encode()]


# -- here, without a server of its own -------------------------------------------------------------


class Quiet(WSGIRequestHandler):
    """Logs no requests."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the base's name)
        """Say nothing."""


def order(port: int, number: int, key: str) -> tuple[int, str]:
    """Order over HTTP, as any client would."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/orders",
        json.dumps({"number": number, "item": "saddle"}).encode(),
        {"Idempotency-Key": key},
    )
    with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310  (as above)
        return response.status, json.load(response)["run_id"]


def main() -> None:
    """Order over HTTP, fork as a server does, and see how many runs there are."""
    app.migrate()
    with make_server("127.0.0.1", 0, application, handler_class=Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        first, again = order(server.server_port, 1, "a"), order(server.server_port, 1, "a")
        print("ordered:", first[0], "sent again, the same run:", first == again, flush=True)
        server.shutdown()
    children = []
    for number in (2, 3):
        child = os.fork()  # what is open stays the parent's; the child opens its own
        if child == 0:
            run = fulfil.enqueue(Order(number, "bell"))
            print("a forked process ordered:", bool(run.id), flush=True)
            app.close()
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    print("runs:", app.worker().drain())
    app.close()


if __name__ == "__main__":
    main()
