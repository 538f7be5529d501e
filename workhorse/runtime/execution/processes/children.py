"""One process of handlers, as its worker sees it: started, spoken to, listened to, ended.

All of it is for the thread of one event loop, which must live as long as the process: the kernel
ends a process of ours with the thread that has started it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final, Protocol

from workhorse.runtime.execution.processes.frames import Frames, ToChild, to_child
from workhorse.telemetry import get_logger

_log = get_logger("worker")

_CHUNK: Final = 256 * 1024
_LOOK_AGAIN_S: Final = 0.05
_LAST_BREATH_S: Final = 0.5
"""How long a process may live that has closed its line: most are ending just then."""
_BOOT: Final = (
    "import sys; sys.path[:] = {path!r}; "
    "from workhorse.runtime.execution.processes.child import main; main({fd}, {worker})"
)


class Listener(Protocol):
    """Takes what comes of a process."""

    def came(self, child: Child, message: Any) -> None:
        """A message has come."""
        ...

    def ended(self, child: Child) -> None:
        """The process has ended; all it said came before."""
        ...


class Child:
    """A process that was started just now.

    Args:
        loop: Whose thread this is.
        listener: Told what comes of it.

    Raises:
        OSError: The system gives no process.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, listener: Listener) -> None:
        self._loop = loop
        self._listener = listener
        self._frames = Frames("from_child")
        self._unsent = bytearray()
        self._writing = False
        self._deaf = False
        self._line, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = subprocess.Popen(  # noqa: S603 - our own interpreter
                    _command(theirs.fileno()),
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                )
        except BaseException:
            self._line.close()
            raise
        self.killed = False
        """Whether the worker has ended it, since its handler was to end."""
        self.fault: str | None = None
        """What the worker has ended it for, where it could not be used any more."""
        self.code: int | None = None
        """How it has ended."""
        self._line.setblocking(False)
        loop.add_reader(self._line, self._read)
        self._unwatch = self._watch()

    def __repr__(self) -> str:
        return f"<process {self.pid}>"

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def tell(self, message: ToChild) -> None:
        """Send a message; it never waits for the process, which may be busy."""
        self._unsent += to_child(message)
        self._write()

    def hang_up(self) -> None:
        """Have it end by itself, which it does where it is idle."""
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """End it."""
        if self.code is None and not self.killed:
            self.killed = True
            self._process.kill()

    # -- the line --------------------------------------------------------------------------------

    def _write(self) -> None:
        if self._unsent and self.code is None:
            try:
                del self._unsent[: self._line.send(self._unsent)]
            except BlockingIOError:
                pass
            except OSError:  # it is ending, which is noticed elsewhere
                self._unsent.clear()
        if bool(self._unsent) is not self._writing and self.code is None:
            self._writing = bool(self._unsent)
            if self._writing:
                self._loop.add_writer(self._line, self._write)
            else:
                self._loop.remove_writer(self._line)

    def _read(self) -> bool:
        """Take what has come; answer whether there may be more."""
        if self._deaf:
            return False
        try:
            data = self._line.recv(_CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        try:
            for message in self._frames.feed(data):
                self._listener.came(self, message)
        except ValueError:
            _log.exception("process %d: what it says cannot be read; it is ended", self.pid)
            self._stop_listening()
            self.end_for("said what its worker cannot read, and was ended")
            return False
        if not data:  # whatever it does from here on, nobody can hear of it
            self._stop_listening()
            fault = "closed the line to its worker, and was ended"
            self._loop.call_later(_LAST_BREATH_S, self.end_for, fault)
        return bool(data)

    def _stop_listening(self) -> None:
        self._deaf = True
        self._loop.remove_reader(self._line)

    def end_for(self, fault: str) -> None:
        """End it for a fault of its own: that is its death, not the end that it was told of."""
        if self.code is None and not self.killed:
            self.fault = fault
            self._process.kill()

    # -- its end ---------------------------------------------------------------------------------

    def _watch(self) -> Callable[[], None]:
        """Have its end noticed: not by the line, which what a handler has started may hold open."""
        try:
            watched = os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # not Linux, or an old one
            timer = self._loop.call_later(_LOOK_AGAIN_S, self._look)
            return timer.cancel
        self._loop.add_reader(watched, self._note_end)

        def unwatch() -> None:
            self._loop.remove_reader(watched)
            os.close(watched)

        return unwatch

    def _look(self) -> None:
        if self._process.poll() is None:
            self._unwatch = self._loop.call_later(_LOOK_AGAIN_S, self._look).cancel
        else:
            self._note_end()

    def _note_end(self) -> None:
        code = self._process.poll()
        if code is None or self.code is not None:
            return
        while self._read():  # its last words
            pass
        self.code = code
        self._unwatch()
        self._loop.remove_reader(self._line)
        self._loop.remove_writer(self._line)
        self._line.close()
        self._listener.ended(self)


def _command(fd: int) -> list[str]:
    if not sys.executable:
        raise OSError("this program has no Python interpreter that could be started again")
    path = [os.getcwd() if each == "" else str(each) for each in sys.path]
    boot = _BOOT.format(path=path, fd=fd, worker=os.getpid())
    # The interpreter's own options go along, as with the standard library's processes.
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *flags, "-c", boot]
