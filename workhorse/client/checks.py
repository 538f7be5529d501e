"""What is checked of a client's calls before anything is asked of the store."""

from __future__ import annotations

import math
import uuid
from datetime import timedelta
from typing import Final

from workhorse.domain.showing import shown
from workhorse.errors import ConfigurationError, InvalidInstantError, InvalidNameError

LARGEST_PAGE: Final = 1_000
_MAX_SAID: Final = 1000


def seconds_of(timeout: object) -> float:
    """Return a time-out in seconds.

    Raises:
        InvalidInstantError: It is negative, not finite, or neither a timedelta nor a number.
    """
    if isinstance(timeout, timedelta):
        seconds = timeout.total_seconds()
    elif isinstance(timeout, int | float) and not isinstance(timeout, bool):
        try:
            seconds = float(timeout)
        except OverflowError:  # a whole number that is larger than any float
            seconds = math.inf if timeout > 0 else -math.inf
    else:
        raise InvalidInstantError(
            f"timeout must be a timedelta or seconds; got {type(timeout).__name__}"
        )
    if not math.isfinite(seconds) or seconds < 0:
        raise InvalidInstantError(f"timeout is {seconds}; it must be zero or more, or None")
    return seconds


def check_said(what: str, text: object, *, least: int = 0) -> str:
    """Return what somebody says in an audit: text of at most 1,000 characters."""
    if not isinstance(text, str):
        raise InvalidNameError(f"{what} must be text; got {type(text).__name__}")
    if not least <= len(text) <= _MAX_SAID:
        raise InvalidNameError(
            f"{what} has {len(text):,} characters; it may have {least} to {_MAX_SAID:,}"
        )
    if not all(char.isprintable() or char in "\n\t" for char in text):
        raise InvalidNameError(f"{what} holds a character that cannot be printed")
    return text


def check_page(limit: object) -> int:
    """Return how many entries a page may have: 1 to 1,000."""
    if type(limit) is int and 1 <= limit <= LARGEST_PAGE:
        return limit
    raise ConfigurationError(f"limit is {shown(limit)}; it must be 1 to {LARGEST_PAGE:,}")


def new_request_id() -> str:
    """Draw the id of one call of an operator, so that a repeated one acts once."""
    return uuid.uuid4().hex
