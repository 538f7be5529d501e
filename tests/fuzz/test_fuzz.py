"""A small share of `make fuzz`, and the fuzzing itself: that it finds, and finds again."""

from __future__ import annotations

import logging
import os
import random
import threading
from contextlib import nullcontext, suppress
from typing import Any

import pytest
from hypothesis import given, settings

from tests.fuzz import limits
from tests.fuzz.evil import json_values
from tests.fuzz.kind import FoundError, Kind, try_kind
from tests.fuzz.kinds import KINDS
from tests.fuzz.source import Source, repeating, seeded, strategy
from workhorse.domain.values import decode, encode

SHARE = 500
"""Of so many inputs of `make fuzz` one is tried here."""


@pytest.fixture(autouse=True)
def quiet() -> Any:
    log = logging.getLogger("workhorse")
    before = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(before)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_fuzzed_input_is_taken_or_refused_by_a_typed_error(kind: Kind) -> None:
    of_seed = 1 if os.environ.get("CI") else random.SystemRandom().randrange(10**9)

    try_kind(
        kind, inputs=max(5, kind.share // SHARE), of_seed=of_seed, corpus=len(kind.corpus) < 500
    )


@settings(max_examples=30)
@given(strategy(json_values))
def test_what_is_drawn_is_a_strategy_of_hypothesis_too(value: Any) -> None:
    try:
        text = encode("value", value, cap=10**6)
    except ValueError:
        return
    assert decode(text) == value


def _numbers(source: Source) -> list[int]:
    return source.many(lambda s: s.below(1_000), 20)


def _refuses_large(numbers: list[int]) -> bool:
    if any(number > 500 for number in numbers):
        raise KeyError("too large")
    return False


def test_what_is_found_is_made_simple_and_found_again() -> None:
    kind = Kind(name="planted", share=1, draw=_numbers, rig=lambda: nullcontext(_refuses_large))

    with pytest.raises(FoundError, match=r"planted: \[[0-9]+(, 0)*\]; again: .*--number 0"):
        try_kind(kind, inputs=100, of_seed=7)
    with pytest.raises(FoundError, match="--seed 7 --kind 'planted' --number 0"):
        try_kind(kind, inputs=100, of_seed=7, only=0)


def test_an_input_that_hangs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where what hangs catches every error of Python's."""
    monkeypatch.setattr(limits, "LIMIT_S", 0.2)

    def hangs(_: object) -> bool:
        with suppress(Exception):
            threading.Event().wait(60)
        return False

    kind = Kind(name="planted", share=1, draw=_numbers, rig=lambda: nullcontext(hangs))
    with pytest.raises(FoundError, match="--kind 'planted' --number 0") as found:
        try_kind(kind, inputs=1, of_seed=7, corpus=False)
    assert isinstance(found.value.__cause__, limits.HungError)


def test_a_process_that_dies_of_an_input_is_found_with_it() -> None:
    def dies(note: limits.Note) -> None:
        note.write("this one")
        os._exit(9)

    with pytest.raises(limits.DiedError, match="ended with 9 at input this one"):
        limits.apart(dies)
    assert limits.apart(lambda note: {"inputs": 3}) == {"inputs": 3}


def test_the_same_choices_make_the_same_input() -> None:
    source = seeded("1 values 2")
    drawn = json_values(source)

    assert repr(json_values(repeating(source.choices))) == repr(drawn)
