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
from workhorse.domain.outcomes import Suspend
from workhorse.domain.runs import RunState
from workhorse.errors import StoreUnavailableError, UnstorableValueError, WorkhorseError
from workhorse.runtime.activation import Activation
from workhorse.runtime.answers import Answers
from workhorse.runtime.batching import Batch, Committed, gather, write_batch
from workhorse.runtime.calls import StoreCalls, lock_not_got, refuses_value
from workhorse.runtime.entries import decide, entry_of, is_refusal, refusal, written_state
from workhorse.runtime.pace import Backoff, Pace
from workhorse.runtime.requests import Item, ToProgress, ToRead, ToRecord, ToSettle
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
        self._apart: list[_Apart] = []
        self._writing = 0
        self._closed = False
        self._ended = False
        self._abandoned = threading.Event()

    def offer(self, activations: Sequence[Activation]) -> None:
        """Have the outcomes of activations written; each is offered once."""
        with self._changed:
            self._waiting.extend(ToSettle(each) for each in activations)
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
                    rest = self._until_apart()
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
                else:
                    self._write_apart()
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
        match item:
            case ToSettle(activation):
                decide(activation, self._draw)
                # What was set apart and is still not stored, never is: the handler has ended.
                item.progress = activation.recorder.close()
            case ToProgress(recorder):
                item.value = recorder.unwritten.take() if recorder.unwritten is not None else None
                return item.value is not None
        return not item.done

    def _drop_lost(self, batch: Sequence[Item]) -> None:
        """Settle without a word what was lost while it waited."""
        settles = [each.activation for each in batch if isinstance(each, ToSettle)]
        lost = [(each, None) for each in settles if each.lost]
        if lost:
            self._settled(lost)

    def _write(self, items: Sequence[Item]) -> None:
        backoff = Backoff(50, 5_000)
        failure: Exception | None = None
        while failure is None and not self._abandoned.is_set():
            batch = Batch.of(items)
            if not batch:
                return
            try:
                entries = [entry_of(each.activation) for each in batch.settles]
                done = self._calls.try_once(write_batch, batch, entries, reach=self._reach)
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

    def _take(self, batch: Batch, done: Committed) -> None:
        """Give the answers of a commit, and send the wakeups that follow from it."""
        answers = Answers(self._post)
        unsent: set[RunId] = set()
        try:
            self._collect(batch, done, answers, unsent)
        finally:
            answers.give()  # whatever fails here, nobody waits in vain
        hints = [*done.recorded.hints, *done.settled.hints]
        self._published([hint for hint in hints if hint.run_id not in unsent])
        if batch.settles:
            ended = [each.activation for each in batch.settles]
            self._settled([(each, written_state(each, done.settled, done.mine)) for each in ended])

    def _collect(self, batch: Batch, done: Committed, answers: Answers, unsent: set[RunId]) -> None:
        for asked, answer in zip(batch.records, done.recorded.answers, strict=True):
            asked.taken = True
            error = asked.recorder.take(asked.record, answer)
            if error is None:
                asked.recorder.forget(asked.pending)
                answers.add(_answering(asked, answer), in_loop=asked.recorder.in_loop)
            else:
                asked.pending.fail(error)
                if asked.record.child is not None:
                    unsent.add(asked.record.child.run.id)
        for read, value in zip(batch.reads, done.values, strict=True):
            read.taken = True
            read.recorder.forget(read.pending)
            answers.add(_answering(read, value), in_loop=read.recorder.in_loop)
        for said in batch.progress:
            said.taken = True
            if said.recorder.unwritten is not None and said.value is not None:
                said.recorder.unwritten.is_written(said.value)
        unsent |= _crashed_at_waits(batch, done)

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
                case ToProgress(recorder):
                    item.taken = True
                    self._refuse_progress(item, error)
                    if recorder.unwritten is not None and lock_not_got(error):
                        recorder.unwritten.put_off()
                case ToRecord() | ToRead():
                    if lock_not_got(error):
                        self._set_apart(item, "a boundary of it", error)
                    else:
                        item.taken = True
                        item.recorder.forget(item.pending)
                        item.pending.fail(_refused(item, error))

    def _refuse_settle(self, item: ToSettle, error: Exception) -> None:
        activation = item.activation
        if item.progress is not None and not lock_not_got(error):
            self._refuse_progress(item, error)
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

    def _refuse_progress(self, item: ToProgress | ToSettle, error: Exception) -> None:
        if not lock_not_got(error):
            _log.warning(
                "run %s: its progress could not be stored (%s); it is left out",
                item.lease.run_id,
                type(error).__name__,
            )

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
            apart = next((each for each in self._apart if each.item is item), None)
            if apart is None:
                apart = _Apart(item)
                self._apart.append(apart)
            apart.due_ms = self._pace.now_ms() + apart.backoff.next_ms()

    def _write_apart(self) -> None:
        now = self._pace.now_ms()
        with self._changed:
            due = [each for each in self._apart if each.due_ms <= now]
        for each in due:
            each.due_ms = float("inf")
            self._write([each.item])
            if each.due_ms == float("inf"):  # nobody set it apart again
                with self._changed:
                    self._apart.remove(each)

    def _until_apart(self) -> float | None:
        if not self._apart:
            return None
        return min(each.due_ms for each in self._apart) - self._pace.now_ms()

    def _is_idle(self) -> bool:
        apart = any(not each.item.done for each in self._apart)
        return not self._waiting and not apart and not self._writing

    def _put_back(self, batch: Sequence[Item]) -> None:
        """Offer again what a failure of the loop itself left undone."""
        with self._changed:
            apart = [each.item for each in self._apart]
            self._waiting.extendleft(
                each for each in reversed(batch) if not each.done and each not in apart
            )
            now = self._pace.now_ms()
            for each in self._apart:
                each.due_ms = min(each.due_ms, now + 1_000)


class _Apart:
    """An offer that failed alone: it is repeated by itself, less and less often."""

    __slots__ = ("backoff", "due_ms", "item")

    def __init__(self, item: Item) -> None:
        self.item = item
        self.backoff = Backoff(1_000, 30_000)
        self.due_ms = 0.0


def _answering(asked: ToRecord | ToRead, answer: object) -> Callable[[], object]:
    pending = asked.pending
    return lambda: pending.answer(answer)  # type: ignore[arg-type] # of its own kind


def _refused(item: ToRecord | ToRead, error: Exception) -> Exception:
    """Return what a handler gets for a request that the database refuses by itself."""
    name = item.record.boundary.name if isinstance(item, ToRecord) else item.request.name
    what = f"run {item.lease.run_id}: boundary '{name}'"
    answer: Exception
    if isinstance(item, ToRead):
        answer = WorkhorseError(f"{what} could not be read ({type(error).__name__})")
    elif refuses_value(error):
        answer = UnstorableValueError(
            f"{what} cannot be stored: the database refused its value ({type(error).__name__}); "
            "nothing was stored"
        )
    else:
        answer = WorkhorseError(
            f"{what} could not be stored ({type(error).__name__}); nothing was stored"
        )
    answer.__cause__ = error
    return answer


def _crashed_at_waits(batch: Batch, done: Committed) -> set[RunId]:
    """Tell a test of the waits that were committed; answer the runs whose wakeups go unsent."""
    crashed: set[RunId] = set()
    for each in batch.settles:
        settlement = each.activation.settlement
        if isinstance(settlement, Suspend) and each.lease.run_id in done.settled.written:
            names = [wait.name for wait in settlement.waits if wait.new is not None]
            if each.activation.recorder.taken_waits(names):
                crashed.add(each.lease.run_id)
    return crashed
