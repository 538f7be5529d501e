"""`System`: what all parts of one deployment share, and are told alike."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch

from infra.constructs.database import DatabaseAccess
from infra.constructs.errors import ArgumentError
from infra.constructs.queue import WakeupQueue

_ENVIRONMENT: Final = re.compile(r"[a-z0-9_]{0,20}\Z")
_VARIABLE: Final = re.compile(r"[A-Z][A-Z0-9_]*\Z")
_SECRET_NAME: Final = re.compile(r"PASSWORD|PASSWD|TOKEN|SECRET_KEY|API_KEY|PRIVATE_KEY")
_URL_WITH_PASSWORD: Final = re.compile(r"://[^/\s]*:[^/\s]*@")


@dataclass(frozen=True, kw_only=True)
class System:
    """Database, queues and settings of one deployment.

    Producers, workers and maintenance have to agree on them, so each construct takes the system
    and sets the variables of its processes from it.

    Args:
        database: Where the runs are.
        queues: All queues; each construct may serve some of them.
        environment: The setting `environment`, which the queues have too.
        hint_stride: The setting: 1 where only Lambda serves the queues, else 10.
        namespace: The CloudWatch namespace of the system's metrics.
        settings: Further settings, by the names of their variables (`WORKHORSE_...`), and
            variables of your own.

    Raises:
        ArgumentError: Queues and settings do not fit together.
    """

    database: DatabaseAccess
    queues: Sequence[WakeupQueue]
    environment: str = ""
    hint_stride: int = 10
    namespace: str = "Workhorse"
    settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _ENVIRONMENT.match(self.environment):
            raise _error("environment", f"is {self.environment!r}; give up to 20 of a-z0-9_")
        if not self.queues:
            raise _error("queues", "is empty; give one WakeupQueue at least")
        names = [queue.name for queue in self.queues]
        if len(set(names)) < len(names):
            raise _error("queues", f"holds a name twice: {', '.join(sorted(names))}")
        for queue in self.queues:
            if queue.environment != self.environment:
                raise _error(
                    "queues",
                    f"holds {queue.name!r} of environment {queue.environment!r}, while the "
                    f"system's is {self.environment!r}; its processes would look for another queue",
                )
        for what in ("prefix", "fifo"):
            if len({getattr(queue, what) for queue in self.queues}) > 1:
                raise _error("queues", f"differ in {what}; processes have one setting for all")
        check_variables("System", self.settings)

    @property
    def dimensions(self) -> dict[str, str]:
        """The dimensions of the system's own metrics."""
        return {"Environment": self.environment or "default"}

    def variables(self, queues: Sequence[WakeupQueue] | None = None) -> dict[str, str]:
        """Return the environment variables of a process; none of them is a secret.

        Args:
            queues: Those that it serves; all by default.
        """
        variables = {
            "WORKHORSE_LANE": "sqs",
            "WORKHORSE_QUEUES": ",".join(queue.name for queue in queues or self.queues),
            "WORKHORSE_HINT_STRIDE": str(self.hint_stride),
            "WORKHORSE_METRICS_NAMESPACE": self.namespace,
            "WORKHORSE_LOG_FORMAT": "json",
            **self.database.variables(),
        }
        if self.environment:
            variables["WORKHORSE_ENVIRONMENT"] = self.environment
        if self.queues[0].prefix != "workhorse-":
            variables["WORKHORSE_SQS_QUEUE_PREFIX"] = self.queues[0].prefix
        if self.queues[0].fifo:
            variables["WORKHORSE_SQS_FIFO"] = "true"
        return {**variables, **self.settings}

    def metric(
        self,
        name: str,
        *,
        queue: WakeupQueue | None = None,
        statistic: str = "Maximum",
        period_minutes: int = 1,
    ) -> cloudwatch.Metric:
        """Return a metric that maintenance measures, of a queue or of the whole system."""
        dimensions = dict(self.dimensions)
        if queue is not None:
            dimensions["Queue"] = queue.name
        return cloudwatch.Metric(
            namespace=self.namespace,
            metric_name=name,
            dimensions_map=dimensions,
            statistic=statistic,
            period=cdk.Duration.minutes(period_minutes),
        )


def check_variables(construct: str, variables: Mapping[str, str]) -> None:
    """Refuse variables whose names are none, and what should not stand in the plain environment.

    Raises:
        ArgumentError: There is such a one; its value is not shown.
    """
    for name, value in variables.items():
        if not _VARIABLE.match(name):
            raise ArgumentError(
                construct, "settings", f"holds {name!r}; names look like WORKHORSE_CONCURRENCY"
            )
        if _SECRET_NAME.search(name) or _URL_WITH_PASSWORD.search(value):
            raise ArgumentError(
                construct,
                "settings",
                f"holds {name!r}, which looks like a secret; variables can be read by whoever may "
                "describe the task or the function: give its place, and read it there",
            )


def _error(argument: str, problem: str) -> ArgumentError:
    return ArgumentError("System", argument, problem)
