"""How a batch handler is called: one list of items in, one list of results out.

Source: docs/batch-handlers.md; docs/cases.md, case 18
"""

from __future__ import annotations

import re
from collections import abc
from collections.abc import Callable
from inspect import Parameter
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin

from workhorse.handlers.annotations import UNRESOLVED, awaited_type
from workhorse.handlers.batches import BatchItem
from workhorse.handlers.signatures import Signature

_ITEMS_TEXT: Final = re.compile(r"(\w+\.)*[Ll]ist\[['\"]?(\w+\.)*BatchItem\b.*\]")
_RESULTS: Final = (list, tuple, abc.Sequence)
_SHAPE: Final = "a batch handler takes one parameter, items: list[BatchItem[...]]"


class BatchSignature(Signature):
    """A batch handler and how it is called; see `Signature`.

    Raises:
        ConfigurationError: It cannot be a batch handler; handler, file and line are named.
    """

    def __init__(self, handler: Callable[..., Any]) -> None:
        super().__init__(handler)
        if self.takes_context:
            raise self._refusal(
                "takes a context, and there is none for many runs at once: what a handler may know "
                f"of a run, and do for it, its item has. {_SHAPE}"
            )
        if not _takes_items(self):
            what = "nothing" if self._payload is None else "something that is annotated otherwise"
            raise self._refusal(f"is to be handed batches, and takes {what}; {_SHAPE}")
        if self.default is not None:
            raise self._refusal(f"has a default for what it is always handed; {_SHAPE}")
        returns = self._namespace.look(self._returns)
        if returns is not UNRESOLVED:
            self._result_of(returns)

    def payload_type(self) -> object:
        """Return the annotation of one run's payload; Any where there is none.

        Raises:
            ConfigurationError: The annotation names what is not there.
        """
        items = self._resolved("payload", self._payload)
        if _item_of(items) is None:
            raise self._refusal(f"annotates its parameter as {items!r:.200}; {_SHAPE}")
        return _payload_of(items)

    def result_type(self) -> object:
        """Return the annotation of one run's result; Any where the handler returns None.

        Raises:
            ConfigurationError: The annotation names what is not there.
        """
        return self._result_of(super().result_type())

    def _result_of(self, returns: object) -> object:
        """Return what one of the results is; errors may stand among them, and for none of them."""
        inner = awaited_type(returns)
        if inner is not None:
            returns = inner
        found = [part for part in _parts_of(returns) if part not in (None, NoneType)]
        if not found or Any in found:
            return Any
        if len(found) == 1 and (get_origin(found[0]) or found[0]) in _RESULTS:
            arguments = [each for each in get_args(found[0]) if each is not Ellipsis]
            if not arguments:
                return Any
            values = [part for part in _parts_of(arguments[0]) if not _is_error(part)]
            if len(arguments) == 1 and values:
                return Union[tuple(values)]  # noqa: UP007 - of parts that are known only now
            if len(arguments) == 1:
                return Any
        raise self._refusal(
            f"returns {returns!r:.200}; a batch handler returns a list of results, one for each of "
            "its runs, or None"
        )


def refuse_items(signature: Signature) -> None:
    """Refuse a handler of single runs that takes a batch's items.

    Raises:
        ConfigurationError: It does.
    """
    if _takes_items(signature):
        raise signature._refusal(
            "takes a list of BatchItem and is called run by run; say how many it may be handed at "
            "once: app.task(batch=...)"
        )


def _takes_items(signature: Signature) -> bool:
    """Say whether a handler takes items; what cannot be resolved yet is judged by its text."""
    text = signature._payload
    if text is None:
        return False
    annotation = signature._namespace.look(text)
    if annotation is UNRESOLVED:
        return isinstance(text, str) and _ITEMS_TEXT.fullmatch(text.strip()) is not None
    return _item_of(annotation) is not None


def _item_of(annotation: object) -> object | None:
    """Return the annotation of an item; None where it is no list of them."""
    arguments = get_args(annotation)
    if get_origin(annotation) is not list or len(arguments) != 1:
        return None
    item: object = arguments[0]
    return item if (get_origin(item) or item) is BatchItem else None


def _payload_of(items: object) -> object:
    payload = get_args(_item_of(items))
    return payload[0] if payload else Any


def _parts_of(annotation: object) -> list[object]:
    if annotation is Parameter.empty:
        return [Any]
    if get_origin(annotation) in (Union, UnionType):
        return [*get_args(annotation)]
    return [annotation]


def _is_error(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseException)
