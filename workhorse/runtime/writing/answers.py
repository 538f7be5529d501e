"""Answers of one commit to the handlers that wait for them.

Source: docs/design.md, section 6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from workhorse.domain.hints import Hint
from workhorse.domain.ids import RunId
from workhorse.domain.outcomes import Suspend
from workhorse.runtime.activations.requests import ToRead, ToRecord
from workhorse.runtime.writing.batching import Batch, Committed


class Answers:
    """Collects answers and gives them: those for the event loop cross to it in one call.

    Waking the loop is a system call; a commit may bear hundreds of answers.

    Args:
        post: Has a callable called in the loop's thread; False when there is no loop.
    """

    def __init__(self, post: Callable[[Callable[[], None]], bool]) -> None:
        self._post = post
        self._here: list[Callable[[], object]] = []
        self._there: list[Callable[[], object]] = []

    def add(self, asked: ToRecord | ToRead, answer: object) -> None:
        """Have a handler answered."""
        recorder, pending = asked.recorder, asked.pending
        recorder.forget(pending)
        give = self._there if recorder.in_loop else self._here
        give.append(lambda: pending.answer(answer))  # type: ignore[arg-type] # of its own kind

    def give(self) -> None:
        """Give all that was collected, once."""
        here, self._here = self._here, []
        there, self._there = self._there, []

        def give_there() -> None:
            for each in there:
                each()

        if there and not self._post(give_there):
            give_there()
        for each in here:
            each()


def answer_all(batch: Batch, done: Committed, answers: Answers) -> list[Hint]:
    """Tell recorders what a commit brought, collect the answers, and return the wakeups to send."""
    unsent: set[RunId] = set()
    for asked, answer in zip(batch.records, done.recorded.answers, strict=True):
        error = asked.recorder.take(asked.record, answer)
        asked.taken = True
        if error is None:
            answers.add(asked, answer)
            continue
        asked.pending.fail(error)
        if asked.record.child is not None:
            unsent.add(asked.record.child.run.id)
    for read, value in zip(batch.reads, done.values, strict=True):
        read.taken = True
        answers.add(read, value)
    for said in batch.progress:
        said.taken = True
        if said.recorder.unwritten is not None and said.value is not None:
            said.recorder.unwritten.is_written(said.value)
    unsent.update(_crashed_at_waits(batch, done))
    hints = [*done.recorded.hints, *done.settled.hints, *done.mine.hints]
    return [hint for hint in hints if hint.run_id not in unsent]


def _crashed_at_waits(batch: Batch, done: Committed) -> Iterator[RunId]:
    """Tell a test of the waits that were committed; answer the runs whose wakeups go unsent."""
    for each in batch.settles:
        settlement = each.activation.settlement
        if isinstance(settlement, Suspend) and each.lease.run_id in done.settled.written:
            names = [wait.name for wait in settlement.waits if wait.new is not None]
            if each.activation.recorder.take_waits(names):
                yield each.lease.run_id
