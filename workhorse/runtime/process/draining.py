"""Draining: run what can be claimed, by scan, until nothing is left.

Source: docs/design.md, sections 5 and 6.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from workhorse.runtime.activations.holdings import Holdings
from workhorse.runtime.base.options import LARGEST_CLAIM
from workhorse.runtime.claims.claimer import Claimer
from workhorse.runtime.claims.hooks import Hooks
from workhorse.runtime.claims.slots import Slots
from workhorse.runtime.claims.starting import Starter

if TYPE_CHECKING:
    from workhorse.store.lifecycle.cursors import Cursor

_LOOK_AGAIN_S = 1.0


class Drain:
    """Goes through all queues, page by page in turn and without a pause, again and again."""

    def __init__(
        self,
        claimers: Sequence[Claimer],
        *,
        starter: Starter,
        holdings: Holdings,
        slots: Slots,
        hooks: Hooks,
        ended: threading.Event,
    ) -> None:
        self._claimers = claimers
        self._starter = starter
        self._holdings = holdings
        self._slots = slots
        self._hooks = hooks
        self._ended = ended
        self._refused = False

    def run(self, max_runs: int | None) -> int:
        """Execute what there is, at most `max_runs`; answer how many."""
        before = self._holdings.tally().executed
        most = None if max_runs is None else before + max_runs
        while not self._ended.is_set() and not self._refused:
            tally = self._holdings.tally()
            if most is not None and tally.executed >= most:
                break
            # What is under way may free others: a session's next turn, a retry without a rest.
            if not self._go_through(most) and not self._holdings.wait_for_settle(
                tally, _LOOK_AGAIN_S
            ):
                break
        self._holdings.wait_until_empty(None)
        self._starter.flush(None)
        self._starter.check()
        return self._holdings.tally().executed - before

    def _go_through(self, most: int | None) -> int:
        """Scan every queue to its end; answer how many runs were claimed."""
        found = 0
        places: dict[Claimer, Cursor | None] = dict.fromkeys(self._claimers)
        while places:
            for claimer, start in list(places.items()):
                room = LARGEST_CLAIM if most is None else most - self._holdings.tally().expected
                if room <= 0 or self._ended.is_set() or self._refused:
                    return found
                with self._slots.turn(claimer.queue) as turn:
                    turn.wait()
                    if not self._hooks.may_claim(claimer.queue):
                        self._refused = True
                        return found
                    reserved = turn.reserve(min(LARGEST_CLAIM, room))
                if not reserved:
                    return found
                claim = claimer.take([], reserved, scan=True, cursor=start)
                found += len(claim.runs)
                if len(claim.runs) == reserved:
                    continue  # slots ended before the page did: it is looked at again
                if claim.full:
                    places[claimer] = claim.cursor
                else:
                    del places[claimer]
        return found
