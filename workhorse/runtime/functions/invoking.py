"""One invocation: from the messages that a function was handed to those that it gives back.

Source: docs/design.md, section 5; docs/adr/0023-invocations.md
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from workhorse.domain.hints import Hint
from workhorse.errors import StoreUnavailableError
from workhorse.ports import Lane, Message, Wakeup, warm_up
from workhorse.runtime.base.calls import StoreCalls
from workhorse.runtime.base.options import LARGEST_CLAIM
from workhorse.runtime.base.pace import Backoff, Pace
from workhorse.runtime.claims.claimer import Claimer
from workhorse.runtime.claims.receipts import Receipt
from workhorse.runtime.functions.remaining import TimeLeft
from workhorse.runtime.functions.replacing import Replacements
from workhorse.runtime.process.parts import Parts
from workhorse.store.operators.viewing import ready_to_top_up
from workhorse.telemetry import Counters, get_logger

if TYPE_CHECKING:
    from workhorse.store.lifecycle.claiming import Claim
    from workhorse.store.lifecycle.cursors import Cursor

_log = get_logger("function")

_PATIENCE_S: Final = 1.0
"""How long messages wait here for a slot, before they are sent anew for whoever has one free."""
_STORE_TRIES: Final = 4
_LAST_SENDS_S: Final = 5.0


class _Line:
    """What one queue has for this invocation: its messages, and the sweep through it."""

    def __init__(self, claimer: Claimer, receipts: Sequence[Receipt]) -> None:
        self.claimer = claimer
        self.receipts = deque(receipts)
        self.cursor: Cursor | None = None
        self.open = True
        """Whether a scan may find more."""
        self.full = False
        """Whether the last scan left off before the queue's end."""
        self.scans = True
        """Whether the queue is scanned; not once a run in it made a claim fail."""

    @property
    def hungry(self) -> bool:
        return bool(self.receipts) or (self.open and self.scans)

    def note(self, claim: Claim, *, asked: int) -> None:
        """Take in what a scan brought."""
        if len(claim.runs) >= asked:
            self.open = self.full = True  # what is left comes first the next time
        elif claim.full:
            self.open = self.full = True
            self.cursor = claim.cursor
        else:
            self.open = self.full = False
            self.cursor = None


class Invocation:
    """Serves the messages of one invocation, and goes on by scan while slots and time last."""

    def __init__(
        self,
        messages: Sequence[Message],
        time: TimeLeft,
        parts: Parts,
        claimers: Mapping[str, Claimer],
        *,
        calls: StoreCalls,
        lane: Lane,
        counters: Counters,
        pace: Pace,
    ) -> None:
        self._messages = messages
        self._time = time
        self._parts = parts
        self._calls = calls
        self._lane = lane
        self._counters = counters
        self._pace = pace
        self._publish = parts.engine.publisher.put
        self._replacements = Replacements(lane, counters, time)
        self._receipts: list[Receipt] = []
        self._taken: dict[Receipt, int] = {}
        self._away = False
        self._tries = 0
        self._rest = Backoff(100, 1_000)
        self._lines = self._sorted(messages, claimers)

    def run(self) -> Collection[str]:
        """Serve; return the ids of the messages to be kept.

        What is held when it returns did not end in time, and is to be asked to stop.
        """
        holdings = self._parts.holdings
        try:
            self._work()
        finally:
            if not self._away:
                self._give_back()
            self._replace()
        if holdings:
            warm_up(self._lane)  # what is handed back soon has its wakeups sent in little time
        if not self._away and not self._calls.away:  # there is no time to ask in vain
            self._wake_another()
        holdings.wait_until_empty(self._time.until_stop_s())
        if not holdings:
            # Before the process stands still: wakeups of what was settled here are on their way.
            self._parts.engine.flush(min(_LAST_SENDS_S, self._time.left_s() * 0.8))
        return self._kept()

    def _sorted(self, messages: Sequence[Message], claimers: Mapping[str, Claimer]) -> list[_Line]:
        of_queue: dict[str | None, list[Message]] = {}
        for message in messages:
            content = message.content
            queue = content.queue if isinstance(content, Wakeup) else None
            of_queue.setdefault(queue, []).append(message)
        lines = []
        for queue, those in of_queue.items():
            receipts = [
                self._receipt(those[start : start + LARGEST_CLAIM])
                for start in range(0, len(those), LARGEST_CLAIM)
            ]
            if queue is None:
                continue
            claimer = claimers.get(queue)
            if claimer is None:
                _log.warning(
                    "%d messages are of queue %r, which this function does not serve (it serves "
                    "%s); they are deleted, and their runs wait for a worker of that queue",
                    len(those),
                    queue,
                    ", ".join(claimers),
                )
                for receipt in receipts:
                    receipt.turn_away()
            else:
                lines.append(_Line(claimer, receipts))
        return lines

    def _receipt(self, messages: Sequence[Message]) -> Receipt:
        receipt = Receipt(messages, self._counters, seen_before=self._seen_before)
        self._receipts.append(receipt)
        return receipt

    def _seen_before(self, message: Message) -> bool:
        content = message.content
        if not isinstance(content, Wakeup):
            return False
        # Throttled deliveries count as receives although nobody has looked. Where a message can be
        # sent anew with a delay, the new one says so itself.
        delays = self._lane.reach_ms(content.queue) > 0
        return content.missed > 0 or (not delays and message.receive_count > 1)

    # -- claiming --------------------------------------------------------------------------------

    def _work(self) -> None:
        holdings, slots = self._parts.holdings, self._parts.slots
        while not self._away and self._time.fitting():
            before = holdings.tally()
            self._round()
            self._replace()
            hungry = [line for line in self._lines if line.hungry]
            if hungry and (slots.free or any(line.claimer.unanswered for line in hungry)):
                continue
            until = self._time.until_fewer_fit_s()
            if hungry:
                waiting = any(line.receipts for line in hungry)
                with slots.turn(hungry[0].claimer.queue) as turn:
                    free = turn.wait(min(until, _PATIENCE_S) if waiting else until)
                if not free and waiting:
                    self._give_back()
            elif not holdings:
                break
            elif holdings.wait_for_settle(before, until):
                # What has ended may have freed others, and has freed a slot.
                for line in self._lines:
                    line.open = True

    def _round(self) -> None:
        """Let each queue claim once."""
        for line in self._lines:
            if not line.hungry or self._away or not self._time.fitting():
                continue
            try:
                if line.claimer.unanswered:
                    line.claimer.look_up()  # what it may have taken has its slots
                with self._parts.slots.turn(line.claimer.queue) as turn:
                    reserved = turn.reserve(LARGEST_CLAIM, 0)
                if not reserved:
                    return
                self._claim(line, reserved)
                self._rest.reset()
                self._tries = 0
            except StoreUnavailableError as error:
                self._note_outage(error)

    def _claim(self, line: _Line, reserved: int) -> None:
        receipt = line.receipts[0] if line.receipts else Receipt((), self._counters)
        try:
            claim = receipt.claim(
                line.claimer,
                reserved,
                line.cursor,
                known=self._time.known,
                slots=self._parts.slots,
                publish=self._publish,
                scan=line.scans,
                fits=self._time.fits,
                patient=True,
            )
        except StoreUnavailableError:
            raise
        except Exception as error:  # noqa: BLE001 - one run must not stand in the others' way
            self._set_apart(line, receipt, error)
            return
        if line.receipts and not receipt.ids:
            line.receipts.popleft()
        if line.scans:
            line.note(claim, asked=reserved)

    def _set_apart(self, line: _Line, receipt: Receipt, error: Exception) -> None:
        """After a claim that failed: look at its messages one by one, and scan no more."""
        scanned, line.scans, line.full = line.scans, False, False
        if not line.receipts:
            _log.error("queue %s: a scan failed", line.claimer.queue, exc_info=error)
            return
        line.receipts.popleft()
        if scanned or len(receipt.ids) > 1:  # it may be one that nobody named
            apart = receipt.split()
            self._receipts += apart
            line.receipts.extendleft(reversed(apart))
        else:
            named = ", ".join(receipt.ids)
            _log.error("run %s: it could not be looked at", named, exc_info=error)

    def _note_outage(self, error: StoreUnavailableError) -> None:
        self._tries += 1
        again = self._time.fitting() and self._time.may_ask_again()
        if self._tries >= _STORE_TRIES or not again:
            self._away = True
            _log.warning("the store is away; messages that were not looked at are kept: %s", error)
        else:
            self._pace.pause(self._parts.ended, self._rest.next_ms())

    # -- giving back -----------------------------------------------------------------------------

    def _give_back(self) -> None:
        """Decide about messages for which no slot is free, or no time left."""
        for line in self._lines:
            for receipt in line.receipts:
                receipt.give_back()
            line.full = line.full or bool(line.receipts)
            line.receipts.clear()

    def _replace(self) -> None:
        """Send anew what was decided to come back since the last time."""
        for receipt in self._receipts:
            taken = self._taken.get(receipt, 0)
            new = receipt.decisions[taken:]
            if new:
                self._taken[receipt] = taken + len(new)
                self._replacements.take(new)

    def _wake_another(self) -> None:
        """Send a wakeup for a queue that has more than could be taken here."""
        cut = not self._time.all_fit()
        for line in self._lines:
            if not (line.scans and (line.full or line.open or cut)):
                continue
            try:
                _, first = self._calls.try_once(ready_to_top_up, line.claimer.queue, 1)
            except StoreUnavailableError:
                return
            self._publish([Hint(run_id, line.claimer.queue) for run_id in first])

    def _kept(self) -> list[str]:
        decided = {
            each.message.message_id for receipt in self._receipts for each in receipt.decisions
        }
        kept = {message.message_id for message in self._replacements.kept}
        return [
            message.message_id
            for message in self._messages
            if message.message_id not in decided or message.message_id in kept
        ]
