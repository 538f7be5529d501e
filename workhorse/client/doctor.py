"""An examination of the whole system: what is wrong, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from workhorse.errors import (
    ConfigurationError,
    SchemaMismatchError,
    StoreUnavailableError,
    WorkhorseError,
)
from workhorse.handlers.registry import TaskRegistry
from workhorse.ports import NOTE, Lane
from workhorse.store import viewing
from workhorse.store.database import Store
from workhorse.store.migrating import check_schema
from workhorse.store.steps import Step, list_steps

LATE_AFTER: Final = timedelta(minutes=2)
"""Maintenance may run once a minute, as a scheduled task; a step twice as late is reported."""


class Severity(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was examined.

    Args:
        code: What it is, for programs: `store`, `schema`, `lane`, `queue`, `maintenance`, `tasks`.
        severity: Whether it is well.
        message: What was found, a sentence without payloads and credentials.
        advice: What to do; empty where nothing is to be done.
    """

    code: str
    severity: Severity
    message: str
    advice: str = ""


class Doctor:
    """Examines an app's surroundings; every part that fails is a finding, never an error.

    Args:
        store: Returns the store, whose schema was not checked yet.
        lane: Returns the lane.
        registry: The tasks that are known here.
        queues: The queues that are to be served.
        now: Returns the present.
    """

    def __init__(
        self,
        *,
        store: Callable[[], Store],
        lane: Callable[[], Lane],
        registry: TaskRegistry,
        queues: Sequence[str],
        now: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._lane = lane
        self._registry = registry
        self._queues = queues
        self._now = now

    def examine(self) -> list[Finding]:
        """Return all findings; the good ones too."""
        findings = [*self._tasks()]
        store, trouble = self._usable_store()
        findings += trouble
        names = {*self._queues, *(task.queue for task in self._registry)}
        if store is not None:
            try:
                queues = store.read(viewing.list_queues)
                names |= {queue.name for queue in queues}
                findings += self._paused(queues)
                findings += self._maintenance(store.read(list_steps))
                findings += self._unknown_tasks(store)
            except StoreUnavailableError as error:
                findings.append(_unreachable(error))
        findings += self._lane_and_queues(sorted(names))
        return findings

    def _usable_store(self) -> tuple[Store | None, list[Finding]]:
        try:
            store = self._store()
            found = check_schema(store)
        except StoreUnavailableError as error:
            return None, [_unreachable(error)]
        except SchemaMismatchError as error:
            return None, [Finding("schema", Severity.ERROR, str(error), "run `workhorse migrate`")]
        except ConfigurationError as error:
            return None, [Finding("store", Severity.ERROR, str(error), "correct database_url")]
        return store, [
            Finding("store", Severity.OK, f"{store.description} answers"),
            Finding("schema", Severity.OK, f"the schema has version {found.version}"),
        ]

    def _tasks(self) -> Iterator[Finding]:
        try:
            self._registry.check()
        except WorkhorseError as error:
            yield Finding("tasks", Severity.ERROR, str(error), "correct the handler's annotations")
        else:
            count = len(self._registry)
            yield Finding("tasks", Severity.OK, f"{count} task{'s' * (count != 1)} registered")

    def _unknown_tasks(self, store: Store) -> Iterator[Finding]:
        for queue, task, count in store.read(viewing.unknown_tasks, self._registry.names()):
            yield Finding(
                "tasks",
                Severity.WARNING,
                f"queue {queue}: {count} ready run{'s' * (count != 1)} of the task {task!r}, which "
                "is not registered here",
                "deploy workers that know the task, register its new name with this one as an "
                "alias, or cancel the runs",
            )

    def _paused(self, queues: Sequence[viewing.QueueView]) -> Iterator[Finding]:
        for queue in queues:
            if queue.paused_at is not None:
                yield Finding(
                    "queue",
                    Severity.WARNING,
                    f"queue {queue.name} is paused since {queue.paused_at:%Y-%m-%d %H:%M} UTC by "
                    f"{queue.paused_by or 'nobody'}; {queue.ready} runs wait in it",
                    f"`workhorse queues resume {queue.name}` when its work may go on",
                )

    def _maintenance(self, steps: Sequence[Step]) -> Iterator[Finding]:
        advice = "run `workhorse maintain`, or `workhorse maintain --once` each minute"
        if not steps:
            yield Finding("maintenance", Severity.ERROR, "maintenance has never run", advice)
            return
        now = self._now()
        late = [step for step in steps if now - step.next_at > LATE_AFTER]
        for step in late:
            when = "never" if step.last_at is None else f"{step.last_at:%Y-%m-%d %H:%M:%S} UTC"
            yield Finding(
                "maintenance",
                Severity.ERROR,
                f"step {step.name} is late: it last ended {when}",
                advice,
            )
        if not late:
            last = max((step.last_at for step in steps if step.last_at is not None), default=None)
            when = "has begun" if last is None else f"last ended {last:%Y-%m-%d %H:%M:%S} UTC"
            yield Finding("maintenance", Severity.OK, f"its last pass {when}")

    def _lane_and_queues(self, names: Sequence[str]) -> Iterator[Finding]:
        try:
            lane = self._lane()
        except WorkhorseError as error:
            yield Finding("lane", Severity.ERROR, str(error), "correct the lane's settings")
            return
        trouble = False
        for name in names:
            try:
                problems = lane.check(name)
            except Exception as error:  # noqa: BLE001 - whatever a broker's client raises
                problems = [f"the lane could not look at it ({type(error).__name__})"]
            for problem in problems:
                said = problem.removeprefix(NOTE)
                about = said if said.startswith(f"queue {name}") else f"queue {name}: {said}"
                if said != problem:
                    yield Finding("queue", Severity.OK, about)
                    continue
                trouble = True
                advice = "runs are found by scans meanwhile, later than by wakeups"
                yield Finding("queue", Severity.WARNING, about, advice)
        if not trouble:
            yield Finding("lane", Severity.OK, f"{len(names)} queues are as they should be")


def _unreachable(error: StoreUnavailableError) -> Finding:
    return Finding(
        "store",
        Severity.ERROR,
        str(error),
        "look whether the database runs, and whether database_url, network and password are right",
    )
