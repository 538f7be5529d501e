"""Findings about what the store knows: its schema, queues, maintenance and processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from workhorse.domain.findings import Code, Finding, Severity
from workhorse.domain.presence import ProcessKind, ProcessState, ProcessView
from workhorse.store.fleet.examining import Runnable
from workhorse.store.fleet.steps import Step
from workhorse.store.operators.viewing import QueueView

LATE_AFTER: Final = timedelta(minutes=2)
"""Maintenance may run once a minute, as a scheduled task; a step twice as late is reported."""
WAITED_MS: Final = 90_000
"""Runs that could have been claimed for so long should have been: it is three scans of a worker's,
and more than a pass of maintenance that runs once a minute."""
SKEW: Final = timedelta(minutes=1)
"""SQS refuses calls that were signed five minutes too early or late."""


def paused(queues: Sequence[QueueView]) -> Iterator[Finding]:
    """Return a finding for each paused queue."""
    for queue in queues:
        if queue.paused_at is not None:
            yield Finding(
                Code.QUEUE_PAUSED,
                Severity.WARNING,
                f"queue {queue.name} is paused since {queue.paused_at:%Y-%m-%d %H:%M} UTC by "
                f"{queue.paused_by or 'nobody'}; "
                f"{queue.ready} run{' waits' if queue.ready == 1 else 's wait'} in it",
                f"`workhorse queues resume {queue.name}` when its work may go on",
                queue=queue.name,
            )


def unknown_tasks(found: Sequence[tuple[str, str, int]]) -> Iterator[Finding]:
    """Return a finding for each task with ready runs that is not known here."""
    for queue, task, count in found:
        yield Finding(
            Code.UNKNOWN_TASK,
            Severity.WARNING,
            f"queue {queue}: {_runs(count)} of the task {task!r}, which is not registered here",
            "deploy workers that know the task, register its new name with this one as an alias, "
            "or cancel the runs",
            queue=queue,
        )


def maintenance(steps: Sequence[Step], now: datetime) -> Iterator[Finding]:
    """Return a finding for each step that is late, or that all is well."""
    advice = "run `workhorse maintain`, or `workhorse maintain --once` each minute"
    if not steps:
        yield Finding(Code.MAINTENANCE_NEVER, Severity.ERROR, "maintenance has never run", advice)
        return
    late = [step for step in steps if now - step.next_at > LATE_AFTER]
    for step in late:
        when = "never" if step.last_at is None else f"{step.last_at:%Y-%m-%d %H:%M:%S} UTC"
        yield Finding(
            Code.MAINTENANCE_LATE,
            Severity.ERROR,
            f"step {step.name} is late: it last ended {when}",
            advice,
        )
    if not late:
        last = max((step.last_at for step in steps if step.last_at is not None), default=None)
        when = "has begun" if last is None else f"ended {last:%Y-%m-%d %H:%M:%S} UTC"
        yield Finding(Code.MAINTENANCE_OK, Severity.OK, f"the last pass of maintenance {when}")


def processes(
    found: Sequence[ProcessView], waiting: Sequence[Runnable], *, function_timeout_known: bool
) -> Iterator[Finding]:
    """Return findings about who serves which queue, and how alive they are.

    Args:
        found: The processes that were heard of within an hour.
        waiting: What can be claimed.
        function_timeout_known: Whether the time-out of functions was told.
    """
    serving = [each for each in found if _serves(each)]
    served = {queue for each in serving for queue in each.queues}
    for each in waiting:
        if each.queue not in served and each.oldest_ms > WAITED_MS:
            yield Finding(
                Code.NO_WORKERS,
                Severity.ERROR,
                f"queue {each.queue}: {_runs(each.runs)}, the oldest for {_span(each.oldest_ms)}, "
                "and no live worker serves it",
                f"start one: `workhorse worker --queues {each.queue}`; where Lambda serves it, "
                "look at the function and its event source",
                queue=each.queue,
            )
    late = [each for each in found if each.state is ProcessState.LATE]
    if late:
        yield Finding(
            Code.STALE_PROCESSES,
            Severity.NOTE,
            f"{_named(late)}: not heard of for up to {_span(max(each.age_ms for each in late))}; "
            "they died, are frozen, or do not reach the database",
            "their runs are recovered when their leases run out; look at their logs",
        )
    builds = sorted({each.build for each in serving if each.build})
    if len(builds) > 1:
        yield Finding(
            Code.MIXED_BUILDS,
            Severity.NOTE,
            f"live workers are of the builds {', '.join(builds)}",
            "nothing during a deployment; afterwards, end those of the older builds",
        )
    if not function_timeout_known:
        functions = {
            queue for each in found if each.kind is ProcessKind.FUNCTION for queue in each.queues
        }
        for queue in sorted(functions):
            yield Finding(
                Code.FUNCTION_TIMEOUT_UNKNOWN,
                Severity.NOTE,
                f"queue {queue}: a Lambda function serves it, whose time-out is not known here",
                "give it by --function-timeout-seconds, and the visibility time-out is held "
                "against it",
                queue=queue,
            )
    workers = sum(each.kind is ProcessKind.WORKER for each in serving)
    yield Finding(
        Code.PROCESSES_OK,
        Severity.OK,
        f"{workers} live worker{'s' * (workers != 1)}, "
        f"{sum(each.kind is ProcessKind.FUNCTION for each in found)} functions and "
        f"{sum(_maintains(each) for each in found)} of maintenance",
    )


def skew(ours: datetime, theirs: datetime) -> Iterator[Finding]:
    """Return a finding where this machine's clock and the database's differ."""
    if abs(ours - theirs) > SKEW:
        apart = _span(abs(ours - theirs) // timedelta(milliseconds=1))
        yield Finding(
            Code.CLOCK_SKEW,
            Severity.WARNING,
            f"this machine's clock is {apart} {'ahead of' if ours > theirs else 'behind'} the "
            "database's; leases and due times go by the database's alone, but AWS refuses calls "
            "that are signed five minutes too early or late",
            "set the clock of whichever is wrong, and keep it by NTP",
        )


def without_wakeups(each: Runnable, messages: int, wanted: int) -> Finding:
    """Return the finding that runs are ready, and too little tells workers of them."""
    return Finding(
        Code.RUNNABLE_WITHOUT_WAKEUPS,
        Severity.WARNING,
        f"queue {each.queue}: {_runs(each.runs)}, the oldest for {_span(each.oldest_ms)}, and "
        f"{messages} of {wanted} wakeups for them",
        f"`workhorse rehint --queue {each.queue}` sends them anew; workers find the runs by scans "
        "meanwhile",
        queue=each.queue,
    )


def _serves(each: ProcessView) -> bool:
    match each.kind:
        case ProcessKind.WORKER:
            return each.state is ProcessState.LIVE
        case ProcessKind.FUNCTION:  # between invocations it is silent
            return True
        case _:
            return False


def _maintains(each: ProcessView) -> bool:
    return each.kind is ProcessKind.MAINTENANCE and each.state is ProcessState.LIVE


def _named(found: Sequence[ProcessView]) -> str:
    shown = ", ".join(f"{each.id} on {each.host}" for each in found[:5])
    more = len(found) - 5
    return f"{shown} and {more} more" if more > 0 else shown


def _runs(count: int) -> str:
    return f"{count:,} ready run{'s' * (count != 1)}"


def _span(ms: int) -> str:
    seconds = max(0, ms) // 1000
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"
