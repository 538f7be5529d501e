"""Plain JSON annotations: checked, never converted."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, ForwardRef, Literal, NoReturn, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workhorse.domain.values import MAX_RESULT_BYTES, Value
from workhorse.errors import UnstorableValueError
from workhorse.handlers.codecs import JsonCodec, codec_for
from workhorse.handlers.models import ModelCodec
from workhorse.handlers.shapes import ANYTHING, shape_of

CAP = MAX_RESULT_BYTES


def text(annotation: object, value: object) -> str:
    return codec_for(annotation, "the payload").encode("payload", value, cap=CAP)


STORABLE_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | STORABLE_TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(STORABLE_TEXT, inner),
    max_leaves=20,
)


@given(JSON)
def test_any_json_value_comes_back_in_value_and_type(value: Any) -> None:
    codec = codec_for(Any, "the payload")
    back = codec.decode("payload", codec.encode("payload", value, cap=CAP))
    assert back == value
    assert repr(back) == repr(value)  # 1 is not 1.0, and 0.0 is not -0.0


@pytest.mark.parametrize(
    ("annotation", "values"),
    [
        (None, [None]),
        (type(None), [None]),
        (bool, [True, False]),
        (int, [0, 2**70]),
        (float, [0.5, 3]),
        (str, ["", "é"]),
        (list, [[], [1, "a"]]),
        (dict, [{}, {"a": [1]}]),
        (list[int], [[], [1, 2]]),
        (list[Any], [[1, None, "a"]]),
        (dict[str, list[float]], [{"a": [1.5], "b": []}]),
        (dict[str, Any], [{"a": None}]),
        (int | None, [1, None]),
        (Optional[dict[str, int]], [None, {"a": 1}]),  # noqa: UP045
        (list[int | str] | str, [[1, "a"], "b"]),
        (int | Any, [{"a": 1}]),
        (object, [[1]]),
        (NoReturn, [None]),
        (Value, [{"a": 1}, None]),
        (ForwardRef(Value), [[1]]),  # type: ignore[arg-type]
    ],
)
def test_values_of_json_types_pass_as_they_are(annotation: object, values: list[object]) -> None:
    codec = codec_for(annotation, "the payload")
    assert isinstance(codec, JsonCodec)
    for value in values:
        back = codec.decode("payload", codec.encode("payload", value, cap=CAP))
        assert repr(back) == repr(value)


@pytest.mark.parametrize(
    ("annotation", "value", "path", "problem"),
    [
        (None, 0, "$", "of type int, where the handler takes None"),
        (int, "5", "$", "of type str, where the handler takes int"),
        (int, True, "$", "of type bool"),
        (int, 1.0, "$", "of type float"),
        (bool, 1, "$", "of type int"),
        (float, True, "$", "of type bool"),
        (str, None, "$", "of type NoneType"),
        (list[int], [1, "a"], "$[1]", "takes int"),
        (list[int], {}, "$", r"takes list\[int\]"),
        (list, {}, "$", "takes list"),
        (dict[str, list[int]], {"a": [1], "b c": [None]}, "$['b c'][0]", "takes int"),
        (dict[str, Any], [], "$", r"takes dict\[str, Any\]"),
        (int | None, "a", "$", r"does not fit int \| None"),
        (list[int | str], [1, None], "$[1]", r"does not fit int \| str"),
    ],
)
def test_values_that_do_not_fit_are_refused_in_both_directions(
    annotation: object, value: object, path: str, problem: str
) -> None:
    codec = codec_for(annotation, "the payload")
    with pytest.raises(UnstorableValueError, match=problem) as raised:
        codec.encode("payload of task 'x'", value, cap=CAP)
    assert raised.value.path == path
    assert str(raised.value).startswith("payload of task 'x': ")

    with pytest.raises(UnstorableValueError, match=problem) as raised:
        codec.decode("payload of task 'x'", text(Any, value))
    assert raised.value.path == path


@pytest.mark.parametrize("annotation", [Any, float, list[float], dict[str, float]])
@pytest.mark.parametrize(
    "number", [float("nan"), float("inf"), float("-inf"), 1e400, Decimal(1), {1}, (1,), b"1"]
)
def test_case_8_what_json_cannot_carry_is_refused_under_every_annotation(
    annotation: object, number: object
) -> None:
    value: object = number
    if annotation == list[float]:
        value = [number]
    elif annotation == dict[str, float]:
        value = {"loss": number}
    with pytest.raises(UnstorableValueError):
        text(annotation, value)


class Float(float):
    """As numpy's float64, which is a float too."""


def test_case_8_a_scalar_of_another_library_is_refused_with_its_type() -> None:
    with pytest.raises(UnstorableValueError, match=r"test_codecs.Float, a subclass"):
        text(Any, {"loss": Float(0.5)})


def test_case_8_numbers_that_json_text_makes_infinite_are_refused() -> None:
    codec = codec_for(float, "the payload")
    with pytest.raises(UnstorableValueError, match="inf"):
        codec.encode("payload", codec.decode("payload", "1e400"), cap=CAP)


@pytest.mark.parametrize(
    "annotation", [tuple, set, tuple[int, ...], dict[int, str], Literal["a"], list[bytes], bytes]
)
def test_other_annotations_are_left_to_pydantic(annotation: object) -> None:
    assert shape_of(annotation) is None
    assert isinstance(codec_for(annotation, "the payload"), ModelCodec)


def test_an_annotation_that_cannot_be_hashed_is_left_to_pydantic() -> None:
    assert shape_of([1]) is None
    assert shape_of(int | Literal[1]) is None
    assert shape_of(dict[str, bytes]) is None
    assert shape_of(list[bytes] | None) is None


def test_anything_has_no_misfit() -> None:
    assert ANYTHING.misfit(object(), "$") is None
