"""What things cost: calls to SQS, to which tests hold the product, and dollars (docs/cost.md).

python -m tests.support.costs        # prints the page's tables
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

# -- calls: tests/lanes/test_call_counts.py counts them ------------------------------------------

ALONE: Final = 3.0
"""A run whose wakeup travels alone: a send, a receive, a delete."""
TEN_AT_ONCE: Final = 0.35
"""A run of a busy fleet that is fed ten or more at a time, each with a wakeup of its own."""
BULK: Final = 0.05
"""A run of a bulk enqueue with one wakeup for ten."""
NEARLY_BUSY: Final = 1.2
"""A run of a fleet that is just not busy, fed ten at a time: the dearest that was found."""
IDLE_A_MINUTE: Final = 3.0
"""Receives of a worker that waits, for each queue."""
MAINTENANCE_A_MINUTE: Final = 2
"""Looks at a queue's length, for each queue."""
METRICS_A_QUEUE: Final = 8
"""CloudWatch metrics of a queue; the whole system has as many, and one more."""

# -- prices: dollars in us-east-1, from public price lists of 2026; free tiers are left out ------

A_MILLION: Final = 1_000_000
SQS_CALL: Final = 0.40 / A_MILLION
SQS_FIFO_CALL: Final = 0.50 / A_MILLION
LAMBDA_REQUEST: Final = 0.20 / A_MILLION
LAMBDA_GB_S: Final = 0.0000166667
SCHEDULER_CALL: Final = 1.00 / A_MILLION
FARGATE_VCPU_H: Final = 0.04048
FARGATE_GB_H: Final = 0.004445
METRIC_MONTH: Final = 0.30

HOURS: Final = 730
"""Of a month."""
MINUTES: Final = HOURS * 60
LAMBDA_POLLERS: Final = 5
"""Long polls that an event source keeps open at least, AWS's own, for each queue."""

PRICES: Final = {
    "SQS, a million calls, standard": SQS_CALL * A_MILLION,
    "SQS, a million calls, FIFO": SQS_FIFO_CALL * A_MILLION,
    "Lambda, a million requests": LAMBDA_REQUEST * A_MILLION,
    "Lambda, a million GB-seconds, x86": LAMBDA_GB_S * A_MILLION,
    "EventBridge Scheduler, a million invocations": SCHEDULER_CALL * A_MILLION,
    "Fargate, a vCPU for an hour, Linux, x86": FARGATE_VCPU_H,
    "Fargate, a GB for an hour": FARGATE_GB_H,
    "CloudWatch, a custom metric for a month": METRIC_MONTH,
}


def tables() -> Iterator[tuple[str, list[str]]]:
    """Return the tables of the page, each by its name."""
    yield "prices", ["| what | dollars |", "| --- | --- |", *_prices()]
    yield (
        "runs",
        [
            "| a million runs | calls a run, at most | calls | standard | FIFO |",
            "| --- | --- | --- | --- | --- |",
            *_runs(),
        ],
    )
    yield "months", ["| for a month | how much | dollars |", "| --- | --- | --- |", *_months()]


def fargate(vcpu: float, gb: float) -> float:
    """Return what a task costs in a month."""
    return (vcpu * FARGATE_VCPU_H + gb * FARGATE_GB_H) * HOURS


def function(seconds: float, gb: float) -> float:
    """Return what an invocation costs."""
    return LAMBDA_REQUEST + seconds * gb * LAMBDA_GB_S


def _prices() -> Iterator[str]:
    for what, dollars in PRICES.items():
        text = f"{dollars:.6f}".rstrip("0")
        yield f"| {what} | {text if len(text.partition('.')[2]) > 1 else f'{dollars:.2f}'} |"


def _runs() -> Iterator[str]:
    for what, calls in {
        "enqueued one at a time": ALONE,
        "a busy fleet, fed ten or more at a time, `hint_stride=1`": TEN_AT_ONCE,
        "the same, just not busy: the dearest": NEARLY_BUSY,
        "a bulk enqueue, `hint_stride=10`": BULK,
        "each sleep, retry, signal or child's end, alone": ALONE,
    }.items():
        made = calls * A_MILLION
        dollars = f"{_cents(made * SQS_CALL)} | {_cents(made * SQS_FIFO_CALL)}"
        yield f"| {what} | {calls:g} | {made:,.0f} | {dollars} |"


def _months() -> Iterator[str]:
    polls = IDLE_A_MINUTE * MINUTES
    looks = MAINTENANCE_A_MINUTE * MINUTES
    lambda_polls = LAMBDA_POLLERS * 3 * MINUTES
    metrics = 2 * METRICS_A_QUEUE + 1
    rows: dict[str, tuple[str, float]] = {
        "a worker that waits, each queue": (f"{polls:,.0f} receives", polls * SQS_CALL),
        "a function that waits, each queue: AWS's polls": (
            f"about {lambda_polls:,.0f} receives",
            lambda_polls * SQS_CALL,
        ),
        "maintenance that runs for ever, each queue": (f"{looks:,} looks", looks * SQS_CALL),
        "maintenance each minute, each queue": (f"{MINUTES:,} looks", MINUTES * SQS_CALL),
        "its schedule": (f"{MINUTES:,} invocations", MINUTES * SCHEDULER_CALL),
        "its function, 1 s of 512 MB each": (f"{MINUTES:,} requests", MINUTES * function(1, 0.5)),
        "or its Fargate task, billed for a minute each": ("0.25 vCPU, 0.5 GB", fargate(0.25, 0.5)),
        "or a service of one task that runs for ever": ("0.25 vCPU, 0.5 GB", fargate(0.25, 0.5)),
        "measures of a system with one queue": (f"{metrics} metrics", metrics * METRIC_MONTH),
        "each further queue": (f"{METRICS_A_QUEUE} metrics", METRICS_A_QUEUE * METRIC_MONTH),
    }
    for what, (how_much, dollars) in rows.items():
        yield f"| {what} | {how_much} | {_cents(dollars)} |"


def _cents(dollars: float) -> str:
    """Return dollars, a half cent rounded up."""
    return f"{dollars + 1e-9:.2f}"


if __name__ == "__main__":
    for name, lines in tables():
        print(f"<!-- {name} -->", *lines, sep="\n", end="\n\n")
