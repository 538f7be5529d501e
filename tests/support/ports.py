"""Ports for servers that have to be told one."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return a port of the loopback address that nobody listens at just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
