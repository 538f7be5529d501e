"""Workloads in processes of their own: imports and memory of one do not touch the next."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.environments import ROOT, UnavailableError
from tests.support.guardian import guardian

Answer = dict[str, Any]


class Child:
    """A process that prints its answer, a line of JSON, last.

    Args:
        python: Its interpreter.
        module: What it runs, of this repository.
        arguments: What it is told.
        environment: Variables added to this process's.
    """

    def __init__(
        self,
        python: str | Path,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._what = f"{module} {' '.join(arguments)}"
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - `close` closes it
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [str(python), "-m", module, *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._errors,
            start_new_session=True,
        )
        guardian().watch_group(self._process.pid)

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def lines(self) -> list[str]:
        """Return the lines that it has printed so far."""
        return self._read(self._output)

    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def answer(self, *, within_s: float) -> Answer:
        """Wait for its end; return what it answered.

        Raises:
            UnavailableError: It failed, or took too long; the message has its last words.
        """
        try:
            code = self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise UnavailableError(
                f"did not end within {within_s:g} s: {self._last_words()}"
            ) from None
        for line in reversed(self.lines()):
            if line.startswith("{"):
                with contextlib.suppress(ValueError):
                    answer: Answer = json.loads(line)
                    if code == 0:
                        return answer
        raise UnavailableError(f"ended with code {code}: {self._last_words()}")

    def close(self) -> None:
        """End it, and what it started, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)
        guardian().release_group(self._process.pid)
        self._output.close()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _last_words(self) -> str:
        lines = [line.strip() for line in self._read(self._errors) if line.strip()]
        return f"{self._what}: {' | '.join(lines[-3:]) or 'no output'}"[:600]

    @staticmethod
    def _read(file: Any) -> list[str]:
        size = os.fstat(file.fileno()).st_size
        return os.pread(file.fileno(), size, 0).decode(errors="replace").splitlines()


def run(
    python: str | Path,
    module: str,
    arguments: Sequence[str],
    *,
    within_s: float = 120.0,
    environment: Mapping[str, str] | None = None,
) -> Answer:
    """Run a module to its end; return its answer.

    Raises:
        UnavailableError: It failed, or took too long.
    """
    with Child(python, module, arguments, environment) as child:
        return child.answer(within_s=within_s)
