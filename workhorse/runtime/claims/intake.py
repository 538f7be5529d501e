"""The intake of one queue: receive, claim, start; scan where no message tells.

Source: docs/design.md, sections 4 to 6.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from workhorse.domain.hints import Hint
from workhorse.errors import SchemaMismatchError, StoreUnavailableError
from workhorse.handlers.registry import TaskRegistry
from workhorse.ports import Lane, Message, Receiver
from workhorse.runtime.base.calls import StoreCalls
from workhorse.runtime.base.options import LARGEST_CLAIM, WorkerOptions
from workhorse.runtime.base.pace import Backoff, Pace
from workhorse.runtime.claims.claimer import Claimer
from workhorse.runtime.claims.echoes import Echoes
from workhorse.runtime.claims.hooks import Hooks
from workhorse.runtime.claims.lane_watch import LaneWatch
from workhorse.runtime.claims.receipts import AT_ONCE, Receipt
from workhorse.runtime.claims.slots import Slots, Turn
from workhorse.runtime.claims.sweep import Sweep
from workhorse.store.lifecycle.sweeping import promote
from workhorse.telemetry import Counters, Metric, get_logger

_log = get_logger("worker")

_CROWDED_S: Final = 0.5
"""How long messages wait for a slot that another queue was quicker to take."""
_GATHER_MS: Final = 50
"""How long after a claim the next long poll waits for more slots to be free: it asks for as many
messages as there are slots, for up to twenty seconds."""
_A_LITTLE_MS: Final = 1_000
"""A long poll is not cut short by less than that."""
_GLANCE_MS: Final = 10_000
"""How often a queue that is scanned without a pause looks for messages too, at the least."""


class Intake:
    """Brings the runs of one queue into the worker; the body of a loop.

    Args:
        claimer: Claims for the queue.
        watch: Told how receives go.
        publish: Sends the wakeups of runs that were recovered in place.
        check: Makes sure that the schema fits, before anything is claimed.
        ended: Set when nothing more is to be claimed.
    """

    def __init__(
        self,
        claimer: Claimer,
        lane: Lane,
        *,
        watch: LaneWatch,
        calls: StoreCalls,
        slots: Slots,
        hooks: Hooks,
        registry: TaskRegistry,
        publish: Callable[[Sequence[Hint]], None],
        check: Callable[[], None],
        ended: threading.Event,
        poll_ms: float,
        options: WorkerOptions,
        pace: Pace,
        counters: Counters,
    ) -> None:
        self._claimer = claimer
        self._queue = claimer.queue
        self._lane = lane
        self._watch = watch
        self._calls = calls
        self._slots = slots
        self._hooks = hooks
        self._registry = registry
        self._publish = publish
        self._check = check
        self._ended = ended
        self._poll_ms = poll_ms
        self._options = options
        self._pace = pace
        self._counters = counters
        self._draw = random.Random()  # noqa: S311 - jitter, not a secret
        self._sweep = Sweep(
            poll_ms=poll_ms,
            idle_ms=options.idle_ms,
            head_ms=options.head_ms,
            net_ms=self._net_ms if lane.carries_messages else None,
        )
        self._receiver: Receiver | None = None
        self._outages = 0
        self._store_rest = Backoff(200, 5_000)
        self._refusals = Backoff(poll_ms, max(poll_ms, options.idle_ms))
        self._lane_rest = Backoff(500, options.scan_ms)
        self._lane_rests_until = float("-inf")
        self._echoes = Echoes(_GLANCE_MS)
        self._claimed_at = float("-inf")
        self._promoted_at = float("-inf")

    def close(self) -> None:
        """End a receive that is under way; `ended` must be set."""
        receiver = self._receiver
        if receiver is not None:
            receiver.close()

    def serve(self) -> None:
        """Take in runs until ended: the body of the loop."""
        self._receiver = self._lane.receiver(self._queue)
        try:
            self._sweep.start_now()
            while not self._ended.is_set():
                try:
                    self._step(self._receiver)
                except StoreUnavailableError as error:
                    _log.debug("queue %s: %s", self._queue, error)
                except SchemaMismatchError:
                    return  # the worker ends, and has said why
        finally:
            self._receiver.close()
            if self._ended.is_set() and self._claimer.unanswered:
                with suppress(StoreUnavailableError):  # then their leases expire
                    self._claimer.look_up()

    # -- one step --------------------------------------------------------------------------------

    def _step(self, receiver: Receiver) -> None:
        if self._calls.away or self._claimer.unanswered:
            self._wait_for_store()
            return
        self._check()
        if self._outages != self._calls.outages:
            self._outages = self._calls.outages
            self._sweep.start_now()
        now = self._pace.now_ms()
        if not self._lane.carries_messages and self._sweep.due_in(now) > 0:
            self._wait_for_page(receiver, now)
            return
        if self._lane.carries_messages and self._sweep.due_in(now) > 0:
            self._pace.pause(self._slots.roomy, self._claimed_at + _GATHER_MS - now)
        with self._slots.turn(self._queue) as turn:
            free = turn.wait()
            if self._ended.is_set():
                return
            if not self._hooks.may_claim(self._queue):
                turn.leave()
                self._pace.pause(self._ended, self._refusals.next_ms())
                return
            self._refusals.reset()
            if not self._lane.carries_messages:
                self._claim(turn, receiver, ())
        if self._lane.carries_messages:
            self._receive_and_claim(receiver, free)
        else:
            self._promote()

    def _wait_for_page(self, receiver: Receiver, now: float) -> None:
        due_in = self._sweep.due_in(now)
        if self._sweep.pausing:
            self._pace.pause(self._ended, due_in)
            return
        try:
            receiver.receive(1, max(1, round(due_in)))
        except Exception as error:  # noqa: BLE001 - any lane's error has a backoff
            self._pace.pause(self._ended, self._note_lane_error(error))
        else:
            self._lane_rest.reset()
            self._watch.answered(self._queue)
            now = self._pace.now_ms()
            if self._sweep.due_in(now) > 1:
                self._sweep.rung(now)  # it ended early: the lane knows of new work

    def _receive_and_claim(self, receiver: Receiver, free: int) -> None:
        messages: Sequence[Message] = ()
        now = self._pace.now_ms()
        due_in = self._sweep.due_in(now)
        lane_rest = self._lane_rests_until - now
        limit = self._echoes.limit(free) if due_in > 0 else self._echoes.beside_scan(free, now)
        if lane_rest > 0 or (due_in > 0 and self._sweep.pausing):
            if due_in > 0:
                rest = due_in if self._sweep.pausing else min(due_in, lane_rest)
                self._pace.pause(self._ended, rest)
                return
        elif limit:
            poll = self._options.long_poll_ms
            wait = poll if due_in > poll - _A_LITTLE_MS else max(0.0, due_in)
            messages = self._receive(receiver, limit, wait)
            if self._ended.is_set():
                receiver.settle([(message, AT_ONCE) for message in messages])
                return
            if not messages and self._sweep.due_in(self._pace.now_ms()) > 0:
                return
            if wait > 0 and not self._hooks.may_claim(self._queue):
                receiver.settle([(message, AT_ONCE) for message in messages])
                return
        with self._slots.turn(self._queue) as turn:
            self._claim(turn, receiver, messages)

    def _receive(self, receiver: Receiver, limit: int, wait_ms: float) -> Sequence[Message]:
        started = self._pace.now_ms()
        try:
            messages = receiver.receive(limit, round(wait_ms))
        except Exception as error:  # noqa: BLE001 - any lane's error has a backoff
            self._lane_rests_until = self._pace.now_ms() + self._note_lane_error(error)
            self._sweep.start_now()
            return ()
        now = self._pace.now_ms()
        self._lane_rest.reset()
        self._watch.answered(self._queue)
        self._echoes.received(limit, len(messages), now)
        if not messages and not self._ended.is_set() and now - started < min(wait_ms, 10) / 2:
            # It was to wait and did not: whatever the reason, it is not asked in a tight circle.
            self._pace.pause(self._ended, self._poll_ms)
        return messages

    def _note_lane_error(self, error: Exception) -> float:
        rest_ms = self._lane_rest.next_ms()
        self._counters.add(Metric.RECEIVE_ERRORS)
        self._watch.failed(self._queue, error)
        return rest_ms

    def _claim(self, turn: Turn, receiver: Receiver, messages: Sequence[Message]) -> None:
        reserved = turn.reserve(LARGEST_CLAIM, _CROWDED_S)
        receipt = Receipt(messages, self._counters)
        try:
            if reserved == 0:
                receipt.give_back()
                return
            began = self._pace.now_ms()
            cursor = self._sweep.start(began)
            claim = receipt.claim(
                self._claimer,
                reserved,
                cursor,
                known=self._registry,
                slots=self._slots,
                publish=self._publish,
            )
            now = self._claimed_at = self._pace.now_ms()
            self._sweep.note(claim, asked=reserved, now=now, took_ms=now - began)
            notes = Counter(each.note for each in receipt.decisions)
            self._echoes.claimed(len(claim.runs), notes)
        finally:
            # The handlers are running by now: deleting messages delays none of them.
            if receipt.fates:
                receiver.settle(receipt.fates)

    def _promote(self) -> None:
        """Make ready what is due: where no message says so, a laptop's worker has nobody else."""
        now = self._pace.now_ms()
        if now - self._promoted_at >= self._options.head_ms and not self._ended.is_set():
            self._promoted_at = now
            swept = self._calls.run(promote)
            self._publish(swept.hints)
            if swept.count:
                self._sweep.start_now()

    # -- rests -----------------------------------------------------------------------------------

    def _wait_for_store(self) -> None:
        if self._calls.away and self._pace.pause(self._ended, self._store_rest.next_ms()):
            return
        if self._claimer.unanswered:
            self._claimer.look_up()
        else:
            self._claimer.probe()
        self._store_rest.reset()
        self._sweep.start_now()

    def _net_ms(self) -> float:
        options = self._options
        net = options.scan_ms + self._draw.uniform(-options.scan_jitter_ms, options.scan_jitter_ms)
        if net < options.long_poll_ms:
            return net
        # Whole polls, more or fewer by chance: a poll that the net cuts short is a call for little.
        polls, rest = divmod(net, options.long_poll_ms)
        return options.long_poll_ms * (polls + (self._draw.random() * options.long_poll_ms < rest))
