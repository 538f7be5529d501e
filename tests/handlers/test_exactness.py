"""What counts as the same value after the trip through JSON, and where two differ."""

from __future__ import annotations

import dataclasses
import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from workhorse.handlers.exactness import difference, field_names


class Colour(Enum):
    RED = 1
    BLUE = 2


class Thing:
    def __init__(self, **parts: Any) -> None:
        self.__dict__.update(parts)


class Slotted:
    __slots__ = ("a",)


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: Any = None


@dataclasses.dataclass
class Pair:
    a: Any
    b: Any = None


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "back"),
    [
        (1, 1),
        (math.nan, float("nan")),
        (Decimal("NaN"), Decimal("NaN")),
        (Colour.RED, Colour.RED),
        ([1, {"a": (1, 2)}], [1, {"a": (1, 2)}]),
        ({1, 2}, {2, 1}),
        (NOON, NOON.replace(tzinfo=timezone(timedelta(0)))),
        (time(1, tzinfo=UTC), time(1, tzinfo=timezone(timedelta(0)))),
        (Thing(a=[1]), Thing(a=[1])),
        (Pair(1, [Thing(a=1)]), Pair(1, [Thing(a=1)])),
        (Open(a=1, b=[2]), Open(a=1, b=[2])),
    ],
)
def test_what_is_the_same(given: Any, back: Any) -> None:
    assert difference(given, back) is None


@pytest.mark.parametrize(
    ("given", "back", "path", "problem"),
    [
        (1, 1.0, "$", "is a int and would come back as a float"),
        (1, True, "$", "as a bool"),
        (None, 0, "$", "is a NoneType"),
        ([], (), "$", "is a list and would come back as a tuple"),
        ("a", "b", "$", "as it is"),
        (0.5, 0.25, "$", "as it is"),
        (Decimal("1.0"), Decimal("1.00"), "$", "same digits"),
        (Colour.RED, Colour.BLUE, "$", "as it is"),
        ({1}, {2}, "$", "as it is"),
        ([1, [2]], [1, [3]], "$[1][0]", "as it is"),
        ([1], [], "$[0]", "as a nothing"),
        ([], [1], "$[0]", "is a nothing"),
        ({"a": 1}, {}, "$.a", "as a nothing"),
        ({}, {"a": 1}, "$.a", "is a nothing"),
        ({"a b": {1: 2}}, {"a b": {1: 3}}, "$['a b']['1']", "as it is"),
        (NOON, NOON + timedelta(microseconds=1), "$", "as it is"),
        (NOON, NOON.astimezone(timezone(timedelta(hours=1))), "$", "as it is"),
        (NOON, NOON.replace(tzinfo=None), "$", "as it is"),
        (NOON, NOON.date(), "$", "as it is"),
        (date(2026, 1, 1), date(2026, 1, 2), "$", "as it is"),
        (time(1), time(1, tzinfo=UTC), "$", "as it is"),
        (NOON, "2026-01-01T12:00:00Z", "$", "datetime.datetime and would come back as a str"),
        (Thing(a=1), Thing(a=2), "$.a", "as it is"),
        (Thing(a=1), Thing(), "$.a", "as a nothing"),
        (Slotted(), Slotted(), "$", "as it is"),
        (Pair(1, 2), Pair(1, 3), "$.b", "as it is"),
        (Open(a=(1,)), Open(a=[1]), "$.a", "is a tuple"),
        (Open(b=1), Open(b=2), "$.b", "as it is"),
        (Open(b=1), Open(), "$.b", "as a nothing"),
    ],
)
def test_where_two_values_differ(given: Any, back: Any, path: str, problem: str) -> None:
    found = difference(given, back)
    assert found is not None
    assert found[0] == path
    assert problem in found[1]


def test_fields_are_those_of_models_and_dataclasses() -> None:
    assert field_names(Open()) == ["a"]
    assert field_names(Pair(1)) == ["a", "b"]
    assert field_names({"a": 1}) is None
