"""Payloads and results to JSON text and back, as a handler's annotations say.

Three kinds of annotation, in order of cost: none (any plain JSON value passes as it is), JSON types
(checked, never converted), and all others, which pydantic validates and converts. pydantic is
imported only for the last kind.

Source: docs/design.md, sections 7 and 8; docs/cases.md, cases 7 and 8.
"""

from __future__ import annotations

import inspect
import json
from types import NoneType
from typing import Any, Final, Protocol

from workhorse.domain import values
from workhorse.errors import UnstorableValueError
from workhorse.handlers.shapes import ANYTHING, Shape, shape_of


class Codec(Protocol):
    """Makes JSON text of values of one annotation, and values of the text."""

    def encode(self, what: str, value: object, *, cap: int) -> str:
        """Return the compact JSON of a value that fits, and that would come back equal.

        Args:
            what: How errors call it, e.g. `payload of task 'mail'`.
            value: What was handed over.
            cap: The most bytes of UTF-8 that the JSON may have.

        Raises:
            UnstorableValueError: A part does not fit or would change; `path` names it.
            ValueTooLargeError: The JSON is larger than `cap`.
        """
        ...

    def decode(self, what: str, text: str) -> Any:
        """Return the value of JSON text; a fresh object at each call.

        Raises:
            UnstorableValueError: The text does not fit; `path` names the part.
        """
        ...


class JsonCodec:
    """Takes JSON values of a shape as they are."""

    def __init__(self, shape: Shape) -> None:
        self._shape: Final = None if shape is ANYTHING else shape
        self._whole: Final = shape.types if shape.part is None else ()
        """The types of values that fit as they are; of others the parts are looked at."""

    def encode(self, what: str, value: object, *, cap: int) -> str:
        """Return the compact JSON of a value; see `Codec`."""
        if value is None and (self._shape is None or NoneType in self._shape.types):
            return "null"  # by far the most frequent result
        if inspect.iscoroutine(value):
            value.close()  # it is refused below; nobody will ever await it
        text = values.encode(what, value, cap=cap)
        if self._shape is not None:
            self._check(what, value, self._shape)
        return text

    def decode(self, what: str, text: str) -> Any:
        """Return the value of JSON text; see `Codec`."""
        try:
            value = values.decode(text)
        except json.JSONDecodeError as error:
            problem = f"{error.msg} at line {error.lineno}, column {error.colno}"
            raise UnstorableValueError(f"{what}: the text is no JSON: {problem}") from None
        except (ValueError, RecursionError):
            raise UnstorableValueError(
                f"{what}: the text is nested too deep, or holds a number that is too long"
            ) from None
        if type(value) not in self._whole and self._shape is not None:
            self._check(what, value, self._shape)
        return value

    def _check(self, what: str, value: object, shape: Shape) -> None:
        if (misfit := shape.misfit(value, "$")) is not None:
            path, found = misfit
            raise UnstorableValueError(f"{what}: {path} {found}", path=path)


def codec_for(annotation: object, whose: str) -> Codec:
    """Return the codec of an annotation.

    Args:
        annotation: A type, resolved; Any for none.
        whose: How errors call it, e.g. `the payload of orders.ship (orders.py:12)`.

    Raises:
        ConfigurationError: No JSON can carry values of this type.
    """
    shape = shape_of(annotation)
    if shape is not None:
        return JsonCodec(shape)
    from workhorse.handlers.models import ModelCodec  # pydantic costs a tenth of a second

    return ModelCodec(annotation, whose)
