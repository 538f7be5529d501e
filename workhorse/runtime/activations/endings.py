"""Activations that end from outside: out of time, cancelled, or without their lease.

Source: docs/design.md, sections 3 and 6.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from workhorse.domain.outcomes import Outcome
from workhorse.domain.runs import Reason
from workhorse.handlers.signals import StopReason
from workhorse.runtime.activations import verdicts
from workhorse.runtime.activations.activation import Activation
from workhorse.runtime.activations.holdings import Holdings
from workhorse.runtime.base.crashing import Crashed
from workhorse.runtime.base.pace import Pace, Timers
from workhorse.telemetry import Counters, Metric, get_logger

_log = get_logger("worker")

_STUCK_AFTER_MS: Final = 1_000.0
_NEVER: Final = float("inf")


class Endings:
    """Tells handlers to stop, and ends the activations of those that do not.

    Args:
        concluded: Takes activations that have ended.
        cancel_wait_ms: How long a handler that is ended from outside may take to clean up.
    """

    timers: Timers

    def __init__(
        self,
        holdings: Holdings,
        *,
        concluded: Callable[[Sequence[Activation]], None],
        cancel_wait_ms: float,
        pace: Pace,
        counters: Counters,
    ) -> None:
        self._holdings = holdings
        self._concluded = concluded
        self._cancel_wait_ms = cancel_wait_ms
        self._pace = pace
        self._counters = counters

    def set_limit(self, activation: Activation, *, begins: bool = True) -> bool:
        """Decide when the activation's time is over; False when it never is.

        Args:
            begins: Whether the handler is called now; else its own time begins by `begun`.
        """
        claimed = activation.claimed
        left: list[tuple[float, Reason]] = []
        if claimed.timeout_ms is not None and begins:
            active = self._pace.now_ms() + max(0, claimed.timeout_ms - claimed.active_ms)
            left.append((active, Reason.TIMEOUT))
        if claimed.deadline_in_ms is not None:
            # It counts from the claim, by the database's clock.
            left.append((activation.renewed_ms + claimed.deadline_in_ms, Reason.DEADLINE))
        if left:
            activation.limit_ms, activation.limit_kind = min(left)
        return bool(left)

    def begun(self, activation: Activation) -> bool:
        """Let the time of the attempt run from now on; False where it has no limit."""
        claimed = activation.claimed
        if claimed.timeout_ms is None:
            return False
        limit_ms = self._pace.now_ms() + max(0, claimed.timeout_ms - claimed.active_ms)
        if limit_ms < activation.limit_ms:
            activation.limit_ms, activation.limit_kind = limit_ms, Reason.TIMEOUT
        return True

    def out_of_time(self, activation: Activation) -> None:
        """End an activation whose time, or whose run's, has run out."""
        activation.limit_ms = _NEVER
        if activation.outcome is not None:
            return
        activation.limit = activation.limit_kind
        deadline = activation.limit is Reason.DEADLINE
        activation.core.cancelled.set(StopReason.DEADLINE if deadline else StopReason.TIMEOUT)
        self._end(activation, verdicts.of_limit(activation.limit))

    def lapsed(self, activation: Activation) -> None:
        """Tell a handler that its lease ran out; what it comes to is offered all the same."""
        if activation.lapsed or activation.outcome is not None:
            return
        activation.lapsed = True
        self._counters.add(Metric.LEASES_LAPSED)
        _log.warning("run %s: its lease ran out before it was renewed", activation.claimed.id)
        activation.core.cancelled.set(StopReason.LEASE_LOST)
        activation.cut_off()

    def lost(self, activation: Activation) -> None:
        """Tell a handler that its run is another's; nothing of it is sent."""
        if activation.lost or activation.outcome is not None:
            return
        activation.lost = True
        self._counters.add(Metric.LEASES_LOST)
        _log.warning(
            "run %s: its lease was taken; its handler is told to stop", activation.claimed.id
        )
        activation.core.cancelled.set(StopReason.LEASE_LOST)
        activation.cut_off()
        self._end(activation, verdicts.of_stop(StopReason.LEASE_LOST))

    def crashed(self, activation: Activation) -> None:
        """End an activation as if its process had died: nothing is written, nobody is told."""
        activation.lost = True
        ended = activation.conclude(verdicts.of_stop(StopReason.LEASE_LOST), self._pace.now_ms())
        activation.core.cancelled.set(StopReason.LEASE_LOST)
        activation.cut_off(Crashed(f"run {activation.claimed.id}: its process has died"))
        activation.executor.uproot(activation)
        if ended:
            self._concluded([activation])

    def cancel_asked(self, activation: Activation) -> None:
        """Tell a handler that its run was cancelled; one in a thread ends when it looks."""
        activation.core.cancelled.set(StopReason.CANCELLED)
        if activation.executor.uproots:
            self._end(activation, verdicts.of_stop(StopReason.CANCELLED))

    def abandoned(self, activations: Sequence[Activation]) -> None:
        """Watch a handler of many runs, all of which have been ended: it is to end soon."""
        wait_ms = self._cancel_wait_ms if activations[0].task.is_async else 0
        self.timers.at(
            self._pace.now_ms() + wait_ms + _STUCK_AFTER_MS, partial(self._note_stuck, *activations)
        )

    def suspended(self, activation: Activation) -> None:
        """Bound the time that an async handler has to end once it has come to a wait."""
        # Weak: nearly all of them end long before, and have no reason to be kept until then.
        self.timers.at(
            self._pace.now_ms() + self._cancel_wait_ms,
            partial(self._end_suspended, weakref.ref(activation)),
        )

    def _end_suspended(self, reference: weakref.ref[Activation]) -> None:
        activation = reference()
        outcome = verdicts.of_state(activation) if activation is not None else None
        if activation is not None and outcome is not None:
            self._give_up(activation, outcome)

    def _end(self, activation: Activation, outcome: Outcome) -> None:
        """End an activation whatever its handler does; what is uprooted gets time to clean up."""
        if activation.executor.uproots:
            activation.executor.uproot(activation)
            self.timers.at(
                self._pace.now_ms() + self._cancel_wait_ms,
                partial(self._give_up, activation, outcome),
            )
        else:
            self._give_up(activation, outcome)

    def _give_up(self, activation: Activation, outcome: Outcome) -> None:
        if activation.conclude(outcome, self._pace.now_ms()):
            self._concluded([activation])
            self.timers.at(
                self._pace.now_ms() + _STUCK_AFTER_MS, partial(self._note_stuck, activation)
            )

    def _note_stuck(self, *activations: Activation) -> None:
        stuck = [each for each in activations if self._holdings.note_stuck(each)]
        if stuck:
            self._counters.add(Metric.HANDLERS_STUCK)
            slots = "its slot stays" if len(stuck) == 1 else f"its {len(stuck)} slots stay"
            _log.warning(
                "run %s: the handler of task %r does not stop; %s taken until it does",
                stuck[0].claimed.id,
                stuck[0].task.name,
                slots,
            )
