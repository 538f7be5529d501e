"""Connections that are open and silent: whoever waits for their answer would wait for ever.

A statement was swallowed on its way, or its answer, by something between that confirms what it is
sent: a load balancer, a NAT that forgot the connection, a host that hangs. No packet is lost then,
so neither TCP's keepalives nor its time-outs see it, and libpq waits. One thread for the process
looks, every few seconds, at who waits for how long, and breaks connections that hang: their
statements fail as those of any lost connection, and are tried again.

The store's own statements are short, so a time decides. Where somebody else decides how long one
takes, the server is asked whether it is still at work on it.

Source: docs/cases.md, case 11
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus

from workhorse.store.base.connecting import Target, abort_connection, connect_apart
from workhorse.telemetry import get_logger

HANGS_AFTER_S: Final = 30.0
LOOKS_EVERY_S: Final = 5.0
_ANSWERS_WITHIN_S: Final = 5.0
_ON_ITS_WAY_S: Final = 10.0
"""No answer, and no next statement, is under way for longer."""
_AT_WORK: Final = (
    "select 1 from pg_stat_activity where pid = %s"
    " and (state = 'active' or state_change > clock_timestamp() - %s * interval '1 second')"
)

_log = get_logger("store")


@dataclass(slots=True)
class _Wait:
    """A thread that is in a transaction, and since when it has heard nothing."""

    since: float
    raw: Any = None
    backend: int | None = None
    """Whom to ask about, where a time decides nothing."""
    around: _Wait | None = None
    """The transaction in which this one is made."""


class Hangs:
    """The transactions of one store that are under way; each call is made by the thread in one.

    Args:
        target: The store's database.
        after_s: How long a statement may go without an answer; HANGS_AFTER_S by default.
        on_its_way_s: How long an answer may be under way.
        clock: In seconds; another one is for tests.
    """

    def __init__(
        self,
        target: Target,
        *,
        after_s: float | None = None,
        on_its_way_s: float = _ON_ITS_WAY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._target = target
        self._after_s = HANGS_AFTER_S if after_s is None else after_s
        self._on_its_way_s = on_its_way_s
        self._clock = clock
        # By thread; a dictionary's own operations need no lock.
        self._waits: dict[int, _Wait] = {}

    def begin(self) -> None:
        """Enter a transaction, or what comes before it."""
        thread = threading.get_ident()
        self._waits[thread] = _Wait(self._clock(), around=self._waits.get(thread))

    def end(self) -> None:
        """Leave it."""
        thread = threading.get_ident()
        around = self._waits.pop(thread).around
        if around is not None:
            self._waits[thread] = around

    def uses(self, raw: Any) -> None:
        """Go on over a driver's connection."""
        if (wait := self._waits.get(threading.get_ident())) is not None:
            wait.raw = raw

    def goes_on(self) -> None:
        """Go on with another statement."""
        if (wait := self._waits.get(threading.get_ident())) is not None:
            wait.since = self._clock()

    def depends(self, backend: int | None) -> None:
        """Go on with what may take its time: the server is asked about this process of its.

        Args:
            backend: What `pg_backend_pid()` answers in this transaction; None: a time decides
                again.
        """
        if (wait := self._waits.get(threading.get_ident())) is not None:
            wait.backend, wait.since = backend, self._clock()

    def look(self) -> int:
        """Break the connections that hang; return how many."""
        now, broken = self._clock(), 0
        for thread, wait in list(self._waits.items()):
            raw, since = wait.raw, wait.since
            if raw is None or now - since <= self._after_s:
                continue
            hangs = self._hangs(wait)
            if self._waits.get(thread) is not wait or (wait.raw, wait.since) != (raw, since):
                continue  # it was answered meanwhile
            wait.since = now  # what takes its place, or goes on, gets as long again
            if not hangs:
                continue
            _log.warning(
                "%s has not answered for %.0f s: reconnecting",
                self._target.description,
                self._after_s,
            )
            abort_connection(raw)
            broken += 1
        return broken

    def _hangs(self, wait: _Wait) -> bool:
        if wait.backend is None:
            return True
        if wait.raw.pgconn.transaction_status != TransactionStatus.ACTIVE:
            return False  # nothing was asked
        return self._is_at_work(wait.backend) is False

    def _is_at_work(self, backend: int) -> bool | None:
        """Ask the server whether a process of its works on a statement; None: it did not say."""
        with contextlib.suppress(psycopg.Error), connect_apart(self._target) as connection:
            given_up = threading.Timer(_ANSWERS_WITHIN_S, abort_connection, [connection])
            given_up.start()
            try:
                asked = [backend, self._on_its_way_s]
                return connection.execute(_AT_WORK, asked).fetchone() is not None
            finally:
                given_up.cancel()
        return None


# -- the thread ----------------------------------------------------------------------------------

_watched: weakref.WeakSet[Hangs] = weakref.WeakSet()
_lock = threading.Lock()
_thread: threading.Thread | None = None


def watch(hangs: Hangs) -> None:
    """Look at these from now on, in the background."""
    global _thread
    with _lock:
        _watched.add(hangs)
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_look, name="workhorse-store-watch", daemon=True)
            _thread.start()


def _after_fork() -> None:
    global _lock, _thread
    # The thread stayed with the parent, perhaps with the lock.
    _lock, _thread = threading.Lock(), None
    _watched.clear()


os.register_at_fork(after_in_child=_after_fork)


def _look() -> None:
    while True:
        time.sleep(LOOKS_EVERY_S)
        with _lock:
            those = list(_watched)
        for hangs in those:
            try:
                hangs.look()
            except Exception:  # noqa: BLE001 - the others are looked at all the same
                _log.exception("the look for connections that hang has failed; it goes on")
        del those
