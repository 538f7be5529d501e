"""The demo's sums: what the store and the counters say, checked against the handlers' ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from workhorse.cli.demo.ledger import END, ERROR, START, Line
from workhorse.domain.ids import RunId
from workhorse.domain.runs import Reason, RunState, RunView
from workhorse.store import history, viewing
from workhorse.store.database import Tx
from workhorse.store.history import Attempt

_PAGE = 500


@dataclass(frozen=True, slots=True)
class Books:
    """What the store says when all is over: each run, and its failed attempts."""

    runs: list[RunView]
    attempts: Mapping[str, list[Attempt]]


@dataclass(slots=True)
class Reckoning:
    """The demo's figures, and all that does not add up."""

    runs: int
    succeeded: int
    recovered: int
    retried: int
    stale: int
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"demo: {self.runs} runs, {self.succeeded} succeeded, {self.recovered} recovered, "
            f"{self.retried} retried, {self.stale} stale wakeups ignored"
        )


def read_books(tx: Tx) -> Books:
    """Read all runs and their failed attempts."""
    runs: list[RunView] = []
    page = viewing.list_runs(tx, limit=_PAGE)
    while page:
        runs += page
        page = viewing.list_runs(tx, limit=_PAGE, before=page[-1].id)
    return Books(runs, {run.id: history.attempts_of(tx, run.id) for run in runs})


def reckon(
    books: Books,
    lines: Sequence[Line],
    *,
    expected: Mapping[str, int],
    killed_with: Collection[tuple[RunId, int]],
    stale: int,
    stale_sent: int,
) -> Reckoning:
    """Return the figures, and what disagrees between store, counters and ledger.

    Args:
        books: What the store says.
        lines: What the handlers wrote.
        expected: How many runs of each task the orders make.
        killed_with: The leases (run, fence) that the killed worker held, by the store.
        stale: Wakeups that the workers counted as stale.
        stale_sent: Wakeups that were sent for runs that had succeeded before.
    """
    reasons = Counter(each.reason for rows in books.attempts.values() for each in rows)
    sums = Reckoning(
        runs=len(books.runs),
        succeeded=sum(run.state is RunState.SUCCEEDED for run in books.runs),
        recovered=reasons[Reason.LOST],
        retried=reasons[Reason.ERROR],
        stale=stale,
    )
    sums.problems += _of_the_sums(sums, books, expected, stale_sent)
    events = {event: _marks(lines, event) for event in (START, END, ERROR)}
    sums.problems += _of_the_ledger(books, events)
    for run in books.runs:
        sums.problems += _of_a_run(run, books.attempts[run.id], events)
    for run_id, fence in killed_with:
        rows = books.attempts.get(run_id, [])
        if not any(row.fence == fence and row.reason is Reason.LOST for row in rows):
            sums.problems.append(
                f"run {run_id}: the lease {fence} died, and no lost attempt says so"
            )
    return sums


Marks = Counter[tuple[str, int]]


def _marks(lines: Sequence[Line], event: str) -> Marks:
    return Counter((line.mark.run, line.mark.fence) for line in lines if line.event == event)


def _of_the_sums(
    sums: Reckoning, books: Books, expected: Mapping[str, int], stale_sent: int
) -> Iterator[str]:
    by_task = Counter(run.task for run in books.runs)
    if by_task != Counter(expected):
        yield f"the orders make {dict(expected)}, and the store has {dict(by_task)}"
    if sums.succeeded != sums.runs:
        yield f"{sums.runs - sums.succeeded} runs have not succeeded"
    if sums.stale < stale_sent:
        yield f"{stale_sent} stale wakeups were sent and {sums.stale} were counted"
    for figure in ("recovered", "retried", "stale"):
        if getattr(sums, figure) < 1:
            yield f"nothing was {figure}, though the demo saw to it"


def _of_the_ledger(books: Books, events: Mapping[str, Marks]) -> Iterator[str]:
    known = {run.id for run in books.runs}
    for (run_id, fence), count in events[START].items():
        if count > 1:
            yield f"run {run_id}: started {count} times under the lease {fence}"
        if run_id not in known:
            yield f"run {run_id}: in the ledger and not in the store"


def _of_a_run(run: RunView, rows: Sequence[Attempt], events: Mapping[str, Marks]) -> Iterator[str]:
    if run.attempt != len(rows) + 1:
        yield f"run {run.id}: attempt {run.attempt} after {len(rows)} failed ones"
    if not events[END][run.id, run.fence]:
        yield f"run {run.id}: no handler ended under its last lease {run.fence}"
    failed = {row.fence: row.reason for row in rows}
    for row in rows:
        if row.reason is Reason.ERROR and not events[ERROR][run.id, row.fence]:
            yield f"run {run.id}: the store has an error of lease {row.fence}, the ledger none"
    for event in (START, END, ERROR):
        for run_id, fence in events[event]:
            if run_id == run.id and not _accounted(event, fence, run.fence, failed):
                yield f"run {run.id}: the ledger has `{event}` of lease {fence}, the store does not"


def _accounted(event: str, fence: int, last: int, failed: Mapping[int, Reason]) -> bool:
    """Whether the store explains a line: a handler can end, and die before its settle."""
    if fence == last:
        return event != ERROR
    reason = failed.get(fence)
    if event == ERROR:
        return reason in (Reason.ERROR, Reason.LOST)
    return reason is Reason.LOST or (event == START and reason is Reason.ERROR)
