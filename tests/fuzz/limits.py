"""A bound of time for each input: one that hangs is a finding, also where C code holds the GIL."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import mmap
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

LIMIT_S = 120.0
"""What takes so long hangs: the slowest inputs take a second, or twenty on a very busy machine."""
_DEAF_S: Final = 3 * LIMIT_S


class HungError(BaseException):
    """An input was not answered in time. Nothing that catches errors may catch it."""


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Interrupt what takes longer by a `HungError`; only the main thread can be."""
    seconds = LIMIT_S
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise HungError(f"no answer within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class DiedError(Exception):
    """A process that tried inputs ended before it was through; the message says how."""


class Note:
    """Where a process writes which input it tries, for whoever outlives it."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, 4096)

    def write(self, text: str) -> None:
        """Note an input; costs less than a microsecond."""
        said = text.encode()[:4000]
        self._page[: len(said) + 1] = said + b"\0"
        faulthandler.dump_traceback_later(_DEAF_S, exit=True)

    def read(self) -> str:
        """Return the last one."""
        return self._page[:].partition(b"\0")[0].decode(errors="replace")


def apart(work: Callable[[Note], Any]) -> Any:
    """Do work in a process of its own and return what it returned, as JSON keeps it.

    Raises:
        DiedError: The process has ended without an answer: by an input that held it for minutes
            and could not be interrupted, that broke the interpreter, or that ended it.
    """
    note = Note()
    with tempfile.TemporaryFile("w+") as answer:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                json.dump(work(note), answer)
                answer.flush()
                code = 0
            except BaseException:  # noqa: BLE001 - the process ends here, whatever it is
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        if status:
            code = os.waitstatus_to_exitcode(status)
            raise DiedError(f"it ended with {code} at input {note.read() or 'none'}")
        answer.seek(0)
        return json.load(answer)
