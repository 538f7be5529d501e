"""Deletes messages and sets when they are visible again, off the receiver's path.

What is to be done waits in line and goes out in batches of ten, a few calls at a time; under load
the fates of several receives share a call. What fails comes back by itself after the queue's
visibility time-out, so a failure is counted, logged without bodies, and forgotten.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final

from lanes.sqs.addresses import Addresses
from lanes.sqs.clients import BATCH, Calls, Entry, Failure
from lanes.sqs.explaining import explain
from lanes.sqs.faults import LaneClosedError, describe, queue_is_gone
from lanes.sqs.runners import Runner, outcome
from workhorse.domain.sightings import Fate, ShowAgain
from workhorse.ports import Message
from workhorse.telemetry import Counters, Metric, get_logger

MAX_VISIBILITY_S: Final = 43_200
MOST_WAITING: Final = 10_000
"""Beyond it the oldest are dropped: by then the broker has been away for long."""
_AT_ONCE: Final = 2
_SAID_AGAIN_S: Final = 60.0
"""How often the same failure is logged; how many messages it was about is added up."""

_log = get_logger("lanes.sqs")


class Settler:
    """Settles the messages of one queue."""

    def __init__(
        self, queue: str, calls: Calls, runner: Runner, addresses: Addresses, counters: Counters
    ) -> None:
        self._queue = queue
        self._calls = calls
        self._runner = runner
        self._addresses = addresses
        self._counters = counters
        self._changed = threading.Condition()
        self._deletes: deque[Entry] = deque(maxlen=MOST_WAITING)
        self._changes: deque[Entry] = deque(maxlen=MOST_WAITING)
        self._flying = 0
        self._unsaid = 0
        self._said = ("", -math.inf)

    def add(self, fates: Sequence[tuple[Message, Fate]]) -> None:
        """Take note of what is to be done, and see to it. Never raises, never waits for SQS."""
        dropped = 0
        with self._changed:
            for message, fate in fates:
                if not isinstance(message.handle, str):
                    continue
                line = self._deletes
                entry: dict[str, object] = {"ReceiptHandle": message.handle}
                if isinstance(fate, ShowAgain):
                    line = self._changes
                    seconds = max(0, min(MAX_VISIBILITY_S, math.ceil(fate.after_ms / 1000)))
                    entry["VisibilityTimeout"] = seconds
                dropped += len(line) == MOST_WAITING
                line.append(entry)
        self._failed(dropped, "too many messages wait for it")
        self._pump()

    def flush(self, timeout_s: float) -> bool:
        """Wait until nothing is left to do; returns whether that came in time."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._deletes or self._changes or self._flying:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def _pump(self) -> None:
        while True:
            with self._changed:
                # What is to be seen again comes first: somebody may be free to take it now.
                line = self._changes or self._deletes
                if self._flying == _AT_ONCE or not line:
                    return
                deleting = line is self._deletes
                taken = [line.popleft() for _ in range(min(BATCH, len(line)))]
                self._flying += 1
            entries = [{"Id": str(index), **entry} for index, entry in enumerate(taken)]
            future = self._runner.submit(self._settle, entries, deleting=deleting)
            future.add_done_callback(partial(self._landed, len(entries)))

    def _landed(self, count: int, future: Future[None]) -> None:
        error = outcome(future)
        with self._changed:
            self._flying -= 1
            if isinstance(error, LaneClosedError):
                count += len(self._deletes) + len(self._changes)
                self._deletes.clear()
                self._changes.clear()
            self._changed.notify_all()
        if error is not None:
            self._failed(count, describe(error))
        self._pump()

    async def _settle(self, entries: Sequence[Entry], *, deleting: bool) -> None:
        left = entries
        failures: Sequence[Failure] = ()
        for _ in range(2):
            try:
                url = await self._addresses.url(self._calls, self._queue)
                if deleting:
                    failures = await self._calls.delete_batch(url, left)
                else:
                    failures = await self._calls.change_visibility_batch(url, left)
            except Exception as error:  # noqa: BLE001  (whatever the SDK raises)
                if queue_is_gone(error):
                    self._addresses.forget(self._queue)
                address = self._addresses.of(self._queue)
                found = explain(error, self._queue, address, self._calls.region)
                self._failed(len(left), found.sentence.removeprefix(f"queue {self._queue}: "))
                return
            if not failures:
                return
            again = {failure.entry_id for failure in failures}
            left = [entry for entry in left if entry["Id"] in again]
        codes = ", ".join(sorted({failure.code for failure in failures}))
        self._failed(len(failures), f"SQS did not take entries of a batch: {codes}")

    def _failed(self, count: int, why: str) -> None:
        if not count:
            return
        self._counters.add(Metric.MESSAGE_SETTLE_ERRORS, count)
        with self._changed:
            self._unsaid += count
            now = time.monotonic()
            if why == self._said[0] and now - self._said[1] < _SAID_AGAIN_S:
                return  # a permission that is missing fails each batch
            self._said = (why, now)
            count, self._unsaid = self._unsaid, 0
        _log.warning(
            "queue %s: %d messages were not settled and will come back: %s",
            self._queue,
            count,
            why,
        )
