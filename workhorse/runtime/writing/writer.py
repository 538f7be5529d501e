"""The writer: boundaries, progress and settles of many runs, in one commit for all that wait.

What is offered is repeated until the store answers or the process ends. Nothing waits for a timer:
while one commit is under way the next batch gathers, so batches grow with the load.

Source: docs/design.md, sections 3 and 6.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Sequence

from workhorse.domain.hints import Hint, Reach
from workhorse.domain.ids import RunId
from workhorse.domain.runs import RunState
from workhorse.errors import StoreUnavailableError
from workhorse.runtime.activations.activation import Activation
from workhorse.runtime.activations.entries import (
    decide,
    entry_of,
    is_refusal,
    refusal,
)
from workhorse.runtime.activations.requests import Item, ToProgress, ToRead, ToRecord, ToSettle
from workhorse.runtime.base.calls import StoreCalls, lock_not_got, refuses_value
from workhorse.runtime.base.pace import Backoff, Pace
from workhorse.runtime.writing.answers import Answers, answer_all
from workhorse.runtime.writing.apart import SetApart
from workhorse.runtime.writing.batching import (
    Batch,
    Committed,
    gather,
    write_batch,
    write_successes,
)
from workhorse.runtime.writing.refusals import refuse, refuse_progress, say_left_out
from workhorse.store.durable.freeing import free_all
from workhorse.telemetry import get_logger

_log = get_logger("worker")


class Writer:
    """Commits what handlers ask for and how activations end. Safe in threads, but for `serve`.

    Args:
        settled: Told what was written for whom; None where the token was gone and nothing was.
        published: Takes the wakeups that follow a commit.
        post: Has a callable called in the event loop's thread; False when there is no loop.
        reach: How far ahead a delayed wakeup can be sent for a queue.
    """

    def __init__(
        self,
        calls: StoreCalls,
        *,
        reach: Reach,
        settled: Callable[[Sequence[tuple[Activation, RunState | None]]], None],
        published: Callable[[Sequence[Hint]], None],
        post: Callable[[Callable[[], None]], bool],
        pace: Pace,
    ) -> None:
        self._calls = calls
        self._reach = reach
        self._settled = settled
        self._published = published
        self._post = post
        self._pace = pace
        self._draw = random.Random()  # noqa: S311 - jitter, not a secret
        self._changed = threading.Condition()
        self._waiting: deque[Item] = deque()
        self._apart = SetApart(pace)
        self._writing = 0
        self._closed = False
        self._ended = False
        self._abandoned = threading.Event()

    def offer(self, activations: Sequence[Activation]) -> None:
        """Have the outcomes of activations written; each is offered once."""
        with self._changed:
            self._waiting.extend([ToSettle(each) for each in activations])
            self._changed.notify_all()

    def ask(self, item: Item) -> bool:
        """Have something written or read; False when the writer has ended."""
        with self._changed:
            if self._ended:
                return False
            self._waiting.append(item)
            self._changed.notify_all()
            return True

    def flush(self, timeout: float) -> bool:
        """Wait until all that was offered is written, or the seconds are over; answer which."""
        with self._changed:
            return self._changed.wait_for(self._is_idle, timeout)

    def close(self, *, abandon: bool = False) -> None:
        """End the loop once all is written; `abandon` gives up what the store does not take."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if abandon:
            self._abandoned.set()

    def end(self) -> None:
        """Take nothing any more: nobody is left who would write it."""
        with self._changed:
            self._ended = True

    def serve(self) -> None:
        """Write until closed: the body of the loop."""
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    rest = self._apart.due_in()
                    if rest is not None and rest <= 0:
                        break
                    self._changed.wait(None if rest is None else rest / 1000)
                if self._closed and (self._is_idle() or self._abandoned.is_set()):
                    return
                self._writing = len(self._waiting)
                batch = gather(self._waiting, self._prepare)
                self._writing = len(batch)
            try:
                if batch:
                    self._drop_lost(batch)
                    self._write(batch)
                # One beside a batch: each may wait for its row, and what comes next with it.
                self._write_apart(most=1 if batch else None)
            except BaseException:
                self._put_back(batch)
                raise
            finally:
                with self._changed:
                    self._writing = 0
                    self._changed.notify_all()

    # -- a batch ---------------------------------------------------------------------------------

    def _prepare(self, item: Item) -> bool:
        """Make what is written out of what was asked for; False where nothing is to be written."""
        if type(item) is ToSettle:
            decide(item.activation, self._draw)
            # What was set apart and is still not stored, never is: the handler has ended.
            item.progress = item.activation.recorder.close()
        elif type(item) is ToProgress:
            unwritten = item.recorder.unwritten
            item.value = unwritten.take() if unwritten is not None else None
            return item.value is not None
        return not item.done

    def _drop_lost(self, batch: Sequence[Item]) -> None:
        """Settle without a word what was lost while it waited."""
        settles = [each for each in batch if type(each) is ToSettle]
        lost = [each.activation for each in settles if each.activation.lost]
        if lost:
            self._settled([(each, None) for each in lost])

    def _write(self, items: Sequence[Item]) -> None:
        backoff = Backoff(50, 5_000)
        failure: Exception | None = None
        while failure is None and not self._abandoned.is_set():
            batch = Batch.of(items)
            if not batch:
                return
            try:
                done = self._commit(batch)
            except StoreUnavailableError as error:
                if lock_not_got(error):
                    failure = error
                else:
                    self._pace.pause(self._abandoned, backoff.next_ms())
            except Exception as error:  # noqa: BLE001 - it is named, and the offer is repeated
                failure = error
            else:
                self._take(batch, done)
                return
        if failure is not None:
            self._split([each for each in items if not each.done], failure)

    def _commit(self, batch: Batch) -> Committed:
        if self._calls.store.dialect.one_statement:
            successes = batch.successes()
            if successes is not None:
                return self._calls.try_once(write_successes, batch, successes)
        entries = [entry_of(each.activation) for each in batch.settles]
        return self._calls.try_once(write_batch, batch, entries, reach=self._reach)

    def _take(self, batch: Batch, done: Committed) -> None:
        """Give the answers of a commit, and send the wakeups that follow from it."""
        answers = Answers(self._post)
        try:
            hints = answer_all(batch, done, answers)
        finally:
            answers.give()  # whatever fails here, nobody waits in vain
        self._published(hints)
        freed = [*done.settled.freed, *done.mine.freed]
        if freed:
            # Before anybody hears of the settle: a drain then looks for what has become ready.
            self._free(freed)
        if batch.settles:
            states = done.states
            self._settled(
                [(each.activation, states.get(each.lease.run_id)) for each in batch.settles]
            )

    def _free(self, ended: Sequence[RunId]) -> None:
        """Wake who waited for the end of these runs: one pass, maintenance does what it leaves."""
        try:
            freed = self._calls.try_once(free_all, ended)
        except Exception as error:  # noqa: BLE001 - what is noted in the store is not lost
            _log.warning(
                "who waits for the end of %d runs is left to maintenance (%s)",
                len(ended),
                type(error).__name__,
            )
        else:
            self._published(freed.hints)

    # -- what fails ------------------------------------------------------------------------------

    def _split(self, items: Sequence[Item], error: Exception) -> None:
        """Find the guilty one: halve the batch until it stands alone; the others go through."""
        if len(items) > 1:
            half = len(items) // 2
            self._write(items[:half])
            self._write(items[half:])
            return
        for item in items:
            match item:
                case ToSettle():
                    self._refuse_settle(item, error)
                case ToProgress():
                    refuse_progress(item, error)
                case ToRecord() | ToRead():
                    if lock_not_got(error):
                        self._set_apart(item, "a boundary of it", error)
                    else:
                        refuse(item, error)

    def _refuse_settle(self, item: ToSettle, error: Exception) -> None:
        activation = item.activation
        if item.progress is not None and not lock_not_got(error):
            say_left_out(item, error)
            item.progress = None  # it may be the guilty one, and is worth less
            self._write([item])
        elif refuses_value(error) and not is_refusal(activation.settlement):
            _log.error(
                "run %s: the store refused what its handler came to (%s); it is settled as failed",
                activation.claimed.id,
                type(error).__name__,
            )
            activation.settlement = refusal(error)
            self._write([item])
        else:
            self._set_apart(item, "its end", error)

    # -- what stands alone -----------------------------------------------------------------------

    def _set_apart(self, item: Item, what: str, error: Exception) -> None:
        _log.warning(
            "run %s: %s could not be stored (%s); it is offered again",
            item.lease.run_id,
            what,
            "its row is locked" if lock_not_got(error) else type(error).__name__,
            exc_info=None if lock_not_got(error) else error,
        )
        with self._changed:
            self._apart.add(item)

    def _write_apart(self, most: int | None) -> None:
        with self._changed:
            due = self._apart.take_due(most)
        for item in due:
            self._write([item])
            with self._changed:
                self._apart.remove(item)

    def _is_idle(self) -> bool:
        return not self._waiting and not self._apart.waited_for and not self._writing

    def _put_back(self, batch: Sequence[Item]) -> None:
        """Offer again what a failure of the loop itself left undone."""
        with self._changed:
            self._waiting.extendleft(
                each for each in reversed(batch) if not each.done and each not in self._apart
            )
            self._apart.hurry()
