"""User and password of a database that are kept in a secret, and change there.

Read when the first connection is made, kept, and read again when the database lets nobody in with
them: so a rotation needs no restart. (Whether a refusal was for the password is not asked: servers
and proxies say it in many ways, and one more look does no harm.)

Source: docs/security.md; docs/adr/0026-a-password-in-a-secret.md
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg

REREAD_S: Final = 5.0
"""A database that is down is asked again and again; the secret is looked up at most so often."""


@dataclass(frozen=True, slots=True)
class Login:
    """What a connection is made with."""

    user: str
    password: str = field(repr=False)


class Credentials:
    """The login that a secret holds; safe in threads.

    Args:
        read: Returns the secret's text: a JSON object with `username` and `password`.
        name: What errors call it.
        clock: Monotonic seconds.
    """

    def __init__(
        self, read: Callable[[], str], name: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read = read
        self._name = name
        self._clock = clock
        self._lock = threading.Lock()
        self._login: Login | None = None
        self._read_at = 0.0

    def connect(self, connect: Callable[[Login], Any]) -> Any:
        """Make a connection; where that fails, once more if the secret has changed meanwhile.

        Raises:
            psycopg.OperationalError: It failed, or the secret cannot be read.
        """
        login = self._current()
        try:
            return connect(login)
        except psycopg.OperationalError:
            renewed = self._renewed(login)
            if renewed == login:
                raise
        return connect(renewed)

    def after_fork(self) -> None:
        """Forget a lock that another thread of the parent may hold."""
        self._lock = threading.Lock()

    def _current(self) -> Login:
        with self._lock:
            return self._login or self._look_up()

    def _renewed(self, refused: Login) -> Login:
        with self._lock:
            login = self._login or refused
            if login == refused and self._clock() - self._read_at >= REREAD_S:
                login = self._look_up()
            return login

    def _look_up(self) -> Login:
        # A failure of this kind is what callers know of a database that does not answer: they
        # wait, and try again.
        try:
            text = self._read()
        except Exception as error:  # noqa: BLE001 - whatever reads secrets may raise anything
            raise psycopg.OperationalError(
                f"{self._name} cannot be read: {_said(error)}; it is tried again"
            ) from None
        try:
            found = json.loads(text)
            user, password = found["username"], found["password"]
            if not (isinstance(user, str) and isinstance(password, str)):
                raise TypeError
            if "\0" in (user + password).encode().decode():  # lone surrogates are no text either
                raise ValueError
        except (ValueError, TypeError, LookupError, RecursionError):
            raise psycopg.OperationalError(
                f"{self._name} is no JSON object with the texts `username` and `password`; put "
                "them there"
            ) from None
        self._login, self._read_at = Login(user, password), self._clock()
        return self._login


def _said(error: Exception) -> str:
    """Return what went wrong in one line; no reader puts the secret into its errors."""
    try:
        # The text of an error around other objects is theirs to make, and may take for ever.
        told = all(isinstance(each, str | int | float) for each in error.args)
        first = next(iter(str(error).splitlines()), "")[:300] if told else ""
    except Exception:  # noqa: BLE001 - an error of anybody's, which may not be shown
        first = ""
    plain = "".join(char if char.isprintable() else "?" for char in first)
    return f"{type(error).__name__}: {plain}"
