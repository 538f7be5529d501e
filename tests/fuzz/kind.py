"""What a kind of input is, and the loop that tries inputs of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from tests.fuzz.limits import HungError, limited
from tests.fuzz.source import Draw, seeded, simplest

Check = Callable[[Any], object]
"""Tries one input, and answers whether it was refused; raises where that is not as it must be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of input.

    Args:
        share: How many inputs of `make fuzz` are of this kind.
        draw: Draws one.
        corpus: Made by hand; each is tried before any is drawn.
        rig: Makes what is needed, and takes it down.
    """

    name: str
    share: int
    draw: Draw
    rig: Callable[[], AbstractContextManager[Check]]
    corpus: Sequence[Any] = ()


@dataclass(slots=True)
class Tried:
    """How many inputs were tried, how many of them were refused, and how long they took."""

    inputs: int = 0
    refused: int = 0
    seconds: float = 0.0
    slowest_s: float = 0.0


class FoundError(Exception):
    """An input was not answered as it must be; the cause says how."""


def try_kind(
    kind: Kind,
    *,
    inputs: int,
    of_seed: int,
    until: float = float("inf"),
    only: int | None = None,
    corpus: bool = True,
    note: Callable[[str], object] = lambda _input: None,
) -> Tried:
    """Try inputs of a kind: the corpus, then what is drawn.

    Args:
        inputs: How many are to be drawn.
        of_seed: What is drawn depends on it, on the kind's name and on the input's number.
        until: The instant, of `time.monotonic`, from which nothing more is drawn.
        only: Draw the input of this number alone.
        corpus: Whether to try the corpus.
        note: Told of each input before it is tried.

    Raises:
        FoundError: It says which input, and how it is had again. One that takes too long is found
            too.
    """
    tried, began = Tried(), time.monotonic()
    with kind.rig() as check:

        def attempt(one: Any) -> None:
            at = time.perf_counter()
            with limited():
                tried.refused += bool(check(one))
            tried.inputs += 1
            tried.slowest_s = max(tried.slowest_s, time.perf_counter() - at)

        for number, one in enumerate(kind.corpus if corpus and only is None else ()):
            note(f"corpus[{number}]")
            try:
                attempt(one)
            except (Exception, HungError) as error:
                raise FoundError(f"kind {kind.name}, corpus[{number}]: {shown(one)}") from error
        for number in range(inputs) if only is None else [only]:
            if time.monotonic() >= until:
                break
            again = f"python -m tests.fuzz --seed {of_seed} --kind '{kind.name}' --number {number}"
            note(again)
            source = seeded(f"{of_seed} {kind.name} {number}")
            one = kind.draw(source)
            try:
                attempt(one)
            except HungError as error:
                raise FoundError(f"kind {kind.name}: {shown(one)}; again: {again}") from error
            except Exception as error:
                found = shown(simplest(kind.draw, source.choices, _fails_as(check, error)))
                raise FoundError(f"kind {kind.name}: {found}; again: {again}") from error
    tried.seconds = time.monotonic() - began
    return tried


def shown(one: Any) -> str:
    """Return what can be shown of an input."""
    try:
        return ascii(one)[:600]
    except Exception as error:  # noqa: BLE001 - an input may be one that cannot be shown
        return f"a {type(one).__name__} that cannot be shown ({type(error).__name__})"


def _fails_as(check: Check, error: Exception) -> Callable[[Any], bool]:
    def fails(one: Any) -> bool:
        try:
            with limited():
                check(one)
        except type(error):
            return True
        except (Exception, HungError):  # noqa: BLE001 - another finding is not this one
            return False
        return False

    return fails
