"""Sends wakeups: in batches of ten, within two tries and a bounded time, and never raises."""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, Final

from lanes import wire
from lanes.sqs.addresses import Address, Addresses
from lanes.sqs.clients import BATCH, Calls, Entry, Timing
from lanes.sqs.explaining import explain, unanswered
from lanes.sqs.faults import queue_is_gone
from lanes.sqs.runners import Runner, outcome
from workhorse.errors import ConfigurationError
from workhorse.ports import Outgoing, SendReport

MAX_DELAY_S: Final = 900


@dataclass(frozen=True, slots=True)
class _Batch:
    queue: str
    entries: Sequence[Entry]


@dataclass(slots=True)
class _Tally:
    """What a send's report is made of."""

    failed: int = 0
    error: str | None = None

    def add(self, count: int, error: str) -> None:
        if count:
            self.failed += count
            self.error = error

    def report(self, total: int) -> SendReport:
        return SendReport(sent=total - self.failed, failed=self.failed, error=self.error)


class Sender:
    """Sends over one client.

    Bounded to `Timing.send_s` for a whole send. A call that is then still under way is given up,
    not undone: its wakeups count as failed and may arrive all the same, which does no harm.
    """

    def __init__(self, calls: Calls, runner: Runner, addresses: Addresses, timing: Timing) -> None:
        self._calls = calls
        self._runner = runner
        self._addresses = addresses
        self._timing = timing
        self._ready = False

    def send(self, outgoing: Sequence[Outgoing]) -> SendReport:
        """Send, holding up the calling thread."""
        tally = _Tally()
        batches = list(self._batches(outgoing, tally))
        if batches and not self._ready:
            # Making the client costs seconds of a cold process, which are none of the broker's.
            first = self._runner.submit(self._calls.prepare)
            wait([first], timeout=self._timing.look_s)
            self._ready = first.done() and outcome(first) is None
        futures = self._submit(batches)
        wait(futures, timeout=self._timing.send_s)
        self._collect(futures, tally)
        return tally.report(len(outgoing))

    async def send_async(self, outgoing: Sequence[Outgoing]) -> SendReport:
        """Send, holding up the calling task alone. Cancelling it does not stop the sends."""
        tally = _Tally()
        batches = list(self._batches(outgoing, tally))
        if batches and not self._ready:
            first = self._runner.submit(self._calls.prepare)
            made = asyncio.wrap_future(first)
            await asyncio.wait([made], timeout=self._timing.look_s)
            if made.done() and not made.cancelled():
                made.exception()  # the first call raises it again, and reports it
            self._ready = first.done() and outcome(first) is None
        futures = self._submit(batches)
        if futures:
            waiting = [asyncio.wrap_future(future) for future in futures]
            await asyncio.wait(waiting, timeout=self._timing.send_s)
        self._collect(futures, tally)
        return tally.report(len(outgoing))

    def _submit(self, batches: Sequence[_Batch]) -> dict[Future[_Tally], _Batch]:
        deadline = time.monotonic() + self._timing.send_s
        return {self._runner.submit(self._send, batch, deadline): batch for batch in batches}

    def _collect(self, futures: dict[Future[_Tally], _Batch], tally: _Tally) -> None:
        for future, batch in futures.items():
            if future.done():
                error = outcome(future)
                if error is None:
                    result = future.result()
                    tally.add(result.failed, result.error or "")
                else:
                    tally.add(len(batch.entries), self._said(error, batch.queue))
            else:
                future.cancel()
                late = unanswered(batch.queue, self._timing.send_s)
                tally.add(len(batch.entries), late.sentence)

    def _batches(self, outgoing: Sequence[Outgoing], tally: _Tally) -> Iterator[_Batch]:
        by_queue: dict[str, list[Outgoing]] = {}
        for each in outgoing:
            by_queue.setdefault(each.wakeup.queue, []).append(each)
        for queue, those in by_queue.items():
            try:
                address = self._addresses.of(queue)
            except ConfigurationError as error:
                tally.add(len(those), str(error))
                continue
            for start in range(0, len(those), BATCH):
                part = those[start : start + BATCH]
                yield _Batch(queue, [_entry(i, each, address) for i, each in enumerate(part)])

    async def _send(self, batch: _Batch, deadline: float) -> _Tally:
        left = batch.entries
        tally = _Tally()
        for last in (False, True):
            try:
                url = await self._addresses.url(self._calls, batch.queue)
                failures = await self._calls.send_batch(url, left)
            except Exception as error:  # noqa: BLE001  (whatever the SDK raises, nothing was sent)
                gone = queue_is_gone(error)
                if gone:
                    self._addresses.forget(batch.queue)
                # The SDK has repeated the call already; a new URL is the one thing to try besides.
                if last or not gone or time.monotonic() >= deadline:
                    tally.add(len(left), self._said(error, batch.queue))
                    return tally
            else:
                if last or not failures or time.monotonic() >= deadline:
                    codes = ", ".join(sorted({failure.code for failure in failures}))
                    what = f"queue {batch.queue}: SQS did not take entries of a batch: {codes}"
                    tally.add(len(failures), what)
                    return tally
                again = {failure.entry_id for failure in failures}
                left = [entry for entry in left if entry["Id"] in again]
        return tally

    def _said(self, error: BaseException, queue: str) -> str:
        address = self._addresses.of(queue)
        return explain(error, queue, address, self._calls.region).sentence


def _entry(index: int, outgoing: Outgoing, address: Address) -> Entry:
    entry: dict[str, Any] = {"Id": str(index), "MessageBody": wire.encode(outgoing.wakeup)}
    if address.fifo:
        # FIFO queues know no delay per message. A group per run lets runs pass each other; the
        # second wakeup of a run within five minutes must not be taken for a copy of the first.
        entry["MessageGroupId"] = outgoing.wakeup.run_id
        entry["MessageDeduplicationId"] = str(uuid.uuid4())
    else:
        delay_s = min(MAX_DELAY_S, math.ceil(outgoing.delay_ms / 1000))
        if delay_s > 0:
            entry["DelaySeconds"] = delay_s
    return entry
