"""Start PostgreSQL and an emulator of AWS for a person's own use, and end them again.

    python -m tools.local up        EMULATOR=ministack|localstack|fauxqs|moto  QUEUES=default,mails
    python -m tools.local down

All state is in `.local/`: what was started, what it wrote, and `env`, the settings to go with it.
Nothing needs a container engine, nothing listens beyond loopback. Until `up` is through, a guardian
ends all that it started should it be killed; from then on `down` does, and ends nothing else: a
process counts as ours when its id and the moment of its start are those that were written down.
"""

from __future__ import annotations

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
    # What is imported takes half a second. Who presses ctrl-C in it is to see no traceback, and
    # nothing has been started yet.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import fcntl
import json
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.support.guardian import guardian
from tests.support.installations import NoServerError
from tests.support.postgres import PostgresServer
from tests.support.sqs import moto_command
from tools import emulators
from tools.emulators import REGION, ROOT, EmulatorError, free_port
from workhorse.domain.names import check_queue
from workhorse.errors import InvalidNameError

CHOICES: Final = (*emulators.NAMES, "moto")
DEFAULT: Final = "ministack"
MARK: Final = "WORKHORSE_LOCAL"
STANDARD: Final = ROOT / ".local"
# Waits for a word, so that it is nothing yet when we are killed before the guardian knows of it.
_ON_WORD: Final = 'read -r go && exec "$@" </dev/null'
_READY_WITHIN_S: Final = 120.0
_ENDS_WITHIN_S: Final = 20.0


class LocalError(Exception):
    """It cannot go on; the message is for the person who asked."""


@dataclass(frozen=True)
class Started:
    """A process of ours, which leads a group of its own."""

    what: str
    pid: int
    since: int
    """When it started, in the kernel's ticks since the machine did."""
    ends_by: int

    @property
    def runs(self) -> bool:
        """Whether it still does: the very one that was started."""
        return started_at(self.pid) == self.since


@dataclass
class State:
    """What stands."""

    mark: str
    emulator: str
    url: str = ""
    database_url: str = ""
    processes: list[Started] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)


class Local:
    """A local environment, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = folder / "state.json"
        self.env = folder / "env"

    def up(self, emulator: str, queues: str) -> None:
        """Start what is not there yet, and say how to use it."""
        began = time.monotonic()
        if emulator and emulator not in CHOICES:
            raise LocalError(f"EMULATOR={emulator}: there are {', '.join(CHOICES)}")
        for name in queues.replace(",", " ").split():
            check_queue(name)
        with self._locked():
            state = self._read()
            if state is not None and all(process.runs for process in state.processes):
                if emulator not in ("", state.emulator):
                    raise LocalError(f"it is up with {state.emulator}; `make local-down` first")
                if queues:
                    self._make_queues(state, queues)
                say(f"is up already, with {state.emulator}")
            else:
                if state is not None:
                    say("some of it has ended; the rest goes, and it is started anew")
                    self._end(state)
                state = self._start(emulator or DEFAULT, queues)
                say(f"up, in {time.monotonic() - began:.1f} s, with {state.emulator}")
            self._tell(state)

    def down(self) -> None:
        """End what was started, and remove its state."""
        if not self.folder.exists():
            say("nothing is up")
            return
        with self._locked():
            state = self._read()
            if state is not None:
                self._end(state)
            shutil.rmtree(self.folder)
        say("down: nothing keeps running" if state else "nothing was up")

    # -- starting ------------------------------------------------------------------------------

    def _start(self, emulator: str, queues: str) -> State:
        state = State(secrets.token_hex(8), emulator)
        if emulator != "moto":
            emulators.install(emulator, say)
        os.environ[MARK] = state.mark  # what is started inherits it
        server = None
        try:
            process, url = self._start_emulator(state)
            server = PostgresServer(durable=True)
            state.folders.append(str(server.folder))
            state.processes.append(_started("PostgreSQL", server.pid, signal.SIGINT))
            state.database_url = server.url()
            _await_answer(process, url, self.folder / "emulator.log")
            self._make_queues(state, queues)
            self._write_env(state)
            self._migrate(state)
            self._write(state)
        except BaseException:
            if server is not None:
                server.close()
            self._end(state)
            raise
        # Written down: from here it is `down` that ends them.
        server.hand_over()
        guardian().release_group(process.pid)
        return state

    def _start_emulator(self, state: State) -> tuple[subprocess.Popen[bytes], str]:
        folder = self.folder / "emulator"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        if state.emulator == "moto":
            launch = emulators.Launch(moto_command(), "/moto-api/", env=emulators.clean(folder))
        else:
            port = free_port()
            launch = emulators.launch(state.emulator, port, folder)
            state.url = f"http://127.0.0.1:{port}"
        with (self.folder / "emulator.log").open("wb") as log:
            process = subprocess.Popen(
                ["/bin/sh", "-c", _ON_WORD, "sh", *launch.command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=folder,
                env=launch.env | {MARK: state.mark},
                start_new_session=True,
            )
        guardian().watch_group(process.pid)
        assert process.stdin is not None  # noqa: S101  (a pipe was asked for)
        with process.stdin as word:
            word.write(b"go\n")
        state.processes.append(_started(state.emulator, process.pid, signal.SIGTERM))
        if state.emulator == "moto":
            state.url = f"http://127.0.0.1:{_port_of_moto(process, self.folder / 'emulator.log')}"
        return process, state.url + launch.health

    def _make_queues(self, state: State, queues: str) -> None:
        made = _run(
            "the queues",
            ROOT / "localstack" / "init" / "queues.py",
            QUEUES=queues,
            **(_settings(state)),
        )
        for line in made.splitlines():
            say(line)

    def _migrate(self, state: State) -> None:
        workhorse = Path(sys.executable).parent / "workhorse"
        _run("workhorse migrate", workhorse, "migrate", **_settings(state))

    def _write_env(self, state: State) -> None:
        lines = ["# The settings of this local environment; read it with:  . .local/env"]
        lines += [f"unset {' '.join(_MISLEADING)}"]
        lines += [f"export {name}={shlex.quote(text)}" for name, text in _settings(state).items()]
        # A virtual environment of the person's own that has Workhorse stays the one that is used.
        ours = f'export PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"'
        own = '"$(command -v workhorse)" = "${VIRTUAL_ENV:-/dev/null}/bin/workhorse"'
        lines += [f"[ {own} ] || {ours}"]
        self.env.touch(mode=0o600)
        self.env.write_text("\n".join(lines) + "\n")

    def _tell(self, state: State) -> None:
        here = self.env
        with suppress(ValueError):
            here = self.env.relative_to(Path.cwd())
        print(f"  PostgreSQL  {state.database_url}")
        elsewhere = "" if self.folder == STANDARD else f" LOCAL={shlex.quote(str(self.folder))}"
        print(f"  SQS         {state.url}   (log: {here.parent / 'emulator.log'})")
        print(f"  use it      . {shlex.quote(str(here))}")
        print(f"  end it      make local-down{elsewhere}")

    # -- ending --------------------------------------------------------------------------------

    def _end(self, state: State) -> None:
        for process in reversed(state.processes):
            _end(process, state.mark)
            guardian().release_group(process.pid)
        for folder in state.folders:
            shutil.rmtree(folder, ignore_errors=True)
            guardian().release_folder(Path(folder))
        self._file.unlink(missing_ok=True)
        self.env.unlink(missing_ok=True)

    # -- state ---------------------------------------------------------------------------------

    def _read(self) -> State | None:
        try:
            found: dict[str, Any] = json.loads(self._file.read_text())
            processes = [Started(**process) for process in found.pop("processes")]
            return State(**found, processes=processes)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError):
            raise LocalError(
                f"{self._file} is not what `make local-up` writes, so what it started is not known "
                f"here; look for processes with {MARK} in their environment, end them, and remove "
                f"{self.folder}"
            ) from None

    def _write(self, state: State) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(asdict(state), indent=2) + "\n")
        new.replace(self._file)  # whole, or not at all

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Take turns; the lock lies in the folder, which may go while one waits for it."""
        while True:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                with suppress(FileNotFoundError):
                    if os.fstat(lock).st_ino == (self.folder / "lock").stat().st_ino:
                        yield
                        return
            finally:
                os.close(lock)


# What would lead the SDK elsewhere than AWS_ENDPOINT_URL does.
_MISLEADING: Final = (
    "AWS_PROFILE",
    "AWS_SESSION_TOKEN",
    "AWS_ENDPOINT_URL_SQS",
    "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
    "WORKHORSE_AWS_ENDPOINT_URL",
    "WORKHORSE_AWS_REGION",
    "WORKHORSE_SQS_QUEUE_PREFIX",
    "WORKHORSE_SQS_QUEUE_URLS",
    "WORKHORSE_SQS_FIFO",
    "WORKHORSE_DATABASE_SECRET",
    "WORKHORSE_SCHEMA",
    "WORKHORSE_ENVIRONMENT",
)


def _settings(state: State) -> dict[str, str]:
    return {
        "WORKHORSE_DATABASE_URL": state.database_url,
        "WORKHORSE_LANE": "sqs",
        "AWS_ENDPOINT_URL": state.url,
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",  # not a secret: no emulator checks it
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def _run(what: str, program: Path, *arguments: str, **settings: str) -> str:
    kept = {name: text for name, text in os.environ.items() if name not in _MISLEADING}
    kept = {name: text for name, text in kept.items() if not name.startswith("WORKHORSE_")}
    command = [str(program), *arguments]
    if program.suffix == ".py":
        command = [sys.executable, *command]
    ended = subprocess.run(
        command, capture_output=True, text=True, env=kept | settings, check=False, cwd=ROOT
    )
    if ended.returncode:
        raise LocalError(f"{what} failed:\n{ended.stdout[-1000:]}{ended.stderr[-3000:]}")
    return ended.stdout


def _started(what: str, pid: int, ends_by: signal.Signals) -> Started:
    since = started_at(pid)
    if since is None:
        raise LocalError(f"{what} has ended at once")
    return Started(what, pid, since, int(ends_by))


def started_at(pid: int) -> int | None:
    """Return when a process started; None where it has ended, or nobody asked for its end yet."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if words[0] in ("Z", "X") else int(words[19])


def _end(process: Started, mark: str) -> None:
    """End a process, and what it left behind in its group; what is not ours is left alone."""
    if process.runs:
        _signal(process.pid, process.ends_by)
    deadline = time.monotonic() + _ENDS_WITHIN_S
    while process.runs:
        if time.monotonic() > deadline:
            _signal(process.pid, signal.SIGKILL)
        time.sleep(0.02)
    for pid in marked(mark):
        with suppress(ProcessLookupError):
            if os.getpgid(pid) == process.pid:
                _signal(pid, signal.SIGKILL)


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def marked(mark: str) -> list[int]:
    """Return the processes that have a local environment's mark in theirs."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is somebody else's
            if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def _await_answer(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + _READY_WITHIN_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with suppress(OSError):
            opener.open(url, timeout=5).close()  # other answers than 200 are errors
            return
        time.sleep(0.05)
    raise LocalError(f"the emulator does not answer; it wrote:\n{_tail(log)}")


def _port_of_moto(process: subprocess.Popen[bytes], log: Path) -> int:
    deadline = time.monotonic() + _READY_WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        found = re.search(r"^port (\d+)$", log.read_text(errors="replace"), re.MULTILINE)
        if found:
            return int(found[1])
        time.sleep(0.05)
    raise LocalError(f"moto does not answer; it wrote:\n{_tail(log)}")


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-3000:]


def say(line: str) -> None:
    """Tell the person."""
    print(f"local: {line}", flush=True)


def main(arguments: list[str]) -> int:
    """Do what was asked; return the exit code."""
    if arguments not in (["up"], ["down"]):
        print("usage: python -m tools.local up | down", file=sys.stderr)
        return 2
    local = Local(Path(os.environ.get("LOCAL") or STANDARD).absolute())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if arguments == ["up"]:
            local.up(os.environ.get("EMULATOR", ""), os.environ.get("QUEUES", ""))
        else:
            local.down()
    except (
        LocalError,
        InvalidNameError,
        EmulatorError,
        NoServerError,
        OSError,
        RuntimeError,
    ) as error:
        print(f"local: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("local: stopped; what was started has ended", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
