"""What can happen next, each in one transaction of the store's own functions.

Workers are not bound to a program: whoever has claimed the run may try any write in any order, also
long after his lease was taken, and again after its answer was lost.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from sqlalchemy import select
from sqlalchemy.sql.expression import Executable

from tests.exploration.world import (
    LEASE,
    MAX_ATTEMPTS,
    NAP,
    REST,
    TICK_MS,
    TIMEOUT,
    Activation,
    Seen,
    World,
    memory,
)
from workhorse.domain.boundaries import BoundaryKind as Kind
from workhorse.domain.boundaries import NewBoundary, Wait
from workhorse.domain.hints import Hint
from workhorse.domain.ids import RunId
from workhorse.domain.outcomes import (
    Failed,
    HandedBack,
    LeaseExpired,
    Outcome,
    Succeeded,
    Suspended,
)
from workhorse.domain.recording import NewProgress, Record
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import ClaimedRun, Failure, Lease, NewRun, Reason
from workhorse.domain.transitions import settlement_of
from workhorse.store.base.database import Tx
from workhorse.store.base.dialect import Dialect
from workhorse.store.base.schema import live
from workhorse.store.durable.boundaries import record, write_progress
from workhorse.store.durable.delivering import deliver
from workhorse.store.lifecycle import sweeping
from workhorse.store.lifecycle.claiming import claim, claimed_under
from workhorse.store.lifecycle.settling import Entry, Settled, settle, settled_before
from workhorse.store.live.leasing import renew
from workhorse.store.operators.operating import cancel

P = ParamSpec("P")
T = TypeVar("T")

RUN: Final = RunId("01900000-0000-7000-8000-000000000001")
QUEUE: Final = "default"
TASK: Final = "flow"
RETRY: Final = RetryPolicy(
    max_attempts=MAX_ATTEMPTS,
    first=timedelta(milliseconds=REST * TICK_MS),
    factor=1,
    jitter=False,
)
NEW: Final = NewRun(id=RUN, task=TASK, queue=QUEUE, payload="null", retry=RETRY)
STAGE: Final = "stage"
SIGNAL: Final = "word"
TIMER: Final = "nap"
UNCHECKED: Final = "recovery writes blindly"
_BROKEN: Final = Failure("ValueError", "it broke")
FIRST_TOKEN: Final = 1_000
_draw: Final = random.Random(7)  # no rest has a jitter here


class Runner(Protocol):
    """Runs an operation of the store in one transaction."""

    def __call__(
        self, op: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...


@dataclass(frozen=True, slots=True)
class Step:
    """Something that happens; `worker` is the number of who does it, None for anybody else."""

    what: str
    worker: int | None = None

    def __str__(self) -> str:
        who = "" if self.worker is None else f"worker {self.worker + 1}: "
        return f"{who}{self.what}"


@dataclass(slots=True)
class Answer:
    """What the store said to a step.

    `said` is the answer itself; `lease` what a claim took; `mine` whether a worker was told that
    the run has ended by it; `hints` the wakeups that are to follow, by their delays.
    """

    said: str = ""
    lease: Lease | None = None
    claimed: ClaimedRun | None = None
    mine: bool = False
    hints: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far an exploration goes; within it, it is complete.

    Args:
        claims: The most claims.
        restores: Whether the database may be set back once, to when the run was enqueued.
        naps: Whether activations may end at a timer.
        split_recovery: Whether recovery looks in one transaction and writes in another: under the
            lease that it saw ("checked"), or under whatever lease is there then ("unchecked").
    """

    claims: int = 3
    restores: bool = False
    naps: bool = True
    split_recovery: str = ""


def reach(queue: str) -> int:
    """A broker that delays messages up to 15 minutes."""
    return 900_000


def token_of(world: World) -> int:
    """The token that the next claim draws: no other has it, also when the database is set back."""
    return FIRST_TOKEN + world.claims


def possible(world: World, seen: Seen, bounds: Bounds) -> Iterator[Step]:
    """What can happen next."""
    told = set()
    for n, activation in enumerate(world.workers):
        if (same := memory(world, activation)) in told:
            continue  # what the other one does would come to the same
        told.add(same)
        if activation is None:
            if world.claims < bounds.claims and seen.live is not None:
                yield Step("claims by a wakeup", n)
                yield Step("claims by a scan", n)
            continue
        # Who holds the lease no more may try everything, for it is to come to nothing.
        holds = activation.number == world.holder
        yield Step("dies", n)
        yield Step("renews", n)
        yield Step("says its progress", n)
        if not holds or STAGE not in activation.passed:
            yield Step("writes a checkpoint", n)
        yield Step("offers to succeed", n)
        yield Step("offers to fail", n)
        yield Step("offers to give up", n)
        yield Step("offers to hand back", n)
        if not holds or SIGNAL not in activation.came:
            yield Step("offers to wait", n)
        if bounds.naps and (not holds or TIMER not in activation.passed):
            yield Step("offers to sleep", n)
    yield Step("the clock moves")
    if bounds.split_recovery:
        writes = "recovery writes" if bounds.split_recovery == "checked" else UNCHECKED
        yield Step(writes if world.looked else "recovery looks")
    else:
        yield Step("recovery")
        yield Step("recovery in place")
    yield Step("promotion")
    yield Step("cancelled runs are finished")
    yield Step("somebody delivers a")
    yield Step("somebody else delivers b")
    yield Step("somebody cancels")
    if bounds.restores and world.restored_at is None:
        yield Step("the database is set back")


def take(run: Runner, step: Step, world: World) -> tuple[Answer, World]:
    """Let a step happen; return what the store said, and the world as far as it is no row."""
    match step.what:
        case "the clock moves":
            return Answer(), replace(world, now=world.now + 1)
        case "recovery":
            done = run(sweeping.recover, reach=reach, draw=_draw)
            return _swept(done), world
        case "recovery in place":
            done = run(sweeping.recover, reach=reach, draw=_draw, ids=[RUN])
            return _swept(done), world
        case "recovery looks":
            return Answer(), replace(world, looked=_look(run))
        case "recovery writes" | "recovery writes blindly":
            token, fence, attempt, hand_backs = world.looked
            if step.what == UNCHECKED:
                token = run(lambda tx: tx.fetch(_any_token))[0].token if world.holder else token
            held = Activation(0, token, fence, attempt, hand_backs, 0, frozenset(), frozenset())
            entry = Entry(lease_of(held), _decided(LeaseExpired(), held), queue=QUEUE)
            settled = run(settle, [entry], reach=reach, signed=False)
            return _settled(settled), replace(world, looked=())
        case "promotion":
            return _swept(run(sweeping.promote)), world
        case "cancelled runs are finished":
            return _swept(run(sweeping.finish_cancelled, reach=reach, draw=_draw)), world
        case "somebody delivers a":
            result, hints = run(deliver, RUN, Kind.SIGNAL, SIGNAL, '"a"', key="one")
            return Answer(str(result), hints=_delays(hints)), world
        case "somebody else delivers b":
            result, hints = run(deliver, RUN, Kind.SIGNAL, SIGNAL, '"b"', key="two")
            return Answer(str(result), hints=_delays(hints)), world
        case "somebody cancels":
            answer, hints = run(cancel, RUN, by="somebody", why="", request_id="c")
            return Answer(str(answer), hints=_delays(hints)), world
    assert step.worker is not None, step
    return _work(run, step.what, step.worker, world)


def _work(run: Runner, what: str, n: int, world: World) -> tuple[Answer, World]:
    if what.startswith("claims"):
        return _claim(run, what == "claims by a scan", n, world)
    held = world.workers[n]
    assert held is not None
    if what == "dies":
        return Answer(), _with(world, n, None)
    lease = lease_of(held)
    if what == "renews":
        return Answer(str(run(renew, [lease], LEASE * TICK_MS)[lease])), world
    if what == "writes a checkpoint":
        new = NewBoundary(name=STAGE, kind=Kind.CHECKPOINT, seq=1, value=str(held.number))
        written = run(record, [Record(lease=lease, boundary=new)], reach=reach)
        answer = Answer(str(written.answers[0].result))
        if answer.said == "stored":
            # Only the holder's own first write changes what it knows; a repeated one may follow.
            held = replace(held, progressed=True)
        return answer, _with(world, n, held)
    if what == "says its progress":
        run(write_progress, [NewProgress(lease, str(held.number))])
        return Answer(), world
    how = what.removeprefix("offers to ")
    entry = Entry(
        lease,
        _decided(_outcome(how, held), held),
        queue=QUEUE,
        inbox=held.inbox,
        progressed=held.progressed,
    )
    answer = _settled(run(settle, [entry], reach=reach))
    answer.mine = set(run(settled_before, [lease]).written) == {RUN}
    return answer, world  # it may be lost: the same is offered again, or something else


def _claim(run: Runner, scan: bool, n: int, world: World) -> tuple[Answer, World]:
    token = token_of(world)
    done = run(
        claim, queue=QUEUE, ids=[] if scan else [RUN], tasks=[TASK], free=1, token=token,
        lease_ms=LEASE * TICK_MS, scan=scan,
    )  # fmt: skip
    # The answer may be lost: then it is looked up, and has to be the same.
    again = run(claimed_under, token)
    if not done.runs:
        return Answer("again: " + str(again) if again else "none"), world
    (claimed,) = done.runs
    assert claimed.lease is not None
    if again != done.runs:
        return Answer(f"again: {again}", claimed.lease, claimed), world
    history = claimed.history
    held = Activation(
        number=world.claims + 1,
        token=token,
        fence=claimed.lease.fence,
        attempt=claimed.attempt,
        hand_backs=claimed.hand_backs,
        inbox=claimed.inbox,
        passed=frozenset(each.name for each in history.boundaries),
        came=frozenset(each.name for each in history.deliveries),
    )
    world = replace(_with(world, n, held), claims=world.claims + 1)
    return Answer("claimed", claimed.lease, claimed), world


def lease_of(held: Activation) -> Lease:
    """The lease that an activation holds, or held."""
    return Lease(RUN, held.fence, held.token)


def _decided(outcome: Outcome, held: Activation) -> Any:
    return settlement_of(
        outcome, attempt=held.attempt, hand_backs=held.hand_backs, retry=RETRY, draw=_draw
    )


def _outcome(how: str, held: Activation) -> Outcome:
    match how:
        case "succeed":
            return Succeeded(str(held.number))
        case "fail":
            return Failed(_BROKEN)
        case "give up":
            return Failed(_BROKEN, Reason.NOT_RETRYABLE)
        case "hand back":
            return HandedBack()
        case "wait":
            return Suspended((_wait(Kind.SIGNAL, SIGNAL, TIMEOUT, held),))
        case "sleep":
            return Suspended((_wait(Kind.TIMER, TIMER, NAP, held),))
    raise AssertionError(how)


def _wait(kind: Kind, name: str, ticks: int, held: Activation) -> Wait:
    new = NewBoundary(name=name, kind=kind, seq=2, delay_ms=ticks * TICK_MS)
    return Wait(kind=kind, name=name, new=None if name in held.passed else new)


def _any_token(_d: Dialect) -> Executable:
    return select(live.c.token)


def _look(run: Runner) -> tuple[int, ...]:
    rows: Sequence[Any] = run(lambda tx: tx.fetch(sweeping._expired, "expired", False))
    return next(((row.token, row.fence, row.attempt, row.hand_backs) for row in rows), ())


def _settled(done: Settled) -> Answer:
    return Answer(str(done.written.get(RUN, "lost")), hints=_delays(done.hints))


def _swept(done: sweeping.Swept) -> Answer:
    return Answer(str(done.count), hints=_delays(done.hints))


def _delays(hints: Sequence[Hint]) -> list[int]:
    return [hint.delay_ms for hint in hints if hint.run_id == RUN]


def _with(world: World, n: int, held: Activation | None) -> World:
    workers = list(world.workers)
    workers[n] = held
    return replace(world, workers=tuple(workers))
