"""Builds stand in the order in which people number them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workhorse.domain.builds import build_order, is_older

BUILDS = st.from_regex(r"[A-Za-z0-9._+:-]{0,20}", fullmatch=True)


@pytest.mark.parametrize(
    "builds",
    [
        ("9", "10", "100"),
        ("2026.11.30-7", "2026.11.30-10", "2026.12.1-1"),
        ("v1.9", "v1.10", "v1.10.1", "v2"),
        ("build-7", "build-8", "build-70"),
        ("1.0", "1.0-rc1", "1.0.1"),
        ("20261130T095900", "20261130T100000"),
        ("007", "8"),
    ],
    ids=lambda builds: builds[0],
)
def test_numbers_within_a_build_count_as_numbers(builds: tuple[str, ...]) -> None:
    for older, newer in pairwise(builds):
        assert is_older(older, newer)
        assert not is_older(newer, older)


def test_equal_builds_and_equal_numbers_are_none_older() -> None:
    for one, other in (("7", "7"), ("7", "007"), ("", "")):
        assert not is_older(one, other)
        assert not is_older(other, one)


def test_a_build_that_is_not_named_is_neither_older_nor_newer() -> None:
    assert not is_older("", "7")
    assert not is_older("7", "")


@given(BUILDS, BUILDS, BUILDS)
def test_any_builds_stand_in_one_order(a: str, b: str, c: str) -> None:
    orders = [build_order(each) for each in (a, b, c)]

    first, second, third = sorted(orders)  # never a number beside a text

    assert first <= second <= third
