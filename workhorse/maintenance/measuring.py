"""The step that measures, and what it writes: CloudWatch's embedded metric format.

A line of JSON on standard output is all that it takes: CloudWatch Logs makes metrics of it, without
an agent, a permission or a call. The names are an interface: alarms and scaling are built on them.

Source: docs/metrics.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, Final, TextIO

from workhorse.domain.measures import Measures
from workhorse.maintenance.steps import Parts, Step
from workhorse.store.base.pages import Swept
from workhorse.store.fleet import measuring
from workhorse.store.fleet.measuring import Measured

INTERVAL_MS: Final = 60_000

Emit = Callable[[Measured], object]
"""Takes what was measured to wherever it is wanted."""

_UNITS: Final = {
    "OldestRunnableAge": "Seconds",
    "RunnableRuns": "Count",
    "RunningRuns": "Count",
    "WaitingRuns": "Count",
    "ScheduledRuns": "Count",
    "Workers": "Count",
    "BacklogPerWorker": "Count",
    "FailedRuns": "Count",
    "MaintenancePasses": "Count",
}


def measure_step(emit: Emit) -> Step:
    """Return the step that measures once a minute, and hands on what it found."""

    def page(parts: Parts) -> Swept:
        found = parts.store.read(measuring.measure, measuring.STEP)
        # The mark first: what could not be handed on is missing once, and never counted twice.
        if not parts.store.run(measuring.mark, measuring.STEP, found.span):
            found = found.without_ends()
        emit(found)
        return Swept()

    return Step(measuring.STEP, INTERVAL_MS, page)


def emf_lines(measured: Measured, *, namespace: str, environment: str) -> list[str]:
    """Return a line for all queues together, and one for each.

    Args:
        namespace: CloudWatch's.
        environment: The dimension `Environment`; `default` where it is empty.
    """
    at_ms = int(measured.at.timestamp() * 1000)
    named = {"Environment": environment or "default"}
    lines = [_line(namespace, at_ms, named, _values(measured.all) | {"MaintenancePasses": 1})]
    lines += [
        _line(namespace, at_ms, named | {"Queue": str(each.queue)}, _values(each))
        for each in measured.queues
    ]
    return lines


class EmfWriter:
    """Writes what was measured, a line for each set of dimensions.

    Args:
        stream: Where to; by default standard output, as it is when there is something to write.
    """

    def __init__(self, *, namespace: str, environment: str, stream: TextIO | None = None) -> None:
        self._namespace = namespace
        self._environment = environment
        self._stream = stream

    def __call__(self, measured: Measured) -> None:
        """Write the lines, all at once: nobody else's output comes between."""
        lines = emf_lines(measured, namespace=self._namespace, environment=self._environment)
        stream = self._stream or sys.stdout
        stream.write("".join(f"{line}\n" for line in lines))
        stream.flush()


def _values(measures: Measures) -> dict[str, float]:
    return {
        "OldestRunnableAge": measures.oldest_runnable_ms / 1000,
        "RunnableRuns": measures.runnable,
        "RunningRuns": measures.running,
        "WaitingRuns": measures.waiting,
        "ScheduledRuns": measures.scheduled,
        "Workers": measures.workers,
        "BacklogPerWorker": round(measures.backlog_per_worker, 3),
        "FailedRuns": measures.failed,
    }


def _line(namespace: str, at_ms: int, dimensions: dict[str, str], values: dict[str, float]) -> str:
    directive: dict[str, Any] = {
        "Namespace": namespace,
        "Dimensions": [list(dimensions)],
        "Metrics": [{"Name": name, "Unit": _UNITS[name]} for name in values],
    }
    root = {"_aws": {"Timestamp": at_ms, "CloudWatchMetrics": [directive]}, **dimensions, **values}
    return json.dumps(root, separators=(",", ":"))
