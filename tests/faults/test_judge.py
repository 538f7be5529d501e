"""The judge finds each violation that is planted in the evidence of a campaign that kept all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.faults import ledger
from tests.faults.evidence import (
    CUT_OFF,
    SET_BACK,
    Attempt,
    Boundary,
    Evidence,
    Outcome,
    Run,
    Span,
)
from tests.faults.judge import RULES, Verdict, judge
from tests.faults.ledger import Line

KEY = "key of r1"


def clean() -> Evidence:
    """Five runs: at once, after a lost lease, cancelled, with a transaction, with a signal."""
    found = Evidence(lease_s=3.0)

    def run(name: str, task: str, at: float, key: str | None = None) -> None:
        found.runs[name] = Run(name, task, "s" if name in ("r1", "r2") else None, key, None, at)
        said(at + 0.01, "accepted", run=name, task=task, way="single", key=key)

    def said(at: float, what: str, **fields: Any) -> None:
        found.asked.append({"at": at, "producer": 0, "what": what, **fields})

    def acts(name: str, fence: int, at: float, *what: str, group: int = 7) -> dict[str, Any]:
        nonce, task = f"{name}-{fence}", found.runs[name].task
        for nth, each in enumerate(what):
            found.lines.append(Line(at + nth / 10, group, each, name, fence, nonce, task))
        return {"fence": fence, "nonce": nonce}

    run("r1", "faults.steps", 100.0, KEY)
    mark = acts("r1", 1, 100.5, ledger.START, ledger.EFFECT, ledger.END)
    found.boundaries.append(Boundary("r1", "step 0", "checkpoint", 1, mark, 100.55))
    found.outcomes["r1"] = Outcome(
        "r1", "succeeded", None, 1, 1, {**mark, "kept": [mark]}, 0, 100.4, 101.0
    )

    run("r2", "faults.plain", 102.0)
    acts("r2", 1, 102.5, ledger.START)
    found.attempts.append(Attempt("r2", 1, 1, "lost", "LeaseExpired", "", 106.0))
    mark = acts("r2", 2, 106.5, ledger.START, ledger.EFFECT, ledger.END, group=8)
    found.outcomes["r2"] = Outcome("r2", "succeeded", None, 2, 2, mark, 0, 102.4, 107.0)

    run("r3", "faults.signal", 110.0)
    said(111.0, "told", act="cancel", run="r3", answer="cancelled")
    found.outcomes["r3"] = Outcome("r3", "cancelled", "cancelled", 1, 0, None, 0, None, 111.0)

    run("r4", "faults.book", 112.0)
    mark = acts("r4", 1, 112.5, ledger.START, ledger.END)
    found.boundaries.append(Boundary("r4", "book", "transaction", 1, mark, 112.55))
    found.book.append(("r4", 1, "r4-1"))
    found.orders.append("r4")
    found.outcomes["r4"] = Outcome(
        "r4", "succeeded", None, 1, 1, {**mark, "kept": [mark]}, 0, 112.4, 113.0
    )
    run("r5", "faults.signal", 114.0)
    mark = acts("r5", 1, 114.5, ledger.START, ledger.END)
    said(114.2, "told", act="signal", run="r5", answer="delivered")
    found.outcomes["r5"] = Outcome(
        "r5", "succeeded", None, 1, 1, {**mark, "got": "r5"}, 0, 114.4, 115
    )
    found.seen = [(108.0, "r1", "succeeded", 1)]
    return found


def change(found: Evidence, run: str, **fields: Any) -> None:
    found.outcomes[run] = found.outcomes[run]._replace(**fields)


def add(found: Evidence, at: float, what: str, run: str, fence: int, nonce: str) -> None:
    task = found.runs[run].task
    found.lines.append(Line(at, 7, what, run, fence, nonce, task))


def lose_a_run(found: Evidence) -> None:
    del found.runs["r1"], found.outcomes["r1"]


def forget_an_end(found: Evidence) -> None:
    del found.outcomes["r1"]


def be_in_two_places(found: Evidence) -> None:
    found.live["r1"] = ("ready", 1)


def never_end(found: Evidence) -> None:
    del found.outcomes["r2"]
    found.live["r2"] = ("running", 2)


def know_a_fourth_end(found: Evidence) -> None:
    change(found, "r1", state="done")


def fail_without_need(found: Evidence) -> None:
    change(found, "r2", state="failed", reason="lost")


def keep_a_huge_error(found: Evidence) -> None:
    change(found, "r3", error_bytes=50_000_000)


def spend_an_attempt_for_nothing(found: Evidence) -> None:
    change(found, "r1", attempt=2)


def spend_none_for_a_loss(found: Evidence) -> None:
    change(found, "r2", attempt=1)


def spend_none_while_it_lives(found: Evidence) -> None:
    never_end(found)
    found.live["r2"] = ("running", 3)


def blame_the_handler(found: Evidence) -> None:
    found.attempts[0] = found.attempts[0]._replace(
        reason="error", error_type="sqlalchemy.exc.OperationalError"
    )


def note_an_error_nobody_raised(found: Evidence) -> None:
    found.attempts[0] = found.attempts[0]._replace(reason="error", error_type="PlannedError")


def call_twice_under_one_fence(found: Evidence) -> None:
    add(found, 100.6, ledger.START, "r1", 1, "again")


def let_a_stale_lease_settle(found: Evidence) -> None:
    add(found, 108.0, ledger.END, "r2", 1, "r2-1")
    change(found, "r2", result={"fence": 1, "nonce": "r2-1"})


def settle_under_another_fence(found: Evidence) -> None:
    change(found, "r1", fence=4)


def succeed_without_an_end(found: Evidence) -> None:
    found.lines = [line for line in found.lines if line.what != ledger.END]


def be_settled_by_a_fork(found: Evidence) -> None:
    change(found, "r1", result={"fence": 1, "nonce": "r1-1", "forked": True})


def swallow_a_wait(found: Evidence) -> None:
    change(found, "r1", result={"fence": 1, "nonce": "r1-1", "swallowed": True})


def checkpoint_under_a_stale_lease(found: Evidence) -> None:
    mark = {"fence": 1, "nonce": "r2-1"}
    found.boundaries.append(Boundary("r2", "step", "checkpoint", 1, mark, 106.8))


def checkpoint_under_anothers_fence(found: Evidence) -> None:
    found.boundaries[0] = found.boundaries[0]._replace(fence=3)


def hand_over_another_value(found: Evidence) -> None:
    change(
        found, "r1", result={"fence": 1, "nonce": "r1-1", "kept": [{"fence": 1, "nonce": "r5-1"}]}
    )


def book_twice(found: Evidence) -> None:
    found.book.append(("r4", 1, "r4-1"))


def book_without_checkpoint(found: Evidence) -> None:
    found.boundaries.pop()


def checkpoint_without_book(found: Evidence) -> None:
    found.book.clear()


def lose_a_callers_run(found: Evidence) -> None:
    found.orders.append("r9")


def keep_what_was_rolled_back(found: Evidence) -> None:
    found.asked.append({"at": 112.0, "what": "rolled back", "run": "r4"})


def start_a_key_twice(found: Evidence) -> None:
    found.runs["r2"] = found.runs["r2"]._replace(task="faults.steps", key=KEY)


def break_the_word_on_a_cancel(found: Evidence) -> None:
    found.outcomes["r3"] = found.outcomes["r1"]._replace(id="r3")


def lose_a_signal(found: Evidence) -> None:
    change(found, "r5", result={"fence": 1, "nonce": "r5-1", "got": "timed out"})


def end_twice(found: Evidence) -> None:
    found.seen.append((101.5, "r2", "failed", 1))


def jump_the_queue(found: Evidence) -> None:
    change(found, "r2", started_at=100.9)


def leave_a_link(found: Evidence) -> None:
    found.loose.append(("links", "r1 -> r9"))


def write_behind_the_handlers_back(found: Evidence) -> None:
    found.lines.append(Line(103.0, 7, ledger.WRONG, "r1", 1, "r1-1", "faults.steps", "late"))


def act_beside_its_successor(found: Evidence) -> None:
    add(found, 107.5, ledger.EFFECT, "r2", 1, "r2-1")


PLANTED: dict[str, list[Callable[[Evidence], None]]] = {
    "nothing accepted is lost": [lose_a_run],
    "each run is in one place": [forget_an_end, be_in_two_places],
    "every run has ended": [never_end],
    "states are legal": [know_a_fourth_end],
    "ends are as planned": [fail_without_need, keep_a_huge_error],
    "attempts are counted": [
        spend_an_attempt_for_nothing, spend_none_for_a_loss, spend_none_while_it_lives,
    ],
    "only handlers errors are errors": [blame_the_handler],
    "errors are those of the ledger": [note_an_error_nobody_raised],
    "no lease runs twice": [call_twice_under_one_fence],
    "results are of the last lease": [
        let_a_stale_lease_settle, settle_under_another_fence, succeed_without_an_end,
        be_settled_by_a_fork, swallow_a_wait,
    ],
    "boundaries are of live leases": [
        checkpoint_under_a_stale_lease, checkpoint_under_anothers_fence,
    ],
    "kept values are the stored ones": [hand_over_another_value],
    "transactions are exactly once": [
        book_twice, book_without_checkpoint, checkpoint_without_book,
    ],
    "callers transactions are whole": [lose_a_callers_run, keep_what_was_rolled_back],
    "keys name one run": [start_a_key_twice],
    "answers hold": [break_the_word_on_a_cancel, lose_a_signal],
    "outcomes never change": [end_twice],
    "sessions take turns": [jump_the_queue],
    "nothing dangles": [leave_a_link],
    "nobody saw wrong": [write_behind_the_handlers_back],
    "effects overlap only where frozen": [act_beside_its_successor],
}  # fmt: skip


def broken(verdict: Verdict) -> set[str]:
    return {finding.rule for finding in verdict.findings}


def test_a_campaign_that_kept_all_is_told_so() -> None:
    verdict = judge(clean())
    assert verdict.findings == []
    assert verdict.kept
    assert verdict.overlaps == []
    assert dict(verdict.states) == {"succeeded": 4, "cancelled": 1}
    assert dict(verdict.reasons) == {"lost": 1}


@pytest.mark.parametrize(
    ("rule", "plant"),
    [(rule, plant) for rule, plants in PLANTED.items() for plant in plants],
    ids=lambda each: each.replace(" ", "-") if isinstance(each, str) else each.__name__,
)
def test_what_is_planted_is_found(rule: str, plant: Callable[[Evidence], None]) -> None:
    found = clean()
    plant(found)
    verdict = judge(found)
    assert rule in broken(verdict)
    assert not verdict.kept


def test_each_rule_has_a_violation_that_it_finds() -> None:
    assert list(PLANTED) == [rule.__name__.replace("_", " ") for rule in RULES]


@pytest.mark.parametrize(
    "why",
    [Span("frozen", 103.0, 107.4, 7), Span("database away", 103.0, 106.0)],
    ids=lambda span: span.what.replace(" ", "-"),
)
def test_an_overlap_of_a_frozen_handler_is_listed_and_no_finding(why: Span) -> None:
    found = clean()
    act_beside_its_successor(found)
    found.spans.append(why)
    verdict = judge(found)
    assert verdict.findings == []
    (overlap,) = verdict.overlaps
    assert (overlap.run, overlap.fence, overlap.why) == ("r2", 1, why.what)
    assert overlap.late_s == pytest.approx(1.0)


def test_a_last_attempt_may_be_lost_only_where_there_are_few() -> None:
    found = clean()
    found.attempts.append(found.attempts[0]._replace(attempt=2, fence=2))
    change(found, "r2", state="failed", reason="lost", result=None)
    assert broken(judge(found)) == {"ends are as planned"}
    found.runs["r2"] = found.runs["r2"]._replace(task="faults.hopeless")
    assert judge(found).findings == []


def test_another_process_that_was_frozen_is_no_excuse() -> None:
    found = clean()
    act_beside_its_successor(found)
    found.spans.append(Span("frozen", 103.0, 107.4, 9))
    assert broken(judge(found)) == {"effects overlap only where frozen"}


def test_a_gap_that_its_process_noted_is_an_excuse() -> None:
    found = clean()
    act_beside_its_successor(found)
    found.lines.append(Line(107.4, 7, ledger.GAP, seconds=4.0))
    verdict = judge(found)
    assert verdict.findings == []
    assert [overlap.why for overlap in verdict.overlaps] == ["stalled"]


@pytest.mark.parametrize(
    ("task", "spans", "excused"),
    [
        ("faults.plain", [(103.0, 104.0, 7)], True),
        ("faults.plain", [(103.0, 103.4, 7)], False),  # it was renewed after it, until 106.4
        ("faults.plain", [(105.2, 106.4, 7)], False),  # it was renewed before it, from 104.2
        ("faults.plain", [(103.0, 104.0, 8)], False),
        ("faults.plain", [(104.0, 104.5, 7), (105.2, 106.4, 7)], True),
        ("faults.async", [(103.0, 104.0, 7)], False),
    ],
    ids=["past its lease", "too early", "too late", "another", "twice", "one that is told"],
)
def test_being_cut_off_is_an_excuse_only_past_the_lease_and_where_nobody_is_told(
    task: str, spans: list[tuple[float, float, int]], excused: bool
) -> None:
    found = clean()
    found.runs["r2"] = found.runs["r2"]._replace(task=task)
    found.lines = [replace(line, task=task) if line.run == "r2" else line for line in found.lines]
    act_beside_its_successor(found)
    found.spans += [Span(CUT_OFF, *span) for span in spans]
    verdict = judge(found)
    assert broken(verdict) == (set() if excused else {"effects overlap only where frozen"})
    assert [overlap.why for overlap in verdict.overlaps] == ([CUT_OFF] if excused else [])


def test_what_a_set_back_took_is_counted_and_no_finding() -> None:
    """A run that was accepted after the copy is gone; one that had ended ends again."""
    found = clean()
    found.spans.append(Span(SET_BACK, 99.0, 104.0))
    found.seen = [(101.5, "r1", "succeeded", 1)]
    lose_a_run(found)
    verdict = judge(found)
    assert broken(verdict) == set()
    assert dict(verdict.set_back) == {
        "accepted runs that are gone": 1, "ends that were taken back": 1,
    }  # fmt: skip


def test_a_run_that_was_accepted_before_the_copy_is_not_excused() -> None:
    found = clean()
    found.spans.append(Span(SET_BACK, 104.0, 105.0))
    found.lines = [line for line in found.lines if line.run != "r1"]
    lose_a_run(found)
    found.boundaries.pop(0)
    assert "nothing accepted is lost" in broken(judge(found))


def test_a_fence_that_a_set_back_issued_twice_is_told_by_its_nonce() -> None:
    """The worker of before holds the same fence as its successor, and may store nothing."""
    found = clean()
    found.spans.append(Span(SET_BACK, 101.0, 102.0))
    found.outcomes["r1"] = found.outcomes["r1"]._replace(finished_at=130.0)
    add(found, 120.0, ledger.START, "r1", 1, "again")
    add(found, 121.0, ledger.END, "r1", 1, "again")
    verdict = judge(found)
    assert "results are of the last lease" in broken(verdict)
    assert verdict.set_back["fences that were issued twice"] == 1
    mark = {"fence": 1, "nonce": "again"}
    change(found, "r1", result=mark)
    assert "results are of the last lease" not in broken(judge(found))


def test_a_half_written_line_is_no_line(tmp_path: Any) -> None:
    path = tmp_path / ledger.HANDLERS
    book = ledger.Ledger(path)
    book.write(ledger.START, run="r1", fence=1, nonce="a", task="t")
    with path.open("a") as half:
        half.write('{"at": 1.0, "gro')
    (line,) = ledger.read(path)
    assert (line.run, line.what, line.nonce) == ("r1", ledger.START, "a")
