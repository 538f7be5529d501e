"""A throw-away PostgreSQL server: as root or not, gone with the process that started it.

`python -m tests.support.postgres` says which installation would be used.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.databases import Databases
from tests.support.folders import disk_root, quick_root
from tests.support.guardian import guardian
from tests.support.installations import Installation, choose

# A commit stays synchronous though nothing is forced to the disk: a server that is killed keeps
# what it has confirmed, only a machine that loses its power would not.
_QUICK = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "on"}
_DURABLE = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}
_COMMON = {
    "shared_buffers": "128MB",
    "max_connections": "200",
    "max_wal_size": "2GB",
    "logging_collector": "off",
    "dynamic_shared_memory_type": "mmap",  # files in the data folder, so they go with it
    "log_line_prefix": "%m [%p] ",
}
_READY_WITHIN_S = 60.0


class PostgresServer:
    """A server with a data folder of its own, reached by a socket in it, or by TCP too.

    Args:
        installation: Whose programs to run; by default what `choose` finds.
        durable: Whether commits reach the disk, as in production; for measurements.
        tcp: Whether it listens on a free port of 127.0.0.1 too, and `url` names that.
        settings: More settings of the server.
    """

    def __init__(
        self,
        installation: Installation | None = None,
        *,
        durable: bool = False,
        tcp: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.installation = installation or choose()
        self._settings = {**_COMMON, **(_DURABLE if durable else _QUICK), **(settings or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False
        self.port = _free_port() if tcp else 5432
        self._tcp = tcp
        self._user = unprivileged_user()
        root = disk_root() if durable else quick_root()
        self.folder = Path(tempfile.mkdtemp(prefix="wh-pg-", dir=root))
        guardian().watch_folder(self.folder)
        atexit.register(self.close)
        try:
            if self._user:
                os.chown(self.folder, self._user["user"], self._user["group"])
            self._bin = self._reachable_bin()
            self._initialise()
            self.start()
        except BaseException:
            self.close()
            raise
        self.databases = Databases(self.url())

    @property
    def version(self) -> str:
        """The server's version, e.g. `15.18`."""
        return self.installation.version

    @property
    def data(self) -> Path:
        """The data folder."""
        return self.folder / "data"

    def url(self, database: str = "postgres") -> str:
        """Return the URL of a database; libpq and SQLAlchemy both read it."""
        if self._tcp:
            return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"
        return f"postgresql://postgres@/{database}?host={self.folder}"

    def log(self) -> str:
        """Return what the server has logged."""
        return (self.folder / "log").read_text(errors="replace")

    def start(self) -> None:
        """Start it, after a stop or a kill too; returns when it takes connections."""
        deadline = time.monotonic() + _READY_WITHIN_S
        while not self._start_once(deadline):
            # Processes of a server that was killed hold its shared memory for a moment longer.
            time.sleep(0.05)

    def stop(self, *, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it; its folder stays.

        Args:
            how: SIGINT ends sessions ("fast"), SIGTERM waits for them, SIGQUIT leaves at once and
                recovers at the next start.
        """
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGQUIT)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:  # seen under a flood of connections
                self.kill()
                return
        self._ended()

    def kill(self) -> None:
        """End it and its sessions at once, as a machine that goes away would."""
        if self._process is None:
            return
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        sessions = children.read_text().split() if children.exists() else []
        self._process.kill()
        self._process.wait(20)
        for session in sessions:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(session), signal.SIGKILL)
        self._killed = True
        self._ended()

    def restart(self) -> None:
        """Stop it and start it again."""
        self.stop()
        self.start()

    def hand_over(self) -> int:
        """Let it outlive this process; return its process's id, for whoever ends it.

        It ends with SIGINT, and its folder is then the other's to remove.
        """
        atexit.unregister(self.close)
        self.databases.disconnect()
        guardian().release_group(self.pid)
        guardian().release_folder(self.folder)
        return self.pid

    @property
    def pid(self) -> int:
        """The server's process, which leads a group of its own.

        Raises:
            RuntimeError: It does not run.
        """
        if self._process is None:
            raise RuntimeError("the server does not run")
        return self._process.pid

    def close(self) -> None:
        """Stop it and remove its folder."""
        if hasattr(self, "databases"):
            self.databases.disconnect()
        if self._killed:
            # A server that was killed leaves shared memory behind; the next one takes it away.
            with contextlib.suppress(RuntimeError):
                self.start()
        self.stop()
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

    def _start_once(self, deadline: float) -> bool:
        addresses = "127.0.0.1" if self._tcp else ""
        settings = {
            **self._settings,
            "listen_addresses": addresses,
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
        }
        options = [word for item in settings.items() for word in ("-c", "=".join(item))]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._bin / "postgres", "-D", self.data, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=self._environment(),
                start_new_session=True,
                **self._user,
            )
        guardian().watch_group(self._process.pid, signal.SIGQUIT)
        while self._process.poll() is None:
            if self._says_ready(self._process.pid):
                self._killed = False
                return True
            if time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not become ready:\n{self.log()[-2000:]}")
            time.sleep(0.01)
        self._ended()
        if time.monotonic() > deadline or "still in use" not in self.log()[-2000:]:
            raise RuntimeError(f"PostgreSQL did not start:\n{self.log()[-2000:]}")
        return False

    def _says_ready(self, pid: int) -> bool:
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        # The first line tells this server's file from the one that a killed server left.
        return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"

    def _ended(self) -> None:
        if self._process is not None:
            guardian().release_group(self._process.pid)
        self._process = None

    def _initialise(self) -> None:
        options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"]
        made = subprocess.run(
            [self._bin / "initdb", "-D", self.data, *options, "--no-instructions"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self._environment(),
            check=False,
            **self._user,
        )
        if made.returncode:
            raise RuntimeError(f"initdb failed:\n{made.stdout[-500:]}{made.stderr[-1500:]}")

    def _reachable_bin(self) -> Path:
        """Return the programs' folder, or a copy where the server's user cannot read it."""
        folder = self.installation.bin
        with contextlib.suppress(OSError):
            asked = subprocess.run(
                [folder / "postgres", "--version"],
                capture_output=True,
                cwd="/",
                check=False,
                **self._user,
            )
            if asked.returncode == 0:
                return folder
        # The programs find their libraries by a path relative to the wheel's folder, and some lie
        # in a second folder beside it.
        package = folder.parent.parent
        for source in (package, package.with_name(f"{package.name}.libs")):
            if source.is_dir():
                shutil.copytree(source, self.folder / source.name, symlinks=True)
        return self.folder / package.name / folder.relative_to(package)

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        return {**kept, "HOME": str(self.folder), "LC_ALL": "C", "TZ": "UTC"}


def unprivileged_user() -> dict[str, Any]:
    """Return Popen's arguments that drop root, under which PostgreSQL refuses to run."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    return {"user": 65534, "group": 65534, "extra_groups": []}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    print(choose().source)
