"""How a pooler is noticed that lends its sessions for one transaction at a time.

Nothing that is said of a session holds there: what the next statement gets is another's. PgBouncer
and RDS Proxy refuse what we say of a session at its start, or drop it; and with either, and with
others of their kind, the process that answers is not the one that the connection was told of. Each
new connection is asked for both, and only what goes straight to a server is taken for a session.

Source: docs/poolers.md; docs/adr/0028-poolers-are-found.md
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import psycopg

LENT: Final = "workhorse_lent"
"""In a pooled connection's `info`: its sessions are a pooler's."""
_SIGN: Final = "workhorse.session"
"""A setting of our own, said at a session's start: who finds it has the session that he began."""
SIGNED: Final = f"-c {_SIGN}=on"
_ASKED: Final = f"select pg_backend_pid(), current_setting('{_SIGN}', true)"
_REFUSALS: Final = re.compile("startup parameter|command-line option", re.IGNORECASE)
"""Of PgBouncer and its kin; of RDS Proxy."""


class Opener:
    """Opens an engine's connections: with settings for the session, where these are taken.

    Args:
        settings: The settings, as a server's command line; empty where there are none.
        decisive: More of them, which no option of a URL may change.
    """

    def __init__(self, settings: str, decisive: str = "") -> None:
        self._settings = settings
        self._decisive = decisive
        self._refused = False

    def open(self, connect: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        """Make a connection.

        Args:
            connect: The driver's.
            arguments: Its arguments. Options among them are the URL's own: they come behind the
                settings, and stand.

        Raises:
            psycopg.OperationalError: It failed.
        """
        if not self._settings or self._refused:
            return connect(**arguments)
        own = arguments.get("options")
        options = " ".join(filter(None, (self._settings, own, self._decisive)))
        try:
            return connect(**{**arguments, "options": options})
        except psycopg.OperationalError as error:
            if own or not _REFUSALS.search(str(error)):
                raise
        connection = connect(**arguments)
        self._refused = True  # one that failed may have been anybody's
        return connection


def is_lent(raw: psycopg.Connection[Any], *, signed: bool) -> bool:
    """Ask a new connection whether its sessions are a pooler's.

    Args:
        raw: The connection, with nothing under way.
        signed: Whether it was to begin its session with `SIGNED`.

    Raises:
        psycopg.Error: It does not answer; it is closed then.
    """
    before = raw.autocommit
    try:
        raw.autocommit = True  # one round trip, and no transaction
        row = raw.execute(_ASKED).fetchone()
        raw.autocommit = before
    except BaseException:
        raw.close()
        raise
    pid, sign = row if row is not None else (None, None)
    return pid != raw.info.backend_pid or (signed and sign != "on")
