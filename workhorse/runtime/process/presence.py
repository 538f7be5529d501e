"""A worker says that it is alive, and leaves queues to newer builds where it is told to.

Nothing here is in the way of runs: a beat takes a claim's turn at the store, one that fails is
noted and tried again, and a thread that hangs in one is not waited for.

Source: docs/design.md, section 6; docs/adr/0024-processes-that-beat.md
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from workhorse.domain.builds import build_order, is_older
from workhorse.domain.presence import BEATS_MISSED, Process
from workhorse.errors import StoreUnavailableError
from workhorse.runtime.base.calls import StoreCalls
from workhorse.runtime.base.loops import Loop
from workhorse.runtime.base.pace import Backoff, Pace
from workhorse.store.fleet.presence import beat, beat_and_look, leave
from workhorse.telemetry import Counters, get_logger

if TYPE_CHECKING:
    from workhorse.store.fleet.presence import Serving

_log = get_logger("worker")

_LOOK_MS: Final = 1_000
"""How often a worker that waits for its schema looks whether it may beat."""


class Presence:
    """The beats of one worker, on a thread of its own from `start` to `close`, or as it calls.

    Args:
        process: What the worker says of itself.
        gate: Shared with the claims: how many of them use the store at once.
        ready: Whether the schema fits: before that, nothing is written.
        newest_only: Whether queues that a live worker of a newer build serves are left to it.
    """

    def __init__(
        self,
        process: Process,
        *,
        calls: StoreCalls,
        gate: threading.Semaphore,
        newest_only: bool,
        pace: Pace,
        counters: Counters,
    ) -> None:
        self._process = process
        self._calls = calls
        self._gate = gate
        self._looks = newest_only and bool(process.build)
        self._pace = pace
        self._counters = counters
        self._ready: Callable[[], bool] = _never
        self._bell = threading.Event()
        self._stopping = False
        self._closing = False
        self._listed = False
        self._loop: Loop | None = None
        self._started_ms = pace.now_ms()
        self._asked_ms = self._due_ms = float("-inf")
        self._rest = Backoff(1_000, process.every_ms)
        self._complained = False
        self._newer: dict[str, str] = {}

    @property
    def newer(self) -> Mapping[str, str]:
        """The queues that are left to workers of newer builds, and the newest of these."""
        return self._newer

    def start(self, ready: Callable[[], bool]) -> None:
        """Start to beat, as soon as the schema fits."""
        self._ready = ready
        self._loop = Loop(
            "presence",
            self._serve,
            stopping=threading.Event(),
            pace=self._pace,
            counters=self._counters,
        )
        self._loop.start()

    def beat_if_due(self) -> None:
        """Beat in this thread, if that is due: for who has none of its own, and never raises."""
        if self._pace.now_ms() >= self._due_ms:
            self._beat()

    def may_claim(self, queue: str) -> bool:
        """Say whether the queue is not a newer build's. Asks nobody: the beats know."""
        if not self._looks or self._loop is None:
            return True
        if self._pace.now_ms() - self._asked_ms > BEATS_MISSED * self._process.every_ms:
            # It has not asked yet, or was frozen meanwhile: a newer one may have come.
            self._bell.set()
            return False
        return queue not in self._newer

    def tell_stopping(self) -> None:
        """Say from now on that the worker claims nothing more."""
        self._stopping = True
        self._bell.set()

    def close(self, within_s: float) -> None:
        """Take the worker off the list, if the store answers in time."""
        self._closing = True
        self._bell.set()
        if self._loop is not None and not self._loop.join(within_s):
            self._listed = False  # the store is closed next: it must not be opened again

    # -- the loop --------------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            rung = self._bell.is_set()
            self._bell.clear()
            if self._closing:  # looked at behind the clear: what rings from here on is heard
                break
            if not self._ready():
                self._due_ms = self._pace.now_ms() + _LOOK_MS
            elif rung or self._pace.now_ms() >= self._due_ms:
                self._beat()
            self._pace.pause(self._bell, self._due_ms - self._pace.now_ms())
        if self._listed and not self._calls.away:
            with suppress(Exception):  # then it is listed as late, for an hour
                self._calls.try_once(leave, self._process.key)

    def _beat(self) -> None:
        rest_ms = self._try_to_beat()
        self._due_ms = self._pace.now_ms() + rest_ms

    def _try_to_beat(self) -> float:
        """Beat once; answer how long to rest."""
        up_ms = round(self._pace.now_ms() - self._started_ms)
        try:
            # A claim's turn, so that renewals and settles never wait for a beat.
            with self._gate:
                self._listed = True
                if self._looks:
                    self._note(
                        self._calls.try_once(
                            beat_and_look, self._process, up_ms=up_ms, stopping=self._stopping
                        )
                    )
                else:
                    self._calls.try_once(beat, self._process, up_ms=up_ms, stopping=self._stopping)
        except StoreUnavailableError as error:
            _log.debug("a beat failed: %s", error)
            return self._rest.next_ms()
        except Exception as error:  # noqa: BLE001 - runs go on without beats
            if not self._complained:
                self._complained = True
                _log.warning(
                    "worker %s cannot say that it is alive (%s); its runs go on",
                    self._process.id,
                    type(error).__name__,
                    exc_info=error,
                )
            return self._process.every_ms
        finally:
            self._asked_ms = self._pace.now_ms()
        self._complained = False
        self._rest.reset()
        return self._process.every_ms

    def _note(self, others: Sequence[Serving]) -> None:
        mine = self._process
        newer: dict[str, str] = {}
        for other in others:
            if is_older(mine.build, other.build):
                for queue in set(mine.queues).intersection(other.queues):
                    newer[queue] = max(newer.get(queue, ""), other.build, key=build_order)
        left = sorted(newer.keys() - self._newer.keys())
        back = sorted(self._newer.keys() - newer.keys())
        self._newer = newer
        if left:
            _log.info(
                "worker %s of build %s claims nothing more from %s: a worker of build %s is alive",
                mine.id,
                mine.build,
                ", ".join(left),
                max((newer[queue] for queue in left), key=build_order),
            )
        if back:
            _log.info(
                "worker %s of build %s claims from %s again: no worker of a newer build is alive",
                mine.id,
                mine.build,
                ", ".join(back),
            )


def _never() -> bool:
    return False
