"""The demo's sums: each way in which store, counters and ledger can disagree is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from workhorse.cli.demo import shelf
from workhorse.cli.demo.ledger import EFFECT, END, ERROR, PAUSE, START, Ledger, Line, Mark, in_hand
from workhorse.cli.demo.reckoning import Books, Reckoning, reckon
from workhorse.domain.ids import RunId
from workhorse.domain.runs import Reason, RunState, RunView
from workhorse.store.operators.history import Attempt
from workhorse.store.operators.inspecting import CheckpointView

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


def an_effect(run_id: RunId, fence: int, stage: str, key: str | None = None) -> Line:
    return Line(Mark(run_id, fence, "t"), 1, EFFECT, stage, key or f"{run_id}/{stage}")


def a_checkpoint(name: str, fence: int) -> CheckpointView:
    return CheckpointView(
        name=name, seq=1, value="1", size_bytes=1, fingerprint=None, fence=fence, created_at=AT
    )


def books() -> Books:
    return Books(
        [
            a_run(GOOD, attempt=1, fence=3),
            a_run(RETRIED, attempt=2, fence=2),
            a_run(RECOVERED, attempt=2, fence=2),
        ],
        {
            GOOD: [],
            RETRIED: [an_attempt(1, Reason.ERROR)],
            RECOVERED: [an_attempt(1, Reason.LOST)],
        },
        {
            GOOD: [a_checkpoint("charge", 1), a_checkpoint(shelf.STAGE, 2)],
            RETRIED: [],
            RECOVERED: [a_checkpoint("charge", 2)],
        },
        [GOOD],
    )


def ledger() -> list[Line]:
    return [
        a_line(GOOD, 1, START),
        an_effect(GOOD, 1, "charge"),
        a_line(GOOD, 1, PAUSE),
        a_line(GOOD, 2, START),
        a_line(GOOD, 2, PAUSE),
        a_line(GOOD, 3, START),
        a_line(GOOD, 3, END),
        a_line(RETRIED, 1, START),
        a_line(RETRIED, 1, ERROR),
        a_line(RETRIED, 2, START),
        a_line(RETRIED, 2, END),
        a_line(RECOVERED, 1, START),
        an_effect(RECOVERED, 1, "charge"),
        a_line(RECOVERED, 2, START),
        an_effect(RECOVERED, 2, "charge"),
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
    assert (sums.effects, sums.repeated, sums.taken, sums.pauses) == (2, 1, 1, 2)
    assert len(sums.in_words) == 4


def test_a_worker_may_die_after_the_handler_and_before_the_settle() -> None:
    ended = [*ledger(), a_line(RECOVERED, 1, END)]
    failed = [*ledger(), a_line(RECOVERED, 1, ERROR)]
    not_begun = [line for line in ledger() if line != a_line(RECOVERED, 1, START)]

    assert [reckoned(books(), lines).problems for lines in (ended, failed, not_begun)] == [[]] * 3


Change = Callable[[list[Line]], list[Line]]


def without(run_id: RunId, event: str) -> Change:
    return lambda lines: [each for each in lines if (each.mark.run, each.event) != (run_id, event)]


def with_effect(run_id: RunId, fence: int, stage: str, key: str | None = None) -> Change:
    return lambda lines: [*lines, an_effect(run_id, fence, stage, key)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: [*lines, a_line(GOOD, 1, START)], "started 2 times under the lease 1"),
        (lambda lines: [*lines, a_line(RunId("x"), 1, START)], "in the ledger and not in the sto"),
        (without(GOOD, END), "run good: no handler ended under its last lease 3"),
        (without(GOOD, PAUSE), "run good: the ledger has `start` of lease 1, the store does not"),
        (without(RETRIED, ERROR), "has an error of lease 1, the ledger none"),
        (without(GOOD, EFFECT), "`charge` is stored under the lease 1, and was not asked for then"),
        (with_effect(GOOD, 1, "charge"), "`charge` was asked for 2 times under the lease 1"),
        (with_effect(GOOD, 3, "charge"), "stored, and was asked for again under the lease 3"),
        (with_effect(GOOD, 1, "ship"), "`ship` was asked for, and no checkpoint says so"),
        (with_effect(GOOD, 3, "charge", "other"), "`charge` was asked for under several keys"),
        (lambda lines: [*lines, a_line(GOOD, 3, PAUSE)], "has `pause` of lease 3, the store does"),
        (lambda lines: [*lines, a_line(GOOD, 7, START)], "has `start` of lease 7, the store does"),
        (lambda lines: [*lines, a_line(GOOD, 1, ERROR)], "has `error` of lease 1, the store does"),
        (lambda lines: [*lines, a_line(RETRIED, 1, END)], "has `end` of lease 1, the store does"),
    ],
)
def test_a_ledger_that_disagrees_is_told(change: Change, said: str) -> None:
    problems = reckoned(books(), change(ledger())).problems

    assert any(said in problem for problem in problems), problems


def test_a_run_that_is_lost_doubled_or_failed_is_told() -> None:
    kept = books()
    failed = replace(kept.runs[0], state=RunState.FAILED)

    assert "the orders make" in reckoned(kept, ledger(), expected=4).problems[0]
    assert (
        "1 runs have not succeeded"
        in reckoned(replace(kept, runs=[failed, *kept.runs[1:]]), ledger()).problems
    )


def test_an_attempt_without_a_row_is_told() -> None:
    kept = books()

    problems = reckoned(replace(kept, attempts={**kept.attempts, RETRIED: []}), ledger()).problems

    assert "run retried: attempt 2 after 0 failed ones" in problems
    assert "nothing was retried, though the demo saw to it" in problems


def test_a_lease_that_died_must_have_been_lost() -> None:
    kept = books()
    settled = {**kept.attempts, RECOVERED: [an_attempt(1, Reason.ERROR)]}

    problems = reckoned(replace(kept, attempts=settled), ledger()).problems

    assert "run recovered: the lease 1 died, and no lost attempt says so" in problems
    assert "nothing was recovered, though the demo saw to it" in problems


def test_an_effect_of_a_lease_that_did_not_die_must_have_been_stored_then() -> None:
    kept = books()
    later = {**kept.checkpoints, GOOD: [a_checkpoint("charge", 2), a_checkpoint(shelf.STAGE, 2)]}

    problems = reckoned(
        replace(kept, checkpoints=later), [*ledger(), an_effect(GOOD, 2, "charge")]
    ).problems

    (said,) = problems
    assert "asked for under the lease 1, which did not die, and not stored" in said


@pytest.mark.parametrize("taken", [[], [GOOD, GOOD]])
def test_an_item_is_taken_once_with_its_checkpoint(taken: list[str]) -> None:
    sums = reckoned(replace(books(), taken=taken), ledger())

    assert sums.problems == [f"run good: took {len(taken)} items from the shelf"]
    assert sums.in_words == []


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


def test_a_wait_is_a_pause_and_no_error(tmp_path: Path) -> None:
    kept = Ledger(tmp_path / "ledger")

    with pytest.raises(GeneratorExit), kept.activation(Mark("a", 1, "t")):
        raise GeneratorExit  # no `Exception`, as what a wait raises

    assert [line.event for line in kept.lines()] == [START, PAUSE]
    assert in_hand(kept.lines(), kept.lines()[0].pid) == []


def test_a_provider_knows_a_request_again_by_its_key(tmp_path: Path) -> None:
    mark, other = Mark("a", 1, "t"), Mark("a", 2, "t")
    kept, elsewhere = Ledger(tmp_path / "ledger"), Ledger(tmp_path / "ledger")

    known = [
        kept.effect(mark, "charge", "k"),
        elsewhere.effect(other, "charge", "k"),
        elsewhere.effect(other, "charge", "l"),
    ]

    assert known == [False, True, False]


def test_a_line_that_is_being_written_is_not_read_yet(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    path.write_text('["a", 1, "t", 5, "start"]\n["b", 1, "t", 5')
    reader = Ledger(path)

    first = list(reader.lines())
    path.write_text('["a", 1, "t", 5, "start"]\n["b", 1, "t", 5, "start"]\n')

    assert [line.mark.run for line in first] == ["a"]
    assert [line.mark.run for line in reader.lines()] == ["a", "b"]
