"""The demo's sums: each way in which store, counters and ledger can disagree is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from workhorse.cli.demo.ledger import END, ERROR, START, Ledger, Line, Mark, in_hand
from workhorse.cli.demo.reckoning import Books, Reckoning, reckon
from workhorse.domain.ids import RunId
from workhorse.domain.runs import Reason, RunState, RunView
from workhorse.store.history import Attempt

AT = datetime(2026, 1, 1, tzinfo=UTC)
GOOD, RETRIED, RECOVERED = (RunId(name) for name in ("good", "retried", "recovered"))


def a_run(run_id: RunId, *, attempt: int, fence: int) -> RunView:
    return RunView(
        id=run_id,
        task="t",
        queue="q",
        state=RunState.SUCCEEDED,
        payload="{}",
        attempt=attempt,
        fence=fence,
        priority=50,
        created_at=AT,
    )


def an_attempt(fence: int, reason: Reason) -> Attempt:
    return Attempt(fence, fence, reason, "E", "e", None, AT)


def a_line(run_id: RunId, fence: int, event: str, pid: int = 1) -> Line:
    return Line(Mark(run_id, fence, "t"), pid, event)


def books() -> Books:
    return Books(
        [
            a_run(GOOD, attempt=1, fence=1),
            a_run(RETRIED, attempt=2, fence=2),
            a_run(RECOVERED, attempt=2, fence=2),
        ],
        {
            GOOD: [],
            RETRIED: [an_attempt(1, Reason.ERROR)],
            RECOVERED: [an_attempt(1, Reason.LOST)],
        },
    )


def ledger() -> list[Line]:
    return [
        a_line(GOOD, 1, START),
        a_line(GOOD, 1, END),
        a_line(RETRIED, 1, START),
        a_line(RETRIED, 1, ERROR),
        a_line(RETRIED, 2, START),
        a_line(RETRIED, 2, END),
        a_line(RECOVERED, 1, START),
        a_line(RECOVERED, 2, START),
        a_line(RECOVERED, 2, END),
    ]


def reckoned(
    kept: Books, lines: list[Line], *, expected: int = 3, stale: int = 2, stale_sent: int = 2
) -> Reckoning:
    return reckon(
        kept,
        lines,
        expected={"t": expected},
        killed_with={(RECOVERED, 1)},
        stale=stale,
        stale_sent=stale_sent,
    )


def test_what_agrees_gives_the_figures_and_no_problem() -> None:
    sums = reckoned(books(), ledger())

    assert sums.problems == []
    assert str(sums) == (
        "demo: 3 runs, 3 succeeded, 1 recovered, 1 retried, 2 stale wakeups ignored"
    )


def test_a_worker_may_die_after_the_handler_and_before_the_settle() -> None:
    ended = [*ledger(), a_line(RECOVERED, 1, END)]
    failed = [*ledger(), a_line(RECOVERED, 1, ERROR)]
    not_begun = [line for line in ledger() if line != a_line(RECOVERED, 1, START)]

    assert [reckoned(books(), lines).problems for lines in (ended, failed, not_begun)] == [[]] * 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: [*lines, a_line(GOOD, 1, START)], "started 2 times under the lease 1"),
        (lambda lines: [*lines, a_line(RunId("x"), 1, START)], "in the ledger and not in the sto"),
        (lambda lines: lines[2:], "run good: no handler ended under its last lease 1"),
        (lambda lines: lines[:2] + lines[4:], "has an error of lease 1, the ledger none"),
        (lambda lines: [*lines, a_line(GOOD, 7, START)], "has `start` of lease 7, the store does"),
        (lambda lines: [*lines, a_line(GOOD, 1, ERROR)], "has `error` of lease 1, the store does"),
        (lambda lines: [*lines, a_line(RETRIED, 1, END)], "has `end` of lease 1, the store does"),
    ],
)
def test_a_ledger_that_disagrees_is_told(
    change: Callable[[list[Line]], list[Line]], said: str
) -> None:
    problems = reckoned(books(), change(ledger())).problems

    assert any(said in problem for problem in problems), problems


def test_a_run_that_is_lost_doubled_or_failed_is_told() -> None:
    kept = books()
    failed = replace(kept.runs[0], state=RunState.FAILED)

    assert "the orders make" in reckoned(kept, ledger(), expected=4).problems[0]
    assert (
        "1 runs have not succeeded"
        in reckoned(Books([failed, *kept.runs[1:]], kept.attempts), ledger()).problems
    )


def test_an_attempt_without_a_row_is_told() -> None:
    kept = books()

    problems = reckoned(Books(kept.runs, {**kept.attempts, RETRIED: []}), ledger()).problems

    assert "run retried: attempt 2 after 0 failed ones" in problems
    assert "nothing was retried, though the demo saw to it" in problems


def test_a_lease_that_died_must_have_been_lost() -> None:
    kept = books()
    settled = {**kept.attempts, RECOVERED: [an_attempt(1, Reason.ERROR)]}

    problems = reckoned(Books(kept.runs, settled), ledger()).problems

    assert "run recovered: the lease 1 died, and no lost attempt says so" in problems
    assert "nothing was recovered, though the demo saw to it" in problems


def test_stale_wakeups_must_all_be_counted() -> None:
    assert (
        "2 stale wakeups were sent and 1 were counted"
        in reckoned(books(), ledger(), stale=1).problems
    )
    assert (
        "nothing was stale, though the demo saw to it"
        in reckoned(books(), ledger(), stale=0, stale_sent=0).problems
    )


def test_a_ledger_keeps_what_handlers_did(tmp_path: Path) -> None:
    kept, reader = Ledger(tmp_path / "ledger"), Ledger(tmp_path / "ledger")
    assert reader.lines() == []

    with kept.activation(Mark("a", 1, "t")):
        (started,) = reader.lines()
        assert in_hand([started], started.pid) == [Mark("a", 1, "t")]
    with pytest.raises(RuntimeError), kept.activation(Mark("b", 2, "t")):
        raise RuntimeError

    lines = reader.lines()
    assert [(line.mark.run, line.event) for line in lines] == [
        ("a", START),
        ("a", END),
        ("b", START),
        ("b", ERROR),
    ]
    assert in_hand(lines, started.pid) == []


def test_a_line_that_is_being_written_is_not_read_yet(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    path.write_text('["a", 1, "t", 5, "start"]\n["b", 1, "t", 5')
    reader = Ledger(path)

    first = list(reader.lines())
    path.write_text('["a", 1, "t", 5, "start"]\n["b", 1, "t", 5, "start"]\n')

    assert [line.mark.run for line in first] == ["a"]
    assert [line.mark.run for line in reader.lines()] == ["a", "b"]
