"""Runs that come after others: who is woken, and when, in transactions of one's own too."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import create_async_engine

from tests.client.ends import end_run
from tests.client.lanes import RecordingLane
from tests.support.eventually import eventually
from workhorse.app import Workhorse
from workhorse.domain.ids import RunId, new_run_id
from workhorse.domain.outcomes import Finish
from workhorse.domain.runs import Failure, Reason, RunState
from workhorse.errors import RunNotFoundError, StoreUnavailableError
from workhorse.handlers.tasks import Task
from workhorse.store.base.database import Store

SUCCEEDED = Finish(RunState.SUCCEEDED, result="2")
FAILED = Finish(RunState.FAILED, Reason.ERROR, failure=Failure("ValueError", "no"))


def state_of(app: Workhorse, run_id: RunId) -> RunState:
    return app.run(run_id).view().state


def freed(app: Workhorse) -> None:
    """Have maintenance hand on what has ended."""
    app.maintenance().run_once()


def test_a_run_waits_for_all_that_it_comes_after(
    app: Workhorse, store: Store, double: Task[int, int], lane: RecordingLane
) -> None:
    first, second = double.enqueue(1), double.enqueue(2)
    lane.sent.clear()

    run = double.enqueue(3, after=[first, second.id])

    assert lane.sent == []
    assert state_of(app, run.id) is RunState.WAITING
    end_run(store, first.id, SUCCEEDED)
    freed(app)
    assert state_of(app, run.id) is RunState.WAITING
    end_run(store, second.id, SUCCEEDED)
    freed(app)
    assert state_of(app, run.id) is RunState.READY
    assert run.id in lane.ids


def test_one_that_has_ended_before_is_not_waited_for(
    app: Workhorse, store: Store, double: Task[int, int], lane: RecordingLane
) -> None:
    """The enqueue itself finds that out: no pass of maintenance is needed."""
    first = double.enqueue(1)
    end_run(store, first.id, SUCCEEDED)
    lane.sent.clear()

    run = double.enqueue(2, after=[first])
    again = asyncio.run(double.enqueue_async(2, after=[first]))

    assert {state_of(app, each.id) for each in (run, again)} == {RunState.READY}
    assert lane.ids == [run.id, again.id]


@pytest.mark.parametrize(
    ("on_failure", "state"), [("fail", "failed"), ("cancel", "cancelled"), ("run", "ready")]
)
def test_what_becomes_of_it_when_one_fails(
    app: Workhorse, store: Store, double: Task[int, int], on_failure: str, state: str
) -> None:
    first = double.enqueue(1)
    run = double.enqueue(2, after=[first], on_failure=on_failure)
    end_run(store, first.id, FAILED)
    freed(app)

    assert state_of(app, run.id) == state


def test_many_are_prepared_in_one_go_and_come_after_each_other(
    app: Workhorse, store: Store, double: Task[int, int], lane: RecordingLane
) -> None:
    """Also after one whose key led to a run that was there before."""
    there = double.enqueue(1, key="k")
    end_run(store, there.id, SUCCEEDED)
    lane.sent.clear()
    same = double.prepare(1, key="k")
    after_same = double.prepare(2, after=[same.run.id])
    last = double.prepare(3, after=[after_same.run.id])

    runs = app.enqueue_many([same, after_same, last])

    assert [run.created for run in runs] == [False, True, True]
    assert state_of(app, runs[1].id) is RunState.READY
    assert state_of(app, runs[2].id) is RunState.WAITING
    assert lane.ids == [runs[1].id]


def test_a_predecessor_that_is_not_there_is_refused(app: Workhorse, double: Task[int, int]) -> None:
    missing = new_run_id()

    with pytest.raises(RunNotFoundError, match=missing):
        double.enqueue(1, after=[missing])

    assert app.admin.count_runs()[RunState.WAITING] == 0


def test_a_store_that_goes_away_behind_the_commit_does_no_harm(
    app: Workhorse, store: Store, double: Task[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is accepted, and maintenance looks at what it comes after."""

    def unreachable(*_args: object, **_kwargs: object) -> None:
        raise StoreUnavailableError("it did not answer")

    first = double.enqueue(1)
    with monkeypatch.context() as patched:
        patched.setattr("workhorse.client.arming.arm", unreachable)
        run = double.enqueue(2, after=[first])
    end_run(store, first.id, SUCCEEDED)
    assert state_of(app, run.id) is RunState.WAITING

    freed(app)
    assert state_of(app, run.id) is RunState.READY


# -- in a transaction of the caller's ------------------------------------------------------------


@pytest.fixture
def armed(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What was looked at, call by call: never in the caller's thread."""
    from workhorse.client import arming

    arm: Callable[..., Any] = vars(arming)["arm"]
    calls: list[list[str]] = []
    caller = threading.get_ident()

    def noted(tx: Any, *, sources: list[str]) -> Any:
        assert threading.get_ident() != caller, "its next transaction may have begun in it"
        calls.append(sources)
        return arm(tx, sources=sources)

    monkeypatch.setattr(arming, "arm", noted)
    return calls


def test_a_joined_run_is_looked_after_once_its_transaction_has_committed(
    app: Workhorse,
    store: Store,
    double: Task[int, int],
    engine: Engine,
    lane: RecordingLane,
    armed: list[list[str]],
) -> None:
    first = double.enqueue(1)
    end_run(store, first.id, SUCCEEDED)
    lane.sent.clear()
    with engine.connect() as connection, connection.begin():
        run = double.enqueue(2, after=[first], connection=connection)
        assert armed == []

    app.flush()

    assert armed == [[first.id]]
    assert state_of(app, run.id) is RunState.READY
    assert lane.ids == [run.id]


def test_a_joined_run_that_is_rolled_back_is_nobodys_business(
    app: Workhorse, double: Task[int, int], engine: Engine, armed: list[list[str]]
) -> None:
    first = double.enqueue(1)
    with engine.connect() as connection:
        double.enqueue(2, after=[first], connection=connection)
        connection.rollback()
    app.flush()

    assert armed == []


def test_the_next_transaction_of_a_kept_connection_does_not_wait_for_the_look(
    app: Workhorse, store: Store, double: Task[int, int], engine: Engine
) -> None:
    """It writes at once, and on SQLite there is one writer."""
    first = double.enqueue(1)
    end_run(store, first.id, SUCCEEDED)
    with engine.connect() as connection:
        with connection.begin():
            run = double.enqueue(2, after=[first], connection=connection)
        with connection.begin():
            double.enqueue(3, connection=connection)
        eventually(lambda: state_of(app, run.id) is RunState.READY)


def test_an_async_caller_joins_too(
    app: Workhorse, store: Store, double: Task[int, int], async_url: str
) -> None:
    first = double.enqueue(1)
    end_run(store, first.id, SUCCEEDED)

    async def enqueue() -> RunId:
        engine = create_async_engine(async_url)
        async with engine.begin() as connection:
            run = await double.enqueue_async(2, after=[first], connection=connection)
        await engine.dispose()
        return run.id

    run_id = asyncio.run(enqueue())
    app.flush()

    assert state_of(app, run_id) is RunState.READY
