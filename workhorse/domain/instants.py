"""Instants are aware datetimes in UTC, durations are timedeltas; both are checked at the call.

A naive datetime is refused, never read as the host's time: the host's zone is not the user's.

Source: docs/design.md, section 7; docs/cases.md, case 9.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from workhorse.errors import InvalidInstantError

MAX_AHEAD: Final = timedelta(days=365)
"""How far ahead anything may be due."""

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def check_instant(what: str, instant: object) -> datetime:
    """Return an aware datetime in UTC. What is past stays past: it is due at once."""
    if not isinstance(instant, datetime):
        raise InvalidInstantError(f"{what} must be an aware datetime; got {type(instant).__name__}")
    if instant.utcoffset() is None:
        raise InvalidInstantError(
            f"{what} is a naive datetime, which names no instant; "
            "give it a zone, e.g. datetime.now(UTC)"
        )
    try:
        return instant.astimezone(UTC)
    except OverflowError:
        raise InvalidInstantError(f"{what} lies outside the years 1 to 9999") from None


def check_ahead(what: str, instant: datetime, now: datetime) -> datetime:
    """Refuse an instant more than 365 days after `now`."""
    if instant - now > MAX_AHEAD:
        raise InvalidInstantError(f"{what} lies more than 365 days ahead")
    return instant


def check_duration(what: str, duration: object, *, most: timedelta = MAX_AHEAD) -> timedelta:
    """Return a timedelta from zero to `most` (365 days)."""
    if not isinstance(duration, timedelta):
        raise InvalidInstantError(f"{what} must be a timedelta; got {type(duration).__name__}")
    if duration < timedelta(0):
        raise InvalidInstantError(f"{what} is negative; zero is the shortest")
    if duration > most:
        raise InvalidInstantError(f"{what} is longer than {most.days} days")
    return duration


def to_millis(duration: timedelta) -> int:
    """Return whole milliseconds, rounded up: what is waited for is never cut short."""
    return -((-duration // _MICROSECOND) // 1000)


def to_micros(instant: datetime) -> int:
    """Return microseconds since 1970 in UTC, exactly."""
    return (instant - EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """Return the instant of a count of microseconds since 1970."""
    return EPOCH + timedelta(microseconds=micros)
