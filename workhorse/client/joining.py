"""Enqueue in a caller's own transaction: the run exists when that commits, and is woken then.

What SQLAlchemy says about that transaction is `store.base.callers`' to know; here is what is
stored, and where the wakeups go. Only enqueue joins a transaction, and nothing in it is tried
again.

Source: docs/design.md, section 4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from workhorse.client.arming import Arming
from workhorse.client.background import Background
from workhorse.client.publishing import Publisher, predecessors_of
from workhorse.domain.hints import Hint
from workhorse.domain.ids import RunId
from workhorse.domain.runs import Enqueued, NewRun
from workhorse.ports import Lane, announce_of
from workhorse.store.base import callers, pending
from workhorse.store.base.database import Store
from workhorse.store.base.pending import Place
from workhorse.store.fleet.notifying import enqueue_and_ring

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session


class Joiner:
    """Puts runs into callers' transactions, and sends their wakeups once these have committed."""

    def __init__(
        self,
        store: Callable[[], Store],
        lane: Callable[[], Lane],
        publisher: Publisher,
        background: Background,
    ) -> None:
        self._store = store
        self._lane = lane
        self._publisher = publisher
        self._background = background
        self._arming = Arming(store)
        self._opened = False
        self._late: deque[Hint] = deque()

    def enqueue(
        self, runs: Sequence[NewRun], connection: Session | Connection, *, stride: int = 1
    ) -> list[Enqueued]:
        """Insert runs in the caller's transaction.

        Raises:
            ConfigurationError: No run could be enqueued with the caller's writes on this
                connection: it is an async one, of another kind of database, or in autocommit mode.
            IdempotencyConflictError: A key belongs to a run with another payload; none of these
                runs is inserted, and the transaction goes on.
        """
        return self._insert(callers.connection_of(connection), runs, stride)

    async def enqueue_async(
        self, runs: Sequence[NewRun], connection: AsyncSession | AsyncConnection, *, stride: int = 1
    ) -> list[Enqueued]:
        """As `enqueue`, through the caller's async driver."""
        if not self._opened:
            # The operation itself runs in the loop's thread, which must not wait for an opening.
            await self._background.call(self._open)
        return await callers.inside(connection, lambda conn: self._insert(conn, runs, stride))

    def flush(self) -> None:
        """Send what is due, and wait for the sends under way."""
        pending.flush(self._due)
        pending.flush(self._arms_due)
        self.send_late()
        self._background.settle()

    def send_late(self) -> None:
        """Send what a connection left behind that was never given back to its pool."""
        late: list[Hint] = []
        with suppress(IndexError):  # until it is empty; another thread may be at it too
            while True:
                late.append(self._late.popleft())
        self._publisher.publish(late)

    def _open(self) -> None:
        self._store()
        self._lane()
        self._opened = True

    def _insert(
        self, connection: Connection, runs: Sequence[NewRun], stride: int
    ) -> list[Enqueued]:
        store, lane = self._store(), self._lane()
        callers.check_joinable(connection, store.kind, store.description)
        insert = partial(
            enqueue_and_ring,
            store.joined(connection),
            runs,
            reach=lane.reach_ms,
            stride=stride,
            announce=announce_of(lane),
        )
        if len(runs) > 1 and any(run.key is not None for run in runs):
            # A conflict of one key leaves the others taken, for runs that are not inserted. A
            # caller who catches the error and commits must not keep these.
            with callers.all_or_nothing(connection):
                done, hints = insert()
        else:
            done, hints = insert()
        pending.hold(connection, hints, self._due)
        named = predecessors_of(runs, done)
        pending.hold(connection, [Hint(each, "") for each in named], self._arms_due)
        return done

    def _due(self, hints: Sequence[Hint], place: Place) -> None:
        match place:
            case Place.HERE:
                self._publisher.publish(hints)
            case Place.ELSEWHERE:
                self._background.submit(self._publisher.publish, hints)
            case Place.LATER:
                self._late.extend(hints)

    def _arms_due(self, hints: Sequence[Hint], place: Place) -> None:
        # Never in this thread: the caller's next transaction may have begun in it, and on SQLite
        # one writer waits for the other.
        if place is not Place.LATER:  # then maintenance does it
            self._background.submit(self._arm, [hint.run_id for hint in hints])

    def _arm(self, predecessors: Sequence[RunId]) -> None:
        self._publisher.publish(self._arming.arm(predecessors))
