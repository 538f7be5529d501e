"""Instants and durations are checked at the call; no host's zone ever has a say (case 9)."""

import os
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workhorse.domain.instants import (
    EPOCH,
    MAX_AHEAD,
    check_ahead,
    check_duration,
    check_instant,
    from_micros,
    to_micros,
    to_millis,
)
from workhorse.errors import InvalidInstantError

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
zones = st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone)
# A day from either end, so that each has a counterpart in UTC.
aware = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=zones)  # noqa: DTZ001


@pytest.fixture(params=["UTC", "Asia/Kolkata", "America/Los_Angeles"])
def host_zone(request: pytest.FixtureRequest) -> Iterator[str]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = request.param
    time.tzset()
    yield request.param
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.usefixtures("host_zone")
def test_a_naive_datetime_is_refused_whatever_the_hosts_zone() -> None:
    with pytest.raises(InvalidInstantError, match="run_at is a naive datetime.*give it a zone"):
        check_instant("run_at", datetime(2026, 1, 1))  # noqa: DTZ001


@pytest.mark.usefixtures("host_zone")
def test_an_instant_is_the_same_whatever_the_hosts_zone() -> None:
    kolkata = datetime(2026, 1, 1, 5, 30, tzinfo=ZoneInfo("Asia/Kolkata"))

    checked = check_instant("run_at", kolkata)

    assert checked.isoformat() == "2026-01-01T00:00:00+00:00"
    assert to_micros(checked) == 1_767_225_600_000_000
    assert from_micros(1_767_225_600_000_000).isoformat() == "2026-01-01T00:00:00+00:00"


@given(aware)
def test_an_instant_keeps_its_microsecond_through_utc_and_back(instant: datetime) -> None:
    checked = check_instant("run_at", instant)

    assert checked == instant
    assert checked.tzinfo is UTC
    assert from_micros(to_micros(checked)) == instant


def test_both_hours_of_a_clock_that_is_set_back_are_told_apart() -> None:
    first = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))

    difference = check_instant("run_at", first.replace(fold=1)) - check_instant("run_at", first)

    assert difference == timedelta(hours=1)


@pytest.mark.parametrize(
    "instant",
    [
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=1))),
    ],
)
def test_an_instant_without_a_counterpart_in_utc_is_refused(instant: datetime) -> None:
    with pytest.raises(InvalidInstantError, match="outside the years 1 to 9999"):
        check_instant("run_at", instant)


def test_the_first_and_the_last_instant_pass_where_utc_has_them() -> None:
    for instant in (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)):
        assert from_micros(to_micros(check_instant("run_at", instant))) == instant


@pytest.mark.parametrize("thing", [None, 0, 1.5, "2026-01-01T00:00:00Z", date(2026, 1, 1)])
def test_what_is_no_datetime_is_refused(thing: Any) -> None:
    with pytest.raises(InvalidInstantError, match=f"aware datetime; got {type(thing).__name__}"):
        check_instant("run_at", thing)


def test_what_is_past_stays_past() -> None:
    long_ago = datetime(1, 1, 1, tzinfo=UTC)

    assert check_ahead("run_at", check_instant("run_at", long_ago), NOW) == long_ago


def test_an_instant_may_lie_365_days_ahead_and_no_further() -> None:
    assert check_ahead("run_at", NOW + MAX_AHEAD, NOW) == NOW + timedelta(days=365)
    for instant in (NOW + MAX_AHEAD + timedelta(microseconds=1), datetime.max.replace(tzinfo=UTC)):
        with pytest.raises(InvalidInstantError, match="run_at lies more than 365 days ahead"):
            check_ahead("run_at", instant, NOW)


def test_a_duration_may_be_from_zero_to_365_days() -> None:
    for duration in (timedelta(0), timedelta(microseconds=1), MAX_AHEAD):
        assert check_duration("delay", duration) == duration


@pytest.mark.parametrize(
    ("duration", "told"),
    [
        (timedelta(microseconds=-1), "delay is negative; zero is the shortest"),
        (timedelta.min, "delay is negative"),
        (MAX_AHEAD + timedelta(microseconds=1), "delay is longer than 365 days"),
        (timedelta(milliseconds=10**12), "delay is longer than 365 days"),
        (timedelta.max, "delay is longer than 365 days"),
        (5, "delay must be a timedelta; got int"),
        (1.5, "delay must be a timedelta; got float"),
        (float("nan"), "delay must be a timedelta; got float"),
        (None, "delay must be a timedelta; got NoneType"),
    ],
)
def test_another_duration_is_refused(duration: Any, told: str) -> None:
    with pytest.raises(InvalidInstantError, match=told):
        check_duration("delay", duration)


def test_a_duration_may_have_a_limit_of_its_own() -> None:
    with pytest.raises(InvalidInstantError, match="first is longer than 30 days"):
        check_duration("first", timedelta(days=31), most=timedelta(days=30))


@given(st.timedeltas(timedelta(0), MAX_AHEAD))
def test_milliseconds_never_cut_a_duration_short_and_add_less_than_one(duration: timedelta) -> None:
    rounded = timedelta(milliseconds=to_millis(duration))

    assert duration <= rounded < duration + timedelta(milliseconds=1)


def test_the_epoch_is_microsecond_zero() -> None:
    assert to_micros(EPOCH) == 0
    assert to_micros(EPOCH - timedelta(microseconds=1)) == -1
