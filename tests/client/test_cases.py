"""Cases that hurt people, seen from the producer's side; see docs/cases.md for each."""

from __future__ import annotations

import json
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

from tests.client.conftest import driver_url
from tests.client.ends import end_run, lease_run
from tests.client.lanes import RecordingLane
from tests.store.acting import WAIT
from tests.support.processes import Processes
from workhorse.app import Workhorse
from workhorse.domain.ids import RunId
from workhorse.domain.outcomes import Finish
from workhorse.domain.runs import Reason, RunState
from workhorse.domain.values import MAX_PAYLOAD_BYTES
from workhorse.errors import (
    IdempotencyConflictError,
    InvalidInstantError,
    UnstorableValueError,
    ValueTooLargeError,
)
from workhorse.handlers.tasks import Task
from workhorse.store.base.database import ManualClock, Store

CALLERS = 50


@pytest.fixture
def keep(app: Workhorse) -> Task[Any, Any]:
    """A task that takes any JSON."""

    @app.task("keep")
    def keep(value: Any) -> Any:
        return value

    return keep


# -- case 2: the wakeup and the transaction ------------------------------------------------------


def test_case_2_sends_that_were_dropped_are_made_up_for_by_the_top_up(
    engine: Engine, app: Workhorse, double: Task[int, int], lane: RecordingLane, clock: ManualClock
) -> None:
    """The process ended between COMMIT and send: maintenance sends what is missing, then."""
    with engine.connect() as connection:
        run = double.enqueue(1, connection=connection)
        connection.commit()
        lane.error = ConnectionError("the process is gone")
    app.flush()
    assert lane.sent == []
    lane.error = None

    assert app.maintenance().run_due().counts["top_up"] == 1
    assert lane.ids == [run.id]

    clock.advance(timedelta(seconds=29))
    assert "top_up" not in app.maintenance().run_due().counts
    clock.advance(timedelta(seconds=1, milliseconds=1))
    assert app.maintenance().run_due().counts["top_up"] == 1, "a hint that was lost is sent again"


def test_case_2_sends_that_were_dropped_are_made_up_for_by_a_scan(
    engine: Engine, app: Workhorse, double: Task[int, int], lane: RecordingLane
) -> None:
    """A worker that was told nothing finds the run."""
    lane.error = ConnectionError("the process is gone")
    with engine.begin() as connection:
        run = double.enqueue(21, connection=connection)
    outside = double.enqueue(22)

    worker = app.worker()
    try:
        assert worker.drain() == 2
    finally:
        worker.stop(0)

    assert (run.result(timeout=0), outside.result(timeout=0)) == (42, 44)


_PRODUCER = """
    import os, signal, sys
    from sqlalchemy import create_engine
    from sqlalchemy.orm import Session
    from workhorse.app import Workhorse
    from lanes.polling import PollingLane

    class Deadly(PollingLane):
        def send(self, outgoing):
            print("committed", outgoing[0].wakeup.run_id, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    app = Workhorse(database_url=sys.argv[1], lane=Deadly())

    @app.task("double")
    def double(number: int) -> int:
        return number * 2

    if sys.argv[3] == "alone":
        double.enqueue(21)
    else:
        with Session(create_engine(sys.argv[2])) as session:
            double.enqueue(21, connection=session)
            session.commit()
    print("still here", flush=True)
"""


@pytest.mark.parametrize("how", ["alone", "in a session"])
def test_case_2_a_producer_killed_between_commit_and_send(
    how: str,
    database_url: str,
    app: Workhorse,
    double: Task[int, int],
    processes: Processes,
    lane: RecordingLane,
) -> None:
    """SIGKILL comes when the first send is tried: the run is there, and a scan runs it once."""
    program = textwrap.dedent(_PRODUCER)
    producer = processes.start(
        sys.executable, "-c", program, database_url, driver_url(database_url), how
    )
    run_id = producer.wait_for(r"committed (\S+)").group(1)
    assert producer.wait() == -9
    assert "still here" not in producer.output()

    worker = app.worker()
    try:
        assert worker.drain() == 1
    finally:
        worker.stop(0)

    assert app.run(run_id).result(timeout=0) == 42
    assert app.admin.show(run_id).fence == 1


# -- case 3: one key, many callers ---------------------------------------------------------------


def _as_it_is(_store: Store, _run_id: RunId) -> None:
    pass


def _running(store: Store, run_id: RunId) -> None:
    lease_run(store, run_id)


def _waiting(store: Store, run_id: RunId) -> None:
    end_run(store, run_id, WAIT)


def _finished(store: Store, run_id: RunId) -> None:
    end_run(store, run_id, Finish(RunState.SUCCEEDED, result="1"))


def _cancelled(store: Store, run_id: RunId) -> None:
    end_run(store, run_id, Finish(RunState.CANCELLED, Reason.CANCELLED))


@pytest.fixture
def crowd(database_url: str) -> Iterator[Engine]:
    """An engine that gives each of fifty callers a connection of its own."""
    options: dict[str, Any] = {"pool_size": CALLERS}
    if database_url.startswith("sqlite"):
        options["connect_args"] = {"timeout": 60}
    engine = create_engine(driver_url(database_url), **options)
    yield engine
    engine.dispose()


def _at_once(call: Callable[[int], str]) -> Counter[str]:
    """Call from fifty threads that start together; count what they got."""
    together = threading.Barrier(CALLERS, timeout=60)

    def one(number: int) -> str:
        together.wait()
        return call(number)

    with ThreadPoolExecutor(CALLERS) as pool:
        return Counter(pool.map(one, range(CALLERS)))


@pytest.mark.parametrize(
    "state",
    [_as_it_is, _running, _waiting, _finished, _cancelled],
    ids=lambda state: state.__name__.strip("_"),
)
def test_case_3_fifty_callers_with_one_key_make_one_run(
    state: Callable[[Store, RunId], None],
    app: Workhorse,
    store: Store,
    double: Task[int, int],
    crowd: Engine,
) -> None:
    """Over separate connections, half with another payload, in each state of the run.

    All with its payload are given the run's id; the others are told of a conflict; nobody else's
    error gets out.
    """
    owner = double.enqueue(1, key="k")
    state(store, owner.id)

    def enqueue(number: int) -> str:
        try:
            with crowd.begin() as connection:
                return double.enqueue(1 + number % 2, key="k", connection=connection).id
        except IdempotencyConflictError:
            return "conflict"

    assert _at_once(enqueue) == {owner.id: CALLERS // 2, "conflict": CALLERS // 2}
    assert [view.id for view in app.admin.list_runs()] == [owner.id]


def test_case_3_fifty_callers_race_for_a_key_that_is_free(
    app: Workhorse, double: Task[int, int]
) -> None:
    """One payload wins; the callers with the other one conflict, all of them."""

    def enqueue(number: int) -> str:
        try:
            return double.enqueue(1 + number % 2, key="k").id
        except IdempotencyConflictError:
            return "conflict"

    got = _at_once(enqueue)

    (view,) = app.admin.list_runs()
    assert got == {view.id: CALLERS // 2, "conflict": CALLERS // 2}


def test_case_3_a_rolled_back_owner_does_not_block_the_next(
    app: Workhorse, double: Task[int, int], crowd: Engine, lane: RecordingLane
) -> None:
    """Fifty transactions, every third of which rolls back: one run, and all others are told it."""
    told: dict[int, str] = {}

    def enqueue(number: int) -> str:
        with crowd.connect() as connection:
            run = double.enqueue(1, key="k", connection=connection)
            if number % 3 == 0:
                connection.rollback()
                return "rolled back"
            connection.commit()
            told[number] = run.id
        return "told"

    got = _at_once(enqueue)

    (view,) = app.admin.list_runs()
    assert set(told.values()) == {view.id}
    assert got == {"rolled back": 17, "told": 33}
    assert set(lane.ids) == {view.id}


def test_case_3_a_key_is_free_again_after_its_reset_and_after_thirty_days(
    app: Workhorse, double: Task[int, int], clock: ManualClock
) -> None:
    """The runs that had it stand as they are."""
    first = double.enqueue(1, key="k")
    assert app.idempotency.reset(double, "k")
    assert not app.idempotency.reset("double", "k")
    second = double.enqueue(2, key="k")
    clock.advance(timedelta(days=29, hours=23))
    assert not double.enqueue(2, key="k").created
    clock.advance(timedelta(hours=1, milliseconds=1))
    third = double.enqueue(3, key="k")

    assert [run.created for run in (first, second, third)] == [True] * 3
    assert len(app.admin.list_runs()) == 3


# -- case 7: large values ------------------------------------------------------------------------


@pytest.mark.parametrize("size", [MAX_PAYLOAD_BYTES - 1, MAX_PAYLOAD_BYTES], ids=str)
def test_case_7_a_payload_up_to_the_cap_is_kept_and_not_sent(
    size: int, keep: Task[Any, Any], lane: RecordingLane
) -> None:
    """The wakeup names the run and nothing else, however large its payload."""
    value = "x" * (size - 2)
    run = keep.enqueue(value)

    assert run.view().payload == f'"{value}"'
    assert len(repr(lane.sent[0].outgoing)) < 400


@pytest.mark.parametrize("size", [MAX_PAYLOAD_BYTES + 1, 64 * MAX_PAYLOAD_BYTES], ids=str)
def test_case_7_a_payload_over_the_cap_is_refused_at_the_call(
    size: int, app: Workhorse, keep: Task[Any, Any], lane: RecordingLane
) -> None:
    """With its size and the cap, before anything is stored; the cap counts bytes."""
    for value in ("x" * (size - 2), "\u00e9" * ((size - 1) // 2)):
        with pytest.raises(ValueTooLargeError) as raised:
            keep.enqueue(value)
        assert (raised.value.what, raised.value.cap) == ("payload of task 'keep'", 1024 * 1024)
        assert raised.value.size > raised.value.cap
    assert app.admin.list_runs() == []
    assert lane.calls == []


# -- case 8: what JSON cannot carry --------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (float("nan"), "$"),
        ({"loss": float("nan")}, "$.loss"),
        ([float("inf")], "$[0]"),
        ({"a": [0, -float("inf")]}, "$.a[1]"),
        (Decimal("1.5"), "$"),
        ({1, 2}, "$"),
        (datetime(2026, 1, 1, tzinfo=UTC), "$"),
        (b"bytes", "$"),
        ((1, 2), "$"),
        ({"k": {3: "three"}}, "$.k"),
        ("nul \0", "$"),
        (["\ud800"], "$[0]"),
    ],
    ids=repr,
)
def test_case_8_what_would_not_come_back_unchanged_is_refused_with_its_path(
    value: Any, path: str, app: Workhorse, keep: Task[Any, Any]
) -> None:
    """The same on both databases, at the call, before any statement."""
    with pytest.raises(UnstorableValueError) as raised:
        keep.enqueue(value)

    assert raised.value.path == path
    assert app.admin.list_runs() == []


@pytest.mark.parametrize(
    "value",
    [
        2**70,
        -(2**63) - 1,
        10**400,
        1e308,
        5e-324,
        0.1 + 0.2,
        -0.0,
        1.0,
        True,
        None,
        "",
        "\u2028 \U0001f600 \x01 \\u0000",
        {"": [], "a": {}},
        {"b": 1, "a": 2},
    ],
    ids=repr,
)
def test_case_8_what_is_stored_comes_back_in_value_type_and_order(
    value: Any, keep: Task[Any, Any]
) -> None:
    """Through the store, and through a handler and its result."""
    run = keep.run_now(value)

    for got in (json.loads(run.view().payload), run.result(timeout=0)):
        assert (got, type(got), repr(got)) == (value, type(value), repr(value))


# -- case 9: instants ----------------------------------------------------------------------------


@pytest.fixture
def elsewhere(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The host and the database's sessions are in other zones than UTC."""
    if database_url.startswith("postgresql"):
        engine = create_engine(driver_url(database_url), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            name = connection.execute(text("select current_database()")).scalar_one()
            connection.execute(text(f"alter database {name} set timezone = 'America/St_Johns'"))
        engine.dispose()
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    yield
    monkeypatch.delenv("TZ")
    time.tzset()


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("microsecond", [0, 1, 999_999])
@pytest.mark.parametrize(
    "zone",
    [UTC, timezone(timedelta(hours=-9, minutes=-30)), timezone(timedelta(hours=14))],
    ids=str,
)
def test_case_9_an_instant_comes_back_to_the_microsecond(
    microsecond: int, zone: timezone, database_url: str
) -> None:
    """Whatever zones the caller, the host and the database are in."""
    with Workhorse(database_url=database_url, lane="polling") as app:

        @app.task()
        def work() -> None:
            pass

        due = (datetime.now(UTC) + timedelta(days=1)).replace(microsecond=microsecond)
        view = work.enqueue(run_at=due.astimezone(zone)).view()

        assert view.due_at == due
        assert view.due_at is not None
        assert view.due_at.utcoffset() == timedelta(0)
        assert abs(view.created_at - datetime.now(UTC)) < timedelta(minutes=5)


def test_case_9_what_is_past_is_due_now(
    double: Task[int, int], clock: ManualClock, lane: RecordingLane
) -> None:
    """By the database's clock; the year 1 is only further past."""
    instants = [
        clock.now,
        clock.now - timedelta(microseconds=1),
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=-5))),
    ]
    runs = [double.enqueue(1, run_at=instant) for instant in instants]

    assert {run.view().state for run in runs} == {RunState.READY}
    assert [each.outgoing.delay_ms for each in lane.sent] == [0] * 4
    near = double.enqueue(1, run_at=clock.now + timedelta(microseconds=1)).view()
    assert near.state is RunState.SCHEDULED


@pytest.mark.parametrize(
    "options",
    [
        {"run_at": datetime(2026, 1, 2)},  # noqa: DTZ001 - naive on purpose
        {"run_at": datetime.max},  # noqa: DTZ901 - as above
        {"run_at": datetime.max.replace(tzinfo=UTC)},
        {"run_at": datetime.min.replace(tzinfo=timezone(timedelta(hours=5)))},
        {"run_at": "2026-01-02T00:00:00Z"},
        {"run_at": 1_770_000_000},
        {"delay": timedelta(seconds=-1)},
        {"delay": timedelta(milliseconds=10**12)},
        {"delay": timedelta(days=365, microseconds=1)},
        {"delay": 5},
        {"delay": 0.5},
        {"delay": float("nan")},
        {"deadline": timedelta(0)},
        {"timeout": timedelta(days=-1)},
        {"delay": timedelta(0), "run_at": datetime(2026, 1, 2, tzinfo=UTC)},
    ],
    ids=repr,
)
def test_case_9_odd_instants_and_durations_are_refused_at_the_call(
    options: dict[str, Any], app: Workhorse, double: Task[int, int]
) -> None:
    """By a typed error, never by an overflow later."""
    with pytest.raises(InvalidInstantError):
        double.enqueue(1, **options)
    assert app.admin.list_runs() == []


@pytest.mark.parametrize(
    "options",
    [
        {"delay": timedelta(days=365)},
        {"deadline": timedelta(microseconds=1)},
        {"delay": timedelta(0)},
    ],
    ids=repr,
)
def test_case_9_the_bounds_themselves_are_allowed(
    options: dict[str, Any], double: Task[int, int]
) -> None:
    """The year is 365 days, and a duration is rounded up to a millisecond."""
    assert double.enqueue(1, **options).created
