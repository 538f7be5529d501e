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
from enum import Enum, auto
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import Any, Final, NoReturn, Self

from workhorse.errors import ConfigurationError
from workhorse.runtime.base import exits
from workhorse.runtime.base.options import Shutdown

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


_LOOK_UP_S: Final = 0.5


class _Order(Enum):
    ARM = auto()
    FORCE = auto()
    DISARM = auto()


class Signals:
    """Notes the first signal, ends the process at the second, and sets a backstop.

    Use as a context manager in the main thread; it puts the former handlers back. The backstop
    stays set when the shutdown was not clean: a process that hangs at its exit is ended too.
    """

    def __init__(self, shutdown: Shutdown) -> None:
        self._shutdown = shutdown
        self._former: dict[int, Any] = {}
        # A handler may interrupt the main thread at any moment, also while that holds a lock: of an
        # event, or of starting a thread. So it takes none: it puts into these, which it always can.
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._orders: SimpleQueue[_Order] = SimpleQueue()
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
        threading.Thread(target=self._stand_behind, name="workhorse-backstop", daemon=True).start()
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
        if self.received is None:
            self.disarm()

    def wait(self) -> None:
        """Wait for the first signal, or for `wake`."""
        # A signal that comes just before the wait begins, or to another thread, interrupts nothing,
        # and its handler runs only when this thread does: so it looks up now and then.
        while True:
            try:
                self._bell.get(timeout=_LOOK_UP_S)
            except Empty:
                continue
            return

    def wake(self) -> None:
        """End the wait; from any thread."""
        self._bell.put(None)

    def disarm(self) -> None:
        """Take the backstop away: the shutdown is done."""
        self._orders.put(_Order.DISARM)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.received is None:
            self.received = signal.Signals(number)
            self.received_at = now
            self._orders.put(_Order.ARM)
            self._bell.put(None)
        elif (now - self.received_at) * 1000 > self._shutdown.second_signal_ms:
            self._orders.put(_Order.FORCE)

    def _stand_behind(self) -> None:
        if self._orders.get() is _Order.DISARM:
            return
        end = time.monotonic() + (self._shutdown.drain_ms + self._shutdown.backstop_ms) / 1000
        try:
            order = self._orders.get(timeout=max(0.0, end - time.monotonic()))
        except Empty:
            leave(exits.BACKSTOP)
        if order is _Order.FORCE:
            leave(exits.FORCED)


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
