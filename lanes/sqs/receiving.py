"""Receives messages of one SQS queue by long polling."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from typing import Any, Final

from lanes import wire
from lanes.sqs.addresses import Addresses
from lanes.sqs.clients import BATCH, Calls, Raw, Timing
from lanes.sqs.explaining import SqsError, explain, unanswered
from lanes.sqs.faults import queue_is_gone
from lanes.sqs.runners import Runner, outcome
from lanes.sqs.settling import Settler
from workhorse.domain.sightings import Fate, ShowAgain
from workhorse.ports import Message
from workhorse.telemetry import get_logger

MOST_AHEAD: Final = 8
"""The most receives beside the first, while messages keep coming."""
_LEAST_WAIT_S: Final = 1.0

_log = get_logger("lanes.sqs")


class SqsReceiver:
    """Takes messages of one queue.

    A call makes one receive. While that brings ten messages and more are wanted, further ones are
    made beside each other, which do not wait for messages: one, then two, then four, up to eight
    while all of them come full. So an idle queue never has more than one receive outstanding.
    """

    def __init__(
        self,
        queue: str,
        calls: Calls,
        runner: Runner,
        addresses: Addresses,
        timing: Timing,
        settler: Settler,
        on_close: Callable[[SqsReceiver], None],
    ) -> None:
        self._queue = queue
        self._calls = calls
        self._runner = runner
        self._addresses = addresses
        self._timing = timing
        self._settler = settler
        self._on_close = on_close
        self._closed: Future[None] = Future()
        self._ready = False
        self._ahead = 1

    def receive(self, limit: int, wait_ms: int) -> Sequence[Message]:
        """Return up to `limit` messages, waiting up to `wait_ms` for the first.

        SQS waits whole seconds, up to 20. A wait of 0 is a short poll, which returns at once and
        may miss messages; any other is at least one second, so that calling again and again with
        a short wait neither spins nor costs more than a call a second.
        """
        if limit < 1 or self._closed.done():
            return []
        wait_s = self._wait_s(wait_ms)
        self._prepare()
        clock = self._timing.clock
        began = clock()
        messages = self._finish(self._submit(min(limit, BATCH), wait_s), wait_s)
        if not messages and wait_s:
            # A broker that does not hold the poll must not be asked in a tight loop.
            wait([self._closed], timeout=max(0.0, began + _LEAST_WAIT_S - clock()))
        if len(messages) == BATCH and limit > BATCH:
            messages += self._more(limit - BATCH)
        if self._closed.done():
            self._give_back(messages)
            return []
        return messages

    def settle(self, fates: Sequence[tuple[Message, Fate]]) -> None:
        """Delete messages or show them again, in the background; see `Settler`."""
        self._settler.add(fates)

    def close(self) -> None:
        """End a receive that is under way; what it still brings is made visible again at once."""
        with contextlib.suppress(InvalidStateError):  # closed before
            self._closed.set_result(None)
        self._on_close(self)

    def _wait_s(self, wait_ms: int) -> int:
        if wait_ms <= 0:
            return 0
        return max(1, min(self._timing.long_poll_s, round(wait_ms / 1000)))

    def _prepare(self) -> None:
        if not self._ready:
            first = self._runner.submit(self._calls.prepare)
            self._wait(first, self._timing.look_s)
            self._ready = first.done() and outcome(first) is None

    def _submit(self, limit: int, wait_s: int) -> Future[list[Message]]:
        return self._runner.submit(self._receive, limit, wait_s)

    def _finish(self, future: Future[list[Message]], wait_s: int) -> list[Message]:
        """Wait for a receive, the closing, or the time that it may take."""
        timing = self._timing
        patience_s = min(wait_s + timing.grace_s, timing.long_read_s) + timing.long_connect_s
        self._wait(future, patience_s)
        if future.done() and not self._closed.done():
            error = outcome(future)
            if error is not None:
                address = self._addresses.of(self._queue)
                raise SqsError(explain(error, self._queue, address, self._calls.region))
            return future.result()
        future.cancel()
        future.add_done_callback(self._give_back_late)
        if self._closed.done():
            return []
        raise SqsError(unanswered(self._queue, patience_s))

    def _wait(self, future: Future[Any], timeout_s: float) -> None:
        futures: list[Future[Any]] = [future, self._closed]
        wait(futures, timeout=timeout_s, return_when=FIRST_COMPLETED)

    def _more(self, wanted: int) -> list[Message]:
        """Take what else is there, after a receive that came full."""
        sizes = [BATCH] * (wanted // BATCH) + ([wanted % BATCH] if wanted % BATCH else [])
        sizes = sizes[: self._ahead]
        futures = [self._submit(size, 0) for size in sizes]
        messages: list[Message] = []
        for future in futures:
            try:
                messages += self._finish(future, 0)
            except Exception as error:  # noqa: BLE001  (what the others brought is worth more)
                _log.debug("queue %s: a further receive failed: %s", self._queue, error)
        full = len(messages) == sum(sizes)
        self._ahead = min(MOST_AHEAD, self._ahead * 2) if full else 1
        return messages

    async def _receive(self, limit: int, wait_s: int) -> list[Message]:
        try:
            url = await self._addresses.url(self._calls, self._queue)
            return [_message(raw) for raw in await self._calls.receive(url, limit, wait_s)]
        except Exception as error:
            if queue_is_gone(error):
                self._addresses.forget(self._queue)
            raise

    def _give_back_late(self, future: Future[list[Message]]) -> None:
        if outcome(future) is None:
            self._give_back(future.result())

    def _give_back(self, messages: Sequence[Message]) -> None:
        if messages:
            self._settler.add([(message, ShowAgain(0)) for message in messages])


def _message(raw: Raw) -> Message:
    return Message(raw.message_id, wire.decode(raw.body), raw.receive_count, raw.receipt_handle)
