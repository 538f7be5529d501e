"""Entry points of functions on AWS Lambda: a worker and maintenance that live in invocations.

    app = Workhorse(lane="sqs")
    handler = lambda_handler(app)
    maintain = lambda_maintenance(app)

Source: docs/lambda.md; docs/adr/0023-invocations.md
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from datetime import timedelta
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final, Protocol, TypedDict

from workhorse.errors import ConfigurationError, MaintenanceFailedError, StoreUnavailableError
from workhorse.ports import Activations, BatchItemFailure, BatchResponse, EventSource
from workhorse.telemetry import get_logger

if TYPE_CHECKING:
    from workhorse.app import Workhorse
    from workhorse.maintenance import Maintenance

_log = get_logger("function")

GROUP: Final = "workhorse.event_sources"
_LONGEST_PASS_S: Final = 50.0
_RESERVE_S: Final = 5.0
"""How long before the function's time-out a pass of maintenance begins nothing more."""


class LambdaContext(Protocol):
    """What is used of the context that Lambda hands to a handler."""

    def get_remaining_time_in_millis(self) -> int:
        """Return how much time the invocation has left."""
        ...


class MaintenanceCounts(TypedDict):
    """What a pass of maintenance answers: rows changed by step, and the steps that failed."""

    counts: dict[str, int]
    failed: dict[str, str]
    """The steps that failed, each with its error's type."""


LambdaHandler = Callable[[Any, LambdaContext], BatchResponse]
MaintenanceHandler = Callable[[Any, LambdaContext], MaintenanceCounts]


def lambda_handler(
    app: Workhorse,
    *,
    queues: Iterable[str] | None = None,
    concurrency: int | None = None,
) -> LambdaHandler:
    """Return a handler for a function that an SQS queue invokes: a worker of the app's tasks.

    Make it once, at the top of the module that Lambda loads. Nothing is connected before the first
    invocation; connections are kept from one invocation to the next. The event source mapping has
    to have ReportBatchItemFailures; see docs/lambda.md for what else is to be set.

    Args:
        app: The app, whose lane is `sqs`.
        queues: What it serves; by default the app's setting. Wakeups of other queues are deleted.
        concurrency: How many runs are under way at once in each of the function's environments; by
            default the app's setting.

    Returns:
        `handler(event, context)`, which raises:
        InvalidEventError: The event is none of SQS.
        SchemaMismatchError: The database's schema does not fit.
        ConfigurationError: The time-out is too short for any task, or a handler is wrong.

    Raises:
        ConfigurationError: The lane carries no messages, or nothing reads events of SQS.
    """
    served = [queues] if isinstance(queues, str) else queues
    source = _source("sqs")(app.invocations(served, concurrency))

    def handler(event: Any, context: LambdaContext) -> BatchResponse:
        answer: BatchResponse = source.handle(event, context.get_remaining_time_in_millis)
        return answer

    return handler


def lambda_maintenance(app: Workhorse) -> MaintenanceHandler:
    """Return a handler for a function that a schedule invokes: one pass of maintenance.

    It begins nothing more in the last seconds before its time-out, and after 50 s.

    Args:
        app: The app.

    Returns:
        `maintain(event, context)`, which answers what was done, and which steps failed. So that an
        alarm on the function's errors sees it, it raises:
        MaintenanceFailedError: Every step failed.
        StoreUnavailableError: The database did not answer.
        SchemaMismatchError: The database's schema does not fit.
    """
    lock = threading.Lock()
    made: list[Maintenance] = []

    def maintain(event: Any, context: LambdaContext) -> MaintenanceCounts:
        with lock:
            if not made:
                made.append(app.maintenance())
            left_s = context.get_remaining_time_in_millis() / 1000
            within = min(_LONGEST_PASS_S, left_s - min(_RESERVE_S, left_s / 3))
            done = made[0].run_once(timedelta(seconds=max(0.0, within)))
        if done.failed and not done.counts:
            away = set(done.failed.values()) == {StoreUnavailableError.__name__}
            what = ", ".join(f"{step}: {error}" for step, error in done.failed.items())
            raise (StoreUnavailableError if away else MaintenanceFailedError)(
                f"no step of maintenance was done ({what}); nothing is lost, and the next "
                "invocation tries again"
            )
        return {"counts": dict(done.counts), "failed": dict(done.failed)}

    return maintain


def _source(name: str) -> Callable[[Activations], EventSource]:
    found = {entry.value: entry for entry in entry_points(group=GROUP, name=name)}
    if len(found) != 1:
        raise ConfigurationError(
            f"event source {name!r} is offered by {len(found)} packages in the group {GROUP!r}; "
            "one is needed, which the package workhorse-lanes brings"
        )
    (entry,) = found.values()
    try:
        factory = entry.load()
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"event source {name!r} cannot be loaded from {entry.value}: {error}"
        ) from error
    opened: Callable[[Activations], EventSource] = factory.open
    return opened


__all__ = [
    "BatchItemFailure",
    "BatchResponse",
    "LambdaContext",
    "LambdaHandler",
    "MaintenanceCounts",
    "MaintenanceHandler",
    "lambda_handler",
    "lambda_maintenance",
]
