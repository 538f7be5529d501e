"""SIGTERM and SIGINT for a worker process, and what ends it when nothing else does.

Handlers are set explicitly: as PID 1 a process that sets none gets no signal at all.

Source: docs/design.md, section 6; docs/cases.md, case 4.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from queue import SimpleQueue
from types import FrameType, TracebackType
from typing import Any, Final, NoReturn, Self

from workhorse.errors import ConfigurationError
from workhorse.runtime import exits
from workhorse.runtime.options import Shutdown

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """Notes the first signal, ends the process at the second, and sets a backstop.

    Use as a context manager in the main thread; it puts the former handlers back. The backstop
    stays set when the shutdown was not clean: a process that hangs at its exit is ended too.
    """

    def __init__(self, shutdown: Shutdown) -> None:
        self._shutdown = shutdown
        self._former: dict[int, Any] = {}
        self._disarmed = threading.Event()
        # Not an event: a signal that comes while the main thread holds its lock would wait for that
        # lock for ever. This one's `put` may be called at any moment.
        self._bell: SimpleQueue[None] = SimpleQueue()
        self.received: signal.Signals | None = None
        """The first signal."""
        self.received_at = 0.0
        """When it came, by `time.monotonic`."""

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            raise ConfigurationError(
                "run() waits for signals, which only the main thread can; "
                "call start() and stop() from others"
            )
        for number in _SIGNALS:
            self._former[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def wait(self) -> None:
        """Wait for the first signal, or for `wake`."""
        self._bell.get()

    def wake(self) -> None:
        """End the wait; from any thread."""
        self._bell.put(None)

    def disarm(self) -> None:
        """Take the backstop away: the shutdown is done."""
        self._disarmed.set()

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.received is not None:
            if (now - self.received_at) * 1000 > self._shutdown.second_signal_ms:
                leave(exits.FORCED)
            return
        self.received = signal.Signals(number)
        self.received_at = now
        threading.Thread(target=self._stand_behind, name="workhorse-backstop", daemon=True).start()
        self._bell.put(None)

    def _stand_behind(self) -> None:
        after_ms = self._shutdown.drain_ms + self._shutdown.backstop_ms
        if not self._disarmed.wait(after_ms / 1000):
            leave(exits.BACKSTOP)


def leave(code: int) -> NoReturn:
    """End the process now: no thread is waited for, no clean-up runs."""
    # A stream that another thread is blocked on must not keep the process from ending.
    flushing = threading.Thread(target=_flush, daemon=True)
    flushing.start()
    flushing.join(0.2)
    os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # it may be closed
            stream.flush()
