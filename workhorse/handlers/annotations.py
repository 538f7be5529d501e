"""Reading annotations, among them those that are text and name what is defined later.

Source: docs/cases.md, case 18.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
from asyncio import Future
from collections import abc
from collections.abc import Callable
from types import FrameType, SimpleNamespace, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

from workhorse.domain.values import Value
from workhorse.handlers.batches import BatchItem
from workhorse.handlers.context import AsyncContext, Context

UNRESOLVED: Final = object()
"""The annotation names what is not there, or not there yet."""

_CONTEXTS: Final[dict[str, type]] = {"Context": Context, "AsyncContext": AsyncContext}
_GENERATORS: Final = (
    abc.Generator,
    abc.AsyncGenerator,
    abc.Iterator,
    abc.AsyncIterator,
    abc.AsyncIterable,
)
_AWAITABLE_TEXT: Final = re.compile(r"(\w+\.)*(Awaitable|Coroutine|Future|Task)\[")

# Names that modules often import for the type checker alone.
_COMMON: Final[dict[str, object]] = {
    "Any": Any,
    "Awaitable": abc.Awaitable,
    "BatchItem": BatchItem,
    "Coroutine": abc.Coroutine,
    "Value": Any,
}


class Namespace:
    """Where the names in a function's annotations are looked up.

    Its module and its closure are looked at each time, so that later definitions are seen. The
    local variables of the functions and classes in which the handler is being defined are looked at
    only now, and only what an annotation stands for is kept: all the rest would be kept alive.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        try:
            self._function = inspect.unwrap(function)
        except ValueError:  # wrappers that go round in a circle
            self._function = function
        self._found: dict[str, object] = {}
        if local := self._locals():
            annotations = getattr(self._function, "__annotations__", None) or {}
            for annotation in annotations.values():
                if isinstance(annotation, str):
                    with contextlib.suppress(Exception):  # defined later, perhaps
                        self._found[annotation] = self._hint(annotation, local)

    def resolve(self, annotation: object) -> object:
        """Return what an annotation stands for; Any for none.

        Raises: Whatever evaluating its text raises, NameError first of all.
        """
        if annotation is inspect.Signature.empty or annotation == Value:
            return Any
        found = (
            self._found.get(annotation, UNRESOLVED) if isinstance(annotation, str) else UNRESOLVED
        )
        return self._hint(annotation, {}) if found is UNRESOLVED else found

    def look(self, annotation: object) -> object:
        """As `resolve`; UNRESOLVED while nobody can tell."""
        try:
            return self.resolve(annotation)
        except Exception:  # noqa: BLE001 - evaluating a text may raise anything
            return UNRESOLVED

    def _hint(self, annotation: object, more: dict[str, Any]) -> object:
        names = {**_COMMON, **getattr(self._function, "__globals__", {}), **self._closure(), **more}
        holder = SimpleNamespace(__annotations__={"it": annotation})
        return get_type_hints(holder, names, include_extras=True)["it"]

    def _closure(self) -> dict[str, Any]:
        code = getattr(self._function, "__code__", None)
        cells = getattr(self._function, "__closure__", None) or ()
        found = {}
        for name, cell in zip(code.co_freevars if code else (), cells, strict=False):
            try:
                found[name] = cell.cell_contents
            except ValueError:  # not bound yet
                continue
        return found

    def _locals(self) -> dict[str, Any]:
        """Return the variables of the scopes round the handler, the innermost first to count."""
        *around, _ = getattr(self._function, "__qualname__", "").split(".")
        scopes = {".".join(around[: at + 1]) for at in range(len(around))}
        home = getattr(self._function, "__globals__", None)
        found: dict[str, Any] = {}
        frame: FrameType | None = sys._getframe(1) if scopes else None
        while frame is not None:
            if frame.f_globals is home and frame.f_code.co_qualname in scopes:
                found = {**frame.f_locals, **found}
            frame = frame.f_back
        return found


def context_kinds(annotation: object, text: object = None) -> frozenset[type]:
    """Return which of `Context` and `AsyncContext` an annotation names.

    Args:
        annotation: What it stands for, or UNRESOLVED.
        text: As it is written; an unresolved one is judged by its last word, since modules that
            import contexts for the type checker alone are common.
    """
    if annotation is UNRESOLVED:
        named = _CONTEXTS.get(str(text).rpartition(".")[2])
        return frozenset() if named is None else frozenset({named})
    if isinstance(annotation, type) and issubclass(annotation, (Context, AsyncContext)):
        return frozenset({Context if issubclass(annotation, Context) else AsyncContext})
    if get_origin(annotation) in (Union, UnionType, Annotated):
        return frozenset().union(*(context_kinds(part) for part in get_args(annotation)))
    return frozenset()


def awaited_type(annotation: object, text: object = None) -> object | None:
    """Return what awaiting a value of this annotation gives; None where it is no awaitable."""
    if annotation is UNRESOLVED:
        return Any if isinstance(text, str) and _AWAITABLE_TEXT.match(text) else None
    kind = get_origin(annotation) or annotation
    if not isinstance(kind, type) or not issubclass(kind, (abc.Awaitable, Future)):
        return None
    arguments = get_args(annotation)
    return arguments[-1] if arguments else Any


def is_generator_type(annotation: object) -> bool:
    """Whether a value of this annotation would have to be iterated before it is anything."""
    return (get_origin(annotation) or annotation) in _GENERATORS
