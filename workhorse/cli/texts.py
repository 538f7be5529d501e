"""Values as text: for people, safe on a terminal, and for programs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final

# Controls of both sets, and the marks that turn the direction of text.
_UNSAFE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_UNSAFE_IN_LINES: Final = re.compile(_UNSAFE.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))


def visible(text: str, *, lines: bool = False) -> str:
    """Return text with control characters escaped; with `lines`, tabs and line ends stay."""
    unsafe = _UNSAFE_IN_LINES if lines else _UNSAFE
    return unsafe.sub(lambda found: ascii(found[0])[1:-1], text)


def plain(value: object) -> Any:
    """Return what JSON can carry: dataclasses as objects, instants in ISO 8601 and UTC."""
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(part) for key, part in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        return [plain(part) for part in value]
    raise TypeError(f"no JSON for a {type(value).__name__}")


def shown(value: object) -> str:
    """Return a value as people read it in a table."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value)) or "-"
    return visible(str(value))
