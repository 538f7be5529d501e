"""Values make the trip unchanged in value and type, or are refused with the path of the bad part.

Covers cases 7 and 8 of docs/cases.md for the values themselves.
"""

import datetime
import decimal
import json
import math
import sys
from collections import OrderedDict
from collections.abc import Generator
from enum import StrEnum
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workhorse.domain.values import (
    MAX_DELIVERY_BYTES,
    MAX_DEPTH,
    MAX_PAYLOAD_BYTES,
    decode,
    encode,
    fingerprint,
)
from workhorse.errors import UnstorableValueError, ValueTooLargeError

CAP = MAX_PAYLOAD_BYTES

texts = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"))
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(10**400), max_value=10**400)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
values = st.recursive(
    scalars, lambda parts: st.lists(parts) | st.dictionaries(texts, parts), max_leaves=30
)


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal in value and type, all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        # Keys come back in their order, too.
        pairs = zip(one.items(), other.items(), strict=True)
        return len(one) == len(other) and all(a == b and same(x, y) for (a, x), (b, y) in pairs)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    return bool(one == other)


def refusal(value: object) -> UnstorableValueError:
    with pytest.raises(UnstorableValueError) as refused:
        encode("payload of task 'mail'", value, cap=CAP)
    return refused.value


@given(values)
def test_a_storable_value_comes_back_unchanged_in_value_and_type(value: object) -> None:
    assert same(decode(encode("payload", value, cap=CAP)), value)


@given(values)
def test_what_is_written_is_plain_json_without_spaces_between(value: object) -> None:
    text = encode("payload", value, cap=CAP)

    assert text == json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert "\0" not in text
    text.encode()


@pytest.mark.parametrize(
    "value",
    [0.0, -0.0, 1.0, 1, True, 2**70, -(2**70), 10**400, 5e-324, 1.7976931348623157e308, 0.1],
)
def test_numbers_keep_their_type_and_every_digit(value: float) -> None:
    assert same(decode(encode("payload", [value], cap=CAP)), [value])


def test_each_decoding_makes_a_fresh_value() -> None:
    text = encode("payload", {"items": []}, cap=CAP)

    decode(text)["items"].append(1)

    assert decode(text) == {"items": []}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, float("1e400")])
def test_a_float_that_json_has_no_number_for_is_refused_with_its_path(value: float) -> None:
    error = refusal({"metrics": [{"loss": 0.5}, {"loss": value}]})

    assert error.path == "$.metrics[1].loss"
    assert str(error) == (
        f"payload of task 'mail': $.metrics[1].loss holds {value}, which JSON has no number for; "
        "nothing was stored"
    )


class Colour(StrEnum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: int


class OwnInt(int):
    """Stands for numpy's scalars and others that pass as a number and come back as one of ours."""


class OwnFloat(float):
    pass


class _Awaitable:
    def __await__(self) -> Generator[None, None, None]:
        yield


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (decimal.Decimal("1.10"), "is a decimal.Decimal; pass a plain JSON value"),
        ({1, 2}, "is a builtins.set; pass a plain JSON value"),
        (b"bytes", "is a builtins.bytes; pass a plain JSON value"),
        (datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), "is a datetime.datetime; pass"),
        (datetime.datetime(2026, 1, 1), "is a datetime.datetime; pass"),  # noqa: DTZ001
        (_Awaitable(), "is a tests.domain.test_values._Awaitable, which nobody has awaited; is an"),
        (1j, "is a builtins.complex; pass"),
        (object(), "is a builtins.object; pass"),
        (int, "is a builtins.type; pass"),
        ((1, 2), "is a builtins.tuple, which would come back as a list; pass a list"),
        (Point(1, 2), "which would come back as a list; pass a list"),
        (Colour.RED, "a subclass whose type would not come back"),
        (OwnInt(1), "a subclass whose type would not come back"),
        (OwnFloat(1), "a subclass whose type would not come back"),
        (OrderedDict(a=1), "is a collections.OrderedDict, a subclass whose type would not come"),
        ({1: "one"}, "has a key of type int, not str"),
        ({None: 1}, "has a key of type NoneType, not str"),
        ({Colour.RED: 1}, "has a key of type Colour, not str"),
    ],
)
def test_a_value_of_another_type_is_refused(value: object, told: str) -> None:
    assert told in str(refusal(value))
    assert refusal({"deep": [value]}).path == "$.deep[0]"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a\0b", "holds a NUL character"),
        ("\ud800", "holds a lone surrogate"),
        ("ok \udfff", "holds a lone surrogate"),
        ("\ud83d\ude00", "holds a lone surrogate"),
    ],
)
def test_text_that_a_database_cannot_hold_is_refused(text: str, told: str) -> None:
    assert told in str(refusal(text))
    assert told in str(refusal({text: 1}))


def test_text_outside_ascii_is_stored() -> None:
    assert decode(encode("payload", "Grüße, 世界, 😀", cap=CAP)) == "Grüße, 世界, 😀"


def test_odd_and_long_keys_are_shown_in_the_path_so_that_it_stays_readable() -> None:
    assert refusal({"a.b": {"it's": (1,)}}).path == "$['a.b'][\"it's\"]"
    assert refusal({"k" * 61: (1,)}).path == f"$['{'k' * 57}...']"
    assert refusal({"ü": (1,)}).path == "$['\\xfc']"


def test_numbers_of_4300_digits_are_stored_and_longer_ones_refused() -> None:
    for number in (10**4300 - 1, -(10**4300 - 1)):
        assert decode(encode("payload", number, cap=CAP)) == number
    for number in (10**4300, -(10**4300), 1 << 1_000_000):
        assert "whole number of more than 4,300 digits" in str(refusal(number))


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_values_may_be_nested_64_levels_deep() -> None:
    assert decode(encode("payload", nested(MAX_DEPTH), cap=CAP)) == nested(MAX_DEPTH)
    assert "nested more than 64 levels" in str(refusal(nested(MAX_DEPTH + 1)))


def test_a_value_that_holds_itself_or_is_very_deep_is_refused_without_exhausting_the_stack() -> (
    None
):
    circle: list[Any] = []
    circle.append(circle)
    loop: dict[str, Any] = {}
    loop["again"] = loop

    for value in (circle, loop, nested(sys.getrecursionlimit() * 3)):
        assert "nested more than 64 levels" in str(refusal(value))


def test_a_small_value_that_is_endless_as_json_is_refused_soon() -> None:
    value: list[Any] = []
    for _ in range(60):
        value = [value, value]  # 2 ** 60 lists, once written

    with pytest.raises(ValueTooLargeError):
        encode("payload", value, cap=CAP)


@pytest.mark.parametrize("cap", [MAX_DELIVERY_BYTES, MAX_PAYLOAD_BYTES])
@pytest.mark.parametrize("letter", ["a", "ü", "世", "😀", '"'])
def test_the_cap_counts_bytes_of_json_and_is_exact(cap: int, letter: str) -> None:
    each = len(json.dumps(letter, ensure_ascii=False).encode()) - 2
    most = (cap - 2) // each
    filling = "a" * ((cap - 2) % each)

    assert len(encode("payload", letter * most + filling, cap=cap).encode()) == cap
    with pytest.raises(ValueTooLargeError) as refused:
        encode("payload of task 'mail'", letter * most + filling + "a", cap=cap)

    assert (refused.value.size, refused.value.cap) == (cap + 1, cap)
    assert str(refused.value).startswith(f"payload of task 'mail' is {cap + 1:,} bytes of JSON")


def test_a_value_far_over_the_cap_is_refused() -> None:
    with pytest.raises(ValueTooLargeError) as refused:
        encode("result", ["x" * 1024] * (64 * 1024), cap=CAP)

    assert refused.value.size > 64 * CAP


def test_no_error_shows_the_value() -> None:
    for value in (["secret-value", math.nan], ["secret-value", "\0secret-value"]):
        assert "secret-value" not in str(refusal(value))
    with pytest.raises(ValueTooLargeError) as refused:
        encode("payload", "secret-value" * CAP, cap=CAP)
    assert "secret-value" not in str(refused.value)


@given(values)
def test_a_fingerprint_does_not_depend_on_the_order_of_keys(value: object) -> None:
    def turned(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: turned(part[key]) for key in reversed(part)}
        return [turned(one) for one in part] if isinstance(part, list) else part

    assert fingerprint(encode("payload", turned(value), cap=CAP)) == fingerprint(
        encode("payload", value, cap=CAP)
    )


@pytest.mark.parametrize(
    ("one", "other"), [(1, 1.0), (1, True), (1, "1"), ([], {}), (None, "null"), ([1, 2], [2, 1])]
)
def test_different_values_have_different_fingerprints(one: object, other: object) -> None:
    assert fingerprint(encode("one", one, cap=CAP)) != fingerprint(encode("other", other, cap=CAP))


def test_a_fingerprint_stays_the_same_from_release_to_release() -> None:
    # It is compared with what an older version stored up to 30 days ago.
    assert fingerprint('{"b":[1,2.5,"ü"],"a":null}') == (
        "3ca4eda1ebfd02e4296104981a1e65d4e87e99084ac993fafbc515a8f6a8ad84"
    )


def test_a_path_through_long_odd_keys_is_cut_in_the_message_alone() -> None:
    value: Any = b""
    for _ in range(30):
        value = {"\U0001806f" * 60: value}

    with pytest.raises(UnstorableValueError) as refused:
        encode("payload", value, cap=10**6)

    assert len(str(refused.value)) < 700
    assert refused.value.path.count("[") == 30
