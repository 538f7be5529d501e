"""The demo's processes and folder: started in groups of their own, and never left behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Final, Self

from workhorse.cli.demo import guardian

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_GRACE_S: Final = 6.0


class StoppedError(Exception):
    """A signal asked the demo to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class DemoFailedError(Exception):
    """Something did not happen as it should; the message says what."""


class Member:
    """A started process; its output is kept in the demo's folder."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], out: Path, log: Path) -> None:
        self.name = name
        self.process = process
        self.state = "working"
        self._out = out
        self._log = log

    @property
    def pid(self) -> int:
        """The process's id."""
        return self.process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def output(self) -> str:
        """Return what it has written to standard output so far."""
        return self._out.read_text(errors="replace")

    def last_words(self, lines: int = 30) -> list[str]:
        """Return the last lines of its log."""
        return self._log.read_text(errors="replace").splitlines()[-lines:]


class Fleet:
    """Starts processes in a folder of its own; leaving it ends them and removes the folder.

    Signals are noted, not raised, so that none can fall between the start of a process and its
    being known here: `pause` raises them. A guardian process does the same when this one is killed.

    Args:
        environment: The processes' environment.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.members: list[Member] = []
        self.environment = dict(environment)
        self._signal: int | None = None
        self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        self.folder = Path(tempfile.mkdtemp(prefix="workhorse-demo-"))
        self._guardian: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._guardian = subprocess.Popen(  # noqa: S603 - our own file
                [sys.executable, "-I", "-S", guardian.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._entrust(f"folder {self.folder}")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self, name: str, *arguments: str, held: bool = False) -> Member:
        """Start Python with these arguments.

        Args:
            name: How the demo calls it.
            arguments: For the interpreter, e.g. `-m`, `workhorse.cli`, `worker`.
            held: Whether it is to end when this process does: its standard input ends then.
        """
        stem = f"{len(self.members):02d}-{name.replace(' ', '-')}"
        out, log = self.folder / f"{stem}.out", self.folder / f"{stem}.log"
        with out.open("wb") as stdout, log.open("wb") as stderr:
            process = subprocess.Popen(  # noqa: S603 - Python, with what the demo says
                [sys.executable, *arguments],
                stdin=subprocess.PIPE if held else subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                cwd=self.folder,
                env=self.environment,
                start_new_session=True,  # a Ctrl-C is for the demo, which ends them in order
            )
        member = Member(name, process, out, log)
        self.members.append(member)
        self._entrust(f"group {member.pid}")
        return member

    def pause(self, seconds: float) -> None:
        """Wait a moment.

        Raises:
            StoppedError: A signal came.
        """
        deadline = time.monotonic() + seconds
        while self._signal is None and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))
        if self._signal is not None:
            raise StoppedError(self._signal)

    def kill(self, member: Member) -> None:
        """End a process at once, as a machine that goes away would."""
        os.killpg(member.pid, signal.SIGKILL)
        self._reaped(member)
        member.state = "killed"

    def stop(self, members: Sequence[Member], within: float = _GRACE_S) -> None:
        """Ask processes to end and wait for them; those that do not are killed."""
        for member in members:
            if member.running:
                _signal_group(member.pid, signal.SIGTERM)
        deadline = time.monotonic() + within
        for member in members:
            with contextlib.suppress(subprocess.TimeoutExpired):
                member.process.wait(max(0.0, deadline - time.monotonic()))
            if member.running:
                _signal_group(member.pid, signal.SIGKILL)
            self._reaped(member)
            if member.state == "working":
                member.state = "stopped"

    def close(self) -> None:
        """End what is left, remove the folder, and let signals mean again what they meant."""
        self.stop([member for member in self.members if member.running])
        for member in self.members:
            if member.process.stdin is not None:
                member.process.stdin.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._guardian is not None:
            pipe: IO[bytes] | None = self._guardian.stdin
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
            self._guardian.wait(10)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _reaped(self, member: Member) -> None:
        member.process.wait()
        self._entrust(f"ended {member.pid}")

    def _entrust(self, line: str) -> None:
        if self._guardian is not None and self._guardian.stdin is not None:
            with contextlib.suppress(OSError):
                self._guardian.stdin.write(f"{line}\n".encode())
                self._guardian.stdin.flush()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._signal = number


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)
