"""The lane: bells that end the workers' waits, in whatever process they are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from typing import Final, Self

from lanes.bells import Belfry, BellReceiver
from lanes.notify.keeper import Keeper, Outcome, Timing
from workhorse.domain.findings import Code, Finding, Severity
from workhorse.errors import ConfigurationError, StoreUnavailableError
from workhorse.ports import Bells, LaneContext, Outgoing, SendReport
from workhorse.telemetry import Counters

_UNHEARD: Final = (
    "its bell was rung and not heard: the connection that listens goes through a pooler in "
    "transaction mode, or to another database"
)
_LATE: Final = "no answer within {:g} s; it is tried again"


class NotifyLane:
    """Carries no messages; `receive` waits, and ends early when a queue's bell is heard.

    Args:
        bells: The database's.
        counters: Where to count.
        timing: The lane's numbers.
        clock: Milliseconds from any fixed point, for the gaps between rings; a test's may stand.
    """

    carries_messages = False

    def __init__(
        self,
        bells: Bells,
        counters: Counters,
        *,
        timing: Timing | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._bells = bells
        self._timing = timing or Timing()
        self._belfry = Belfry(rest_ms=self._timing.rest_ms, changed=self._update)
        self._keeper = Keeper(
            bells,
            awaited=self._belfry.awaited,
            heard=self._belfry.ring,
            counters=counters,
            timing=self._timing,
            **({} if clock is None else {"clock": clock}),
        )

    @classmethod
    def open(cls, context: LaneContext) -> Self:
        """Open the lane; nothing is connected to yet.

        Raises:
            ConfigurationError: The store is not PostgreSQL, or is reached through a pooler in
                transaction mode and `listen_url` does not say how to get past it.
        """
        settings = context.settings
        bells = context.bells()
        if bells is None:
            raise ConfigurationError(
                "lane 'notify' needs a store on PostgreSQL, whose LISTEN and NOTIFY it uses; on "
                "SQLite use the lane 'polling', which needs nothing"
            )
        if settings.pooler and settings.listen_url is None:
            raise ConfigurationError(
                "lane 'notify' hears nothing through a pooler in transaction mode: set listen_url "
                "to the database's own address, past the pooler, or use the lane 'polling'"
            )
        return cls(bells, context.counters)

    def announce(self, queues: Collection[str]) -> Collection[str]:
        """Return the queues whose bells the store rings itself, within its transaction."""
        return self._keeper.take(queues)

    def send(self, outgoing: Sequence[Outgoing]) -> SendReport:
        """Ring the bells of the queues; where they rang a moment ago, once more in a moment."""
        outcome = self._ask(outgoing)
        try:
            trouble = None if outcome is None else outcome.result(self._timing.send_s)
        except TimeoutError:
            trouble = _LATE.format(self._timing.send_s)
        return _report(outgoing, trouble)

    async def send_async(self, outgoing: Sequence[Outgoing]) -> SendReport:
        """As `send`, without blocking the event loop."""
        outcome = self._ask(outgoing)
        if outcome is None:
            return _report(outgoing, None)
        try:
            trouble = await asyncio.wait_for(asyncio.wrap_future(outcome), self._timing.send_s)
        except TimeoutError:
            trouble = _LATE.format(self._timing.send_s)
        return _report(outgoing, trouble)

    def receiver(self, queue: str) -> BellReceiver:
        """Return a receiver, to wait with; the queue's bell is listened for until it is closed."""
        return self._belfry.receiver(queue)

    def reach_ms(self, queue: str) -> int:
        """Return 0: no ring can be delayed, timers wait for maintenance."""
        return 0

    def backlog(self, queue: str) -> int | None:
        """Return None: there are no messages to count."""
        return None

    def check(self, queue: str) -> Sequence[Finding]:
        """Ring the queue's bell as an enqueue does, and return what keeps it from being heard."""
        try:
            with closing(self._bells.open_line()) as line:
                line.hear([queue], 0)
                self._bells.ring([queue])
                until = time.monotonic() + self._timing.unheard_s
                while (left_s := until - time.monotonic()) > 0:
                    if line.hear([queue], left_s * 1000):
                        return ()
        except StoreUnavailableError as error:
            return (_unheard(queue, str(error)),)
        return (_unheard(queue, _UNHEARD),)

    def close(self) -> None:
        """Ring what is still to be rung, and end the waits of all receivers."""
        self._belfry.close()
        self._keeper.close()

    def _ask(self, outgoing: Sequence[Outgoing]) -> Outcome | None:
        # A delayed wakeup is for later: whoever scans then needs no bell now.
        queues = {each.wakeup.queue for each in outgoing if each.delay_ms <= 0}
        return self._keeper.ask(queues) if queues else None

    def _update(self) -> None:
        self._keeper.update()


def _unheard(queue: str, why: str) -> Finding:
    return Finding(
        Code.BELL_UNHEARD,
        Severity.WARNING,
        f"queue {queue}: {why}",
        "set listen_url to the database's own address; scans find its runs meanwhile, within a "
        "second",
        queue=queue,
    )


def _report(outgoing: Sequence[Outgoing], trouble: str | None) -> SendReport:
    if trouble is None:
        return SendReport(sent=len(outgoing))
    return SendReport(failed=len(outgoing), error=trouble)
