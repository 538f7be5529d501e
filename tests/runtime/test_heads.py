"""When looks at a queue's head are short ones; a clock that the test holds, and no store."""

from __future__ import annotations

from workhorse.runtime.claims.heads import Heads
from workhorse.store.lifecycle.cursors import Cursor, Head

VERY_HEAD = None
A, B = (Head((Cursor(50, n, f"id-{n}"),)) for n in (1, 2))


def look(heads: Heads, now: float, took_ms: float, head: Head | None = A) -> Head | None:
    start = heads.start(now)
    heads.note(head, now, took_ms)
    return start


def test_looks_begin_at_the_very_head() -> None:
    heads = Heads(1_000)

    assert [look(heads, now, 2.4) for now in range(0, 5_000, 500)] == [VERY_HEAD] * 10


def test_a_slow_look_is_compared_with_a_short_one() -> None:
    heads = Heads(1_000)
    look(heads, 0, 30.0)

    assert look(heads, 50, 2.0, B) is A
    assert look(heads, 100, 2.0, B) is B


def long_looks(heads: Heads, until: int) -> list[int]:
    """Look each 50 ms, where the very head is slow; return when it was looked at."""
    seen = []
    for now in range(0, until, 50):
        start = heads.start(now)
        if start is VERY_HEAD:
            seen.append(now)
        heads.note(A, now, 30.0 if start is VERY_HEAD else 2.0)
    return seen


def test_the_very_head_is_looked_at_less_and_less_often_and_each_six_seconds_at_least() -> None:
    """One slow call for some other reason costs a second of short looks, and no more."""
    # Each is followed by a short one for comparison.
    assert long_looks(Heads(1_000), 30_000) == [0, 1_050, 4_100, 10_150, 16_200, 22_250, 28_300]


def test_where_the_very_head_is_quick_again_looks_are_long_again() -> None:
    heads = Heads(1_000)
    assert long_looks(heads, 4_100) == [0, 1_050]

    assert [look(heads, now, 2.4) for now in (4_100, 4_150)] == [VERY_HEAD] * 2
    look(heads, 4_200, 30.0)
    look(heads, 4_250, 2.0)
    assert look(heads, 5_249, 2.0) is A
    assert look(heads, 5_250, 2.0) is VERY_HEAD


def test_after_a_short_look_the_very_head_is_due() -> None:
    heads = Heads(1_000)
    look(heads, 0, 30.0)
    assert heads.long_in(0) is None
    look(heads, 50, 2.0)

    assert [heads.long_in(now) for now in (50, 1_000, 1_050, 1_100)] == [1_000, 50, 0, 0]


def test_where_short_looks_are_slow_too_they_are_long_again() -> None:
    """A database that is far away, or busy: it is not compared again for a second."""
    heads = Heads(1_000)
    look(heads, 0, 30.0)
    look(heads, 50, 16.0)

    assert [look(heads, now, 30.0) for now in (100, 500, 1_049)] == [VERY_HEAD] * 3
    assert look(heads, 1_050, 30.0) is VERY_HEAD
    assert look(heads, 1_100, 30.0) is A


def test_one_short_look_that_was_slow_for_once_is_no_proof() -> None:
    heads = Heads(1_000)
    long_looks(heads, 4_100)
    assert look(heads, 4_100, 30.0) is VERY_HEAD
    assert look(heads, 4_150, 30.0) is A

    assert look(heads, 4_200, 30.0) is VERY_HEAD
    assert look(heads, 4_250, 2.0) is A
    assert look(heads, 5_249, 2.0) is A
    assert look(heads, 5_250, 30.0) is VERY_HEAD


def test_without_a_place_a_look_begins_at_the_very_head() -> None:
    """As on SQLite, where the taken leave nothing behind."""
    heads = Heads(1_000)
    look(heads, 0, 30.0, None)

    assert look(heads, 50, 30.0, None) is VERY_HEAD


def test_an_empty_look_keeps_the_place_of_earlier_ones() -> None:
    heads = Heads(1_000)
    look(heads, 0, 30.0)
    look(heads, 50, 2.0)
    look(heads, 100, 2.0, None)

    assert look(heads, 150, 2.0) is A
