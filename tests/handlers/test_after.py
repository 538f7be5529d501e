"""Runs that come after others: what a producer may say, and what is refused at the call."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.handlers.producers import FakeProducer
from workhorse.domain.ids import RunId, new_run_id
from workhorse.domain.runs import OnFailure
from workhorse.errors import ConfigurationError, InvalidInstantError, InvalidNameError
from workhorse.handlers.registry import TaskRegistry
from workhorse.handlers.tasks import Task

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Handle:
    """What has an id is a run."""

    id: RunId


@pytest.fixture
def sum_up() -> Task[Any, Any]:
    registry = TaskRegistry()
    registry.bind(FakeProducer(NOW))
    return registry.register(lambda: None, "sum_up")


def test_runs_are_named_by_id_or_handle_each_once(sum_up: Task[Any, Any]) -> None:
    first, second = new_run_id(), new_run_id()

    run = sum_up.prepare(after=[first, Handle(second), first.upper()]).run  # type: ignore[list-item]

    assert run.after == (first, second)
    assert run.on_failure is OnFailure.FAIL


@pytest.mark.parametrize("said", list(OnFailure))
def test_what_becomes_of_it_when_one_fails_is_its_producers_to_say(
    sum_up: Task[Any, Any], said: OnFailure
) -> None:
    assert sum_up.prepare(after=[new_run_id()], on_failure=said).run.on_failure is said
    assert sum_up.prepare(after=[new_run_id()], on_failure=said.value).run.on_failure is said


@pytest.mark.parametrize("after", [None, [], ()])
def test_a_run_that_comes_after_nothing_is_as_any_other(sum_up: Task[Any, Any], after: Any) -> None:
    on_failure = None if after is None else "run"  # a list that a program made may be empty
    run = sum_up.prepare(after=after, on_failure=on_failure, delay=timedelta(seconds=1)).run

    assert (run.after, run.on_failure, run.delay_ms) == ((), None, 1_000)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"after": [new_run_id()], "delay": timedelta(0)}, InvalidInstantError, "when they have"),
        ({"after": [new_run_id()], "run_at": NOW}, InvalidInstantError, "when they have ended"),
        ({"after": new_run_id()}, InvalidNameError, "a list of run ids or handles; got a single"),
        ({"after": 7}, InvalidNameError, "got a single int"),
        ({"after": ["x"]}, InvalidNameError, "run id 'x' is not a UUID"),
        ({"after": [None]}, InvalidNameError, "is not a UUID"),
        ({"after": [new_run_id() for _ in range(1_001)]}, ConfigurationError, "1,001 runs"),
        ({"after": [new_run_id()], "on_failure": "shrug"}, ConfigurationError, "fail, cancel, run"),
        ({"on_failure": "run"}, ConfigurationError, "without after"),
        ({"after": [], "on_failure": "shrug"}, ConfigurationError, "fail, cancel, run"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_the_call(
    sum_up: Task[Any, Any], options: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        sum_up.prepare(**options)


def test_a_thousand_may_come_before(sum_up: Task[Any, Any]) -> None:
    ids = [new_run_id() for _ in range(1_000)]

    assert sum_up.prepare(after=ids + ids).run.after == tuple(ids)


def test_run_now_comes_after_nothing(sum_up: Task[Any, Any]) -> None:
    with pytest.raises(InvalidInstantError, match="comes after nothing"):
        sum_up.run_now(after=[new_run_id()])  # type: ignore[call-arg]
