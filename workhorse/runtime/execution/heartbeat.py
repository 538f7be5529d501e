"""Renews the leases of a worker, on its own thread and its own connection.

One statement for all leases, each third of a lease. What user code does to its threads or to the
event loop does not reach it.

Source: docs/design.md, section 3.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Protocol

from workhorse.errors import StoreUnavailableError
from workhorse.runtime.activations.activation import Activation
from workhorse.runtime.base.pace import Pace
from workhorse.store.live.leasing import Renewal, renew
from workhorse.telemetry import Counters, Metric, get_logger

if TYPE_CHECKING:
    from workhorse.store.base.database import Store

_log = get_logger("worker")

_BUSY_AGAIN_MS = 1_000


class Events(Protocol):
    """Takes what the heartbeat and the monitor find out about an activation."""

    def out_of_time(self, activation: Activation) -> None:
        """The time of the attempt, or of the run, is over."""
        ...

    def lapsed(self, activation: Activation) -> None:
        """The lease ran out, or may have; its token may still be there."""
        ...

    def lost(self, activation: Activation) -> None:
        """The token is gone."""
        ...

    def cancel_asked(self, activation: Activation) -> None:
        """Somebody asked to cancel the run."""
        ...


class Heartbeat:
    """Renews what is held; the body of a loop.

    Args:
        store: A store with one connection, for this alone.
        held: Returns the activations whose leases are held.
    """

    def __init__(
        self,
        store: Store,
        held: Callable[[], Collection[Activation]],
        events: Events,
        *,
        lease_ms: int,
        pace: Pace,
        counters: Counters,
    ) -> None:
        self._store = store
        self._held = held
        self._events = events
        self._lease_ms = lease_ms
        self._third_ms = lease_ms / 3
        self._pace = pace
        self._counters = counters
        self._wake = threading.Event()
        self._closed = False
        self._asked_at: float | None = None
        self._answered = threading.Event()
        self._answered.set()

    def wake(self) -> None:
        """Say that leases are held again; it sleeps while there are none."""
        self._wake.set()

    def close(self) -> None:
        """End the loop."""
        self._closed = True
        self._wake.set()

    def wait_for_answer(self, seconds: float) -> None:
        """Wait until a renewal under way has its answer, if there is one; at most so long."""
        self._answered.wait(seconds)

    def break_hung(self) -> bool:
        """Throw the connection away if a round has taken a third of the lease; answer whether."""
        asked_at = self._asked_at
        if asked_at is None or self._pace.now_ms() - asked_at <= self._third_ms:
            return False
        self._asked_at = self._pace.now_ms()
        _log.warning("a renewal had no answer for a third of the lease: reconnecting")
        self._store.abort()
        return True

    def serve(self) -> None:
        """Renew until closed: the body of the loop."""
        while not self._closed:
            now = self._pace.now_ms()
            asking = [each for each in self._held() if each.ask_ms != float("inf")]
            if not asking:
                self._wake.wait()
                self._wake.clear()
                continue
            due_in = min(each.ask_ms for each in asking) - now
            if due_in > 0:
                self._pace.pause(self._wake, due_in)
                self._wake.clear()
                continue
            # Those that would be asked for soon come along: one statement for all.
            soon = now + self._third_ms / 2
            self._ask([each for each in asking if each.ask_ms <= soon])

    def _ask(self, activations: Sequence[Activation]) -> None:
        sent = self._pace.now_ms()
        again = sent + min(_BUSY_AGAIN_MS, self._third_ms / 2)
        for each in activations:
            each.ask_ms = again
        self._asked_at = sent
        self._answered.clear()
        try:
            answers = self._store.try_once(
                renew, [each.lease for each in activations], self._lease_ms
            )
        except StoreUnavailableError as error:
            self._counters.add(Metric.STORE_ERRORS)
            _log.warning("leases could not be renewed: %s", error)
            return
        finally:
            self._asked_at = None
            self._answered.set()
        for each in activations:
            self._take(each, answers[each.lease], sent)

    def _take(self, activation: Activation, answer: Renewal, sent: float) -> None:
        match answer:
            case Renewal.RENEWED:
                activation.renewed_ms = sent
                activation.ask_ms = sent + self._third_ms
            case Renewal.BUSY:
                pass  # it says nothing, and is asked again
            case _ if activation.outcome is not None:
                pass  # the settle under way is what took the token
            case Renewal.EXPIRED:
                self._events.lapsed(activation)
            case Renewal.CANCELLED:
                activation.ask_ms = float("inf")
                self._events.cancel_asked(activation)
            case Renewal.LOST:
                activation.ask_ms = float("inf")
                self._events.lost(activation)
