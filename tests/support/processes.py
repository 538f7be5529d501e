"""Real processes for tests: output kept, ended with the test whatever happens."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.eventually import eventually
from tests.support.guardian import guardian


class RunningProcess:
    """A started command, in a process group of its own.

    Args:
        command: What to run; the first word is a program, not a shell's line.
        env: Added to this process's environment; a value of None takes a variable out.
        cwd: Where it runs.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
    ) -> None:
        environment = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", **os.environ}
        for name, value in (env or {}).items():
            if value is None:
                environment.pop(name, None)
            else:
                environment[name] = value
        self.command = [str(word) for word in command]
        # A file, not a pipe: nobody has to read it while the process runs, and it cannot fill up.
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=cwd,
            start_new_session=True,
        )
        guardian().watch_group(self.pid)

    @property
    def pid(self) -> int:
        """The process's id, which is its group's too."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative after a signal; None while it runs."""
        return self._process.poll()

    def output(self) -> str:
        """Return what it has written so far, both streams together."""
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), size, 0).decode(errors="replace")

    def wait_for(self, pattern: str, *, within: float = 30.0) -> re.Match[str]:
        """Wait until its output holds a match of a regular expression."""

        def seen() -> re.Match[str] | None:
            ended = self.exit_code is not None
            found = re.search(pattern, self.output(), re.MULTILINE)
            if found is None and ended:
                raise RuntimeError(f"{self} has ended without {pattern!r}:\n{self.output()}")
            return found

        try:
            found = eventually(seen, within=within, what=f"{self} writes {pattern!r}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output()}") from None
        assert found is not None
        return found

    def wait(self, *, within: float = 30.0) -> int:
        """Wait until it has ended; return the exit code, negative after a signal."""
        try:
            return self._process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{self} has not ended within {within:g} s:\n{self.output()}"
            ) from None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process alone."""
        self._process.send_signal(number)

    def send_group(self, number: signal.Signals) -> None:
        """Send a signal to the process and all that it started in its group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def kill(self) -> None:
        """End it and its group at once, as a machine that goes away would."""
        self.send_group(signal.SIGKILL)
        self._process.wait(10)

    def close(self) -> None:
        """Kill what is left and let go of the output."""
        self.kill()
        guardian().release_group(self.pid)
        self._output.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"process {self.pid} ({' '.join(self.command)[:200]})"


def is_running(pid: int) -> bool:
    """Whether a process has not ended; one that ended and was not asked for has."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")


class Processes:
    """Starts processes and ends those that are left; what they wrote is shown if the test fails."""

    def __init__(self) -> None:
        self.started: list[RunningProcess] = []

    def start(
        self,
        *command: str | Path,
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
    ) -> RunningProcess:
        """Start a command."""
        process = RunningProcess(command, env=env, cwd=cwd)
        self.started.append(process)
        return process

    def python(
        self,
        *arguments: str | Path,
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
    ) -> RunningProcess:
        """Start this environment's Python, e.g. `python("-m", "workhorse", ...)`."""
        return self.start(sys.executable, *arguments, env=env, cwd=cwd)

    def close(self) -> None:
        """End all of them."""
        for process in self.started:
            output = process.output()
            process.close()
            print(f"--- {process}, exit code {process.exit_code}\n{output}")
        self.started.clear()
