"""What should be stored, said again in plain Python: no SQL, no locks, one thing after the other.

The rules are those of docs/design.md, sections 2 and 7. What the model gives and what the store
gives are compared after each operation.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from tests.durable.programs import CLOSED, DEFAULT, EPOCH, TIMED_OUT, Step
from workhorse.domain.boundaries import AWAITED, NewBoundary
from workhorse.domain.boundaries import BoundaryKind as Kind
from workhorse.domain.boundaries import DeliveryResult as Result
from workhorse.domain.ids import RunId
from workhorse.domain.outcomes import Finish, HandBack, Retry, Settlement, Suspend
from workhorse.domain.recording import Record, Recorded
from workhorse.domain.runs import Lease

LEASE_MS: Final = 30_000
MAX_ATTEMPTS: Final = 4
FIRST_REST_MS: Final = 1_000

_CANCEL: Final = "cancel:"
"""What the source of a link begins with whose run is to be cancelled by its parent."""
_AFTER: Final = "after:"
"""What the name of a link begins with whose run comes after another."""

Key = tuple[str, str]


@dataclass(frozen=True)
class Passed:
    """A boundary."""

    kind: str
    seq: int
    value: str | None
    detail: str | None
    fingerprint: str | None
    wake_at: datetime | None


@dataclass(frozen=True)
class Sent:
    """A delivery."""

    state: str
    inbox: int
    value: str | None = None
    key: str | None = None


@dataclass
class Run:
    """A run whole. `errors` and `recoveries` are the attempts that it has spent, and why."""

    id: RunId
    task: str = "flow"
    state: str = "ready"
    parent: str | None = None
    keep: bool = False
    created_at: datetime = EPOCH
    session: str | None = None
    line_at: datetime | None = None
    blockers: int = 0
    """How many runs it still comes after."""
    on_failure: str | None = None
    errors: int = 0
    recoveries: int = 0
    fence: int = 0
    token: int | None = None
    expires_at: datetime | None = None
    due_at: datetime | None = None
    deadline_at: datetime | None = None
    inbox: int = 0
    cancel_asked: bool = False
    watched: bool = False
    finished_at: datetime | None = None
    reason: str | None = None
    result: str | None = None
    settled_by: int | None = None
    """The token of the activation that ended it; None where somebody else did."""
    progress: str | None = None
    boundaries: dict[str, Passed] = field(default_factory=dict)
    deliveries: dict[Key, Sent] = field(default_factory=dict)

    @property
    def attempt(self) -> int:
        """Errors and lost leases spend an attempt, and nothing else does."""
        return 1 + self.errors + self.recoveries

    @property
    def finished(self) -> bool:
        return self.state in ("succeeded", "failed", "cancelled")

    @property
    def place(self) -> tuple[datetime, str]:
        """Its place in the line of its session."""
        assert self.line_at is not None
        return self.line_at, self.id


@dataclass
class Token:
    """A wait token."""

    due_at: datetime | None
    state: str = "open"
    value: str | None = None
    key: str | None = None


@dataclass(frozen=True)
class Then:
    """What a claim has returned of a run."""

    now: datetime
    inbox: int
    boundaries: dict[str, Passed]
    deliveries: dict[Key, Sent]


class ConflictError(Exception):
    """Another value under the same idempotency key."""


class Model:
    """All runs of an example, and what links them."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.runs: dict[RunId, Run] = {}
        self.tokens: dict[str, Token] = {}
        self.links: set[tuple[str, RunId, str]] = set()
        self.noted: set[str] = set()
        self.unarmed: set[str] = set()
        """Runs that others come after, of whom it is not known yet whether they had ended."""
        self.paused = False

    def later(self, ms: int | None) -> datetime | None:
        return None if ms is None else self.now + timedelta(milliseconds=ms)

    # -- runs ------------------------------------------------------------------------------------

    def enqueue(
        self,
        run: Run,
        *,
        delay_ms: int = 0,
        deadline_ms: int | None = None,
        after: Sequence[RunId] = (),
    ) -> None:
        """A run is ready, or due later, or waits for those that it comes after."""
        run.created_at, run.deadline_at = self.now, self.later(deadline_ms)
        run.blockers = len(after)
        if after:
            run.state = "waiting"
        elif delay_ms > 0:
            run.state, run.due_at = "scheduled", self.later(delay_ms)
        if run.session is not None:
            before = [self.runs[each] for each in after]
            run.line_at = run.due_at or self.now
            # Behind those of its session that it comes after: one may be due later.
            ahead = [each for each in before if each.session == run.session and not each.finished]
            last = max((each.place for each in ahead), default=run.place)
            if last > run.place:
                run.line_at = last[0] + timedelta(milliseconds=1)
        self.runs[run.id] = run
        self.links |= {(source, run.id, f"{_AFTER}{source}") for source in after}
        self.unarmed |= set(after)

    def has_turn(self, run: Run) -> bool:
        """Whether none of its session is before it, and none at work."""
        others = [each for each in self._line(run.session) if each is not run]
        return not any(each.state == "running" or each.place < run.place for each in others)

    def _waits_for(self, after: Sequence[RunId], session: str) -> list[Run]:
        """The runs of a session that one waits for which comes after some: also through others."""
        found: dict[RunId, Run] = {}
        seen: set[str] = set()
        todo: list[str] = list(after)
        while todo:
            run = self.runs[RunId(todo.pop())]
            if run.finished or run.id in seen:
                continue
            seen.add(run.id)
            if run.session == session:
                found[run.id] = run
                continue
            line = [run] + [each for each in self._line(run.session) if each.place < run.place]
            blocked = {each.id for each in line if each.blockers}
            todo += [
                source
                for source, other, name in self.links
                if other in blocked and name.startswith(_AFTER)
            ]
        return list(found.values())

    def _line(self, session: str | None) -> list[Run]:
        if session is None:
            return []
        return [run for run in self.runs.values() if run.session == session and not run.finished]

    def arm(self) -> None:
        """Let runs be watched that others come after; free those where they have ended."""
        ended = set()
        for source in self.unarmed:
            run = self.runs[RunId(source)]
            if run.finished:
                ended.add(source)
            else:
                run.watched = True
        self.unarmed = set()
        self.noted |= ended
        self.free(ended)

    # -- claims ----------------------------------------------------------------------------------

    def claim(self, ids: Iterable[RunId], *, scan: bool, token: int) -> set[RunId]:
        """The runs that a claim takes: what is ready, or named and due, and has its turn.

        None of a paused queue.
        """
        if self.paused:
            return set()
        named = set(ids)
        taken = set()
        for run in self.runs.values():
            due = run.state == "scheduled" and run.due_at is not None and run.due_at <= self.now
            if not self.has_turn(run):
                continue
            if (run.state == "ready" and (scan or run.id in named)) or (due and run.id in named):
                run.state, run.token, run.fence = "running", token, run.fence + 1
                run.expires_at, run.due_at = self.later(LEASE_MS), None
                taken.add(run.id)
        return taken

    def then(self, run_id: RunId) -> Then:
        run = self.runs[run_id]
        return Then(self.now, run.inbox, dict(run.boundaries), dict(run.deliveries))

    def renew(self, lease: Lease) -> str:
        run = self.runs[lease.run_id]
        if run.token != lease.token:
            return "lost"
        if run.cancel_asked:
            return "cancelled"
        assert run.expires_at is not None
        if run.expires_at <= self.now:
            return "expired"
        run.expires_at = self.later(LEASE_MS)
        return "renewed"

    # -- what is written under a lease -----------------------------------------------------------

    def record(self, record: Record) -> Recorded:
        run, new = self.runs[record.lease.run_id], record.boundary
        if run.token != record.lease.token:
            return Recorded.LOST
        stands = run.boundaries.get(new.name)
        if stands is not None:
            same = (stands.kind, stands.value, stands.detail, stands.fingerprint) == (
                new.kind, new.value, new.detail, new.fingerprint,
            )  # fmt: skip
            return Recorded.STORED if same else Recorded.EXISTS
        self._pass(run, new)
        if record.token is not None:
            self.tokens[record.token.ref] = Token(self.later(record.token.timeout_ms))
        if record.child is not None:
            child = record.child.run
            self.enqueue(Run(child.id, "part", parent=run.id, keep=child.keep, watched=True))
            self.links.add((child.id, run.id, new.name))
            run.watched = True
        for kind, name in record.closes:
            run.deliveries.setdefault((kind, name), Sent("closed", run.inbox))
        if record.cancels:
            source = f"{_CANCEL}{run.id}"
            self.links |= {(source, child, "") for child in record.cancels}
            self.noted.add(source)
            self.free([source])
        return Recorded.STORED

    def say(self, lease: Lease, value: str) -> None:
        run = self.runs[lease.run_id]
        if run.token == lease.token:
            run.progress = value

    def _pass(self, run: Run, new: NewBoundary, wake_at: datetime | None = None) -> None:
        wake_at = wake_at or new.wake_at or self.later(new.delay_ms)
        run.boundaries.setdefault(
            new.name,
            Passed(new.kind, new.seq, new.value, new.detail, new.fingerprint, wake_at),
        )

    def settle(self, lease: Lease, settlement: Settlement, *, inbox: int) -> str | None:
        """The state that a settle leaves; None where the lease is gone."""
        run = self.runs[lease.run_id]
        if run.token != lease.token:
            return None
        if run.cancel_asked:
            result = settlement.result if isinstance(settlement, Finish) else None
            run.settled_by = run.token
            self._end(run, "cancelled", "cancelled", result)
            return run.state
        run.token = run.expires_at = None
        match settlement:
            case Finish(state, reason, result):
                run.settled_by = lease.token
                self._end(run, state, reason, result)
            case Retry():
                rest = FIRST_REST_MS * 2 ** (run.attempt - 1)
                assert settlement.delay_ms == rest
                if settlement.reason == "lost":
                    run.recoveries += 1
                else:
                    run.errors += 1
                run.state, run.due_at = "scheduled", self.later(rest)
            case HandBack():
                run.state = "ready"
            case Suspend(waits):
                self._suspend(run, waits, inbox)
        return run.state

    def _suspend(self, run: Run, waits: Sequence[Any], inbox: int) -> None:
        settled = False
        for wait in waits:
            if wait.new is None:
                continue
            if wait.kind is not Kind.TOKEN:
                self._pass(run, wait.new)
                continue
            token = self.tokens[wait.token]
            self._pass(run, wait.new, token.due_at)
            if token.state == "open":
                self.links.add((wait.token, run.id, wait.name))
            else:
                sent = Sent(token.state, run.inbox + 1, token.value)
                run.deliveries.setdefault((Kind.TOKEN, wait.name), sent)
                settled = True
        run.inbox += settled
        dues = [due for wait in waits if (due := run.boundaries[wait.name].wake_at) is not None]
        timers = all(wait.kind is Kind.TIMER for wait in waits)
        if not timers and run.inbox != inbox:
            run.state = "ready"  # something came since the claim: look at it before waiting
        else:
            run.state = "scheduled" if timers else "waiting"
            run.due_at = min(dues, default=None)

    def _end(self, run: Run, state: str, reason: str | None, result: str | None) -> None:
        run.state, run.reason, run.result = state, reason, result
        run.finished_at = self.now
        run.token = run.expires_at = run.due_at = None
        if run.watched:
            self.noted.add(run.id)

    # -- from outside ----------------------------------------------------------------------------

    def deliver(self, run_id: RunId, kind: str, name: str, value: str, key: str | None) -> Result:
        run = self.runs[run_id]
        if run.finished:
            return Result.RUN_FINISHED
        stands = run.deliveries.get((kind, name))
        if stands is not None:
            return _judge(stands.state, stands.value, stands.key, value, key)
        woken = self._put(run, kind, name, Sent("value", 0, value, key))
        return Result.DELIVERED if woken else Result.KEPT

    def _put(self, run: Run, kind: str, name: str, sent: Sent) -> bool:
        """Keep a delivery where its name has none; whether the run goes on by it."""
        if run.finished or (kind, name) in run.deliveries:
            return False
        run.inbox += 1
        run.deliveries[kind, name] = replace(sent, inbox=run.inbox)
        reached = run.boundaries.get(name)
        if run.state == "waiting" and reached is not None and reached.kind == kind:
            run.state, run.due_at = "ready", None
            return True
        return False

    def complete(self, ref: str, value: str, key: str | None) -> Result:
        token = self.tokens[ref]
        if token.state != "open":
            return _judge(token.state, token.value, token.key, value, key)
        token.state, token.value, token.key = "value", value, key
        self.noted.add(ref)
        return Result.DELIVERED

    def cancel(self, run_id: RunId) -> str:
        run = self.runs[run_id]
        if run.finished:
            return "already_finished"
        if run.state == "running":
            run.cancel_asked = True
            return "asked"
        self._end(run, "cancelled", "cancelled", None)
        return "cancelled"

    def rerun(self, of: RunId, new: RunId, *, boundaries: str) -> None:
        """A finished run is run again, as another that takes over what it is told to."""
        old = self.runs[of]
        run = Run(new, old.task, session=old.session)
        self.enqueue(run)
        if boundaries != "none":
            upto = None if boundaries == "all" else old.boundaries[boundaries].seq
            take_over(old, run, upto)

    # -- maintenance -----------------------------------------------------------------------------

    def work(self) -> Iterator[str]:
        """The steps that have something to do, each asked when it is its turn."""
        if any(self._has_come(run.expires_at) for run in self.runs.values()):
            yield "recover"
        if any(self._has_come(each.due_at) for each in self.tokens.values()):
            yield "expire"
        if self.unarmed:
            yield "arm"
        if self.noted:
            yield "free"
        if any(self._has_come(run.due_at) for run in self.runs.values()):
            yield "promote"
        if any(self._has_come(run.deadline_at) and not run.finished for run in self.runs.values()):
            yield "overdue"

    def _has_come(self, instant: datetime | None) -> bool:
        return instant is not None and instant <= self.now

    def recover(self, ids: Iterable[RunId] | None = None) -> None:
        for run in self._of(ids):
            if not self._has_come(run.expires_at):
                continue
            run.token = run.expires_at = None
            if run.cancel_asked:
                self._end(run, "cancelled", "cancelled", None)
            elif run.attempt >= MAX_ATTEMPTS:
                self._end(run, "failed", "lost", None)
            else:
                rest = FIRST_REST_MS * 2 ** (run.attempt - 1)
                run.recoveries += 1
                run.state, run.due_at = "scheduled", self.later(rest)

    def promote(self, ids: Iterable[RunId] | None = None) -> None:
        for run in self._of(ids):
            if not self._has_come(run.due_at):
                continue
            if run.state == "waiting":
                self._time_out(run)
            run.state, run.due_at = "ready", None

    def end_overdue(self) -> None:
        """End what is past its deadline, whoever holds it; a cancel that was asked decides."""
        for run in self.runs.values():
            if run.finished or not self._has_come(run.deadline_at):
                continue
            if run.cancel_asked:
                self._end(run, "cancelled", "cancelled", None)
            else:
                self._end(run, "failed", "deadline", None)

    def _time_out(self, run: Run) -> None:
        overdue = [
            (passed.wake_at, passed.seq, name, passed)
            for name, passed in run.boundaries.items()
            if passed.kind in AWAITED and self._has_come(passed.wake_at)
        ]
        for _, _, name, passed in sorted(overdue, key=lambda each: each[:2]):
            sent = Sent("timed_out", 0)
            if passed.kind == Kind.TOKEN:
                token = self._settled_token(json.loads(passed.detail or ""))
                sent = Sent(token.state, 0, token.value)
            self._put(run, passed.kind, name, sent)

    def expire_tokens(self) -> None:
        for ref in self.tokens:
            self._settled_token(ref)

    def _settled_token(self, ref: str) -> Token:
        token = self.tokens[ref]
        if token.state == "open" and self._has_come(token.due_at):
            token.state = "timed_out"
            self.noted.add(ref)
        return token

    def free(self, sources: Iterable[str]) -> None:
        """Hand on what has come to its end; cancel the children that a run leaves behind."""
        noted = self.noted & set(sources)
        for source, run_id, name in sorted(self.links):
            if source not in noted:
                continue
            run = self.runs[run_id]
            if source.startswith(_CANCEL):
                self.cancel(run_id)
            elif name.startswith(_AFTER):
                self._let_go(run, self.runs[RunId(source)])
            elif source in self.tokens:
                token = self.tokens[source]
                self._put(run, Kind.TOKEN, name, Sent(token.state, 0, token.value))
            else:
                self._put(run, Kind.CHILD, name, self._end_of_child(self.runs[RunId(source)]))
        self.links = {link for link in self.links if link[0] not in noted}
        for child in list(self.runs.values()):
            if child.parent in noted and not child.keep and not child.finished:
                self.cancel(child.id)
        self.noted -= noted

    def _let_go(self, run: Run, end: Run) -> None:
        """One that a run comes after has ended."""
        if run.state != "waiting" or run.blockers == 0:
            return
        if end.state == "succeeded" or run.on_failure == "run":
            run.blockers -= 1
            if run.blockers == 0:
                run.state = "ready"
        elif run.on_failure == "cancel":
            self._end(run, "cancelled", "cancelled", None)
        else:
            self._end(run, "failed", "not_retryable", None)

    @staticmethod
    def _end_of_child(child: Run) -> Sent:
        if child.state == "succeeded":
            return Sent("value", 0, child.result)
        end = {"run_id": child.id, "reason": child.reason}
        return Sent(child.state, 0, json.dumps(end))

    def _of(self, ids: Iterable[RunId] | None) -> list[Run]:
        return [self.runs[run_id] for run_id in (self.runs if ids is None else ids)]

    # -- what handlers get -----------------------------------------------------------------------

    def answer(self, run: Run, step: Step) -> Any:
        """What a step has to answer, by what stands now; nothing of it ever changes."""
        name = step.name
        match step.op:
            case "sleep" | "sleep_until":
                assert run.boundaries[name].kind == Kind.TIMER
                return None
            case "checkpoint" | "twice" | "patched":
                return json.loads(run.boundaries[name].value or "")
            case "any":
                mark = f"any:{step.members[0].name}"
                winner = json.loads(run.boundaries[mark].value or "")["winner"]
                (spec,) = [each for each in step.members if each.name == winner]
                value = self.answer(run, spec)
                sent = run.deliveries.get((_kind(spec), winner))
                if (
                    sent is None
                    or sent.state == "value"
                    or (sent.state, value)
                    == (
                        "timed_out",
                        DEFAULT,
                    )
                ):
                    return [winner, value]
                return value  # raised by the choice, as by the wait alone
            case "children":
                return self._answer_of_children(run, step)
            case "pair":
                return [self.answer(run, each) for each in step.members]
            case "again":
                return self.answer(run, step.members[0])
            case "own_token":
                return self._answer(run, Kind.TOKEN, f"{name} wait", step)
            case "shared_token":
                return self._answer(run, Kind.TOKEN, name, step)
            case _:
                return self._answer(run, step.op, name, step)

    def _answer_of_children(self, run: Run, step: Step) -> Any:
        names = [f"{step.name}[{n}]" for n in range(len(step.members))]
        failed = [
            (sent.inbox, name)
            for name in names
            if (sent := run.deliveries.get((Kind.CHILD, name))) is not None
            and sent.state in ("failed", "cancelled")
        ]
        if failed and step.policy != "return":
            return self._answer(run, Kind.CHILD, min(failed)[1], step)
        return [self._answer(run, Kind.CHILD, name, step) for name in names]

    def winner(self, then: Then, step: Step) -> str | None:
        """Which member of a choice came first, for an activation that saw the run as it was."""
        came = [
            (sent.state == "closed", sent.inbox, n, each.name)
            for n, each in enumerate(step.members)
            if (sent := then.deliveries.get((_kind(each), each.name))) is not None
        ]
        passed = [
            (stands.wake_at, stands.seq, each.name)
            for each in step.members
            if each.op == "sleep"
            and (stands := then.boundaries.get(each.name)) is not None
            and stands.wake_at is not None
            and stands.wake_at <= then.now
        ]
        if not came:
            return min(passed)[-1] if passed else None
        _, _, n, first = min(came)
        sent = then.deliveries[_kind(step.members[n]), first]
        waited = then.boundaries.get(first)
        if not passed or sent.state != "timed_out" or waited is None:
            return first
        timer = min(passed)
        return timer[-1] if timer[:2] < (waited.wake_at, waited.seq) else first

    @staticmethod
    def _answer(run: Run, kind: str, name: str, step: Step) -> Any:
        assert run.boundaries[name].kind == kind
        sent = run.deliveries[kind, name]
        match sent.state:
            case "value":
                return json.loads(sent.value or "")
            case "timed_out":
                return DEFAULT if step.default else TIMED_OUT
            case "closed":
                return CLOSED
            case _:
                end = json.loads(sent.value or "")
                return [end["run_id"], end["reason"]]


def _kind(step: Step) -> str:
    return {"shared_token": Kind.TOKEN, "sleep": Kind.TIMER}.get(step.op, step.op)


def _judge(
    state: str, standing: str | None, standing_key: str | None, value: str, key: str | None
) -> Result:
    """A delivery that is not the first."""
    if state != "value" or key is None or key != standing_key:
        return Result.ALREADY_SETTLED
    if standing != value:
        raise ConflictError
    return Result.DUPLICATE


def take_over(old: Run, run: Run, upto: int | None) -> None:
    """What has passed is copied, up to a place; what a child or a token has left open is not.

    A choice keeps its losers closed where it is copied itself; else they are open again.
    """
    within = {
        name: each for name, each in old.boundaries.items() if upto is None or each.seq <= upto
    }
    closed = {
        name
        for each in within.values()
        if each.kind == Kind.ANY
        for name in json.loads(each.detail or "[]")
    }
    for name, each in within.items():
        sent = old.deliveries.get((each.kind, name))
        settled = sent is not None and (sent.state != "closed" or name in closed)
        if each.kind not in (Kind.CHILD, Kind.TOKEN) or settled:
            run.boundaries[name] = each
    came = []
    for (kind, name), sent in old.deliveries.items():
        reached, known = run.boundaries.get(name), old.boundaries.get(name)
        wanted = reached is not None and reached.kind == kind
        if upto is None and kind in (Kind.SIGNAL, Kind.HUMAN):
            wanted = wanted or known is None or known.kind != kind
        if name in closed if sent.state == "closed" else wanted:
            came.append((sent.inbox, kind, name))
    for place, (_, kind, name) in enumerate(sorted(came), 1):
        run.deliveries[kind, name] = replace(old.deliveries[kind, name], inbox=place)
    if run.boundaries or came:
        run.inbox = max(len(came), 1)
