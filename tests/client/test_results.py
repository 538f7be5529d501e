"""The handle of a run: waiting for its end, looking at it, cancelling it."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine

from tests.client.ends import end_run
from tests.support.eventually import eventually
from workhorse.app import Workhorse
from workhorse.client import results
from workhorse.domain.ids import RunId, new_run_id
from workhorse.domain.outcomes import Finish
from workhorse.domain.runs import Failure, Reason, RunState
from workhorse.domain.sightings import Sighting
from workhorse.errors import (
    InvalidInstantError,
    InvalidNameError,
    ResultTimeoutError,
    RunCancelledError,
    RunFailedError,
    RunNotFoundError,
)
from workhorse.handlers.tasks import Task
from workhorse.store.base.database import Store, Tx
from workhorse.store.lifecycle.sighting import sight

FAILED = Finish(
    RunState.FAILED,
    Reason.NOT_RETRYABLE,
    failure=Failure("orders.OutOfStock", "no more of those\nsecond line", "Traceback ..."),
)


@dataclass
class Receipt:
    order: int
    paid: bool


@pytest.fixture
def ship(app: Workhorse) -> Task[int, Receipt]:
    """A task whose result is a dataclass."""

    @app.task("ship")
    def ship(order: int) -> Receipt:
        return Receipt(order, paid=True)

    return ship


def test_a_result_comes_back_in_the_handlers_type(store: Store, ship: Task[int, Receipt]) -> None:
    """The annotation decodes it, for the handle of the enqueue and for one found by id."""
    run = ship.enqueue(7)
    end_run(store, run.id, Finish(RunState.SUCCEEDED, result='{"order":7,"paid":true}'))

    assert run.result() == Receipt(7, paid=True)
    assert asyncio.run(run.result_async(timeout=5)) == Receipt(7, paid=True)


def test_a_result_of_an_unknown_task_is_plain_json(
    app: Workhorse, store: Store, database_url: str, ship: Task[int, Receipt]
) -> None:
    """A process that only waits need not import the handlers."""
    run = ship.enqueue(7)
    end_run(store, run.id, Finish(RunState.SUCCEEDED, result='{"order":7}'))

    with Workhorse(database_url=database_url, lane="polling") as other:
        found = other.run(str(run.id).upper())
        assert (found.id, found.queue, found.created) == (run.id, "default", False)
        assert found.result(timeout=0) == {"order": 7}


def test_a_wait_ends_soon_after_the_run(store: Store, ship: Task[int, Receipt]) -> None:
    """Both forms poll; a run that ends meanwhile is seen."""
    run = ship.enqueue(7)
    got: list[Any] = []
    waiting = [
        threading.Thread(target=lambda: got.append(run.result(timedelta(seconds=20)))),
        threading.Thread(target=lambda: got.append(asyncio.run(run.result_async(20)))),
    ]
    for thread in waiting:
        thread.start()
    end_run(store, run.id, Finish(RunState.SUCCEEDED, result='{"order":7,"paid":false}'))

    eventually(lambda: len(got) == 2)
    assert got == [Receipt(7, paid=False)] * 2
    for thread in waiting:
        thread.join()


def test_a_failure_is_raised_with_its_reason(store: Store, ship: Task[int, Receipt]) -> None:
    """As fields for programs, and in one line for people."""
    run = ship.enqueue(7)
    end_run(store, run.id, FAILED)

    with pytest.raises(RunFailedError) as raised:
        run.result()

    assert (raised.value.reason, raised.value.error_type) == ("not_retryable", "orders.OutOfStock")
    assert raised.value.error_message == "no more of those\nsecond line"
    assert str(raised.value) == (
        f"run {run.id} of task 'ship' has failed in attempt 1 (not_retryable): "
        "orders.OutOfStock: no more of those"
    )


def test_a_cancelled_run_raises(ship: Task[int, Receipt]) -> None:
    """Waiting for it ends at once."""
    run = ship.enqueue(7)
    assert run.cancel(by="ann", why="wrong order") is RunState.CANCELLED
    assert run.cancel() is RunState.CANCELLED, "a second time changes nothing"

    with pytest.raises(RunCancelledError, match=f"run {run.id} of task 'ship' was cancelled"):
        run.result(timeout=5)


def test_a_wait_that_is_too_short_leaves_the_run_alone(ship: Task[int, Receipt]) -> None:
    """Zero looks once; the run goes on."""
    run = ship.enqueue(7)
    for timeout in (0, 0.05, timedelta(milliseconds=50)):
        with pytest.raises(ResultTimeoutError, match="it goes on"):
            run.result(timeout)
    with pytest.raises(TimeoutError):
        asyncio.run(run.result_async(0))

    assert run.view().state is RunState.READY


@pytest.mark.parametrize(
    "timeout", [-1, math.nan, math.inf, True, "5", timedelta(seconds=-1)], ids=repr
)
def test_a_timeout_that_is_none_is_refused(timeout: Any, ship: Task[int, Receipt]) -> None:
    """Before anything is asked."""
    with pytest.raises(InvalidInstantError, match="timeout"):
        ship.enqueue(7).result(timeout)


def test_a_run_that_is_not_there_is_not_waited_for(app: Workhorse) -> None:
    """An id that nobody enqueued says so at once; text that is none says so before."""
    missing = app.run(new_run_id())
    for call in (missing.result, missing.view, missing.cancel, lambda: missing.queue):
        with pytest.raises(RunNotFoundError, match="not in this store"):
            call()
    with pytest.raises(InvalidNameError, match="not a UUID"):
        app.run("order-7")


def test_rests_grow_and_stay_within_the_timeout(
    ship: Task[int, Receipt], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 20 ms to a second, and never past the end."""
    now = [100.0]
    rests: list[float] = []

    def sleep(seconds: float) -> None:
        rests.append(seconds)
        now[0] += seconds

    monkeypatch.setattr("workhorse.client.results.time.monotonic", lambda: now[0])
    run = ship.enqueue(7)
    monkeypatch.setattr("workhorse.client.results.time.sleep", sleep)
    with pytest.raises(ResultTimeoutError):
        run.result(timeout=10)

    assert rests[0] == pytest.approx(0.02)
    assert max(rests) == 1.0
    assert sum(rests) == pytest.approx(10)


def test_the_async_forms_do_the_same(app: Workhorse, ship: Task[int, Receipt]) -> None:
    """Looking and cancelling, on a thread."""

    async def main() -> None:
        run = await ship.enqueue_async(7)
        assert (await run.view_async()).payload == "7"
        assert await run.cancel_async(by="ann") is RunState.CANCELLED
        assert await app.cancel_async(run.id) is RunState.CANCELLED
        with pytest.raises(RunCancelledError):
            await run.result_async()

    asyncio.run(main())


@pytest.mark.parametrize(("by", "why"), [("", ""), ("x" * 1001, ""), ("ann", "a\0b"), (7, "")])
def test_what_an_audit_cannot_keep_is_refused(by: Any, why: Any, ship: Task[int, Receipt]) -> None:
    """Nothing is cancelled then."""
    run = ship.enqueue(7)
    with pytest.raises(InvalidNameError):
        run.cancel(by=by, why=why)
    assert run.view().state is RunState.READY


def test_cancelling_what_runs_asks_its_worker(store: Store, ship: Task[int, Receipt]) -> None:
    """It is running still, and ends as cancelled whatever it settles with."""
    run = ship.enqueue(7)
    asked: list[RunState] = []
    end_run(
        store,
        run.id,
        Finish(RunState.SUCCEEDED, result="1"),
        before=lambda: asked.append(run.cancel(by="ann")),
    )

    assert asked == [RunState.RUNNING]
    with pytest.raises(RunCancelledError):
        run.result(timeout=0)


def test_a_run_that_comes_between_two_looks_has_not_ended(
    ship: Task[int, Receipt], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each statement sees what is committed by then; SQLite's see what the first one saw."""
    with engine.connect() as connection:
        run = ship.enqueue(7, connection=connection)

        def look(tx: Tx, ids: Sequence[RunId]) -> dict[RunId, Sighting]:
            seen = sight(tx, ids)
            connection.commit()
            return seen

        monkeypatch.setattr(results, "sight", look)
        with pytest.raises((ResultTimeoutError, RunNotFoundError)):
            run.result(timeout=0)
        with pytest.raises(ResultTimeoutError):
            run.result(timeout=0)
