"""A throw-away PgBouncer on loopback, between a test and its PostgreSQL; gone with its process.

    with PgBouncer(server.url()) as pooler:
        Store.open(pooler.url("database"))

It is not one of the development tools: `missing()` says how to get it where it is not there.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psycopg
import pytest
from sqlalchemy import make_url

from tests.support.folders import quick_root
from tests.support.guardian import guardian
from tests.support.ports import free_port
from tests.support.postgres import unprivileged_user
from tools.fault_tools import INSTALL, Pgbouncer, pgbouncer

MISSING: Final = f"PgBouncer is not here; get it: {INSTALL.format('pgbouncer')}"
_READY_WITHIN_S: Final = 20.0
_CONSOLE: Final = "pgbouncer"


def needed() -> pytest.MarkDecorator:
    """Return the mark of tests that are left out where there is no PgBouncer."""
    return pytest.mark.skipif(pgbouncer() is None, reason=MISSING)


class PgBouncer:
    """A pooler before all databases of a server.

    Args:
        url: A database of the server; only its place and user count.
        mode: When a session is lent: for a `transaction`, a `session` or a `statement`.
        sessions: The most sessions of the server for each database.
        ignores_options: Whether it takes a session's settings at the start and forgets them; the
            default is to refuse such a connection.
        settings: More of its settings.
    """

    def __init__(
        self,
        url: str,
        *,
        mode: str = "transaction",
        sessions: int = 5,
        ignores_options: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        installed = pgbouncer()
        if installed is None:
            raise RuntimeError(MISSING)
        self._url = make_url(url)
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.sessions = sessions
        self.ignores_options = ignores_options
        ignored = ["extra_float_digits"] + ["options"] * ignores_options
        self._settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "auth_type": "any",  # the server behind asks nothing either
            "admin_users": "postgres",
            "pool_mode": mode,
            "default_pool_size": str(sessions),
            "max_client_conn": "500",
            # The next transaction of a client gets another session, as far as there are some: what
            # relies on one session fails at once, and not once in a while.
            "server_round_robin": "1",
            "server_login_retry": "0.2",
            "ignore_startup_parameters": ",".join(ignored),
            "log_connections": "0",
            "log_disconnections": "0",
            **(settings or {}),
        }
        self._user = unprivileged_user()
        self.folder = Path(tempfile.mkdtemp(prefix="wh-pool-", dir=quick_root()))
        guardian().watch_folder(self.folder)
        atexit.register(self.close)
        try:
            self._lay_out(installed)
            self.start()
        except BaseException:
            self.close()
            raise

    def url(self, database: str | None = None) -> str:
        """Return the URL of a database through it; by default of the one that was given."""
        through = self._url.set(host="127.0.0.1", port=self.port, query={})
        if database is not None:
            through = through.set(database=database)
        return through.render_as_string(hide_password=False)

    def log(self) -> str:
        """Return what it has logged."""
        return (self.folder / "log").read_text(errors="replace")

    def show(self, what: str) -> list[dict[str, Any]]:
        """Return what its console shows: `pools`, `clients`, `servers`, `stats`."""
        with self._console() as console:
            found = console.execute(f"show {what}")
            names = [column.name for column in found.description or ()]
            return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def start(self) -> None:
        """Start it; returns when it takes connections."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.folder / "pgbouncer", self.folder / "pgbouncer.ini"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={"LD_LIBRARY_PATH": str(self.folder), "HOME": str(self.folder), "LC_ALL": "C"},
                start_new_session=True,
                **self._user,
            )
        guardian().watch_group(self._process.pid)
        deadline = time.monotonic() + _READY_WITHIN_S
        while True:
            try:
                self._console().close()
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"PgBouncer did not start:\n{self.log()[-2000:]}") from None
                time.sleep(0.01)
            else:
                return

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it at once, and all connections through it."""
        if self._process is None:
            return
        self._process.send_signal(how)
        self._process.wait(20)
        guardian().release_group(self._process.pid)
        self._process = None

    def restart(self) -> None:
        """End it and start it again."""
        self.stop()
        self.start()

    def close(self) -> None:
        """End it and remove its folder."""
        self.stop(signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)
        guardian().release_folder(self.folder)
        atexit.unregister(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _console(self) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(
            self.url(_CONSOLE),
            autocommit=True,
            connect_timeout=5,
            cursor_factory=psycopg.ClientCursor,  # it knows the simple protocol alone
        )

    def _lay_out(self, installed: Pgbouncer) -> None:
        # It refuses to be root, and the other user may not be able to read where it was fetched.
        for file in (installed.program, *installed.libraries):
            shutil.copy(file, self.folder)
        place = self._url.query.get("host") or self._url.host or "127.0.0.1"
        lines = [
            "[databases]",
            f"* = host={place} port={self._url.port or 5432} user={self._url.username}",
            "[pgbouncer]",
            *(f"{name} = {value}" for name, value in self._settings.items()),
        ]
        (self.folder / "pgbouncer.ini").write_text("\n".join(lines) + "\n")
        (self.folder / "log").touch()
        if self._user:
            for path in (self.folder, *self.folder.iterdir()):
                os.chown(path, self._user["user"], self._user["group"])
