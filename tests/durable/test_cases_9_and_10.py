"""Odd times, and clocks that go wrong (docs/cases.md, cases 9 and 10), for sleeps and time-outs.

What is no duration or instant is refused at the call, see tests/handlers/test_waiting.py; here is
what becomes of the run then. And a wait's time is the store's: zones of the host and the database,
and hosts whose clocks are wrong, change nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import make_url

from tests.durable.calling import call, finish
from tests.durable.handlers import handler, its
from tests.runtime.rig import Rig
from tests.store.acting import do, history_of, promoted, put, rows, seen
from workhorse import waits
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import RunState
from workhorse.handlers.plain import Context
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.lifecycle.sweeping import promote

ZONES = ["Asia/Kolkata", "America/New_York", "Pacific/Chatham", "UTC"]
KOLKATA = timezone(timedelta(hours=5, minutes=30))
ONCE = RetryPolicy(max_attempts=1)
TICK = timedelta(microseconds=1)
NAIVE = datetime(2026, 1, 1, 12)  # noqa: DTZ001 - that is the case

ODD_INSTANTS: list[Any] = [
    NAIVE,
    datetime.max.replace(tzinfo=UTC),
    datetime.max.replace(tzinfo=timezone(-timedelta(hours=23))),
    "2026-01-01T00:00:00Z",
    1_767_225_600,
    float("nan"),
    None,
]
ODD_DURATIONS: list[Any] = [
    timedelta(seconds=-1),
    timedelta(days=366),
    timedelta.max,
    5,
    1.5,
    float("nan"),
    "1h",
]
ODD_MILLISECONDS: list[Any] = [-1, 10**12, 10**30, 1.5, float("nan"), True]


def named(value: object) -> str:
    return repr(value)[:30]


# -- case 9 --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call_name", "value"),
    [
        *(("sleep_until", each) for each in ODD_INSTANTS),
        *(("sleep", each) for each in ODD_DURATIONS),
        *(("sleep_ms", each) for each in ODD_MILLISECONDS),
        *(("wait_for_signal", each) for each in ODD_DURATIONS),
        *(("wait_for_human", each) for each in ODD_DURATIONS),
        *(("token", each) for each in ODD_DURATIONS),
        *(("wait_any", each) for each in ODD_DURATIONS),
    ],
    ids=named,
)
def test_case_9_an_odd_time_fails_at_its_call_and_stores_nothing(
    rig: Rig, kind: str, call_name: str, value: Any
) -> None:
    async def steps(ctx: Any) -> None:
        match call_name:
            case "sleep_ms":
                await its(ctx.sleep("nap", duration_ms=value))
            case "wait_for_signal" | "token":
                await its(getattr(ctx, call_name)("nap", timeout=value))
            case "wait_for_human":
                await its(ctx.wait_for_human("nap", None, value))
            case "wait_any":
                await its(ctx.wait_any({"nap": waits.timer(value)}))
            case _:
                await its(getattr(ctx, call_name)("nap", value))

    rig.task("t")(handler(kind, steps))
    claimed = rig.claimed("t", retry=ONCE)

    assert rig.worker().process_run(claimed) is RunState.FAILED

    assert rig.view(claimed.id).error_type == "workhorse.errors.InvalidInstantError"
    assert history_of(rig.store, claimed.id).boundaries == ()


@pytest.mark.parametrize(
    "wake_at",
    [
        datetime.min.replace(tzinfo=UTC),
        datetime(1, 1, 1, tzinfo=KOLKATA),
        datetime(1969, 7, 20, tzinfo=UTC),
    ],
    ids=named,
)
def test_case_9_a_past_instant_is_due_now_however_far(
    rig: Rig, kind: str, wake_at: datetime
) -> None:
    """But one that is before year 1 in UTC cannot be written, and is refused."""

    async def steps(ctx: Any) -> str:
        await its(ctx.sleep_until("nap", wake_at))
        return "slept"

    rig.task("t")(handler(kind, steps))
    claimed = rig.claimed("t", retry=ONCE)
    state = rig.worker().process_run(claimed)

    view = rig.view(claimed.id)
    if wake_at.tzinfo is KOLKATA:
        assert (state, view.error_type) == (
            RunState.FAILED,
            "workhorse.errors.InvalidInstantError",
        )
    else:
        assert (state, view.result) == (RunState.SUCCEEDED, '"slept"')
        assert history_of(rig.store, claimed.id).boundaries[0].wake_at == wake_at


@pytest.fixture(params=ZONES)
def host_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Make the process believe that it is somewhere else."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


def sleep_through_a_night(store: Store, clock: ManualClock) -> None:
    """Sleeps over the hour in which clocks are put back wake to the microsecond."""
    begins = datetime(2026, 10, 24, 20, 15, 30, 123_457, tzinfo=UTC)
    clock.advance(begins - clock.now)
    wake_at = datetime(2026, 10, 25, 6, 45, 0, 654_321, tzinfo=KOLKATA)  # 01:15 UTC

    def sleeps(ctx: Context) -> str:
        ctx.sleep_until("until", wake_at)
        ctx.sleep("for", timedelta(hours=5, milliseconds=1))
        try:
            ctx.wait_for_signal("word", timedelta(hours=1))
        except TimeoutError:
            return "late"
        return "in time"

    run_id = put(store)
    dues = [
        wake_at,
        wake_at + timedelta(hours=5, milliseconds=1),
        wake_at + timedelta(hours=6, milliseconds=1),
    ]
    for due in dues:
        assert finish(store, call(store, run_id, sleeps)) in (
            RunState.SCHEDULED,
            RunState.WAITING,
        )
        assert seen(store, run_id).due_at == due
        clock.advance(due - TICK - clock.now)
        assert promoted(store).count == 0
        clock.advance(TICK)
        assert promoted(store).count == 1
    assert call(store, run_id, sleeps).value == '"late"'
    assert [each.wake_at for each in history_of(store, run_id).boundaries] == dues


def test_case_9_the_zone_of_the_host_changes_no_sleep(
    host_zone: str, store: Store, clock: ManualClock
) -> None:
    sleep_through_a_night(store, clock)


@pytest.mark.parametrize("zone", ZONES)
def test_case_9_the_zone_of_the_database_changes_no_sleep(
    postgresql_url: str, clock: ManualClock, zone: str
) -> None:
    first = Store.open(postgresql_url)
    name = make_url(postgresql_url).database
    do(first, f"alter database \"{name}\" set timezone to '{zone}'")
    first.close()
    store = Store.open(postgresql_url, clock=clock)
    assert rows(store, "show timezone") == [(zone,)]

    sleep_through_a_night(store, clock)
    store.close()


# -- case 10 -------------------------------------------------------------------------------------


@pytest.mark.parametrize("minutes", [-10, 0, 10])
def test_case_10_a_host_whose_clock_is_wrong_wakes_nothing_early_or_late(
    store: Store, clock: ManualClock, minutes: int
) -> None:
    """Short sleeps, relative and absolute, and time-outs: the store's clock alone decides."""
    skew = timedelta(minutes=minutes)
    five = timedelta(seconds=5)
    wake_at = clock.now + five

    def sleeps(ctx: Context) -> str:
        ctx.sleep_until("until", wake_at)
        ctx.sleep("for", five)
        ctx.wait_for_signal("word", five, default="late")
        return "done"

    run_id = put(store)
    for n in range(1, 4):
        finish(store, call(store, run_id, sleeps, skew=skew))
        assert seen(store, run_id).due_at == wake_at + five * (n - 1)
        clock.advance(five - TICK)
        assert promoted(store).count == 0
        clock.advance(TICK)
        assert promoted(store).count == 1
    assert call(store, run_id, sleeps, skew=-skew).value == '"done"'


@pytest.mark.parametrize("minutes", [-10, 10])
def test_case_10_what_is_past_is_past_by_the_stores_clock(
    store: Store, clock: ManualClock, minutes: int
) -> None:
    """Between the two clocks: the host would say the opposite."""
    skew = timedelta(minutes=minutes)
    between = clock.now + skew / 2

    def sleeps(ctx: Context) -> str:
        ctx.sleep_until("nap", between)
        return "done"

    called = call(store, put(store), sleeps, skew=skew)

    assert finish(store, called) is (RunState.SUCCEEDED if minutes < 0 else RunState.SCHEDULED)


def test_case_10_a_clock_that_goes_back_prolongs_a_sleep_and_undoes_none(
    rig: Rig, clock: ManualClock, kind: str
) -> None:
    """A boundary behind the sleep is not passed before the sleep is over again, nor run twice."""
    done: list[str] = []

    async def steps(ctx: Any) -> None:
        await its(ctx.checkpoint("before", lambda: done.append("before")))
        await its(ctx.sleep("nap", timedelta(minutes=1)))
        await its(ctx.checkpoint("behind", lambda: done.append("behind")))
        if ctx.attempt == 1:
            raise ValueError("once more")

    rig.task("t")(handler(kind, steps))
    claimed = rig.claimed("t", retry=RetryPolicy(max_attempts=2, first=timedelta(0)))
    worker = rig.worker()
    assert worker.process_run(claimed) is RunState.SCHEDULED
    clock.advance(60_000)
    rig.store.run(promote)
    assert worker.process_run(rig.claim()) is RunState.READY

    clock.advance(-30_000)
    assert worker.process_run(rig.claim()) is RunState.SCHEDULED
    clock.advance(30_000)
    rig.store.run(promote)
    assert worker.process_run(rig.claim()) is RunState.SUCCEEDED

    assert done == ["before", "behind"]
    assert rig.view(claimed.id).attempt == 2
