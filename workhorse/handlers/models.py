"""The codec of annotations that need pydantic: models, dataclasses, TypedDicts and what is in them.

The only module of the handlers that imports pydantic, and imported only where a task needs it.

Source: docs/design.md, section 7; docs/cases.md, case 8.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Final, NotRequired, Required, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import ErrorDetails, core_schema

from workhorse.domain import values
from workhorse.errors import ConfigurationError, UnstorableValueError
from workhorse.handlers.exactness import difference, field_names

# Kinds of errors whose text may quote the value. Texts of kinds that pydantic does not know come
# from a model's own validators, so they may quote it too.
_QUOTING: Final = frozenset(
    {
        "assertion_error",
        "bytes_invalid_encoding",
        "get_attribute_error",
        "iteration_error",
        "mapping_type",
        "union_tag_invalid",
        "url_parsing",
        "url_syntax_violation",
        "uuid_parsing",
        "value_error",
    }
)
_OWN: Final = frozenset(get_args(core_schema.ErrorType)) - _QUOTING


class ModelCodec:
    """Validates with pydantic, and makes sure that what is stored comes back as it was."""

    def __init__(self, annotation: object, whose: str) -> None:
        self._whose: Final = whose
        try:
            self._adapter: Final[TypeAdapter[Any]] = TypeAdapter(_modern(annotation, ()))
        except Exception as error:
            raise self._unusable(error) from error

    def encode(self, what: str, value: object, *, cap: int) -> str:
        """Return the compact JSON of a value; see `codecs.Codec`.

        The text is read back once before it is handed out: what a model leaves out, hides or writes
        so that it cannot read it again is refused here, not found missing by the handler.
        """
        if inspect.isgenerator(value) or inspect.isasyncgen(value) or inspect.iscoroutine(value):
            if inspect.iscoroutine(value):
                value.close()
            raise _refusal(what, "$", f"is a {type(value).__name__}; hand over what it makes")
        fitting = self._validated(what, value)
        if (path := _dropped(value, fitting, "$")) is not None:
            raise _refusal(what, path, "is no key that the annotation has, and would be dropped")
        try:
            plain = self._adapter.dump_python(
                fitting, mode="json", by_alias=True, round_trip=True, warnings=False
            )
        except Exception as error:
            raise _refusal(
                what, "$", f"cannot be written as JSON ({type(error).__name__})"
            ) from error
        text = values.encode(what, plain, cap=cap)
        try:
            back = self._adapter.validate_json(text)
        except ValidationError as error:
            path, problem = _described(plain, error)
            raise _refusal(
                what, path, f"would not be read back from its JSON: {problem}{_ADVICE}"
            ) from None
        try:
            found = difference(fitting, back)
        except RecursionError:  # objects of the user's own types that point at each other
            raise _refusal(what, "$", "holds objects that hold each other") from None
        if found is not None:
            raise _refusal(what, found[0], f"{found[1]}{_ADVICE}")
        return text

    def decode(self, what: str, text: str) -> Any:
        """Return the value of JSON text; see `codecs.Codec`."""
        try:
            return self._adapter.validate_json(text)
        except ValidationError as error:
            path, problem = _described(_parsed(text), error)
            raise UnstorableValueError(
                f"{what}: {path} does not fit: {problem}", path=path
            ) from None
        except PydanticUserError as error:
            raise self._unusable(error) from error

    def _validated(self, what: str, value: object) -> Any:
        try:
            return self._adapter.validate_python(value)
        except ValidationError as error:
            path, problem = _described(value, error)
            raise _refusal(what, path, f"does not fit: {problem}") from None
        except PydanticUserError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: Exception) -> ConfigurationError:
        return ConfigurationError(
            f"{self._whose} has an annotation that no JSON can be made of: "
            f"{str(error).split(chr(10), 1)[0][:300]}"
        )


_ADVICE: Final = (
    ". Look for fields that are excluded, hidden, typed Any or written by a serializer of their "
    "own, for subclasses, and for aliases that differ between reading and writing"
)


def _refusal(what: str, path: str, problem: str) -> UnstorableValueError:
    return UnstorableValueError(f"{what}: {path} {problem}; nothing was stored", path=path)


def _described(value: object, error: ValidationError) -> tuple[str, str]:
    """Return where a value does not fit and why, without a word of the value."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    first = found[0]
    text = first["msg"] if first["type"] in _OWN else f"refused as {first['type']}"
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return "$" + "".join(_steps(value, first)), f"{text}{more}"


def _steps(value: Any, error: ErrorDetails) -> Iterator[str]:
    """Follow an error's location through the value; names of union members are left out."""
    location = error["loc"]
    for at, part in enumerate(location):
        if isinstance(value, dict) and part in value:
            yield values.step(str(part))
            value = value[part]
        elif isinstance(part, int):
            yield f"[{part}]"
            value = value[part] if isinstance(value, list | tuple) and part < len(value) else None
        elif part in (field_names(value) or ()):
            yield values.step(part)
            value = getattr(value, part, None)
        elif at == len(location) - 1 and error["type"] in ("missing", "missing_argument"):
            yield values.step(part)


def _dropped(given: Any, kept: Any, path: str) -> str | None:
    """Return the path of a dict's key that validation left out without a word.

    TypedDicts ignore what they do not name. A model made of a dict does so as its author chose.
    """
    if type(given) is dict and type(kept) is dict:
        if len(kept) < len(given):
            gone = next((key for key in given if key not in kept), "?")
            return f"{path}{values.step(str(gone))}"
        pairs = [(values.step(str(key)), given[key], kept[key]) for key in given if key in kept]
    elif type(given) is list and type(kept) is list:
        pairs = [(f"[{at}]", *pair) for at, pair in enumerate(zip(given, kept, strict=False))]
    else:
        return None
    return next(
        (found for way, a, b in pairs if (found := _dropped(a, b, path + way)) is not None), None
    )


def _parsed(text: str) -> object:
    try:
        return values.decode(text)
    except (ValueError, RecursionError):
        return None


def _modern(annotation: Any, within: tuple[type, ...]) -> Any:
    """Return the annotation with each `typing.TypedDict` made one that pydantic takes.

    Before Python 3.12 pydantic takes only those of typing_extensions, since the older ones lose
    which keys are required; their annotations, which are still whole, say it.
    """
    if sys.version_info >= (3, 12):
        return annotation
    if typing.is_typeddict(annotation):
        return _modern_dict(annotation, within)
    arguments = get_args(annotation)
    origin = get_origin(annotation)
    if not arguments or origin is None or origin is typing.Literal:
        return annotation
    if origin is Annotated:
        inner = _modern(arguments[0], within)
        return Annotated[(inner, *annotation.__metadata__)]
    changed = tuple(_modern(argument, within) for argument in arguments)
    if changed == arguments:
        return annotation
    if isinstance(annotation, type(int | str)):
        return typing.Union[changed]  # noqa: UP007 - made of a tuple
    return origin[changed]


def _modern_dict(given: Any, within: tuple[type, ...]) -> Any:
    import typing_extensions  # a dependency of pydantic's

    if given in within:
        raise ConfigurationError(
            f"TypedDict {given.__qualname__} holds itself; before Python 3.12 such a one has to be "
            "made with typing_extensions.TypedDict"
        )
    fields: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(given, include_extras=True).items():
        needed = name in given.__required_keys__
        if get_origin(hint) in (Required, NotRequired):
            needed = get_origin(hint) is Required
            (hint,) = get_args(hint)
        kept = _modern(hint, (*within, given))
        fields[name] = kept if needed else typing_extensions.NotRequired[kept]
    make: Any = typing_extensions.TypedDict  # a name that is computed is no matter of static types
    made = make(given.__name__, fields)
    made.__module__, made.__qualname__ = given.__module__, given.__qualname__
    if (config := getattr(given, "__pydantic_config__", None)) is not None:
        made.__pydantic_config__ = config
    return made
