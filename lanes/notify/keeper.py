"""Keeps one line to the database for a process: what is rung and heard there goes over it.

The line is opened when somebody listens, or when a ring has to be sent that no transaction carries;
it is opened anew when it breaks, and let go of when nobody has needed it for a while.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from typing import Final, TypeAlias

from lanes.notify.debounce import Debounce
from workhorse.errors import StoreUnavailableError
from workhorse.ports import BellLine, Bells
from workhorse.telemetry import Counters, Metric, get_logger

_log = get_logger("lanes.notify")

Outcome: TypeAlias = "Future[str | None]"
"""Why a ring was not sent; None where it was."""
_LONGEST_WAIT_MS: Final = 3_600_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The lane's numbers.

    Args:
        gap_ms: How long after a queue's bell was rung by this process it is rung again.
        rest_ms: How long after a ring has ended a worker's wait the next one may.
        send_s: How long a send waits for its ring.
        first_rest_s: How long the first rest is after the line broke; rests double, with jitter.
        longest_rest_s: What they grow to.
        keep_s: How long a line is kept over which nobody listens.
        close_s: How long closing waits for what is still to be rung.
        unheard_s: After which a check takes a ring for unheard.
    """

    gap_ms: float = 10.0
    rest_ms: float = 5.0
    send_s: float = 2.0
    first_rest_s: float = 0.1
    longest_rest_s: float = 3.0
    keep_s: float = 30.0
    close_s: float = 2.0
    unheard_s: float = 3.0


def _monotonic_ms() -> float:
    return time.monotonic() * 1000


class Keeper:
    """Rings and hears on a thread of its own, which is started when it is first needed.

    Args:
        bells: Opens lines.
        awaited: Returns the queues that are waited for in this process.
        heard: Told of a queue whose bell was heard; it must be quick.
        clock: Milliseconds from any fixed point, for the gaps between rings.
    """

    def __init__(
        self,
        bells: Bells,
        *,
        awaited: Callable[[], Collection[str]],
        heard: Callable[[str], None],
        counters: Counters,
        timing: Timing,
        clock: Callable[[], float] = _monotonic_ms,
    ) -> None:
        self._bells = bells
        self._awaited = awaited
        self._heard = heard
        self._counters = counters
        self._timing = timing
        self._now_ms = clock
        self._changed = threading.Condition()
        self._debounce = Debounce(timing.gap_ms)
        self._asked: list[Outcome] = []
        self._line: BellLine | None = None
        self._trouble: str | None = None
        self._rest_s = timing.first_rest_s
        self._draw = random.Random()  # noqa: S311 - jitter, not a secret
        self._thread: threading.Thread | None = None
        self._closed = False

    # -- from any thread -------------------------------------------------------------------------

    def take(self, queues: Iterable[str]) -> frozenset[str]:
        """Return those of the queues whose bells somebody else may ring now."""
        with self._changed:
            now = self._now_ms()
            taken = frozenset(queue for queue in queues if self._debounce.take(queue, now))
        self._counters.add(Metric.RINGS, len(taken), label="inside")
        return taken

    def ask(self, queues: Iterable[str]) -> Outcome | None:
        """Have bells rung; None where all of them were rung a moment ago, and will be once more."""
        outcome: Outcome = Future()
        outcome.set_running_or_notify_cancel()  # nobody who waits for it can cancel it
        with self._changed:
            if self._closed:
                outcome.set_result("the lane is closed")
                return outcome
            now = self._now_ms()
            known = set(self._debounce.wished)
            due = [queue for queue in queues if self._debounce.wish(queue, now)]
            if known != self._debounce.wished or self._thread is None:
                self._bestir()
            if not due:
                return None
            if self._trouble is not None:
                # It is rung when the line is there again, and nobody waits for that.
                outcome.set_result(self._trouble)
            else:
                self._asked.append(outcome)
        return outcome

    def update(self) -> None:
        """Say that other queues are waited for than before."""
        with self._changed:
            if not self._closed:
                self._bestir()

    def close(self) -> None:
        """Ring what is still to be rung, and let go of the line; any number of times."""
        with self._changed:
            self._closed = True
            self._wake()
            thread = self._thread
        if thread is not None:
            thread.join(self._timing.close_s)

    def _bestir(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._serve, name="workhorse-notify", daemon=True)
            thread.start()  # where the process has too many, the next call tries again
            self._thread = thread
        self._wake()

    def _wake(self) -> None:
        self._changed.notify_all()
        if self._line is not None:
            self._line.interrupt()

    # -- on the keeper's thread ------------------------------------------------------------------

    def _serve(self) -> None:
        while self._is_needed():
            opened_at = float("inf")
            try:
                with closing(self._bells.open_line()) as line:
                    opened_at = time.monotonic()
                    self._use(line)
            except Exception as error:  # noqa: BLE001 - whatever it is, the line is opened anew
                if not self._note(error, lived_s=time.monotonic() - opened_at):
                    return

    def _is_needed(self) -> bool:
        """Wait until a line is needed; answer whether it is, or the lane was closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._awaited() or self._debounce.wished)
            return not self._closed or bool(self._debounce.wished)

    def _use(self, line: BellLine) -> None:
        """Ring and hear until the line breaks, is not needed or is to be closed."""
        due: list[str] = []
        asked: list[Outcome] = []
        kept_until = time.monotonic() + self._timing.keep_s
        try:
            while True:
                with self._changed:
                    self._line = line
                    closed, awaited = self._closed, self._awaited()
                    now = float("inf") if closed else self._now_ms()
                    due, (asked, self._asked) = self._debounce.due(now), (self._asked, [])
                    wait_ms = self._debounce.due_in(now)
                if due:
                    line.ring(due)
                    self._counters.add(Metric.RINGS, len(due), label="sent")
                _tell(asked, None)
                due, asked = [], []
                if closed:
                    return
                now_s = time.monotonic()
                if awaited or wait_ms is not None:
                    kept_until = now_s + self._timing.keep_s
                    wait_ms = _LONGEST_WAIT_MS if wait_ms is None else wait_ms
                elif now_s < kept_until:
                    wait_ms = (kept_until - now_s) * 1000
                else:
                    return
                if self._trouble is not None:
                    wait_ms = 0  # that the line is there again is to be known at once
                self._tell_rung(line.hear(awaited, wait_ms))
        except BaseException as error:
            with self._changed:
                self._debounce.again(due)
            _tell(asked, _said(error))
            raise
        finally:
            with self._changed:
                self._line = None

    def _tell_rung(self, queues: Collection[str]) -> None:
        if self._trouble is not None:
            with self._changed:
                self._trouble = None
            _log.info("bells are heard again")
        for queue in queues:
            self._heard(queue)
        self._counters.add(Metric.RINGS, len(queues), label="heard")

    def _note(self, error: Exception, *, lived_s: float) -> bool:
        """Take in that there is no line, and rest; answer whether it is to be tried again."""
        self._counters.add(Metric.RECEIVE_ERRORS)
        first = self._trouble is None
        if lived_s >= self._timing.longest_rest_s:
            self._rest_s = self._timing.first_rest_s
        bound_s, self._rest_s = self._rest_s, min(self._rest_s * 2, self._timing.longest_rest_s)
        level = logging.WARNING if first else logging.DEBUG
        _log.log(level, "the notify lane hears nothing: %s; it tries again", _said(error))
        with self._changed:
            self._trouble = _said(error)
            asked, self._asked = self._asked, []
            _tell(asked, self._trouble)
            if self._closed:
                return False
            self._changed.wait_for(lambda: self._closed, bound_s * (0.5 + self._draw.random() / 2))
            return True


def _tell(asked: Iterable[Outcome], trouble: str | None) -> None:
    for each in asked:
        each.set_result(trouble)


def _said(error: BaseException) -> str:
    # A driver's own text may hold more than is good for a log.
    return str(error) if isinstance(error, StoreUnavailableError) else type(error).__name__
