"""An examination of the whole system: what is wrong, and what to do about it.

Each finding has a code of its own; docs/doctor.md says of each what it means.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Final

from workhorse.client import diagnosing
from workhorse.domain.findings import Code, Finding, Severity
from workhorse.errors import (
    ConfigurationError,
    SchemaMismatchError,
    StoreUnavailableError,
    WorkhorseError,
)
from workhorse.handlers.registry import TaskRegistry
from workhorse.ports import Lane
from workhorse.store.base.database import Store
from workhorse.store.base.migrating import check_schema, schema_version
from workhorse.store.base.schema import VERSION
from workhorse.store.fleet import examining
from workhorse.store.fleet.examining import Runnable
from workhorse.store.fleet.presence import list_processes
from workhorse.store.fleet.steps import list_steps
from workhorse.store.operators import viewing

_MOST_WANTED: Final = 100
"""Wakeups that a queue needs at most: who gets one scans for more."""
_SECOND_LOOK_S: Final = 2.0
"""A fleet that is busy may be between two top-ups; where runs are taken meanwhile, all is well."""


class Doctor:
    """Examines an app's surroundings; every part that fails is a finding, never an error.

    Args:
        store: Returns the store, whose schema was not checked yet.
        lane: Returns the lane.
        registry: The tasks that are known here.
        queues: The queues that are to be served.
        now: Returns the present by this machine's clock.
        stride: One wakeup for so many ready runs of a queue.
        function_timeout_known: Whether the time-out of functions was told.
        doubts: What is probably wrong with the settings: each with what to do.
        pause: Waits for so many seconds before a second look.
    """

    def __init__(
        self,
        *,
        store: Callable[[], Store],
        lane: Callable[[], Lane],
        registry: TaskRegistry,
        queues: Sequence[str],
        now: Callable[[], datetime],
        stride: int = 1,
        function_timeout_known: bool = False,
        doubts: Sequence[tuple[str, str]] = (),
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self._store = store
        self._lane = lane
        self._registry = registry
        self._queues = queues
        self._now = now
        self._stride = stride
        self._function_timeout_known = function_timeout_known
        self._doubts = doubts
        self._pause = pause or time.sleep

    def examine(self) -> list[Finding]:
        """Return all findings; what is well too."""
        findings = [*self._tasks()]
        for message, advice in self._doubts:
            findings.append(Finding(Code.SETTING_DOUBTFUL, Severity.WARNING, message, advice))
        store, trouble = self._usable_store()
        findings += trouble
        names = self._own_queues()
        waiting: list[Runnable] = []
        if store is not None:
            try:
                queues = store.read(viewing.list_queues)
                names |= {queue.name for queue in queues}
                clock = store.read(examining.read_clock)
                waiting = store.read(examining.runnable, self._known())
                findings += diagnosing.skew(self._now(), clock)
                findings += diagnosing.paused(queues)
                findings += diagnosing.maintenance(store.read(list_steps), clock)
                findings += diagnosing.processes(
                    store.read(list_processes),
                    waiting,
                    function_timeout_known=self._function_timeout_known,
                )
                found = store.read(viewing.unknown_tasks, self._registry.names())
                findings += diagnosing.unknown_tasks(found)
            except StoreUnavailableError as error:
                store = None
                findings.append(_unreachable(error))
        try:
            lane = self._lane()
        except WorkhorseError as error:
            advice = "correct the lane's settings"
            findings.append(Finding(Code.LANE_MISCONFIGURED, Severity.ERROR, str(error), advice))
            return findings
        about = list(self._of_queues(lane, sorted(names)))
        if not any(each.severity.bad for each in about):
            well = f"{len(names)} queue{'s' * (len(names) != 1)} as the lane wants them"
            about.append(Finding(Code.QUEUES_OK, Severity.OK, well))
        findings += about
        troubled = {each.queue for each in about if each.code in _NO_WAY}
        if store is not None and lane.carries_messages:
            findings += self._without_wakeups(store, lane, waiting, troubled)
        return findings

    def queue_names(self) -> list[str]:
        """Return the queues that are served, that tasks go to, or that the store knows; sorted.

        Raises:
            StoreUnavailableError: The store does not answer.
        """
        found = self._store().read(viewing.list_queues)
        return sorted(self._own_queues() | {queue.name for queue in found})

    # -- parts -----------------------------------------------------------------------------------

    def _own_queues(self) -> set[str]:
        return {*self._queues, *(task.queue for task in self._registry)}

    def _known(self) -> list[str] | None:
        """Return the tasks whose runs count; None for all, where no task is known here."""
        return list(self._registry.names()) if len(self._registry) else None

    def _usable_store(self) -> tuple[Store | None, list[Finding]]:
        try:
            store = self._store()
        except ConfigurationError as error:
            return None, [_misconfigured(error, "correct database_url")]
        except StoreUnavailableError as error:
            return None, [_unreachable(error)]
        try:
            found = check_schema(store)
        except StoreUnavailableError as error:
            return None, [_unreachable(error)]
        except ConfigurationError as error:
            advice = "set environment, schema or database_url to what belongs together"
            return None, [_misconfigured(error, advice)]
        except SchemaMismatchError as error:
            return None, [_mismatch(store, error)]
        return store, [
            Finding(Code.STORE_OK, Severity.OK, f"{store.description} answers"),
            Finding(Code.SCHEMA_OK, Severity.OK, f"the schema has version {found.version}"),
        ]

    def _tasks(self) -> Iterator[Finding]:
        try:
            self._registry.check()
        except WorkhorseError as error:
            advice = "correct the handler's annotations"
            yield Finding(Code.TASKS_INVALID, Severity.ERROR, str(error), advice)
        else:
            count = len(self._registry)
            known = f"{count} task{'s' * (count != 1)} registered"
            yield Finding(Code.TASKS_OK, Severity.OK, known)

    def _of_queues(self, lane: Lane, names: Sequence[str]) -> Iterator[Finding]:
        for name in names:
            try:
                yield from lane.check(name)
            except Exception as error:  # noqa: BLE001 - whatever a broker's client raises
                what = f"queue {name}: the lane could not look at it ({type(error).__name__})"
                advice = "look at the lane's settings, and whether its broker is reached"
                yield Finding(Code.LANE_FAILED, Severity.WARNING, what, advice, queue=name)

    def _without_wakeups(
        self, store: Store, lane: Lane, waiting: Sequence[Runnable], troubled: set[str | None]
    ) -> Iterator[Finding]:
        """Return findings on queues whose ready runs nothing tells of, and nobody takes."""
        suspects = [
            each
            for each in waiting
            if each.queue not in troubled and _told(lane, each, self._stride) is not None
        ]
        if not suspects:
            return
        self._pause(_SECOND_LOOK_S)
        try:
            again = {each.queue: each for each in store.read(examining.runnable, self._known())}
        except StoreUnavailableError as error:
            yield _unreachable(error)
            return
        for before in suspects:
            now = again.get(before.queue)
            if now is None or now.oldest_at != before.oldest_at:
                continue  # somebody takes them
            missing = _told(lane, now, self._stride)
            if missing is not None:
                yield diagnosing.without_wakeups(now, *missing)


_NO_WAY: Final = frozenset(
    {
        Code.ACCESS_DENIED,
        Code.BROKER_FAILED,
        Code.CLOCK_SKEW,
        Code.CREDENTIALS_EXPIRED,
        Code.CREDENTIALS_MISSING,
        Code.CREDENTIALS_REFUSED,
        Code.ENDPOINT_UNREACHABLE,
        Code.LANE_FAILED,
        Code.LANE_MISCONFIGURED,
        Code.QUEUE_MISSING,
        Code.REGION_MISSING,
        Code.WRONG_REGION,
    }
)
"""Where a queue cannot be looked at, its messages cannot be counted either."""


def _told(lane: Lane, each: Runnable, stride: int) -> tuple[int, int] | None:
    """Return how many wakeups are there and how many should be, where they are too few."""
    if each.oldest_ms <= diagnosing.WAITED_MS:
        return None
    wanted = min(_MOST_WANTED, -(-each.runs // stride))
    try:
        there = lane.backlog(each.queue)
    except Exception:  # noqa: BLE001 - the check of the queue has said what is wrong
        return None
    return None if there is None or there >= wanted else (there, wanted)


def _mismatch(store: Store, error: SchemaMismatchError) -> Finding:
    found = schema_version(store)
    if found is not None and found.serves_from > VERSION:
        advice = "deploy the version of Workhorse that the schema belongs to"
        return Finding(Code.SCHEMA_AHEAD, Severity.ERROR, str(error), advice)
    return Finding(Code.SCHEMA_BEHIND, Severity.ERROR, str(error), "run `workhorse migrate`")


def _misconfigured(error: ConfigurationError, advice: str) -> Finding:
    return Finding(Code.STORE_MISCONFIGURED, Severity.ERROR, str(error), advice)


def _unreachable(error: StoreUnavailableError) -> Finding:
    return Finding(
        Code.STORE_UNREACHABLE,
        Severity.ERROR,
        str(error),
        "look whether the database runs, and whether database_url, network and password are right",
    )
