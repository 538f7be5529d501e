"""Whether a value that came back from its JSON is what was handed over, in value and type.

`==` alone would not do: it takes 1 for 1.0 and True, NaN for something else than NaN, and objects
without an `__eq__` for different; and it does not say where.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any, TypeAlias

from workhorse.domain.values import step

Difference: TypeAlias = tuple[str, str]
"""The path of the part that would change, and how."""


def difference(given: Any, back: Any, path: str = "$") -> Difference | None:
    """Return the first part of `given` that is another in `back`; None where all is the same.

    Instants are the same when they show the same wall time at the same offset; the name of their
    zone is not compared. Private attributes of models are not data and are not compared either.
    """
    if given is back:  # None, members of enums
        return None
    if isinstance(given, date | time) and isinstance(back, date | time):
        return None if _clock(given) == _clock(back) else (path, "would not come back as it is")
    kind = type(given)
    if kind is not type(back):
        return path, f"is a {_name(kind)} and would come back as a {_name(type(back))}"
    if kind in (str, int, bool):
        return None if given == back else (path, "would not come back as it is")
    if isinstance(given, float):
        same = given == back or (math.isnan(given) and math.isnan(back))
        return None if same else (path, "would not come back as it is")
    if isinstance(given, Decimal):
        same = given.as_tuple() == back.as_tuple()
        return None if same else (path, "would not come back with the same digits")
    parts = _parts(given, back)
    if parts is None:
        return None if given == back else (path, "would not come back as it is")
    for way, part, other in parts:
        if (found := difference(part, other, path + way)) is not None:
            return found
    return None


_GONE: Any = type("nothing", (), {})()


def _parts(given: Any, back: Any) -> Iterator[tuple[str, Any, Any]] | None:
    """Return the parts of two values of one type, side by side; None where they have none."""
    if isinstance(given, dict):
        return _items(given, back)
    if isinstance(given, list | tuple):
        return _elements(given, back)
    if (names := field_names(given)) is not None:
        return _fields(names, given, back)
    own: Any = type(given).__eq__
    if isinstance(given, Enum):
        return None
    if own is object.__eq__ and hasattr(
        given, "__dict__"
    ):  # `==` would only say "not the same one"
        return _items(vars(given), vars(back))
    return None


def _items(given: dict[Any, Any], back: dict[Any, Any]) -> Iterator[tuple[str, Any, Any]]:
    for key, part in given.items():
        yield step(str(key)), part, back.get(key, _GONE)
    for key in back:
        if key not in given:
            yield step(str(key)), _GONE, back[key]


def _elements(given: Any, back: Any) -> Iterator[tuple[str, Any, Any]]:
    for at in range(max(len(given), len(back))):
        yield (
            f"[{at}]",
            given[at] if at < len(given) else _GONE,
            back[at] if at < len(back) else _GONE,
        )


def _fields(names: list[str], given: Any, back: Any) -> Iterator[tuple[str, Any, Any]]:
    for name in names:
        yield step(name), getattr(given, name, _GONE), getattr(back, name, _GONE)
    extra = getattr(given, "__pydantic_extra__", None)
    if isinstance(extra, dict):
        yield from _items(extra, getattr(back, "__pydantic_extra__", None) or {})


def field_names(value: object) -> list[str] | None:
    """Return the fields of a model or dataclass; None for any other value."""
    fields = getattr(type(value), "__pydantic_fields__", None)
    if fields is None:  # pydantic before 2.10; a class attribute there, deprecated on instances
        fields = getattr(type(value), "model_fields", None)
    if isinstance(fields, dict):
        return list(fields)
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    return None


def _clock(value: date | time) -> tuple[object, ...]:
    if isinstance(value, datetime):
        return (datetime, value.replace(tzinfo=None, fold=0).isoformat(), value.utcoffset())
    if isinstance(value, time):
        return (time, value.replace(tzinfo=None, fold=0).isoformat(), value.utcoffset())
    return (date, value.isoformat())


def _name(kind: type) -> str:
    if kind.__module__ in ("builtins", __name__):
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"
