"""The demo's sums: what the store and the counters say, checked against the handlers' ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from workhorse.cli.demo import shelf
from workhorse.cli.demo.ledger import EFFECT, END, ERROR, PAUSE, START, Line
from workhorse.domain.ids import RunId
from workhorse.domain.runs import Reason, RunState, RunView
from workhorse.store.base.database import Tx
from workhorse.store.operators import history, inspecting, viewing
from workhorse.store.operators.history import Attempt
from workhorse.store.operators.inspecting import CheckpointView

_PAGE = 500


@dataclass(frozen=True, slots=True)
class Books:
    """What the store says when all is over: each run, its failed attempts and its checkpoints.

    `taken` has the run of each item that was taken from the shelf.
    """

    runs: list[RunView]
    attempts: Mapping[str, list[Attempt]]
    checkpoints: Mapping[str, list[CheckpointView]]
    taken: Sequence[str] = ()


@dataclass(slots=True)
class Reckoning:
    """The demo's figures, and all that does not add up.

    `effects` counts what providers were asked for, each once; `repeated` what was asked for again
    and known by its key; `taken` what was written together with its checkpoint; `pauses` the waits
    that ended an activation.
    """

    runs: int
    succeeded: int
    recovered: int
    retried: int
    stale: int
    effects: int = 0
    repeated: int = 0
    taken: int = 0
    pauses: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def in_words(self) -> list[str]:
        """What the ledger and the store say together; only where there are no problems."""
        if self.problems:
            return []
        return [
            f"{self.effects} effects, each with its checkpoint: once stored, never done again",
            f"{self.repeated} asked for again after a worker had died, and known by their keys",
            f"{self.taken} items taken from the shelf, each in one commit with its checkpoint",
            f"{self.pauses} sleeps and waits, and no attempt was spent on them",
        ]

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
    return Books(
        runs,
        {run.id: history.attempts_of(tx, run.id) for run in runs},
        {run.id: inspecting.list_checkpoints(tx, run.id, limit=_PAGE, after="") for run in runs},
        shelf.taken(tx.conn),
    )


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
    effects = _effects(lines)
    reasons = Counter(each.reason for rows in books.attempts.values() for each in rows)
    sums = Reckoning(
        runs=len(books.runs),
        succeeded=sum(run.state is RunState.SUCCEEDED for run in books.runs),
        recovered=reasons[Reason.LOST],
        retried=reasons[Reason.ERROR],
        stale=stale,
        effects=len(effects),
        repeated=sum(len(each) - 1 for each in effects.values()),
        taken=len(books.taken),
        pauses=sum(line.event == PAUSE for line in lines),
    )
    sums.problems += _of_the_sums(sums, books, expected, stale_sent)
    events = {event: _marks(lines, event) for event in (START, END, ERROR, PAUSE)}
    sums.problems += _of_the_ledger(books, events)
    for run in books.runs:
        rows = books.attempts[run.id]
        sums.problems += _of_a_run(run, rows, events)
        lost = {row.fence for row in rows if row.reason is Reason.LOST}
        for checkpoint in books.checkpoints[run.id]:
            if checkpoint.name == shelf.STAGE:
                count = books.taken.count(run.id)
                if count != 1:
                    sums.problems.append(f"run {run.id}: took {count} items from the shelf")
            else:
                asked = effects.pop((run.id, checkpoint.name), [])
                sums.problems += _of_an_effect(run.id, checkpoint, asked, lost)
    for run_id, stage in effects:
        sums.problems.append(f"run {run_id}: `{stage}` was asked for, and no checkpoint says so")
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
    paused = {fence for run_id, fence in events[PAUSE] if run_id == run.id}
    for event, marks in events.items():
        for run_id, fence in marks:
            if run_id == run.id and not _accounted(event, fence, run.fence, failed, paused):
                yield f"run {run.id}: the ledger has `{event}` of lease {fence}, the store does not"


def _accounted(
    event: str, fence: int, last: int, failed: Mapping[int, Reason], paused: Collection[int]
) -> bool:
    """Whether the store explains a line: a handler can end or pause, and die before its settle."""
    if fence == last:
        return event in (START, END)
    reason = failed.get(fence)
    if event == ERROR:
        return reason in (Reason.ERROR, Reason.LOST)
    if event == END:
        return reason is Reason.LOST
    if event == PAUSE:
        return reason in (None, Reason.LOST) and fence < last
    # A wait spends no attempt: the next lease follows without a row.
    return fence in failed or (fence in paused and fence < last)


def _effects(lines: Sequence[Line]) -> dict[tuple[str, str], list[Line]]:
    """Return what was asked for, by run and stage, each request in its order."""
    found: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        if line.event == EFFECT:
            found.setdefault((line.mark.run, line.stage), []).append(line)
    return found


def _of_an_effect(
    run_id: str, checkpoint: CheckpointView, asked: Sequence[Line], lost: Collection[int]
) -> Iterator[str]:
    """An effect is done under the lease that stored it; before that, only by those that died."""
    what = f"run {run_id}: `{checkpoint.name}`"
    fences = Counter(line.mark.fence for line in asked)
    if not fences[checkpoint.fence]:
        yield f"{what} is stored under the lease {checkpoint.fence}, and was not asked for then"
    for fence, count in fences.items():
        if count > 1:
            yield f"{what} was asked for {count} times under the lease {fence}"
        if fence > checkpoint.fence:
            yield f"{what} is stored, and was asked for again under the lease {fence}"
        if fence < checkpoint.fence and fence not in lost:
            yield f"{what} was asked for under the lease {fence}, which did not die, and not stored"
    if len({line.key for line in asked}) > 1:
        yield f"{what} was asked for under several keys"
