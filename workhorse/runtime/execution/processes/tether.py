"""What ties a process of handlers to its worker: it ends with it, and by it alone.

Source: docs/cases.md, case 4.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import Any, Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_PR_SET_PDEATHSIG: Final = 1


def block_signals() -> None:
    """Keep the signals of the process group from this thread, and from what it starts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def tie(worker: int, line: socket.socket) -> None:
    """Make this process one of a worker's: from here on it lives as long as that.

    Args:
        worker: The process id of the worker.
        line: The socket to it, which what the handlers fork must not hold.
    """
    # Ctrl-C and `docker stop` may reach the whole group; who ends a handler is the worker. They are
    # caught and not ignored, since programs that a handler starts would inherit that.
    for number in _SIGNALS:
        signal.signal(number, _leave_it_to_the_worker)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    os.register_at_fork(after_in_child=lambda: _untie(line))
    if sys.platform == "linux":
        _die_with_parent()
    if os.getppid() != worker:  # it has died before this could be said
        os._exit(1)


def _leave_it_to_the_worker(number: int, frame: Any) -> None:
    """Do nothing."""


def _untie(line: socket.socket) -> None:
    """Let a copy of this process be what its maker wants, and no part of this one."""
    line.close()
    for number in _SIGNALS:
        if signal.getsignal(number) is _leave_it_to_the_worker:
            signal.signal(number, signal.SIG_DFL)


def _die_with_parent() -> None:
    # The end of the line is noticed by a thread, which a call in C that holds the interpreter keeps
    # from running; the kernel needs nobody's help.
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
