"""Values of all Python: taken and given back unchanged, or refused with their path."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any, Final

from tests.fuzz.evil import OBJECTS, json_values, objects
from tests.fuzz.judging import refusal_of
from tests.fuzz.kind import Kind
from workhorse.domain.values import decode, encode, fingerprint
from workhorse.errors import UnstorableValueError, ValueTooLargeError

CAP: Final = 64 * 1024


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal in value and type, all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    return bool(one == other)


def _round_trip(value: Any) -> bool:
    texts: list[str] = []
    error = refusal_of(lambda: texts.append(encode("payload of task 'mail'", value, cap=CAP)))
    if error is not None:
        assert isinstance(error, UnstorableValueError | ValueTooLargeError)
        if isinstance(error, UnstorableValueError):
            assert error.path.startswith("$")
            assert "nothing was stored" in str(error)
        return True
    (text,) = texts
    assert len(text.encode()) <= CAP
    assert "\0" not in text
    assert same(decode(text), value)
    assert len(fingerprint(text)) == 64
    return False


KINDS: Final = (
    Kind(
        name="values",
        share=15_000,
        draw=objects,
        corpus=OBJECTS,
        rig=lambda: nullcontext(_round_trip),
    ),
    Kind(
        name="json",
        share=5_000,
        draw=json_values,
        rig=lambda: nullcontext(_round_trip),
    ),
)
