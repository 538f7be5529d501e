"""Annotations made of JSON's own types, checked without pydantic and without converting anything.

`str`, `int`, `float` (a whole number passes, and stays one), `bool`, `None`, `list`, `list[T]`,
`dict`, `dict[str, T]`, unions of these, and `Any`.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Final, ForwardRef, Never, NoReturn, Union, get_args, get_origin

from workhorse.domain.values import Value, step

_SCALARS: Final[dict[object, tuple[type, ...]]] = {
    None: (NoneType,),
    NoneType: (NoneType,),
    bool: (bool,),
    int: (int,),
    float: (float, int),
    str: (str,),
}


@dataclass(frozen=True, slots=True)
class Shape:
    """What a JSON value may be: one of some types, of which lists and dicts may have parts."""

    name: str
    types: tuple[type, ...] = ()
    part: Shape | None = None
    choices: tuple[Shape, ...] = ()

    def misfit(self, value: object, path: str) -> tuple[str, str] | None:
        """Return the path of the first part that does not fit, and what is wrong with it."""
        if type(value) in self.types:
            if self.part is None:
                return None
        elif self is ANYTHING:
            return None
        elif self.choices:
            if any(choice.misfit(value, path) is None for choice in self.choices):
                return None
            return path, f"does not fit {self.name}"
        else:
            return path, f"is of type {type(value).__name__}, where the handler takes {self.name}"
        if self.part is not None:
            if isinstance(value, list):
                parts = ((f"{path}[{at}]", part) for at, part in enumerate(value))
            else:
                assert isinstance(value, dict)  # noqa: S101 - `types` says so
                parts = ((f"{path}{step(key)}", part) for key, part in value.items())
            for where, part in parts:
                if (misfit := self.part.misfit(part, where)) is not None:
                    return misfit
        return None


ANYTHING: Final = Shape("any JSON value")


def shape_of(annotation: object) -> Shape | None:
    """Return the shape of an annotation; None where it is not made of JSON's own types."""
    if annotation in (Any, object, Never, NoReturn) or _is_value(annotation):
        return ANYTHING
    try:
        if annotation in _SCALARS:
            types = _SCALARS[annotation]
            return Shape(types[0].__name__.replace("NoneType", "None"), types)
    except TypeError:  # an annotation that cannot be hashed, e.g. a Literal of a list
        return None
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        choices = [shape_of(argument) for argument in arguments]
        if any(choice is None for choice in choices):
            return None
        known = tuple(choice for choice in choices if choice is not None)
        if ANYTHING in known:
            return ANYTHING
        return Shape(" | ".join(choice.name for choice in known), choices=known)
    if annotation is list or annotation is dict:
        return Shape(annotation.__name__, (annotation,))
    if origin is list and len(arguments) == 1:
        return _parted("list[{}]", list, shape_of(arguments[0]))
    if origin is dict and len(arguments) == 2 and arguments[0] is str:
        return _parted("dict[str, {}]", dict, shape_of(arguments[1]))
    return None


def _parted(name: str, kind: type, part: Shape | None) -> Shape | None:
    if part is None:
        return None
    return Shape(
        name.format("Any" if part is ANYTHING else part.name),
        (kind,),
        None if part is ANYTHING else part,
    )


def _is_value(annotation: object) -> bool:
    """Whether it is `workhorse.domain.values.Value`, which refers to itself by a text."""
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    return annotation == Value
