"""Random handlers: a program is a list of steps, each a durable call, replayed the same each time.

The handler that carries one out is real: it calls `AsyncContext` alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

from hypothesis import strategies as st

from workhorse import waits
from workhorse.domain.missing import MISSING
from workhorse.domain.retry import RetryPolicy
from workhorse.errors import ChildFailedError, WaitConflictError, WaitTimeoutError
from workhorse.handlers.context import AsyncContext
from workhorse.handlers.registry import TaskRegistry

EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)
TIMED_OUT: Final = "timed out"
CLOSED: Final = "closed"
DEFAULT: Final = "default"
LARGE: Final = "x" * 66_000
"""Above what comes with a claim, so it is read by name when it is reached."""


@dataclass(frozen=True, slots=True)
class Step:
    """One durable call; which of the fields count depends on `op`.

    `ms` is a duration, or the time-out of a wait. `fails` is how often an operation fails before it
    returns. `pick` is which of the shared tokens is waited for, or which child is started. `policy`
    is what becomes of a group of children when one of them fails.
    """

    op: str
    name: str = ""
    ms: int | None = None
    default: bool = False
    fails: int = 0
    mark: bool = False
    large: bool = False
    pick: int = 0
    keep: bool = False
    policy: str = "raise"
    parallel: int | None = None
    members: tuple[Step, ...] = ()


Program = tuple[Step, ...]

CHILDREN: Final[tuple[Program, ...]] = (
    (Step("checkpoint", "c0"),),
    (Step("checkpoint", "c0"), Step("signal", "c1", ms=5_000, default=True)),
    (Step("sleep", "c0", ms=1_000), Step("checkpoint", "c1", fails=1)),
    (Step("fail", "c0"),),
)
"""What the children of programs do."""

RETRY: Final = RetryPolicy(max_attempts=4, first=timedelta(seconds=1), factor=2, jitter=False)
_registry = TaskRegistry()


@_registry.task("flow", retry=RETRY)
async def flow(ctx: AsyncContext, payload: Any) -> Any:
    """The task of programs; the machine calls `carry_out` in its place."""


@_registry.task("part", retry=RETRY)
async def part(ctx: AsyncContext, payload: int) -> Any:
    """The task of their children."""


# -- carrying one out ----------------------------------------------------------------------------


class Watcher(Protocol):
    """Sees what a handler does."""

    def execute(self, step: Step) -> Any:
        """The operation of a checkpoint."""
        ...

    def token(self, pick: int) -> str:
        """The reference of a shared token."""
        ...

    def answered(self, step: Step, answer: Any) -> None:
        """A step has returned."""
        ...


class NotYetError(Exception):
    """An operation, or a handler, that fails."""


async def carry_out(ctx: AsyncContext, program: Program, watcher: Watcher) -> list[Any]:
    """Call one durable call after the other; return what each has answered."""
    answers = []
    for step in program:
        if step.op == "progress":
            await ctx.progress({"at": step.name})
            continue
        answer = await _answer(ctx, step, watcher)
        watcher.answered(step, answer)
        answers.append(answer)
    return answers


async def _answer(ctx: AsyncContext, step: Step, watcher: Watcher) -> Any:
    """What a step comes to; what it raises for a handler to take is an answer too."""
    try:
        return await _perform(ctx, step, watcher)
    except WaitTimeoutError:
        return TIMED_OUT
    except WaitConflictError:
        if step.op != "again":
            raise
        return CLOSED
    except ChildFailedError as error:
        return _said(error)


def _said(end: Any) -> Any:
    return [end.run_id, end.reason] if isinstance(end, ChildFailedError) else end


async def _perform(ctx: AsyncContext, step: Step, watcher: Watcher) -> Any:
    name = step.name
    default = DEFAULT if step.default else MISSING
    match step.op:
        case "checkpoint":
            given = {"of": name} if step.mark else MISSING
            return await ctx.checkpoint(name, lambda: watcher.execute(step), given)
        case "twice":
            calls = (ctx.checkpoint(name, _slowly(watcher, step)) for _ in range(2))
            one, other = await asyncio.gather(*calls, return_exceptions=True)
            if isinstance(one, BaseException):
                raise one
            assert one == other
            return one
        case "sleep":
            return await ctx.sleep(name, duration_ms=step.ms)
        case "sleep_until":
            return await ctx.sleep_until(name, EPOCH + timedelta(milliseconds=step.ms or 0))
        case "signal":
            return await ctx.wait_for_signal(name, _limit(step), default)
        case "human":
            return await ctx.wait_for_human(name, {"for": name}, _limit(step), default)
        case "again":
            (loser,) = step.members
            return await _perform(ctx, loser, watcher)
        case "any":
            first = await ctx.wait_any({each.name: wait_of(each, watcher) for each in step.members})
            return [first.name, first.value]
        case "own_token":
            ref = await ctx.token(name, _limit(step))
            return await ctx.wait_for_token(f"{name} wait", ref, default)
        case "shared_token":
            return await ctx.wait_for_token(name, watcher.token(step.pick), default)
        case "child":
            policy: Any = "keep" if step.keep else "cancel"
            return await ctx.child(name, part, step.pick, on_parent_end=policy)
        case "children":
            policy = "keep" if step.keep else "cancel"
            on_failure: Any = step.policy
            picks = [each.pick for each in step.members]
            ends = await ctx.children(
                name,
                part,
                picks,
                max_parallel=step.parallel,
                on_failure=on_failure,
                on_parent_end=policy,
            )
            return [_said(end) for end in ends]
        case "pair":
            both = [_answer(ctx, each, watcher) for each in step.members]
            answers = await asyncio.gather(*both, return_exceptions=True)
            for answer in answers:
                if isinstance(answer, BaseException):
                    raise answer
            return answers
        case "patched":
            return await ctx.patched(name)
        case "fail":
            raise NotYetError(name)
        case _:
            raise AssertionError(step.op)


def wait_of(step: Step, watcher: Watcher) -> waits.WaitFor:
    """What `wait_any` takes for a step."""
    default = DEFAULT if step.default else MISSING
    match step.op:
        case "signal":
            return waits.signal(timeout=_limit(step), default=default)
        case "human":
            return waits.human({"for": step.name}, timeout=_limit(step), default=default)
        case "sleep":
            return waits.timer(timedelta(milliseconds=step.ms or 0))
        case "shared_token":
            return waits.token(watcher.token(step.pick), default=default)
        case "child":
            return waits.child(part, step.pick, on_parent_end="keep" if step.keep else "cancel")
        case _:
            raise AssertionError(step.op)


def _limit(step: Step) -> timedelta | None:
    return None if step.ms is None else timedelta(milliseconds=step.ms)


def _slowly(watcher: Watcher, step: Step) -> Callable[[], Any]:
    async def operation() -> Any:
        await asyncio.sleep(0)  # the other call of the name comes meanwhile
        return watcher.execute(step)

    return operation


# -- drawing them --------------------------------------------------------------------------------

_rests = st.sampled_from([1, 1_000, 5_000, 600_000])
_limits = st.none() | _rests
_waits = st.builds(
    Step, st.sampled_from(["signal", "human"]), ms=_limits, default=st.booleans()
) | st.builds(Step, st.just("shared_token"), pick=st.integers(0, 1), default=st.booleans())
_children = st.builds(
    Step, st.just("child"), pick=st.integers(0, len(CHILDREN) - 1), keep=st.booleans()
)
_members = _waits | st.builds(Step, st.just("sleep"), ms=_rests) | _children
_checkpoints = st.builds(
    Step,
    st.just("checkpoint"),
    fails=st.sampled_from([0, 0, 0, 1]),
    mark=st.booleans(),
    large=st.sampled_from([False] * 7 + [True]),
)
_steps = st.one_of(
    _checkpoints,
    _waits,
    _waits,
    st.builds(Step, st.just("any"), members=st.lists(_members, min_size=2, max_size=3).map(tuple)),
    _children,
    st.builds(
        Step,
        st.just("children"),
        members=st.lists(_children, min_size=1, max_size=3).map(tuple),
        policy=st.sampled_from(["raise", "return", "cancel"]),
        parallel=st.sampled_from([None, None, 1, 2]),
        keep=st.booleans(),
    ),
    st.builds(Step, st.just("pair"), members=st.tuples(_waits, _waits | _checkpoints)),
    st.builds(Step, st.just("own_token"), ms=_limits, default=st.booleans()),
    st.builds(Step, st.just("sleep"), ms=_rests | st.just(0)),
    st.builds(Step, st.just("sleep_until"), ms=st.sampled_from([-1_000, 0, 5_000, 60_000])),
    st.builds(Step, st.sampled_from(["twice", "progress", "patched"])),
    st.builds(Step, st.just("again")),
)


def _named(steps: Sequence[Step]) -> Program:
    """Give steps names that are theirs alone; `again` waits once more for a member of a choice."""
    program: list[Step] = []
    again: list[Step] = []
    for n, step in enumerate(steps):
        name = f"s{n}"
        if step.op == "again":
            if again:
                program.append(replace(step, name=name, members=(again.pop(),)))
            continue
        members = tuple(replace(each, name=f"{name}.{m}") for m, each in enumerate(step.members))
        again += [each for each in members if each.op in ("signal", "human")]
        program.append(replace(step, name=name, members=members))
    return tuple(program)


programs: Final = st.lists(_steps, min_size=1, max_size=5).map(_named)
