"""A health check for containers: `python -m workhorse.probe [--ready] [--port N] [--host H]`.

Asks a worker or a maintenance process of this machine for `/livez`, or `/readyz`, at
WORKHORSE_HEALTH_PORT; exits with 0 if the answer is good and with 1 if it is not, or does not come
within 2 s. It needs no curl, and imports next to nothing: it is started every few seconds beside a
process that has better things to do.

Source: docs/ecs.md.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final

_LIMIT_S: Final = 2.0
_LONGEST_LINE: Final = 1_024
_USAGE: Final = "usage: python -m workhorse.probe [--ready] [--port N] [--host H]"
_ANYWHERE: Final = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - looked up


def main(
    arguments: Sequence[str], environment: Mapping[str, str], limit_s: float = _LIMIT_S
) -> int:
    """Ask; return the exit code. What is wrong is told on standard error."""
    path = "/livez"
    port = environment.get("WORKHORSE_HEALTH_PORT", "")
    host = environment.get("WORKHORSE_HEALTH_HOST", "")
    words = list(arguments)
    while words:
        word = words.pop(0)
        if word == "--ready":
            path = "/readyz"
        elif word == "--port" and words:
            port = words.pop(0)
        elif word == "--host" and words:
            host = words.pop(0)
        else:
            return _bad(_USAGE)
    if not _is_number(port, 5) or not 0 < int(port) < 65_536:
        return _bad("probe: WORKHORSE_HEALTH_PORT names no port; set it, or give --port")
    try:
        status = _ask(_ANYWHERE.get(host, host), int(port), path, limit_s)
    except OSError as error:
        why = f"no answer within {limit_s:g} s" if isinstance(error, TimeoutError) else str(error)
        return _bad(f"probe: {path} at port {port}: {why}")
    except ValueError:  # NUL in it, or parts of a name that are empty or too long
        return _bad("probe: the host is no name and no address; see --host, WORKHORSE_HEALTH_HOST")
    if status != 200:
        return _bad(f"probe: {path} at port {port} says {status or 'nothing'}")
    return 0


def _ask(host: str, port: int, path: str, limit_s: float) -> int:
    """Return the answer's status; 0 if it has none."""
    ends_at = time.monotonic() + limit_s
    with socket.create_connection((host, port), limit_s) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        said = b""
        while b"\n" not in said and len(said) < _LONGEST_LINE:
            left = ends_at - time.monotonic()
            if left <= 0:
                raise TimeoutError
            connection.settimeout(left)
            part = connection.recv(_LONGEST_LINE)
            if not part:
                break
            said += part
    words = said.split(maxsplit=2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/"):
        return 0
    return int(words[1]) if _is_number(words[1].decode("latin-1"), 3) else 0


def _is_number(text: str, digits: int) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= digits


def _bad(line: str) -> int:
    print(line, file=sys.stderr)
    return 1


if __name__ == "__main__":
    # Read here and not by the settings, whose import alone takes longer than all of this.
    sys.exit(main(sys.argv[1:], os.environ))  # noqa: TID251 - see above
