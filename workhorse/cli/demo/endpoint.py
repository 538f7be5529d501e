"""The demo's SQS endpoint: moto's server on a free loopback port.

Usage: python -m workhorse.cli.demo.endpoint

It writes `port N` when it answers, and ends at the end of its standard input: with whoever started
it, also when that one was killed.
"""

from __future__ import annotations

import contextlib
import logging
import sys


def serve() -> None:
    """Serve until standard input ends."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # else a line a request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _host, port = server.get_host_and_port()
    print(f"port {port}", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    serve()
