"""Random handlers under random trouble, on a real store and beside a plain model of it.

An activation is real (`ActivationCore`, `AsyncContext`) and runs on an event loop that the machine
steps by hand. What it asks for is held until a rule writes it: so it can be cut off before a commit
or after one, and what happens in between can take its lease. An activation whose lease was taken
is not told: it goes on, and tries to write and to settle. Nothing here waits for a clock or a
thread, and what is drawn decides everything.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar, Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.durable.activating import QUEUE, Activation, HeldRecorder
from tests.durable.looking import Looker
from tests.durable.model import LEASE_MS, ConflictError, Model, Run, Token
from tests.durable.operators import MOST, Operators, ids_of, reach
from tests.durable.programs import CHILDREN, EPOCH, RETRY, Program, Step, programs
from tests.durable.receiving import Receiving
from tests.store.invariants import check_invariants
from workhorse.domain.boundaries import BoundaryKind as Kind
from workhorse.domain.hints import Hint
from workhorse.domain.ids import RunId, new_run_id
from workhorse.domain.outcomes import Finish, HandBack
from workhorse.domain.recording import NewProgress, ReadValue, Record, Recorded
from workhorse.domain.runs import ClaimedRun, NewRun, OnFailure
from workhorse.errors import DeliveryConflictError, LeaseLostError
from workhorse.handlers.activation import ActivationCore
from workhorse.store.base.database import ManualClock, Store, Tx
from workhorse.store.durable.boundaries import (
    Written,
    lock_leases,
    read_values,
    record,
    write_progress,
)
from workhorse.store.durable.delivering import deliver
from workhorse.store.durable.freeing import SMALL_PASS, arm, free, free_noted
from workhorse.store.durable.tokens import complete_token, create_token, expire_tokens
from workhorse.store.lifecycle.claiming import Claim, claim, claimed_under
from workhorse.store.lifecycle.settling import Entry, Settled, settle, settled_before
from workhorse.store.lifecycle.sweeping import end_overdue, finish_cancelled, promote, recover
from workhorse.store.live.leasing import renew
from workhorse.store.producing.enqueueing import enqueue, hints_of

_TASKS: Final = ("flow", "part")
_ROUNDS: Final = 60
_draw = random.Random(7)  # no rest has a jitter here
_picks: Final = st.integers(0, 11)
"""One of those that there are: the rest of its division by their number."""


def _write(
    tx: Tx, progress: Sequence[NewProgress], records: Sequence[Record], entries: Sequence[Entry]
) -> tuple[Written, Settled]:
    """A batch of a worker's writer: one transaction for many runs."""
    leases = {each.lease: None for each in progress}
    leases |= {each.lease: None for each in records} | {each.lease: None for each in entries}
    lock_leases(tx, list(leases))
    write_progress(tx, progress)
    written = record(tx, records, reach=reach)
    return written, settle(tx, entries, reach=reach)


class FlowMachine(Operators, Receiving, RuleBasedStateMachine):
    """Drives runs, and whatever can happen to them. A subclass names the store."""

    store: ClassVar[Store]
    clock: ClassVar[ManualClock]
    loop: ClassVar[asyncio.AbstractEventLoop]
    looker: ClassVar[Looker]
    examples: ClassVar[Iterator[int]]

    def __init__(self) -> None:
        super().__init__()
        self.clock.advance(EPOCH - self.clock.now)
        self.model = Model(self.clock.now)
        self.programs: dict[RunId, Program] = {}
        self.activations: list[Activation] = []
        self.executions: dict[tuple[str, str], int] = {}
        self.seen: dict[str, dict[str, Any]] = {}
        self.shared: list[str] = []
        self._tokens = itertools.count(1)
        self._serial = itertools.count(1)
        self._did: set[tuple[str, RunId]] = set()

    # -- runs ------------------------------------------------------------------------------------

    @initialize(
        program=programs,
        timeout_ms=st.sampled_from([None, 5_000]),
        seed=st.integers(0, 9),
    )
    def begin(self, program: Program, timeout_ms: int | None, seed: int) -> None:
        self._open_lane(seed)
        for ref, limit in (("shared one", None), ("shared two", timeout_ms)):
            self.store.run(create_token, ref, timeout_ms=limit)
            self.model.tokens[ref] = Token(self.model.later(limit))
            self.shared.append(ref)
        self.start(program)

    @precondition(lambda self: self._unfinished() < MOST)
    @rule(
        program=programs,
        deadline_ms=st.sampled_from([None, None, None, 20_000, 700_000]),
        session=st.sampled_from([None, None, "one", "one", "two"]),
        delay_ms=st.sampled_from([0, 0, 0, 5_000]),
        after=st.just([]) | st.lists(_picks, max_size=2),
        on_failure=st.sampled_from(list(OnFailure)),
    )
    def start(
        self,
        program: Program,
        deadline_ms: int | None = None,
        session: str | None = None,
        delay_ms: int = 0,
        after: Sequence[int] = (),
        on_failure: OnFailure = OnFailure.FAIL,
    ) -> None:
        """Somebody enqueues a run: in a session, for later, or to come after others."""
        before = tuple(dict.fromkeys(self._run(pick) for pick in after))
        new = NewRun(
            id=new_run_id(), task="flow", queue=QUEUE, payload="null", retry=RETRY,
            deadline_ms=deadline_ms, session=session, delay_ms=delay_ms, after=before,
            on_failure=on_failure if before else None,
        )  # fmt: skip
        done = self.store.run(enqueue, [new], reach=reach)
        self._send(hints_of([new], done, reach=reach))
        self.model.enqueue(
            Run(new.id, session=session, on_failure=new.on_failure),
            delay_ms=delay_ms, deadline_ms=deadline_ms, after=before,
        )  # fmt: skip
        self.programs[new.id] = program

    # -- activations -----------------------------------------------------------------------------

    @rule(
        picks=st.lists(_picks, max_size=3),
        scan=st.sampled_from([True, True, False]),
        lost=st.booleans(),
    )
    def wake(self, picks: list[int], scan: bool, lost: bool) -> None:
        """Wakeups come, for any runs in any state, also twice; or a worker scans."""
        self._claim([self._run(pick) for pick in picks], scan=scan, lost=lost)

    def _claim(self, ids: Sequence[RunId], *, scan: bool, lost: bool) -> set[RunId]:
        token = next(self._tokens)
        taken = self.store.run(
            claim, queue=QUEUE, ids=ids, tasks=_TASKS, free=50, token=token, lease_ms=LEASE_MS,
            scan=scan,
        )  # fmt: skip
        if lost:  # the answer did not come: it is looked up by the token
            taken = Claim(self.store.run(claimed_under, token))
        expected = self.model.claim(ids, scan=scan, token=token)
        assert {run.id for run in taken.runs} == expected
        for claimed in taken.runs:
            self._activate(claimed)
        return expected

    def _activate(self, claimed: ClaimedRun) -> None:
        run, then = self.model.runs[claimed.id], self.model.then(claimed.id)
        history = claimed.history
        assert claimed.attempt == run.attempt
        assert claimed.inbox == then.inbox
        assert {each.name for each in history.boundaries} == then.boundaries.keys()
        assert {(each.kind, each.name): each.state for each in history.deliveries} == {
            key: sent.state for key, sent in then.deliveries.items()
        }
        # The host's clock is wrong by ten minutes, either way, or right.
        skew = timedelta(minutes=10 * (len(self.activations) % 3 - 1))
        recorder = HeldRecorder()
        core = ActivationCore(claimed, recorder, now=lambda: self.clock.now + skew)
        program = self.programs[claimed.id]
        self.activations.append(Activation(self, claimed, program, then, core, recorder, self.loop))

    @rule(
        picks=st.lists(_picks, min_size=1, max_size=3),
        how=st.sampled_from(["told", "told", "twice", "cut off before", "cut off behind"]),
    )
    def write(self, picks: list[int], how: str) -> None:
        """What activations ask for, or have come to, is committed; or they die at that point."""
        if not self.activations:
            self.wake([], scan=True, lost=False)
        if not self.activations:
            return
        chosen = list(dict.fromkeys(self._activation(pick) for pick in picks))
        if how != "cut off before":
            self._write(chosen, twice=how == "twice", told=how != "cut off behind")
        if how.startswith("cut off"):
            for each in chosen:
                self._drop(each)

    @rule(rounds=st.integers(1, 4))
    def work(self, rounds: int) -> None:
        """For a while there is no trouble."""
        self.wake([], scan=True, lost=False)
        for _ in range(rounds):
            self._write(list(self.activations))

    @rule(
        what=st.sampled_from(
            ["deploy", "deploy", "renew", "stop", "stop", "cancel", "pause", "resume"]
        ),
        pick=_picks,
        place=_picks,
    )
    def seldom(self, what: str, pick: int, place: int) -> None:
        """What happens now and then."""
        if what == "deploy":
            self._deploy(pick, place)
        elif what == "cancel":
            self._cancel(pick)
        elif what in ("pause", "resume"):
            self._pause(what == "pause")
        elif self.activations and what == "stop":
            self._stop(pick)
        elif self.activations:
            self._renew(pick)

    def _stop(self, pick: int) -> None:
        """A worker ends, and hands an activation back."""
        stopped = self._activation(pick)
        self._write([stopped], given=None if stopped.done else HandBack())
        self._drop(stopped)

    def _renew(self, pick: int) -> None:
        lease = self._activation(pick).lease
        answers = self.store.run(renew, [lease], LEASE_MS)
        assert answers == {lease: self.model.renew(lease)}

    def _deploy(self, pick: int, place: int) -> None:
        """New code, with a branch marked by `patched`, comes while runs are under way."""
        run_id = self._run(pick)
        program = self.programs[run_id]
        if not any(step.name == "p" for step in program):
            place %= len(program) + 1
            self.programs[run_id] = (*program[:place], Step("patched", "p"), *program[place:])

    def _write(
        self,
        chosen: Sequence[Activation],
        *,
        twice: bool = False,
        told: bool = True,
        given: HandBack | None = None,
    ) -> None:
        """Commit one batch; `twice`: its answer was lost, so the same batch is written again."""
        asking = [each for each in chosen if each.recorder.asked and given is None]
        recording = [each for each in asking if isinstance(each.recorder.asked[0][0], Record)]
        records = [self._record_of(each) for each in recording]
        ended = [each for each in chosen if each.done or given is not None]
        entries = [each.entry(given) for each in ended]
        progress = [said for each in chosen if (said := each.recorder.said) is not None]
        for each in chosen:
            each.recorder.said = None
        for _ in range(1 + twice):
            before = self._claimable()
            written, settled = self.store.run(_write, progress, records, entries)
            for said in progress:
                self.model.say(said.lease, said.value)
            results = [self.model.record(each) for each in records]
            assert [answer.result for answer in written.answers] == results
            states: dict[RunId, Any] = {}
            for entry in entries:
                state = self.model.settle(entry.lease, entry.settlement, inbox=entry.inbox)
                if state is not None:
                    states[entry.lease.run_id] = state
            assert settled.written == states
            self._check_hints(before, [*written.hints, *settled.hints])
        for each, entry in zip(ended, entries, strict=True):
            self._check_known(each, entry)
            self._drop(each)
        if not told:
            return
        for each, answer in zip(recording, written.answers, strict=True):
            if each in ended:
                continue
            _, pending = each.recorder.asked.popleft()
            if answer.result is Recorded.LOST:
                pending.fail(LeaseLostError("its lease is gone"))
            else:
                pending.answer(answer)
            each.go_on()
        for each in asking:
            if each in recording or each in ended:
                continue
            request, pending = each.recorder.asked.popleft()
            assert isinstance(request, ReadValue)
            pending.answer(self.store.run(read_values, [request])[0])
            each.go_on()

    def _record_of(self, activation: Activation) -> Record:
        request = activation.recorder.asked[0][0]
        assert isinstance(request, Record)
        new = request.boundary
        if request.child is not None:
            child = request.child.run
            self.programs[child.id] = CHILDREN[json.loads(child.payload)]
        if new.kind is Kind.ANY:
            (choice,) = [
                step
                for step in activation.program
                if step.op == "any" and f"any:{step.members[0].name}" == new.name
            ]
            winner = self.model.winner(activation.then, choice)
            assert json.loads(new.value or "") == {"winner": winner}
        if new.kind is Kind.PATCH:
            names = [step.name for step in activation.program]
            behind = names[names.index(new.name) :]
            beyond = any(_step_of(passed) in behind for passed in activation.then.boundaries)
            assert new.value == ("false" if beyond else "true")
        return request

    def _check_known(self, activation: Activation, entry: Entry) -> None:
        """A worker knows its own success again, and no other."""
        lease, run = activation.lease, self.model.runs[activation.run_id]
        if isinstance(entry.settlement, Finish) and run.finished:
            mine = set(self.store.run(settled_before, [lease]).written) == {run.id}
            assert mine == (run.settled_by == lease.token)

    def _drop(self, activation: Activation) -> None:
        if activation in self.activations:
            self.activations.remove(activation)
            activation.drop()

    # -- time and maintenance --------------------------------------------------------------------

    @rule(
        ms=st.sampled_from([1, 1_000, 5_000, 30_000, 600_000, -1_000, -60_000]),
        seen=st.booleans(),
    )
    def move_clock(self, ms: int, seen: bool) -> None:
        """Time passes, or the database's clock is set back; `seen`: maintenance is at work."""
        self.model.now = self.clock.advance(ms)
        if seen:
            for step in self.model.work():
                self._maintain(step)

    @rule(scan=st.booleans())
    def take_over(self, scan: bool) -> None:
        """All leases run out, and another worker takes the runs; the old ones do not know."""
        self.move_clock(30_000, seen=True)
        self.move_clock(8_000, seen=True)
        self.wake([], scan=scan, lost=False)

    @rule(
        which=st.sampled_from(
            ["recover", "promote", "expire", "arm", "free", "overdue", "cancelled"]
        ),
        pick=st.none() | _picks,
    )
    def maintain(self, which: str, pick: int | None) -> None:
        """A step of maintenance; or a worker does it in place, for one run."""
        self._maintain(which, None if pick is None else [self._run(pick)])

    def _maintain(self, which: str, ids: list[RunId] | None = None) -> None:
        match which:
            case "recover":
                before = self._claimable()
                swept = self.store.run(recover, reach=reach, draw=_draw, ids=ids)
                self.model.recover(ids)
                self._check_hints(before, swept.hints)
            case "promote":
                self._send(self.store.run(promote, ids=ids).hints)
                self.model.promote(ids)
            case "expire":
                self.store.run(expire_tokens)
                self.model.expire_tokens()
            case "overdue":
                before = self._claimable()
                swept = self.store.run(end_overdue)
                self.model.end_overdue()
                self._check_hints(before, swept.hints)
            case "cancelled":
                before = self._claimable()
                swept = self.store.run(finish_cancelled, reach=reach, draw=_draw)
                self.model.recover(run.id for run in self._runs() if run.cancel_asked)
                self._check_hints(before, swept.hints)
            case "arm":
                before, counts = self._claimable(), {run.id: run.inbox for run in self._runs()}
                swept = self.store.run(arm)
                self.model.arm()
                self._check_hints(before, swept.hints)
                self._take_order(counts)
            case _:
                noted = set(self.model.noted)
                before, counts = self._claimable(), {run.id: run.inbox for run in self._runs()}
                swept = self.store.run(free_noted)
                self.model.free(noted)
                self._check_hints(before, swept.hints)
                self._take_order(counts)

    def _take_order(self, before: dict[RunId, int]) -> None:
        """Which of several that came to a run in one pass is the first is for the store to say."""
        for run in self._runs():
            new = {
                key: sent
                for key, sent in run.deliveries.items()
                if sent.inbox > before[run.id] and sent.state != "closed"
            }
            if len(new) > 1:
                places = self.looker.places(run.id)
                assert sorted(places[key] for key in new) == sorted(
                    sent.inbox for sent in new.values()
                )
                for key, sent in new.items():
                    run.deliveries[key] = replace(sent, inbox=places[key])

    # -- from outside ----------------------------------------------------------------------------

    @rule(
        pick=_picks,
        place=_picks,
        value=st.sampled_from(['"a"', '"b"']),
        key=st.sampled_from([None, "one", "two"]),
    )
    def deliver(self, pick: int, place: int, value: str, key: str | None) -> None:
        """A signal or a decision, at any time, also again."""
        unfinished = [run.id for run in self.model.runs.values() if not run.finished]
        run_id = unfinished[pick % len(unfinished)] if unfinished else self._run(pick)
        targets = [*_awaited(self.programs[run_id]), ("signal", "stray")]
        kind, name = targets[place % len(targets)]
        self._deliver(run_id, kind, name, value, key)

    def _deliver(self, run_id: RunId, kind: str, name: str, value: str, key: str | None) -> None:
        before = self._claimable()
        try:
            expected = self.model.deliver(run_id, kind, name, value, key)
        except ConflictError:
            with pytest.raises(DeliveryConflictError):
                self.store.run(deliver, run_id, Kind(kind), name, value, key=key)
        else:
            result, hints = self.store.run(deliver, run_id, Kind(kind), name, value, key=key)
            assert result == expected
            self._check_hints(before, hints)

    @rule(
        pick=_picks,
        value=st.sampled_from(['"a"', '"b"']),
        key=st.sampled_from([None, "one", "two"]),
        passes=st.booleans(),
    )
    def complete(self, pick: int, value: str, key: str | None, passes: bool) -> None:
        """A token is completed; whoever does so may die before his pass."""
        refs = list(self.model.tokens)
        ref = refs[pick % len(refs)]
        try:
            expected = self.model.complete(ref, value, key)
        except ConflictError:
            with pytest.raises(DeliveryConflictError):
                self.store.run(complete_token, ref, value, key=key)
        else:
            assert self.store.run(complete_token, ref, value, key=key) == expected
        if passes:
            before = self._claimable()
            swept = self.store.run(free, ref, limit=SMALL_PASS)
            self.model.free([ref])
            self._check_hints(before, swept.hints)

    # -- what holds ------------------------------------------------------------------------------

    @invariant()
    def stored_as_expected(self) -> None:
        self.looker.check(self.model)

    def teardown(self) -> None:
        """Once the trouble is over, every run comes to its end."""
        try:
            if sys.exc_info()[0] is None:
                self._finish()
                self.looker.check(self.model)
                if next(self.examples) % 10 == 0:  # they cost as much as an example
                    check_invariants(self.store)
        finally:
            for each in list(self.activations):
                self._drop(each)
            self.looker.clear()

    def _finish(self) -> None:
        self._pause(False)
        for _ in range(_ROUNDS):
            for run in list(self.model.runs.values()):
                for kind, name in _awaited(self.programs[run.id]):
                    if run.state == "waiting" and name in run.boundaries:
                        self._deliver(run.id, kind, name, '"late"', None)
            for n in range(len(self.model.tokens)):
                self.complete(n, '"late"', None, passes=True)
            self.move_clock(600_001, seen=True)
            self.work(rounds=4)
            if all(run.finished for run in self.model.runs.values()):
                break
        unfinished = [run for run in self.model.runs.values() if not run.finished]
        assert not unfinished

    def _runs(self) -> list[Run]:
        return list(self.model.runs.values())

    def _claimable(self) -> dict[RunId, str]:
        """The runs that somebody may claim by a wakeup now, and all others, by their states."""
        model = self.model
        found = {}
        for run in model.runs.values():
            due = run.state == "scheduled" and run.due_at is not None and run.due_at <= model.now
            free = (run.state == "ready" or due) and model.has_turn(run)
            found[run.id] = "claimable" if free else run.state
        return found

    def _check_hints(self, before: dict[RunId, str], hints: Sequence[Hint]) -> None:
        """What a commit has made claimable is woken behind it: ready, or now its turn."""
        freed = {
            run_id
            for run_id, state in self._claimable().items()
            if state == "claimable" and before.get(run_id) in ("waiting", "running", "ready")
        }
        turned = {
            run_id
            for run_id, state in self._claimable().items()
            if state == "claimable" and before.get(run_id) == "scheduled"
        }
        assert freed | turned <= ids_of(hints)
        self._send(hints)

    def _unfinished(self) -> int:
        return sum(not run.finished for run in self.model.runs.values())

    def _run(self, pick: int) -> RunId:
        runs = list(self.model.runs)
        return runs[pick % len(runs)]

    def _activation(self, pick: int) -> Activation:
        return self.activations[pick % len(self.activations)]


def _awaited(program: Program) -> list[tuple[str, str]]:
    """What can be sent to a run of this program."""
    steps = [step for each in program for step in (each, *each.members)]
    return [(step.op, step.name) for step in steps if step.op in ("signal", "human")]


def _step_of(boundary: str) -> str:
    """The name of the step that a boundary belongs to."""
    return re.split(r"[ .\[]", boundary.removeprefix("any:"))[0]
