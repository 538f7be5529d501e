"""Holds the store against the ledger and the producers' record; believes nobody's word alone.

Each rule is a function of the evidence that yields what it finds. `judge` asks all of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from tests.faults import ledger
from tests.faults.evidence import CUT_OFF, Activation, Evidence, Span

FINISHED: Final = frozenset({"succeeded", "failed", "cancelled"})
_REASONS: Final = frozenset(
    {"error", "not_retryable", "timeout", "lost", "interrupted", "deadline", "cancelled"}
)
_STATES: Final = frozenset({"scheduled", "ready", "running", "waiting"})
FAILS: Final = {
    "faults.hopeless": "error", "faults.huge_error": "error", "faults.unstorable": "not_retryable",
}  # fmt: skip
"""Tasks that are there to fail, and the reason."""
THREE: Final = frozenset({"faults.hopeless", "faults.huge_error"})
"""Of them, those with three attempts, whatever spends them."""
PLANNED: Final = frozenset(
    {
        "PlannedError", "PlannedExit", "KeyboardInterrupt", "SystemExit", "GeneratorExit",
        "StopIteration", "StopAsyncIteration", "MemoryError", "CancelledError",
        "UnstorableValueError",
    }
)  # fmt: skip
"""What handlers raise because they are there to; all else was the system's own fault."""
TOLD: Final = frozenset(
    {"faults.async", "faults.steps_async", "faults.sleeper", "faults.human", "faults.token"}
)
"""Those that are cancelled when their lease lapses, also where the database is out of reach."""
_LATE_S: Final = 2.0
"""How much later than its commit something may be written down, on a busy machine."""
_MAX_ERROR_BYTES: Final = 3 * 64 * 1024


@dataclass(frozen=True, slots=True)
class Finding:
    """A promise that was not kept."""

    rule: str
    run: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: run {self.run}: {self.text}"


@dataclass(frozen=True, slots=True)
class Overlap:
    """An effect after a successor's start, and why its handler could not know."""

    run: str
    task: str
    fence: int
    late_s: float
    why: str


@dataclass
class Verdict:
    """What the judge found."""

    findings: list[Finding] = field(default_factory=list)
    overlaps: list[Overlap] = field(default_factory=list)
    set_back: Counter[str] = field(default_factory=Counter)
    """What set-backs took: accepted runs that are gone, deliveries, and so on."""
    states: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    """Why attempts were spent."""
    activations: int = 0

    @property
    def kept(self) -> bool:
        """Whether all promises were kept."""
        return not self.findings


def judge(found: Evidence) -> Verdict:
    """Ask all rules."""
    case = _Case(found)
    verdict = Verdict()
    for rule in RULES:
        name = rule.__name__.replace("_", " ")
        verdict.findings += [Finding(name, run, text) for run, text in rule(case)]
    verdict.overlaps = case.overlaps
    verdict.set_back = case.set_back
    verdict.states.update(outcome.state for outcome in found.outcomes.values())
    verdict.reasons.update(attempt.reason for attempt in found.attempts)
    verdict.activations = sum(map(len, case.by_run.values()))
    return verdict


class _Case:
    def __init__(self, found: Evidence) -> None:
        self.found = found
        self.by_run = found.activations()
        self.by_nonce = {one.nonce: one for each in self.by_run.values() for one in each}
        self.gaps = found.gaps()
        self.cut_off = found.cut_off()
        self.accepted = {
            fields["run"]: fields for fields in found.asked if fields["what"] == "accepted"
        }
        self.told = [fields for fields in found.asked if fields["what"] == "told"]
        self.set_back: Counter[str] = Counter()
        self.overlaps: list[Overlap] = []

    def undone(self, at: float) -> bool:
        """Whether what was committed then may have been lost with a set-back."""
        return any(
            span.began - _LATE_S <= at <= span.ended + _LATE_S for span in self.found.set_backs
        )

    def orphan(self, one: Activation) -> bool:
        """Whether the claim that an activation ran under may have been lost with a set-back."""
        late = self.found.lease_s
        return any(span.began <= one.started <= span.ended + late for span in self.found.set_backs)

    def successors(self, one: Activation) -> Iterator[Activation]:
        """Yield activations of its run that certainly held a later lease."""
        for other in self.by_run[one.run]:
            if other is one or self.orphan(other):
                continue
            later = other.started > one.started
            if (later and other.fence > one.fence) or (
                later and self.set_back_between(one.started, other.started)
            ):
                yield other

    def set_back_between(self, first: float, second: float) -> bool:
        return any(first <= span.ended and span.began <= second for span in self.found.set_backs)


_Found = Iterator[tuple[str, str]]


def nothing_accepted_is_lost(case: _Case) -> _Found:
    for run, fields in case.accepted.items():
        if run in case.found.runs:
            continue
        if case.undone(fields["at"]):
            case.set_back["accepted runs that are gone"] += 1
        else:
            yield run, f"{fields['task']} was accepted ({fields['way']}) and is not in the store"


def each_run_is_in_one_place(case: _Case) -> _Found:
    for run in case.found.runs:
        places = (run in case.found.live) + (run in case.found.outcomes)
        if places != 1:
            yield run, f"it is in {places} of live and outcomes"


def every_run_has_ended(case: _Case) -> _Found:
    for run, (state, attempt) in case.found.live.items():
        task = case.found.runs[run].task if run in case.found.runs else "?"
        yield run, f"{task} is still {state}, attempt {attempt}, at rest"


def states_are_legal(case: _Case) -> _Found:
    for run, (state, _) in case.found.live.items():
        if state not in _STATES:
            yield run, f"live and {state}"
    for run, outcome in case.found.outcomes.items():
        if outcome.state not in FINISHED or outcome.reason not in {None, *_REASONS}:
            yield run, f"{outcome.state} with reason {outcome.reason}"


def ends_are_as_planned(case: _Case) -> _Found:
    cancelled = {fields["run"] for fields in case.told if fields["act"] == "cancel"}
    for run, outcome in case.found.outcomes.items():
        about = case.found.runs.get(run)
        if about is None:
            continue
        way = case.accepted.get(run, {}).get("way")
        may: set[tuple[str, str | None]]
        may = {("failed", FAILS[about.task])} if about.task in FAILS else {("succeeded", None)}
        if about.task in THREE:  # the last of few attempts may be lost to a fault, as any
            may.add(("failed", "lost"))
        if run in cancelled:
            may.add(("cancelled", "cancelled"))
        if way == "deadline" or way is None:  # one whose answer was lost may have had a deadline
            may.add(("failed", "deadline"))
        parent = case.found.outcomes.get(about.parent or "")
        if parent is not None and parent.state != "succeeded":
            may.add(("cancelled", "cancelled"))
        if (outcome.state, outcome.reason) not in may:
            yield run, f"{about.task} ended {outcome.state} ({outcome.reason}), not one of {may}"
        if outcome.error_bytes > _MAX_ERROR_BYTES:
            yield run, f"its error takes {outcome.error_bytes} bytes"


def attempts_are_counted(case: _Case) -> _Found:
    """attempts = 1 + errors + recoveries."""
    spent: dict[str, list[int]] = defaultdict(list)
    for attempt in case.found.attempts:
        spent[attempt.run].append(attempt.attempt)
    for run, outcome in case.found.outcomes.items():
        before = sorted(number for number in spent[run] if number != outcome.attempt)
        if before != list(range(1, outcome.attempt)):
            yield run, f"it ended in attempt {outcome.attempt}, with failed attempts {spent[run]}"
        if outcome.state == "succeeded" and outcome.attempt in spent[run]:
            yield run, f"it succeeded in attempt {outcome.attempt}, which is noted as failed"
    for run, (_, number) in case.found.live.items():
        if sorted(spent[run]) != list(range(1, number)):
            yield run, f"it is in attempt {number}, with failed attempts {spent[run]}"


def only_handlers_errors_are_errors(case: _Case) -> _Found:
    """What the system goes through is never the error of an attempt."""
    for attempt in case.found.attempts:
        kind = (attempt.error_type or "").rpartition(".")[2]
        if attempt.message.startswith("coroutine raised StopIteration"):
            continue  # what Python makes of it
        if attempt.reason in ("error", "not_retryable") and kind not in PLANNED:
            task = case.found.runs[attempt.run].task if attempt.run in case.found.runs else "?"
            yield attempt.run, f"{task} attempt {attempt.attempt}: {kind}: {attempt.message[:200]}"


def errors_are_those_of_the_ledger(case: _Case) -> _Found:
    """An attempt that failed with an error is one whose handler was left by one."""
    raised = {(one.run, one.fence) for one in case.by_nonce.values() if one.left_by is not None}
    for attempt in case.found.attempts:
        if attempt.reason == "error" and (attempt.run, attempt.fence) not in raised:
            yield (
                attempt.run,
                (
                    f"attempt {attempt.attempt} failed with {attempt.error_type} under fence"
                    f" {attempt.fence}, whose handler raised nothing"
                ),
            )


def no_lease_runs_twice(case: _Case) -> _Found:
    for run, each in case.by_run.items():
        by_fence: dict[int, Activation] = {}
        for one in each:
            first = by_fence.setdefault(one.fence, one)
            if first is one:
                continue
            if case.set_back_between(first.started, one.started) or case.orphan(first):
                case.set_back["fences that were issued twice"] += 1
            else:
                yield run, f"two calls under fence {one.fence}: {first.nonce} and {one.nonce}"


def results_are_of_the_last_lease(case: _Case) -> _Found:
    """Nothing is stored under a lease that was lost, and what is stored was run to its end."""
    for run, outcome in case.found.outcomes.items():
        if outcome.state != "succeeded" or case.found.runs.get(run) is None:
            continue
        result = outcome.result
        if not isinstance(result, dict) or "nonce" not in result:
            yield run, f"its result is {str(result)[:100]}"
            continue
        for word in ("forked", "swallowed"):
            if word in result:
                yield run, f"a result of a handler that had {word} was stored"
        one = case.by_nonce.get(result["nonce"])
        if one is None or one.run != run or one.ended is None:
            if "forked" not in result and "swallowed" not in result:
                yield run, f"its result is of {result['nonce']}, which never came to its end"
            continue
        if outcome.fence != one.fence or result["fence"] != one.fence:
            yield run, f"result of fence {one.fence} stored under {outcome.fence}"
        for other in case.successors(one):
            yield (
                run,
                (
                    f"result of fence {one.fence} ({one.nonce}) stands, though fence {other.fence}"
                    f" ({other.nonce}) had begun {other.started - one.started:.2f} s after it"
                ),
            )


def boundaries_are_of_live_leases(case: _Case) -> _Found:
    for boundary in case.found.boundaries:
        value = boundary.value
        if not isinstance(value, dict) or "nonce" not in value:
            continue
        one = case.by_nonce.get(value["nonce"])
        if one is None or one.run != boundary.run:
            yield boundary.run, f"'{boundary.name}' is of {value['nonce']}, who never began"
            continue
        if boundary.fence != one.fence:
            yield boundary.run, f"'{boundary.name}' of fence {one.fence} has fence {boundary.fence}"
        for other in case.successors(one):
            late = boundary.created_at - other.started
            if late > 0.05:
                yield (
                    boundary.run,
                    (
                        f"'{boundary.name}' of fence {one.fence} was stored {late:.2f} s after"
                        f" fence {other.fence} began"
                    ),
                )


def kept_values_are_the_stored_ones(case: _Case) -> _Found:
    """A handler saw the values that the store holds, in every activation."""
    stored = {(each.run, each.name): each.value for each in case.found.boundaries}
    for run, outcome in case.found.outcomes.items():
        if outcome.state != "succeeded" or not isinstance(outcome.result, dict):
            continue
        for value in outcome.result.get("kept", ()):
            if any(stored.get((run, name)) == value for name in _NAMES):
                continue
            one = case.by_nonce.get(value["nonce"]) if isinstance(value, dict) else None
            if one is not None and case.set_back_between(one.started, outcome.finished_at):
                # It was stored, and lost with the set-back; the lease was not, and went on.
                case.set_back["boundaries that are gone"] += 1
            else:
                yield run, f"it was handed {value}, which is not what stands"


_NAMES: Final = ("step", "step 0", "step 1", "step 2", "book")


def transactions_are_exactly_once(case: _Case) -> _Found:
    rows = Counter(run for run, _, _ in case.found.book)
    stored = {each.run: each.value for each in case.found.boundaries if each.name == "book"}
    for run, count in rows.items():
        if count != 1:
            yield run, f"its transaction is in the book {count} times"
        if run not in stored:
            yield run, "its transaction is in the book, its checkpoint is not"
    for run, fence, nonce in case.found.book:
        if run in stored and stored[run] != {"fence": fence, "nonce": nonce}:
            yield run, f"the book has {fence}, {nonce}, the checkpoint {stored[run]}"
    for run in stored:
        if run not in rows:
            yield run, "its checkpoint is there, its row in the book is not"


def callers_transactions_are_whole(case: _Case) -> _Found:
    orders = set(case.found.orders)
    for run in orders - case.found.runs.keys():
        yield run, "the order was committed, its run was not"
    for fields in case.found.asked:
        if fields["what"] == "rolled back" and fields["run"] in case.found.runs:
            yield fields["run"], "it was rolled back and is there"


def keys_name_one_run(case: _Case) -> _Found:
    by_key: dict[tuple[str, str], list[str]] = defaultdict(list)
    for run in case.found.runs.values():
        if run.key is not None:
            by_key[run.task, run.key].append(run.id)
    for (_, key), runs in by_key.items():
        if len(runs) > 1:
            yield runs[0], f"key {key} has {len(runs)} runs: {runs}"


def answers_hold(case: _Case) -> _Found:
    """What a caller was told of a cancel or a delivery is how it came out."""
    for fields in case.told:
        run, act, answer = fields["run"], fields["act"], fields["answer"]
        outcome = case.found.outcomes.get(run)
        if outcome is None or case.undone(fields["at"]):
            continue
        if act == "cancel":
            due = "cancelled" if answer == "running" else answer
            if outcome.state != due:
                yield run, f"its cancel was answered {answer!r}, and it ended {outcome.state}"
        elif answer in ("delivered", "kept", "duplicate") and outcome.state == "succeeded":
            got = outcome.result.get("got") if isinstance(outcome.result, dict) else None
            if got != run:
                yield run, f"its {act} was {answer}, and the handler got {got!r}"
        elif answer not in ("delivered", "kept", "duplicate", "already_settled", "run_finished"):
            yield run, f"its {act} was answered {answer}"


def outcomes_never_change(case: _Case) -> _Found:
    for at, run, state, fence in case.found.seen:
        outcome = case.found.outcomes.get(run)
        if outcome is not None and (outcome.state, outcome.fence) == (state, fence):
            continue
        if case.undone(at):
            case.set_back["ends that were taken back"] += 1
            continue
        now = "gone" if outcome is None else f"{outcome.state} under fence {outcome.fence}"
        yield run, f"it was {state} under fence {fence}, and is {now}"


def sessions_take_turns(case: _Case) -> _Found:
    by_session: dict[str, list[str]] = defaultdict(list)
    for run in sorted(case.found.runs.values(), key=lambda each: (each.created_at, each.id)):
        if run.session is not None:
            by_session[run.session].append(run.id)
    for session, runs in by_session.items():
        for before, after in pairwise(runs):
            first, second = case.found.outcomes.get(before), case.found.outcomes.get(after)
            if first is None or second is None or second.started_at is None:
                continue
            if second.started_at < first.finished_at:
                yield after, f"it began before {before} of its session {session} had ended"


def nothing_dangles(case: _Case) -> _Found:
    for table, key in case.found.loose:
        yield key, f"a row of {table} hangs on nothing"


def nobody_saw_wrong(case: _Case) -> _Found:
    for line in case.found.lines:
        if line.what == ledger.WRONG:
            yield line.run, f"{line.task}: {line.why}"


def effects_overlap_only_where_frozen(case: _Case) -> _Found:
    """A handler acts after its successor began only if its process could not renew its lease."""
    for each in case.by_run.values():
        for one in each:
            acts = [*one.effects, *([one.ended] if one.ended is not None else [])]
            for act in acts:
                begun = [other.started for other in case.successors(one) if other.started < act]
                if not begun:
                    continue
                why = _excuse(case, one, min(begun))
                late = act - min(begun)
                if why is None:
                    yield (
                        one.run,
                        (
                            f"{one.task} acted under fence {one.fence} {late:.2f} s after its"
                            " successor began, and nothing had kept it from knowing"
                        ),
                    )
                else:
                    case.overlaps.append(Overlap(one.run, one.task, one.fence, late, why))
                break


def _excuse(case: _Case, one: Activation, until: float) -> str | None:
    if one.task in ("faults.ignores_cancel", "faults.blocks_loop"):
        return "ignores that it is told to stop"

    def covers(span: Span) -> bool:
        if span.group not in (0, one.group):
            return False
        if span.what == CUT_OFF:
            return one.task not in TOLD and _lapses_within(span, case.found.lease_s, until)
        return span.began <= until and span.ended >= one.started

    # What hit its own process first: it says more than what hit all of them.
    others = [span for span in case.found.spans if span.what != CUT_OFF]
    spans = sorted((*case.gaps, *case.cut_off, *others), key=lambda span: span.group == 0)
    return next((span.what for span in spans if covers(span)), None)


def _lapses_within(span: Span, lease_s: float, until: float) -> bool:
    """Whether a lease could end between, because nothing came through.

    The last renewal before it was a third of a lease old at most; the first one after it has a
    lease's time to come.
    """
    return span.began + lease_s * 2 / 3 - _LATE_S / 4 <= until <= span.ended + lease_s


RULES: Final[tuple[Callable[[_Case], _Found], ...]] = (
    nothing_accepted_is_lost,
    each_run_is_in_one_place,
    every_run_has_ended,
    states_are_legal,
    ends_are_as_planned,
    attempts_are_counted,
    only_handlers_errors_are_errors,
    errors_are_those_of_the_ledger,
    no_lease_runs_twice,
    results_are_of_the_last_lease,
    boundaries_are_of_live_leases,
    kept_values_are_the_stored_ones,
    transactions_are_exactly_once,
    callers_transactions_are_whole,
    keys_name_one_run,
    answers_hold,
    outcomes_never_change,
    sessions_take_turns,
    nothing_dangles,
    nobody_saw_wrong,
    effects_overlap_only_where_frozen,
)
