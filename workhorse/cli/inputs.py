"""What people type, as values: durations, instants, JSON, and who they are."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Any, Final

from workhorse.domain.showing import shown
from workhorse.errors import ConfigurationError, InvalidInstantError

_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_UNITS: Final = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}


def parse_duration(what: str, text: str) -> timedelta:
    """Return a duration: seconds, or numbers with units, e.g. `90`, `1.5s`, `1h30m`, `250ms`.

    Raises:
        InvalidInstantError: It is neither, or longer than Python can count.
    """
    compact = text.strip().lower()
    try:
        if re.fullmatch(r"[0-9]+(\.[0-9]+)?", compact):
            return timedelta(seconds=float(compact))
        parts = _PART.findall(compact)
        if parts and "".join(number + unit for number, unit in parts) == compact:
            return sum((float(number) * _UNITS[unit] for number, unit in parts), timedelta())
    except OverflowError:
        raise InvalidInstantError(f"{what} {shown(text)} is too long") from None
    raise InvalidInstantError(
        f"{what} {shown(text)} is not a duration; "
        "write seconds or units, e.g. 90, 1.5s, 5m or 1h30m"
    )


def parse_instant(what: str, text: str) -> datetime:
    """Return an instant in ISO 8601; whether it has a zone is checked where it is used.

    Raises:
        InvalidInstantError: It is none.
    """
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidInstantError(
            f"{what} {shown(text)} is not an instant in ISO 8601, e.g. 2026-01-31T08:00:00Z"
        ) from None


def read_text(argument: str) -> str:
    """Return an argument, or what `-` (standard input) or `@path` (a file) holds.

    Raises:
        ConfigurationError: What is named cannot be read, or it is no UTF-8.
    """
    where = "standard input" if argument == "-" else argument[1:]
    try:
        if argument == "-":
            return _standard_input().read().decode()
        if argument.startswith("@"):
            return Path(argument[1:]).read_bytes().decode()
    except OSError as error:
        raise _unreadable(where, error) from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{where} is no UTF-8 at byte {error.start}") from None
    return argument


def parse_value(what: str, argument: str) -> Any:
    """Return the value that JSON text stands for, given as `read_text` takes it.

    Raises:
        UnstorableValueError: The text is no JSON.
        ConfigurationError: As `read_text`.
    """
    from workhorse.handlers.codecs import JsonCodec
    from workhorse.handlers.shapes import ANYTHING

    return JsonCodec(ANYTHING).decode(what, read_text(argument))


def read_lines(argument: str) -> Iterator[str]:
    """Yield the lines of what `read_text` reads, without holding all of them at once.

    Raises:
        ConfigurationError: As `read_text`.
    """
    if argument != "-" and not argument.startswith("@"):
        yield from argument.splitlines()
        return
    where = "standard input" if argument == "-" else argument[1:]
    try:
        source = _opened(argument)
    except OSError as error:
        raise _unreadable(where, error) from None
    with source:
        for number, line in enumerate(source, start=1):
            try:
                yield line.decode()
            except UnicodeDecodeError:
                raise ConfigurationError(f"{where} is no UTF-8 in line {number}") from None


def os_user() -> str:
    """Return the name of the user that this process runs as, for the audit."""
    import os
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container may run as a number that has no name
        return f"uid {os.getuid()}"


def _opened(argument: str) -> IO[bytes]:
    return _standard_input() if argument == "-" else Path(argument[1:]).open("rb")


def _standard_input() -> IO[bytes]:
    if sys.stdin is None:  # closed before the process began, as by `<&-`
        raise ConfigurationError("standard input cannot be read: it is closed")
    return sys.stdin.buffer


def _unreadable(where: str, error: OSError) -> ConfigurationError:
    return ConfigurationError(f"{where} cannot be read: {error.strerror or type(error).__name__}")
