"""The ECS agent's endpoint for task protection: one bounded call over plain HTTP.

The agent answers 200 also where ECS refused: what it did is said by the body alone.

Source: docs/ecs.md; the ECS developer guide, "task scale-in protection endpoint".
"""

from __future__ import annotations

import json
import re
import socket
import time
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from typing import Any, Final
from urllib.parse import urlsplit

from workhorse.errors import ConfigurationError

PATH: Final = "/task-protection/v1/state"
LONGEST_MINUTES: Final = 2_880
"""What ECS allows, 48 hours."""

_LIMIT_MS: Final = 2_000
_LARGEST_ANSWER: Final = 65_536
_CODE: Final = re.compile(r"[A-Za-z0-9_.]{1,80}")


class AgentError(Exception):
    """The agent did not do it, or did not say so; the message is for the log."""


class EcsAgent:
    """Sets whether the task may be scaled in. Proxies and redirects are not followed.

    Args:
        uri: What ECS_AGENT_URI says.
        limit_ms: How long a call may take, all in all.

    Raises:
        ConfigurationError: That is no address of an agent.
    """

    def __init__(self, uri: str, *, limit_ms: int = _LIMIT_MS) -> None:
        try:
            parts = urlsplit(uri)
            host, port = parts.hostname, parts.port or 80
        except ValueError:
            host = None
        if host is None or parts.scheme != "http":
            raise ConfigurationError(
                "settings: ECS_AGENT_URI is not of the form http://host/path, as ECS sets it; "
                "leave it to ECS, or make it empty to do without task protection"
            )
        self._host, self._port = host, port
        self._path = parts.path.rstrip("/") + PATH
        self._limit_s = limit_ms / 1000

    def protect(self, minutes: int) -> None:
        """Have the task protected for so many minutes from now.

        Raises:
            AgentError: It is not, or that is not known.
        """
        self._put({"ProtectionEnabled": True, "ExpiresInMinutes": minutes})

    def release(self) -> None:
        """Have the task protected no more.

        Raises:
            AgentError: It still is, or that is not known.
        """
        self._put({"ProtectionEnabled": False})

    def _put(self, wanted: dict[str, Any]) -> None:
        try:
            status, body = self._answer(json.dumps(wanted))
        except TimeoutError:
            raise AgentError(f"no answer within {self._limit_s:g} s") from None
        except (OSError, HTTPException, ValueError) as error:
            raise AgentError(f"no answer: {type(error).__name__}") from None
        if not _says(body, wanted["ProtectionEnabled"]):
            raise AgentError(f"status {status}, {_why(body)}")

    def _answer(self, body: str) -> tuple[int, Any]:
        ends_at = time.monotonic() + self._limit_s
        connection = HTTPConnection(self._host, self._port)
        with closing(connection):
            plain = socket.create_connection((self._host, self._port), self._limit_s)
            connection.sock = _Bounded(plain, ends_at)
            headers = {"Content-Type": "application/json", "Connection": "close"}
            connection.request("PUT", self._path, body, headers)
            with closing(connection.getresponse()) as response:
                text = response.read(_LARGEST_ANSWER + 1)
                status = response.status
        if len(text) > _LARGEST_ANSWER:
            raise ValueError("the answer is too large")
        if status != 200:
            return status, _read(text, {})
        return status, _read(text, None)


class _Bounded(socket.socket):
    """A socket whose reads end at one time, however slowly bytes drip in."""

    def __init__(self, plain: socket.socket, ends_at: float) -> None:
        super().__init__(plain.family, plain.type, plain.proto, plain.detach())
        self._ends_at = ends_at
        self._look()

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        self._look()
        return super().recv_into(*args, **kwargs)

    def sendall(self, *args: Any, **kwargs: Any) -> None:
        self._look()
        return super().sendall(*args, **kwargs)

    def _look(self) -> None:
        left = self._ends_at - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.settimeout(left)


def _read(text: bytes, otherwise: Any) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return otherwise


def _says(body: Any, enabled: bool) -> bool:
    """Whether an answer says that the task is as it was wanted."""
    protection = body.get("protection") if isinstance(body, dict) else None
    return isinstance(protection, dict) and protection.get("ProtectionEnabled") is enabled


def _why(body: Any) -> str:
    """Return the answer's own code for what went wrong; its texts name accounts and roles."""
    if isinstance(body, dict):
        for part, name in (("failure", "Reason"), ("error", "Code")):
            told = body.get(part)
            code = told.get(name) if isinstance(told, dict) else None
            if isinstance(code, str) and _CODE.fullmatch(code):
                return code + _ADVICE.get(code, "")
    return "an answer that says nothing of protection"


_ADVICE: Final = {
    "AccessDeniedException": ": the task's role needs ecs:UpdateTaskProtection",
    "TASK_NOT_VALID": ": the task belongs to no service, or is about to stop",
}
